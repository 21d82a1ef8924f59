//! Which events are known, how often each happened, and what is still to be written.
//!
//! A state machine without IO: [`Ledger::observe`] takes an occurrence, [`Ledger::take`] gives the
//! next write, [`Ledger::settle`] takes its outcome, [`Ledger::tick`] does what time brings. At most
//! one write is under way. The time is an argument everywhere.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use lru::LruCache;
use tokio::time::Instant;

use super::notice::Notice;

/// A series is written again after this time, which also renews its life on the server.
pub(super) const REFRESH: Duration = Duration::from_secs(30 * 60);
/// An event without a further occurrence for this time is over.
pub(super) const FINISH: Duration = Duration::from_secs(6 * 60);
/// Least time between two looks at all events.
const SCAN_PAUSE: Duration = Duration::from_secs(1);

/// One moment on both clocks: the monotonic one decides, the other one is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) at: Instant,
    pub(super) wall: Timestamp,
}

/// What makes occurrences one event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) Arc<str>);

impl Key {
    /// A key of parts; none of them can run into its neighbour.
    pub(super) fn of(parts: &[&str]) -> Self {
        Self(parts.join("\0").into())
    }
}

/// When repetitions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeats {
    /// Each one, as a new count (`v1`).
    Each,
    /// The second one, then by [`REFRESH`] and [`FINISH`] (`events.k8s.io/v1`).
    Series,
}

/// An event with its count.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tally {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) regarding: ObjectReference,
    pub(super) notice: Notice,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    pub(super) count: u32,
}

/// Something the server is to be told.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Write {
    pub(super) tally: Tally,
    /// Whether the server is thought to have the event: patch it, and create it only if it is gone.
    pub(super) known: bool,
    key: Option<Key>,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The server has it.
    Written,
    /// The server refused it, so it would refuse it again.
    Rejected,
    /// The server could not be reached.
    Undelivered,
}

/// What became of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observed {
    /// It waits to be written.
    Queued,
    /// It is counted and needs no write of its own now.
    Counted,
    /// Its event is written too often already.
    Filtered,
    /// There is no place left.
    Dropped,
}

#[derive(Debug)]
struct Record {
    tally: Tally,
    last_seen: Instant,
    /// Count at the last occurrence that may be written.
    wanted: u32,
    /// Count at the last attempt to write, 0 before the first.
    attempted: u32,
    attempted_at: Instant,
    /// Count that the server has, 0 if it has none.
    written: u32,
    rejected: bool,
    queued: bool,
    in_flight: bool,
}

impl Record {
    fn is_idle(&self) -> bool {
        !self.queued && !self.in_flight
    }

    /// Whether a write is due by occurrences alone.
    fn is_due(&self, repeats: Repeats) -> bool {
        match repeats {
            Repeats::Each => self.wanted > self.attempted,
            Repeats::Series => self.attempted == 0 || (self.wanted > 1 && self.attempted < 2),
        }
    }

    fn ends(&self) -> Instant {
        self.last_seen + FINISH
    }

    /// When time alone leads to something: the end, or the refresh of a series.
    fn due(&self) -> Instant {
        if self.tally.count > 1 {
            self.ends().min(self.attempted_at + REFRESH)
        } else {
            self.ends()
        }
    }

    /// Whether the end of the event leaves something to say.
    fn has_remainder(&self) -> bool {
        self.wanted > self.written && !self.rejected
    }
}

#[derive(Debug)]
enum Pending {
    Known(Key),
    /// No longer remembered: its last write.
    Last(Box<Write>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    repeats: Repeats,
    records: LruCache<Key, Record>,
    outbox: VecDeque<Pending>,
    /// Largest length of `outbox`.
    capacity: usize,
    /// No event ends or is refreshed before this moment; none while there is no event.
    due: Option<Instant>,
    /// Wall clock of the last name given out, in ns, so that no name comes twice.
    last_name: i128,
}

impl Ledger {
    pub(super) fn new(repeats: Repeats, capacity: usize, cache: NonZeroUsize) -> Self {
        Self {
            repeats,
            records: LruCache::new(cache),
            outbox: VecDeque::new(),
            capacity,
            due: None,
            last_name: 0,
        }
    }

