//! Q26 and W90: the queue against a reference that is too simple to be wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
};

use proptest::prelude::*;
use workqueue::{
    AddOptions, DrainOptions, Item, OnAdd, Origin, QueueOptions, WorkQueue,
    clock::ManualClock,
    limiter::ItemExponential,
    order::{Fifo, Order, Priority},
};

use crate::support::{Task, ms, options};

type Key = u8;

/// The longest delay of the limiter in milliseconds: far beyond the end of a test.
const MAX_LIMIT: u64 = 1_000_000_000_000;

#[derive(Debug, Clone)]
enum Op {
    Add(Key, AddOptions),
    Forget(Key),
    Cancel(Key),
    Take,
    Done(usize),
    Advance(u64),
    ShutDown,
    /// Drain within so many milliseconds, with the keys due until then or without.
    Drain(u64, bool),
}

/// What the queue should do, in as few words as possible.
#[derive(Debug, Default)]
struct Model {
    by_priority: bool,
    supersede: bool,
    now: u64,
    seq: u64,
    shut: bool,
    /// In the order of arrival, with the priority at which the key stands.
    ready: Vec<(Key, i32)>,
    running: Vec<Key>,
    dirty: BTreeSet<Key>,
    /// By deadline and order of insertion; the flag marks reminders. A key has one of each kind at
    /// most, and a result only before its reminder.
    delayed: BTreeMap<(u64, u64), (Key, bool)>,
    priority: BTreeMap<Key, i32>,
    failures: BTreeMap<Key, u32>,
}

impl Model {
    fn is_ready(&self, key: Key) -> bool {
        self.ready.iter().any(|(ready, _)| *ready == key)
    }

    fn is_delayed(&self, key: Key) -> bool {
        self.delayed.values().any(|(other, _)| *other == key)
    }

    /// How many keys are delayed.
    fn waiting(&self) -> usize {
        let keys = self.delayed.values().map(|(key, _)| key);
        keys.collect::<BTreeSet<_>>().len()
    }

    fn deadline(&self, wanted: (Key, bool)) -> Option<(u64, u64)> {
        let mut found = self.delayed.iter().filter(|(_, of)| **of == wanted);
        found.next().map(|(at, _)| *at)
    }

    /// Ends the wait for a result. A reminder behind it begins to wait in earnest, after those that
    /// wait for the same moment.
    fn end_result(&mut self, key: Key) {
        if let Some(at) = self.deadline((key, false)) {
            self.delayed.remove(&at);
            if let Some(at) = self.deadline((key, true)) {
                self.delayed.remove(&at);
                self.insert(at.0, key, true);
            }
        }
    }

    fn insert(&mut self, until: u64, key: Key, reminder: bool) {
        self.delayed.insert((until, self.seq), (key, reminder));
        self.seq += 1;
    }

    fn add(&mut self, key: Key, options: AddOptions) {
        if self.shut {
            return;
        }
        let mut wait = options
            .after
            .map(|wait| u64::try_from(wait.as_millis()).unwrap());
        if options.rate_limited {
            let failures = self.failures.entry(key).or_default();
            let limit = 1_u64
                .checked_shl(*failures)
                .unwrap_or(MAX_LIMIT)
                .min(MAX_LIMIT);
            *failures += 1;
            wait = Some(wait.map_or(limit, |wait| wait.min(limit)));
        }
        let wanted = self.is_ready(key) || self.dirty.contains(&key);
        let merged = options.priority.unwrap_or(0);
        let before = self.priority.get(&key).copied();
        let pending = wanted || self.is_delayed(key);
        let merged = before
            .filter(|_| pending)
            .map_or(merged, |before| before.max(merged));
        self.priority.insert(key, merged);
        let reminder = options.origin == Origin::Reminder;
        match wait.filter(|wait| *wait > 0) {
            None => {
                if self.supersede {
                    self.end_result(key);
                }
                self.want(key);
            }
            Some(wait) => {
                if self.is_ready(key) {
                    self.want(key);
                }
                if !(wanted && self.supersede && !reminder) {
                    self.delay(key, self.now + wait, reminder, options.replace);
                }
            }
        }
    }

    fn delay(&mut self, key: Key, until: u64, reminder: bool, replace: bool) {
        let pending = self.deadline((key, reminder));
        if pending.is_some_and(|at| at.0 == until || at.0 < until && !replace) {
            return;
        }
        let stands = |at: (u64, u64)| at.0 <= until;
        if !reminder && pending.is_none() && self.deadline((key, true)).is_some_and(stands) {
            return;
        }
        if let Some(at) = pending {
            self.delayed.remove(&at);
        }
        self.insert(until, key, reminder);
        let both = self.deadline((key, false)).zip(self.deadline((key, true)));
        if both.is_some_and(|(result, reminder)| reminder.0 <= result.0) {
            self.end_result(key);
        }
    }

