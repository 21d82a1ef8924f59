//! One shard: the core, with delays, shutdown and metrics around it. Lives under one lock.

use std::ptr::NonNull;

use crate::{
    KeyId, OnAdd,
    core::{Core, Wanted},
    deadlines::{Deadline, Deadlines, Later},
    delay::{Advance, Wheel},
    inbox::Add,
    key::{IntoKey, KeyRef},
    metrics::Recorder,
    order::Order,
    slab::Flags,
    wait::NEVER,
};

/// Moves of the delay wheel that one hold of the lock may make: some ten microseconds.
const STEP: usize = 256;

pub(crate) struct Shard<K, O: Order<K>> {
    pub(crate) core: Core<K, O>,
    pub(crate) wheel: Wheel,
    /// Reminders of keys that wait in the wheel for something else first.
    later: Later,
    pub(crate) recorder: Option<Box<Recorder>>,
    rules: Rules,
    shut: bool,
    /// Somebody who has looked at this shard may be waiting.
    pub(crate) watched: bool,
    /// The inbox's adds while they are carried out; else empty.
    pub(crate) batch: Vec<Add<K>>,
}

/// What the options say about adds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) on_add: OnAdd,
    pub(crate) drop_if_waiting: bool,
}

/// What waiting workers have to be told about.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Effects {
    /// Keys that can be taken now and could not before.
    pub(crate) ready: usize,
    /// A deadline that is earlier than all others.
    pub(crate) sooner: Option<u64>,
}

impl Effects {
    fn ready(ready: usize) -> Self {
        Self {
            ready,
            sooner: None,
        }
    }
}

/// A delayed add.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delay {
    pub(crate) now: u64,
    pub(crate) deadline: Deadline,
    /// `COUNTED` or nothing.
    pub(crate) counted: Flags,
    /// Take this deadline even if it is later than the pending one of its kind.
    pub(crate) replace: bool,
    /// Whether it is a retry for the metrics.
    pub(crate) retry: bool,
}

/// A key on its way to a worker.
#[derive(Debug)]
pub(crate) struct Taken<K> {
    pub(crate) id: KeyId,
    /// Valid until `finish(id)`.
    pub(crate) key: NonNull<K>,
    pub(crate) hash: u64,
    pub(crate) priority: i32,
}

/// What a look for a key has found.
#[derive(Debug)]
pub(crate) struct Look<K> {
    pub(crate) taken: Option<Taken<K>>,
    /// Delayed keys that have become ready.
    pub(crate) fired: usize,
    /// The wheel needs another step before it is known what is due.
    pub(crate) unfinished: bool,
    pub(crate) next: u64,
    /// Nothing is left that could be handed out, and nothing will be added.
    pub(crate) ended: bool,
}

impl<K: Eq, O: Order<K>> Shard<K, O> {
    pub(crate) fn new(order: O, rules: Rules, recorder: Option<Box<Recorder>>) -> Self {
        Self {
            core: Core::new(order),
            wheel: Wheel::new(),
            later: Later::new(),
            recorder,
            rules,
            shut: false,
            watched: false,
            batch: Vec::new(),
        }
    }

    /// Whether adds, hand-outs and ends of runs are told the time; if not, 0 will do.
    #[inline]
    pub(crate) fn timed(&self) -> bool {
        self.recorder.is_some() || self.core.timed()
    }

    /// Adds a key now. `counted` is `COUNTED` or nothing.
    #[inline]
    pub(crate) fn add(
        &mut self,
        key: impl IntoKey<K>,
        hash: u64,
        priority: i32,
        counted: Flags,
        now: impl Fn() -> u64,
    ) -> Effects {
        if self.shut {
            return Effects::default();
        }
        let fired = self.catch_up(&now);
        let at = if self.timed() { now() } else { 0 };
        let (id, known) = self.core.intern(key, hash);
        let flags = self.merge(id, known, priority, counted);
        let wanted = flags.any(Flags::WANTED);
        if flags.any(Flags::DELAYED) {
            if self.rules.drop_if_waiting && flags.any(Flags::BACKOFF) && !wanted {
                return Effects::ready(fired);
            }
            if self.rules.on_add == OnAdd::Supersede && !flags.any(Flags::REMINDER) {
                self.leave_wheel(id);
                self.remind(id, &now);
            }
        }
        if wanted {
            self.touch(id, flags, at);
            return Effects::ready(fired);
        }
        Effects::ready(fired + self.want(id, at))
    }

