//! Handlers, their queues, and the informer's life, in paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use informer::source::WatchEvent;
use informer::source::scripted::ListAnswer;
use informer::{
    Buffer, Cause, Error, Event, HandlerOptions, InformerOptions, OnPanic, OnStop, Registration,
    Synced, wait_for_cache_sync,
};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// Seconds after the start at which a handler was called for a resync.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<u64>>>);

impl Times {
    fn handler(&self) -> impl Fn(&Event<ConfigMap>) + Send + Sync + 'static {
        let (times, began) = (Arc::clone(&self.0), Instant::now());
        move |event| {
            if event.is_resync() {
                times.lock().push(began.elapsed().as_secs());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h1_each_handler_is_resynced_at_its_own_period() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let _feed = source.watch();
    let (two, three, never, late) = (
        Times::default(),
        Times::default(),
        Times::default(),
        Times::default(),
    );
    for (times, seconds) in [(&two, 2), (&three, 3), (&never, 0)] {
        let every = Some(Duration::from_secs(seconds));
        informer
            .add_handler_with("t", times.handler(), options(|o| o.resync = every))
            .unwrap();
    }
    let _run = Run::start(&informer);
    settle().await;
    let faster = options(|o| o.resync = Some(Duration::from_millis(1)));
    informer
        .add_handler_with("late", late.handler(), faster)
        .unwrap();
    tokio::time::sleep(Duration::from_millis(6500)).await;
    assert_eq!(*two.0.lock(), [2, 4, 6]);
    assert_eq!(*three.0.lock(), [3, 6]);
    assert_eq!(*never.0.lock(), [0; 0]);
    assert_eq!(*late.0.lock(), [2, 4, 6], "raised to the period that runs");
}

#[tokio::test(start_paused = true)]
async fn h2_after_a_gap_a_handler_sees_only_the_differences() {
    let (source, informer) = scripted(InformerOptions::default());
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    source.list(ListAnswer::all(
        [object("a", 1), object("b", 2), object("c", 3)],
        "10",
    ));
    let feed = source.watch();
    source.list(ListAnswer::all(
        [object("d", 12), object("b", 11), object("a", 1)],
        "13",
    ));
    let _run = Run::start(&informer);
    settle().await;
    assert_eq!(log.take(), ["+a@1!", "+b@2!", "+c@3!"]);
    feed.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(4).await;
    settle().await;
    assert_eq!(log.take(), ["-?c@3", "+d@12", "b@2~b@11"]);
}

#[tokio::test(start_paused = true)]
async fn h3_a_late_handler_gets_each_object_once_and_then_every_event() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all(
        (0..50).map(|at| object(&format!("o{at}"), 1)),
        "10",
    ));
    let feed = source.watch();
    let _run = Run::start(&informer);
    informer.synced().await;
    let mut joined = Vec::new();
    for version in 11..61_u64 {
        feed.send(WatchEvent::Modified(object(
            &format!("o{}", version % 50),
            version,
        )));
        if version % 10 == 0 {
            tokio::task::yield_now().await;
            let seen = Arc::new(Mutex::new(std::collections::BTreeMap::<String, u64>::new()));
            let errors = Log::default();
            let (view, problems) = (Arc::clone(&seen), errors.clone());
            let registration = informer
                .add_handler("late", move |event: &Event<ConfigMap>| {
                    let meta = &event.object().metadata;
                    let (name, version) = (
                        meta.name.clone().unwrap(),
                        meta.resource_version.clone().unwrap(),
                    );
                    let known = view.lock().insert(name, version.parse().unwrap());
                    let fits = match event {
                        // What comes after the start is no part of it.
                        Event::Added {
                            is_in_initial_list, ..
                        } => {
                            known.is_none() && *is_in_initial_list == (event.key().name() != "new")
                        }
                        Event::Updated { old, .. } => {
                            let old = old.metadata.resource_version.as_deref();
                            known.map(|known| known.to_string()).as_deref() == old
                        }
                        Event::Deleted { .. } => false,
                    };
                    if !fits {
                        problems.push(show(event));
                    }
                })
                .unwrap();
            joined.push((registration, seen, errors));
        }
    }
    feed.send(WatchEvent::Added(object("new", 1_000_000)));
    settle().await;
    for (registration, seen, errors) in joined {
        assert!(registration.has_synced());
        assert_eq!(errors.take(), Vec::<String>::new());
        let seen = seen.lock();
        assert_eq!(seen.len(), 51);
        for object in informer.lister().list() {
            let version: u64 = object
                .metadata
                .resource_version
                .as_ref()
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(seen[object.metadata.name.as_ref().unwrap()], version);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h4_a_handler_may_register_twice_and_be_removed_once_each() {
    let (source, informer) = scripted(InformerOptions::default());
    let (_, other) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let log = Log::default();
    let first = informer.add_handler("log", log.handler()).unwrap();
    let second = informer.add_handler("log", log.handler()).unwrap();
    let foreign = other.add_handler("log", log.handler()).unwrap();
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Added(object("a", 11)));
    settle().await;
    assert_eq!(log.take(), ["+a@11", "+a@11"]);
    assert!(matches!(informer.remove_handler(&foreign).await, Ok(false)));
    assert!(matches!(informer.remove_handler(&first).await, Ok(true)));
    feed.send(WatchEvent::Modified(object("a", 12)));
    settle().await;
    assert_eq!(log.take(), ["a@11~a@12"]);
    assert!(
        matches!(informer.remove_handler(&first).await, Ok(false)),
        "again: harmless"
    );
    assert!(first.shutdown().await.is_ok() && second.shutdown().await.is_ok());
    feed.send(WatchEvent::Modified(object("a", 13)));
    settle().await;
    assert_eq!(log.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_handlers_come_and_go_during_traffic_and_the_stable_one_misses_nothing() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let stable = Log::default();
    informer.add_handler("stable", stable.handler()).unwrap();
    let run = Run::start(&informer);
    informer.synced().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let informer = informer.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                let calls = Arc::new(AtomicUsize::new(0));
                let counted = Arc::clone(&calls);
                let handler = move |_: &Event<ConfigMap>| {
                    counted.fetch_add(1, Ordering::SeqCst);
                };
                let registration = informer.add_handler("guest", handler).unwrap();
                registration.synced().await;
                registration.shutdown().await.unwrap();
                let after = calls.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                assert_eq!(
                    calls.load(Ordering::SeqCst),
                    after,
                    "called after its removal"
                );
            }
        });
    }
    for version in 11..1011_u64 {
        feed.send(WatchEvent::Added(object(&format!("o{version}"), version)));
        if version % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while stable.len() < 1000 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(stable.len(), 1000);
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn h6_after_the_stop_nothing_can_be_added_and_a_second_run_is_refused() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let log = Log::default();
    let registration = informer.add_handler("log", log.handler()).unwrap();
    assert!(!informer.has_synced() && !registration.has_synced() && !informer.is_stopped());
    let run = Run::start(&informer);
    registration.synced().await;
    let second = informer.run(CancellationToken::new()).await;
    assert!(matches!(second, Err(Error::AlreadyRan { .. })));
    assert!(
        informer.has_synced() && !informer.is_stopped(),
        "the first goes on"
    );
    assert!(matches!(
        informer.set_error_handler(Arc::new(|_| {})),
        Err(Error::Started {
            what: "error handler",
            ..
        })
    ));
    assert!(matches!(
        informer.set_transform(Arc::new(|_| Ok(()))),
        Err(Error::Started { .. })
    ));
    run.end().await.unwrap();
    assert!(informer.is_stopped());
    assert!(matches!(
        informer.add_handler("log", log.handler()),
        Err(Error::Stopped { .. })
    ));
    assert!(registration.shutdown().await.is_ok());
    assert!(matches!(
        informer.run(CancellationToken::new()).await,
        Err(Error::AlreadyRan { .. })
    ));
    assert_eq!(cached(&informer), ["a@1"], "the cache stays readable");
}

