//! The reflector's rounds on a scripted source, in paused time.

use std::time::Duration;

use informer::source::scripted::{ListAnswer, Request};
use informer::source::{self, WatchEvent};
use informer::{Cause, Error, InformerOptions, ObjectKey, OnMissingKind};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::Instant;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn r1_lists_start_at_any_state_then_the_last_version_then_the_newest_once() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 9)], "10"));
    source.refuse_watch(refusal(500, "InternalError"));
    source.list(ListAnswer::all([object("a", 9)], "11"));
    source.refuse_watch(refusal(410, "Expired"));
    source.list(ListAnswer::Fail(vec![], refusal(410, "Expired")));
    source.list(ListAnswer::all([object("a", 12)], "12"));
    source.refuse_watch(refusal(500, "InternalError"));
    let _run = Run::start(&informer);
    source.called(8).await;
    let calls = source.summaries();
    assert_eq!(
        calls,
        [
            "list 0 limit=500",
            "watch 10",
            "list 10",
            "watch 11",
            "list 11",
            "list \"\" limit=500",
            "watch 12",
            "list 12",
        ]
    );
    let gaps = gaps(&source.requests());
    assert_eq!(gaps[4], 0, "the newest state is asked for at once");
    assert!(gaps[1] >= 800 && gaps[3] >= 1600, "failures wait: {gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn r2_a_version_too_large_is_followed_by_the_newest_state_at_once() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    source.refuse_watch(refusal(500, "InternalError"));
    let too_large =
        kube_core::Status::failure("Too large resource version: 10, current: 5", "Timeout");
    source.list(ListAnswer::Fail(
        vec![],
        source::Error::status(too_large.with_code(504)),
    ));
    source.list(ListAnswer::all([object("a", 3)], "5"));
    let _run = Run::start(&informer);
    source.called(5).await;
    assert_eq!(
        source.summaries()[2..],
        ["list 10", "list \"\" limit=500", "watch 5"]
    );
    assert_eq!(gaps(&source.requests())[2], 0);
    assert_eq!(
        cached(&informer),
        ["a@3"],
        "the cache may go back with the server"
    );
}

#[tokio::test(start_paused = true)]
async fn r5_a_watch_keeps_the_store_exact() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Added(object("c", 11)));
    feed.send(WatchEvent::Modified(object("a", 12)));
    feed.send_batch(vec![
        WatchEvent::Malformed(malformed("d", None)),
        WatchEvent::Deleted(object("b", 13)),
        WatchEvent::Modified(object("e", 14)),
    ]);
    settle().await;
    assert_eq!(cached(&informer), ["a@12", "c@11", "e@14"]);
    assert_eq!(informer.status().resource_version, "14");
    assert_eq!(informer.stats().malformed, 1);
    drop(feed);
    source.called(3).await;
    assert_eq!(
        source.summaries()[2],
        "watch 14",
        "a normal end is resumed, not listed"
    );
}

#[tokio::test(start_paused = true)]
async fn r6_an_error_event_ends_the_watch_and_the_events_before_it_count() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([object("a", 11)], "12"));
    let _run = Run::start(&informer);
    feed.send_batch(vec![
        WatchEvent::Added(object("a", 11)),
        WatchEvent::Error(Box::new(status(410, "Gone"))),
        WatchEvent::Added(object("never", 12)),
    ]);
    settle().await;
    assert_eq!(cached(&informer), ["a@11"]);
    assert!(feed.is_abandoned());
    source.called(4).await;
    assert_eq!(source.summaries()[2..], ["list 11", "watch 12"]);
    assert_eq!(cached(&informer), ["a@11"]);
}