    /// Makes the adds of the batch.
    #[cold]
    pub(crate) fn carry_out(&mut self, now: impl Fn() -> u64) {
        let timed = self.timed();
        let mut batch = std::mem::take(&mut self.batch);
        for add in batch.drain(..) {
            let at = || if timed { add.at } else { now() };
            self.add(add.key, add.hash, add.priority, add.counted, at);
        }
        self.batch = batch;
    }

    /// Tells the line that a wanted key has been added again.
    #[inline]
    fn touch(&mut self, id: KeyId, flags: Flags, at: u64) {
        if flags.any(Flags::READY) {
            self.core.touch(id, at);
        }
    }

    /// Lets keys that are due get ready before something else joins the line; returns how many.
    /// `now` is asked only while deadlines are pending.
    #[inline]
    fn catch_up(&mut self, now: impl Fn() -> u64) -> usize {
        let Some(next) = self.wheel.next() else {
            return 0;
        };
        let now = now();
        if next <= now { self.fire(now).0 } else { 0 }
    }

    /// Merges the priority of an add into what is pending of the key, and sets `counted`. Returns
    /// the key's states.
    #[inline]
    fn merge(&mut self, id: KeyId, known: bool, priority: i32, counted: Flags) -> Flags {
        let meta = self.core.slab.meta_mut(id);
        meta.flags.set(counted);
        let flags = meta.flags;
        if !known || !flags.any(Flags::PENDING) {
            meta.priority = priority;
        } else if meta.priority < priority {
            let before = std::mem::replace(&mut meta.priority, priority);
            if flags.any(Flags::WANTED)
                && let Some(recorder) = &mut self.recorder
            {
                recorder.moved(before, priority);
            }
        }
        flags
    }

    /// Asks for a run. Returns how many keys can be taken because of that: 0 or 1.
    fn want(&mut self, id: KeyId, at: u64) -> usize {
        let wanted = self.core.want(id, at);
        if wanted != Wanted::Already
            && let Some(recorder) = &mut self.recorder
        {
            let priority = self.core.slab.meta(id).priority;
            recorder.wanted(id, priority, at, wanted == Wanted::Ready);
        }
        usize::from(wanted == Wanted::Ready)
    }

    fn leave_wheel(&mut self, id: KeyId) {
        self.wheel.remove(&mut self.core.slab, id);
        self.core.flags_mut(id).clear(Flags::DEADLINE);
    }

    fn enter_wheel(&mut self, id: KeyId, now: u64, deadline: Deadline) {
        self.wheel.insert(&mut self.core.slab, id, now, deadline.at);
        let flags = self.core.flags_mut(id);
        flags.set(Flags::DELAYED);
        flags.set(deadline.flags);
    }

    /// Drops all deadlines of a key.
    fn stop_waiting(&mut self, id: KeyId) {
        self.leave_wheel(id);
        self.later.take(id);
    }

    /// Lets a wanted key whose result's deadline is over wait for its reminder, if it has one; the
    /// run to come stands for one that is due.
    #[inline]
    fn remind(&mut self, id: KeyId, now: impl Fn() -> u64) {
        // Most queues have none at any time.
        if !self.later.is_empty() {
            self.remind_later(id, now);
        }
    }

    #[cold]
    fn remind_later(&mut self, id: KeyId, now: impl Fn() -> u64) {
        if let Some(reminder) = self.later.take(id) {
            let now = now();
            if reminder.at > now {
                self.enter_wheel(id, now, reminder);
            }
        }
    }

