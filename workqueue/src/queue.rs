//! The queue as its users see it: routing to shards, wake-ups, shutdown.

use std::{fmt, time::Duration};

use crate::{
    KeyId,
    clock::{Clock, Epoch, saturating_nanos},
    deadlines::Deadline,
    delay::Advance,
    drain::{self, Drain, DrainOptions, Drains},
    error::Error,
    get::Get,
    inbox::Add,
    item::Item,
    key::{IntoKey, KeyRef, QueueKey, hash_of},
    limiter::RateLimiter,
    metrics::{QueueSnapshot, Recorder, Registration, Registry, Source},
    options::{AddOptions, Origin, QueueOptions},
    order::{Fifo, Order},
    part::{Entrance, Part},
    shard::{Delay, Effects, Look, Rules, Shard, Taken},
    slab::Flags,
    sync::{Arc, AtomicBool, AtomicUsize, Ordering, Padded, TurnGuard},
    wait::{NEVER, WaitList, Wakers},
};

/// A queue of distinct keys that any number of tasks and threads add to and take from.
///
/// A handle: clones are the same queue. See the [crate documentation](crate) for what the queue
/// guarantees. `O` is the [order](crate::order) in which ready keys leave.
pub struct WorkQueue<K: QueueKey, O: Order<K> = Fifo> {
    pub(crate) shared: Arc<Shared<K, O>>,
}

pub(crate) struct Shared<K: QueueKey, O: Order<K>> {
    parts: Box<[Part<K, O>]>,
    /// Where the next look for a key begins, if there are several shards.
    turn: Padded<AtomicUsize>,
    pub(crate) waiters: Padded<WaitList>,
    pub(crate) drains: Drains,
    pub(crate) limiter: std::sync::Arc<dyn RateLimiter<K>>,
    pub(crate) clock: std::sync::Arc<dyn Clock>,
    pub(crate) epoch: Epoch,
    /// Set before the shards are shut, to spare the limiter adds that would come to nothing.
    closed: AtomicBool,
    count_attempts: bool,
    /// An add by reference may clone a known key.
    shared_keys: bool,
    /// Whether the shards have to know when an add was made.
    timed: bool,
    name: String,
    labels: Vec<(String, String)>,
    registration: std::sync::OnceLock<Registration>,
}

/// What a look at all shards has found.
pub(crate) enum Found<K> {
    Key {
        shard: usize,
        taken: Taken<K>,
        fired: usize,
    },
    /// Nothing now; the earliest deadline, or [`NEVER`].
    Nothing { next: u64 },
    /// Nothing ever again.
    Ended,
}

impl<K: QueueKey> WorkQueue<K> {
    /// Makes a queue whose keys leave in the order of arrival.
    ///
    /// # Errors
    /// [`Error::NameTaken`] if a live queue of the registry has the name, [`Error::Shards`] if the
    /// number of shards is not a power of two from 1 to 256.
    pub fn new(options: QueueOptions<K>) -> Result<Self, Error> {
        Self::with_order(options, Fifo::default)
    }
}

impl<K: QueueKey, O: Order<K>> WorkQueue<K, O> {
    /// Makes a queue with an order policy of its own; `order` is called once for each shard.
    ///
    /// # Errors
    /// As [`WorkQueue::new`]; [`Error::OrderNeedsOneShard`] if there are several shards and the
    /// policy does not allow for that.
    pub fn with_order(
        options: QueueOptions<K>,
        mut order: impl FnMut() -> O,
    ) -> Result<Self, Error> {
        let n = options.shards;
        if !n.is_power_of_two() || n > 256 {
            return Err(Error::Shards { shards: n });
        }
        let rules = Rules {
            on_add: options.on_add.unwrap_or(O::ON_ADD),
            drop_if_waiting: options.drop_if_waiting,
        };
        let named = !options.name.is_empty();
        let mut parts = Vec::with_capacity(n);
        let mut timed = false;
        for _ in 0..n {
            let order = order();
            if n > 1 && !order.shardable() {
                return Err(Error::OrderNeedsOneShard { shards: n });
            }
            let recorder = named.then(|| Box::new(Recorder::new(O::PRIORITIES)));
            let shard = Shard::new(order, rules, recorder);
            timed = shard.timed();
            parts.push(Part::new(shard));
        }
        let shared = Arc::new(Shared {
            parts: parts.into_boxed_slice(),
            turn: Padded(AtomicUsize::new(0)),
            waiters: Padded(WaitList::new()),
            drains: Drains::new(),
            limiter: options.limiter,
            epoch: Epoch::new(&*options.clock),
            clock: options.clock,
            closed: AtomicBool::new(false),
            count_attempts: options.count_attempts,
            shared_keys: options.shared_keys,
            timed,
            name: options.name,
            labels: options.labels,
            registration: std::sync::OnceLock::new(),
        });
        if named {
            Shared::register(&shared, &options.registry)?;
        }
        Ok(Self { shared })
    }

