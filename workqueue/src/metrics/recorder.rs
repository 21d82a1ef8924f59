//! Counting, beside the core and under its lock.

use std::time::Duration;

use super::{Histogram, MAX_PRIORITIES, PriorityLabel, QueueSnapshot};
use crate::{
    KeyId,
    list::{LinkStore, Links, List},
};

/// The counters of one shard. Times are nanoseconds since the queue was made.
#[derive(Debug)]
pub(crate) struct Recorder {
    adds: u64,
    retries: u64,
    queue_duration: Histogram,
    work_duration: Histogram,
    depth: u64,
    priorities: Option<Priorities>,
    /// By key id.
    stamps: Vec<Stamp>,
    /// Keys in the line, in the order in which they joined it.
    ready: List,
    /// Running keys, the oldest run first.
    running: List,
    n_running: u64,
    /// Sum of the moments at which the present runs began.
    started_sum: u128,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stamp {
    wanted_at: u64,
    joined_at: u64,
    started_at: u64,
    ready: Links,
    running: Links,
}

struct ReadyLinks<'a>(&'a mut [Stamp]);

impl LinkStore for ReadyLinks<'_> {
    fn links(&mut self, id: KeyId) -> &mut Links {
        &mut self.0[id.index()].ready
    }
}

struct RunningLinks<'a>(&'a mut [Stamp]);

impl LinkStore for RunningLinks<'_> {
    fn links(&mut self, id: KeyId) -> &mut Links {
        &mut self.0[id.index()].running
    }
}

/// Depth by priority. The list only grows, so one priority counts in one place for ever.
#[derive(Debug, Default)]
struct Priorities {
    seen: Vec<(i32, u64)>,
    other: u64,
}

impl Priorities {
    fn depth(&mut self, priority: i32) -> &mut u64 {
        if let Some(index) = self.seen.iter().position(|(seen, _)| *seen == priority) {
            return &mut self.seen[index].1;
        }
        if self.seen.len() == MAX_PRIORITIES {
            return &mut self.other;
        }
        let index = self.seen.len();
        self.seen.push((priority, 0));
        &mut self.seen[index].1
    }
}

impl Recorder {
    pub(crate) fn new(by_priority: bool) -> Self {
        Self {
            adds: 0,
            retries: 0,
            queue_duration: Histogram::default(),
            work_duration: Histogram::default(),
            depth: 0,
            priorities: by_priority.then(Priorities::default),
            stamps: Vec::new(),
            ready: List::EMPTY,
            running: List::EMPTY,
            n_running: 0,
            started_sum: 0,
        }
    }

    /// A key is wanted since `at`; `ready` says that it has joined the line.
    pub(crate) fn wanted(&mut self, id: KeyId, priority: i32, at: u64, ready: bool) {
        if self.stamps.len() <= id.index() {
            self.stamps.resize(id.index() + 1, Stamp::default());
        }
        self.adds += 1;
        self.depth += 1;
        if let Some(priorities) = &mut self.priorities {
            *priorities.depth(priority) += 1;
        }
        self.stamps[id.index()].wanted_at = at;
        if ready {
            self.joined(id, at);
        }
    }

    /// A wanted key has joined the line.
    pub(crate) fn joined(&mut self, id: KeyId, at: u64) {
        self.stamps[id.index()].joined_at = at;
        self.ready.push_back(&mut ReadyLinks(&mut self.stamps), id);
    }

    /// The priority of a wanted key has changed.
    pub(crate) fn moved(&mut self, from: i32, to: i32) {
        if let Some(priorities) = &mut self.priorities {
            *priorities.depth(from) -= 1;
            *priorities.depth(to) += 1;
        }
    }

    /// A key has been handed out.
    pub(crate) fn started(&mut self, id: KeyId, priority: i32, at: u64) {
        self.depth -= 1;
        if let Some(priorities) = &mut self.priorities {
            *priorities.depth(priority) -= 1;
        }
        self.ready.remove(&mut ReadyLinks(&mut self.stamps), id);
        let stamp = &mut self.stamps[id.index()];
        self.queue_duration
            .observe(at.saturating_sub(stamp.wanted_at));
        stamp.started_at = at;
        self.running
            .push_back(&mut RunningLinks(&mut self.stamps), id);
        self.n_running += 1;
        self.started_sum += u128::from(at);
    }

    /// A run has ended.
    pub(crate) fn finished(&mut self, id: KeyId, at: u64) {
        let started_at = self.stamps[id.index()].started_at;
        self.work_duration.observe(at.saturating_sub(started_at));
        self.running.remove(&mut RunningLinks(&mut self.stamps), id);
        self.n_running -= 1;
        self.started_sum -= u128::from(started_at);
    }

    /// A delayed add.
    pub(crate) fn retried(&mut self) {
        self.retries += 1;
    }

    /// No key is wanted any more.
    pub(crate) fn abandoned(&mut self) {
        self.depth = 0;
        self.ready = List::EMPTY;
        if let Some(priorities) = &mut self.priorities {
            priorities.seen.iter_mut().for_each(|(_, depth)| *depth = 0);
            priorities.other = 0;
        }
    }

    /// Forgets what belongs to ids from `bound` on; no key has them any more.
    pub(crate) fn trim(&mut self, bound: usize) {
        if self.stamps.len() > bound {
            self.stamps.truncate(bound);
            self.stamps.shrink_to(bound * 2);
        }
    }

    /// Adds this shard's share to a snapshot taken at `now`.
    pub(crate) fn add_to(&self, snapshot: &mut QueueSnapshot, now: u64) {
        let age = |since: u64| Duration::from_nanos(now.saturating_sub(since));
        snapshot.adds += self.adds;
        snapshot.retries += self.retries;
        snapshot.depth += self.depth;
        snapshot.queue_duration.merge(&self.queue_duration);
        snapshot.work_duration.merge(&self.work_duration);
        if let Some(priorities) = &self.priorities {
            for (priority, depth) in &priorities.seen {
                add_depth(snapshot, *priority, *depth);
            }
            if priorities.other > 0 || priorities.seen.len() == MAX_PRIORITIES {
                *snapshot
                    .depth_by_priority
                    .entry(PriorityLabel::Other)
                    .or_default() += priorities.other;
            }
        }
        let unfinished =
            (u128::from(now) * u128::from(self.n_running)).saturating_sub(self.started_sum);
        let unfinished = u64::try_from(unfinished).unwrap_or(u64::MAX);
        snapshot.unfinished_work += Duration::from_nanos(unfinished);
        if let Some(id) = self.running.head() {
            let oldest = age(self.stamps[id.index()].started_at);
            snapshot.longest_running = snapshot.longest_running.max(oldest);
        }
        if let Some(id) = self.ready.head() {
            let oldest = age(self.stamps[id.index()].joined_at);
            snapshot.oldest_ready_age = snapshot.oldest_ready_age.max(oldest);
        }
    }
}

/// Adds to the depth of a priority, within the limit for the queue as a whole.
fn add_depth(snapshot: &mut QueueSnapshot, priority: i32, depth: u64) {
    let depths = &mut snapshot.depth_by_priority;
    let values = depths.len() - usize::from(depths.contains_key(&PriorityLabel::Other));
    let label = PriorityLabel::Value(priority);
    if depths.contains_key(&label) || values < MAX_PRIORITIES {
        *depths.entry(label).or_default() += depth;
    } else {
        *depths.entry(PriorityLabel::Other).or_default() += depth;
    }
}
