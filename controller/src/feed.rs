//! Feeds: triggers that come from elsewhere than an informer.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use informer::ObjectKey;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use workqueue::AddOptions;

use crate::intake::Intake;
use crate::reconcile::BoxError;

/// Triggers that wait in a channel, unless said otherwise: as many as in controller-runtime's.
pub const CHANNEL_CAPACITY: usize = 1024;

/// How often a channel looks whether the workers have caught up.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

type Run =
    Box<dyn FnOnce(Enqueuer, CancellationToken) -> BoxFuture<'static, Result<(), BoxError>> + Send>;

/// A source of triggers that is no informer: a channel, or a function of one's own.
///
/// It runs from the controller's start (before the initial lists of the others are there, and
/// before leadership where the controller [warms up]) to its stop, as part of
/// [`Controller::run`], and has no initial state to wait for.
///
/// [warms up]: crate::ControllerOptions::warm_up
/// [`Controller::run`]: crate::Controller::run
///
/// ```
/// use controller::{Action, Context, Controller, Feed, ObjectKey, ReconcileError, Reconciler};
/// # struct Turbines;
/// # impl Reconciler for Turbines {
/// #     async fn reconcile(&self, _: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
/// #         Ok(Action::Done)
/// #     }
/// # }
/// # fn example() -> Result<(), controller::Error> {
/// let (alarms, feed) = Feed::channel("alarms");
/// let controller = Controller::builder("turbine", Turbines).feed(feed).build()?;
/// // Whoever hears of an alarm:
/// # let _ = async move {
/// alarms.send(ObjectKey::namespaced("north", "turbine-7")).await
/// # };
/// # Ok(()) }
/// # example().unwrap();
/// ```
#[must_use = "a feed does nothing until a controller has it"]
pub struct Feed {
    pub(crate) name: String,
    run: Run,
    window: Duration,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("name", &self.name)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

impl Feed {
    /// A channel in which up to [`CHANNEL_CAPACITY`] triggers wait; `name` stands in messages.
    pub fn channel(name: impl Into<String>) -> (FeedSender, Self) {
        let capacity = NonZeroUsize::new(CHANNEL_CAPACITY);
        Self::bounded(name, capacity.unwrap_or(NonZeroUsize::MIN))
    }

    /// A channel in which up to `capacity` triggers wait.
    ///
    /// Senders are held back while it is full. It takes nothing in while `capacity` keys or more
    /// are ready in the controller's queue, or held by the feed's own [window](Self::batched), so senders
    /// cannot run ahead of the workers by more than twice the capacity.
    pub fn bounded(name: impl Into<String>, capacity: NonZeroUsize) -> (FeedSender, Self) {
        let (sender, mut triggers) = mpsc::channel(capacity.get());
        let feed = Self::function(name, move |enqueuer: Enqueuer, stop| async move {
            let mut held = Held::default();
            let take_in = async {
                while let Some(Trigger { key, priority }) = triggers.recv().await {
                    while enqueuer.ready() + held.count(Instant::now()) >= capacity.get() {
                        tokio::time::sleep(LOOK_AGAIN).await;
                    }
                    if let Some(window) = enqueuer.after {
                        held.add(key.clone(), Instant::now() + window);
                    }
                    enqueuer.add_at(key, priority);
                }
            };
            // What waits at the stop is dropped, as what waits in the queue is.
            stop.run_until_cancelled(take_in).await;
            Ok::<(), BoxError>(())
        });
        (FeedSender(sender), feed)
    }

    /// A function that enqueues keys by whatever it learns, such as the answers of a poll.
    ///
    /// It must end when its token is cancelled. Ending well before that is done and ends nothing
    /// else; an error, or a panic, stops the controller with [`Error::Feed`](crate::Error::Feed).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use controller::{Enqueuer, Feed, ObjectKey};
    /// let every_minute = Feed::function("clock", |keys: Enqueuer, stop| async move {
    ///     let mut ticks = tokio::time::interval(Duration::from_secs(60));
    ///     while stop.run_until_cancelled(ticks.tick()).await.is_some() {
    ///         keys.add(ObjectKey::cluster("inventory"));
    ///     }
    ///     Ok::<(), std::io::Error>(())
    /// });
    /// # drop(every_minute);
    /// ```
    pub fn function<F, Fut, E>(name: impl Into<String>, run: F) -> Self
    where
        F: FnOnce(Enqueuer, CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Self {
            name: name.into(),
            run: Box::new(move |enqueuer, stop| {
                let run = run(enqueuer, stop);
                async move { run.await.map_err(Into::into) }.boxed()
            }),
            window: Duration::ZERO,
        }
    }

