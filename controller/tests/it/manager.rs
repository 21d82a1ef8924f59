//! Starting and stopping in order, within the grace time, with every error reported.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::manager::Error;
use controller::{Action, Controller, Manager, ManagerOptions};
use informer::source;
use informer::source::scripted::ListAnswer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_core::Status;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, Scene, Scripting, config, key, ms, pass, unique};

type Log = Arc<Mutex<Vec<String>>>;

fn grace(seconds: u64) -> ManagerOptions {
    ManagerOptions {
        grace: Duration::from_secs(seconds),
        ..ManagerOptions::default()
    }
}

fn controller_over(scene: &Scene<ConfigMap>, name: &str, reconciler: Scripting) -> Controller {
    Controller::builder(unique(name), reconciler)
        .for_object(&scene.informer)
        .build()
        .unwrap()
}

/// Runs `manager` and stops it after `after`; gives the result and the time the stop took.
async fn stop_after(manager: Manager, after: Duration) -> (Result<(), Error>, Duration) {
    let stop = CancellationToken::new();
    let token = stop.clone();
    let (ended, stopped) = tokio::join!(
        async { (manager.run(token).await, Instant::now()) },
        async {
            pass(after).await;
            stop.cancel();
            Instant::now()
        }
    );
    (ended.0, ended.1 - stopped)
}

/// A run that notes when it begins and ends, and ends 2 s after it was cancelled.
fn slow_to_end(log: &Log) -> Scripting {
    let log = Arc::clone(log);
    Scripting::new(move |_, ctx, _| {
        let log = Arc::clone(&log);
        async move {
            log.lock().unwrap().push("reconcile begins".to_owned());
            ctx.cancelled().await;
            tokio::time::sleep(ms(2_000)).await;
            log.lock().unwrap().push("reconcile ends".to_owned());
            Ok(Action::Done)
        }
    })
}

fn never_ending() -> Scripting {
    Scripting::new(|_, _, _| pending::<Answer>())
}

#[tokio::test(start_paused = true)]
async fn k6_start_is_caches_tasks_controllers_and_stop_is_tasks_controllers_caches() {
    let log = Log::default();
    let scene = Scene::silent();
    let controller = controller_over(&scene, "order", slow_to_end(&log));
    let task_log = Arc::clone(&log);
    let informer = scene.informer.clone();
    let manager = Manager::new(grace(30))
        .add_controller(controller)
        .add_task("clock", move |stop| async move {
            let synced = informer.has_synced();
            task_log
                .lock()
                .unwrap()
                .push(format!("task begins, caches synced: {synced}"));
            stop.cancelled().await;
            tokio::time::sleep(ms(1_000)).await;
            task_log.lock().unwrap().push("task ends".to_owned());
            Ok::<(), std::convert::Infallible>(())
        })
        .add_informer(&scene.informer);
    scene.script.list(ListAnswer::all([config("a", 1)], "1000"));
    let stopped = scene.informer.clone();
    let watched = Arc::clone(&log);
    let (result, took) = tokio::join!(stop_after(manager, ms(5_000)), async {
        while !stopped.is_stopped() {
            tokio::time::sleep(ms(10)).await;
        }
        watched.lock().unwrap().push("caches end".to_owned());
    })
    .0;
    result.unwrap();
    assert_eq!(
        took.as_secs(),
        3,
        "1 s for the task, then 2 s for the reconcile"
    );
    let log = log.lock().unwrap().clone();
    let expected = [
        "task begins, caches synced: true",
        "reconcile begins",
        "task ends",
        "reconcile ends",
        "caches end",
    ];
    assert_eq!(log, expected);
}

#[tokio::test(start_paused = true)]
async fn k6_a_reconcile_longer_than_the_grace_time_is_dropped_and_named() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let manager = Manager::new(grace(30))
        .add_informer(&scene.informer)
        .add_controller(controller_over(&scene, "stuck", never_ending()));
    let (result, took) = stop_after(manager, ms(1_000)).await;
    assert_eq!(took.as_secs(), 30);
    let Err(Error::GraceExceeded { grace, running }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(grace.as_secs(), 30);
    let [dropped] = &running[..] else {
        panic!("{running:?}")
    };
    assert!(dropped.name.starts_with("controller stuck-"), "{dropped}");
    assert_eq!(dropped.keys, [key("a")]);
    assert!(dropped.to_string().ends_with(" (ns/a)"), "{dropped}");
    assert!(scene.informer.is_stopped());
}

