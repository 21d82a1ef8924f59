//! Workers: how many run, what a panic or a deadline does, how they stop.

use std::collections::HashSet;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::{
    Action, Cancelled, Context, Controller, ControllerOptions, Manager, ObjectKey, Outcome,
    ReconcileError, Reconciler,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Scene, Scripting, Stage, config, key, ms, pass, unique};

fn options(workers: usize) -> ControllerOptions {
    ControllerOptions {
        workers,
        ..ControllerOptions::default()
    }
}

fn timeout(seconds: u64) -> ControllerOptions {
    let reconcile_timeout = Some(Duration::from_secs(seconds));
    ControllerOptions {
        reconcile_timeout,
        ..ControllerOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn c01_n_workers_share_the_queue_and_a_key_is_in_one_of_them() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let busy: Arc<std::sync::Mutex<HashSet<String>>> = Arc::default();
    let reconciler = {
        let (running, most, busy) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&busy));
        Scripting::new(move |key, _, _| {
            let (running, most, busy) =
                (Arc::clone(&running), Arc::clone(&most), Arc::clone(&busy));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                assert!(
                    busy.lock().unwrap().insert(key.to_string()),
                    "{key} runs twice"
                );
                tokio::time::sleep(ms(1000)).await;
                busy.lock().unwrap().remove(&key.to_string());
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(Action::Done)
            }
        })
    };
    let names: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let stage = Stage::open(&names, reconciler.clone(), options(4));
    // Half way through the first four: triggers while all workers are busy, for keys that run and
    // keys that wait.
    pass(ms(500)).await;
    for name in &names {
        stage.scene.modify(config(name, 1001));
    }
    pass(ms(400)).await;
    assert_eq!(stage.handle.queue().running, 4);
    pass(ms(9_000)).await;
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert_eq!(stage.handle.metrics().panics, 0, "a key was in two workers");
    let twice = reconciler
        .counts()
        .values()
        .filter(|count| **count == 2)
        .count();
    assert_eq!(
        twice,
        4,
        "those that ran run once more: {:?}",
        reconciler.counts()
    );
    assert_eq!(reconciler.calls().len(), 12, "those that waited run once");
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c10_each_run_has_an_id_of_its_own() {
    let reconciler = Scripting::answering(|_, n| match n {
        0..50 => Ok(Action::RequeueAfter(ms(1))),
        _ => Ok(Action::Done),
    });
    let stage = Stage::open(&["a", "b"], reconciler.clone(), options(2));
    pass(ms(1000)).await;
    let ids: HashSet<_> = reconciler
        .calls()
        .iter()
        .map(|call| call.ctx.id())
        .collect();
    assert_eq!(ids.len(), 102);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k3_a_panic_costs_its_key_a_failure_and_the_worker_lives() {
    let reconciler = Scripting::new(|key, _, n| async move {
        tokio::task::yield_now().await;
        assert!(key.name() != "bad" || n > 1, "no luck");
        Ok(Action::Done)
    });
    let stage = Stage::open(&["bad", "good"], reconciler.clone(), options(1));
    pass(ms(1000)).await;
    let attempts: Vec<_> = reconciler
        .calls()
        .iter()
        .filter(|call| call.key == key("bad"))
        .map(|call| call.ctx.attempt())
        .collect();
    assert_eq!(attempts, [1, 2, 3], "requeued like an error");
    assert_eq!(reconciler.times("good").len(), 1);
    let metrics = stage.handle.metrics();
    assert_eq!((metrics.panics, metrics.errors, metrics.success), (2, 2, 2));
    assert_eq!(metrics.active_workers, 0);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k3_a_panic_before_the_first_await_is_caught_as_well() {
    struct Eager;
    impl Reconciler for Eager {
        fn reconcile(
            &self,
            key: &ObjectKey,
            _: &Context,
        ) -> impl Future<Output = Result<Action, ReconcileError>> + Send {
            assert!(key.name() != "bad", "no luck");
            async { Ok(Action::Done) }
        }
    }
    let scene = Scene::listing(vec![config("bad", 1), config("good", 1)]);
    let controller = Controller::builder(unique("eager"), Eager)
        .for_object(&scene.informer)
        .build()
        .unwrap();
    let handle = controller.handle();
    let manager = Manager::default()
        .add_informer(&scene.informer)
        .add_controller(controller);
    let mut running = JoinSet::new();
    running.spawn(manager.run(CancellationToken::new()));
    pass(ms(100)).await;
    let metrics = handle.metrics();
    assert!(metrics.panics > 1, "{metrics:?}");
    assert_eq!(metrics.success, 1);
}

/// Lines of a log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Demands one line of log that has a panic's key, text, place and backtrace together.
fn assert_panic_is_told(log: &str, key: &str, message: &str, recovered: bool) {
    let mut lines = log
        .lines()
        .filter(|line| line.contains("reconcile panicked"));
    let line = lines.next().unwrap_or_else(|| panic!("no line in {log}"));
    for part in [
        " ERROR ".to_owned(),
        format!("k8s.resource.name=\"{key}\""),
        format!("exception.message=\"{message}\""),
        "exception.location=\"controller/tests/it/workers.rs:".to_owned(),
        format!("recovered={recovered}"),
    ] {
        assert!(line.contains(&part), "{part} in {line}");
    }
    // The backtrace has the frames of this file.
    let (_, trace) = line.split_once("exception.stacktrace=").unwrap();
    assert!(trace.contains("it::workers::"), "{trace}");
}

#[tokio::test(start_paused = true)]
async fn k3_the_log_of_a_panic_has_key_message_place_and_backtrace() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // So that no callsite that another test meets first is switched off for good.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);
    let reconciler = Scripting::new(|key, _, n| async move {
        assert!(key.name() != "bad" || n > 0, "no luck");
        Ok(Action::Done)
    });
    let stage = Stage::open(&["bad", "good"], reconciler, options(1));
    pass(ms(100)).await;
    stage.close().await.unwrap();
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert_panic_is_told(&log, "bad", "no luck", true);
    assert_eq!(log.matches("reconcile panicked").count(), 1);
}

/// Panics at its end, and as an error when it is printed.
#[derive(Debug)]
struct Brittle {
    in_display: bool,
    in_drop: bool,
}

impl std::fmt::Display for Brittle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        assert!(!self.in_display, "no text");
        f.write_str("brittle")
    }
}

