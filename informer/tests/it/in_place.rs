//! Handlers that are called where a change enters the cache.

use std::time::Duration;

use futures::FutureExt as _;
use informer::source::WatchEvent;
use informer::source::scripted::ListAnswer;
use informer::{Delivery, Error, Event, HandlerOptions, InformerOptions, OnPanic};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

fn in_place() -> HandlerOptions {
    options(|o| o.delivery = Delivery::InPlace)
}

#[tokio::test(start_paused = true)]
async fn h10_a_handler_in_place_is_told_the_same_as_one_with_a_task() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    let (here, there) = (Log::default(), Log::default());
    let registration = informer
        .add_handler_with("here", here.handler(), in_place())
        .unwrap();
    informer.add_handler("there", there.handler()).unwrap();
    let run = Run::start(&informer);
    assert!(!registration.has_synced());
    settle().await;
    assert!(registration.has_synced());
    feed.send(WatchEvent::Modified(object("a", 11)));
    feed.send(WatchEvent::Deleted(object("b", 12)));
    feed.send(WatchEvent::Added(object("c", 13)));
    settle().await;
    let mut told = here.take();
    assert_eq!(told, there.take());
    assert_eq!(told.split_off(2), ["a@1~a@11", "-b@12", "+c@13"]);
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn h10_a_handler_in_place_finds_its_step_in_the_cache_and_nothing_of_a_later_one() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let (log, lister) = (Log::default(), informer.lister());
    let seen = log.clone();
    let handler = move |event: &Event<ConfigMap>| {
        let cached = lister.get(&event.key());
        let version = cached.and_then(|cached| cached.metadata.resource_version.clone());
        let shown = version.unwrap_or_else(|| "nothing".to_owned());
        seen.push(format!("{}: {shown}", show(event)));
    };
    informer
        .add_handler_with("here", handler, in_place())
        .unwrap();
    let run = Run::start(&informer);
    settle().await;
    for version in 11..14 {
        feed.send(WatchEvent::Modified(object("a", version)));
    }
    settle().await;
    let expected = ["+a@11: 11", "a@11~a@12: 12", "a@12~a@13: 13"];
    assert_eq!(log.take(), expected, "one by one");
    let together = |name: &str, from: u64| {
        vec![
            WatchEvent::Added(object(name, from)),
            WatchEvent::Modified(object(name, from + 1)),
            WatchEvent::Deleted(object(name, from + 2)),
        ]
    };
    feed.send_batch(together("b", 20));
    let mut still_there = together("c", 30);
    still_there.pop();
    feed.send_batch(still_there);
    settle().await;
    let expected = [
        "+b@20: nothing",
        "b@20~b@21: nothing",
        "-b@22: nothing",
        "+c@30: 31",
        "c@30~c@31: 31",
    ];
    assert_eq!(log.take(), expected, "as after their step");
    assert_eq!(informer.queue_lengths(), [("here".to_owned(), 0)]);
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn h2_a_late_handler_in_place_has_its_initial_events_when_it_is_added() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let run = Run::start(&informer);
    settle().await;
    let log = Log::default();
    let registration = informer
        .add_handler_with("late", log.handler(), in_place())
        .unwrap();
    assert_eq!(log.take(), ["+a@1!"]);
    assert!(registration.has_synced());
    // Removed, it is told no more.
    registration.shutdown().now_or_never().unwrap().unwrap();
    feed.send(WatchEvent::Modified(object("a", 11)));
    settle().await;
    assert_eq!(log.len(), 0);
    assert!(informer.queue_lengths().is_empty());
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_place_is_counted_or_ends_the_informer_as_the_options_say() {
    let bad = |event: &Event<ConfigMap>| assert_ne!(event.key().name(), "bad", "boom");
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("bad", 1), object("good", 2)], "10"));
    let _feed = source.watch();
    informer.add_handler_with("bad", bad, in_place()).unwrap();
    let log = Log::default();
    informer
        .add_handler_with("other", log.handler(), in_place())
        .unwrap();
    let run = Run::start(&informer);
    settle().await;
    assert_eq!((informer.stats().handler_panics, log.len()), (1, 2));
    run.end().await.unwrap();

    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("bad", 1)], "10"));
    let crash = options(|o| (o.delivery, o.on_panic) = (Delivery::InPlace, OnPanic::Crash));
    informer.add_handler_with("bad", bad, crash).unwrap();
    let mut run = Run::start(&informer);
    let outcome = std::panic::AssertUnwindSafe(run.outcome()).catch_unwind();
    let outcome = tokio::time::timeout(Duration::from_secs(5), outcome).await;
    assert!(
        outcome.unwrap().is_err(),
        "the panic goes on out of the run"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_in_place_that_removes_itself_is_not_waited_for() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let _feed = source.watch();
    let own: std::sync::Arc<std::sync::OnceLock<informer::Registration>> = Default::default();
    let (log, slot) = (Log::default(), std::sync::Arc::clone(&own));
    let told = log.clone();
    let handler = move |event: &Event<ConfigMap>| {
        told.push(show(event));
        let own: &informer::Registration = slot.get().unwrap();
        let removed = own.shutdown().now_or_never().unwrap();
        assert!(matches!(removed, Err(Error::OwnCallback { .. })));
    };
    let registration = informer
        .add_handler_with("once", handler, in_place())
        .unwrap();
    own.set(registration).unwrap();
    let run = Run::start(&informer);
    settle().await;
    assert_eq!(log.len(), 1, "nothing after the removal");
    run.end().await.unwrap();
}
