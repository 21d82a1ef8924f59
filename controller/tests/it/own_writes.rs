//! Read-your-writes as a controller does it by itself: a key rests until the cache shows its write.

use std::sync::Arc;
use std::time::Duration;

use controller::apply::Apply;
use controller::testing::Harness;
use controller::upsert::{create_or_update, named};
use controller::{
    Action, Context, Controller, ControllerOptions, Error, Informer, Lister, Manager, ObjectKey,
    ReconcileError, Reconciler, Source, finalizer,
};
use devcluster::DevCluster;
use informer::source::WatchEvent;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_client::api::{Patch, PatchParams, PostParams};
use kube_client::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{Scene, Scripting, Stage, config, key, ms, pass, unique};

const CAP: Duration = Duration::from_secs(10);

/// As the server answers a write to `name`.
fn written(name: &str, version: u32) -> ConfigMap {
    config(name, version)
}

/// Writes its own object, at version 1001, in the first run of each key.
fn writing_once() -> Scripting {
    Scripting::new(|key: ObjectKey, ctx, n| async move {
        if n == 0 {
            ctx.wrote(&written(key.name(), 1001));
        }
        Ok(Action::Done)
    })
}

#[tokio::test(start_paused = true)]
async fn c77_a_key_rests_until_its_write_comes_back_and_others_go_on() {
    let reconciler = writing_once();
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(10)).await;
    stage.scene.add(config("b", 1));
    assert_eq!(reconciler.times("a").len(), 1);
    assert_eq!(stage.handle.unseen_writes(), 1);
    for _ in 0..5 {
        stage.handle.trigger(key("a"));
        pass(ms(100)).await;
    }
    assert_eq!(
        reconciler.times("a").len(),
        1,
        "it would see the state before its write"
    );
    assert_eq!(reconciler.times("b").len(), 1, "others go on");
    let skips = stage.handle.metrics().stale_skips;
    assert!(skips >= 5, "{skips}");
    assert_eq!(stage.handle.queue().retries, 0, "to rest is no retry");
    let held = stage.handle.held_back();
    let held: Vec<_> = held
        .iter()
        .map(|(key, lag)| (key.name(), &*lag.cache, lag.waited.as_millis()))
        .collect();
    assert_eq!(held, [("a", "ConfigMap", 510), ("b", "ConfigMap", 500)]);
    stage.scene.modify(config("a", 1001));
    pass(ms(1)).await;
    assert_eq!(
        reconciler.times("a").len(),
        2,
        "the event of its write brings it"
    );
    let last = reconciler.calls().pop().unwrap();
    assert_eq!((last.ctx.stale(), last.ctx.attempt()), (None, 1));
    let held = stage.handle.held_back();
    assert!(held.iter().all(|(held, _)| *held != key("a")), "{held:?}");
    stage.handle.trigger(key("a"));
    pass(ms(1)).await;
    assert_eq!(
        reconciler.times("a").len(),
        3,
        "nothing is on record any more"
    );
    let metrics = stage.handle.metrics();
    assert_eq!((metrics.stale_reconciles, metrics.error), (0, 0));
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_w24_a_key_that_rests_keeps_its_reminder() {
    let reconciler = writing_once();
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(10)).await;
    stage
        .handle
        .trigger_after(key("a"), Duration::from_secs(60));
    stage.handle.trigger(key("a"));
    pass(ms(490)).await;
    assert_eq!(reconciler.times("a").len(), 1, "it rests");
    stage.scene.modify(config("a", 1001));
    pass(Duration::from_secs(59)).await;
    assert_eq!(reconciler.times("a").len(), 2, "for the event of its write");
    pass(Duration::from_secs(2)).await;
    let times = reconciler.times("a");
    assert_eq!(times.len(), 3, "{times:?}");
    assert!((60_010..60_020).contains(&times[2]), "{times:?}");
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_a_source_that_was_refused_holds_nothing_back() {
    let reconciler = Scripting::new(|_, ctx: Context, n| async move {
        if n > 0 {
            ctx.wrote(&crate::support::object::<Secret>("child", 2000));
        }
        Ok(Action::Done)
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(10)).await;
    let over = Scene::<Secret>::listing(vec![]);
    let ended = tokio_util::sync::CancellationToken::new();
    ended.cancel();
    over.informer.run(ended).await.unwrap();
    let source = Source::mapped(&over.informer, |_: &Secret| Vec::new());
    let refused = stage.handle.add_source(source);
    assert!(matches!(refused, Err(Error::Source { .. })), "{refused:?}");
    stage.handle.trigger(key("a"));
    pass(ms(10)).await;
    assert_eq!(reconciler.times("a").len(), 2);
    assert_eq!(
        stage.handle.unseen_writes(),
        0,
        "nothing will ever show the child"
    );
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_a_source_added_later_is_waited_for() {
    let reconciler = Scripting::new(|_, ctx: Context, n| async move {
        if n > 0 {
            ctx.wrote(&crate::support::object::<Secret>("child", 2000));
        }
        Ok(Action::Done)
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(10)).await;
    let secrets = Scene::<Secret>::listing(vec![]);
    let source = Source::mapped(&secrets.informer, |_: &Secret| Vec::new());
    stage.handle.add_source(source).unwrap();
    stage.handle.trigger(key("a"));
    pass(ms(10)).await;
    let held = stage.handle.held_back();
    assert!(
        held.iter()
            .any(|(held, lag)| *held == key("a") && &*lag.cache == "Secret"),
        "{held:?}"
    );
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_past_the_cap_a_run_is_told_that_its_cache_is_stale() {
    // The watch stands still for 30 s.
    let reconciler = writing_once();
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(10)).await;
    let wrote = Instant::now() - ms(10);
    stage.handle.trigger(key("a"));
    pass(CAP - wrote.elapsed() - ms(1)).await;
    assert_eq!(reconciler.times("a").len(), 1);
    pass(ms(2)).await;
    let calls = reconciler.calls();
    assert_eq!(calls.len(), 2, "not held back for ever");
    let lag = calls[1].ctx.stale().expect("it must read live");
    assert_eq!((&*lag.cache, &*lag.written), ("ConfigMap", "1001"));
    assert!(lag.remaining.is_zero());
    pass(Duration::from_secs(20)).await;
    stage.handle.trigger(key("a"));
    pass(ms(1)).await;
    assert!(
        reconciler.calls()[2].ctx.stale().is_some(),
        "as long as it lags"
    );
    assert_eq!(stage.handle.metrics().stale_reconciles, 2);
    // It goes on, with a bookmark alone: the event was missed.
    stage.scene.feed.send(WatchEvent::Bookmark {
        resource_version: "1001".to_owned(),
        initial_events_end: false,
    });
    pass(ms(1)).await;
    stage.handle.trigger(key("a"));
    pass(ms(1)).await;
    assert!(reconciler.calls()[3].ctx.stale().is_none());
    assert_eq!(stage.handle.unseen_writes(), 0);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_a_write_whose_event_is_missed_is_seen_by_any_later_version() {
    let reconciler = writing_once();
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(10)).await;
    stage.handle.trigger(key("a"));
    pass(ms(500)).await;
    assert_eq!(reconciler.times("a").len(), 1);
    // Its own event never comes; another object's does, with a later version.
    stage.scene.add(config("z", 1002));
    let came = Instant::now();
    while reconciler.times("a").len() == 1 {
        pass(ms(1)).await;
    }
    assert!(
        came.elapsed() <= ms(600),
        "as long again as it had waited: {:?}",
        came.elapsed()
    );
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_what_was_written_to_an_object_that_is_gone_holds_nothing_back() {
    // Each run writes a child, which the cache does not show.
    let reconciler = Scripting::new(|key: ObjectKey, ctx: Context, n| async move {
        if n == 0 {
            let child = format!("{}-child", key.name());
            ctx.wrote(&written(&child, 2000));
        }
        Ok(Action::Done)
    });
    let options = ControllerOptions::default();
    let stage = Stage::open(&["a", "b"], reconciler.clone(), options);
    pass(ms(10)).await;
    stage.handle.trigger(key("a"));
    stage.scene.delete(config("b", 1002));
    pass(ms(1)).await;
    assert_eq!(reconciler.times("a").len(), 1, "its child is waited for");
    assert_eq!(reconciler.times("b").len(), 2, "no owner is there any more");
    assert_eq!(stage.handle.unseen_writes(), 1, "of a");
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_an_object_deleted_and_made_anew_starts_with_a_fresh_record() {
    // The run writes a child of another kind, whose cache stands still.
    let owners = Scene::listing(vec![config("a", 1)]);
    let children = Scene::<Secret>::listing(vec![]);
    let reconciler = Scripting::new(|_, ctx: Context, n| async move {
        if n == 0 {
            ctx.wrote(&crate::support::object::<Secret>("child", 2000));
        }
        Ok(Action::Done)
    });
    let controller = Controller::builder(unique("fresh"), reconciler.clone())
        .for_object(&owners.informer)
        .reads(&children.informer)
        .build()
        .unwrap();
    let handle = controller.handle();
    let manager = Manager::default()
        .add_informer(&owners.informer)
        .add_informer(&children.informer)
        .add_controller(controller);
    let stop = tokio_util::sync::CancellationToken::new();
    let play = async {
        pass(ms(50)).await;
        owners.modify(config("a", 1003));
        pass(ms(50)).await;
        assert_eq!(reconciler.times("a").len(), 1, "the child is not shown");
        owners.delete(config("a", 1004));
        let mut anew = config("a", 1005);
        anew.metadata.uid = Some("another".to_owned());
        owners.add(anew);
        pass(ms(1)).await;
        assert_eq!(
            reconciler.times("a").len(),
            2,
            "that was another object's child"
        );
        assert!(reconciler.calls()[1].ctx.stale().is_none());
        assert_eq!(handle.unseen_writes(), 0);
        stop.cancel();
    };
    let (result, ()) = tokio::join!(manager.run(stop.clone()), play);
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_a_failure_keeps_its_count_while_the_key_rests() {
    let reconciler = Scripting::new(|key: ObjectKey, ctx: Context, n| async move {
        if n < 2 {
            ctx.wrote(&written(key.name(), 1001 + u32::try_from(n).unwrap()));
            return Err(ReconcileError::retry("not yet"));
        }
        Ok(Action::Done)
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(500)).await;
    stage.scene.modify(config("a", 1001));
    pass(ms(500)).await;
    stage.scene.modify(config("a", 1002));
    pass(ms(1000)).await;
    let attempts: Vec<_> = reconciler
        .calls()
        .iter()
        .map(|call| call.ctx.attempt())
        .collect();
    assert_eq!(attempts, [1, 2, 3]);
    let times = reconciler.times("a");
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] >= 499),
        "it rested, whatever its backoff: {times:?}"
    );
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c77_it_can_be_switched_off() {
    let options = ControllerOptions {
        read_your_writes: None,
        ..ControllerOptions::default()
    };
    let reconciler = writing_once();
    let stage = Stage::open(&["a"], reconciler.clone(), options);
    pass(ms(10)).await;
    stage.handle.trigger(key("a"));
    pass(ms(10)).await;
    assert_eq!(reconciler.times("a").len(), 2);
    stage.close().await.unwrap();
}

/// Writes by each of the crate's functions, in the run of that number, and by an `Api` last.
struct Writer {
    client: Client,
    configs: Lister<ConfigMap>,
    seen: Arc<std::sync::Mutex<Vec<(String, String)>>>,
}

impl Reconciler for Writer {
    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Result<Action, ReconcileError> {
        let Some(config) = self.configs.get(key).filter(|_| key.name() == "a") else {
            return Ok(Action::Done);
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
        let live = api.get("a").await?;
        let versions = (config.resource_version(), live.resource_version());
        let text = |version: Option<String>| version.unwrap_or_default();
        let run = {
            let mut seen = self.seen.lock().unwrap();
            seen.push((text(versions.0), text(versions.1)));
            seen.len()
        };
        match run {
            1 => drop(finalizer::add(&api, &*config, "example.dev/a").await?),
            2 => {
                let patch = json!({ "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": { "name": "a" }, "data": { "x": "2" } });
                drop(
                    Apply::as_manager("it")?
                        .force()
                        .object(&api, &patch)
                        .await?,
                );
            }
            3 => {
                let change = |config: &mut ConfigMap| {
                    config
                        .data
                        .get_or_insert_default()
                        .insert("x".to_owned(), "3".to_owned());
                    Ok::<_, ReconcileError>(()).map_err(|_| "never")
                };
                let fresh = || named("default", "a");
                drop(create_or_update(&api, Some(&config), fresh, change).await?);
            }
            4 => {
                let patch = Patch::Merge(json!({ "data": { "x": "4" } }));
                ctx.wrote(&api.patch("a", &PatchParams::default(), &patch).await?);
            }
            5 => drop(finalizer::remove(&api, &*config, "example.dev/a").await?),
            _ => return Ok(Action::Done),
        }
        Ok(Action::RequeueAfter(Duration::ZERO))
    }
}

/// The function of the crate writes, and the next run, asked for at once, finds the cache level.
///
/// How often a key was held back for it.
async fn every_write_is_seen_by_the_next_run(client: Client, mut harness: Harness) -> u64 {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let configs: Informer<ConfigMap> = Informer::new(harness.client(), Default::default()).unwrap();
    let seen = Arc::default();
    let writer = Writer {
        client: harness.client(),
        configs: configs.lister(),
        seen: Arc::clone(&seen),
    };
    let controller = Controller::builder(unique("writer"), writer)
        .for_object(&configs)
        .build()
        .unwrap();
    let handle = controller.handle();
    harness.run(
        Manager::default()
            .add_informer(&configs)
            .add_controller(controller),
    );
    api.create(&PostParams::default(), &named("", "a"))
        .await
        .unwrap();
    harness
        .until("six runs", || {
            (seen.lock().unwrap().len() >= 6).then_some(())
        })
        .await;
    for (run, (cached, live)) in seen.lock().unwrap().iter().enumerate() {
        assert_eq!(cached, live, "run {}", run + 1);
    }
    let metrics = handle.metrics();
    assert_eq!(metrics.stale_reconciles, 0);
    harness.stop().await.unwrap();
    metrics.stale_skips
}

#[tokio::test(start_paused = true)]
async fn c77_embedded_every_kind_of_write_is_seen_by_the_next_run() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let harness = Harness::over(cluster.client());
    let held = Box::pin(every_write_is_seen_by_the_next_run(
        cluster.client(),
        harness,
    ))
    .await;
    assert!(held > 0, "the cache never lagged, so nothing was proven");
}

#[tokio::test]
async fn c77_real_every_kind_of_write_is_seen_by_the_next_run() {
    let Some((_cluster, client)) = crate::servers::real().await else {
        return;
    };
    let harness = Harness::over(client.clone());
    let held = Box::pin(every_write_is_seen_by_the_next_run(client, harness)).await;
    assert!(held > 0, "the cache never lagged, so nothing was proven");
}