    /// Asks for a run of the key as soon as possible.
    ///
    /// A key that waits for its run already stays where it is; one that is running runs once more
    /// after that. Takes the key by value or by reference: a reference is cloned only if the queue
    /// does not know the key, or if [`QueueOptions::shared_keys`] says that it costs nothing. Never
    /// waits for a worker; ignored after shutdown.
    ///
    /// ```
    /// use workqueue::{QueueOptions, WorkQueue};
    ///
    /// let queue = WorkQueue::new(QueueOptions::default())?;
    /// for key in ["a", "b", "a"] {
    ///     queue.add(key);
    /// }
    /// assert_eq!(queue.len(), 2);
    /// let item = queue.try_get().expect("a key is ready");
    /// queue.add(*item); // during its run: it runs once more
    /// assert_eq!(queue.len(), 1);
    /// drop(item);
    /// assert_eq!(queue.len(), 2);
    /// # Ok::<_, workqueue::Error>(())
    /// ```
    pub fn add(&self, key: impl IntoKey<K>) {
        let hash = hash_of(key.as_key());
        self.shared.add(key, hash, 0, Flags::default());
    }

    /// Asks for a run of the key once `delay` has passed; at once if it is zero.
    ///
    /// Of several deadlines of a key the earliest holds (but see [`Origin::Reminder`]). Never waits, however many deadlines are
    /// pending; ignored after shutdown. O(1), amortised.
    ///
    /// ```
    /// use std::time::Duration;
    /// use workqueue::{QueueOptions, WorkQueue};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), workqueue::Error> {
    /// let queue = WorkQueue::new(QueueOptions::default())?;
    /// queue.add_after("late", Duration::from_secs(3600));
    /// queue.add_after("soon", Duration::from_millis(2));
    /// queue.add_after("soon", Duration::from_secs(60)); // the earlier deadline holds
    /// assert_eq!((queue.len(), queue.delayed()), (0, 2));
    /// assert_eq!(queue.get().await.map(|item| *item), Some("soon"));
    /// assert!(queue.cancel_after(&"late"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn add_after(&self, key: impl IntoKey<K>, delay: Duration) {
        self.add_with(
            key,
            AddOptions {
                after: Some(delay),
                ..AddOptions::default()
            },
        );
    }

    /// Asks for a run of the key when the rate limiter allows it, which counts as a failure.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use workqueue::{QueueOptions, WorkQueue, clock::ManualClock, limiter::ItemExponential};
    ///
    /// let clock = ManualClock::new();
    /// let queue = WorkQueue::new(QueueOptions {
    ///     limiter: Arc::new(ItemExponential::new(
    ///         Duration::from_millis(5),
    ///         Duration::from_secs(1000),
    ///     )),
    ///     clock: Arc::new(clock.clone()),
    ///     ..QueueOptions::default()
    /// })?;
    /// queue.add("flaky");
    /// for wait in [5, 10, 20] {
    ///     let item = queue.try_get().expect("the wait is over");
    ///     item.add_rate_limited(); // its run has failed
    ///     drop(item);
    ///     clock.advance(Duration::from_millis(wait - 1));
    ///     assert!(queue.is_empty());
    ///     clock.advance(Duration::from_millis(1));
    /// }
    /// assert_eq!(queue.num_requeues(&"flaky"), 3);
    /// queue.forget(&"flaky"); // its run has gone well
    /// # Ok::<_, workqueue::Error>(())
    /// ```
    pub fn add_rate_limited(&self, key: impl IntoKey<K>) {
        self.add_with(
            key,
            AddOptions {
                rate_limited: true,
                ..AddOptions::default()
            },
        );
    }

    /// Asks for a run of the key as the options say.
    pub fn add_with(&self, key: impl IntoKey<K>, options: AddOptions) {
        let hash = hash_of(key.as_key());
        self.shared.add_with(key, hash, options);
    }

    /// Drops the pending deadline of a key, a reminder behind it too. Returns whether there was one.
    pub fn cancel_after(&self, key: &K) -> bool {
        let key = KeyRef::from(key);
        let part = self.shared.part(key.hash());
        let mut shard = self.shared.up_to_date(part);
        let (was_pending, forgotten) = shard.cancel_after(key);
        let has_ended = shard.has_ended();
        drop(shard);
        drop(forgotten);
        if has_ended {
            let mut wakers = Wakers::default();
            self.shared.waiters.0.call_all(&mut wakers);
            wakers.wake();
        }
        self.shared.drains.wake();
        was_pending
    }

    /// Lets the rate limiter forget the key's failures. Neither ends a run nor removes the key.
    pub fn forget(&self, key: &K) {
        self.shared.limiter.forget(KeyRef::from(key));
    }

    /// How often the limiter has delayed the key since it was last forgotten.
    pub fn num_requeues(&self, key: &K) -> u32 {
        self.shared.limiter.num_requeues(KeyRef::from(key))
    }

    /// Waits for a key and hands it out; `None` once the queue is shut down and nothing is ready.
    ///
    /// The key counts as running until the [`Item`] is dropped. Cancel-safe: dropping the future
    /// loses neither a key nor a wake-up. Takes part in tokio's cooperative scheduling, so a
    /// worker that always finds a key does not starve other tasks.
    pub fn get(&self) -> Get<'_, K, O> {
        Get::new(&self.shared)
    }

    /// Hands out a key if one is ready.
    pub fn try_get(&self) -> Option<Item<'_, K, O>> {
        match self.shared.find(false) {
            Found::Key { shard, taken, .. } => Some(Item::new(&self.shared, shard, &taken)),
            Found::Nothing { .. } | Found::Ended => None,
        }
    }

    /// How many keys are ready: neither running, nor wanted again during their run, nor delayed.
    pub fn len(&self) -> usize {
        self.shared.sum(|shard| shard.core.ready())
    }

    /// Whether no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys are handed out and not done.
    pub fn running(&self) -> usize {
        self.shared.sum(|shard| shard.core.running())
    }

    /// How many keys wait for a deadline.
    pub fn delayed(&self) -> usize {
        self.shared.sum(|shard| shard.wheel.len())
    }

    /// How many keys the rate limiter remembers failures of.
    pub fn failing(&self) -> usize {
        self.shared.limiter.tracked()
    }

    /// Stops the queue: later adds are ignored, delayed keys are dropped, ready keys are still
    /// handed out, and then [`get`](Self::get) returns `None`.
    ///
    /// Does not wait for runs, and ends all drains that wait. Idempotent.
    pub fn shut_down(&self) {
        self.shared.shut_down(None);
        self.shared.drains.force();
    }

    /// As [`shut_down`](Self::shut_down), and waits until nothing is ready and nothing is running,
    /// counting keys that were added during their run.
    ///
    /// The queue is shut down from the first poll on, also if the future is dropped.
    pub fn shut_down_with_drain(&self) -> impl Future<Output = ()> + Send + use<K, O> {
        let drain = Drain::new(Arc::clone(&self.shared), None);
        async move {
            drain.await;
        }
    }

    /// As [`shut_down_with_drain`](Self::shut_down_with_drain), for a limited time.
    ///
    /// Returns the keys that were left: when the deadline passed, those that were not handed out
    /// (the queue hands them out no more) and those that were running (their runs go on, but not
    /// again). Empty when all was done in time. When a [`shut_down`](Self::shut_down) ended the
    /// drain, the keys that were ready or running then; they follow the rules of `shut_down`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use workqueue::{DrainOptions, QueueOptions, WorkQueue};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), workqueue::Error> {
    /// let queue = WorkQueue::new(QueueOptions::default())?;
    /// queue.add("done in time");
    /// queue.add("left");
    /// drop(queue.get().await);
    /// let left = queue
    ///     .drain(DrainOptions {
    ///         deadline: Some(Duration::from_millis(5)),
    ///         include_delayed: false,
    ///     })
    ///     .await;
    /// assert_eq!(left, ["left"]);
    /// assert!(queue.get().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self, options: DrainOptions) -> Vec<K> {
        drain::drain(&self.shared, options).await
    }

    /// Whether the queue has been shut down.
    pub fn is_shut_down(&self) -> bool {
        self.shared.lock(&self.shared.parts[0]).is_shut()
    }

    /// The queue's metrics now. An unnamed queue knows the numbers of its keys only.
    pub fn metrics(&self) -> QueueSnapshot {
        Source::snapshot(&*self.shared)
    }
}

