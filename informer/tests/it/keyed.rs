//! Queues that gather changes by object, in paused time.

use std::collections::BTreeMap;
use std::time::Duration;

use informer::source::WatchEvent;
use informer::source::scripted::{ListAnswer, WatchFeed};
use informer::{Buffer, Informer, InformerOptions, KeyedQueue, QueueClosed};
use k8s_openapi::api::core::v1::ConfigMap;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::support::*;

/// A queue over a cache that holds `objects`, all of them taken already.
async fn queue(
    objects: Vec<ConfigMap>,
    relisted: Vec<ConfigMap>,
) -> (
    Informer<ConfigMap>,
    KeyedQueue<ConfigMap>,
    WatchFeed<ConfigMap>,
    Run,
) {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all(objects, "10"));
    let feed = source.watch();
    source.list(ListAnswer::all(relisted, "100"));
    let queue = informer.keyed_queue("queue", Buffer::Unbounded).unwrap();
    let run = Run::start(&informer);
    informer.synced().await;
    while queue.try_pop().is_some() {}
    (informer, queue, feed, run)
}

async fn relist(feed: &WatchFeed<ConfigMap>) {
    feed.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// All that waits: what each pop gives, its changes apart by blanks.
fn popped(queue: &KeyedQueue<ConfigMap>) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(deltas) = queue.try_pop() {
        let changes: Vec<_> = deltas.iter().map(|delta| show(&delta.event)).collect();
        all.push(changes.join(" "));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn d2_an_update_and_a_deletion_are_one_pop_by_key_and_two_events_in_order() {
    let (informer, queue, feed, _run) =
        queue(vec![object("a", 1), object("b", 2)], Vec::new()).await;
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    settle().await;
    log.take();
    feed.send(WatchEvent::Modified(object("a", 11)));
    feed.send(WatchEvent::Modified(object("b", 12)));
    feed.send(WatchEvent::Deleted(object("a", 13)));
    settle().await;
    assert_eq!((queue.len(), queue.waiting()), (2, 3));
    assert_eq!(popped(&queue), ["a@1~a@11 -a@13", "b@2~b@12"]);
    assert_eq!(log.take(), ["a@1~a@11", "b@2~b@12", "-a@13"]);
}

#[tokio::test(start_paused = true)]
async fn d3_a_list_adds_no_second_deletion_to_one_that_waits() {
    let (_informer, queue, feed, _run) = queue(vec![object("a", 1)], Vec::new()).await;
    feed.send(WatchEvent::Deleted(object("a", 11)));
    relist(&feed).await;
    assert_eq!(popped(&queue), ["-a@11"]);
}

#[tokio::test(start_paused = true)]
async fn d4_a_list_ends_what_only_the_queue_or_only_the_store_knows_with_the_state_known() {
    let (_informer, queue, feed, _run) =
        queue(vec![object("stored", 1)], vec![object("new", 20)]).await;
    feed.send(WatchEvent::Added(object("queued", 11)));
    settle().await;
    relist(&feed).await;
    assert_eq!(
        popped(&queue),
        ["+queued@11 -?queued@11", "+new@20", "-?stored@1"],
        "deletions that a list found come last"
    );
}

#[tokio::test(start_paused = true)]
async fn d5_a_list_that_is_behind_what_waits_keeps_the_order() {
    let (_informer, queue, feed, _run) =
        queue(vec![object("a", 1)], vec![object("a", 12), object("b", 13)]).await;
    feed.send(WatchEvent::Modified(object("a", 15)));
    feed.send(WatchEvent::Added(object("b", 13)));
    settle().await;
    relist(&feed).await;
    assert_eq!(popped(&queue), ["a@1~a@15 a@15~a@12", "+b@13"]);
}

#[tokio::test(start_paused = true)]
async fn d6_a_resync_tells_stored_objects_of_which_nothing_waits() {
    let (_informer, queue, feed, _run) =
        queue(vec![object("a", 1), object("b", 2)], Vec::new()).await;
    feed.send(WatchEvent::Modified(object("a", 11)));
    feed.send(WatchEvent::Deleted(object("unknown", 12)));
    settle().await;
    queue.resync();
    queue.resync();
    assert_eq!(
        popped(&queue),
        ["a@1~a@11", "b@2~b@2"],
        "a pending change wins, and the end of an unknown object is not told"
    );
}

#[tokio::test(start_paused = true)]
async fn i51_of_two_deletions_the_one_with_the_last_state_stays() {
    let (_informer, queue, feed, _run) = queue(vec![object("a", 1)], Vec::new()).await;
    let vanished = informer::source::Malformed {
        deleted: true,
        ..*malformed("a", Some("11"))
    };
    feed.send(WatchEvent::Malformed(Box::new(vanished)));
    settle().await;
    feed.send(WatchEvent::Deleted(object("a", 12)));
    settle().await;
    feed.send(WatchEvent::Deleted(object("a", 13)));
    settle().await;
    assert_eq!(popped(&queue), ["-a@13"]);
}

#[tokio::test(start_paused = true)]
async fn h13_an_object_that_took_anothers_place_comes_behind_its_end() {
    let (_informer, queue, feed, _run) = queue(
        vec![object_of("a", "first", 1), object("b", 2)],
        vec![object_of("a", "second", 20)],
    )
    .await;
    relist(&feed).await;
    assert_eq!(popped(&queue), ["-?a@1 +a@20", "-?b@2"]);
}

#[tokio::test(start_paused = true)]
async fn d7_a_queue_has_synced_when_its_initial_objects_are_processed() {
    let (source, informer) = scripted(InformerOptions::default());
    let queue = informer.keyed_queue("queue", Buffer::Unbounded).unwrap();
    let _run = Run::start(&informer);
    settle().await;
    assert!(!queue.has_synced(), "no list yet");
    drop(source);

    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let queue = informer.keyed_queue("queue", Buffer::Unbounded).unwrap();
    let _run = Run::start(&informer);
    settle().await;
    assert!(queue.has_synced(), "an empty list syncs at once");

    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    let queue = informer.keyed_queue("queue", Buffer::Coalesce(0)).unwrap();
    let _run = Run::start(&informer);
    settle().await;
    let first = queue.pop().await.unwrap();
    // Its end cancels the other before anybody took it.
    feed.send(WatchEvent::Deleted(object("b", 11)));
    settle().await;
    assert!(!queue.has_synced(), "taken, not processed");
    let late = informer.keyed_queue("late", Buffer::Unbounded).unwrap();
    assert!(!late.has_synced());
    drop(first);
    assert!(queue.has_synced() && queue.is_empty());
    drop(late.pop().await.unwrap());
    assert!(late.has_synced());
}

#[tokio::test(start_paused = true)]
async fn d7_i58_a_pop_waits_and_is_woken_by_a_change_or_the_end() {
    let (_informer, queue, feed, run) = queue(vec![object("a", 1)], Vec::new()).await;
    let (first, ()) = tokio::join!(queue.pop(), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        feed.send(WatchEvent::Modified(object("a", 11)));
    });
    assert_eq!(first.unwrap().key(), &key("a"));
    feed.send(WatchEvent::Modified(object("a", 12)));
    settle().await;
    let two = (queue.clone(), queue.clone());
    let (one, other, ended) = tokio::join!(two.0.pop(), two.1.pop(), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        run.end().await
    });
    assert_eq!(one.unwrap().len(), 1, "what waits can still be taken");
    assert_eq!(other.unwrap_err(), QueueClosed);
    ended.unwrap();
    assert_eq!(queue.pop().await.unwrap_err(), QueueClosed);
}