    /// Holds each key for `window` after its first trigger; see
    /// [`Source::batched`](crate::Source::batched).
    pub fn batched(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// The future that runs it, which ends after `stop`.
    pub(crate) fn start(
        self,
        intake: &Arc<Intake>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<(), BoxError>> {
        let enqueuer = Enqueuer {
            intake: Arc::downgrade(intake),
            after: (!self.window.is_zero()).then_some(self.window),
        };
        let run = self.run;
        // Called within the future, so that a panic before its first await is one of the feed too.
        async move { run(enqueuer, stop).await }.boxed()
    }
}

/// Puts keys into the queue of a controller; cheap to clone. Without effect after the end.
#[derive(Clone)]
pub struct Enqueuer {
    intake: Weak<Intake>,
    after: Option<Duration>,
}

impl fmt::Debug for Enqueuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueuer")
            .field("window", &self.after)
            .finish_non_exhaustive()
    }
}

impl Enqueuer {
    /// Asks for a reconcile of `key` at priority 0. Never waits.
    pub fn add(&self, key: ObjectKey) {
        self.add_at(key, 0);
    }

    /// Asks for a reconcile of `key` at this priority, higher first. Never waits.
    pub fn add_at(&self, key: ObjectKey, priority: i32) {
        if let Some(intake) = self.intake.upgrade() {
            let options = AddOptions {
                after: self.after,
                priority: Some(priority),
                ..AddOptions::default()
            };
            intake.queue.add_with(key, options);
        }
    }

    /// Number of keys that wait for a worker now: what a feed holds itself back by. Keys that its window
    /// holds are not among them.
    #[must_use]
    pub fn ready(&self) -> usize {
        let intake = self.intake.upgrade();
        intake.map_or(0, |intake| intake.queue.len())
    }
}

/// Keys that the window of a channel holds. The queue has them among all those that wait for a time, such
/// as failing ones, by which nobody should be held back.
#[derive(Debug, Default)]
struct Held {
    keys: HashSet<ObjectKey>,
    /// The same keys by the end of their windows, which is the order in which they came.
    ends: VecDeque<(Instant, ObjectKey)>,
}

impl Held {
    /// Takes in a key whose window is over at `end`, unless it is held already.
    fn add(&mut self, key: ObjectKey, end: Instant) {
        if self.keys.insert(key.clone()) {
            self.ends.push_back((end, key));
        }
    }

    /// Number of keys that are held at `now`. One that another trigger has taken out earlier still counts.
    fn count(&mut self, now: Instant) -> usize {
        while let Some((_, key)) = self.ends.pop_front_if(|(end, _)| *end <= now) {
            self.keys.remove(&key);
        }
        self.keys.len()
    }
}

#[derive(Debug)]
struct Trigger {
    key: ObjectKey,
    priority: i32,
}

/// The entrance of a [`Feed`]'s channel; clones lead into the same one.
#[derive(Debug, Clone)]
pub struct FeedSender(mpsc::Sender<Trigger>);

/// A trigger that did not get into the channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// As many triggers wait as may.
    #[error("no room for {key}: the channel is full")]
    Full {
        /// The key it was for.
        key: ObjectKey,
    },
    /// The controller has ended, or will never run.
    #[error("no one takes {key}: the controller has ended")]
    Closed {
        /// The key it was for.
        key: ObjectKey,
    },
}

impl FeedSender {
    /// Asks for a reconcile of `key`; waits while the channel is full. Cancel-safe: a dropped call
    /// has asked for nothing.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    pub async fn send(&self, key: ObjectKey) -> Result<(), SendError> {
        self.send_at(key, 0).await
    }

    /// As [`send`](Self::send), at this priority.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    pub async fn send_at(&self, key: ObjectKey, priority: i32) -> Result<(), SendError> {
        let sent = self.0.send(Trigger { key, priority }).await;
        sent.map_err(|refused| SendError::Closed { key: refused.0.key })
    }

    /// As [`send`](Self::send), but never waits.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send(&self, key: ObjectKey) -> Result<(), SendError> {
        let priority = 0;
        self.0
            .try_send(Trigger { key, priority })
            .map_err(|refused| match refused {
                TrySendError::Full(trigger) => SendError::Full { key: trigger.key },
                TrySendError::Closed(trigger) => SendError::Closed { key: trigger.key },
            })
    }
}
