//! A manager with an election: what runs when, and what a lost Lease does.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::election::{ElectionOptions, Elector};
use controller::manager::{Error, GroupName, Phase, Runnable, Stopping};
use controller::server::{Endpoint as _, PageRequest, readiness};
use controller::{Action, Controller, ControllerOptions, Manager, ManagerOptions};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leases::Leases;
use crate::support::{Scene, Scripting, config, ms, pass, unique};

type Log = Arc<Mutex<Vec<String>>>;
type Ok = Result<(), std::convert::Infallible>;

fn note(log: &Log, text: impl Into<String>) {
    log.lock().unwrap().push(text.into());
}

fn elector(leases: &Leases, identity: &str, rejoin: bool) -> Elector {
    let options = ElectionOptions {
        identity: identity.to_owned(),
        rejoin,
        ..ElectionOptions::new("ns", "lease")
    };
    Elector::new(leases.client(), options).unwrap()
}

fn grace(seconds: u64) -> ManagerOptions {
    ManagerOptions {
        grace: Duration::from_secs(seconds),
        ..ManagerOptions::default()
    }
}

/// Notes its begin, and its end `linger` after it was told to.
fn noting(log: &Log, name: &'static str, linger: Duration) -> Runnable {
    let log = Arc::clone(log);
    Runnable::new(name, move |stop: CancellationToken| async move {
        note(&log, format!("{name} begins"));
        stop.cancelled().await;
        tokio::time::sleep(linger).await;
        note(&log, format!("{name} ends"));
        Ok::<(), std::convert::Infallible>(())
    })
}

