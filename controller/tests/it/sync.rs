//! The start: nothing is reconciled before every handler has its initial list.

use std::time::Duration;

use controller::{Action, Controller, ControllerOptions, Error, ObjectKey};
use informer::source;
use informer::source::scripted::{ListAnswer, Request};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_core::Status;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Scene, Scripting, config, ms, object, pass, unique};

/// A controller over ConfigMaps and Secrets, with its informers running.
struct Two {
    configs: Scene<ConfigMap>,
    secrets: Scene<Secret>,
    reconciler: Scripting,
    controller: Option<Controller>,
    stop: CancellationToken,
    _informers: JoinSet<()>,
}

impl Two {
    fn new(secrets: Scene<Secret>) -> Self {
        let configs = Scene::listing(vec![config("a", 1)]);
        let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
        let options = ControllerOptions {
            sync_timeout: Duration::from_secs(120),
            ..ControllerOptions::default()
        };
        let controller = Controller::builder(unique("two"), reconciler.clone())
            .for_object(&configs.informer)
            .watches(&secrets.informer, |secret: &Secret| {
                vec![ObjectKey::of(secret)]
            })
            .options(options)
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let mut informers = JoinSet::new();
        let (one, other) = (configs.informer.clone(), secrets.informer.clone());
        let tokens = (stop.clone(), stop.clone());
        informers.spawn(async move { one.run(tokens.0).await.unwrap() });
        informers.spawn(async move { other.run(tokens.1).await.unwrap() });
        let controller = Some(controller);
        Self {
            configs,
            secrets,
            reconciler,
            controller,
            stop,
            _informers: informers,
        }
    }

    fn take(&mut self) -> Controller {
        self.controller.take().expect("taken once")
    }
}

