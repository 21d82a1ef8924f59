//! How a queue is set up, and how a key is added.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    clock::{Clock, TokioClock},
    key::QueueKey,
    limiter::{self, RateLimiter},
    metrics::Registry,
};

/// Setup of a queue. All fields have defaults.
pub struct QueueOptions<K> {
    /// Name of the queue in metrics. Empty (the default): no metrics, and no cost of them.
    pub name: String,
    /// More labels for all series of the queue, e.g. `controller`.
    pub labels: Vec<(String, String)>,
    /// Where a named queue registers its metrics. Default: [`Registry::global`].
    pub registry: Registry,
    /// How long a key waits that is added rate limited. Default:
    /// [`limiter::controller_default`].
    pub limiter: Arc<dyn RateLimiter<K>>,
    /// Where time comes from. Default: [`TokioClock`].
    pub clock: Arc<dyn Clock>,
    /// Parts with a lock of their own that keys are spread over by their hash: a power of two.
    ///
    /// With one shard, the default, the order policy is strict. With `s` shards the lock is
    /// contended less, and a key that finds `p` ready keys of its priority is handed out within
    /// `(p + 1)·s` hand-outs.
    ///
    /// ```
    /// use workqueue::{QueueOptions, WorkQueue};
    ///
    /// let queue = WorkQueue::new(QueueOptions {
    ///     shards: 4,
    ///     ..QueueOptions::default()
    /// })?;
    /// (0..100).for_each(|key| queue.add(key));
    /// let mut keys: Vec<_> = std::iter::from_fn(|| queue.try_get().map(|item| *item)).collect();
    /// keys.sort_unstable();
    /// assert_eq!(keys, (0..100).collect::<Vec<_>>());
    /// # Ok::<_, workqueue::Error>(())
    /// ```
    pub shards: usize,
    /// What an immediate add does with a pending deadline. Default: what the order policy says,
    /// which is [`OnAdd::Keep`] for [`Fifo`](crate::order::Fifo) and [`OnAdd::Supersede`] for the
    /// others.
    pub on_add: Option<OnAdd>,
    /// An immediate add of a key that waits on backoff joins the wait instead of ending it.
    /// Default: off.
    pub drop_if_waiting: bool,
    /// Ask the limiter once per run instead of once per rate-limited add, so that a burst of them
    /// during one wait does not raise the backoff. Default: off, as upstream; controllers turn
    /// it on.
    pub count_attempts: bool,
    /// Cloning a key is cheap, as with an `Arc`: then an add by reference may clone a key that the
    /// queue knows already, and leave it to a thread that is at the queue just now to carry the add
    /// out. Adds by value, and of keys that own no heap memory, may always do so. Default: off, so
    /// that an add by reference clones no key that the queue knows.
    pub shared_keys: bool,
}

impl<K: QueueKey> Default for QueueOptions<K> {
    fn default() -> Self {
        Self {
            name: String::new(),
            labels: Vec::new(),
            registry: Registry::global(),
            limiter: Arc::new(limiter::controller_default()),
            clock: Arc::new(TokioClock),
            shards: 1,
            on_add: None,
            drop_if_waiting: false,
            count_attempts: false,
            shared_keys: false,
        }
    }
}

impl<K> fmt::Debug for QueueOptions<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueOptions")
            .field("name", &self.name)
            .field("labels", &self.labels)
            .field("clock", &self.clock)
            .field("shards", &self.shards)
            .field("on_add", &self.on_add)
            .field("drop_if_waiting", &self.drop_if_waiting)
            .field("count_attempts", &self.count_attempts)
            .field("shared_keys", &self.shared_keys)
            .finish_non_exhaustive()
    }
}

/// What an immediate add of a key does with a deadline that is pending for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnAdd {
    /// Leaves it: the key runs now and again at the deadline. client-go's queue does this.
    Keep,
    /// Drops it, so that one cause gives one run; likewise a deadline that is set while the key is
    /// wanted already is not set. Deadlines of [`Origin::Reminder`] are left.
    /// controller-runtime's priority queue does this.
    Supersede,
}

/// Where a deadline comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// It is the outcome of a run, such as a retry: any later run makes it pointless.
    #[default]
    Result,
    /// Somebody asked to be called at that time: it stays pending whatever is added at once, and
    /// whatever result is due before it. Of several reminders of a key the earliest holds, and it
    /// stands for results that are not due before it.
    Reminder,
}

/// How to add a key; the default is an immediate add with priority 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddOptions {
    /// Not before this long from now. None and zero: at once.
    pub after: Option<Duration>,
    /// Not before the rate limiter allows it. Together with `after`, the shorter wait holds.
    pub rate_limited: bool,
    /// The key's priority, higher first; merged to the highest of all adds since the key was last
    /// handed out. None is 0.
    pub priority: Option<i32>,
    /// What the deadline is, if the add has one.
    pub origin: Origin,
    /// Let a deadline that is later than the pending one of the same origin replace it.
    pub replace: bool,
    /// Leave a wait out of the number of retries in the metrics: it is none.
    pub uncounted: bool,
}
