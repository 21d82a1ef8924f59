//! Streamed lists on a scripted source, in paused time.

use std::sync::Arc;
use std::time::Duration;

use informer::source::scripted::{ListAnswer, Scripted};
use informer::source::{self, WatchEvent};
use informer::{Cause, Informer, InformerOptions, OnStop};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

fn streaming() -> (Scripted<ConfigMap>, Informer<ConfigMap>) {
    let source = Scripted::new().streaming();
    let informer = Informer::from_source("ConfigMap", source.clone(), InformerOptions::default())
        .expect("default options are valid");
    (source, informer)
}

/// The same, with watches that outlast a test.
fn streaming_long() -> (Scripted<ConfigMap>, Informer<ConfigMap>) {
    let source = Scripted::new().streaming();
    let options = InformerOptions {
        min_watch_timeout: Duration::from_secs(24 * 3600),
        ..InformerOptions::default()
    };
    let informer =
        Informer::from_source("ConfigMap", source.clone(), options).expect("the options are valid");
    (source, informer)
}

fn end(version: &str) -> WatchEvent<ConfigMap> {
    WatchEvent::Bookmark {
        resource_version: version.to_owned(),
        initial_events_end: true,
    }
}

#[tokio::test(start_paused = true)]
async fn r14_one_watch_and_no_list_fill_the_store_as_at_the_bookmark() {
    let (source, informer) = streaming();
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    let feed = source.watch();
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Added(object("a", 1)));
    feed.send(WatchEvent::Added(object("b", 2)));
    feed.send(WatchEvent::Added(object("c", 3)));
    feed.send(bookmark("5"));
    feed.send(WatchEvent::Modified(object("a", 6)));
    feed.send(WatchEvent::Deleted(object("b", 7)));
    settle().await;
    assert!(
        !informer.has_synced() && cached(&informer).is_empty(),
        "nothing shows before the end"
    );
    feed.send_batch(vec![end("8"), WatchEvent::Modified(object("c", 9))]);
    settle().await;
    assert_eq!(cached(&informer), ["a@6", "c@9"]);
    assert_eq!(log.take(), ["+c@3!", "+a@6!", "c@3~c@9"]);
    feed.send(WatchEvent::Deleted(object("c", 10)));
    settle().await;
    assert_eq!(source.summaries(), ["watch \"\" initial-events"]);
    drop(feed);
    source.called(2).await;
    assert_eq!(
        source.summaries()[1],
        "watch 10",
        "resumed, not streamed again"
    );
}

#[tokio::test(start_paused = true)]
async fn r15_a_broken_stream_is_tried_again_without_mixing() {
    let (source, informer) = streaming();
    let first = source.watch();
    let second = source.watch();
    let _run = Run::start(&informer);
    first.send(WatchEvent::Added(object("half", 1)));
    settle().await;
    drop(first);
    source.called(2).await;
    second.send_batch(vec![WatchEvent::Added(object("a", 3)), end("4")]);
    settle().await;
    assert_eq!(source.summaries(), ["watch \"\" initial-events"; 2]);
    assert_eq!(cached(&informer), ["a@3"]);
}

/// Causes that the error handler of `informer` is told.
fn told_causes(informer: &Informer<ConfigMap>) -> Log {
    let causes = Log::default();
    let told = causes.clone();
    informer
        .set_error_handler(Arc::new(move |error| told.push(error.cause().to_string())))
        .expect("it was not started");
    causes
}