#[tokio::test(start_paused = true)]
async fn k4_no_reconcile_before_every_handler_has_its_initial_list() {
    let mut two = Two::new(Scene::silent());
    let controller = two.take();
    let handle = controller.handle();
    let mut running = JoinSet::new();
    running.spawn(controller.run(two.stop.clone()));
    pass(ms(30_000)).await;
    two.configs.modify(config("a", 1001));
    pass(ms(20_000)).await;
    assert!(
        two.reconciler.calls().is_empty(),
        "ConfigMaps are there, Secrets are not"
    );
    assert!(!handle.has_synced());
    assert_eq!(handle.queue().ready, 1, "the queue fills meanwhile");

    two.secrets
        .script
        .list(ListAnswer::all([object("s", 1)], "1000"));
    // The list call that hangs ends by its own timeout; the next one is answered.
    pass(ms(65_000)).await;
    assert!(handle.has_synced());
    let mut names = two.reconciler.names();
    names.sort_unstable();
    assert_eq!(names, ["a", "s"]);
    two.stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn c02_k4_no_reconcile_before_a_cache_that_is_only_read_has_its_initial_list() {
    for listed in [true, false] {
        let configs = Scene::listing(vec![config("a", 1)]);
        let read = Scene::<Secret>::silent();
        let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
        let controller = Controller::builder(unique("reading"), reconciler.clone())
            .for_object(&configs.informer)
            .reads(&read.informer)
            .build()
            .unwrap();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let (one, other) = (configs.informer.clone(), read.informer.clone());
        let tokens = (stop.clone(), stop.clone());
        tasks.spawn(async move { one.run(tokens.0).await.unwrap() });
        tasks.spawn(async move { other.run(tokens.1).await.unwrap() });
        let mut running = JoinSet::new();
        running.spawn(controller.run(stop.clone()));
        pass(ms(50_000)).await;
        assert!(
            reconciler.calls().is_empty(),
            "it would read an empty cache"
        );
        if listed {
            // The list call that hangs ends by its own timeout; the next one is answered.
            read.script
                .list(ListAnswer::all([object::<Secret>("s", 1)], "1000"));
            pass(ms(65_000)).await;
            assert_eq!(reconciler.names(), ["a"]);
            stop.cancel();
            running.join_next().await.unwrap().unwrap().unwrap();
        } else {
            let error = running.join_next().await.unwrap().unwrap().unwrap_err();
            let Error::SyncTimeout { unsynced, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((unsynced.len(), &*unsynced[0].name), (1, "Secret"));
            assert!(reconciler.calls().is_empty());
        }
        stop.cancel();
        tasks.join_all().await;
    }
}

#[tokio::test(start_paused = true)]
async fn k4_a_sync_timeout_names_the_kind_and_what_holds_it_up() {
    let secrets = Scene::silent();
    for _ in 0..64 {
        let forbidden =
            Status::failure("secrets is forbidden: no list for you", "Forbidden").with_code(403);
        secrets
            .script
            .list(ListAnswer::Fail(vec![], source::Error::status(forbidden)));
    }
    let mut two = Two::new(secrets);
    let start = tokio::time::Instant::now();
    let error = two.take().run(two.stop.clone()).await.unwrap_err();
    assert_eq!(start.elapsed().as_secs(), 120);
    assert!(two.reconciler.calls().is_empty());
    let Error::SyncTimeout {
        unsynced, timeout, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (unsynced.len(), timeout.as_secs()),
        (1, 120),
        "ConfigMaps are not named"
    );
    let text = error.to_string();
    for part in ["Secret", "forbidden", "no list for you", "120s"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn k4_a_stop_while_waiting_is_no_error() {
    let mut two = Two::new(Scene::silent());
    let stop = two.stop.clone();
    let (result, ()) = tokio::join!(two.take().run(two.stop.clone()), async {
        pass(ms(5_000)).await;
        stop.cancel();
    });
    result.unwrap();
    assert!(two.reconciler.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn c08_a_kind_that_is_missing_is_looked_for_until_the_sync_timeout() {
    let missing = || {
        let status = Status::failure(
            "the server could not find the requested resource",
            "NotFound",
        );
        ListAnswer::Fail(vec![], source::Error::status(status.with_code(404)))
    };
    let secrets = Scene::silent();
    for _ in 0..13 {
        secrets.script.list(missing());
    }
    secrets
        .script
        .list(ListAnswer::all([object("s", 1)], "1000"));
    let mut two = Two::new(secrets);
    let mut running = JoinSet::new();
    running.spawn(two.take().run(two.stop.clone()));
    // The waits double from 0.8 s up to 10 s, each up to twice as long.
    pass(ms(119_000)).await;
    let mut names = two.reconciler.names();
    names.sort_unstable();
    assert_eq!(names, ["a", "s"], "the kind was there at the last look");
    let lists: Vec<_> = two
        .secrets
        .script
        .requests()
        .iter()
        .filter(|request| request.summary().starts_with("list"))
        .map(Request::at)
        .collect();
    assert_eq!(lists.len(), 14);
    let most = lists.windows(2).map(|pair| pair[1] - pair[0]).max();
    let most = most.unwrap();
    assert!(most <= ms(10_001), "looked again after {most:?}");
    assert!(most >= ms(10_000), "and not in a rush: {most:?}");
    two.stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();

    let never = Scene::silent();
    for _ in 0..64 {
        never.script.list(missing());
    }
    let mut two = Two::new(never);
    let error = two.take().run(two.stop.clone()).await.unwrap_err();
    assert!(matches!(error, Error::SyncTimeout { .. }), "{error}");
    assert!(error.to_string().contains("could not find"), "{error}");
}

#[test]
fn a_controller_that_cannot_work_is_refused_at_build() {
    let idle = || Scripting::answering(|_, _| Ok(Action::Done));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _in_runtime = runtime.enter();
    let scene = Scene::listing(vec![config("a", 1)]);
    let build = |name: &str, workers| {
        Controller::builder(name, idle())
            .for_object(&scene.informer)
            .options(ControllerOptions {
                workers,
                ..ControllerOptions::default()
            })
            .build()
    };
    let name = unique("twice");
    let first = build(&name, 1).unwrap();
    assert!(matches!(build(&name, 1), Err(Error::NameTaken { .. })));
    assert_eq!(first.name(), name);
    assert!(matches!(
        build("no label", 1),
        Err(Error::InvalidName { .. })
    ));
    assert!(matches!(
        build(&unique("workers"), 0),
        Err(Error::InvalidOption {
            option: "workers",
            ..
        })
    ));
    let no_source = Controller::builder(unique("empty"), idle()).build();
    assert!(matches!(no_source, Err(Error::NoSource { .. })));
}