/// Notes when it is dropped.
struct Dropped(Log, &'static str);

impl Drop for Dropped {
    fn drop(&mut self) {
        note(&self.0, format!("{} dropped", self.1));
    }
}

#[tokio::test(start_paused = true)]
async fn c30_c31_groups_start_when_the_one_before_is_ready_and_stop_in_their_own_order() {
    let (log, leases) = (Log::default(), Leases::default());
    let scene = Scene::listing(vec![config("a", 1)]);
    let (ready, cache) = (Arc::clone(&log), scene.informer.clone());
    let webhook = noting(&log, "webhook", ms(1)).ready_when(async move {
        tokio::time::sleep(ms(3_000)).await;
        assert!(!cache.has_synced());
        note(&ready, "webhook is ready");
    });
    let leader = Arc::clone(&log);
    let manager = Manager::new(grace(30))
        .with_election(elector(&leases, "me", false))
        .add_leader_task("leading", move |stop| {
            let log = Arc::clone(&leader);
            async move {
                note(&log, "leader begins");
                stop.cancelled().await;
                tokio::time::sleep(ms(1)).await;
                note(&log, "leader ends");
                Ok::<(), std::convert::Infallible>(())
            }
        })
        .add(GroupName::Others, noting(&log, "other", ms(1)))
        .add_informer(&scene.informer)
        .add(GroupName::Webhooks, webhook)
        .add(GroupName::Servers, noting(&log, "server", ms(1)));
    let (directory, stop) = (manager.directory(), CancellationToken::new());
    let watch = async {
        pass(ms(2_000)).await;
        assert_eq!(*log.lock().unwrap(), ["server begins", "webhook begins"]);
        assert!(!scene.informer.has_synced(), "it waits for the webhook");
        assert_eq!(directory.phase(), Phase::Starting);
        assert_eq!(leases.holder(), "nobody knows");
        pass(ms(5_000)).await;
        assert_eq!(directory.phase(), Phase::Running);
        stop.cancel();
        while !scene.informer.is_stopped() {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        note(&log, "cache ends");
        assert_eq!(directory.phase(), Phase::Stopping);
    };
    let (result, ()) = tokio::join!(manager.run(stop.clone()), watch);
    result.unwrap();
    let expected = [
        "server begins",
        "webhook begins",
        "webhook is ready",
        "other begins",
        "leader begins",
        "other ends",
        "leader ends",
        "cache ends",
        "webhook ends",
        "server ends",
    ];
    assert_eq!(*log.lock().unwrap(), expected);
    assert_eq!(leases.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn c30_what_is_not_ready_in_time_is_named() {
    let never = Runnable::new("webhook", |stop: CancellationToken| async move {
        stop.cancelled().await;
        Ok::<(), std::convert::Infallible>(())
    })
    .ready_when(pending());
    let start = Instant::now();
    let manager = Manager::default().add(GroupName::Webhooks, never);
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "not ready within 120s: webhook");
    assert_eq!(start.elapsed().as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn c30_each_of_several_runnables_of_one_name_must_be_ready() {
    let log = Log::default();
    let webhook = |wait: Duration| {
        noting(&log, "webhook", ms(1)).ready_when(async move { tokio::time::sleep(wait).await })
    };
    let manager = Manager::new(grace(30))
        .add(GroupName::Webhooks, webhook(ms(1_000)))
        .add(GroupName::Webhooks, webhook(ms(5_000)))
        .add(GroupName::Others, noting(&log, "other", ms(1)));
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(4_500)).await;
        assert_eq!(*log.lock().unwrap(), ["webhook begins", "webhook begins"]);
        pass(ms(1_000)).await;
        assert_eq!(log.lock().unwrap().last().unwrap(), "other begins");
        stop.cancel();
    });
    result.unwrap();

    let late = [ms(1_000), Duration::MAX].map(|wait| (GroupName::Webhooks, webhook(wait)));
    let manager = late
        .into_iter()
        .fold(Manager::default(), |manager, (group, webhook)| {
            manager.add(group, webhook)
        });
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "not ready within 120s: webhook");
}

#[tokio::test(start_paused = true)]
async fn c30_nothing_is_kept_of_the_readiness_of_what_is_added_after_the_last_group() {
    let (log, held) = (Log::default(), Arc::new(()));
    let manager = Manager::new(grace(30)).add(GroupName::Others, noting(&log, "first", ms(1)));
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(1_000)).await;
        for group in [GroupName::Servers, GroupName::Others] {
            let token = Arc::clone(&held);
            let late = noting(&log, "late", ms(1)).ready_when(async move {
                pending::<()>().await;
                drop(token);
            });
            handle.add(group, late).unwrap();
        }
        pass(ms(1)).await;
        assert_eq!(log.lock().unwrap().len(), 3, "all have begun");
        assert_eq!(Arc::strong_count(&held), 1, "nobody waits for it");
        stop.cancel();
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c30_a_controller_that_needs_no_leadership_runs_on_every_process() {
    let leases = Leases::default();
    leases.hold("other");
    let scene = Scene::listing(vec![config("a", 1)]);
    let controller = |name: &str, needs_leadership| {
        let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
        let controller = Controller::builder(unique(name), reconciler.clone())
            .for_object(&scene.informer)
            .options(ControllerOptions {
                needs_leadership,
                ..ControllerOptions::default()
            })
            .build()
            .unwrap();
        (controller, reconciler)
    };
    let (free, free_runs) = controller("free", false);
    let (bound, bound_runs) = controller("bound", true);
    let made = Scripting::answering(|_, _| Ok(Action::Done));
    let (informer, shared) = (scene.informer.clone(), made.clone());
    let manager = Manager::new(grace(30))
        // One that rejoins: what needs no leadership may start once all the same.
        .with_election(elector(&leases, "me", true))
        .add_informer(&scene.informer)
        .add_controller(free)
        .add_controller_from("made", move || {
            Controller::builder(unique("made"), shared.clone())
                .for_object(&informer)
                .options(ControllerOptions {
                    needs_leadership: false,
                    ..ControllerOptions::default()
                })
                .build()
        });
    let (directory, handle) = (manager.directory(), manager.handle());
    let readiness = readiness(&directory);
    let ready = || {
        let request = PageRequest {
            subpath: "controllers",
            query: "",
        };
        readiness.answer(&request).status.is_success()
    };
    assert!(!ready(), "those two count on a standby as well");
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        handle.add_controller(bound).unwrap();
        pass(ms(5_000)).await;
        assert!(!directory.is_leader());
        assert_eq!(directory.controllers().len(), 3, "all are on record");
        let needs: Vec<_> = directory
            .controllers()
            .iter()
            .map(|controller| controller.needs_leadership())
            .collect();
        assert_eq!(needs, [true, false, false], "by name: bound, free, made");
        assert_eq!(free_runs.names(), ["a"]);
        assert_eq!(made.names(), ["a"]);
        assert!(bound_runs.calls().is_empty());
        assert!(ready());
        pass(ms(20_000)).await;
        assert!(directory.is_leader());
        assert_eq!(bound_runs.names(), ["a"]);
        leases.set_away(true);
        pass(ms(15_000)).await;
        scene.add(config("b", 2));
        pass(ms(1)).await;
        assert_eq!(free_runs.names(), ["a", "b"], "no term ends it");
        assert_eq!(bound_runs.names(), ["a"]);
        stop.cancel();
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c30_what_is_added_later_starts_at_once_and_c31_while_stopping_it_is_refused() {
    let (log, leases) = (Log::default(), Leases::default());
    leases.hold("other");
    let manager = Manager::new(grace(30))
        .with_election(elector(&leases, "me", false))
        .add(GroupName::Others, noting(&log, "first", ms(5_000)));
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let scene = Scene::listing(vec![config("a", 1)]);
    let watch = async {
        pass(ms(1_000)).await;
        handle
            .add(GroupName::Others, noting(&log, "second", ms(1)))
            .unwrap();
        handle
            .add(GroupName::Servers, noting(&log, "server", ms(1)))
            .unwrap();
        handle
            .add(GroupName::LeaderElected, noting(&log, "leader", ms(1)))
            .unwrap();
        handle.add_informer(&scene.informer).unwrap();
        pass(ms(1)).await;
        let begun = ["first begins", "second begins", "server begins"];
        assert_eq!(*log.lock().unwrap(), begun, "no leader yet");
        assert!(scene.informer.has_synced());
        pass(ms(20_000)).await;
        assert_eq!(log.lock().unwrap().last().unwrap(), "leader begins");
        handle
            .add(GroupName::LeaderElected, noting(&log, "late", ms(1)))
            .unwrap();
        pass(ms(1)).await;
        assert_eq!(log.lock().unwrap().last().unwrap(), "late begins");
        stop.cancel();
        pass(ms(1)).await;
        let refused = handle.add(GroupName::Others, noting(&log, "never", ms(1)));
        assert!(matches!(refused, Err(Stopping { .. })), "{refused:?}");
    };
    let (result, ()) = tokio::join!(manager.run(stop.clone()), watch);
    result.unwrap();
    assert!(!log.lock().unwrap().contains(&"never begins".to_owned()));
    assert!(
        handle.add_informer(&scene.informer).is_err(),
        "it has ended"
    );
}

#[tokio::test(start_paused = true)]
async fn k6_the_lease_is_given_back_last_after_every_reconcile_has_ended() {
    let leases = Leases::default();
    let scene = Scene::listing((0..100).map(|n| config(&format!("c{n}"), 1)).collect());
    let ended = Arc::new(Mutex::new(Vec::new()));
    let ends = Arc::clone(&ended);
    let reconciler = Scripting::new(move |key, ctx, _| {
        let ends = Arc::clone(&ends);
        async move {
            ctx.cancelled().await;
            // Longer than a lease, so that it must have been renewed meanwhile.
            let wait = 100 * key.name()[1..].parse::<u64>().unwrap();
            tokio::time::sleep(ms(10_000 + wait)).await;
            ends.lock().unwrap().push(Instant::now());
            Ok(Action::Done)
        }
    });
    let controller = Controller::builder(unique("hundred"), reconciler)
        .for_object(&scene.informer)
        .options(ControllerOptions {
            workers: 100,
            ..ControllerOptions::default()
        })
        .build()
        .unwrap();
    let manager = Manager::new(grace(30))
        .with_election(elector(&leases, "me", false))
        .add_informer(&scene.informer)
        .add_controller(controller);
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(1_000)).await;
        stop.cancel();
    });
    result.unwrap();
    let ended = ended.lock().unwrap();
    assert_eq!(ended.len(), 100);
    let [released] = leases.releases()[..] else {
        panic!("given back once")
    };
    assert!(ended.iter().all(|end| *end <= released));
    assert!(scene.informer.is_stopped());
}

