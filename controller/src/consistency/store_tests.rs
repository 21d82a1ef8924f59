//! What a store answers about writes and sights in any order.

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
async fn k8_writes_noted_before_the_object_was_known_are_kept_when_its_uid_comes() {
    let world = World::new();
    world.store.wrote(&key("a"), "", world.pods, "12");
    world.store.wrote(&key("a"), "u", world.proxies, "11");
    world.see(world.proxies, "11");
    assert_eq!(world.check("a", "u"), "B Pod");
    world.see(world.pods, "12");
    assert_eq!(world.check("a", "u"), "L");
    world.store.wrote(&key("a"), "", world.pods, "14");
    world
        .store
        .wrote_itself(&key("a"), "u", world.proxies, "12");
    world.see(world.proxies, "12");
    assert_eq!(world.check("a", "u"), "B Pod");
    assert_eq!(world.check("a", "other"), "L", "it was of `u`");
}

#[tokio::test(start_paused = true)]
async fn k8_a_late_answer_to_an_older_write_does_not_end_the_wait_for_the_object() {
    let world = World::new();
    for version in ["15", "12"] {
        world
            .store
            .wrote_itself(&key("a"), "new", world.proxies, version);
    }
    world.see(world.proxies, "13");
    assert_eq!(
        world.check("a", "old"),
        "B Proxy",
        "it shows an older object"
    );
    world.see(world.proxies, "15");
    assert_eq!(world.check("a", "old"), "L");
}

#[tokio::test(start_paused = true)]
async fn k8_an_object_that_two_caches_may_have_is_waited_for_in_both() {
    let world = World::new();
    for cache in [world.proxies, world.pods] {
        world.store.wrote_itself(&key("a"), "new", cache, "12");
    }
    for (cache, expected) in [(world.pods, "B Proxy"), (world.proxies, "L")] {
        world.see(cache, "12");
        assert_eq!(world.check("a", "old"), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn k8_the_keys_behind_are_told_without_a_change_the_longest_wait_first() {
    let world = World::new();
    let told = || -> Vec<_> {
        let behind = world.store.behind().into_iter();
        behind
            .map(|(key, lag)| (key.name().to_owned(), lag.cache.to_string(), lag.waited))
            .collect()
    };
    let row = |name: &str, cache: &str, waited: u64| {
        (
            name.to_owned(),
            cache.to_owned(),
            Duration::from_secs(waited),
        )
    };
    world.store.wrote(&key("b"), "u", world.pods, "12");
    tokio::time::advance(Duration::from_secs(1)).await;
    world.store.wrote(&key("c"), "u", world.proxies, "11");
    world.store.wrote(&key("a"), "u", world.proxies, "12");
    world.store.wrote(&key("b"), "u", world.proxies, "12");
    world.see(world.proxies, "11");
    for _ in 0..2 {
        assert_eq!(told(), [row("b", "Pod", 1), row("a", "Proxy", 0)]);
    }
    assert_eq!(world.store.len(), 3, "nothing is forgotten by looking");
    tokio::time::advance(CAP - Duration::from_secs(1)).await;
    assert_eq!(
        told(),
        [row("a", "Proxy", 4)],
        "past the cap a key is not held"
    );
}

#[tokio::test(start_paused = true)]
async fn writes_of_a_cache_that_stands_still_for_good_are_swept_in_the_end() {
    let world = World::new();
    let write = |name: &str| world.store.wrote(&key(name), "u", world.pods, "20");
    (0..SWEEP_FROM).for_each(|n| write(&n.to_string()));
    tokio::time::advance(CAP * GIVE_UP_CAPS - Duration::from_millis(1)).await;
    write("early");
    assert_eq!(world.store.len(), SWEEP_FROM + 1, "they are waited for");
    assert_eq!(world.check("0", "u"), "O Pod");
    tokio::time::advance(Duration::from_millis(1)).await;
    (SWEEP_FROM + 1..2 * SWEEP_FROM).for_each(|n| write(&n.to_string()));
    write("late");
    assert_eq!(world.store.len(), SWEEP_FROM + 1, "the old ones are gone");
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

/// UID 0 is that of an object that no cache had.
fn uid_text(uid: u8) -> String {
    if uid == 0 {
        String::new()
    } else {
        uid.to_string()
    }
}

impl Model {
    /// The record of a key, which is that of `uid` if the object was not known until now.
    fn record(&mut self, key: u8, uid: u8) -> &mut (u8, [u32; 2]) {
        let record = self.records.entry(key).or_insert((uid, [0; 2]));
        if record.0 == 0 {
            record.0 = uid;
        }
        record
    }
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
    let (key, uid, cache, version) = (0..3_u8, 0..3_u8, 0..2_usize, 1..30_u32);
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
                    let version_text = version.to_string();
                    store.wrote(&key(&k.to_string()), &uid_text(uid), caches[cache], &version_text);
                    let record = model.record(k, uid);
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
                    if model.record(k, uid).0 != uid {
                        model.records.remove(&k);
                    }
                    let level = model.records.get(&k).is_none_or(|(_, written)| {
                        (0..2).all(|n| written[n] <= model.observed[n])
                    });
                    let answer = store.check(&key(&k.to_string()), &uid_text(uid));
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
