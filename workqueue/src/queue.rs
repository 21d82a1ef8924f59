//! The queue as its users see it: routing to shards, wake-ups, shutdown.

use std::{fmt, time::Duration};

use crate::{
    KeyId,
    clock::{Clock, Epoch, saturating_nanos},
    delay::Advance,
    drain::{self, Drain, DrainOptions, Drains},
    error::Error,
    get::Get,
    item::Item,
    key::{IntoKey, KeyRef, QueueKey, hash_of},
    limiter::RateLimiter,
    metrics::{QueueSnapshot, Recorder, Registration, Registry, Source},
    options::{AddOptions, Origin, QueueOptions},
    order::{Fifo, Order},
    shard::{Delay, Effects, Look, Rules, Shard, Taken},
    slab::Flags,
    sync::{Arc, AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, Padded},
    wait::{NEVER, WaitList, Wakers},
};

/// A queue of distinct keys that any number of tasks and threads add to and take from.
///
/// A handle: clones are the same queue. See the [crate documentation](crate) for what the queue
/// guarantees. `O` is the [order](crate::order) in which ready keys leave.
pub struct WorkQueue<K: QueueKey, O: Order<K> = Fifo> {
    pub(crate) shared: Arc<Shared<K, O>>,
}

type LockedShard<K, O> = Mutex<Shard<K, O>>;