#[tokio::test(start_paused = true)]
async fn c34_losing_the_lease_drops_everything_without_grace_and_is_an_error() {
    let (log, leases) = (Log::default(), Leases::default());
    let scene = Scene::listing(vec![config("a", 1)]);
    let drops = Arc::clone(&log);
    let reconciler = Scripting::new(move |_, _, _| {
        let _dropped = Dropped(Arc::clone(&drops), "reconcile");
        async move {
            let _dropped = _dropped;
            pending().await
        }
    });
    let controller = Controller::builder(unique("deposed"), reconciler)
        .for_object(&scene.informer)
        .build()
        .unwrap();
    let other = Arc::clone(&log);
    let manager = Manager::new(grace(30))
        .with_election(elector(&leases, "me", false))
        .add_informer(&scene.informer)
        .add_task("other", move |_| async move {
            let _dropped = Dropped(other, "task");
            pending::<Ok>().await
        })
        .add_controller(controller);
    let watch = async {
        pass(ms(1_000)).await;
        leases.set_away(true);
        Instant::now()
    };
    let (result, away) = tokio::join!(manager.run(CancellationToken::new()), watch);
    let error = result.unwrap_err();
    assert!(error.is_lease_lost(), "{error}");
    assert!(matches!(error, Error::Election(_)), "{error}");
    // Renewed last less than 2 s before; the deadline is 10 s.
    let took = (Instant::now() - away).as_secs_f64();
    assert!((8.0..10.1).contains(&took), "{took}");
    // What needs the Lease goes first, though it is stopped later otherwise.
    assert_eq!(*log.lock().unwrap(), ["reconcile dropped", "task dropped"]);
}

