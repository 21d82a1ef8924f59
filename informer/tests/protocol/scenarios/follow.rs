//! Changes, cuts, and states that the server has forgotten.

use devcluster::faults::{Action, Cut, FaultGuard, Rule, WatchAction};
use informer::Cause;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::follower::*;
use crate::world::World;

/// Breaks the open watch and holds back the next one until the guard goes.
async fn break_and_hold(world: &World, follower: &Follower) -> FaultGuard {
    let cut = follower.watches(WatchAction::cut(Cut::Reset)).at_most(1);
    let cut = world.faults().add(cut);
    let hold = world.faults().add(follower.watches(Action::Stall));
    cut.struck(1).await;
    hold.struck(1).await;
    hold
}

async fn follows(world: &World, watch_list: bool) {
    let api = world.api::<ConfigMap>();
    for at in 0..30 {
        create(&api, &format!("o{at}"), "first").await;
    }
    let follower = Follower::start(world, |options| options.watch_list = watch_list);
    follower.agrees(world, "the first state").await;
    assert_eq!(follower.lists(), 1);

    create(&api, "new", "second").await;
    set(&api, "o1", "second").await;
    delete(&api, "o2").await;
    follower.agrees(world, "changes by the watch").await;

    let hold = break_and_hold(world, &follower).await;
    set(&api, "o3", "third").await;
    delete(&api, "o4").await;
    drop(hold);
    follower.agrees(world, "changes behind a cut").await;
    assert_eq!(follower.lists(), 1, "a cut is resumed, not listed");
    assert_eq!(follower.causes(), [Cause::Transport]);

    let hold = break_and_hold(world, &follower).await;
    set(&api, "o5", "fourth").await;
    for name in ["o6", "o7"] {
        delete(&api, name).await;
    }
    for name in ["newer", "o7"] {
        create(&api, name, "fourth").await;
    }
    world.forget().await;
    drop(hold);
    follower
        .agrees(world, "changes that the server has forgotten")
        .await;
    assert!(follower.lists() > 1, "only a list could find them");
    assert!(
        follower.causes().contains(&Cause::Expired),
        "{:?}",
        follower.causes()
    );
    set(&api, "o8", "last").await;
    follower.agrees(world, "the watch after it").await;
    assert_eq!(
        follower.view.deletions(),
        4,
        "two seen, two found by the list"
    );
}

pub(crate) async fn changes_cuts_and_forgotten_states_are_followed_by_list_and_watch(
    world: &World,
) {
    follows(world, false).await;
}

pub(crate) async fn changes_cuts_and_forgotten_states_are_followed_by_streamed_lists(
    world: &World,
) {
    follows(world, true).await;
}

pub(crate) async fn r4_a_forgotten_page_leads_to_one_whole_list(world: &World) {
    let api = world.api::<ConfigMap>();
    for at in 0..25 {
        create(&api, &format!("o{at:02}"), "first").await;
    }
    let later_pages = Rule::new(Action::Stall)
        .verb("list")
        .query("continue", None);
    let hold = world.faults().add(later_pages);
    let follower = Follower::start(world, |options| {
        options.watch_list = false;
        options.consistent_first_list = true;
        options.page_size = Some(10);
        options.list_timeout = LIMIT;
    });
    hold.struck(1).await;
    delete(&api, "o20").await;
    set(&api, "o05", "second").await;
    world.forget().await;
    assert!(!follower.informer.has_synced(), "one page is no state");
    drop(hold);
    follower
        .agrees(world, "a whole list in the place of the page")
        .await;
    assert_eq!(
        (follower.lists(), follower.causes()),
        (1, vec![Cause::Expired])
    );
    assert_eq!(
        follower.view.deletions(),
        0,
        "the first page was never shown"
    );
}