#[tokio::test(start_paused = true)]
async fn r15_i24_a_stream_that_breaks_before_its_end_is_tried_again_after_a_wait() {
    let (source, informer) = streaming();
    let causes = told_causes(&informer);
    for failure in [broken(), refused()] {
        let feed = source.watch();
        feed.send(WatchEvent::Added(object("half", 1)));
        feed.fail(failure);
    }
    let third = source.watch();
    third.send_batch(vec![WatchEvent::Added(object("a", 3)), end("4")]);
    let _run = Run::start(&informer);
    informer.synced().await;
    assert_eq!(source.summaries(), ["watch \"\" initial-events"; 3]);
    assert_eq!(cached(&informer), ["a@3"]);
    assert_eq!(causes.take(), ["transport", "refused"]);
    let gaps = gaps(&source.requests());
    assert!(
        (800..=1600).contains(&gaps[0]) && (1600..=3200).contains(&gaps[1]),
        "{gaps:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn i24_three_streams_that_break_lead_to_a_list() {
    let (source, informer) = streaming();
    let causes = told_causes(&informer);
    for _ in 0..3 {
        source.watch().fail(broken());
    }
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let _run = Run::start(&informer);
    informer.synced().await;
    let calls = source.summaries();
    assert_eq!(calls[..3], ["watch \"\" initial-events"; 3]);
    assert_eq!(calls[3], "list 0 limit=500");
    assert_eq!(causes.take(), ["transport"; 3]);
}

#[tokio::test(start_paused = true)]
async fn i38_the_list_in_place_of_a_stream_is_no_sooner_than_the_server_asks_for() {
    for (retry_after, gap) in [(None, 0), (Some(7), 7000), (Some(600), 60_000)] {
        let (source, informer) = streaming();
        let causes = told_causes(&informer);
        source.refuse_watch(source::Error::Status {
            status: Box::new(status(503, "ServiceUnavailable")),
            retry_after: retry_after.map(Duration::from_secs),
        });
        source.list(ListAnswer::all([object("a", 1)], "10"));
        let _run = Run::start(&informer);
        informer.synced().await;
        let calls = source.summaries();
        assert_eq!(
            calls[..2],
            ["watch \"\" initial-events", "list 0 limit=500"],
            "{retry_after:?}"
        );
        assert_eq!(gaps(&source.requests())[0], gap, "{retry_after:?}");
        assert_eq!(causes.take(), ["unavailable"]);
    }
}

#[tokio::test(start_paused = true)]
async fn r15_a_refusal_as_invalid_leads_to_list_and_watch_and_is_remembered() {
    let (source, informer) = streaming_long();
    source.refuse_watch(refusal(422, "Invalid"));
    source.list(ListAnswer::all([object("a", 1)], "10"));
    source.refuse_watch(refusal(410, "Expired"));
    source.list(ListAnswer::all([object("a", 1)], "11"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    source.called(5).await;
    assert_eq!(
        source.summaries(),
        [
            "watch \"\" initial-events",
            "list 0 limit=500",
            "watch 10",
            "list 10",
            "watch 11"
        ]
    );
    assert_eq!(cached(&informer), ["a@1"]);
    // For ten minutes, and then the server is asked again.
    source.list(ListAnswer::all([object("a", 1)], "12"));
    let later = source.watch();
    tokio::time::sleep(Duration::from_secs(590)).await;
    feed.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(7).await;
    assert_eq!(source.summaries()[5..], ["list 11", "watch 12"]);
    let _streamed = source.watch();
    tokio::time::sleep(Duration::from_secs(10)).await;
    later.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(8).await;
    assert_eq!(source.summaries()[7], "watch 12 initial-events");
}

#[tokio::test(start_paused = true)]
async fn i23_a_stream_that_nobody_listens_for_is_asked_for_again_after_a_wait() {
    let (source, informer) = streaming();
    source.refuse_watch(refused());
    source.refuse_watch(refused());
    let feed = source.watch();
    let _run = Run::start(&informer);
    source.called(3).await;
    feed.send(end("10"));
    settle().await;
    assert_eq!(source.summaries(), ["watch \"\" initial-events"; 3]);
    let gaps = gaps(&source.requests());
    assert!(
        (800..=1600).contains(&gaps[0]) && (1600..=3200).contains(&gaps[1]),
        "{gaps:?}"
    );
    assert!(informer.has_synced());
}

#[tokio::test(start_paused = true)]
async fn h9_i88_the_transform_runs_once_an_object_of_a_streamed_list() {
    let (source, informer) = streaming();
    let runs = Log::default();
    let transformed = runs.clone();
    let transform = move |object: &mut ConfigMap| {
        transformed.push(object.metadata.name.clone().unwrap_or_default());
        assert_eq!(object.immutable.replace(true), None, "once");
        Ok(())
    };
    informer.set_transform(Arc::new(transform)).unwrap();
    let feed = source.watch();
    let _run = Run::start(&informer);
    for name in ["a", "b", "gone"] {
        feed.send(WatchEvent::Added(object(name, 1)));
    }
    feed.send(WatchEvent::Deleted(object("gone", 2)));
    feed.send(end("10"));
    feed.send(WatchEvent::Added(object("c", 11)));
    settle().await;
    assert_eq!(cached(&informer), ["a@1", "b@1", "c@11"]);
    assert_eq!(runs.take(), ["a", "b", "gone", "c"]);
    let objects = informer.lister().list();
    assert!(objects.iter().all(|object| object.immutable == Some(true)));
}

#[tokio::test(start_paused = true)]
async fn r15_a_throttled_stream_stays_a_stream_and_an_expired_one_asks_for_the_newest_state() {
    let (source, informer) = streaming();
    source.refuse_watch(refusal(429, "TooManyRequests"));
    let first = source.watch();
    source.refuse_watch(refusal(410, "Expired"));
    let second = source.watch();
    let _run = Run::start(&informer);
    source.called(2).await;
    first.send(end("10"));
    settle().await;
    first.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(4).await;
    second.send(end("20"));
    settle().await;
    assert_eq!(
        source.summaries(),
        [
            "watch \"\" initial-events",
            "watch \"\" initial-events",
            "watch 10 initial-events",
            "watch \"\" initial-events"
        ]
    );
    assert_eq!(informer.status().resource_version, "20");
}

#[tokio::test(start_paused = true)]
async fn r16_a_late_bookmark_is_warned_of_each_ten_seconds_and_none_leads_to_a_list() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::WARN);
    let (source, informer) = streaming();
    let causes = told_causes(&informer);
    let feed = source.watch();
    source.list(ListAnswer::Hang);
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let _run = Run::start(&informer);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        feed.send(WatchEvent::Added(object("a", 1)));
    }
    assert_eq!(informer.stats().late_bookmarks, 2);
    for seconds in [10, 20] {
        let warning = format!(
            "the initial state is not complete yet informer=\"ConfigMap\" seconds={seconds}"
        );
        assert_eq!(
            written.text().matches(&warning).count(),
            1,
            "{}",
            written.text()
        );
    }
    assert!(!informer.has_synced());
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(source.summaries().len(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        source.summaries()[1],
        "list 0 limit=500",
        "60 s without progress"
    );
    assert_eq!(causes.take(), ["deadline"]);
    assert_eq!(informer.stats().errors, 1);
    let (cause, text) = informer.status().last_error.unwrap();
    assert_eq!(cause, Cause::Deadline);
    assert_eq!(
        text,
        "watch failed: no answer to a streamed list within 60 s"
    );
    informer.synced().await;
    assert_eq!(informer.status().last_error, None);
    let warnings = informer.stats().late_bookmarks;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(informer.stats().late_bookmarks, warnings, "none afterwards");
}

#[tokio::test(start_paused = true)]
async fn i24_bookmarks_alone_are_no_progress_of_a_stream() {
    let (source, informer) = streaming();
    let feed = source.watch();
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Added(object("a", 1)));
    for version in ["2", "3", "4"] {
        assert!(!informer.has_synced());
        tokio::time::sleep(Duration::from_secs(25)).await;
        feed.send(bookmark(version));
    }
    assert_eq!(source.summaries()[1], "list 0 limit=500");
    assert!(informer.has_synced());
}