#[tokio::test(start_paused = true)]
async fn c34_a_lease_lost_during_the_stop_ends_the_grace_of_what_needs_it() {
    let (log, leases) = (Log::default(), Leases::default());
    let drops = Arc::clone(&log);
    let manager = Manager::new(grace(60))
        .with_election(elector(&leases, "me", false))
        .add_leader_task("slow", move |_| {
            let dropped = Dropped(Arc::clone(&drops), "leader");
            async move {
                let _dropped = dropped;
                pending::<Ok>().await
            }
        });
    let stop = CancellationToken::new();
    let (result, stopped) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(1_000)).await;
        stop.cancel();
        let stopped = Instant::now();
        pass(ms(5_000)).await;
        assert!(log.lock().unwrap().is_empty());
        leases.set_away(true);
        stopped
    });
    let error = result.unwrap_err();
    assert!(error.is_lease_lost(), "{error}");
    assert!((Instant::now() - stopped).as_secs() < 17);
    assert_eq!(*log.lock().unwrap(), ["leader dropped"]);
}

#[tokio::test(start_paused = true)]
async fn c34_a_lease_lost_while_an_earlier_group_stops_drops_what_needs_it_at_once() {
    let (log, leases) = (Log::default(), Leases::default());
    let drops = Arc::clone(&log);
    let manager = Manager::new(grace(60))
        .with_election(elector(&leases, "me", false))
        .add(GroupName::Others, noting(&log, "other", ms(40_000)))
        .add_leader_task("leading", move |_| {
            let dropped = Dropped(Arc::clone(&drops), "leader");
            async move {
                let _dropped = dropped;
                pending::<Ok>().await
            }
        });
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(1_000)).await;
        stop.cancel();
        pass(ms(5_000)).await;
        assert_eq!(*log.lock().unwrap(), ["other begins"]);
        leases.set_away(true);
        // The renew deadline and the time since the last renewal.
        pass(ms(12_100)).await;
        assert_eq!(*log.lock().unwrap(), ["other begins", "leader dropped"]);
    });
    let error = result.unwrap_err();
    assert!(error.is_lease_lost(), "{error}");
    assert!(!error.to_string().contains("grace"), "{error}");
    let log = log.lock().unwrap();
    assert_eq!(*log, ["other begins", "leader dropped", "other ends"]);
}

