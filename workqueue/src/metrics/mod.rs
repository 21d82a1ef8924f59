//! What a queue tells about itself: upstream's metrics by upstream's names, computed when read.
//!
//! A queue with a name registers in a [`Registry`]; [`Registry::render`] gives all queues in the
//! Prometheus text format, [`Registry::snapshots`] as values. No task keeps them fresh: gauges are
//! exact at the moment of reading, and a queue that is dropped vanishes.
//!
//! | metric | type | meaning |
//! |---|---|---|
//! | `workqueue_depth` | gauge | keys wanted and not handed out; with `priority` where the order has any |
//! | `workqueue_adds_total` | counter | adds that changed something |
//! | `workqueue_queue_duration_seconds` | histogram | from being ready to being handed out |
//! | `workqueue_work_duration_seconds` | histogram | from being handed out to the end of the run |
//! | `workqueue_unfinished_work_seconds` | gauge | sum of the ages of all runs |
//! | `workqueue_longest_running_processor_seconds` | gauge | age of the oldest run |
//! | `workqueue_retries_total` | counter | delayed adds |
//! | `workqueue_delayed` | gauge | keys that wait for a deadline |
//! | `workqueue_running` | gauge | keys handed out |
//! | `workqueue_failing_keys` | gauge | keys the limiter remembers |
//! | `workqueue_limiter_evicted_total` | counter | keys the limiter has forgotten on its own |
//! | `workqueue_oldest_ready_age_seconds` | gauge | how long the key that joined the line first has stood in it |

mod recorder;
mod registry;
mod render;

use std::{collections::BTreeMap, time::Duration};

pub(crate) use recorder::Recorder;
pub use registry::Registry;
pub(crate) use registry::{Registration, Source};

/// Upper bounds of the histograms' buckets: 10 ns·10ᵏ, in nanoseconds.
pub const BUCKETS: [u64; 12] = [
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
    100_000_000_000,
    1_000_000_000_000,
];

/// Distinct values of the label `priority`; more fall under [`PriorityLabel::Other`].
pub const MAX_PRIORITIES: usize = 25;

/// A value of the label `priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PriorityLabel {
    /// One of the first [`MAX_PRIORITIES`] priorities that the queue has seen.
    Value(i32),
    /// All others: `exceeded_cardinality_limit`.
    Other,
}

/// Durations sorted into [`BUCKETS`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many durations fell into each bucket alone, not into those below.
    pub buckets: [u64; BUCKETS.len()],
    /// How many there were, those above the last bucket included.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
}

impl Histogram {
    fn observe(&mut self, nanos: u64) {
        let bucket = BUCKETS.partition_point(|bound| *bound < nanos);
        if let Some(n) = self.buckets.get_mut(bucket) {
            *n += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(Duration::from_nanos(nanos));
    }

    fn merge(&mut self, other: &Self) {
        for (n, more) in self.buckets.iter_mut().zip(other.buckets) {
            *n += more;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// A queue's metrics at one moment; see the [module documentation](self) for their meanings.
///
/// Depth, counters, durations and ages are kept for named queues only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// The queue's name: label `name`.
    pub name: String,
    /// The queue's further labels.
    pub labels: Vec<(String, String)>,
    /// Keys wanted and not handed out.
    pub depth: u64,
    /// The same by priority, where the order policy has any; priorities stay once seen.
    pub depth_by_priority: BTreeMap<PriorityLabel, u64>,
    /// Adds that changed something.
    pub adds: u64,
    /// Delayed adds.
    pub retries: u64,
    /// From being ready to being handed out.
    pub queue_duration: Histogram,
    /// From being handed out to the end of the run.
    pub work_duration: Histogram,
    /// Sum of the ages of all runs.
    pub unfinished_work: Duration,
    /// Age of the oldest run.
    pub longest_running: Duration,
    /// Keys that stand in the line.
    pub ready: u64,
    /// Keys that wait for a deadline.
    pub delayed: u64,
    /// Keys handed out.
    pub running: u64,
    /// Keys the limiter remembers.
    pub failing: u64,
    /// Keys the limiter has forgotten on its own.
    pub evicted: u64,
    /// How long the key that joined the line first has stood in it.
    pub oldest_ready_age: Duration,
}