#[tokio::test(start_paused = true)]
async fn i24_three_streams_that_end_early_lead_to_a_list() {
    let (source, informer) = streaming_long();
    let causes = told_causes(&informer);
    let written = Written::default();
    let _guard = written.begin(tracing::Level::WARN);
    for _ in 0..3 {
        source.watch().send(WatchEvent::Added(object("half", 1)));
    }
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    source.called(5).await;
    let calls = source.summaries();
    assert_eq!(calls[..3], ["watch \"\" initial-events"; 3]);
    assert_eq!(calls[3..], ["list 0 limit=500", "watch 10"]);
    assert_eq!(cached(&informer), ["a@1"]);
    assert_eq!(causes.take(), ["protocol"; 3]);
    assert_eq!(informer.stats().errors, 3);
    // The next time it is given up, ten minutes later, is not told again.
    for _ in 0..3 {
        source.watch().send(WatchEvent::Added(object("half", 1)));
    }
    source.list(ListAnswer::all([object("a", 1)], "20"));
    let _second = source.watch();
    tokio::time::sleep(Duration::from_secs(601)).await;
    feed.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(10).await;
    assert_eq!(source.summaries()[5..8], ["watch 10 initial-events"; 3]);
    let text = written.text();
    assert_eq!(
        text.matches("listing instead of streaming").count(),
        1,
        "{text}"
    );
    assert!(
        text.contains("listing instead of streaming informer=\"ConfigMap\""),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn r17_a_source_that_does_not_stream_is_listed() {
    let (source, informer) = scripted(InformerOptions::default());
    let _run = Run::start(&informer);
    source.called(1).await;
    assert_eq!(source.summaries(), ["list 0 limit=500"]);
    let options = InformerOptions {
        watch_list: false,
        ..InformerOptions::default()
    };
    let source = Scripted::<ConfigMap>::new().streaming();
    let informer = Informer::from_source("ConfigMap", source.clone(), options).unwrap();
    let _run = Run::start(&informer);
    source.called(1).await;
    assert_eq!(source.summaries(), ["list 0 limit=500"], "switched off");
}

fn checked() -> (Scripted<ConfigMap>, Informer<ConfigMap>) {
    let source = Scripted::new().streaming();
    let options = InformerOptions {
        check_streamed_lists: true,
        ..InformerOptions::default()
    };
    let informer = Informer::from_source("ConfigMap", source.clone(), options)
        .expect("default options are valid");
    (source, informer)
}

#[tokio::test(start_paused = true)]
async fn i26_a_streamed_list_is_compared_with_a_list_of_its_version() {
    let (source, informer) = checked();
    let feed = source.watch();
    source.list(ListAnswer::Fail(vec![], refusal(503, "ServiceUnavailable")));
    source.list(ListAnswer::all([object("b", 2), object("a", 1)], "4"));
    let _run = Run::start(&informer);
    feed.send_batch(vec![
        WatchEvent::Added(object("a", 1)),
        WatchEvent::Added(object("b", 2)),
        end("4"),
        WatchEvent::Modified(object("b", 5)),
    ]);
    source.called(3).await;
    settle().await;
    assert_eq!(
        source.summaries(),
        ["watch \"\" initial-events", "list =4", "list =4"]
    );
    assert_eq!(cached(&informer), ["a@1", "b@5"], "and the watch goes on");
}

#[tokio::test(start_paused = true)]
async fn i26_i90_a_difference_ends_the_informer_in_order_with_a_panic() {
    let (source, informer) = checked();
    let log = Log::default();
    let deliver = options(|o| o.on_stop = OnStop::Deliver);
    informer
        .add_handler_with("log", log.handler(), deliver)
        .unwrap();
    let feed = source.watch();
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "4"));
    feed.send_batch(vec![WatchEvent::Added(object("a", 1)), end("4")]);
    let panic = Run::start(&informer).panicked().await;
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(
        text.contains("1 objects of the list streamed at version 4 differ"),
        "{text}"
    );
    assert!(informer.is_stopped());
    assert_eq!(
        log.take(),
        ["+a@1!"],
        "what waited was delivered before the end"
    );
}
