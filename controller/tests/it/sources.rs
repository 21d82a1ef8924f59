//! Sources: which events of which objects reach the reconciler, and at which priority.

use std::sync::Arc;

use controller::predicate::{generation_changed, resource_version_changed};
use controller::{Action, Controller, ControllerOptions, Error, Manager, ObjectKey, Source};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Scene, Scripting, Stage, config, key, ms, object, owned_by, pass, unique};

/// Runs a controller over the three kinds; everything stops with the value.
struct Running {
    reconciler: Scripting,
    configs: Scene<ConfigMap>,
    pods: Scene<Pod>,
    secrets: Scene<Secret>,
    _task: JoinSet<()>,
}

impl Running {
    fn start(
        [configs, pods, secrets]: [&[&str]; 3],
        sources: impl FnOnce(
            controller::ControllerBuilder<Scripting>,
            &Scene<ConfigMap>,
            &Scene<Pod>,
            &Scene<Secret>,
        ) -> Result<Controller, controller::Error>,
    ) -> Self {
        let configs = Scene::listing(configs.iter().map(|name| config(name, 1)).collect());
        let pods = Scene::listing(pods.iter().map(|name| object(name, 1)).collect());
        let secrets = Scene::listing(secrets.iter().map(|name| object(name, 1)).collect());
        let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
        let builder = Controller::builder(unique("sources"), reconciler.clone());
        let controller = sources(builder, &configs, &pods, &secrets).unwrap();
        let manager = Manager::default()
            .add_informer(&configs.informer)
            .add_informer(&pods.informer)
            .add_informer(&secrets.informer)
            .add_controller(controller);
        let mut task = JoinSet::new();
        task.spawn(async move { manager.run(CancellationToken::new()).await.unwrap() });
        Self {
            reconciler,
            configs,
            pods,
            secrets,
            _task: task,
        }
    }

    /// Names and priorities of the calls since the last look.
    async fn calls(&self, seen: &mut usize) -> Vec<(String, i32)> {
        pass(ms(100)).await;
        let calls = self.reconciler.calls().split_off(*seen);
        *seen += calls.len();
        let mut calls: Vec<_> = calls
            .iter()
            .map(|call| (call.key.name().to_owned(), call.ctx.priority()))
            .collect();
        calls.sort_unstable();
        calls
    }
}

fn expect(calls: &[(&str, i32)]) -> Vec<(String, i32)> {
    calls
        .iter()
        .map(|(name, priority)| ((*name).to_owned(), *priority))
        .collect()
}

fn owner(name: &str, controller: bool) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        controller: Some(controller),
        block_owner_deletion: None,
    }
}

#[tokio::test(start_paused = true)]
async fn k5_the_object_itself_is_enqueued_once_by_each_kind_of_event() {
    let run = Running::start([&["a", "b"], &[], &[]], |builder, configs, _, _| {
        builder.for_object(&configs.informer).build()
    });
    let mut seen = 0;
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[("a", -100), ("b", -100)]),
        "initial list"
    );
    run.configs.add(config("c", 1001));
    assert_eq!(run.calls(&mut seen).await, expect(&[("c", 0)]));
    run.configs.modify(config("c", 1002));
    assert_eq!(run.calls(&mut seen).await, expect(&[("c", 0)]));
    run.configs.delete(config("c", 1003));
    assert_eq!(run.calls(&mut seen).await, expect(&[("c", 0)]));
}

#[tokio::test(start_paused = true)]
async fn k5_an_owned_object_enqueues_its_owners_before_and_after_a_change() {
    let run = Running::start([&["a", "b", "c"], &[], &[]], |builder, configs, pods, _| {
        builder
            .for_object(&configs.informer)
            .owns(&pods.informer)
            .build()
    });
    let mut seen = 0;
    run.calls(&mut seen).await;
    run.pods.add(owned_by(
        object("p", 1001),
        vec![owner("a", true), owner("b", false)],
    ));
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[("a", 0), ("b", 0)]),
        "all owners count"
    );
    run.pods.modify(owned_by(
        object("p", 1002),
        vec![owner("c", true), owner("b", false)],
    ));
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[("a", 0), ("b", 0), ("c", 0)])
    );
    run.pods
        .delete(owned_by(object("p", 1003), vec![owner("c", true)]));
    assert_eq!(run.calls(&mut seen).await, expect(&[("c", 0)]));
}

#[tokio::test(start_paused = true)]
async fn k5_only_the_controlling_owner_if_so_asked() {
    let run = Running::start([&[], &[], &[]], |builder, _, pods, _| {
        builder
            .source(Source::controlled_by::<ConfigMap>(&pods.informer))
            .build()
    });
    let mut seen = 0;
    assert_eq!(run.calls(&mut seen).await, expect(&[]));
    run.pods.add(owned_by(
        object("p", 1001),
        vec![owner("a", true), owner("b", false)],
    ));
    assert_eq!(run.calls(&mut seen).await, expect(&[("a", 0)]));
}

