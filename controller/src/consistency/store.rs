//! Versions of own writes by key, and whether the caches have reached them.

use std::cmp::Ordering;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use informer::{Informer, ObjectKey, compare_versions};
use kube_core::Resource;
use tokio::time::Instant;

/// The newest `resourceVersion` a cache has seen, objects and bookmarks alike.
pub trait ObservedVersion: Send + Sync + 'static {
    /// The version; none before the first list.
    fn observed_version(&self) -> Option<Arc<str>>;
}

impl<F> ObservedVersion for F
where
    F: Fn() -> Option<Arc<str>> + Send + Sync + 'static,
{
    fn observed_version(&self) -> Option<Arc<str>> {
        self()
    }
}

impl<K: Resource + Send + Sync + 'static> ObservedVersion for Informer<K> {
    fn observed_version(&self) -> Option<Arc<str>> {
        Some(self.lister().resource_version()).filter(|version| !version.is_empty())
    }
}

/// A cache known to a [`ConsistencyStore`]; only valid for the store that gave it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked(usize);

/// Whether the caches have reached a key's own writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consistency {
    /// They have, or there is no write on record: reconcile from the cache.
    Level,
    /// A cache lags: don't act on it. Come again after [`Lag::remaining`] at the latest; the event
    /// of the own write normally comes earlier.
    Behind(Lag),
    /// A cache lags for longer than the cap: read live what the decision rests on. This goes on
    /// until the cache has caught up.
    Overdue(Lag),
}

/// How far a cache is behind an own write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// Name the cache was tracked under.
    pub cache: Arc<str>,
    /// `resourceVersion` of the write.
    pub written: Arc<str>,
    /// What the cache has seen; none before its first list.
    pub observed: Option<Arc<str>>,
    /// Time since the write.
    pub waited: Duration,
    /// Time until the cap; zero if overdue.
    pub remaining: Duration,
}

impl Lag {
    /// When to look again if no event comes: after as long as was waited already, 5 ms to 1 s, and no
    /// later than the cap. So a lag is overshot by as much again at most, and ten seconds of it cost
    /// some twenty looks.
    #[must_use]
    pub fn look_again(&self) -> Duration {
        self.waited
            .clamp(SOONEST_LOOK, LATEST_LOOK)
            .min(self.remaining)
    }
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observed = self.observed.as_deref().unwrap_or("nothing");
        write!(
            f,
            "cache of {} has seen {observed}, own write is {}",
            self.cache, self.written
        )
    }
}

/// Versions of own writes by key, and the caches they are compared with.
///
/// A record lives until the caches have reached it, the key is [cleared](Self::clear), or another
/// UID comes under the key. Records of keys that are never checked again are swept once the caches
/// are level with them (or, if that can't be compared, past the cap; or else 60 caps after the write:
/// that cache does not run any more), each time the number of records has doubled, from about a
/// thousand on. So the store holds
/// about as many records as there are keys with writes of late that the caches have not yet seen.
///
/// Cost: a check or write is one look-up in a sharded map plus one comparison for each kind
/// written; a sweep touches all records and is amortised by the writes before it.
pub struct ConsistencyStore {
    cap: Duration,
    /// Replaced whole, so that a check holds no lock while it asks a cache.
    caches: RwLock<Arc<[Known]>>,
    records: DashMap<ObjectKey, Record>,
    /// Number of records at which the next write sweeps.
    sweep_at: AtomicUsize,
}

#[derive(Clone)]
struct Known {
    name: Arc<str>,
    version: Arc<dyn ObservedVersion>,
}

#[derive(Debug)]
struct Record {
    uid: Arc<str>,
    /// At most one for each cache.
    writes: Vec<Write>,
    /// The last write to the object itself, for each cache that may have it.
    itself: Vec<Write>,
}

#[derive(Debug, Clone)]
struct Write {
    cache: usize,
    version: Arc<str>,
    at: Instant,
}

const SOONEST_LOOK: Duration = Duration::from_millis(5);
const LATEST_LOOK: Duration = Duration::from_secs(1);

/// So many caps after a write a sweep gives up on the cache that has not shown it.
const GIVE_UP_CAPS: u32 = 60;

/// Fewer records than this are not worth a sweep.
const SWEEP_FROM: usize = 1024;

impl Default for ConsistencyStore {
    /// A store with a cap of 10 s.
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

impl fmt::Debug for ConsistencyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caches = self.caches();
        let caches: Vec<_> = caches.iter().map(|cache| &cache.name).collect();
        f.debug_struct("ConsistencyStore")
            .field("cap", &self.cap)
            .field("caches", &caches)
            .field("records", &self.records.len())
            .finish_non_exhaustive()
    }
}