    /// Adds a key when a deadline has come.
    pub(crate) fn add_after(
        &mut self,
        key: impl IntoKey<K>,
        hash: u64,
        priority: i32,
        delay: Delay,
    ) -> Effects {
        if self.shut {
            return Effects::default();
        }
        let fired = self.catch_up(|| delay.now);
        let (id, known) = self.core.intern(key, hash);
        if delay.retry
            && let Some(recorder) = &mut self.recorder
        {
            recorder.retried();
        }
        let flags = self.merge(id, known, priority, delay.counted);
        self.touch(id, flags, delay.now);
        let reminder = delay.deadline.flags.any(Flags::REMINDER);
        if flags.any(Flags::WANTED) && self.rules.on_add == OnAdd::Supersede && !reminder {
            // The run to come stands for this one too.
            return Effects::ready(fired);
        }
        Effects {
            ready: fired,
            sooner: self.schedule(id, delay),
        }
    }

    /// Sets or merges the key's deadline; returns it if it is now the earliest of all.
    fn schedule(&mut self, id: KeyId, delay: Delay) -> Option<u64> {
        let before = self.wheel.next();
        let mut first = delay.deadline;
        if self.core.flags(id).any(Flags::DELAYED) {
            let pending = self.pending(id);
            let merged = pending.with(delay.deadline, delay.replace);
            if merged.later != pending.later {
                self.later.set(id, merged.later);
            }
            if merged.first == pending.first {
                return None;
            }
            self.leave_wheel(id);
            first = merged.first;
        }
        self.enter_wheel(id, delay.now, first);
        let sooner = before.is_none_or(|before| first.at < before);
        sooner.then_some(first.at)
    }

    /// What a delayed key waits for.
    fn pending(&self, id: KeyId) -> Deadlines {
        let meta = self.core.slab.meta(id);
        let first = Deadline {
            at: meta.deadline,
            flags: meta.flags.only(Flags::ORIGIN),
        };
        let later = self.later.of(id);
        Deadlines { first, later }
    }

    /// Drops the pending deadlines of a key, which must not be due. Returns whether there were any,
    /// and the key if it is forgotten.
    pub(crate) fn cancel_after(&mut self, key: KeyRef<'_, K>) -> (bool, Option<K>) {
        match self.core.find(key) {
            Some(id) if self.core.flags(id).any(Flags::DELAYED) => {
                self.stop_waiting(id);
                self.core.flags_mut(id).clear(Flags::COUNTED);
                (true, self.core.forget_idle(id))
            }
            _ => (false, None),
        }
    }

    /// Notes that a failure of the key is being counted. Returns whether one had been counted
    /// since the last run began; then the wait for it stands, with the higher priority.
    pub(crate) fn count_failure(
        &mut self,
        key: KeyRef<'_, K>,
        priority: i32,
        now: impl Fn() -> u64,
    ) -> bool {
        let Some(id) = self.core.find(key) else {
            return false;
        };
        let flags = self.core.flags_mut(id);
        if !flags.any(Flags::COUNTED) {
            flags.set(Flags::COUNTED);
            return false;
        }
        let flags = self.merge(id, true, priority, Flags::COUNTED);
        let at = if self.timed() { now() } else { 0 };
        self.touch(id, flags, at);
        true
    }

    /// Lets due keys get ready: one step of the wheel.
    pub(crate) fn fire(&mut self, now: u64) -> (usize, Advance) {
        let mut due = [KeyId::NONE; STEP];
        let mut n = 0;
        let advance = self.wheel.advance(&mut self.core.slab, now, STEP, |_, id| {
            due[n] = id;
            n += 1;
        });
        let mut fired = 0;
        for id in &due[..n] {
            let deadline = self.core.slab.meta(*id).deadline;
            self.core.flags_mut(*id).clear(Flags::DEADLINE);
            fired += self.want(*id, deadline);
            self.remind(*id, || now);
        }
        (fired, advance)
    }

    /// Looks for a key to hand out. `now` is asked only if there is need.
    pub(crate) fn look(&mut self, now: impl Fn() -> u64) -> Look<K> {
        let (mut fired, mut advance) = (0, Advance::Done);
        if let Some(next) = self.wheel.next() {
            let now = now();
            if next <= now {
                (fired, advance) = self.fire(now);
            }
        }
        let taken = self.core.take().map(|id| {
            let meta = self.core.slab.meta(id);
            let (hash, priority) = (meta.hash, meta.priority);
            if let Some(recorder) = &mut self.recorder {
                recorder.started(id, priority, now());
            }
            Taken {
                id,
                key: self.core.slab.key_address(id),
                hash,
                priority,
            }
        });
        Look {
            fired,
            unfinished: advance == Advance::More,
            next: self.wheel.next().unwrap_or(NEVER),
            ended: taken.is_none() && self.has_ended(),
            taken,
        }
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shut && self.core.ready() == 0 && self.wheel.is_empty()
    }