#[tokio::test(start_paused = true)]
async fn h7_a_panicking_handler_goes_on_after_a_second_and_hurts_no_other() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let (log, seen) = (Log::default(), Log::default());
    let told = seen.clone();
    let panicking = informer
        .add_handler("panics", move |event: &Event<ConfigMap>| {
            told.push(show(event));
            assert_ne!(event.key().name(), "a", "not this one");
        })
        .unwrap();
    informer.add_handler("log", log.handler()).unwrap();
    let _run = Run::start(&informer);
    settle().await;
    assert_eq!(log.take().len(), 2);
    assert_eq!(seen.len(), 1);
    assert!(!panicking.has_synced());
    let began = Instant::now();
    panicking.synced().await;
    assert!(began.elapsed() <= Duration::from_secs(1));
    assert_eq!(seen.take(), ["+a@1!", "+b@2!"]);
    assert_eq!(informer.stats().handler_panics, 1);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "for all to see")]
async fn h7_a_panic_may_be_made_to_end_the_informer() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let crash = options(|o| o.on_panic = OnPanic::Crash);
    let handler = |_: &Event<ConfigMap>| panic!("for all to see");
    informer.add_handler_with("crash", handler, crash).unwrap();
    let outcome = Run::start(&informer).outcome().await;
    unreachable!("ended with {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn h8_a_removal_is_refused_inside_the_handlers_own_call() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let own: Arc<Mutex<Option<Registration>>> = Arc::default();
    let outcome = Log::default();
    let (inside, told) = (Arc::clone(&own), outcome.clone());
    let handler = move |event: Event<ConfigMap>| {
        let (inside, told) = (Arc::clone(&inside), told.clone());
        async move {
            told.push(show(&event));
            let registration = inside.lock().clone().expect("set before the start");
            let refused = registration.shutdown().await;
            told.push(format!(
                "{}",
                matches!(refused, Err(Error::OwnCallback { .. }))
            ));
        }
    };
    let registration = informer
        .add_async_handler("own", handler, HandlerOptions::default())
        .unwrap();
    *own.lock() = Some(registration.clone());
    let _run = Run::start(&informer);
    settle().await;
    registration.shutdown().await.unwrap();
    assert_eq!(
        outcome.take(),
        ["+a@1!", "true"],
        "removed, though not waited for"
    );
}

