//! Feeds: triggers from channels and functions, with back pressure, batching and failures.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use controller::{
    Action, CHANNEL_CAPACITY, Controller, ControllerHandle, ControllerOptions, Enqueuer, Error,
    Feed, FeedSender, SendError, Source,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Scene, Scripting, Stage, config, key, ms, object, pass, unique};

/// A controller with one feed and nothing else.
struct Fed {
    reconciler: Scripting,
    handle: ControllerHandle,
    stop: CancellationToken,
    running: JoinSet<Result<(), Error>>,
}

impl Fed {
    fn by(feed: Feed, reconciler: Scripting) -> Self {
        let controller = Controller::builder(unique("fed"), reconciler.clone())
            .feed(feed)
            .build()
            .unwrap();
        let (handle, stop) = (controller.handle(), CancellationToken::new());
        let mut running = JoinSet::new();
        running.spawn(controller.run(stop.clone()));
        Self {
            reconciler,
            handle,
            stop,
            running,
        }
    }

    async fn end(&mut self) -> Result<(), Error> {
        self.running.join_next().await.unwrap().unwrap()
    }
}

fn done() -> Scripting {
    Scripting::answering(|_, _| Ok(Action::Done))
}

#[tokio::test(start_paused = true)]
async fn c24_a_channel_brings_keys_at_their_priority_also_those_sent_before_the_start() {
    let (sender, feed) = Feed::channel("alarms");
    sender.send(key("early")).await.unwrap();
    let mut fed = Fed::by(feed, done());
    pass(ms(100)).await;
    sender.send_at(key("late"), 7).await.unwrap();
    pass(ms(100)).await;
    let calls = fed.reconciler.calls();
    let seen: Vec<_> = calls
        .iter()
        .map(|call| (call.key.name(), call.ctx.priority()))
        .collect();
    assert_eq!(seen, [("early", 0), ("late", 7)]);
    fed.stop.cancel();
    fed.end().await.unwrap();
    let refused = sender.send(key("after")).await;
    assert_eq!(refused, Err(SendError::Closed { key: key("after") }));
}

#[tokio::test(start_paused = true)]
async fn c24_a_channel_holds_1024_triggers_until_somebody_takes_them() {
    let (sender, feed) = Feed::channel("alarms");
    for n in 0..CHANNEL_CAPACITY {
        sender.try_send(key(&n.to_string())).unwrap();
    }
    let full = sender.try_send(key("more"));
    assert_eq!(full, Err(SendError::Full { key: key("more") }));
    drop(feed);
    let closed = sender.try_send(key("more"));
    assert_eq!(closed, Err(SendError::Closed { key: key("more") }));
}

/// Far more than any bound lets through, and few enough that a missing one is found out.
const FLOOD: u32 = 10_000;

/// Sends numbered keys until told to stop; tells how many have been taken.
async fn flood(sender: FeedSender, sent: Arc<Semaphore>) {
    for n in 0..FLOOD {
        if sender.send(key(&n.to_string())).await.is_err() {
            return;
        }
        sent.add_permits(1);
    }
}