    /// Ends a run. Returns the key if it is forgotten, to be dropped without the lock.
    pub(crate) fn finish(&mut self, id: KeyId, now: impl Fn() -> u64) -> (Effects, Option<K>) {
        let flags = self.core.flags(id);
        let may_join = flags.any(Flags::DIRTY) || flags.any(Flags::DELAYED);
        let fired = if may_join { self.catch_up(&now) } else { 0 };
        let at = if self.timed() { now() } else { 0 };
        if let Some(recorder) = &mut self.recorder {
            recorder.finished(id, at);
        }
        let finished = self.core.finish(id, at);
        if finished.requeued
            && let Some(recorder) = &mut self.recorder
        {
            recorder.joined(id, at);
        }
        self.trim();
        let ready = fired + usize::from(finished.requeued) + usize::from(finished.released);
        (Effects::ready(ready), finished.key)
    }

    /// Lets the side table of the metrics shrink with the keys.
    fn trim(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.trim(self.core.slab.bound());
        }
    }

    /// Ignores adds from now on. Drops delayed keys, those due by `keep_until` excepted.
    ///
    /// Returns the keys that are forgotten, to be dropped without the lock.
    pub(crate) fn shut_down(&mut self, keep_until: Option<u64>) -> Vec<K> {
        self.shut = true;
        self.later.cut(keep_until);
        let mut dropped = Vec::new();
        self.core.slab.for_each(|id, meta| {
            let delayed = meta.flags.any(Flags::DELAYED);
            let kept = keep_until.is_some_and(|until| meta.deadline <= until);
            dropped.extend((delayed && !kept).then_some(id));
        });
        dropped
            .into_iter()
            .filter_map(|id| {
                self.stop_waiting(id);
                self.core.forget_idle(id)
            })
            .collect()
    }

    /// Whether the shard is shut down and has nothing left to do; it stays so for ever.
    pub(crate) fn is_idle(&self) -> bool {
        self.has_ended() && self.core.running() == 0
    }
}

impl<K: Eq + Clone, O: Order<K>> Shard<K, O> {
    /// Copies of all keys that are ready, running or delayed.
    pub(crate) fn left(&self) -> Vec<K> {
        let mut ids = Vec::new();
        self.core.slab.for_each(|id, _| ids.push(id));
        ids.into_iter()
            .map(|id| self.core.slab.key(id).clone())
            .collect()
    }

    /// Gives up what a drain has left: returns ready, running and kept delayed keys, and hands
    /// none of them out any more.
    pub(crate) fn abandon(&mut self) -> Vec<K> {
        let mut twice = Vec::new();
        self.core.slab.for_each(|id, meta| {
            if meta.flags.any(Flags::READY) && meta.flags.any(Flags::DELAYED) {
                twice.push(id);
            }
        });
        for id in twice {
            self.stop_waiting(id);
        }
        let mut left = self.core.abandon();
        if let Some(recorder) = &mut self.recorder {
            recorder.abandoned();
        }
        let (mut running, mut delayed) = (Vec::new(), Vec::new());
        self.core.slab.for_each(|id, meta| {
            if meta.flags.any(Flags::RUNNING) {
                running.push(id);
            } else if meta.flags.any(Flags::DELAYED) {
                delayed.push(id);
            }
        });
        for id in &running {
            // Its re-run is part of what is left.
            self.core.flags_mut(*id).clear(Flags::DIRTY);
            left.push(self.core.slab.key(*id).clone());
        }
        for id in running.iter().chain(&delayed) {
            if self.core.flags(*id).any(Flags::DELAYED) {
                self.stop_waiting(*id);
            }
        }
        left.extend(
            delayed
                .into_iter()
                .filter_map(|id| self.core.forget_idle(id)),
        );
        left
    }
}