#[tokio::test(start_paused = true)]
async fn h9_the_error_handler_gets_the_cause_and_the_transform_runs_once_an_object() {
    let (source, informer) = scripted(InformerOptions::default());
    let (errors, runs) = (Log::default(), Log::default());
    let (told, transformed) = (errors.clone(), runs.clone());
    informer
        .set_error_handler(Arc::new(move |error| {
            told.push(format!("{} {error}", error.cause()))
        }))
        .unwrap();
    informer
        .set_transform(Arc::new(move |object: &mut ConfigMap| {
            transformed.push(object.metadata.name.clone().unwrap());
            object.immutable = Some(true);
            Ok(())
        }))
        .unwrap();
    source.list(ListAnswer::Fail(vec![], refusal(403, "Forbidden")));
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([], "12"));
    let seen = Log::default();
    let told = seen.clone();
    informer
        .add_handler("immutable", move |event: &Event<ConfigMap>| {
            told.push(format!("{} {:?}", show(event), event.object().immutable));
        })
        .unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    feed.send(WatchEvent::Added(object("b", 11)));
    settle().await;
    feed.send(WatchEvent::Error(Box::new(status(410, "Gone"))));
    source.called(5).await;
    settle().await;
    assert_eq!(errors.take()[0], "forbidden list failed");
    assert_eq!(
        runs.take(),
        ["a", "b"],
        "tombstones are not transformed again"
    );
    let all = seen.take();
    assert_eq!(all.len(), 4);
    assert!(
        all.iter().all(|line| line.ends_with("Some(true)")),
        "{all:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn h10_h11_a_replace_tells_after_the_store_and_keys_of_tombstones_agree() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([object("c", 12), object("b", 11)], "13"));
    let log = Log::default();
    let (told, lister) = (log.clone(), informer.lister());
    informer
        .add_handler("check", move |event: &Event<ConfigMap>| {
            let key = event.key();
            let stored = lister.get(&key).is_some();
            told.push(format!("{key} {} {stored}", show(event)));
        })
        .unwrap();
    let _run = Run::start(&informer);
    settle().await;
    assert_eq!(log.take(), ["n/a +a@1! true", "n/b +b@2! true"]);
    feed.send(WatchEvent::Error(Box::new(status(410, "Gone"))));
    source.called(4).await;
    settle().await;
    assert_eq!(
        log.take(),
        ["n/a -?a@1 false", "n/c +c@12 true", "n/b b@2~b@11 true"]
    );
}

