//! Watches: refused, throttled, broken and ended at every byte, silent.

use std::time::Duration;

use devcluster::faults::{Action, Cut, Rule, WatchAction};
use informer::{Cause, ReflectorBackoff};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::Instant;

use crate::follower::*;
use crate::world::{Agent, World};

pub(crate) async fn i34_a_refusal_of_the_version_leads_to_a_list_wherever_it_comes(world: &World) {
    let api = world.api::<ConfigMap>();
    create(&api, "a", "first").await;
    let follower = Follower::start(world, |options| options.watch_list = false);
    follower.agrees(world, "the first state").await;
    let status = |code, reason| Action::status(code, reason);
    let event = |code, reason| Action::from(WatchAction::Error(Action::status(code, reason)));
    let cases = [
        (Action::from(status(410, "Expired")), Cause::Expired),
        (status(410, "Gone").into(), Cause::Expired),
        (status(500, "InternalError").into(), Cause::Internal),
        (status(503, "ServiceUnavailable").into(), Cause::Unavailable),
        (event(410, "Expired"), Cause::Expired),
        (event(500, "InternalError"), Cause::Internal),
        (event(504, "Timeout"), Cause::Unavailable),
    ];
    for (at, (action, cause)) in cases.into_iter().enumerate() {
        let what = format!("{action:?}");
        let (lists, failures) = (follower.lists(), follower.causes().len());
        let in_stream = matches!(action, Action::Watch(_));
        let refused = world.faults().add(follower.watches(action).at_most(1));
        if !in_stream {
            let cut = follower.watches(WatchAction::cut(Cut::Reset)).at_most(1);
            let cut = world.faults().add(cut);
            cut.struck(1).await;
        }
        refused.struck(1).await;
        set(&api, "a", &at.to_string()).await;
        follower.agrees(world, &what).await;
        assert_eq!(follower.lists(), lists + 1, "{what}");
        let mut causes = follower.causes().split_off(failures);
        causes.retain(|cause| *cause != Cause::Transport);
        assert_eq!(causes, [cause], "{what}");
    }
}

pub(crate) async fn r9_a_throttled_watch_is_opened_again_without_a_list(world: &World) {
    let api = world.api::<ConfigMap>();
    create(&api, "a", "first").await;
    for watch_list in [false, true] {
        let follower = Follower::start(world, |options| options.watch_list = watch_list);
        follower.agrees(world, "the first state").await;
        let refusal = Action::status(429, "TooManyRequests").retry_after(1);
        let throttled = world.faults().add(follower.watches(refusal).at_most(2));
        let cut = follower.watches(WatchAction::cut(Cut::Reset)).at_most(1);
        let cut = world.faults().add(cut);
        let began = Instant::now();
        cut.struck(1).await;
        set(&api, "a", &format!("after {watch_list}")).await;
        follower.agrees(world, "the watch after two refusals").await;
        assert!(
            began.elapsed() >= Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(throttled.hits(), 2);
        assert_eq!(follower.lists(), 1);
        let causes = [Cause::Transport, Cause::Throttled, Cause::Throttled];
        assert_eq!(follower.causes(), causes);
    }
}

/// Waits so short that hundreds of them are of no account.
fn at_once() -> ReflectorBackoff {
    ReflectorBackoff {
        base: Duration::from_millis(1),
        max: Duration::from_millis(1),
        ..ReflectorBackoff::default()
    }
}

pub(crate) async fn watches_broken_at_every_byte_go_on_without_a_list(world: &World) {
    let api = world.api::<ConfigMap>();
    let follower = Follower::start(world, |options| options.backoff = at_once());
    follower.agrees(world, "no state").await;
    for (change, deletions) in [("ADDED", 0), ("MODIFIED", 0), ("DELETED", 1)] {
        // The n-th watch breaks after n bytes of the event, which therefore comes again and again.
        let cuts = world
            .faults()
            .add(follower.watches(WatchAction::CutRising(Cut::Reset)));
        cuts.struck(2).await;
        match change {
            "ADDED" => create(&api, "a", "first").await,
            "MODIFIED" => set(&api, "a", "second").await,
            _ => delete(&api, "a").await,
        }
        follower.agrees(world, change).await;
        assert!(
            cuts.hits() > 200,
            "{} cuts in the event {change}",
            cuts.hits()
        );
        let counts = (follower.lists(), follower.view.deletions());
        let failures = follower.failures_beside(Cause::Transport);
        assert_eq!(counts, (1, deletions), "{change}: {failures:?}");
    }
    assert!(
        follower
            .causes()
            .iter()
            .all(|cause| *cause == Cause::Transport)
    );
}

pub(crate) async fn watches_ended_at_any_byte_lose_and_repeat_nothing(world: &World) {
    let api = world.api::<ConfigMap>();
    create(&api, "a", "first").await;
    let follower = Follower::start(world, |options| options.backoff = at_once());
    follower.agrees(world, "the first state").await;
    for after in (0..).step_by(5) {
        let how = Cut::Clean;
        let cut = follower.watches(WatchAction::Cut { how, after }).at_most(1);
        let cut = world.faults().add(cut);
        cut.struck(1).await;
        let watches = follower.informer.stats().watches;
        set(&api, "a", &after.to_string()).await;
        follower
            .agrees(world, &format!("after an end at byte {after}"))
            .await;
        if after > 0 && follower.informer.stats().watches == watches {
            // The whole event came through before its end.
            assert!(after > 200, "an event of {after} bytes");
            break;
        }
    }
    assert_eq!(follower.view.deletions(), 0);
    // Ends so soon after the beginning are failures; where in an event they come makes none.
    let others = follower.failures_beside(Cause::ShortWatch);
    assert_eq!(others, Vec::<String>::new());
}

pub(crate) async fn a_watch_that_goes_silent_is_given_up(world: &World) {
    let api = world.api::<ConfigMap>();
    create(&api, "a", "first").await;
    let agent = Agent::new();
    let short = Action::Query("timeoutSeconds".to_owned(), "4".to_owned());
    let short = Rule::new(short).verb("watch").user_agent(&agent.0);
    let _short = world.faults().add(short.at_most(1));
    let follower = Follower::start_as(world, agent, |options| {
        options.max_silence = Duration::from_secs(5);
    });
    follower.agrees(world, "the first state").await;
    // Before the end of a watch the server sends a bookmark of its own accord.
    eventually(LIMIT, "the end of the first watch", async || {
        holds(follower.informer.stats().watches >= 2)
    })
    .await;
    let silent = follower.watches(WatchAction::Stall).at_most(1);
    let silent = world.faults().add(silent);
    silent.struck(1).await;
    set(&api, "a", "second").await;
    follower.agrees(world, "behind a silent watch").await;
    assert_eq!(follower.causes()[0], Cause::Deadline);
}
