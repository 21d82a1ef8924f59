//! Own writes over a cache, in paused time.

use std::sync::Arc;
use std::time::Duration;

use informer::source::WatchEvent;
use informer::source::scripted::{ListAnswer, WatchFeed};
use informer::{Informer, InformerOptions, MutationCache, MutationCacheOptions};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

struct World {
    _informer: Informer<ConfigMap>,
    cache: MutationCache<ConfigMap>,
    feed: WatchFeed<ConfigMap>,
    _run: Run,
}

/// A cache that holds `a@1` and is at version 10, with an index by first letter.
async fn world() -> World {
    let (source, informer) = scripted(InformerOptions::default());
    informer
        .add_index("first", |object: &ConfigMap| {
            let name = object.metadata.name.iter();
            name.map(|name| name[..1].to_owned()).collect()
        })
        .unwrap();
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let run = Run::start(&informer);
    informer.synced().await;
    World {
        cache: MutationCache::new(informer.lister(), MutationCacheOptions::default()),
        _informer: informer,
        feed,
        _run: run,
    }
}

impl World {
    fn shown(&self, name: &str) -> Option<String> {
        let object = self.cache.get(&key(name))?;
        object.metadata.resource_version.clone()
    }

    fn indexed(&self, letter: &str) -> Vec<String> {
        let found = self.cache.by_index("first", letter).unwrap();
        let mut versions: Vec<_> = found
            .iter()
            .filter_map(|object| object.metadata.resource_version.clone())
            .collect();
        versions.sort();
        versions
    }

    async fn event(&self, event: WatchEvent<ConfigMap>) {
        self.feed.send(event);
        settle().await;
    }
}

fn some(version: &str) -> Option<String> {
    Some(version.to_owned())
}

#[tokio::test(start_paused = true)]
async fn s5_an_own_write_is_seen_until_the_cache_has_it_or_more() {
    let world = world().await;
    world.cache.wrote(Arc::new(object("a", 12)));
    world.cache.wrote(Arc::new(object("ab", 13)));
    assert_eq!(world.shown("a"), some("12"));
    assert_eq!(world.indexed("a"), ["12", "13"]);
    world.cache.wrote(Arc::new(object("a", 11)));
    assert_eq!(
        world.shown("a"),
        some("12"),
        "an older answer changes nothing"
    );
    world.event(WatchEvent::Modified(object("a", 11))).await;
    assert_eq!(world.shown("a"), some("12"));
    world.event(WatchEvent::Modified(object("a", 14))).await;
    assert_eq!(world.shown("a"), some("14"), "the newer store wins");
    assert_eq!(
        world.indexed("a"),
        ["14"],
        "and 13 was deleted since, as the cache is at 14"
    );
    assert_eq!(world.shown("ab"), None);
}

#[tokio::test(start_paused = true)]
async fn s5_an_own_deletion_hides_the_object_until_another_takes_its_place() {
    let world = world().await;
    world.cache.deleted(&object("a", 1));
    assert_eq!(world.shown("a"), None);
    assert_eq!(world.indexed("a"), [""; 0]);
    world.event(WatchEvent::Modified(object("a", 11))).await;
    world.cache.wrote(Arc::new(object("a", 11)));
    assert_eq!(world.shown("a"), None, "a late state of the same UID");
    world.event(WatchEvent::Deleted(object("a", 12))).await;
    assert_eq!(world.shown("a"), None);
    world.event(WatchEvent::Added(object("a", 12))).await;
    assert_eq!(world.shown("a"), None, "a stale addition of the same UID");
    world
        .event(WatchEvent::Modified(object_of("a", "second", 13)))
        .await;
    assert_eq!(world.shown("a"), some("13"));
    assert_eq!(world.indexed("a"), ["13"]);
}

#[tokio::test(start_paused = true)]
async fn s5_an_own_creation_after_an_own_deletion_is_seen_at_once() {
    let world = world().await;
    world.cache.deleted(&object("a", 1));
    world.cache.wrote(Arc::new(object_of("a", "second", 12)));
    assert_eq!(world.shown("a"), some("12"));
    assert_eq!(world.indexed("a"), ["12"]);
}

#[tokio::test(start_paused = true)]
async fn s5_what_others_deleted_meanwhile_is_gone() {
    let world = world().await;
    world.cache.wrote(Arc::new(object("a", 12)));
    world.event(WatchEvent::Deleted(object("a", 13))).await;
    assert_eq!(world.shown("a"), None);
    assert_eq!(world.indexed("a"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn i71_an_own_write_is_forgotten_after_five_minutes() {
    let world = world().await;
    world.cache.wrote(Arc::new(object("a", 12)));
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert_eq!(world.shown("a"), some("12"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.shown("a"), some("1"));
    assert_eq!(world.indexed("a"), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn s5_a_write_whose_version_cannot_be_compared_is_seen_until_the_cache_changes() {
    let versioned = |version: &str| {
        let mut object = object("a", 0);
        object.metadata.resource_version = some(version);
        object
    };
    // What the cache has, what was written, what the cache has then, what is shown before and then.
    let cases = [
        ("x1", "x2", "x2", ("x2", "x2")),
        ("x1", "x2", "x3", ("x2", "x3")),
        ("x1", "x1", "x3", ("x1", "x3")),
        ("1", "x2", "x2", ("x2", "x2")),
    ];
    for (cached, written, then, (before, after)) in cases {
        let world = world().await;
        world.event(WatchEvent::Modified(versioned(cached))).await;
        world.cache.wrote(Arc::new(versioned(written)));
        assert_eq!(world.shown("a"), some(before), "{cached} {written}");
        assert_eq!(world.shown("a"), some(before), "asking changes nothing");
        assert_eq!(world.indexed("a"), [before]);
        world.event(WatchEvent::Modified(versioned(then))).await;
        assert_eq!(world.shown("a"), some(after), "{cached} {written} {then}");
    }
}