impl<K: QueueKey, O: Order<K>> Clone for WorkQueue<K, O> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: QueueKey, O: Order<K>> fmt::Debug for WorkQueue<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue")
            .field("name", &self.shared.name)
            .field("ready", &self.len())
            .field("running", &self.running())
            .field("delayed", &self.delayed())
            .finish_non_exhaustive()
    }
}

impl<K: QueueKey, O: Order<K>> Shared<K, O> {
    fn part(&self, hash: u64) -> &Part<K, O> {
        if self.parts.len() == 1 {
            return &self.parts[0];
        }
        // Keys that count up differ too regularly in any few bits of their hashes; in the highest
        // ones of a product with this odd number all bits have a say. 2^64 over the golden ratio.
        let [mixed, ..] = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        &self.parts[usize::from(mixed) & (self.parts.len() - 1)]
    }

    fn lock<'a>(&self, part: &'a Part<K, O>) -> TurnGuard<'a, Shard<K, O>> {
        part.lock(|| self.now())
    }

    pub(crate) fn now(&self) -> u64 {
        self.epoch.nanos(self.clock.now())
    }

    #[inline]
    pub(crate) fn add<I: IntoKey<K>>(&self, key: I, hash: u64, priority: i32, counted: Flags) {
        let part = self.part(hash);
        let entrance = if I::OWNED || self.shared_keys {
            part.enter(|| self.now())
        } else {
            Entrance::Shard(self.lock(part))
        };
        match entrance {
            Entrance::Shard(mut shard) => {
                let effects = shard.add(key, hash, priority, counted, || self.now());
                self.settle(part, shard, effects);
            }
            Entrance::Inbox(room) => room.put(Add {
                key: key.into_key(),
                hash,
                at: if self.timed { self.now() } else { 0 },
                priority,
                counted,
            }),
        }
    }

    pub(crate) fn add_with(&self, key: impl IntoKey<K>, hash: u64, options: AddOptions) {
        let priority = options.priority.unwrap_or(0);
        let (mut flags, mut counted) = (Flags::default(), Flags::default());
        let (mut wait, mut now) = (options.after, None);
        if options.rate_limited {
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            let key = KeyRef::with_hash(key.as_key(), hash);
            if self.count_attempts {
                counted = Flags::COUNTED;
            }
            if self.count_attempts && self.count_failure(key, priority) {
                if wait.is_none() {
                    return;
                }
            } else {
                let at = self.clock.now();
                let limit = self.limiter.when(key, at);
                now = Some(self.epoch.nanos(at));
                if wait.is_none_or(|wait| limit <= wait) {
                    flags.set(Flags::BACKOFF);
                    wait = Some(limit);
                }
            }
        }
        let wait = wait.unwrap_or(Duration::ZERO);
        if wait.is_zero() {
            return self.add(key, hash, priority, counted);
        }
        if options.origin == Origin::Reminder {
            flags.set(Flags::REMINDER);
        }
        let now = now.unwrap_or_else(|| self.now());
        let at = now.saturating_add(saturating_nanos(wait)).min(NEVER - 1);
        let delay = Delay {
            now,
            deadline: Deadline { at, flags },
            counted,
            replace: options.replace,
            retry: !options.uncounted,
        };
        let part = self.part(hash);
        let mut shard = self.lock(part);
        let effects = shard.add_after(key, hash, priority, delay);
        self.settle(part, shard, effects);
    }

    fn count_failure(&self, key: KeyRef<'_, K>, priority: i32) -> bool {
        self.lock(self.part(key.hash()))
            .count_failure(key, priority, || self.now())
    }

    /// Releases a shard and tells the workers that wait what has changed in it.
    #[inline]
    fn settle(&self, part: &Part<K, O>, shard: TurnGuard<'_, Shard<K, O>>, effects: Effects) {
        if shard.watched && (effects.ready > 0 || effects.sooner.is_some()) {
            self.tell(part, shard, effects);
        }
    }

    #[cold]
    fn tell(&self, part: &Part<K, O>, mut shard: TurnGuard<'_, Shard<K, O>>, effects: Effects) {
        let mut wakers = Wakers::default();
        part.call(&mut shard, effects.ready, &self.waiters.0, &mut wakers);
        if let Some(deadline) = effects.sooner {
            self.waiters.0.hasten(deadline, &mut wakers);
        }
        drop(shard);
        wakers.wake();
    }

    /// Looks for a key in all shards. With `watch`, a shard where none is found tells the waiting
    /// workers of what comes later.
    pub(crate) fn find(&self, watch: bool) -> Found<K> {
        let n = self.parts.len();
        let start = if n == 1 {
            0
        } else {
            self.turn.0.fetch_add(1, Ordering::Relaxed)
        };
        let mut earliest = NEVER;
        let mut all_ended = true;
        for i in 0..n {
            let index = start.wrapping_add(i) & (n - 1);
            let Look {
                taken,
                fired,
                next,
                ended,
                ..
            } = self.look(index, watch);
            if let Some(taken) = taken {
                return Found::Key {
                    shard: index,
                    taken,
                    fired,
                };
            }
            earliest = earliest.min(next);
            all_ended &= ended;
        }
        if all_ended {
            Found::Ended
        } else {
            Found::Nothing { next: earliest }
        }
    }

    fn look(&self, index: usize, watch: bool) -> Look<K> {
        let part = &self.parts[index];
        loop {
            let mut shard = self.lock(part);
            let look = shard.look(|| self.now());
            let others = look.fired.saturating_sub(usize::from(look.taken.is_some()));
            let mut wakers = Wakers::default();
            part.call(&mut shard, others, &self.waiters.0, &mut wakers);
            let found = look.taken.is_some();
            if found && shard.has_ended() {
                // The last key is out: nobody will call those who wait for another.
                self.waiters.0.call_all(&mut wakers);
            }
            let done = found || !look.unfinished && (!watch || part.watch(&mut shard));
            drop(shard);
            wakers.wake();
            if done {
                return look;
            }
        }
    }

    /// Ends the run of an item.
    pub(crate) fn finish(&self, index: usize, id: KeyId) {
        let part = &self.parts[index];
        let mut shard = self.lock(part);
        let (effects, forgotten) = shard.finish(id, || self.now());
        let idle = shard.is_idle();
        self.settle(part, shard, effects);
        if idle {
            self.drains.wake();
        }
        drop(forgotten);
    }

    pub(crate) fn shut_down(&self, keep_until: Option<u64>) {
        self.closed.store(true, Ordering::Relaxed);
        for part in &self.parts {
            let mut shard = self.up_to_date(part);
            let dropped = part.shut_down(&mut shard, keep_until);
            drop(shard);
            drop(dropped);
        }
        let mut wakers = Wakers::default();
        self.waiters.0.call_all(&mut wakers);
        wakers.wake();
        self.drains.wake();
    }

    /// Whether the queue is shut down and has nothing left to do; it stays so for ever.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.iter().all(|part| self.lock(part).is_idle())
    }

    /// Adds up something over all shards, after what is due has become ready.
    fn sum(&self, count: impl Fn(&Shard<K, O>) -> usize) -> usize {
        self.parts
            .iter()
            .map(|part| count(&self.up_to_date(part)))
            .sum()
    }

    /// Locks a shard in which everything due is ready.
    fn up_to_date<'a>(&self, part: &'a Part<K, O>) -> TurnGuard<'a, Shard<K, O>> {
        loop {
            let mut guard = self.lock(part);
            if guard.wheel.is_empty() {
                return guard;
            }
            let (ready, advance) = guard.fire(self.now());
            if ready == 0 && advance == Advance::Done {
                return guard;
            }
            self.settle(
                part,
                guard,
                Effects {
                    ready,
                    sooner: None,
                },
            );
        }
    }

    fn register(this: &Arc<Self>, registry: &Registry) -> Result<(), Error> {
        let source: std::sync::Weak<dyn Source> = std::sync::Arc::downgrade(this) as _;
        let registration = registry.register(&this.name, source)?;
        this.registration.get_or_init(|| registration);
        Ok(())
    }
}

