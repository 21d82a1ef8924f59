//! Lists in pages, on a scripted source, in paused time.

use std::sync::Arc;
use std::time::Duration;

use informer::InformerOptions;
use informer::source::scripted::ListAnswer;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::Instant;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn r3_ten_objects_in_pages_of_four_take_three_calls() {
    let options = InformerOptions {
        page_size: Some(4),
        ..InformerOptions::default()
    };
    let (source, informer) = scripted(options);
    let objects: Vec<_> = (0..10).map(|at| object(&format!("o{at}"), 5)).collect();
    source.list(ListAnswer::page(objects[..4].to_vec(), "10", Some("t1")));
    source.list(ListAnswer::page(objects[4..8].to_vec(), "10", Some("t2")));
    source.list(ListAnswer::page(objects[8..].to_vec(), "10", None));
    let _run = Run::start(&informer);
    source.called(4).await;
    assert_eq!(
        source.summaries(),
        [
            "list 0 limit=4",
            "list continue=t1 limit=4",
            "list continue=t2 limit=4",
            "watch 10"
        ]
    );
    assert_eq!(informer.status().objects, 10);
    assert_eq!(informer.stats().lists, 1);
}

#[tokio::test(start_paused = true)]
async fn r4_an_expired_page_is_replaced_by_one_whole_list_without_mixing_states() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::page([object("gone", 1)], "10", Some("t1")));
    source.list(ListAnswer::Fail(
        vec![object("half", 2)],
        refusal(410, "Expired"),
    ));
    source.list(ListAnswer::all([object("a", 12)], "12"));
    let _run = Run::start(&informer);
    source.called(4).await;
    assert_eq!(
        source.summaries(),
        [
            "list 0 limit=500",
            "list continue=t1 limit=500",
            "list 0",
            "watch 12"
        ]
    );
    assert_eq!(gaps(&source.requests())[..2], [0, 0]);
    assert_eq!(cached(&informer), ["a@12"]);
}

#[tokio::test(start_paused = true)]
async fn i4_a_whole_list_that_comes_in_pages_and_is_forgotten_again_is_met_by_a_wait() {
    let (source, informer) = scripted(InformerOptions::default());
    let page = || ListAnswer::page([object("a", 1)], "10", Some("t"));
    let gone = || ListAnswer::Fail(Vec::new(), refusal(410, "Expired"));
    for _ in 0..2 {
        for answer in [page(), gone(), page(), gone()] {
            source.list(answer);
        }
    }
    source.list(ListAnswer::all([object("a", 12)], "12"));
    let _run = Run::start(&informer);
    source.called(9).await;
    let asked = [
        "list 0 limit=500",
        "list continue=t limit=500",
        "list 0",
        "list continue=t limit=500",
        "list \"\" limit=500",
        "list continue=t limit=500",
        "list \"\"",
        "list continue=t limit=500",
        "list \"\" limit=500",
    ];
    assert_eq!(source.summaries()[..9], asked);
    let gaps = gaps(&source.requests());
    assert_eq!(gaps[..7], [0; 7], "what helps at once is asked for at once");
    assert!(
        gaps[7] >= 800,
        "and what does not help is no hot loop: {gaps:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn r4_other_failures_of_a_page_end_the_round() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::page([object("a", 1)], "10", Some("t1")));
    source.list(ListAnswer::Fail(vec![], broken()));
    let _run = Run::start(&informer);
    source.called(3).await;
    assert_eq!(source.summaries()[2], "list 0 limit=500");
    assert!(!informer.has_synced() && cached(&informer).is_empty());
}

/// An informer with pages of four objects that notes how many calls had been made when the first
/// objects of each page were taken.
fn noting() -> (
    informer::source::scripted::Scripted<ConfigMap>,
    informer::Informer<ConfigMap>,
    Log,
) {
    let (source, informer) = scripted(InformerOptions {
        page_size: Some(4),
        ..InformerOptions::default()
    });
    let (log, asked) = (Log::default(), source.clone());
    let told = log.clone();
    informer
        .set_transform(Arc::new(move |object: &mut ConfigMap| {
            let name = object.metadata.name.clone().unwrap_or_default();
            if name.ends_with("-0") {
                told.push(format!("{name} after {} calls", asked.requests().len()));
            }
            Ok(())
        }))
        .unwrap();
    (source, informer, log)
}

fn page(number: usize, objects: usize) -> Vec<ConfigMap> {
    (0..objects)
        .map(|at| object(&format!("{number}-{at}"), 5))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn r4_up_to_ten_pages_are_asked_for_ahead() {
    const PAGES: usize = 30;
    let (source, informer, log) = noting();
    for number in 0..PAGES {
        let token = (number + 1 < PAGES).then(|| format!("t{number}"));
        source.list(ListAnswer::page(page(number, 4), "10", token.as_deref()));
    }
    let _run = Run::start(&informer);
    informer.synced().await;
    assert_eq!(informer.status().objects, 4 * PAGES);
    let notes = log.take();
    assert_eq!(notes.len(), PAGES);
    assert_eq!(notes[0], "0-0 after 11 calls");
    assert_eq!(notes[1], "1-0 after 12 calls");
    assert_eq!(
        notes[PAGES - 1],
        format!("{}-0 after {PAGES} calls", PAGES - 1)
    );
}

#[tokio::test(start_paused = true)]
async fn r4_a_page_larger_than_asked_for_is_taken_before_the_next_is_asked_for() {
    let (source, informer, log) = noting();
    source.list(ListAnswer::page(page(0, 5), "10", Some("t0")));
    source.list(ListAnswer::page(page(1, 5), "10", None));
    let _run = Run::start(&informer);
    informer.synced().await;
    assert_eq!(log.take(), ["0-0 after 1 calls", "1-0 after 2 calls"]);
}

#[tokio::test(start_paused = true)]
async fn r4_what_has_arrived_is_taken_while_the_next_page_is_waited_for() {
    let (source, informer, log) = noting();
    source.list(ListAnswer::page(page(0, 4), "10", Some("t0")));
    source.list(ListAnswer::Hang);
    let _run = Run::start(&informer);
    source.called(2).await;
    settle().await;
    assert_eq!(log.take(), ["0-0 after 2 calls"]);
    let began = Instant::now();
    source.called(3).await;
    let waited = began.elapsed();
    assert!(
        (Duration::from_secs(60)..Duration::from_secs(62)).contains(&waited),
        "each page has a time of its own: {waited:?}"
    );
    assert!(!informer.has_synced());
}

#[tokio::test(start_paused = true)]
async fn r4_pages_that_wait_are_void_when_a_later_one_has_expired() {
    let (source, informer, log) = noting();
    source.list(ListAnswer::page(page(0, 4), "10", Some("t0")));
    source.list(ListAnswer::page(page(1, 4), "10", Some("t1")));
    source.list(ListAnswer::Fail(page(2, 2), refusal(410, "Expired")));
    source.list(ListAnswer::all(page(7, 2), "12"));
    let _run = Run::start(&informer);
    informer.synced().await;
    assert_eq!(log.take(), ["7-0 after 4 calls"]);
    assert_eq!(cached(&informer), ["7-0@5", "7-1@5"]);
    assert_eq!(source.summaries()[3], "list 0");
}