    fn want(&mut self, key: Key) {
        let level = if self.by_priority {
            self.priority[&key]
        } else {
            0
        };
        if let Some(place) = self.ready.iter().position(|(ready, _)| *ready == key) {
            if level > self.ready[place].1 {
                self.ready.remove(place);
                self.ready.push((key, level));
            }
        } else if self.running.contains(&key) {
            self.dirty.insert(key);
        } else {
            self.ready.push((key, level));
        }
    }

    fn advance(&mut self, by: u64) {
        self.now += by;
        while let Some(entry) = self.delayed.first_entry().filter(|e| e.key().0 <= self.now) {
            let (key, reminder) = *entry.get();
            if reminder {
                entry.remove();
            } else {
                self.end_result(key);
            }
            self.want(key);
        }
    }

    fn take(&mut self) -> Option<(Key, i32)> {
        let highest = self.ready.iter().map(|(_, level)| *level).max()?;
        let place = self.ready.iter().position(|(_, level)| *level == highest)?;
        let (key, _) = self.ready.remove(place);
        self.running.push(key);
        Some((key, self.priority[&key]))
    }

    fn drain(&mut self, until: u64, include_delayed: bool) {
        self.shut = true;
        self.delayed
            .retain(|(due, _), _| include_delayed && *due <= until);
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.running.is_empty() && self.delayed.is_empty()
    }

    /// What a drain leaves when its time is over: each key once.
    fn abandon(&mut self) -> BTreeSet<Key> {
        self.dirty.clear();
        let ready = std::mem::take(&mut self.ready)
            .into_iter()
            .map(|(key, _)| key);
        let delayed = std::mem::take(&mut self.delayed)
            .into_values()
            .map(|(key, _)| key);
        ready
            .chain(delayed)
            .chain(self.running.iter().copied())
            .collect()
    }

    fn done(&mut self, index: usize) {
        let key = self.running.remove(index);
        if self.dirty.remove(&key) {
            self.want(key);
        }
    }
}

/// The queue and the model, side by side.
struct Pair<O: Order<Key>> {
    queue: WorkQueue<Key, O>,
    clock: ManualClock,
    items: Vec<Item<'static, Key, O>>,
    /// A drain under way, and when its time is over.
    drain: Option<(Task<Drain>, u64)>,
    model: Model,
}

type Drain = Pin<Box<dyn Future<Output = Vec<Key>>>>;

impl<O: Order<Key>> Pair<O> {
    fn new(by_priority: bool, on_add: OnAdd, named: bool, order: fn() -> O) -> Self {
        let (options, clock) = options();
        let name = if named { "model" } else { "" }.to_owned();
        let registry = workqueue::metrics::Registry::new();
        // The limiter must not forget idle keys on its own: the model does not.
        let limiter = Arc::new(ItemExponential::new(ms(1), ms(MAX_LIMIT)));
        let options = QueueOptions {
            on_add: Some(on_add),
            name,
            registry,
            limiter,
            ..options
        };
        let queue = WorkQueue::with_order(options, order).unwrap();
        let supersede = on_add == OnAdd::Supersede;
        let model = Model {
            by_priority,
            supersede,
            ..Model::default()
        };
        Self {
            queue,
            clock,
            items: Vec::new(),
            drain: None,
            model,
        }
    }

    fn step(&mut self, op: &Op) {
        match op.clone() {
            Op::Add(key, options) => {
                self.queue.add_with(key, options);
                self.model.add(key, options);
            }
            Op::Forget(key) => {
                self.queue.forget(&key);
                self.model.failures.remove(&key);
            }
            Op::Cancel(key) => {
                let pending = self.model.is_delayed(key);
                assert_eq!(self.queue.cancel_after(&key), pending);
                self.model.delayed.retain(|_, (other, _)| *other != key);
            }
            Op::Take => {
                let item = self.queue.try_get().map(Item::into_owned);
                let taken = item.as_ref().map(|item| (**item, item.priority()));
                assert_eq!(taken, self.model.take());
                self.items.extend(item);
            }
            Op::Done(index) if !self.items.is_empty() => {
                let index = index % self.items.len();
                drop(self.items.remove(index));
                self.model.done(index);
            }
            Op::Done(_) => {}
            Op::Advance(by) => {
                self.clock.advance(ms(by));
                self.model.advance(by);
            }
            Op::ShutDown if self.drain.is_none() => {
                self.queue.shut_down();
                self.model.shut = true;
                self.model.delayed.clear();
            }
            Op::Drain(within, include_delayed) if !self.model.shut => {
                let options = DrainOptions {
                    deadline: Some(ms(within)),
                    include_delayed,
                };
                let queue = self.queue.clone();
                let drain: Drain = Box::pin(async move { queue.drain(options).await });
                let until = self.model.now + within;
                self.drain = Some((Task::new(drain), until));
                self.model.drain(until, include_delayed);
            }
            Op::ShutDown | Op::Drain(..) => {}
        }
        self.look_at_drain();
    }

