//! Parts of the server die by SIGKILL while many write.

use std::time::Duration;

use informer::{Buffer, Event, HandlerOptions, Informer, MetadataOnly};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::follower::*;
use crate::world::{Part, World};

const OBJECTS: usize = 1000;
const WRITERS: u64 = 20;
/// Kills in one round.
const KILLS: usize = 3;

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text}")),
        Err(_) => default,
    }
}

/// Changes, removes and makes objects at random until it is stopped; refusals and failures are as good.
async fn write(api: Api<ConfigMap>, seed: u64, stop: CancellationToken) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut written = 0;
    while !stop.is_cancelled() {
        let name = format!("o{:03}", random.random_range(0..OBJECTS));
        let done = match random.random_range(0..10) {
            0 => api.delete(&name, &DeleteParams::default()).await.is_ok(),
            1 | 2 => {
                let object = config_map(&name, "made");
                api.create(&PostParams::default(), &object).await.is_ok()
            }
            _ => {
                let patch =
                    Patch::Merge(json!({"data": {"k": random.random::<u64>().to_string()}}));
                api.patch(&name, &PatchParams::default(), &patch)
                    .await
                    .is_ok()
            }
        };
        written += u64::from(done);
        // A dead server refuses at once, and twenty loops without a pause would keep it from starting.
        tokio::time::sleep(Duration::from_millis(if done { 1 } else { 20 })).await;
    }
    written
}

/// What is compared with the server after every round.
struct Observed {
    listed: Follower,
    streamed: Follower,
    metadata: Running<MetadataOnly<ConfigMap>>,
    /// A handler of the metadata.
    view: View,
    /// One that is slow and coalesces.
    slow: View,
}

impl Observed {
    fn start(world: &World) -> Self {
        let follower = |watch_list: bool| {
            Follower::start_direct(world, |options| options.watch_list = watch_list)
        };
        let streamed = follower(true);
        let slow = View::default();
        let see = slow.handler();
        #[expect(
            clippy::disallowed_methods,
            reason = "a handler that holds up its thread is what this is about"
        )]
        let slowly = move |event: &Event<ConfigMap>| {
            std::thread::sleep(Duration::from_micros(300));
            see(event);
        };
        let coalesce = HandlerOptions {
            buffer: Buffer::Coalesce(50),
            ..HandlerOptions::default()
        };
        streamed
            .informer
            .add_handler_with("slow", slowly, coalesce)
            .unwrap();
        let informer = Informer::new(world.direct_client(), quick(world)).unwrap();
        let view = View::default();
        informer.add_handler("metadata", view.handler()).unwrap();
        Self {
            listed: follower(false),
            streamed,
            metadata: Running::start(informer),
            view,
            slow,
        }
    }

    /// Waits until every cache is the server's state and every handler's last word on each object is the cache's.
    async fn agree(&self, world: &World, what: &str) {
        self.listed.agrees(world, what).await;
        self.streamed.agrees(world, what).await;
        let api = world.api::<ConfigMap>();
        eventually(LIMIT, what, async || {
            let listed = api.list(&ListParams::default()).await;
            let want = versions(&listed.map_err(|error| error.to_string())?.items);
            let cached = self.metadata.informer.lister().list();
            let have = versions(cached.iter().map(|object| &**object));
            for (which, have) in [
                ("metadata", have),
                ("its handler", self.view.versions()),
                ("slow handler", self.slow.versions()),
            ] {
                if have != want {
                    return Err(format!("{which}: {}", difference(&want, &have)));
                }
            }
            Ok(())
        })
        .await;
        for view in [&self.view, &self.slow] {
            assert_eq!(view.problems(), Vec::<String>::new(), "{what}");
        }
    }
}

pub(crate) async fn caches_and_handlers_equal_the_server_after_kills(world: &World) {
    let rounds = number("INFORMER_KILL_ROUNDS", 2);
    let first_seed = number("INFORMER_KILL_SEED", 1);
    let api = world.api::<ConfigMap>();
    for at in 0..OBJECTS {
        create(&api, &format!("o{at:03}"), "first").await;
    }
    let observed = Observed::start(world);
    observed.agree(world, "before the first round").await;
    for seed in first_seed..first_seed + rounds {
        let began = tokio::time::Instant::now();
        let mut random = StdRng::seed_from_u64(seed);
        let stop = CancellationToken::new();
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            // Each with connections of its own.
            let api = Api::namespaced(world.direct_client(), &world.namespace);
            writers.spawn(write(api, seed * 1000 + writer, stop.clone()));
        }
        let mut killed = Vec::new();
        for _ in 0..KILLS {
            let pause = random.random_range(50..1500);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let parts: &[Part] = match random.random_range(0..3) {
                0 => &[Part::ApiServer],
                1 => &[Part::Storage],
                _ => &[Part::Storage, Part::ApiServer],
            };
            let mut dead = Vec::new();
            for part in parts {
                if world.kill(*part).await {
                    dead.push(*part);
                }
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(0..500))).await;
            for part in &dead {
                world.start(*part).await;
            }
            killed.extend(dead);
            // The last kill may come while the server is still starting.
            if random.random_bool(0.7) {
                world.wait_until_ready().await;
            }
        }
        world.wait_until_ready().await;
        stop.cancel();
        let written: u64 = writers.join_all().await.into_iter().sum();
        let quiet = tokio::time::Instant::now();
        observed
            .agree(world, &format!("seed {seed}, killed {killed:?}"))
            .await;
        let stats = [&observed.listed, &observed.streamed].map(|one| one.informer.stats());
        eprintln!(
            "seed {seed}: killed {killed:?}, {written} writes, {} objects, equal {} ms after the last write, \
             {:.1} s; so far {} + {} lists, {} + {} watches, {} + {} events, {} + {} failures; 0 differences",
            observed.listed.cached().len(),
            quiet.elapsed().as_millis(),
            began.elapsed().as_secs_f64(),
            stats[0].lists,
            stats[1].lists,
            stats[0].watches,
            stats[1].watches,
            stats[0].events,
            stats[1].events,
            stats[0].errors,
            stats[1].errors,
        );
        assert!(written > 0, "nobody wrote in the round of seed {seed}");
    }
}