impl ConsistencyStore {
    /// A store without caches; a write is waited for at most `cap`.
    #[must_use]
    pub fn new(cap: Duration) -> Self {
        Self {
            cap,
            caches: RwLock::default(),
            records: DashMap::new(),
            sweep_at: AtomicUsize::new(SWEEP_FROM),
        }
    }

    /// Makes a cache known under `name` (for messages): an informer, or a closure.
    pub fn track(&self, name: impl Into<Arc<str>>, cache: impl ObservedVersion) -> Tracked {
        let known = Known {
            name: name.into(),
            version: Arc::new(cache),
        };
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        *caches = caches.iter().cloned().chain([known]).collect();
        Tracked(caches.len() - 1)
    }

    fn caches(&self) -> Arc<[Known]> {
        // Replaced whole, so a panic elsewhere leaves it usable.
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&caches)
    }

    /// Records that the reconcile of `key` (incarnation `uid`) wrote an object of the kind in
    /// `cache`, and that the server answered with `version`.
    ///
    /// The newest version counts; one that can't be compared replaces the one on record. Another
    /// `uid` than on record starts a fresh record, unless that one is empty: then the object is the one
    /// that no cache had, and the record becomes that of `uid`.
    ///
    /// # Panics
    /// If `cache` is of another store that knows more caches than this one.
    pub fn wrote(&self, key: &ObjectKey, uid: &str, cache: Tracked, version: &str) {
        self.record(key, uid, cache, version, false);
    }

    /// As [`wrote`](Self::wrote), for a write to the object that `key` stands for, whose answer said
    /// `uid`. Until the cache has reached it, a [`check`](Self::check) with another UID comes from a
    /// cache that shows an older object of that name, or none yet.
    ///
    /// # Panics
    /// As [`wrote`](Self::wrote).
    pub fn wrote_itself(&self, key: &ObjectKey, uid: &str, cache: Tracked, version: &str) {
        self.record(key, uid, cache, version, true);
    }

    fn record(&self, key: &ObjectKey, uid: &str, cache: Tracked, version: &str, itself: bool) {
        let known = self.caches().len();
        assert!(cache.0 < known, "a cache that another store tracks");
        self.sweep_if_due();
        let write = Write {
            cache: cache.0,
            version: version.into(),
            at: Instant::now(),
        };
        let mut record = self
            .records
            .entry(key.clone())
            .or_insert_with(|| Record::of(uid));
        record.is_of(uid);
        if &*record.uid != uid {
            *record = Record::of(uid);
        }
        if itself {
            put(&mut record.itself, write.clone());
        }
        put(&mut record.writes, write);
    }

    /// Tells whether the caches have reached the writes of `key`.
    ///
    /// Forgets the writes they have reached, and the whole record if its UID isn't `uid` (but see
    /// [`wrote_itself`](Self::wrote_itself)). A record under the empty UID, of an object that no cache
    /// had, becomes that of `uid`.
    pub fn check(&self, key: &ObjectKey, uid: &str) -> Consistency {
        if !self.records.contains_key(key) {
            return Consistency::Level;
        }
        // Before the record is taken: a cache may be anybody's closure.
        let caches = self.caches();
        let observed = observed(&caches);
        let Entry::Occupied(mut entry) = self.records.entry(key.clone()) else {
            return Consistency::Level;
        };
        entry.get_mut().is_of(uid);
        let is_behind = |write: &Write| {
            standing(seen(&observed, write).as_deref(), &write.version) == Standing::Behind
        };
        if &*entry.get().uid != uid && !entry.get().itself.iter().any(is_behind) {
            entry.remove();
            return Consistency::Level;
        }
        let now = Instant::now();
        let mut oldest: Option<Lag> = None;
        entry.get_mut().writes.retain(|write| {
            let observed = seen(&observed, write);
            let standing = standing(observed.as_deref(), &write.version);
            if standing == Standing::Reached {
                return false;
            }
            let lag = self.lag(write, &caches, observed, now);
            let is_over = lag.remaining.is_zero();
            if oldest
                .as_ref()
                .is_none_or(|oldest| lag.waited > oldest.waited)
            {
                oldest = Some(lag);
            }
            // What can't be compared is never seen as reached: past the cap it has done its work.
            standing == Standing::Behind || !is_over
        });
        if entry.get().writes.is_empty() {
            entry.remove();
        }
        match oldest {
            None => Consistency::Level,
            Some(lag) if lag.remaining.is_zero() => Consistency::Overdue(lag),
            Some(lag) => Consistency::Behind(lag),
        }
    }

    /// How far the cache of a write is behind that.
    fn lag(
        &self,
        write: &Write,
        caches: &[Known],
        observed: Option<Arc<str>>,
        now: Instant,
    ) -> Lag {
        let waited = now - write.at;
        Lag {
            cache: caches
                .get(write.cache)
                .map_or_else(|| "a new source".into(), |cache| Arc::clone(&cache.name)),
            written: Arc::clone(&write.version),
            observed,
            waited,
            remaining: self.cap.saturating_sub(waited),
        }
    }

    /// Keys for which [`check`](Self::check) would answer [`Behind`](Consistency::Behind) under the UID
    /// on record, the one that has waited longest first. Looks at all records and changes none.
    #[must_use]
    pub fn behind(&self) -> Vec<(ObjectKey, Lag)> {
        let caches = self.caches();
        let observed = observed(&caches);
        let now = Instant::now();
        let lag_of = |record: &Record| {
            let lags = record.writes.iter().filter_map(|write| {
                let observed = seen(&observed, write);
                let reached = standing(observed.as_deref(), &write.version) == Standing::Reached;
                (!reached).then(|| self.lag(write, &caches, observed, now))
            });
            lags.max_by_key(|lag| lag.waited)
                .filter(|lag| !lag.remaining.is_zero())
        };
        let mut behind: Vec<_> = self
            .records
            .iter()
            .filter_map(|record| Some((record.key().clone(), lag_of(record.value())?)))
            .collect();
        behind.sort_by(|(a, a_lag), (b, b_lag)| {
            b_lag.waited.cmp(&a_lag.waited).then_with(|| a.cmp(b))
        });
        behind
    }

    /// Forgets the writes of `key`: its object is gone.
    pub fn clear(&self, key: &ObjectKey) {
        self.records.remove(key);
    }

    /// UID under which writes of `key` are on record, if any are.
    pub(super) fn uid(&self, key: &ObjectKey) -> Option<Arc<str>> {
        self.records.get(key).map(|record| Arc::clone(&record.uid))
    }

    /// Number of keys with a write on record.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Reports whether no write is on record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn sweep_if_due(&self) {
        if self.records.len() < self.sweep_at.load(Memory::Relaxed) {
            return;
        }
        let observed = observed(&self.caches());
        let now = Instant::now();
        let give_up = self.cap.saturating_mul(GIVE_UP_CAPS);
        self.records.retain(|_, record| {
            record.writes.retain(|write| {
                let waited = now - write.at;
                match standing(seen(&observed, write).as_deref(), &write.version) {
                    Standing::Reached => false,
                    Standing::Behind => waited < give_up,
                    // Nothing will ever tell that it was reached.
                    Standing::Incomparable => waited < self.cap,
                }
            });
            !record.writes.is_empty()
        });
        self.sweep_at
            .store(SWEEP_FROM.max(self.records.len() * 2), Memory::Relaxed);
    }
}