#[tokio::test(start_paused = true)]
async fn r6_a_stop_ends_everything_wherever_it_comes() {
    for calls in 0..=2 {
        let (source, informer) = scripted(InformerOptions::default());
        if calls > 1 {
            source.list(ListAnswer::all([], "10"));
        }
        let log = Log::default();
        informer.add_handler("log", log.handler()).unwrap();
        let run = Run::start(&informer);
        source.called(calls).await;
        let began = Instant::now();
        assert!(run.end().await.is_ok());
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(informer.is_stopped());
        let made = source.requests().len();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(source.requests().len(), made, "stopped after {calls} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn r7_mixed_failures_of_list_and_watch_end_in_the_right_store() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::Fail(vec![object("half", 1)], broken()));
    source.list(ListAnswer::Fail(vec![], refusal(403, "Forbidden")));
    source.list(ListAnswer::all([object("a", 3)], "5"));
    let feed = source.watch();
    source.refuse_watch(refused());
    let second = source.watch();
    let _run = Run::start(&informer);
    source.called(4).await;
    feed.send(WatchEvent::Added(object("b", 6)));
    feed.fail(broken());
    source.called(6).await;
    second.send(WatchEvent::Modified(object("a", 7)));
    settle().await;
    assert_eq!(cached(&informer), ["a@7", "b@6"]);
    assert_eq!(
        source.summaries(),
        [
            "list 0 limit=500",
            "list 0 limit=500",
            "list 0 limit=500",
            "watch 5",
            "watch 6",
            "watch 6"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn r8_refused_connections_are_met_by_growing_waits() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    for _ in 0..9 {
        source.refuse_watch(refused());
    }
    let _run = Run::start(&informer);
    source.called(11).await;
    let gaps = gaps(&source.requests());
    for (at, (gap, base)) in gaps[1..]
        .iter()
        .zip([
            800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000,
        ])
        .enumerate()
    {
        assert!((base..=2 * base + 1).contains(gap), "wait {at}: {gap} ms");
    }
    assert_eq!(informer.stats().lists, 1);
    assert_eq!(informer.status().last_error.unwrap().0, Cause::Refused);
}

#[tokio::test(start_paused = true)]
async fn r9_four_throttled_watches_take_one_list_and_five_watches() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    for _ in 0..4 {
        source.refuse_watch(refusal(429, "TooManyRequests"));
    }
    let feed = source.watch();
    let _run = Run::start(&informer);
    source.called(6).await;
    assert_eq!(source.summaries()[1..], ["watch 10"; 5]);
    assert!(gaps(&source.requests())[1..].iter().all(|gap| *gap >= 800));
    assert_eq!(
        informer.status().last_error,
        None,
        "an open watch clears the failure"
    );
    drop(feed);
}

#[tokio::test(start_paused = true)]
async fn i38_the_servers_wait_stands_in_for_ours() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    for seconds in [20, 600] {
        source.refuse_watch(source::Error::Status {
            status: Box::new(status(429, "TooManyRequests")),
            retry_after: Some(Duration::from_secs(seconds)),
        });
    }
    let _run = Run::start(&informer);
    source.called(4).await;
    assert_eq!(
        gaps(&source.requests())[1..],
        [20_000, 60_000],
        "not added, and capped"
    );
}

#[tokio::test(start_paused = true)]
async fn i38_a_successful_call_starts_the_count_of_kept_waits_anew() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let throttled = || source::Error::Status {
        status: Box::new(status(429, "TooManyRequests")),
        retry_after: Some(Duration::from_secs(59)),
    };
    for at in 0..12 {
        source.refuse_watch(throttled());
        source.watch().send(bookmark(&(11 + at).to_string()));
    }
    let _run = Run::start(&informer);
    source.called(25).await;
    let waits: Vec<_> = gaps(&source.requests())[1..]
        .iter()
        .copied()
        .filter(|gap| *gap > 0)
        .collect();
    // Our own wait, with its jitter, may be as long as 60 s.
    assert_eq!(waits.len(), 12);
    assert!(waits.iter().all(|wait| *wait >= 59_000), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn r10_server_failures_inside_the_window_are_watched_through() {
    // Waits of 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30 s: failures at 0, 0.8, 2.4, 5.6, 12, 24.8, 50.4 s.
    for (window, watches) in [(0, 1), (3, 4), (30, 7), (40, 7), (51, 8)] {
        let options = InformerOptions {
            internal_error_window: Duration::from_secs(window),
            backoff: informer::ReflectorBackoff {
                jitter: 0.0,
                ..informer::ReflectorBackoff::default()
            },
            ..InformerOptions::default()
        };
        let (source, informer) = scripted(options);
        source.list(ListAnswer::all([], "10"));
        let feeds: Vec<_> = (0..watches).map(|_| source.watch()).collect();
        let _run = Run::start(&informer);
        for (at, feed) in feeds.into_iter().enumerate() {
            source.called(2 + at).await;
            feed.send(WatchEvent::Error(Box::new(status(500, "InternalError"))));
        }
        source.called(2 + watches).await;
        let calls = source.summaries();
        assert_eq!(calls[1..=watches], vec!["watch 10"; watches], "{window} s");
        assert_eq!(calls[watches + 1], "list 10", "{window} s");
    }
}

#[tokio::test(start_paused = true)]
async fn i33_only_a_refused_or_throttled_start_of_a_watch_is_tried_again_without_a_list() {
    let cases: [(fn() -> source::Error, bool); 9] = [
        (refused, true),
        (|| refusal(429, "TooManyRequests"), true),
        (broken, false),
        (|| refusal(500, "InternalError"), false),
        (|| refusal(503, "ServiceUnavailable"), false),
        (|| refusal(410, "Expired"), false),
        (|| refusal(403, "Forbidden"), false),
        (|| source::Error::Answer("no watch".to_owned()), false),
        (
            || source::Error::Deadline {
                step: "watch",
                after: Duration::from_secs(15),
            },
            false,
        ),
    ];
    for (failure, resumed) in cases {
        let (source, informer) = scripted(InformerOptions::default());
        source.list(ListAnswer::all([], "10"));
        source.refuse_watch(failure());
        let _run = Run::start(&informer);
        source.called(3).await;
        let want = if resumed { "watch 10" } else { "list 10" };
        assert_eq!(source.summaries()[2], want, "{:?}", failure());
        assert!(gaps(&source.requests())[1] >= 800, "{:?}", failure());
    }
}

#[tokio::test(start_paused = true)]
async fn i39_a_watch_that_was_open_is_resumed_however_it_broke() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feeds: Vec<_> = (0..3).map(|_| source.watch()).collect();
    let _run = Run::start(&informer);
    for (at, feed) in feeds.into_iter().enumerate() {
        source.called(2 + at).await;
        feed.send(bookmark(&(11 + at).to_string()));
        match at {
            0 => feed.fail(broken()),
            1 => feed.fail(refused()),
            _ => drop(feed),
        }
    }
    source.called(5).await;
    assert_eq!(
        source.summaries()[1..],
        ["watch 10", "watch 11", "watch 12", "watch 13"]
    );
    assert_eq!(informer.stats().lists, 1);
}

#[tokio::test(start_paused = true)]
async fn i38_a_server_that_asks_to_wait_again_and_again_is_heeded_ten_times() {
    let options = InformerOptions {
        backoff: informer::ReflectorBackoff {
            max: Duration::from_secs(1),
            jitter: 0.0,
            ..informer::ReflectorBackoff::default()
        },
        ..InformerOptions::default()
    };
    let (source, informer) = scripted(options);
    source.list(ListAnswer::all([], "10"));
    for _ in 0..12 {
        source.refuse_watch(source::Error::Status {
            status: Box::new(status(429, "TooManyRequests")),
            retry_after: Some(Duration::from_secs(20)),
        });
    }
    let _run = Run::start(&informer);
    source.called(14).await;
    let gaps = gaps(&source.requests());
    assert_eq!(gaps[1..11], [20_000; 10]);
    assert_eq!(gaps[11..], [1000; 2], "its own waits from then on");
}

#[tokio::test(start_paused = true)]
async fn r11_a_bookmark_moves_the_version_and_touches_nothing_else() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    let _run = Run::start(&informer);
    feed.send(bookmark("20"));
    settle().await;
    assert_eq!(log.take(), ["+a@1!"]);
    assert_eq!(&*informer.lister().resource_version(), "20");
    drop(feed);
    source.called(3).await;
    assert_eq!(source.summaries()[2], "watch 20");
}

#[tokio::test(start_paused = true)]
async fn r12_watch_timeouts_are_spread_over_five_to_ten_minutes() {
    let (source, informer) = scripted(InformerOptions {
        min_watch_timeout: Duration::from_secs(1),
        ..InformerOptions::default()
    });
    source.list(ListAnswer::all([], "10"));
    for at in 0..100 {
        source.watch().send(bookmark(&(11 + at).to_string()));
    }
    let _run = Run::start(&informer);
    source.called(102).await;
    let timeouts: std::collections::BTreeSet<_> = source
        .requests()
        .iter()
        .filter_map(|request| match request {
            Request::Watch(request, _) => Some(request.timeout.as_secs()),
            Request::List(..) => None,
        })
        .collect();
    assert!(
        timeouts.first() >= Some(&300) && timeouts.last() <= Some(&600),
        "{timeouts:?}"
    );
    assert!(timeouts.len() > 20, "{timeouts:?}");
}

#[tokio::test(start_paused = true)]
async fn r13_a_corrupt_deletion_in_the_watch_is_healed_by_a_list() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([object("b", 2)], "12"));
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    let _run = Run::start(&informer);
    settle().await;
    feed.send(WatchEvent::Error(Box::new(status(500, "StorageReadError"))));
    source.called(4).await;
    settle().await;
    assert_eq!(cached(&informer), ["b@2"]);
    assert_eq!(log.take(), ["+a@1!", "+b@2!", "-?a@1"]);
}

