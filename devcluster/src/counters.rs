//! What was asked of the server, counted and logged.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;

/// Requests that the log keeps.
const LOG_LENGTH: usize = 10_000;

/// Keys that are counted apart; a client that asks for ever new paths must not fill the memory.
const KEYS: usize = 10_000;
/// Stands for what is not told apart beyond [`KEYS`].
const OTHER: &str = "(other)";

/// By what requests are counted.
///
/// A cluster counts 10 000 keys apart. Beyond that, group, resource, subresource and user agent of new
/// keys are `(other)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct CounterKey {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for paths outside
    /// the API the HTTP method in lower case.
    pub verb: String,
    /// API group; "" is the core group.
    pub group: String,
    /// Plural of the resource; for paths outside the API the path.
    pub resource: String,
    /// Subresource, or "".
    pub subresource: String,
    /// HTTP code of the answer.
    pub code: u16,
    /// Who asked.
    pub user: String,
    /// `User-Agent` as sent.
    pub user_agent: String,
    /// Of lists and watches: which kind of resourceVersion was asked for.
    pub revision: RevisionClass,
    /// Whether a list continued an earlier one.
    pub continued: bool,
}

impl CounterKey {
    /// Whether the request may change objects.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}

impl CounterKey {
    /// The key with everything replaced that a client can make up at will.
    fn beyond_limit(&self) -> Self {
        let other = || OTHER.to_owned();
        Self {
            verb: self.verb.clone(),
            group: other(),
            resource: other(),
            subresource: other(),
            code: self.code,
            user: self.user.clone(),
            user_agent: other(),
            revision: self.revision,
            continued: self.continued,
        }
    }
}

/// The resourceVersion of a list or watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RevisionClass {
    /// None was sent.
    #[default]
    Unset,
    /// "0".
    Zero,
    /// A certain one.
    Set,
}

/// Counts of requests at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    requests: BTreeMap<CounterKey, u64>,
    watches: WatchCounters,
    panics: u64,
}

/// Counts of watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchCounters {
    /// Watches that were opened.
    pub opened: u64,
    /// Watches that ended, for whatever reason.
    pub ended: u64,
    /// Watches that were ended because they read too slowly.
    pub lagged: u64,
    /// Events that were sent, bookmarks included.
    pub events: u64,
    /// Bytes of events that were sent.
    pub bytes: u64,
}

impl WatchCounters {
    /// Watches that are open.
    pub fn active(&self) -> u64 {
        self.opened.saturating_sub(self.ended)
    }
}

impl Counters {
    /// The number of requests whose key passes.
    pub fn count(&self, passes: impl Fn(&CounterKey) -> bool) -> u64 {
        self.requests
            .iter()
            .filter(|(key, _)| passes(key))
            .map(|(_, count)| count)
            .sum()
    }

    /// The number of requests that may have changed objects and were answered with success, by this user.
    pub fn writes_by(&self, user: &str) -> u64 {
        self.count(|key| key.user == user && key.is_write() && key.code < 300)
    }

    /// The counts of requests whose key does not match, e.g. without those of the simulated nodes
    /// ([`KUBELET_USER_AGENT`](crate::kubelet::KUBELET_USER_AGENT)). Counts of watches stay.
    #[must_use]
    pub fn without(&self, excluded: impl Fn(&CounterKey) -> bool) -> Self {
        let mut kept = self.clone();
        kept.requests.retain(|key, _| !excluded(key));
        kept
    }

    /// All counts.
    pub fn requests(&self) -> impl Iterator<Item = (&CounterKey, u64)> {
        self.requests.iter().map(|(key, count)| (key, *count))
    }

    /// The counts of watches.
    pub fn watches(&self) -> WatchCounters {
        self.watches
    }

    /// Requests whose handling panicked; each was answered with 500.
    pub fn panics(&self) -> u64 {
        self.panics
    }

    /// What was counted since an earlier snapshot of the same cluster.
    pub fn since(&self, earlier: &Self) -> Self {
        let requests = self
            .requests
            .iter()
            .filter_map(|(key, count)| {
                let new = count - earlier.requests.get(key).copied().unwrap_or(0).min(*count);
                (new > 0).then(|| (key.clone(), new))
            })
            .collect();
        let (now, then) = (self.watches, earlier.watches);
        Self {
            requests,
            watches: WatchCounters {
                opened: now.opened - then.opened.min(now.opened),
                ended: now.ended - then.ended.min(now.ended),
                lagged: now.lagged - then.lagged.min(now.lagged),
                events: now.events - then.events.min(now.events),
                bytes: now.bytes - then.bytes.min(now.bytes),
            },
            panics: self.panics - earlier.panics.min(self.panics),
        }
    }
}

