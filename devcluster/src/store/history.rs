//! The ring of recent events of one collection.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::Instant;

use super::object::{Key, StoredObject};

/// Events that are kept however old they are.
pub(super) const MIN_EVENTS: usize = 100;
/// Events that are kept at most.
pub(super) const MAX_EVENTS: usize = 102_400;
/// Bytes of objects beyond which events go, down to [`MIN_EVENTS`].
pub(super) const MAX_BYTES: usize = 128 << 20;
/// Age below which an event is kept, up to [`MAX_EVENTS`] and [`MAX_BYTES`].
pub(super) const MIN_AGE: Duration = Duration::from_secs(300);

/// What happened to the object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// Created or changed.
    Put,
    /// Removed; the event's object is the last content under the revision of the removal.
    Delete,
}

/// One commit, as watchers see it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) kind: EventKind,
    pub(crate) key: Key,
    pub(crate) object: Arc<StoredObject>,
    pub(crate) previous: Option<Arc<StoredObject>>,
    departed: OnceLock<Arc<StoredObject>>,
    at: Instant,
}

impl Event {
    pub(super) fn new(
        kind: EventKind,
        key: Key,
        object: Arc<StoredObject>,
        previous: Option<Arc<StoredObject>>,
    ) -> Self {
        Self {
            revision: object.revision,
            kind,
            key,
            object,
            previous,
            departed: OnceLock::new(),
            at: Instant::now(),
        }
    }

    /// The content before the event under the event's revision: what a watcher gets whose selector the object
    /// has left. Built at most once.
    pub(crate) fn departed(&self) -> Option<&Arc<StoredObject>> {
        let previous = self.previous.as_ref()?;
        Some(
            self.departed
                .get_or_init(|| Arc::new(previous.restamped(self.revision))),
        )
    }
}

/// Recent events in revision order, addressed by sequence number.
#[derive(Debug)]
pub(super) struct History {
    events: VecDeque<Arc<Event>>,
    /// Bytes of the events' objects. Each is shared with the store or the event before it, so that this is
    /// what the ring keeps in memory at most.
    bytes: usize,
    /// Sequence number of the first event in the ring.
    first: u64,
    /// A watch may start at this revision or later.
    floor: u64,
}

impl History {
    pub(super) fn starting_at(floor: u64) -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            first: 0,
            floor,
        }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The sequence number that the next event will get.
    pub(super) fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    pub(super) fn push(&mut self, event: Arc<Event>) {
        self.bytes += event.object.bytes().len();
        self.events.push_back(event);
    }

    /// Takes out the oldest event if it is one too many, too old or too large.
    pub(super) fn trim_one(&mut self, now: Instant) -> Option<Arc<Event>> {
        let oldest = self.events.front()?;
        let surplus = self.events.len() > MAX_EVENTS
            || (self.events.len() > MIN_EVENTS
                && (self.bytes > MAX_BYTES || now.duration_since(oldest.at) > MIN_AGE));
        if !surplus {
            return None;
        }
        let event = self.events.pop_front()?;
        self.bytes -= event.object.bytes().len();
        self.first += 1;
        self.floor = event.revision;
        Some(event)
    }

    /// Forgets all events: only watches from now on can start, and those that have not read them are behind.
    pub(super) fn trim_all(&mut self) {
        if let Some(newest) = self.events.back() {
            self.floor = newest.revision;
            self.first += self.events.len() as u64;
            self.events.clear();
            self.bytes = 0;
        }
    }

    /// Forgets all events and every watch before `revision`, which is not below any of them.
    pub(super) fn begin_at(&mut self, revision: u64) {
        self.trim_all();
        self.floor = self.floor.max(revision);
    }

    /// The sequence number of the first event after `revision`, or `None` if events after it were trimmed.
    pub(super) fn position_after(&self, revision: u64) -> Option<u64> {
        if revision < self.floor {
            return None;
        }
        let index = self
            .events
            .partition_point(|event| event.revision <= revision);
        Some(self.first + index as u64)
    }

    /// Up to `max` events from sequence number `from` on, or `None` if that event was trimmed.
    pub(super) fn read(&self, from: u64, max: usize) -> Option<Vec<Arc<Event>>> {
        let index = usize::try_from(from.checked_sub(self.first)?).ok()?;
        Some(
            self.events
                .iter()
                .skip(index)
                .take(max)
                .map(Arc::clone)
                .collect(),
        )
    }
}