#[tokio::test(start_paused = true)]
async fn i35_a_watch_that_ends_at_once_without_events_is_a_failure() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    drop(source.watch());
    source.list(ListAnswer::all([], "11"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    source.called(4).await;
    assert_eq!(source.summaries()[1..], ["watch 10", "list 10", "watch 11"]);
    assert!(gaps(&source.requests())[1] >= 800);
    assert_eq!(informer.stats().short_watches, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(feed);
    source.called(5).await;
    assert_eq!(
        source.summaries()[4],
        "watch 11",
        "after a second it is a normal end"
    );
}

#[tokio::test(start_paused = true)]
async fn i35_watches_that_end_at_once_and_bring_nothing_new_make_no_hot_loop() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    for _ in 0..100 {
        source.list(ListAnswer::all([object("a", 1)], "10"));
        source.watch().send(bookmark("10"));
    }
    let _run = Run::start(&informer);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let calls = source.requests().len();
    assert!((4..20).contains(&calls), "{calls} calls in a minute");
    assert_eq!(informer.status().last_error.unwrap().0, Cause::ShortWatch);
}

#[tokio::test(start_paused = true)]
async fn i31_a_server_that_began_anew_is_listed() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 9)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::Fail(vec![], refusal(410, "Expired")));
    source.list(ListAnswer::all([object("a", 3)], "4"));
    let _run = Run::start(&informer);
    source.called(2).await;
    feed.send(WatchEvent::Added(object("a", 3)));
    source.called(5).await;
    assert_eq!(
        source.summaries()[2..],
        ["list 10", "list \"\" limit=500", "watch 4"]
    );
    assert_eq!(cached(&informer), ["a@3"]);
}