pub(crate) struct Shared<K: QueueKey, O: Order<K>> {
    shards: Box<[Padded<LockedShard<K, O>>]>,
    /// Where the next look for a key begins, if there are several shards.
    turn: Padded<AtomicUsize>,
    pub(crate) waiters: WaitList,
    pub(crate) drains: Drains,
    pub(crate) limiter: std::sync::Arc<dyn RateLimiter<K>>,
    pub(crate) clock: std::sync::Arc<dyn Clock>,
    pub(crate) epoch: Epoch,
    /// Set before the shards are shut, to spare the limiter adds that would come to nothing.
    closed: AtomicBool,
    count_attempts: bool,
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
        let mut shards = Vec::with_capacity(n);
        for _ in 0..n {
            let order = order();
            if n > 1 && !order.shardable() {
                return Err(Error::OrderNeedsOneShard { shards: n });
            }
            let recorder = named.then(|| Box::new(Recorder::new(O::PRIORITIES)));
            shards.push(Padded(Mutex::new(Shard::new(order, rules, recorder))));
        }
        let shared = Arc::new(Shared {
            shards: shards.into_boxed_slice(),
            turn: Padded(AtomicUsize::new(0)),
            waiters: WaitList::new(),
            drains: Drains::new(),
            limiter: options.limiter,
            epoch: Epoch::new(&*options.clock),
            clock: options.clock,
            closed: AtomicBool::new(false),
            count_attempts: options.count_attempts,
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
    /// after that. Takes the key by value or by reference. Never waits; ignored after shutdown.
    pub fn add(&self, key: impl IntoKey<K>) {
        let hash = hash_of(key.as_key());
        self.shared.add(key, hash, 0, Flags::default());
    }

    /// Asks for a run of the key once `delay` has passed; at once if it is zero.
    ///
    /// Of several deadlines of a key the earliest holds. Never waits, however many deadlines are
    /// pending; ignored after shutdown. O(1), amortised.
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

    /// Drops the pending deadline of a key. Returns whether there was one.
    pub fn cancel_after(&self, key: &K) -> bool {
        let key = KeyRef::from(key);
        let shard = self.shared.shard(key.hash());
        let (was_pending, forgotten) = self.shared.up_to_date(shard).cancel_after(key);
        drop(forgotten);
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
    pub fn try_get(&self) -> Option<Item<K, O>> {
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
    pub async fn drain(&self, options: DrainOptions) -> Vec<K> {
        drain::drain(&self.shared, options).await
    }

    /// Whether the queue has been shut down.
    pub fn is_shut_down(&self) -> bool {
        self.shared.shards[0].0.lock().is_shut()
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
    fn shard_index(&self, hash: u64) -> usize {
        // The half of the hash that the shard's table does not use.
        let mask = self.shards.len() as u64 - 1;
        usize::try_from(hash & mask).expect("below the number of shards")
    }

    pub(crate) fn shard(&self, hash: u64) -> &LockedShard<K, O> {
        &self.shards[self.shard_index(hash)].0
    }

    pub(crate) fn now(&self) -> u64 {
        self.epoch.nanos(self.clock.now())
    }

    pub(crate) fn add(&self, key: impl IntoKey<K>, hash: u64, priority: i32, counted: Flags) {
        let mut shard = self.shard(hash).lock();
        let effects = shard.add(key, hash, priority, counted, || self.now());
        self.settle(shard, effects);
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
        let deadline = now.saturating_add(saturating_nanos(wait)).min(NEVER - 1);
        let delay = Delay {
            now,
            deadline,
            flags,
            counted,
            replace: options.replace,
        };
        let mut shard = self.shard(hash).lock();
        let effects = shard.add_after(key, hash, priority, delay);
        self.settle(shard, effects);
    }

    fn count_failure(&self, key: KeyRef<'_, K>, priority: i32) -> bool {
        self.shard(key.hash())
            .lock()
            .count_failure(key, priority, || self.now())
    }

    /// Releases a shard and tells the workers that wait what has changed in it.
    fn settle(&self, mut shard: MutexGuard<'_, Shard<K, O>>, effects: Effects) {
        if !shard.watched || (effects.ready == 0 && effects.sooner.is_none()) {
            return;
        }
        let mut wakers = Wakers::default();
        if effects.ready > 0 {
            // With the shard locked nobody can look at it and miss this, so an empty list is news.
            shard.watched = !self.waiters.call(effects.ready, &mut wakers);
        }
        if let Some(deadline) = effects.sooner {
            self.waiters.hasten(deadline, &mut wakers);
        }
        drop(shard);
        wakers.wake();
    }

    /// Looks for a key in all shards. With `watch`, a shard where none is found tells the waiting
    /// workers of what comes later.
    pub(crate) fn find(&self, watch: bool) -> Found<K> {
        let n = self.shards.len();
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
        loop {
            let mut shard = self.shards[index].0.lock();
            let look = shard.look(|| self.now());
            let others = look.fired.saturating_sub(usize::from(look.taken.is_some()));
            let mut wakers = Wakers::default();
            if others > 0 && shard.watched {
                shard.watched = !self.waiters.call(others, &mut wakers);
            }
            let done = look.taken.is_some() || !look.unfinished;
            if watch && done && look.taken.is_none() {
                shard.watched = true;
            }
            drop(shard);
            wakers.wake();
            if done {
                return look;
            }
        }
    }

    /// Ends the run of an item.
    pub(crate) fn finish(&self, index: usize, id: KeyId) {
        let mut shard = self.shards[index].0.lock();
        let (effects, forgotten) = shard.finish(id, || self.now());
        let idle = shard.is_idle();
        self.settle(shard, effects);
        if idle {
            self.drains.wake();
        }
        drop(forgotten);
    }

    pub(crate) fn shut_down(&self, keep_until: Option<u64>) {
        self.closed.store(true, Ordering::Relaxed);
        for shard in &self.shards {
            let dropped = self.up_to_date(&shard.0).shut_down(keep_until);
            drop(dropped);
        }
        let mut wakers = Wakers::default();
        self.waiters.call_all(&mut wakers);
        wakers.wake();
        self.drains.wake();
    }

    /// Whether the queue is shut down and has nothing left to do; it stays so for ever.
    pub(crate) fn is_idle(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_idle())
    }

    /// Adds up something over all shards, after what is due has become ready.
    fn sum(&self, count: impl Fn(&Shard<K, O>) -> usize) -> usize {
        self.shards
            .iter()
            .map(|shard| count(&self.up_to_date(&shard.0)))
            .sum()
    }

    /// Locks a shard in which everything due is ready.
    fn up_to_date<'a>(&self, shard: &'a LockedShard<K, O>) -> MutexGuard<'a, Shard<K, O>> {
        loop {
            let mut guard = shard.lock();
            if guard.wheel.is_empty() {
                return guard;
            }
            let (ready, advance) = guard.fire(self.now());
            if ready == 0 && advance == Advance::Done {
                return guard;
            }
            self.settle(
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
            .shards
            .iter()
            .flat_map(|shard| shard.0.lock().abandon())
            .collect();
        let mut wakers = Wakers::default();
        self.waiters.call_all(&mut wakers);
        wakers.wake();
        self.drains.wake();
        left
    }

    /// Copies of all keys that are ready, running or delayed.
    pub(crate) fn left(&self) -> Vec<K> {
        self.shards
            .iter()
            .flat_map(|shard| shard.0.lock().left())
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
        for shard in &self.shards {
            let shard = self.up_to_date(&shard.0);
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