/// What each cache has seen.
fn observed(caches: &[Known]) -> Vec<Option<Arc<str>>> {
    let versions = caches.iter().map(|cache| &cache.version);
    versions.map(|version| version.observed_version()).collect()
}

/// What the cache of `write` has seen; nothing if it became known after the others were asked.
fn seen(observed: &[Option<Arc<str>>], write: &Write) -> Option<Arc<str>> {
    observed.get(write.cache).cloned().flatten()
}

impl Record {
    fn of(uid: &str) -> Self {
        Self {
            uid: uid.into(),
            writes: Vec::new(),
            itself: Vec::new(),
        }
    }

    /// Its object is known by `uid`. If it was noted while no cache had the object, it is that one.
    fn is_of(&mut self, uid: &str) {
        if self.uid.is_empty() && !uid.is_empty() {
            self.uid = uid.into();
        }
    }
}

/// Notes the newest write for each cache.
fn put(writes: &mut Vec<Write>, write: Write) {
    let same = |present: &&mut Write| present.cache == write.cache;
    match writes.iter_mut().find(same) {
        None => writes.push(write),
        Some(present) => {
            let order = compare_versions(&present.version, &write.version);
            // A late answer to an older write must not lower the mark.
            if order != Some(Ordering::Greater) {
                *present = write;
            }
        }
    }
}

/// Where a cache stands to a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Reached,
    Behind,
    Incomparable,
}

/// Where a cache that has seen `observed` stands to a write that got `written`.
pub(super) fn standing(observed: Option<&str>, written: &str) -> Standing {
    let Some(observed) = observed else {
        return Standing::Behind;
    };
    match compare_versions(observed, written) {
        Some(Ordering::Less) => Standing::Behind,
        Some(Ordering::Equal | Ordering::Greater) => Standing::Reached,
        None if observed == written => Standing::Reached,
        None => Standing::Incomparable,
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
