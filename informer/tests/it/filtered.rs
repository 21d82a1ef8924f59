//! Handlers behind a filter, in paused time.

use informer::source::WatchEvent;
use informer::source::scripted::ListAnswer;
use informer::{Buffer, Filtered, InformerOptions};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

fn is_even(object: &ConfigMap) -> bool {
    let version = object.metadata.resource_version.as_deref().unwrap_or("1");
    version.parse::<u64>().is_ok_and(|version| version % 2 == 0)
}

#[tokio::test(start_paused = true)]
async fn i92_a_filtered_handler_sees_objects_come_and_go_by_the_filter() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    let log = Log::default();
    informer
        .add_handler("even", Filtered::new(is_even, log.handler()))
        .unwrap();
    let _run = Run::start(&informer);
    for version in [12, 14, 15, 17] {
        feed.send(WatchEvent::Modified(object("a", version)));
    }
    feed.send(WatchEvent::Deleted(object("b", 18)));
    settle().await;
    assert_eq!(
        log.take(),
        ["+b@2!", "+a@12", "a@12~a@14", "-a@14", "-b@18"]
    );
}

#[tokio::test(start_paused = true)]
async fn i92_a_filtered_handler_hears_of_each_end_however_far_it_is_behind() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 2)], "10"));
    let feed = source.watch();
    let log = Log::default();
    let merging = options(|o| o.buffer = Buffer::Coalesce(0));
    informer
        .add_handler_with("even", Filtered::new(is_even, log.handler()), merging)
        .unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    settle().await;
    feed.send_batch(vec![
        WatchEvent::Modified(object("a", 11)),
        WatchEvent::Deleted(object("a", 13)),
    ]);
    settle().await;
    assert_eq!(log.take(), ["+a@2!", "-a@2"]);
}

#[tokio::test(start_paused = true)]
async fn i92_a_filtered_handler_hears_of_the_end_of_what_it_knows_and_of_nothing_else() {
    // What the watch brings between the list and the deletion, and what is heard.
    let cases = [
        // Unreadable in between: the cache has the state that passed until the end.
        (Some(2), 13, vec!["+a@2!", "-a@2"]),
        (Some(2), 14, vec!["+a@2!", "-a@14"]),
        // Known, but it never passed; its last state would.
        (Some(3), 14, vec![]),
        (Some(3), 15, vec![]),
        // Never in the cache.
        (None, 14, vec!["-a@14"]),
        (None, 15, vec![]),
    ];
    for (cached, last, want) in cases {
        let (source, informer) = scripted(InformerOptions::default());
        let listed = cached.map(|version| object("a", version));
        source.list(ListAnswer::all(listed, "10"));
        let feed = source.watch();
        let log = Log::default();
        informer
            .add_handler("even", Filtered::new(is_even, log.handler()))
            .unwrap();
        let _run = Run::start(&informer);
        settle().await;
        feed.send(WatchEvent::Malformed(malformed("a", Some("12"))));
        feed.send(WatchEvent::Deleted(object("a", last)));
        settle().await;
        assert_eq!(log.take(), want, "{cached:?}, then {last}");
    }
}