#[tokio::test(start_paused = true)]
async fn c24_a_sender_cannot_run_ahead_of_the_workers() {
    let capacity = NonZeroUsize::new(10).unwrap();
    let (sender, feed) = Feed::bounded("flood", capacity);
    let slow = Scripting::new(|_, _, _| async {
        tokio::time::sleep(ms(1000)).await;
        Ok(Action::Done)
    });
    let mut fed = Fed::by(feed, slow);
    let sent = Arc::new(Semaphore::new(0));
    let mut flooding = JoinSet::new();
    flooding.spawn(flood(sender, Arc::clone(&sent)));
    for seconds in 1..20 {
        pass(ms(1000)).await;
        let ahead = sent.available_permits() - fed.reconciler.calls().len();
        assert!(ahead <= 21, "{ahead} ahead after {seconds} s");
        assert!(fed.handle.queue().ready <= 10);
    }
    assert!(fed.reconciler.calls().len() >= 19, "the worker never waits");
    fed.stop.cancel();
    fed.end().await.unwrap();
    flooding.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn c24_c25_a_sender_cannot_run_ahead_of_a_window_and_one_key_takes_one_place_in_it() {
    let capacity = NonZeroUsize::new(10).unwrap();
    let (sender, feed) = Feed::bounded("flood", capacity);
    let mut fed = Fed::by(feed.batched(ms(1000)), done());
    for _ in 0..1000 {
        sender.send(key("burst")).await.unwrap();
    }
    pass(ms(500)).await;
    assert!(fed.reconciler.calls().is_empty());
    assert_eq!(fed.handle.queue().delayed, 1);
    let sent = Arc::new(Semaphore::new(0));
    let mut flooding = JoinSet::new();
    flooding.spawn(flood(sender, Arc::clone(&sent)));
    for half_seconds in 1..20 {
        pass(ms(500)).await;
        let ahead = (sent.available_permits() + 1).saturating_sub(fed.reconciler.calls().len());
        assert!(
            ahead <= 21,
            "{ahead} ahead after {half_seconds} half seconds"
        );
        assert!(fed.handle.queue().delayed <= 10);
    }
    assert!(fed.reconciler.calls().len() >= 80, "it goes on");
    fed.stop.cancel();
    fed.end().await.unwrap();
    flooding.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn c24_a_function_feeds_from_the_start_to_the_stop() {
    let feed = Feed::function(
        "clock",
        |keys: Enqueuer, stop: CancellationToken| async move {
            let mut ticks = tokio::time::interval(ms(1000));
            while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                keys.add(key("tick"));
            }
            Ok::<(), std::io::Error>(())
        },
    );
    let mut fed = Fed::by(feed, done());
    pass(ms(2500)).await;
    assert_eq!(fed.reconciler.times("tick"), [0, 1000, 2000]);
    fed.stop.cancel();
    fed.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c24_a_feed_that_fails_stops_the_controller_in_order() {
    let long = Scripting::new(|_, _, _| async {
        tokio::time::sleep(ms(500)).await;
        Ok(Action::Done)
    });
    type Failing = fn(Enqueuer) -> Result<(), std::io::Error>;
    let fails: [(Failing, &str); 2] = [
        (|_| Err(std::io::Error::other("line cut")), "line cut"),
        (|_| panic!("bug"), "bug"),
    ];
    for (fail, text) in fails {
        let feed = Feed::function("line", move |keys: Enqueuer, _| async move {
            keys.add(key("a"));
            tokio::time::sleep(ms(100)).await;
            fail(keys)
        });
        let mut fed = Fed::by(feed, long.clone());
        let error = fed.end().await.unwrap_err();
        let Error::Feed { feed, source, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(&**feed, "line");
        assert!(source.to_string().contains(text), "{source}");
        assert_eq!(
            fed.handle.metrics().success,
            1,
            "the run under way has ended"
        );
        assert_eq!(fed.handle.metrics().active_workers, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn c24_a_feed_may_be_added_after_the_start_and_not_after_the_end() {
    let stage = Stage::open(&["a"], done(), ControllerOptions::default());
    pass(ms(100)).await;
    let (sender, feed) = Feed::channel("late");
    stage.handle.add_feed(feed).unwrap();
    sender.send(key("b")).await.unwrap();
    pass(ms(100)).await;
    assert_eq!(stage.handle.metrics().success, 2);
    let handle = stage.handle.clone();
    stage.close().await.unwrap();
    let (_, feed) = Feed::channel("too-late");
    assert!(matches!(handle.add_feed(feed), Err(Error::Stopped { .. })));
}

#[tokio::test(start_paused = true)]
async fn c25_a_key_is_held_for_the_window_after_its_first_trigger() {
    let (sender, feed) = Feed::channel("bursts");
    let mut fed = Fed::by(feed.batched(ms(200)), done());
    pass(ms(1000)).await;
    for pause in [0, 50, 50, 50] {
        pass(ms(pause)).await;
        sender.send(key("a")).await.unwrap();
    }
    pass(ms(1000)).await;
    assert_eq!(fed.reconciler.times("a"), [1200], "four triggers, one run");
    sender.send(key("a")).await.unwrap();
    pass(ms(1000)).await;
    assert_eq!(fed.reconciler.times("a"), [1200, 2350], "the next burst");
    fed.stop.cancel();
    fed.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c25_a_trigger_without_a_window_comes_first_and_stands_for_the_held_one() {
    let configs = Scene::listing(vec![config("a", 1)]);
    let secrets = Scene::<Secret>::listing(vec![]);
    let reconciler = done();
    let controller = Controller::builder(unique("window"), reconciler.clone())
        .for_object(&configs.informer)
        .source(
            Source::mapped(&secrets.informer, |secret: &Secret| {
                vec![controller::ObjectKey::of(secret)]
            })
            .batched(Duration::from_secs(10)),
        )
        .build()
        .unwrap();
    let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
    let manager = controller::Manager::default()
        .add_informer(&configs.informer)
        .add_informer(&secrets.informer)
        .add_controller(controller);
    running.spawn(manager.run(stop.clone()));
    pass(ms(1000)).await;
    secrets.add(object("a", 1001));
    pass(ms(4000)).await;
    assert_eq!(reconciler.times("a").len(), 1, "held");
    configs.modify(object::<ConfigMap>("a", 1001));
    pass(ms(20_000)).await;
    assert_eq!(reconciler.times("a").len(), 2, "one run for both");
    secrets.modify(object("a", 1002));
    pass(ms(20_000)).await;
    assert_eq!(reconciler.times("a").len(), 3);
    stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
}