// Real time, since only a second thread can look on while the first is blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn k6_the_lease_is_left_to_expire_while_a_reconcile_blocks_its_thread() {
    let leases = Leases::default();
    let scene = Scene::listing(vec![config("a", 1)]);
    let (begins, mut begun) = tokio::sync::mpsc::channel(1);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let reconciler = Scripting::new(move |_, _, _| {
        let (begins, released) = (begins.clone(), Arc::clone(&released));
        async move {
            begins.send(()).await.unwrap();
            // Until the test lets go: its end drops the sender.
            let _ = released.lock().unwrap().recv();
            Ok(Action::Done)
        }
    });
    let controller = Controller::builder(unique("blocking"), reconciler)
        .for_object(&scene.informer)
        .build()
        .unwrap();
    let options = ManagerOptions {
        grace: ms(50),
        ..ManagerOptions::default()
    };
    let manager = Manager::new(options)
        .with_election(elector(&leases, "me", false))
        .add_informer(&scene.informer)
        .add_controller(controller);
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        begun.recv().await.unwrap();
        stop.cancel();
    });
    let text = result.unwrap_err().to_string();
    assert!(text.contains("still running after the grace"), "{text}");
    assert_eq!(leases.holder(), "me", "the reconcile still runs");
    assert!(leases.releases().is_empty());
    drop(release);
}

// Real time, as above.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn c49_a_stop_ends_the_wait_for_what_a_lost_term_has_left_blocked() {
    let leases = Leases::default();
    let (begins, mut begun) = tokio::sync::mpsc::channel(1);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let options = ManagerOptions {
        grace: ms(50),
        ..ManagerOptions::default()
    };
    let election = ElectionOptions {
        identity: "me".to_owned(),
        rejoin: true,
        lease_duration: Duration::from_secs(1),
        renew_deadline: ms(300),
        retry_period: ms(100),
        ..ElectionOptions::new("ns", "lease")
    };
    let elector = Elector::new(leases.client(), election).unwrap();
    let handle = elector.handle();
    let manager = Manager::new(options)
        .with_election(elector)
        .add_leader_task("blocking", move |_| {
            let (begins, released) = (begins.clone(), Arc::clone(&released));
            async move {
                begins.send(()).await.unwrap();
                // Until the test lets go: its end drops the sender.
                let _ = released.lock().unwrap().recv();
                Ok::<(), std::convert::Infallible>(())
            }
        });
    let stop = CancellationToken::new();
    let limit = Duration::from_secs(30);
    let ended = tokio::time::timeout(limit, async {
        tokio::join!(manager.run(stop.clone()), async {
            begun.recv().await.unwrap();
            leases.set_away(true);
            while handle.is_leader() {
                tokio::time::sleep(ms(10)).await;
            }
            // The manager has seen the end of the term, and waits for the work.
            tokio::time::sleep(ms(50)).await;
            stop.cancel();
        })
    });
    let (result, ()) = ended.await.expect("the stop has a limit");
    let text = result.unwrap_err().to_string();
    assert!(
        text.contains("still running after the grace") && text.contains("blocking"),
        "{text}"
    );
    drop(release);
}