#[tokio::test(start_paused = true)]
async fn h12_waiting_for_sync_names_what_is_missing_and_why() {
    let (source, synced) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let (failing, missing) = scripted(InformerOptions {
        namespace: Some("n".to_owned()),
        ..InformerOptions::default()
    });
    failing.list(ListAnswer::Fail(vec![], refusal(403, "Forbidden")));
    let slow = |_: Event<ConfigMap>| tokio::time::sleep(Duration::from_secs(3600));
    let handler = synced
        .add_async_handler("slow", slow, HandlerOptions::default())
        .unwrap();
    let _runs = (Run::start(&synced), Run::start(&missing));
    let stop = CancellationToken::new();
    let all: [&dyn Synced; 3] = [&synced, &missing, &handler];
    let (outcome, ()) = tokio::join!(wait_for_cache_sync(&stop, &all), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        stop.cancel();
    });
    let error = outcome.unwrap_err();
    assert_eq!(error.unsynced.len(), 2);
    assert_eq!(error.unsynced[0].name, "ConfigMap in namespace n");
    assert_eq!(
        error.unsynced[0].cause.as_ref().unwrap().0,
        Cause::Forbidden
    );
    assert_eq!(error.unsynced[1].name, "handler slow of ConfigMap");
    assert_eq!(error.unsynced[1].cause, None);
    assert!(
        wait_for_cache_sync(&CancellationToken::new(), &[&synced])
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn h12_d7_an_empty_list_syncs_at_once_and_a_handler_only_after_its_last_initial_event() {
    let (source, informer) = scripted(InformerOptions::default());
    let early = informer
        .add_handler("early", |_: &Event<ConfigMap>| {})
        .unwrap();
    let _run = Run::start(&informer);
    settle().await;
    assert!(!informer.has_synced() && !early.has_synced(), "no list yet");
    drop(source);

    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let early = informer
        .add_handler("early", |_: &Event<ConfigMap>| {})
        .unwrap();
    let _run = Run::start(&informer);
    early.synced().await;

    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let second = |_: Event<ConfigMap>| tokio::time::sleep(Duration::from_secs(1));
    let slow = informer
        .add_async_handler("slow", second, HandlerOptions::default())
        .unwrap();
    let _run = Run::start(&informer);
    let began = Instant::now();
    informer.synced().await;
    assert!(!slow.has_synced(), "the store is not the handler");
    slow.synced().await;
    assert_eq!(began.elapsed().as_secs(), 2);
    let late = informer
        .add_async_handler("late", second, HandlerOptions::default())
        .unwrap();
    assert!(!late.has_synced());
    late.synced().await;
    assert_eq!(began.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn h13_an_object_recreated_over_a_gap_is_deleted_and_added() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object_of("a", "first", 1)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([object_of("a", "second", 12)], "13"));
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    let _run = Run::start(&informer);
    settle().await;
    feed.send(WatchEvent::Error(Box::new(status(410, "Gone"))));
    source.called(4).await;
    settle().await;
    assert_eq!(log.take(), ["+a@1!", "-?a@1", "+a@12"]);
}

#[tokio::test(start_paused = true)]
async fn h14_a_stuck_handlers_queue_is_bounded_and_ends_at_the_last_state() {
    const KEYS: u32 = 1000;
    const LIMIT: usize = 2000;
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "1"));
    let feed = source.watch();
    let gate = CancellationToken::new();
    let view = Arc::new(Mutex::new(std::collections::BTreeMap::new()));
    let (open, seen) = (gate.clone(), Arc::clone(&view));
    let handler = move |event: Event<ConfigMap>| {
        let (open, seen) = (open.clone(), Arc::clone(&seen));
        async move {
            open.cancelled().await;
            let name = event.key().name().to_owned();
            match event {
                Event::Deleted { .. } => {
                    assert!(
                        seen.lock().remove(&name).is_some(),
                        "deleted before it was added"
                    );
                }
                Event::Added { object, .. } => {
                    assert!(seen.lock().insert(name, object).is_none(), "added twice");
                }
                Event::Updated { old, new } => {
                    let before = seen.lock().insert(name, new).expect("updated before added");
                    assert!(
                        Arc::ptr_eq(&before, &old),
                        "a state was left out in between"
                    );
                }
            }
        }
    };
    let bounded = options(|o| o.buffer = Buffer::Coalesce(LIMIT));
    informer
        .add_async_handler("stuck", handler, bounded)
        .unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    let mut version = 1;
    for round in 0..100_u32 {
        let mut batch = Vec::new();
        for at in 0..KEYS {
            version += 1;
            let object = object(&format!("o{at}"), version);
            batch.push(match (round + at) % 5 {
                0 if round > 0 => WatchEvent::Deleted(object),
                _ => WatchEvent::Modified(object),
            });
        }
        feed.send_batch(batch);
        settle().await;
        let waiting = informer.queue_lengths()[0].1;
        assert!(
            waiting <= LIMIT + 3 * KEYS as usize,
            "{waiting} events wait"
        );
    }
    gate.cancel();
    settle().await;
    assert_eq!(informer.queue_lengths(), [("stuck".to_owned(), 0)]);
    assert_eq!(informer.stats().handler_panics, 0);
    let view = view.lock();
    let stored = informer.lister().snapshot().list_sorted();
    assert_eq!(view.len(), stored.len());
    for object in stored {
        let seen = &view[object.metadata.name.as_ref().unwrap()];
        assert_eq!(
            seen.metadata.resource_version,
            object.metadata.resource_version
        );
    }
}