    /// Takes one occurrence of the event `key`; one that is not `permitted` is counted only.
    pub(super) fn observe(
        &mut self,
        key: Key,
        regarding: &ObjectReference,
        notice: Notice,
        permitted: bool,
        now: Now,
    ) -> Observed {
        let full = self.outbox.len() >= self.capacity;
        if let Some(record) = self.records.get_mut(&key) {
            record.tally.count = record.tally.count.saturating_add(1);
            record.tally.last = now.wall;
            record.last_seen = now.at;
            if self.repeats == Repeats::Each {
                // Of a combined event the newest message is shown.
                record.tally.notice.note = notice.note;
            }
            if !permitted {
                return Observed::Filtered;
            }
            record.wanted = record.tally.count;
            if record.is_due(self.repeats) && record.is_idle() && !full {
                record.queued = true;
                self.outbox.push_back(Pending::Known(key));
                return Observed::Queued;
            }
            return Observed::Counted;
        }
        if permitted && full {
            return Observed::Dropped;
        }
        let record = Record {
            tally: self.tally(regarding, notice, now),
            last_seen: now.at,
            wanted: u32::from(permitted),
            attempted: 0,
            attempted_at: now.at,
            written: 0,
            rejected: false,
            queued: permitted,
            in_flight: false,
        };
        self.insert(key.clone(), record);
        if !permitted {
            return Observed::Filtered;
        }
        self.outbox.push_back(Pending::Known(key));
        Observed::Queued
    }

    fn tally(&mut self, regarding: &ObjectReference, notice: Notice, now: Now) -> Tally {
        let stamp = now.wall.as_nanosecond().max(self.last_name + 1);
        self.last_name = stamp;
        Tally {
            namespace: namespace_of(regarding).to_owned(),
            name: name_of(regarding, stamp),
            regarding: regarding.clone(),
            notice,
            first: now.wall,
            last: now.wall,
            count: 1,
        }
    }

    fn insert(&mut self, key: Key, record: Record) {
        self.remind(record.due());
        if self.records.len() == self.records.cap().get() {
            // The one under way is still needed; there is only one.
            if let Some((oldest, record)) = self.records.peek_lru()
                && record.in_flight
            {
                let oldest = oldest.clone();
                self.records.promote(&oldest);
            }
            if let Some((oldest, evicted)) = self.records.pop_lru() {
                self.forget(&oldest, evicted);
            }
        }
        self.records.put(key, record);
    }

    /// Keeps the last write of a record that was taken off, in the place it had if it had one.
    fn forget(&mut self, key: &Key, record: Record) {
        let last = |record: Record| {
            Pending::Last(Box::new(Write {
                tally: record.tally,
                known: record.written > 0,
                key: None,
            }))
        };
        if record.queued {
            let place = self
                .outbox
                .iter_mut()
                .find(|pending| matches!(pending, Pending::Known(known) if known == key));
            if let Some(place) = place {
                *place = last(record);
            }
        } else if record.is_idle() && record.has_remainder() && self.outbox.len() < self.capacity {
            self.outbox.push_back(last(record));
        }
    }

    /// The next write; it must be [settled](Self::settle) before the one after it is taken.
    pub(super) fn take(&mut self) -> Option<Write> {
        while let Some(pending) = self.outbox.pop_front() {
            match pending {
                Pending::Last(write) => return Some(*write),
                Pending::Known(key) => {
                    let Some(record) = self.records.peek_mut(&key) else {
                        continue;
                    };
                    (record.queued, record.in_flight) = (false, true);
                    return Some(Write {
                        tally: record.tally.clone(),
                        known: record.written > 0,
                        key: Some(key),
                    });
                }
            }
        }
        None
    }