#[tokio::test(start_paused = true)]
async fn i32_from_version_zero_only_a_change_or_bookmark_is_a_point_to_resume_from() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 5)], "0"));
    let first = source.watch();
    let second = source.watch();
    let _run = Run::start(&informer);
    first.send(WatchEvent::Added(object("a", 5)));
    first.send(WatchEvent::Added(object("b", 7)));
    source.called(2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(first);
    source.called(3).await;
    second.send(WatchEvent::Added(object("b", 7)));
    second.send(WatchEvent::Modified(object("a", 8)));
    settle().await;
    drop(second);
    source.called(4).await;
    assert_eq!(source.summaries()[1..], ["watch 0", "watch 0", "watch 8"]);
    assert_eq!(cached(&informer), ["a@8", "b@7"]);
}

#[tokio::test(start_paused = true)]
async fn i39_the_lists_of_clients_whose_watches_fail_together_are_spread() {
    const CLIENTS: usize = 60;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (source, informer) = scripted(InformerOptions::default());
        source.list(ListAnswer::all([], "10"));
        source.list(ListAnswer::all([], "11"));
        let feed = source.watch();
        let run = Run::start(&informer);
        clients.push((source, informer, feed, run));
    }
    settle().await;
    let began = Instant::now();
    for (_, _, feed, _) in &clients {
        feed.send(WatchEvent::Error(Box::new(status(500, "InternalError"))));
    }
    let mut lists = Vec::new();
    for (source, ..) in &clients {
        source.called(3).await;
        assert_eq!(source.summaries()[2], "list 10");
        lists.push((source.requests()[2].at() - began).as_millis());
    }
    lists.sort_unstable();
    assert!(
        (800..=1601).contains(&lists[0]) && lists[CLIENTS - 1] <= 1601,
        "{lists:?}"
    );
    let most = lists.iter().map(|from| {
        let together = |at: &&u128| (*from..*from + 100).contains(*at);
        lists.iter().filter(together).count()
    });
    // Spread evenly there were 7 or 8 in 100 ms.
    assert!(most.max() < Some(CLIENTS / 2), "{lists:?}");
}

