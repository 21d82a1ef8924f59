//! Large objects.

use k8s_openapi::api::core::v1::ConfigMap;

use crate::follower::*;
use crate::world::World;

/// As much as a config map may hold, but for its key and the text that tells states apart.
const LARGE: usize = (1 << 20) - 64;

pub(crate) async fn objects_of_a_mebibyte_are_listed_and_watched(world: &World) {
    let api = world.api::<ConfigMap>();
    // Backslashes and characters of several bytes, which frames may be cut in the middle of.
    let text = |state: &str| format!("{state}{}", "\\\u{e9}\"x".repeat(LARGE / 5));
    for at in 0..3 {
        create(&api, &format!("large{at}"), &text("first")).await;
    }
    for watch_list in [false, true] {
        let follower = Follower::start(world, |options| options.watch_list = watch_list);
        follower.agrees(world, "large objects of a list").await;
        let state = format!("watched {watch_list}");
        set(&api, "large1", &text(&state)).await;
        create(&api, "late", &text("late")).await;
        follower.agrees(world, "large objects of a watch").await;
        delete(&api, "late").await;
        follower
            .agrees(world, "the last state of a large object")
            .await;
        let whole = follower
            .informer
            .lister()
            .list()
            .iter()
            .filter(|object| {
                let data = object.data.as_ref().unwrap();
                data["k"].len() > LARGE - 64
                    && (data["k"] == text("first") || data["k"] == text(&state))
            })
            .count();
        assert_eq!(whole, 3);
        assert_eq!(follower.causes(), []);
        assert_eq!(follower.lists(), 1);
    }
}
