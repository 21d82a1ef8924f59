//! The server dies and comes back, with its state and without.

use std::time::Duration;

use devcluster::faults::{Action, Cut, WatchAction};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::follower::*;
use crate::world::{Part, World};

async fn survives_a_restart(world: &World, watch_list: bool) {
    let api = world.api::<ConfigMap>();
    for at in 0..20 {
        create(&api, &format!("o{at}"), "first").await;
    }
    let follower = Follower::start_direct(world, |options| options.watch_list = watch_list);
    follower.agrees(world, "the first state").await;
    for round in 0..2 {
        let part = [Part::ApiServer, Part::Storage][round];
        if !world.kill(part).await {
            continue;
        }
        world.start(part).await;
        world.wait_until_ready().await;
        let writes = async || {
            set(&api, "o1", &format!("after {round}")).await;
            delete(&api, &format!("o1{round}")).await;
        };
        writes().await;
        follower
            .agrees(world, &format!("after the restart of {part:?}"))
            .await;
        let gone = 1 + round as u64;
        assert_eq!(
            follower.view.deletions(),
            gone,
            "what was there all the time stays"
        );
    }
}

pub(crate) async fn a_restart_loses_and_repeats_nothing_by_list_and_watch(world: &World) {
    survives_a_restart(world, false).await;
}

pub(crate) async fn a_restart_loses_and_repeats_nothing_by_streamed_lists(world: &World) {
    survives_a_restart(world, true).await;
}

async fn survives_a_loss(world: &World, watch_list: bool) {
    let before = world.api::<ConfigMap>();
    for at in 0..20 {
        create(&before, &format!("o{at}"), "first").await;
    }
    // So that the new server's versions are far below the cache's.
    for at in 0..500 {
        set(&before, "o0", &at.to_string()).await;
    }
    let follower = Follower::start(world, |options| {
        options.watch_list = watch_list;
        options.max_silence = Duration::from_secs(1);
    });
    follower.agrees(world, "the first state").await;
    // Silence tells something of servers only that have sent a bookmark: with a streamed state, or about once a
    // minute, and before the end of a watch.
    let short = Action::Query("timeoutSeconds".to_owned(), "4".to_owned());
    let short = world.faults().add(follower.watches(short));
    if !watch_list {
        let cut = follower.watches(WatchAction::cut(Cut::Reset)).at_most(1);
        let _cut = world.faults().add(cut);
        short.struck(2).await;
    }
    let known = follower.cached();
    world.lose_state().await;
    let after = world.api::<ConfigMap>();
    for name in ["o1", "fresh"] {
        create(&after, name, "second").await;
    }
    follower
        .agrees(world, "the state of the server that began anew")
        .await;
    let new = follower.cached();
    assert!(
        new.contains_key("fresh") && new.contains_key("o1"),
        "{new:?}"
    );
    let told = follower.view.deletions();
    let lost = known.len() as u64;
    assert!(
        told >= lost - 1 && told <= lost,
        "{told} of {lost} were told as gone"
    );
    set(&after, "o1", "third").await;
    follower.agrees(world, "the watch after it").await;
}

pub(crate) async fn a_server_that_lost_its_state_is_followed_by_list_and_watch(world: &World) {
    survives_a_loss(world, false).await;
}

pub(crate) async fn a_server_that_lost_its_state_is_followed_by_streamed_lists(world: &World) {
    survives_a_loss(world, true).await;
}