#[tokio::test(start_paused = true)]
async fn i32_a_bookmark_without_a_version_is_no_point_to_resume_from() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 5)], "0"));
    let first = source.watch();
    let _second = source.watch();
    let _run = Run::start(&informer);
    source.called(2).await;
    first.send(bookmark(""));
    first.send(WatchEvent::Added(object("a", 5)));
    first.send(WatchEvent::Added(object("b", 7)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cached(&informer), ["a@5", "b@7"]);
    drop(first);
    source.called(3).await;
    assert_eq!(source.summaries()[1..], ["watch 0", "watch 0"]);
}

#[tokio::test(start_paused = true)]
async fn i41_what_cannot_connect_is_a_warning_and_a_watch_that_breaks_is_none() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::INFO);
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let first = source.watch();
    source.refuse_watch(broken());
    source.list(ListAnswer::Fail(Vec::new(), broken()));
    source.list(ListAnswer::all([], "11"));
    let _second = source.watch();
    let _run = Run::start(&informer);
    informer.synced().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let lines = |text: String| -> Vec<(String, bool)> {
        let failures = text
            .lines()
            .filter(|line| line.contains("list or watch failed"));
        let shown = failures.map(|line| {
            let what = ["list failed", "watch cannot be opened", "watch failed"]
                .into_iter()
                .find(|what| line.contains(&format!("error=\"{what}")));
            (what.unwrap_or("?").to_owned(), line.contains("WARN"))
        });
        shown.collect()
    };
    first.fail(broken());
    source.called(6).await;
    let told = lines(written.text());
    let want = [("watch failed", false), ("watch cannot be opened", true)];
    assert_eq!(told, want.map(|(what, warns)| (what.to_owned(), warns)));
}

#[tokio::test(start_paused = true)]
async fn i10_a_list_and_a_watch_that_hang_are_given_up() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::Hang);
    source.list(ListAnswer::all([], "10"));
    source.hang_watch();
    let _run = Run::start(&informer);
    source.called(4).await;
    let gaps = gaps(&source.requests());
    assert!(
        (60_800..62_000).contains(&gaps[0]),
        "a list of 60 s: {gaps:?}"
    );
    assert!(
        (15_800..19_000).contains(&gaps[2]),
        "a watch of 15 s: {gaps:?}"
    );
    assert_eq!(informer.status().last_error.unwrap().0, Cause::Deadline);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_given_up_after_the_watchs_own_timeout() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let _feed = source.watch();
    let _run = Run::start(&informer);
    source.called(3).await;
    assert_eq!(source.summaries()[2], "watch 10");
    assert!((330_000..=630_000).contains(&gaps(&source.requests())[1]));
}