#[tokio::test(start_paused = true)]
async fn i80_a_stuck_handler_delays_no_other() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let stuck = |_: Event<ConfigMap>| std::future::pending::<()>();
    informer
        .add_async_handler("stuck", stuck, HandlerOptions::default())
        .unwrap();
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    let run = Run::start(&informer);
    for version in 11..111 {
        feed.send(WatchEvent::Added(object(&format!("o{version}"), version)));
    }
    settle().await;
    assert_eq!(log.len(), 100);
    assert_eq!(informer.queue_lengths()[0], ("stuck".to_owned(), 99));
    let began = Instant::now();
    run.end().await.unwrap();
    assert_eq!(
        began.elapsed(),
        Duration::ZERO,
        "a stop does not wait for a stuck handler"
    );
}

#[tokio::test(start_paused = true)]
async fn i90_waiting_events_are_dropped_or_delivered_at_the_stop_by_option() {
    for (on_stop, delivered) in [(OnStop::Drop, 0), (OnStop::Deliver, 3)] {
        let (source, informer) = scripted(InformerOptions::default());
        source.list(ListAnswer::all(
            (0..3).map(|at| object(&format!("o{at}"), 1)),
            "10",
        ));
        let log = Log::default();
        let told = log.clone();
        let slow = move |event: Event<ConfigMap>| {
            let told = told.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                told.push(show(&event));
            }
        };
        let options = options(|o| o.on_stop = on_stop);
        informer.add_async_handler("slow", slow, options).unwrap();
        let run = Run::start(&informer);
        settle().await;
        run.end().await.unwrap();
        assert_eq!(log.len(), delivered, "{on_stop:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_run_stops_the_handlers() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let log = Log::default();
    let registration = informer.add_handler("log", log.handler()).unwrap();
    let run = Run::start(&informer);
    informer.synced().await;
    drop(run);
    settle().await;
    feed.send(WatchEvent::Added(object("a", 11)));
    settle().await;
    assert!(feed.is_abandoned() && log.len() == 0);
    assert!(matches!(
        informer.add_handler("log", log.handler()),
        Err(Error::Stopped { .. })
    ));
    registration.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resync_beyond_all_time_never_comes() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let _feed = source.watch();
    let log = Log::default();
    let never = || options(|o| o.resync = Some(Duration::MAX));
    informer
        .add_handler_with("early", log.handler(), never())
        .unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    informer
        .add_handler_with("late", log.handler(), never())
        .unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(log.take(), ["+a@1!", "+a@1!"]);
}

#[tokio::test(start_paused = true)]
async fn i104_an_informer_that_is_no_longer_wanted_tells_that_all_is_gone_and_ends() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    let (log, slow_log) = (Log::default(), Log::default());
    informer.add_handler("log", log.handler()).unwrap();
    let told = slow_log.clone();
    let slow = move |event: Event<ConfigMap>| {
        let told = told.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            told.push(show(&event));
        }
    };
    informer
        .add_async_handler("slow", slow, HandlerOptions::default())
        .unwrap();
    let mut run = Run::start(&informer);
    informer.synced().await;
    let began = Instant::now();
    informer.unfollow();
    run.outcome().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 4, "all handlers have been told");
    assert!(informer.is_stopped() && feed.is_abandoned());
    assert_eq!(cached(&informer), [""; 0]);
    for log in [log, slow_log] {
        let mut told = log.take();
        told[2..].sort();
        assert_eq!(told, ["+a@1!", "+b@2!", "-?a@1", "-?b@2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn i104_a_stop_does_not_wait_for_handlers_that_are_told_of_the_end() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let stuck = |_: Event<ConfigMap>| std::future::pending::<()>();
    informer
        .add_async_handler("stuck", stuck, HandlerOptions::default())
        .unwrap();
    let run = Run::start(&informer);
    informer.synced().await;
    informer.unfollow();
    settle().await;
    assert!(!informer.is_stopped());
    run.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn h10_d8_events_that_arrive_together_give_the_same_calls_as_one_by_one() {
    let events = || {
        vec![
            WatchEvent::Added(object("b", 11)),
            WatchEvent::Modified(object("a", 12)),
            WatchEvent::Modified(object("a", 13)),
            bookmark("14"),
            WatchEvent::Malformed(malformed("c", Some("15"))),
            WatchEvent::Deleted(object("a", 16)),
            WatchEvent::Added(object_of("a", "second", 17)),
            WatchEvent::Deleted(object("b", 18)),
            WatchEvent::Deleted(object("b", 19)),
        ]
    };
    let mut outcomes = Vec::new();
    for together in [false, true] {
        let (source, informer) = scripted(InformerOptions::default());
        source.list(ListAnswer::all([object("a", 1)], "10"));
        let feed = source.watch();
        let log = Log::default();
        informer.add_handler("log", log.handler()).unwrap();
        let _run = Run::start(&informer);
        informer.synced().await;
        if together {
            feed.send_batch(events());
        } else {
            for event in events() {
                feed.send(event);
                settle().await;
            }
        }
        settle().await;
        let version = informer.status().resource_version;
        outcomes.push((log.take(), cached(&informer), version, informer.stats()));
    }
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0].1, ["a@17"]);
    assert_eq!(outcomes[0].2, "19");
}

#[tokio::test(start_paused = true)]
async fn d8_i57_at_most_a_thousand_events_enter_the_store_in_one_step() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (sizes, lister) = (Arc::clone(&seen), informer.lister());
    let in_place = options(|o| o.delivery = informer::Delivery::InPlace);
    let handler = move |_: &Event<ConfigMap>| {
        let size = lister.snapshot().len();
        let mut sizes = sizes.lock();
        if sizes.last() != Some(&size) {
            sizes.push(size);
        }
    };
    informer
        .add_handler_with("sizes", handler, in_place)
        .unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    let added = |at: u64| WatchEvent::Added(object(&format!("o{at}"), 11 + at));
    feed.send_batch((0..2500).map(added).collect());
    settle().await;
    assert_eq!(*seen.lock(), [1000, 2000, 2500]);
    assert_eq!(informer.status().resource_version, "2510");
}