#[tokio::test(start_paused = true)]
async fn c22_a_map_function_enqueues_what_it_names_each_once() {
    let run = Running::start([&[], &[], &["s"]], |builder, _, _, secrets| {
        let map = |secret: &Secret| {
            let version = secret.metadata.resource_version.clone().unwrap_or_default();
            vec![
                key("both"),
                key("both"),
                ObjectKey::namespaced("ns", version),
            ]
        };
        builder.watches(&secrets.informer, map).build()
    });
    let mut seen = 0;
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[("1", -100), ("both", -100)])
    );
    run.secrets.modify(object("s", 1001));
    let both_states = expect(&[("1", 0), ("1001", 0), ("both", 0)]);
    assert_eq!(run.calls(&mut seen).await, both_states);
}

#[tokio::test(start_paused = true)]
async fn c22_a_map_function_may_await_and_keeps_the_order_of_events() {
    let run = Running::start([&[], &[], &["s"]], |builder, _, _, secrets| {
        let map = |secret: Arc<Secret>| async move {
            // The older the object, the longer it takes.
            let version = secret.metadata.resource_version.clone().unwrap_or_default();
            tokio::time::sleep(ms(if version == "1001" { 50 } else { 5 })).await;
            vec![
                key("both"),
                key("both"),
                ObjectKey::namespaced("ns", version),
            ]
        };
        let source = Source::mapped_async(&secrets.informer, map);
        builder.source(source).build()
    });
    let mut seen = 0;
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[("1", -100), ("both", -100)]),
        "no reconcile before the initial list is mapped"
    );
    run.secrets.modify(object("s", 1001));
    run.secrets.modify(object("s", 1002));
    pass(ms(200)).await;
    let names = run.reconciler.names().split_off(2);
    assert_eq!(names, ["both", "1001", "1", "both", "1002", "1001"]);
}

#[tokio::test(start_paused = true)]
async fn c23_a_filter_keeps_events_from_the_queue() {
    let run = Running::start([&["a"], &[], &[]], |builder, configs, _, _| {
        let source = Source::object(&configs.informer)
            .filter(generation_changed())
            .filter(resource_version_changed());
        builder.source(source).build()
    });
    let mut seen = 0;
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[("a", -100)]),
        "creations pass"
    );
    run.configs.modify(config("a", 1001));
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[]),
        "a change outside of the spec"
    );
    let mut changed = config("a", 1002);
    changed.metadata.generation = Some(2);
    run.configs.modify(changed);
    assert_eq!(run.calls(&mut seen).await, expect(&[("a", 0)]));
    run.configs.delete(config("a", 1003));
    assert_eq!(
        run.calls(&mut seen).await,
        expect(&[("a", 0)]),
        "deletions pass"
    );
}

#[tokio::test(start_paused = true)]
async fn c08_a_source_may_be_added_after_the_start_and_not_after_the_end() {
    let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(100)).await;
    let pods = Scene::<Pod>::listing(vec![owned_by(object("p", 1), vec![owner("b", true)])]);
    let added = stage
        .handle
        .add_source(Source::controlled_by::<ConfigMap>(&pods.informer));
    let added = added.unwrap();
    let (stop, mut informer) = (CancellationToken::new(), JoinSet::new());
    let (running, token) = (pods.informer.clone(), stop.clone());
    informer.spawn(async move { running.run(token).await.unwrap() });
    added.synced().await;
    pass(ms(100)).await;
    assert_eq!(reconciler.names(), ["a", "b"]);

    let handle = stage.handle.clone();
    stage.close().await.unwrap();
    assert!(
        pods.informer.queue_lengths().is_empty(),
        "removed with the others"
    );
    let late = handle.add_source(Source::object(&pods.informer));
    assert!(matches!(late, Err(Error::Stopped { .. })), "{late:?}");
    assert!(pods.informer.queue_lengths().is_empty());
    stop.cancel();
    informer.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn c08_a_source_of_a_controller_that_never_runs_goes_with_it() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let idle = Scripting::answering(|_, _| Ok(Action::Done));
    let controller = Controller::builder(unique("idle"), idle)
        .for_object(&scene.informer)
        .build()
        .unwrap();
    let handle = controller.handle();
    handle.add_source(Source::object(&scene.informer)).unwrap();
    drop(controller);
    assert_eq!(scene.informer.queue_lengths().len(), 1);
    drop(handle);
    assert!(scene.informer.queue_lengths().is_empty());
}

#[tokio::test(start_paused = true)]
async fn c07_a_name_is_free_once_controller_and_handles_are_gone() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let name = unique("again");
    let build = || {
        let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
        Controller::builder(&name, reconciler)
            .for_object(&scene.informer)
            .build()
    };
    let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
    let controller = build().unwrap();
    let handle = controller.handle();
    running.spawn(controller.run(stop.clone()));
    pass(ms(100)).await;
    stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
    assert!(
        matches!(build(), Err(Error::NameTaken { .. })),
        "the handle holds it"
    );
    drop(handle);
    // The informer still has the handler, which it drops with its next event.
    build().unwrap();
}
