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
/// are level with them (or, if that can't be compared, past the cap), each time the number of
/// records has doubled, so the store holds about as many records as there are keys with writes the
/// caches have not yet seen.
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
    /// The last write to the object itself.
    itself: Option<Write>,
}

#[derive(Debug, Clone)]
struct Write {
    cache: usize,
    version: Arc<str>,
    at: Instant,
}

const SOONEST_LOOK: Duration = Duration::from_millis(5);
const LATEST_LOOK: Duration = Duration::from_secs(1);

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
    /// `uid` than on record starts a fresh record.
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
        if &*record.uid != uid {
            *record = Record::of(uid);
        }
        if itself {
            record.itself = Some(write.clone());
        }
        record.put(write);
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
        if entry.get().uid.is_empty() && !uid.is_empty() {
            // Noted while no cache had the object: it is the one that has come.
            entry.get_mut().uid = uid.into();
        }
        let is_behind = |write: &Write| {
            standing(seen(&observed, write).as_deref(), &write.version) == Standing::Behind
        };
        if &*entry.get().uid != uid && !entry.get().itself.as_ref().is_some_and(is_behind) {
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
            let waited = now - write.at;
            let remaining = self.cap.saturating_sub(waited);
            if oldest.as_ref().is_none_or(|lag| remaining < lag.remaining) {
                oldest = Some(Lag {
                    cache: caches
                        .get(write.cache)
                        .map_or_else(|| "a new source".into(), |cache| Arc::clone(&cache.name)),
                    written: Arc::clone(&write.version),
                    observed,
                    waited,
                    remaining,
                });
            }
            // What can't be compared is never seen as reached: past the cap it has done its work.
            standing == Standing::Behind || !remaining.is_zero()
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
        self.records.retain(|_, record| {
            record.writes.retain(|write| {
                match standing(seen(&observed, write).as_deref(), &write.version) {
                    Standing::Reached => false,
                    Standing::Behind => true,
                    // Nothing will ever tell that it was reached.
                    Standing::Incomparable => now - write.at < self.cap,
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
            itself: None,
        }
    }

    fn put(&mut self, write: Write) {
        match self
            .writes
            .iter_mut()
            .find(|present| present.cache == write.cache)
        {
            None => self.writes.push(write),
            Some(present) => {
                let order = compare_versions(&present.version, &write.version);
                // A late answer to an older write must not lower the mark.
                if order != Some(Ordering::Greater) {
                    *present = write;
                }
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
mod tests {
    use std::sync::Mutex;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const CAP: Duration = Duration::from_secs(5);

    /// Two caches whose versions the test moves.
    struct World {
        store: ConsistencyStore,
        proxies: Tracked,
        pods: Tracked,
        versions: Arc<Mutex<[Option<&'static str>; 2]>>,
    }

    impl World {
        fn new() -> Self {
            let versions = Arc::new(Mutex::new([Some("10"), Some("10")]));
            let store = ConsistencyStore::new(CAP);
            let [proxies, pods] = [("Proxy", 0), ("Pod", 1)].map(|(name, n)| {
                let versions = Arc::clone(&versions);
                store.track(name, move || versions.lock().unwrap()[n].map(Arc::from))
            });
            Self {
                store,
                proxies,
                pods,
                versions,
            }
        }

        fn see(&self, cache: Tracked, version: &'static str) {
            self.versions.lock().unwrap()[cache.0] = Some(version);
        }

        /// L, B or O, with the name of the cache that lags.
        fn check(&self, name: &str, uid: &str) -> String {
            match self.store.check(&key(name), uid) {
                Consistency::Level => "L".to_owned(),
                Consistency::Behind(lag) => format!("B {}", lag.cache),
                Consistency::Overdue(lag) => format!("O {}", lag.cache),
            }
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn k8_a_store_behind_an_own_write_waits_and_goes_when_level() {
        let world = World::new();
        assert_eq!(world.check("a", "u"), "L", "no write on record");
        world.store.wrote(&key("a"), "u", world.proxies, "12");
        for (version, expected) in [("10", "B Proxy"), ("11", "B Proxy"), ("12", "L")] {
            world.see(world.proxies, version);
            assert_eq!(world.check("a", "u"), expected, "{version}");
            assert_eq!(world.check("b", "u"), "L", "another key goes on");
        }
        assert!(world.store.is_empty(), "reaching a write clears it");
    }

    #[tokio::test(start_paused = true)]
    async fn k8_every_kind_written_must_be_level() {
        let world = World::new();
        world.store.wrote(&key("a"), "u", world.proxies, "12");
        world.store.wrote(&key("a"), "u", world.pods, "13");
        world.see(world.proxies, "100");
        assert_eq!(
            world.check("a", "u"),
            "B Pod",
            "versions of two kinds are never compared"
        );
        world.see(world.pods, "13");
        assert_eq!(world.check("a", "u"), "L");
    }

    #[tokio::test(start_paused = true)]
    async fn k8_the_newest_write_counts_in_any_order_of_answers() {
        let world = World::new();
        for version in ["9", "12", "11"] {
            world.store.wrote(&key("a"), "u", world.proxies, version);
        }
        world.see(world.proxies, "11");
        assert_eq!(world.check("a", "u"), "B Proxy");
        world.see(world.proxies, "12");
        assert_eq!(world.check("a", "u"), "L");
    }

    #[tokio::test(start_paused = true)]
    async fn k8_another_uid_starts_a_fresh_record() {
        let world = World::new();
        world.store.wrote(&key("a"), "old", world.proxies, "99");
        world.store.wrote(&key("a"), "new", world.pods, "12");
        world.see(world.pods, "12");
        assert_eq!(
            world.check("a", "new"),
            "L",
            "the write of the old incarnation is gone"
        );
        world.store.wrote(&key("a"), "old", world.proxies, "99");
        assert_eq!(world.check("a", "new"), "L");
        assert!(
            world.store.is_empty(),
            "a check under another UID clears the record"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn k8_past_the_cap_the_lag_is_overdue_until_the_store_is_level() {
        let world = World::new();
        world.store.wrote(&key("a"), "u", world.proxies, "12");
        tokio::time::advance(CAP - Duration::from_millis(1)).await;
        let Consistency::Behind(lag) = world.store.check(&key("a"), "u") else {
            panic!("the cap has not passed");
        };
        assert_eq!(lag.remaining, Duration::from_millis(1));
        assert_eq!(
            lag.to_string(),
            "cache of Proxy has seen 10, own write is 12"
        );
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(world.check("a", "u"), "O Proxy");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            world.check("a", "u"),
            "O Proxy",
            "as long as the cache is stale"
        );
        world.see(world.proxies, "12");
        assert_eq!(world.check("a", "u"), "L");
    }

    #[tokio::test(start_paused = true)]
    async fn k8_a_cache_may_ask_the_store_itself() {
        let store = Arc::new(ConsistencyStore::new(CAP));
        let asked = Arc::downgrade(&store);
        let cache = store.track("Proxy", move || {
            let store = asked.upgrade()?;
            Some(store.uid(&key("a")).map_or("none", |_| "10").into())
        });
        store.wrote(&key("a"), "u", cache, "12");
        assert!(matches!(
            store.check(&key("a"), "u"),
            Consistency::Behind(_)
        ));
    }

    #[test]
    #[should_panic(expected = "a cache that another store tracks")]
    fn a_cache_of_another_store_is_refused() {
        let cache = ConsistencyStore::new(CAP).track("Proxy", || None);
        ConsistencyStore::new(CAP).wrote(&key("a"), "u", cache, "12");
    }

    #[tokio::test(start_paused = true)]
    async fn k8_a_gone_owner_is_cleared() {
        let world = World::new();
        world.store.wrote(&key("a"), "u", world.proxies, "12");
        world.store.clear(&key("a"));
        assert!(world.store.is_empty());
        assert_eq!(world.check("a", "u"), "L");
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_cannot_be_compared_is_waited_for_up_to_the_cap() {
        let world = World::new();
        world.store.wrote(&key("a"), "u", world.proxies, "abc");
        assert_eq!(world.check("a", "u"), "B Proxy");
        tokio::time::advance(CAP).await;
        assert_eq!(world.check("a", "u"), "O Proxy");
        assert_eq!(
            world.check("a", "u"),
            "L",
            "nothing will ever tell that it was reached"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_before_its_first_list_is_behind() {
        let world = World::new();
        *world.versions.lock().unwrap() = [None, None];
        world.store.wrote(&key("a"), "u", world.pods, "1");
        assert_eq!(world.check("a", "u"), "B Pod");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_never_checked_again_are_swept_when_level_and_kept_when_not() {
        let world = World::new();
        for n in 0..SWEEP_FROM {
            let version = if n % 4 == 0 { "20" } else { "15" };
            world
                .store
                .wrote(&key(&n.to_string()), "u", world.pods, version);
        }
        assert_eq!(world.store.len(), SWEEP_FROM);
        world.see(world.pods, "15");
        world.store.wrote(&key("last"), "u", world.pods, "21");
        assert_eq!(world.store.len(), SWEEP_FROM / 4 + 1);
        assert_eq!(world.check("0", "u"), "B Pod");
    }

    #[tokio::test(start_paused = true)]
    async fn writes_that_cannot_be_compared_are_swept_past_the_cap() {
        let world = World::new();
        let write = |name: &str| world.store.wrote(&key(name), "u", world.pods, "abc");
        (0..SWEEP_FROM).for_each(|n| write(&n.to_string()));
        write("early");
        assert_eq!(world.store.len(), SWEEP_FROM + 1, "they are waited for");
        tokio::time::advance(CAP).await;
        (SWEEP_FROM..2 * SWEEP_FROM).for_each(|n| write(&n.to_string()));
        assert_eq!(world.store.len(), SWEEP_FROM, "the old ones are gone");
    }

    /// What a store must answer, in as few words as possible: versions by key, UID and cache.
    #[derive(Default)]
    struct Model {
        records: std::collections::HashMap<u8, (u8, [u32; 2])>,
        observed: [u32; 2],
    }

    #[derive(Debug, Clone)]
    enum Op {
        Wrote {
            key: u8,
            uid: u8,
            cache: usize,
            version: u32,
        },
        See {
            cache: usize,
            version: u32,
        },
        Check {
            key: u8,
            uid: u8,
        },
        Clear {
            key: u8,
        },
    }

    fn op() -> impl Strategy<Value = Op> {
        let (key, uid, cache, version) = (0..3_u8, 0..2_u8, 0..2_usize, 1..30_u32);
        prop_oneof![
            (key.clone(), uid.clone(), cache.clone(), version.clone()).prop_map(
                |(key, uid, cache, version)| Op::Wrote {
                    key,
                    uid,
                    cache,
                    version
                }
            ),
            (cache, version).prop_map(|(cache, version)| Op::See { cache, version }),
            (key.clone(), uid).prop_map(|(key, uid)| Op::Check { key, uid }),
            key.prop_map(|key| Op::Clear { key }),
        ]
    }

    proptest! {
        #[test]
        fn k8_any_order_of_writes_and_sights_answers_as_the_model(ops in vec(op(), 1..80)) {
            let seen = Arc::new(Mutex::new([0_u32; 2]));
            let store = ConsistencyStore::new(CAP);
            let caches = [0, 1].map(|n| {
                let seen = Arc::clone(&seen);
                store.track("cache", move || Some(seen.lock().unwrap()[n].to_string().into()))
            });
            let mut model = Model::default();
            for op in ops {
                match op {
                    Op::Wrote { key: k, uid, cache, version } => {
                        let name = uid.to_string();
                        store.wrote(&key(&k.to_string()), &name, caches[cache], &version.to_string());
                        let record = model.records.entry(k).or_insert((uid, [0; 2]));
                        if record.0 != uid {
                            *record = (uid, [0; 2]);
                        }
                        record.1[cache] = record.1[cache].max(version);
                    }
                    Op::See { cache, version } => {
                        // A cache never goes back.
                        model.observed[cache] = model.observed[cache].max(version);
                        *seen.lock().unwrap() = model.observed;
                    }
                    Op::Check { key: k, uid } => {
                        if model.records.get(&k).is_some_and(|record| record.0 != uid) {
                            model.records.remove(&k);
                        }
                        let level = model.records.get(&k).is_none_or(|(_, written)| {
                            (0..2).all(|n| written[n] <= model.observed[n])
                        });
                        let answer = store.check(&key(&k.to_string()), &uid.to_string());
                        prop_assert_eq!(answer == Consistency::Level, level, "{:?}", answer);
                    }
                    Op::Clear { key: k } => {
                        store.clear(&key(&k.to_string()));
                        model.records.remove(&k);
                    }
                }
            }
        }
    }
}