/// One line for each key: an assertion that fails with this shows which calls were too many.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, count) in &self.requests {
            writeln!(
                f,
                "{count:>6} {} {}{}{}{}{} -> {} by {} ({})",
                key.verb,
                key.resource,
                if key.group.is_empty() { "" } else { "." },
                key.group,
                if key.subresource.is_empty() { "" } else { "/" },
                key.subresource,
                key.code,
                key.user,
                key.user_agent,
            )?;
        }
        Ok(())
    }
}

/// One request of the log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogEntry {
    /// Position in the order of answers, from 0.
    pub sequence: u64,
    /// When it was answered (for a watch: when it was opened).
    pub at: Timestamp,
    /// What it was counted under.
    pub key: CounterKey,
    /// Path and query as sent.
    pub uri: String,
}

/// Counts the requests of one cluster. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    counters: Counters,
    log: VecDeque<LogEntry>,
    next: u64,
}

impl Recorder {
    pub(crate) fn request(&self, at: Timestamp, key: CounterKey, uri: String) {
        let mut record = self.0.lock();
        let requests = &mut record.counters.requests;
        let counted = if requests.len() < KEYS || requests.contains_key(&key) {
            key.clone()
        } else {
            key.beyond_limit()
        };
        *requests.entry(counted).or_default() += 1;
        if record.log.len() == LOG_LENGTH {
            record.log.pop_front();
        }
        let sequence = record.next;
        record.next += 1;
        record.log.push_back(LogEntry {
            sequence,
            at,
            key,
            uri,
        });
    }

    pub(crate) fn panicked(&self) {
        self.0.lock().counters.panics += 1;
    }

    pub(crate) fn watch_opened(&self) -> OpenWatch {
        self.0.lock().counters.watches.opened += 1;
        OpenWatch(self.clone())
    }

    pub(crate) fn snapshot(&self) -> Counters {
        self.0.lock().counters.clone()
    }

    pub(crate) fn log(&self) -> Vec<LogEntry> {
        self.0.lock().log.iter().cloned().collect()
    }
}

/// An open watch; dropping it counts the end.
#[derive(Debug)]
pub(crate) struct OpenWatch(Recorder);

impl OpenWatch {
    pub(crate) fn sent(&self, events: u64, bytes: usize) {
        let mut record = self.0.0.lock();
        record.counters.watches.events += events;
        record.counters.watches.bytes += bytes as u64;
    }

    pub(crate) fn lagged(&self) {
        self.0.0.lock().counters.watches.lagged += 1;
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.0.lock().counters.watches.ended += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(verb: &str, user: &str, code: u16) -> CounterKey {
        CounterKey {
            verb: verb.to_owned(),
            group: String::new(),
            resource: "pods".to_owned(),
            subresource: String::new(),
            code,
            user: user.to_owned(),
            user_agent: "test".to_owned(),
            revision: RevisionClass::Unset,
            continued: false,
        }
    }

    #[test]
    fn ever_new_paths_are_counted_without_filling_the_memory() {
        let recorder = Recorder::default();
        let total = KEYS as u64 + 500;
        for n in 0..total {
            let mut key = key("get", "a", 404);
            key.resource = format!("/nowhere/{n}");
            recorder.request(Timestamp::UNIX_EPOCH, key, String::new());
        }
        let counters = recorder.snapshot();
        assert_eq!(counters.requests().count(), KEYS + 1);
        assert_eq!(counters.count(|_| true), total);
        assert_eq!(counters.count(|key| key.resource == OTHER), 500);
    }

    #[test]
    fn a_difference_counts_what_came_since_and_writes_are_told_from_reads() {
        let recorder = Recorder::default();
        let now = Timestamp::UNIX_EPOCH;
        recorder.request(now, key("get", "a", 200), "/x".to_owned());
        recorder.request(now, key("update", "a", 200), "/x".to_owned());
        let before = recorder.snapshot();
        recorder.request(now, key("update", "a", 409), "/x".to_owned());
        recorder.request(now, key("patch", "a", 200), "/x".to_owned());
        recorder.request(now, key("patch", "b", 200), "/x".to_owned());
        let watch = recorder.watch_opened();
        let since = recorder.snapshot().since(&before);
        assert_eq!(since.count(|_| true), 3);
        assert_eq!(since.writes_by("a"), 1);
        assert_eq!(since.watches().active(), 1);
        drop(watch);
        assert_eq!(recorder.snapshot().watches().active(), 0);
        assert_eq!(recorder.log().len(), 5);
        assert_eq!(recorder.log()[4].sequence, 4);
    }
}
