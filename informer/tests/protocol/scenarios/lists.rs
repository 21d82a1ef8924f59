//! Lists: in pages, too new, throttled, cut short, compressed.

use std::time::Duration;

use devcluster::faults::{Action, Cut, Rule, WatchAction};
use informer::Cause;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::Instant;

use crate::follower::*;
use crate::world::{Agent, World};

/// A version that no server of these tests reaches.
const FAR: &str = "999999999999";
/// Bytes between two cuts of an answer.
const STRIDE: usize = 13;

pub(crate) async fn a_list_comes_in_pages_of_one_moment(world: &World) {
    let api = world.api::<ConfigMap>();
    for at in 0..25 {
        create(&api, &format!("o{at:02}"), "first").await;
    }
    let in_namespace = |rule: Rule| rule.verb("list").namespace(&world.namespace);
    let pages = in_namespace(Rule::new(Action::Stall)).query("continue", None);
    let hold = world.faults().add(pages);
    let follower = Follower::start(world, |options| {
        options.watch_list = false;
        options.consistent_first_list = true;
        options.page_size = Some(10);
    });
    hold.struck(1).await;
    delete(&api, "o20").await;
    set(&api, "o15", "second").await;
    create(&api, "o99", "second").await;
    drop(hold);
    follower
        .agrees(world, "pages, then what came after their moment")
        .await;
    assert_eq!((follower.lists(), follower.causes()), (1, vec![]));
    assert_eq!(
        follower.view.deletions(),
        1,
        "the second page still showed it"
    );
}

async fn too_large(world: &World, watch_list: bool) {
    let api = world.api::<ConfigMap>();
    create(&api, "a", "first").await;
    let follower = Follower::start(world, |options| options.watch_list = watch_list);
    follower.agrees(world, "the first state").await;
    let ask = Action::Query("resourceVersion".to_owned(), FAR.to_owned());
    let ask = Rule::new(ask).namespace(&world.namespace).at_most(1);
    let _ask = world.faults().add(match watch_list {
        true => ask.verb("watch").query("sendInitialEvents", Some("true")),
        false => ask.verb("list").query("resourceVersion", None),
    });
    let expired = WatchAction::Error(Action::status(410, "Expired"));
    let _expired = world.faults().add(follower.watches(expired).at_most(1));
    set(&api, "a", "second").await;
    eventually(LIMIT, "the server's refusal", async || {
        holds(follower.causes().len() >= 2)
    })
    .await;
    follower.agrees(world, "the newest state").await;
    assert_eq!(follower.causes(), [Cause::Expired, Cause::VersionTooLarge]);
}

pub(crate) async fn r2_a_version_too_large_is_answered_by_the_newest_state(world: &World) {
    too_large(world, false).await;
}

pub(crate) async fn r2_a_version_too_large_of_a_stream_is_answered_by_the_newest_state(
    world: &World,
) {
    too_large(world, true).await;
}

pub(crate) async fn i38_a_throttled_list_waits_as_long_as_the_server_asks(world: &World) {
    create(&world.api(), "a", "first").await;
    let refusal = Action::status(429, "TooManyRequests").retry_after(1);
    let rule = || {
        Rule::new(refusal.clone())
            .namespace(&world.namespace)
            .at_most(2)
    };
    for (watch_list, verb) in [(false, "list"), (true, "watch")] {
        let _throttle = world.faults().add(rule().verb(verb));
        let began = Instant::now();
        let follower = Follower::start(world, |options| options.watch_list = watch_list);
        follower.agrees(world, verb).await;
        assert!(
            began.elapsed() >= Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(follower.causes(), [Cause::Throttled; 2]);
    }
}

/// Cuts the first answer of a new informer at growing lengths until one comes whole.
async fn cut_everywhere(world: &World, watch_list: bool, cut: impl Fn(u64) -> Rule) {
    let api = world.api::<ConfigMap>();
    for name in ["a", "b", "c"] {
        create(&api, name, "first").await;
    }
    let mut tries = 0;
    for length in (0..).step_by(STRIDE) {
        let agent = Agent::new();
        let rule = cut(length).user_agent(&agent.0).at_most(1);
        let guard = world.faults().add(rule);
        let follower = Follower::start_as(world, agent, |options| options.watch_list = watch_list);
        let what = format!("after a cut at byte {length}");
        follower.agrees(world, &what).await;
        assert_eq!(guard.hits(), 1, "{what}");
        if follower.causes().is_empty() {
            break;
        }
        assert_eq!(follower.causes(), [Cause::Transport], "{what}");
        tries += 1;
    }
    assert!(tries > 20, "{tries} cuts");
}

pub(crate) async fn lists_cut_at_any_byte_are_made_again(world: &World) {
    let cut = |length| Rule::new(Action::Truncate(length)).verb("list");
    cut_everywhere(world, false, cut).await;
}

pub(crate) async fn streamed_lists_cut_at_any_byte_end_in_the_same_state(world: &World) {
    let cut = |after| {
        let how = Cut::Reset;
        Rule::new(WatchAction::Cut { how, after })
    };
    cut_everywhere(world, true, cut).await;
}

pub(crate) async fn compressed_answers_are_read_or_refused_in_words(world: &World) {
    let api = world.api::<ConfigMap>();
    for name in ["a", "b", "c"] {
        create(&api, name, &"large enough to be worth it ".repeat(3000)).await;
    }
    let compress = Action::Header("accept-encoding".to_owned(), "gzip".to_owned());
    let compress = Rule::new(compress).namespace(&world.namespace);
    let compressed = world.faults().add(compress);
    for watch_list in [false, true] {
        let follower = Follower::start(world, |options| options.watch_list = watch_list);
        eventually(LIMIT, "an answer", async || {
            let failed = follower.informer.status().last_error.is_some();
            holds(failed || follower.informer.has_synced())
        })
        .await;
        match follower.informer.status().last_error {
            // Not every server compresses a stream.
            None => {
                assert!(watch_list, "the list came as it is");
                follower.agrees(world, "compressed").await;
            }
            Some((cause, text)) => {
                assert_eq!(cause, Cause::Protocol);
                assert!(text.contains("encoded as `gzip`"), "{text}");
            }
        }
    }
    assert!(compressed.hits() >= 2);
    drop(compressed);
    let follower = Follower::start(world, |_| {});
    follower
        .agrees(world, "as sent without being asked for compression")
        .await;
}