    /// A drain ends when nothing is left, or with what is left when its time is over.
    fn look_at_drain(&mut self) {
        let Some((mut task, until)) = self.drain.take() else {
            return;
        };
        let left = if self.model.is_idle() {
            BTreeSet::new()
        } else if self.model.now >= until {
            self.model.abandon()
        } else {
            assert!(task.poll().is_pending());
            self.drain = Some((task, until));
            return;
        };
        let found = task.output();
        assert_eq!(found.len(), left.len(), "each key once: {found:?}");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), left);
    }

    /// Compares what can be seen; `Op`s that let time pass unobserved come in between.
    fn check(&self) {
        let model = &self.model;
        let seen = (self.queue.len(), self.queue.running(), self.queue.delayed());
        assert_eq!(
            seen,
            (model.ready.len(), model.running.len(), model.waiting())
        );
        assert_eq!(self.queue.failing(), model.failures.len());
        let metrics = self.queue.metrics();
        if !metrics.name.is_empty() {
            let depth = model.ready.len() + model.dirty.len();
            assert_eq!(metrics.depth, depth as u64);
            assert!(
                metrics.depth_by_priority.is_empty()
                    || metrics.depth_by_priority.values().sum::<u64>() == metrics.depth
            );
        }
    }

    fn run(mut self, ops: &[Op]) {
        for (step, op) in ops.iter().enumerate() {
            self.step(op);
            if step % 3 == 0 {
                self.check();
            }
        }
        self.check();
        // In the end everything wanted is handed out, in order.
        self.items.clear();
        (0..self.model.running.len()).for_each(|_| self.model.done(0));
        while let Some(expected) = self.model.take() {
            let item = self.queue.try_get().map(|item| (*item, item.priority()));
            assert_eq!(item, Some(expected));
            self.model.done(self.model.running.len() - 1);
        }
        assert!(self.queue.try_get().is_none());
    }
}

fn run_all(ops: &[Op]) {
    Pair::new(false, OnAdd::Keep, true, Fifo::default).run(ops);
    Pair::new(false, OnAdd::Supersede, false, Fifo::default).run(ops);
    Pair::new(true, OnAdd::Supersede, true, Priority::default).run(ops);
    Pair::new(true, OnAdd::Keep, false, Priority::default).run(ops);
}

fn add_options() -> impl Strategy<Value = AddOptions> {
    let after = prop_oneof![3 => Just(None), 3 => (0..50_u64).prop_map(Some), 1 => (0..5_000_u64).prop_map(Some)];
    let origin = prop_oneof![2 => Just(Origin::Result), 1 => Just(Origin::Reminder)];
    let priority = prop_oneof![Just(None), (-2..3).prop_map(Some)];
    (
        after,
        prop::bool::weighted(0.2),
        priority,
        origin,
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(after, rate_limited, priority, origin, replace)| AddOptions {
                after: after.map(ms),
                rate_limited,
                priority,
                origin,
                replace,
                uncounted: false,
            },
        )
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..12_u8;
    prop_oneof![
        400 => (key.clone(), add_options()).prop_map(|(key, options)| Op::Add(key, options)),
        30 => key.clone().prop_map(Op::Forget),
        20 => key.prop_map(Op::Cancel),
        200 => Just(Op::Take),
        200 => any::<usize>().prop_map(Op::Done),
        100 => (0..20_u64).prop_map(Op::Advance),
        10 => (0..3_000_u64).prop_map(Op::Advance),
        1 => Just(Op::ShutDown),
        1 => (0..2_000_u64, any::<bool>()).prop_map(|(within, all)| Op::Drain(within, all)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn q26_w90_random_operations_do_what_the_reference_says(
        ops in prop::collection::vec(op(), 1..600),
    ) {
        run_all(&ops);
    }
}

#[test]
fn q26_w90_a_hundred_thousand_operations_in_a_row_for_several_seeds() {
    use proptest::{
        strategy::ValueTree,
        test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
    };

    for seed in 0..4_u8 {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let one = op();
        let ops: Vec<_> = (0..100_000)
            .map(|_| one.new_tree(&mut runner).unwrap().current())
            .filter(|op| !matches!(op, Op::ShutDown))
            .collect();
        run_all(&ops);
    }
}