#[tokio::test(start_paused = true)]
async fn d9_a_list_enters_the_queue_in_one_step() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all(
        (0..50).map(|at| object(&format!("o{at}"), 1)),
        "10",
    ));
    let queue = informer.keyed_queue("queue", Buffer::Unbounded).unwrap();
    let _run = Run::start(&informer);
    let first = queue.pop().await.unwrap();
    assert_eq!(first.key(), &key("o0"));
    assert_eq!(queue.len(), 49);
    assert_eq!(&*informer.lister().resource_version(), "10");
}

#[tokio::test(start_paused = true)]
async fn i83_above_its_limit_a_queue_merges_what_one_object_went_through() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let queue = informer.keyed_queue("queue", Buffer::Coalesce(8)).unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    drop(queue.pop().await.unwrap());
    for round in 0..1000_u64 {
        let version = 11 + 3 * round;
        feed.send(WatchEvent::Modified(object("a", version)));
        feed.send(WatchEvent::Added(object("passing", version + 1)));
        feed.send(WatchEvent::Deleted(object("passing", version + 2)));
        settle().await;
        assert!(queue.waiting() <= 8 + 3 * 2, "{} wait", queue.waiting());
    }
    let deltas = queue.pop().await.unwrap();
    let last = deltas.last().expect("at least one");
    assert_eq!(last.event.resource_version(), (11 + 3 * 999).to_string());
}

#[tokio::test(start_paused = true)]
async fn d1_d10_every_key_comes_with_its_last_state_and_none_goes_back() {
    let (informer, queue, feed, _run) = queue(Vec::new(), Vec::new()).await;
    let mut dice = StdRng::seed_from_u64(7);
    let mut server = BTreeMap::<String, u64>::new();
    let mut seen = BTreeMap::<String, u64>::new();
    let mut highest = BTreeMap::<String, u64>::new();
    let mut take = |queue: &KeyedQueue<ConfigMap>| {
        while let Some(deltas) = queue.try_pop() {
            let name = deltas.key().name().to_owned();
            for delta in deltas.iter() {
                let version: u64 = delta.event.resource_version().parse().expect("a number");
                let before = highest.insert(name.clone(), version);
                assert!(
                    before.is_none_or(|before| before <= version),
                    "{name} went back"
                );
                match &delta.event {
                    informer::Event::Deleted { .. } => seen.remove(&name),
                    _ => seen.insert(name.clone(), version),
                };
            }
        }
        seen.clone()
    };
    for version in 11..2011 {
        let name = format!("o{}", dice.random_range(0..20));
        let known = server.contains_key(&name);
        let event = match (known, dice.random_bool(0.3)) {
            (true, true) => WatchEvent::Deleted(object(&name, version)),
            (true, false) => WatchEvent::Modified(object(&name, version)),
            (false, _) => WatchEvent::Added(object(&name, version)),
        };
        match event {
            WatchEvent::Deleted(_) => server.remove(&name),
            _ => server.insert(name, version),
        };
        feed.send(event);
        if dice.random_bool(0.1) {
            settle().await;
            queue.resync();
        }
        if dice.random_bool(0.05) {
            take(&queue);
        }
    }
    settle().await;
    assert_eq!(take(&queue), server);
    assert_eq!(cached(&informer).len(), server.len());
}