impl<K: QueueKey, O: Order<K>> Shared<K, O> {
    /// Gives up what a drain has left and returns it; workers that wait see the end.
    pub(crate) fn abandon(&self) -> Vec<K> {
        let left = self
            .parts
            .iter()
            .flat_map(|part| self.lock(part).abandon())
            .collect();
        let mut wakers = Wakers::default();
        self.waiters.0.call_all(&mut wakers);
        wakers.wake();
        self.drains.wake();
        left
    }

    /// Copies of all keys that are ready, running or delayed.
    pub(crate) fn left(&self) -> Vec<K> {
        self.parts
            .iter()
            .flat_map(|part| self.lock(part).left())
            .collect()
    }
}

impl<K: QueueKey, O: Order<K>> Source for Shared<K, O> {
    fn snapshot(&self) -> QueueSnapshot {
        let mut snapshot = QueueSnapshot {
            name: self.name.clone(),
            labels: self.labels.clone(),
            failing: self.limiter.tracked() as u64,
            evicted: self.limiter.evicted(),
            ..QueueSnapshot::default()
        };
        for part in &self.parts {
            let shard = self.up_to_date(part);
            snapshot.ready += shard.core.ready() as u64;
            snapshot.running += shard.core.running() as u64;
            snapshot.delayed += shard.wheel.len() as u64;
            if let Some(recorder) = &shard.recorder {
                recorder.add_to(&mut snapshot, self.now());
            }
        }
        snapshot
    }
}