impl std::error::Error for Brittle {}

impl Drop for Brittle {
    fn drop(&mut self) {
        // A second panic would end the process.
        assert!(!self.in_drop || std::thread::panicking(), "no end");
    }
}

#[tokio::test(start_paused = true)]
async fn c04_a_panic_of_what_a_run_leaves_behind_is_one_of_the_run() {
    let brittle = |in_display, in_drop| Brittle {
        in_display,
        in_drop,
    };
    let reconciler = Scripting::new(move |key, _, n| async move {
        match (key.name(), n) {
            ("printed", 0) => Err(brittle(true, false).into()),
            ("ended", 0) => Err(ReconcileError::terminal(brittle(false, true))),
            // Dropped a second after its deadline.
            ("endless", 0) => {
                let _held = brittle(false, true);
                std::future::pending().await
            }
            _ => Ok(Action::Done),
        }
    });
    let names = ["printed", "ended", "endless", "good"];
    let stage = Stage::open(&names, reconciler.clone(), timeout(3));
    pass(ms(10_000)).await;
    let counts: Vec<_> = reconciler.counts().into_iter().collect();
    let expected = [("ended", 2), ("endless", 2), ("good", 1), ("printed", 2)];
    assert_eq!(counts, expected.map(|(name, n)| (name.to_owned(), n)));
    let metrics = stage.handle.metrics();
    assert_eq!((metrics.panics, metrics.errors, metrics.success), (3, 3, 4));
    for (name, text) in [
        ("printed", "no text"),
        ("ended", "no end"),
        ("endless", "no end"),
    ] {
        let first = stage.handle.history(&key(name)).unwrap().runs.remove(0);
        let told = Outcome::Error(format!("reconcile panicked: {text}").into());
        assert_eq!(first.outcome, told, "{name}");
    }
    stage.close().await.unwrap();
}

/// Set in the child process that is to die of a panic.
const DIE: &str = "CONTROLLER_TEST_DIE_OF_PANIC";

