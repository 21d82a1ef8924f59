//! How handlers and informers end, and that nothing of them stays: removals, stops and crashes.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use futures::FutureExt as _;
use informer::source::WatchEvent;
use informer::source::scripted::{ListAnswer, Scripted, WatchFeed};
use informer::{
    Delivery, Error, Event, Filtered, HandlerOptions, Informer, InformerOptions, OnPanic, OnStop,
    Registration,
};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;

use crate::support::*;

/// Runs a scenario in paused time on a thread of its own: one that waits for itself fails instead
/// of hanging.
fn in_time<F: Future<Output = ()>>(scenario: impl FnOnce() -> F + Send + 'static) {
    let (done, outcome) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime for one thread");
        runtime.block_on(scenario());
        done.send(()).expect("the test waits");
    });
    if outcome.recv_timeout(Duration::from_secs(30)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("the scenario waits for itself");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// An informer that has listed `a@1`, with its open watch.
async fn running() -> (
    Informer<ConfigMap>,
    Scripted<ConfigMap>,
    WatchFeed<ConfigMap>,
    Run,
) {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let run = Run::start(&informer);
    settle().await;
    (informer, source, feed, run)
}

#[test]
fn i90_a_stopped_informer_is_freed_whatever_its_handlers_hold() {
    for how in ["stop", "unfollow", "dropped run"] {
        in_time(move || async move {
            let (informer, source, feed, run) = running().await;
            for delivery in [Delivery::Task, Delivery::InPlace] {
                let (lister, own) = (informer.lister(), informer.clone());
                let handler = move |_: &Event<ConfigMap>| {
                    let _: (usize, &str) = (lister.list().len(), own.name());
                };
                let options = options(|o| o.delivery = delivery);
                informer
                    .add_handler_with("holds", handler, options)
                    .unwrap();
            }
            if how != "unfollow" {
                let stuck = |_: Event<ConfigMap>| std::future::pending::<()>();
                let options = HandlerOptions::default();
                informer.add_async_handler("stuck", stuck, options).unwrap();
            }
            feed.send(WatchEvent::Modified(object("a", 11)));
            settle().await;
            let lister = informer.lister();
            let object = Arc::downgrade(&lister.get(&key("a")).unwrap());
            match how {
                "stop" => run.end().await.unwrap(),
                "unfollow" => {
                    informer.unfollow();
                    let mut run = run;
                    run.outcome().await.unwrap();
                }
                _ => drop(run),
            }
            settle().await;
            drop((informer, source, feed));
            assert_eq!(
                lister.list().is_empty(),
                how == "unfollow",
                "a reader reads on"
            );
            drop(lister);
            assert_eq!(object.strong_count(), 0, "{how}: something holds the cache");
        });
    }
}

/// Part of a handler. Where it is dropped it asks the informer, which waits for its lock.
struct Held(Informer<ConfigMap>);

impl Drop for Held {
    fn drop(&mut self) {
        let _: usize = self.0.queue_lengths().len();
    }
}

/// Adds a handler that holds `held`; one that awaits never ends its first call.
fn add(informer: &Informer<ConfigMap>, form: &str, held: Arc<Held>) -> Registration {
    if form == "awaits" {
        let handler = move |_: Event<ConfigMap>| {
            let _: &str = held.0.name();
            std::future::pending::<()>()
        };
        let options = HandlerOptions::default();
        return informer.add_async_handler(form, handler, options).unwrap();
    }
    let handler = move |_: &Event<ConfigMap>| {
        let _: &str = held.0.name();
    };
    let options = match form {
        "in place" => options(|o| o.delivery = Delivery::InPlace),
        _ => HandlerOptions::default(),
    };
    informer.add_handler_with(form, handler, options).unwrap()
}

#[test]
fn h8_a_removed_handler_is_dropped_with_what_waits_for_it_before_the_next_event() {
    for form in ["awaits", "task", "in place"] {
        for started in [true, false] {
            in_time(move || async move {
                let (source, informer) = scripted(InformerOptions::default());
                source.list(ListAnswer::all([object("a", 1)], "10"));
                let feed = source.watch();
                let held = Arc::new(Held(informer.clone()));
                let handler = Arc::downgrade(&held);
                let registration = add(&informer, form, held);
                let run = started.then(|| Run::start(&informer));
                settle().await;
                let mut waiting = Weak::new();
                if started {
                    waiting = Arc::downgrade(&informer.lister().get(&key("a")).unwrap());
                    // One that is stuck in its first call has this before it, with what was there.
                    feed.send(WatchEvent::Modified(object("a", 11)));
                    settle().await;
                }
                registration.shutdown().await.unwrap();
                assert_eq!(handler.strong_count(), 0, "{form}, started: {started}");
                assert_eq!(waiting.strong_count(), 0, "{form}, started: {started}");
                assert!(informer.queue_lengths().is_empty());
                registration.shutdown().await.unwrap();
                drop(run);
            });
        }
    }
}

#[test]
fn h8_a_handler_that_removes_itself_is_dropped_when_its_call_has_ended() {
    for delivery in [Delivery::Task, Delivery::InPlace] {
        in_time(move || async move {
            let (informer, _source, feed, run) = running().await;
            let own: Arc<Mutex<Option<Registration>>> = Arc::default();
            let held = Arc::new(Held(informer.clone()));
            let (handler, slot) = (Arc::downgrade(&held), Arc::clone(&own));
            let once = move |_: &Event<ConfigMap>| {
                let _: &str = held.0.name();
                if let Some(own) = &*slot.lock() {
                    let refused = own.shutdown().now_or_never().expect("an answer at once");
                    assert!(matches!(refused, Err(Error::OwnCallback { .. })));
                }
            };
            let options = options(|o| o.delivery = delivery);
            let registration = informer.add_handler_with("once", once, options).unwrap();
            settle().await;
            *own.lock() = Some(registration);
            assert_eq!(handler.strong_count(), 1);
            feed.send(WatchEvent::Modified(object("a", 11)));
            settle().await;
            assert_eq!(handler.strong_count(), 0, "{delivery:?}");
            run.end().await.unwrap();
        });
    }
}

#[test]
fn h8_a_handler_in_place_may_remove_another_of_its_informer() {
    in_time(|| async {
        let (informer, _source, feed, run) = running().await;
        let in_place = options(|o| o.delivery = Delivery::InPlace);
        let log = Log::default();
        let other = Arc::new(Mutex::new(None::<Registration>));
        let slot = Arc::clone(&other);
        let removes = move |event: &Event<ConfigMap>| {
            if event.resource_version() == "12" {
                let other = slot.lock().take().expect("removed once");
                other.shutdown().now_or_never().unwrap().unwrap();
            }
        };
        informer
            .add_handler_with("removes", removes, in_place.clone())
            .unwrap();
        let registration = informer.add_handler_with("other", log.handler(), in_place);
        *other.lock() = Some(registration.unwrap());
        for version in 11..=13 {
            feed.send(WatchEvent::Modified(object("a", version)));
            settle().await;
        }
        assert_eq!(log.take(), ["+a@1!", "a@1~a@11"]);
        assert_eq!(informer.queue_lengths(), [("removes".to_owned(), 0)]);
        run.end().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h8_i85_a_removal_waits_for_a_call_that_runs_on_another_thread() {
    for delivery in [Delivery::Task, Delivery::InPlace] {
        let (source, informer) = scripted(InformerOptions::default());
        source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
        let _feed = source.watch();
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let first = Mutex::new(Some((began, may_go_on)));
        let log = Log::default();
        let told = log.clone();
        let handler = move |event: &Event<ConfigMap>| {
            told.push(format!("begin {}", show(event)));
            if let Some((began, may_go_on)) = first.lock().take() {
                began.send(()).expect("the test waits");
                may_go_on.recv().expect("the test goes on");
            }
            told.push("end".to_owned());
        };
        let options = options(|o| o.delivery = delivery);
        let registration = informer.add_handler_with("slow", handler, options).unwrap();
        let run = Run::start(&informer);
        has_begun.await.unwrap();
        let removed = log.clone();
        // A removal in place may hold up its thread, so it has one of its own.
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let outcome = runtime.unwrap().block_on(registration.shutdown());
            removed.push(format!("removed: {}", outcome.is_ok()));
        });
        // However long that takes, the removal must not be over while the call runs.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(log.take(), ["begin +a@1!"], "{delivery:?}");
        go_on.send(()).unwrap();
        tokio::task::spawn_blocking(move || removal.join().unwrap())
            .await
            .unwrap();
        run.end().await.unwrap();
        assert_eq!(log.take(), ["end", "removed: true"], "{delivery:?}");
    }
}

/// A handler for which an object of the name `bad` is too much.
fn bad(event: &Event<ConfigMap>) {
    assert_ne!(event.key().name(), "bad", "boom");
}

#[tokio::test(start_paused = true)]
async fn i90_h7_a_crash_ends_the_informer_in_order_wherever_the_handler_runs() {
    let forms = [
        "task",
        "awaits",
        "in place",
        "late in place",
        "while it drains",
        "told of the end",
        "told of the end in place",
    ];
    for form in forms {
        let (source, informer) = scripted(InformerOptions::default());
        let early =
            !form.starts_with("late") && !form.starts_with("told") && !form.contains("drain");
        let name = if early { "bad" } else { "good" };
        source.list(ListAnswer::all([object(name, 1), object("b", 2)], "10"));
        let feed = source.watch();
        let (log, told) = (Log::default(), Log::default());
        let crash = options(|o| {
            o.on_panic = OnPanic::Crash;
            o.on_stop = OnStop::Deliver;
            if form.ends_with("in place") {
                o.delivery = Delivery::InPlace;
            }
        });
        let other = options(|o| o.on_stop = OnStop::Deliver);
        informer
            .add_handler_with("other", log.handler(), other)
            .unwrap();
        let add = || match form {
            "awaits" => informer.add_async_handler(
                "crashes",
                |event: Event<ConfigMap>| async move { bad(&event) },
                crash.clone(),
            ),
            "while it drains" => {
                let told = told.clone();
                let slow = move |event: Event<ConfigMap>| {
                    let told = told.clone();
                    async move {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        told.push(show(&event));
                        bad(&event);
                    }
                };
                informer.add_async_handler("crashes", slow, crash.clone())
            }
            "told of the end" | "told of the end in place" => informer.add_handler_with(
                "crashes",
                |event: &Event<ConfigMap>| {
                    let gone = matches!(event, Event::Deleted { .. });
                    assert!(!gone, "boom");
                },
                crash.clone(),
            ),
            _ => {
                let told = told.clone();
                let handler = move |event: &Event<ConfigMap>| {
                    told.push(show(event));
                    bad(event);
                };
                informer.add_handler_with("crashes", handler, crash.clone())
            }
        };
        if !form.starts_with("late") {
            add().unwrap();
        }
        let mut run = Run::start(&informer);
        if !early {
            settle().await;
        }
        match form {
            "late in place" => {
                feed.send(WatchEvent::Added(object("bad", 11)));
                settle().await;
                assert!(!informer.is_stopped());
                add().expect("the run has the panic, not the one who adds");
            }
            "while it drains" => {
                // It is still at the first object when the stop comes, two before the bad one.
                let bad = WatchEvent::Added(object("bad", 11));
                feed.send_batch(vec![bad, WatchEvent::Added(object("c", 12))]);
                settle().await;
                assert_eq!(told.len(), 0);
                run.stop.cancel();
            }
            "told of the end" | "told of the end in place" => informer.unfollow(),
            _ => {}
        }
        let outcome = AssertUnwindSafe(run.outcome()).catch_unwind();
        let outcome = tokio::time::timeout(Duration::from_secs(5), outcome).await;
        let panic = outcome.expect(form).expect_err(form);
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        assert!(text.is_some_and(|text| text.contains("boom")), "{form}");
        assert!(informer.is_stopped(), "{form}");
        informer.stopped().await;
        assert_eq!(informer.stats().handler_panics, 1, "{form}");
        // The others have what came before the end, and the one that crashed nothing behind it.
        let all = log.take();
        assert!(
            all.iter().any(|event| event.contains("b@2")),
            "{form}: {all:?}"
        );
        let after = told
            .take()
            .into_iter()
            .skip_while(|event| !event.contains("bad"));
        assert_eq!(after.skip(1).count(), 0, "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn i82_i87_a_handler_that_awaits_goes_on_after_a_panic_and_counts_as_done() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("bad", 1), object("b", 2)], "10"));
    let _feed = source.watch();
    let log = Log::default();
    let told = log.clone();
    let handler = move |event: Event<ConfigMap>| {
        let told = told.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            bad(&event);
            told.push(show(&event));
        }
    };
    let options = HandlerOptions::default();
    let registration = informer
        .add_async_handler("awaits", handler, options)
        .unwrap();
    let run = Run::start(&informer);
    let synced = tokio::time::timeout(Duration::from_secs(5), registration.synced());
    synced.await.expect("a panic holds up no sync");
    assert_eq!(log.take(), ["+b@2!"]);
    assert_eq!(informer.stats().handler_panics, 1);
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i87_a_panic_of_a_filter_costs_its_event_alone() {
    let (informer, _source, feed, run) = running().await;
    let log = Log::default();
    let filter = |object: &ConfigMap| {
        assert_ne!(object.metadata.name.as_deref(), Some("bad"), "boom");
        true
    };
    let filtered = Filtered::new(filter, log.handler());
    informer.add_handler("filtered", filtered).unwrap();
    for name in ["bad", "c"] {
        feed.send(WatchEvent::Added(object(name, 11)));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(log.take(), ["+a@1!", "+c@11"]);
    assert_eq!(informer.stats().handler_panics, 1);
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i41_a_panic_of_the_error_handler_is_logged_and_the_informer_goes_on() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::INFO);
    let (source, informer) = scripted(InformerOptions::default());
    let calls = Log::default();
    let told = calls.clone();
    let handler = Arc::new(move |_: &informer::ReflectorError| {
        told.push("called".to_owned());
        panic!("boom");
    });
    informer.set_error_handler(handler).unwrap();
    source.list(ListAnswer::Fail(Vec::new(), refusal(500, "InternalError")));
    source.list(ListAnswer::Fail(Vec::new(), refusal(500, "InternalError")));
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let _feed = source.watch();
    let run = Run::start(&informer);
    informer.synced().await;
    assert_eq!(calls.len(), 2);
    let text = written.text();
    assert!(text.contains("error handler panicked"), "{text}");
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i87_panics_in_place_are_counted_each_and_logged_once_a_second() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::ERROR);
    let (informer, _source, feed, run) = running().await;
    let in_place = options(|o| o.delivery = Delivery::InPlace);
    let handler = |event: &Event<ConfigMap>| assert_eq!(event.key().name(), "a", "boom");
    informer
        .add_handler_with("here", handler, in_place)
        .unwrap();
    let panics = (0..300).map(|at| WatchEvent::Added(object(&format!("o{at}"), 11 + at)));
    feed.send_batch(panics.collect());
    settle().await;
    let lines = |text: &str| {
        text.lines()
            .filter(|line| line.contains("handler panicked"))
            .count()
    };
    assert_eq!(informer.stats().handler_panics, 300);
    assert_eq!(lines(&written.text()), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    feed.send(WatchEvent::Added(object("z", 999)));
    settle().await;
    let text = written.text();
    assert_eq!(lines(&text), 2);
    let last = text.lines().last().unwrap();
    assert!(
        last.contains("since=299") && last.contains("key=n/z"),
        "{last}"
    );
    assert!(last.contains("handler=\"here\""), "{last}");
    run.end().await.unwrap();
}