#[tokio::test(start_paused = true)]
async fn c34_what_failed_during_the_stop_is_reported_beside_the_lost_lease() {
    let leases = Leases::default();
    let fails_when_told = |name: &'static str| {
        move |stop: CancellationToken| async move {
            stop.cancelled().await;
            Err::<(), _>(std::io::Error::other(format!("{name}'s disk is full")))
        }
    };
    let manager = Manager::new(grace(60))
        .with_election(elector(&leases, "me", false))
        .add_leader_task("stuck", |_| pending::<Ok>())
        .add_leader_task("leading", fails_when_told("leading"));
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(1_000)).await;
        stop.cancel();
        pass(ms(1_000)).await;
        leases.set_away(true);
    });
    let error = result.unwrap_err();
    assert!(error.is_lease_lost(), "{error}");
    assert!(error.to_string().contains("leading's disk"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn c34_a_manager_that_stops_as_a_standby_never_leads() {
    let (log, leases) = (Log::default(), Leases::default());
    leases.hold("other");
    let leader = Arc::clone(&log);
    let manager = Manager::new(grace(60))
        .with_election(elector(&leases, "me", false))
        .add_leader_task("leading", move |_| {
            note(&leader, "leads");
            async { Ok::<(), std::convert::Infallible>(()) }
        })
        // Keeps the stop going for longer than the other's lease.
        .add(GroupName::Others, noting(&log, "other", ms(40_000)));
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(1_000)).await;
        stop.cancel();
    });
    result.unwrap();
    assert_eq!(leases.holder(), "other");
    assert_eq!(*log.lock().unwrap(), ["other begins", "other ends"]);
}