#[test]
fn k3_a_panic_that_is_not_recovered_ends_the_process() {
    if std::env::var_os(DIE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        // What stands there is the log alone.
        std::panic::set_hook(Box::new(|_| {}));
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
        runtime.block_on(async {
            let reconciler = Scripting::new(|_, _, _| async { panic!("the end") });
            let options = ControllerOptions {
                recover_panic: false,
                ..ControllerOptions::default()
            };
            let stage = Stage::open(&["a"], reconciler, options);
            pass(Duration::from_secs(20)).await;
            stage.close().await.unwrap();
        });
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "workers::k3_a_panic_that_is_not_recovered_ends_the_process",
        ])
        .arg("--nocapture")
        .env(DIE, "1")
        .output()
        .unwrap();
    assert!(!child.status.success(), "the child survived: {child:?}");
    assert_eq!(child.status.code(), None, "ended by abort: {child:?}");
    let log = String::from_utf8_lossy(&child.stderr);
    assert_panic_is_told(&log, "a", "the end", false);
}

#[tokio::test(start_paused = true)]
async fn k3_a_run_past_its_deadline_is_cancelled_and_its_error_counts_as_timeout() {
    let reconciler = Scripting::new(|_, ctx, n| async move {
        if n > 0 {
            return Ok(Action::Done);
        }
        ctx.cancelled().await;
        assert_eq!(ctx.cause(), Some(Cancelled::Deadline));
        Err(ReconcileError::retry("gave up"))
    });
    let stage = Stage::open(&["a"], reconciler.clone(), timeout(3));
    pass(ms(10_000)).await;
    let times = reconciler.times("a");
    assert_eq!(times.len(), 2);
    assert!((3_005..3_010).contains(&times[1]), "{times:?}");
    let metrics = stage.handle.metrics();
    assert_eq!((metrics.timeouts, metrics.errors), (1, 1));
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k3_a_run_that_ignores_its_deadline_is_dropped_a_second_later() {
    let reconciler = Scripting::new(|_, _, n| async move {
        if n == 0 {
            std::future::pending::<()>().await;
        }
        Ok(Action::Done)
    });
    let stage = Stage::open(&["a"], reconciler.clone(), timeout(3));
    pass(ms(10_000)).await;
    let times = reconciler.times("a");
    assert_eq!(times.len(), 2, "{times:?}");
    assert!((4_005..4_010).contains(&times[1]), "{times:?}");
    assert_eq!(stage.handle.metrics().timeouts, 1);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k3_only_the_own_deadline_counts_as_timeout() {
    // An error before the deadline.
    let early = Scripting::new(|_, _, n| async move {
        tokio::time::sleep(ms(2_999)).await;
        if n == 0 {
            Err(ReconcileError::retry("early"))
        } else {
            Ok(Action::Done)
        }
    });
    // A success after the deadline.
    let late = Scripting::new(|_, ctx, _| async move {
        ctx.cancelled().await;
        Ok(Action::Done)
    });
    // Longer than any time, without a deadline.
    let unlimited = Scripting::new(|_, ctx, n| async move {
        assert_eq!(ctx.deadline(), None);
        tokio::time::sleep(ms(9_000)).await;
        if n == 0 {
            Err(ReconcileError::retry("slow"))
        } else {
            Ok(Action::Done)
        }
    });
    for (reconciler, limit, errors) in [(early, 3, 1), (late, 3, 0), (unlimited, 0, 1)] {
        let stage = Stage::open(&["a"], reconciler, timeout(limit));
        pass(ms(30_000)).await;
        let metrics = stage.handle.metrics();
        assert_eq!(
            (metrics.timeouts, metrics.errors, metrics.success),
            (0, errors, 1)
        );
        stage.close().await.unwrap();
    }
    // A run that has cancelled itself before its deadline.
    let cancels_itself = Scripting::new(|_, ctx, n| async move {
        if n > 0 {
            return Ok(Action::Done);
        }
        tokio::time::sleep(ms(1_000)).await;
        ctx.token().cancel();
        tokio::time::sleep(ms(2_200)).await;
        Err(ReconcileError::retry("of its own accord"))
    });
    let stage = Stage::open(&["a"], cancels_itself, timeout(3));
    pass(ms(30_000)).await;
    let metrics = stage.handle.metrics();
    assert_eq!(
        (metrics.timeouts, metrics.errors, metrics.success),
        (0, 1, 1)
    );
    stage.close().await.unwrap();
    // A stop, which cancels the run as well.
    let stopped = Scripting::new(|_, ctx, _| async move {
        ctx.cancelled().await;
        assert_eq!(ctx.cause(), Some(Cancelled::Stop));
        tokio::time::sleep(ms(3_500)).await;
        Err(ReconcileError::retry("stopped"))
    });
    let stage = Stage::open(&["a"], stopped, timeout(3));
    pass(ms(1_000)).await;
    let handle = stage.handle.clone();
    stage.close().await.unwrap();
    assert_eq!((handle.metrics().timeouts, handle.metrics().errors), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_beyond_all_time_is_none() {
    let reconciler = Scripting::new(|_, ctx, _| async move {
        assert_eq!(ctx.deadline(), None);
        Ok(Action::Done)
    });
    let options = ControllerOptions {
        reconcile_timeout: Some(Duration::MAX),
        ..ControllerOptions::default()
    };
    let stage = Stage::open(&["a"], reconciler, options);
    pass(ms(1_000)).await;
    assert_eq!(stage.handle.metrics().success, 1);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_cancels_its_own_token_ends_no_other() {
    let reconciler = Scripting::new(|_, ctx, _| async move {
        assert!(!ctx.is_cancelled());
        ctx.token().cancel();
        assert_eq!(ctx.cause(), None, "neither stop nor deadline has come");
        Ok(Action::Done)
    });
    let stage = Stage::open(&["a", "b"], reconciler.clone(), options(1));
    pass(ms(1_000)).await;
    stage.handle.trigger(key("a"));
    pass(ms(1_000)).await;
    assert_eq!(reconciler.calls().len(), 3);
    assert_eq!(stage.handle.metrics().success, 3);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_running_reconciles_end_and_starts_no_other() {
    let reconciler = Scripting::new(|_, ctx, _| async move {
        ctx.cancelled().await;
        tokio::time::sleep(ms(5_000)).await;
        Ok(Action::RequeueAfter(ms(1)))
    });
    let stage = Stage::open(&["a", "b", "c"], reconciler.clone(), options(2));
    pass(ms(1_000)).await;
    let handle = stage.handle.clone();
    assert_eq!((handle.queue().running, handle.queue().ready), (2, 1));
    stage.close().await.unwrap();
    assert_eq!(reconciler.calls().len(), 2);
    assert_eq!(
        handle.metrics().requeue_after,
        2,
        "both ended and were counted"
    );
    let queue = handle.queue();
    assert_eq!((queue.running, queue.delayed), (0, 0));
    handle.trigger(key("d"));
    assert_eq!(
        handle.queue().ready,
        1,
        "only c, which nobody took; d is ignored"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_controller_ends_its_runs_and_its_handlers() {
    struct CountDrop(Arc<AtomicUsize>);
    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let reconciler = {
        let dropped = Arc::clone(&dropped);
        Scripting::new(move |_, _, _| {
            let guard = CountDrop(Arc::clone(&dropped));
            async move {
                std::future::pending::<()>().await;
                drop(guard);
                Ok(Action::Done)
            }
        })
    };
    let mut stage = Stage::open(&["a", "b"], reconciler, options(2));
    pass(ms(1_000)).await;
    assert_eq!(stage.scene.informer.queue_lengths().len(), 1);
    stage.abort().await;
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
    assert_eq!(stage.handle.metrics().active_workers, 0);
    assert!(
        stage.scene.informer.queue_lengths().is_empty(),
        "the handler is removed"
    );
}

#[tokio::test(start_paused = true)]
async fn news_go_before_the_objects_of_the_initial_list() {
    let reconciler = Scripting::new(|_, _, _| async {
        tokio::time::sleep(ms(1_000)).await;
        Ok(Action::Done)
    });
    let stage = Stage::open(&["a", "b", "c", "d"], reconciler.clone(), options(1));
    pass(ms(500)).await;
    stage.scene.modify(config("d", 1001));
    stage.scene.add(config("e", 1002));
    pass(ms(10_000)).await;
    assert_eq!(reconciler.names(), ["a", "d", "e", "b", "c"]);
    stage.close().await.unwrap();
}