#[tokio::test(start_paused = true)]
async fn k6_a_grace_of_0_waits_for_nothing_and_reports_nothing() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let manager = Manager::new(grace(0))
        .add_informer(&scene.informer)
        .add_controller(controller_over(&scene, "impatient", never_ending()));
    let (result, took) = stop_after(manager, ms(1_000)).await;
    result.unwrap();
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn k6_a_grace_for_ever_waits_as_long_as_it_takes() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let hours = Scripting::new(|_, ctx, _| async move {
        ctx.cancelled().await;
        tokio::time::sleep(Duration::from_secs(36_000)).await;
        Ok(Action::Done)
    });
    let options = ManagerOptions {
        grace: Duration::MAX,
        ..ManagerOptions::default()
    };
    let manager = Manager::new(options)
        .add_informer(&scene.informer)
        .add_controller(controller_over(&scene, "patient", hours));
    let (result, took) = stop_after(manager, ms(1_000)).await;
    result.unwrap();
    assert_eq!(took.as_secs(), 36_000);
}

#[tokio::test(start_paused = true)]
async fn k6_a_failing_task_stops_everything_and_errors_of_the_stop_are_reported_too() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let manager = Manager::new(grace(10))
        .add_informer(&scene.informer)
        .add_controller(controller_over(&scene, "stuck", never_ending()))
        .add_task("first", |_| async {
            tokio::time::sleep(ms(500)).await;
            Err(std::io::Error::other("disk full"))
        })
        .add_task("second", |stop: CancellationToken| async move {
            stop.cancelled().await;
            Err(std::io::Error::other("no flush"))
        });
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    let Error::Several { errors } = &error else {
        panic!("{error}")
    };
    assert_eq!(errors.len(), 3, "{error}");
    let text = error.to_string();
    let places = [
        "task first failed: disk full",
        "task second failed: no flush",
        "still running after the grace time of 10s: controller stuck-",
    ]
    .map(|part| {
        text.find(part)
            .unwrap_or_else(|| panic!("{part:?} in {text}"))
    });
    assert!(
        places.is_sorted(),
        "in the order in which they happened: {text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_well_ends_nothing_else() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let reconciler = Scripting::answering(|_, _| Ok(Action::RequeueAfter(ms(1_000))));
    let manager = Manager::default()
        .add_informer(&scene.informer)
        .add_controller(controller_over(&scene, "going-on", reconciler.clone()))
        .add_task("short", |_| async {
            Ok::<(), std::convert::Infallible>(())
        });
    let (result, _) = stop_after(manager, ms(10_500)).await;
    result.unwrap();
    assert_eq!(reconciler.calls().len(), 11);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_task_is_an_error_with_its_name() {
    let manager = Manager::default().add_task("shaky", |_| async {
        tokio::time::sleep(ms(1)).await;
        assert!(std::hint::black_box(false), "no luck");
        Ok::<(), std::convert::Infallible>(())
    });
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Panicked { name, .. } if name == "task shaky"),
        "{error}"
    );
    assert!(error.to_string().contains("no luck"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn c02_informers_without_their_list_in_time_are_an_error_that_names_kind_and_cause() {
    let (good, bad) = (
        Scene::listing(vec![config("a", 1)]),
        Scene::<ConfigMap>::silent(),
    );
    for _ in 0..64 {
        let status = Status::failure("etcd is away", "ServiceUnavailable").with_code(503);
        bad.script
            .list(ListAnswer::Fail(vec![], source::Error::status(status)));
    }
    let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
    let manager = Manager::default()
        .add_informer(&good.informer)
        .add_informer(&bad.informer)
        .add_controller(controller_over(&good, "unborn", reconciler.clone()));
    let start = Instant::now();
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(start.elapsed().as_secs(), 120);
    assert!(reconciler.calls().is_empty());
    let Error::SyncTimeout { unsynced, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(unsynced.len(), 1);
    let text = error.to_string();
    for part in ["ConfigMap", "unavailable", "etcd is away", "120s"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(good.informer.is_stopped() && bad.informer.is_stopped());
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_caches_have_synced_is_no_error() {
    let scene = Scene::<ConfigMap>::silent();
    let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
    let manager = Manager::default()
        .add_informer(&scene.informer)
        .add_controller(controller_over(&scene, "unborn", reconciler.clone()));
    let (result, took) = stop_after(manager, ms(7_000)).await;
    result.unwrap();
    assert!(took < ms(100), "{took:?}");
    assert!(reconciler.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_informer_added_twice_is_an_error_that_names_it() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let manager = Manager::default()
        .add_informer(&scene.informer)
        .add_informer(&scene.informer);
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    let Error::Failed { name, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(name, "informer of ConfigMap");
}