    /// Takes the outcome of a write; what happened meanwhile may lead to the next one.
    pub(super) fn settle(&mut self, write: &Write, outcome: Outcome, now: Now) {
        let Some(key) = &write.key else { return };
        let Some(record) = self.records.peek_mut(key) else {
            return;
        };
        record.in_flight = false;
        record.attempted = write.tally.count;
        record.attempted_at = now.at;
        record.rejected = outcome == Outcome::Rejected;
        if outcome == Outcome::Written {
            record.written = write.tally.count;
        }
        let due = record.due();
        // There is room: the write that ended had a place.
        if record.is_due(self.repeats) {
            record.queued = true;
            self.outbox.push_back(Pending::Known(key.clone()));
        }
        self.remind(due);
    }

    /// When [`tick`](Self::tick) has something to do at the earliest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Ends and refreshes series; forgets single events that are over. Counts (`v1`) go on until they
    /// are forgotten for want of room.
    ///
    /// Cost: a look at each event remembered, at most once a second.
    pub(super) fn tick(&mut self, now: Now) {
        if self.due.is_none_or(|due| now.at < due) {
            return;
        }
        let (mut next, mut over) = (None, Vec::new());
        for (key, record) in &mut self.records {
            // One that waits to be written is looked at again when it is settled.
            if !record.is_idle() {
                continue;
            }
            let room = self.outbox.len() + over.len() < self.capacity;
            if now.at < record.due() {
                next = earlier(next, record.due());
            } else if !room {
                next = earlier(next, now.at);
            } else if now.at >= record.ends() {
                over.push(key.clone());
            } else {
                record.queued = true;
                self.outbox.push_back(Pending::Known(key.clone()));
            }
        }
        for key in over {
            if let Some(record) = self.records.pop(&key) {
                self.forget(&key, record);
            }
        }
        self.due = next.map(|next| next.max(now.at + SCAN_PAUSE));
    }

    fn remind(&mut self, at: Instant) {
        if self.repeats == Repeats::Series {
            self.due = earlier(self.due, at);
        }
    }

    /// Queues each count the server does not have yet: the last writes before the end.
    pub(super) fn flush(&mut self) {
        for (key, record) in &mut self.records {
            if record.is_idle() && record.has_remainder() {
                record.queued = true;
                self.outbox.push_back(Pending::Known(key.clone()));
            }
        }
    }

    /// Number of writes that wait.
    pub(super) fn queued(&self) -> usize {
        self.outbox.len()
    }

    /// Number of writes that wait or are under way.
    pub(super) fn unwritten(&self) -> usize {
        self.outbox.len()
            + self
                .records
                .iter()
                .filter(|(_, record)| record.in_flight)
                .count()
    }

    /// Number of events that are remembered.
    pub(super) fn remembered(&self) -> usize {
        self.records.len()
    }
}

fn earlier(a: Option<Instant>, b: Instant) -> Option<Instant> {
    Some(a.map_or(b, |a| a.min(b)))
}

/// Namespace of the event about an object: the object's, `default` if it has none.
fn namespace_of(regarding: &ObjectReference) -> &str {
    match regarding.namespace.as_deref() {
        None | Some("") => "default",
        Some(namespace) => namespace,
    }
}

/// Name of an event: the object's and the time in hexadecimal, or a random one where that is none.
fn name_of(regarding: &ObjectReference, stamp: i128) -> String {
    /// Longest object name of the API.
    const LIMIT: usize = 253;
    let object = regarding.name.as_deref().unwrap_or_default();
    let name = format!("{object}.{stamp:x}");
    // Not each object name is one for events: those of RBAC may hold colons.
    let label = |label: &str| {
        let alphanumeric =
            |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = label.as_bytes();
        alphanumeric(bytes.first())
            && alphanumeric(bytes.last())
            && bytes
                .iter()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    if name.len() <= LIMIT && name.split('.').all(label) {
        name
    } else {
        uuid::Uuid::new_v4().to_string()
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