#[tokio::test(start_paused = true)]
async fn k6_errors_of_runnables_and_of_the_stop_are_both_reported_beside_an_election() {
    let leases = Leases::default();
    let manager = Manager::new(grace(5))
        .with_election(elector(&leases, "me", false))
        .add_leader_task("stuck", |_| pending::<Ok>())
        .add_task("failing", |_| async {
            tokio::time::sleep(ms(3_000)).await;
            Err(std::io::Error::other("disk full"))
        });
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    let text = error.to_string();
    for part in [
        "task failing failed: disk full",
        "still running after the grace time of 5s: task stuck",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // What was dropped has ended, so the Lease could be given back.
    assert_eq!(leases.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn c49_a_manager_that_rejoins_leads_again_with_fresh_workers() {
    let leases = Leases::default();
    let scene = Scene::listing(vec![config("a", 1)]);
    let reconciler = Scripting::answering(|_, _| Ok(Action::RequeueAfter(ms(1_000))));
    let (informer, shared, name) = (
        scene.informer.clone(),
        reconciler.clone(),
        unique("rejoining"),
    );
    let made = Arc::new(Mutex::new(0));
    let count = Arc::clone(&made);
    let manager = Manager::new(grace(30))
        .with_election(elector(&leases, "me", true))
        .add_informer(&scene.informer)
        // Any name does for messages; the controllers have their own.
        .add_controller_from("controllers of configs", move || {
            *count.lock().unwrap() += 1;
            Controller::builder(name.clone(), shared.clone())
                .for_object(&informer)
                .build()
        });
    let (directory, stop) = (manager.directory(), CancellationToken::new());
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(5_000)).await;
        assert!(directory.is_leader());
        let before = reconciler.calls().len();
        assert!(before >= 4);
        leases.set_away(true);
        pass(ms(15_000)).await;
        assert!(!directory.is_leader());
        let lost = reconciler.calls().len();
        pass(ms(10_000)).await;
        assert_eq!(reconciler.calls().len(), lost, "no work without the Lease");
        leases.set_away(false);
        // A call that hangs takes 5 s, the next try comes within 4.4 s.
        pass(ms(20_000)).await;
        assert!(directory.is_leader());
        assert!(reconciler.calls().len() > lost + 3);
        assert_eq!(*made.lock().unwrap(), 2);
        assert_eq!(directory.controllers().len(), 1, "that of the present term");
        stop.cancel();
    });
    result.unwrap();
    assert_eq!(leases.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn c09_c49_a_controller_made_for_each_term_warms_up_before_each() {
    let leases = Leases::default();
    leases.hold("other");
    let scene = Scene::listing(vec![config("a", 1), config("b", 1)]);
    let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
    let (informer, shared, name) = (scene.informer.clone(), reconciler.clone(), unique("warm"));
    let manager = Manager::new(grace(30))
        .with_election(elector(&leases, "me", true))
        .add_informer(&scene.informer)
        .add_controller_from("warm", move || {
            Controller::builder(name.clone(), shared.clone())
                .for_object(&informer)
                .options(ControllerOptions {
                    warm_up: true,
                    ..ControllerOptions::default()
                })
                .build()
        });
    let (directory, stop) = (manager.directory(), CancellationToken::new());
    let waits = |depth| {
        let [controller] = &directory.controllers()[..] else {
            panic!("one controller")
        };
        assert!(!directory.is_leader());
        assert!(controller.has_synced());
        assert_eq!(controller.queue().depth, depth);
    };
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(5_000)).await;
        waits(2);
        assert!(reconciler.calls().is_empty());
        pass(ms(20_000)).await;
        assert_eq!(reconciler.names().len(), 2);
        leases.set_away(true);
        pass(ms(15_000)).await;
        scene.add(config("c", 2));
        pass(ms(1)).await;
        waits(3);
        assert_eq!(reconciler.names().len(), 2, "no work without the Lease");
        leases.set_away(false);
        pass(ms(20_000)).await;
        assert!(directory.is_leader());
        assert_eq!(reconciler.names().len(), 5, "everything anew");
        assert_eq!(scene.informer.queue_lengths().len(), 1, "one handler");
        stop.cancel();
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c49_a_controller_that_cannot_be_made_is_told_before_this_process_leads() {
    let leases = Leases::default();
    leases.hold("other");
    let manager = Manager::default()
        .with_election(elector(&leases, "me", true))
        .add_controller_from("sourceless", || {
            let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
            Controller::builder(unique("sourceless"), reconciler).build()
        });
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(text, "controller sourceless failed");
    assert_eq!(leases.holder(), "other");
}

#[tokio::test(start_paused = true)]
async fn c49_what_starts_once_cannot_rejoin_and_is_named() {
    let leases = Leases::default();
    let scene = Scene::listing(vec![config("a", 1)]);
    let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
    let name = unique("once");
    let controller = Controller::builder(name.clone(), reconciler)
        .for_object(&scene.informer)
        .build()
        .unwrap();
    let manager = Manager::default()
        .with_election(elector(&leases, "me", true))
        .add_controller(controller);
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&name) && text.contains("add_controller_from"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn c09_k4_a_controller_that_warms_up_has_a_full_queue_and_reconciles_only_as_leader() {
    let leases = Leases::default();
    leases.hold("other");
    let scene = Scene::listing(vec![config("a", 1), config("b", 1)]);
    let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
    let controller = Controller::builder(unique("warm"), reconciler.clone())
        .for_object(&scene.informer)
        .options(ControllerOptions {
            warm_up: true,
            ..ControllerOptions::default()
        })
        .build()
        .unwrap();
    let handle = controller.handle();
    let manager = Manager::new(grace(30))
        .with_election(elector(&leases, "me", false))
        .add_informer(&scene.informer)
        .add_controller(controller);
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(manager.run(stop.clone()), async {
        pass(ms(5_000)).await;
        assert!(handle.has_synced());
        assert_eq!(handle.queue().depth, 2);
        assert!(reconciler.calls().is_empty());
        // The source is started once: a change is one more trigger, not two.
        scene.add(config("c", 2));
        pass(ms(20_000)).await;
        assert_eq!(reconciler.names().len(), 3);
        assert_eq!(scene.informer.queue_lengths().len(), 1, "one handler");
        stop.cancel();
    });
    result.unwrap();
}