#[tokio::test(start_paused = true)]
async fn i7_lists_without_version_or_end_and_objects_without_name_are_clear_errors() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], ""));
    source.list(ListAnswer::all(
        [object("a", 1), ConfigMap::default()],
        "10",
    ));
    let _run = Run::start(&informer);
    settle().await;
    let (cause, text) = informer.status().last_error.unwrap();
    assert_eq!(cause, Cause::Protocol);
    assert!(text.contains("without metadata.resourceVersion"), "{text}");
    informer.synced().await;
    assert_eq!(cached(&informer), ["a@1"]);
    assert_eq!(informer.stats().malformed, 1);
}

#[tokio::test(start_paused = true)]
async fn i41_i42_a_missing_kind_is_waited_for_and_shown_or_ends_the_informer() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::Fail(vec![], refusal(404, "NotFound")));
    source.list(ListAnswer::Fail(vec![], refusal(404, "NotFound")));
    source.list(ListAnswer::all([], "10"));
    let _run = Run::start(&informer);
    source.called(2).await;
    assert_eq!(informer.status().last_error.unwrap().0, Cause::NotFound);
    informer.synced().await;
    assert_eq!(informer.status().last_error, None);

    let options = InformerOptions {
        on_missing_kind: OnMissingKind::Stop,
        ..InformerOptions::default()
    };
    let (source, informer) = scripted(options);
    source.list(ListAnswer::Fail(vec![], refusal(404, "NotFound")));
    let outcome = Run::start(&informer).outcome().await;
    assert!(
        matches!(outcome, Err(Error::KindMissing { .. })),
        "{outcome:?}"
    );
    assert!(informer.is_stopped());
}

#[tokio::test(start_paused = true)]
async fn i2_the_first_list_can_be_of_the_newest_state() {
    let options = InformerOptions {
        consistent_first_list: true,
        ..InformerOptions::default()
    };
    let (source, informer) = scripted(options);
    let _run = Run::start(&informer);
    source.called(1).await;
    assert_eq!(source.summaries(), ["list \"\" limit=500"]);
}

#[tokio::test(start_paused = true)]
async fn one_failing_informer_holds_up_no_other() {
    let (failing, first) = scripted(InformerOptions::default());
    let (source, second) = scripted(InformerOptions::default());
    for _ in 0..50 {
        failing.list(ListAnswer::Fail(vec![], refused()));
    }
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let _runs = (Run::start(&first), Run::start(&second));
    second.synced().await;
    let began = Instant::now();
    feed.send(WatchEvent::Added(object("b", 11)));
    settle().await;
    assert!(began.elapsed() < Duration::from_millis(10));
    assert!(
        second
            .lister()
            .get(&ObjectKey::namespaced("n", "b"))
            .is_some()
    );
    assert!(!first.has_synced());
}

#[tokio::test(start_paused = true)]
async fn i42_a_kind_that_stays_away_is_logged_once_in_five_minutes() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::INFO);
    let (source, informer) = scripted(InformerOptions::default());
    for _ in 0..200 {
        source.list(ListAnswer::Fail(vec![], refusal(404, "NotFound")));
    }
    let _run = Run::start(&informer);
    tokio::time::sleep(Duration::from_secs(1190)).await;
    let failures = informer.stats().errors;
    assert!(failures > 20, "{failures} failures in 20 minutes");
    let text = written.text();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("not_found"))
        .collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[1].contains("since="), "{}", lines[1]);
}

#[tokio::test(start_paused = true)]
async fn i42_a_kind_that_goes_and_comes_back_is_followed_again() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    for _ in 0..3 {
        source.list(ListAnswer::Fail(vec![], refusal(404, "NotFound")));
    }
    source.list(ListAnswer::all([object("b", 21)], "22"));
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    // The server ends the watches of a definition that is deleted, after the objects' own ends.
    feed.send(WatchEvent::Deleted(object("a", 11)));
    settle().await;
    feed.send(WatchEvent::Error(Box::new(status(404, "NotFound"))));
    source.called(5).await;
    settle().await;
    assert_eq!(informer.status().last_error.unwrap().0, Cause::NotFound);
    source.called(7).await;
    settle().await;
    assert_eq!(log.take(), ["+a@1!", "-a@11", "+b@21"]);
    assert_eq!(informer.status().last_error, None);
}
