//! Counters of a controller, read when somebody asks, and their text for Prometheus.
//!
//! Each field of [`ControllerMetrics`] names the series it stands for, by upstream's name where
//! upstream has one. All start at 0.
//! [`render`], [`render_elections`], [`render_events`] and [`process`] give text; the page that has it all is
//! [`MetricsPage`](crate::server::MetricsPage).

mod events;
mod process;
mod render;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub use self::events::render_events;
pub use self::process::process;
pub use self::render::{render, render_elections};
pub use self::text::Text;

/// Upper bounds, in seconds, of the buckets of `controller_runtime_reconcile_time_seconds`.
pub const RECONCILE_TIME_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0,
];

/// Label `result` of `controller_runtime_reconcile_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultLabel {
    Success,
    Error,
    Requeue,
    RequeueAfter,
}

/// State of a controller's counters at one moment (`controller_runtime_…{controller}`).
///
/// The fields are read one by one, so during a run they may differ by that run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ControllerMetrics {
    /// Value of the label `controller`.
    pub controller: Arc<str>,
    /// `reconcile_total{result="success"}`
    pub success: u64,
    /// `reconcile_total{result="error"}`
    pub error: u64,
    /// `reconcile_total{result="requeue"}`
    pub requeue: u64,
    /// `reconcile_total{result="requeue_after"}`
    pub requeue_after: u64,
    /// `reconcile_errors_total`: runs that ended with an error, terminal ones and panics included.
    pub errors: u64,
    /// `terminal_reconcile_errors_total`
    pub terminal_errors: u64,
    /// `reconcile_panics_total`
    pub panics: u64,
    /// `reconcile_timeouts_total`: errors of runs whose deadline had passed.
    pub timeouts: u64,
    /// `reconcile_time_seconds`
    pub reconcile_time: Histogram,
    /// `max_concurrent_reconciles`: number of workers.
    pub max_concurrent_reconciles: usize,
    /// `active_workers`: number of reconciles running now.
    pub active_workers: usize,
    /// `controller_stale_cache_skips_total`: how often a key was held back because a cache did not
    /// show its own last write.
    pub stale_skips: u64,
    /// `controller_stale_cache_reconciles_total`: runs begun with a cache that did not show it within
    /// the time for it.
    pub stale_reconciles: u64,
}

impl ControllerMetrics {
    /// Takes in the counters of another controller of the same name.
    fn add(&mut self, other: &Self) {
        // Named one by one, so that a new field is not forgotten.
        let Self {
            controller: _,
            success,
            error,
            requeue,
            requeue_after,
            errors,
            terminal_errors,
            panics,
            timeouts,
            reconcile_time,
            max_concurrent_reconciles,
            active_workers,
            stale_skips,
            stale_reconciles,
        } = other;
        self.success += success;
        self.error += error;
        self.requeue += requeue;
        self.requeue_after += requeue_after;
        self.errors += errors;
        self.terminal_errors += terminal_errors;
        self.panics += panics;
        self.timeouts += timeouts;
        let times = self.reconcile_time.buckets.iter_mut();
        times
            .zip(&reconcile_time.buckets)
            .for_each(|(sum, n)| *sum += n);
        self.reconcile_time.sum += reconcile_time.sum;
        self.max_concurrent_reconciles += max_concurrent_reconciles;
        self.active_workers += active_workers;
        self.stale_skips += stale_skips;
        self.stale_reconciles += stale_reconciles;
    }

    /// One entry for each name, in the order of the first of each: a series must not be there twice.
    fn by_name(all: &[Self]) -> Vec<Self> {
        let mut sums: Vec<Self> = Vec::with_capacity(all.len());
        for one in all {
            match sums.iter_mut().find(|sum| sum.controller == one.controller) {
                Some(sum) => sum.add(one),
                None => sums.push(one.clone()),
            }
        }
        sums
    }
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Histogram {
    /// Observations in each bucket of [`RECONCILE_TIME_BUCKETS`] (not cumulative); the last entry
    /// counts those above the highest bound.
    pub buckets: Vec<u64>,
    /// Sum of all observed times.
    pub sum: Duration,
}

impl Histogram {
    /// Number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// The live counters behind [`ControllerMetrics`].
#[derive(Debug)]
pub(crate) struct Recorder {
    controller: Arc<str>,
    workers: usize,
    success: AtomicU64,
    error: AtomicU64,
    requeue: AtomicU64,
    requeue_after: AtomicU64,
    terminal_errors: AtomicU64,
    panics: AtomicU64,
    timeouts: AtomicU64,
    stale_skips: AtomicU64,
    stale_reconciles: AtomicU64,
    active: AtomicUsize,
    time_buckets: [AtomicU64; RECONCILE_TIME_BUCKETS.len() + 1],
    time_sum_nanos: AtomicU64,
}

/// What one run adds to the counters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) label: ResultLabel,
    pub(crate) terminal: bool,
    pub(crate) panicked: bool,
    pub(crate) timed_out: bool,
    pub(crate) took: Duration,
}

impl Recorder {
    pub(crate) fn new(controller: Arc<str>, workers: usize) -> Self {
        Self {
            controller,
            workers,
            success: AtomicU64::new(0),
            error: AtomicU64::new(0),
            requeue: AtomicU64::new(0),
            requeue_after: AtomicU64::new(0),
            terminal_errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            stale_skips: AtomicU64::new(0),
            stale_reconciles: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            time_buckets: [const { AtomicU64::new(0) }; RECONCILE_TIME_BUCKETS.len() + 1],
            time_sum_nanos: AtomicU64::new(0),
        }
    }

    /// Counts a running reconcile until the guard is dropped (also by panic or abort).
    pub(crate) fn start_run(&self) -> ActiveRun<'_> {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveRun(self)
    }

    /// A key was held back for a cache to catch up.
    pub(crate) fn skip_stale(&self) {
        self.stale_skips.fetch_add(1, Ordering::Relaxed);
    }

    /// A run begins although a cache has not caught up.
    pub(crate) fn start_stale(&self) {
        self.stale_reconciles.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn finish_run(&self, run: Run) {
        let total = match run.label {
            ResultLabel::Success => &self.success,
            ResultLabel::Error => &self.error,
            ResultLabel::Requeue => &self.requeue,
            ResultLabel::RequeueAfter => &self.requeue_after,
        };
        let flags = [
            (total, true),
            (&self.terminal_errors, run.terminal),
            (&self.panics, run.panicked),
            (&self.timeouts, run.timed_out),
        ];
        for (counter, _) in flags.into_iter().filter(|(_, applies)| *applies) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let seconds = run.took.as_secs_f64();
        let bucket = RECONCILE_TIME_BUCKETS.partition_point(|bound| *bound < seconds);
        self.time_buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(run.took.as_nanos()).unwrap_or(u64::MAX);
        self.time_sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> ControllerMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let error = read(&self.error);
        ControllerMetrics {
            controller: Arc::clone(&self.controller),
            success: read(&self.success),
            error,
            requeue: read(&self.requeue),
            requeue_after: read(&self.requeue_after),
            errors: error,
            terminal_errors: read(&self.terminal_errors),
            panics: read(&self.panics),
            timeouts: read(&self.timeouts),
            reconcile_time: Histogram {
                buckets: self.time_buckets.iter().map(read).collect(),
                sum: Duration::from_nanos(read(&self.time_sum_nanos)),
            },
            max_concurrent_reconciles: self.workers,
            active_workers: self.active.load(Ordering::Relaxed),
            stale_skips: read(&self.stale_skips),
            stale_reconciles: read(&self.stale_reconciles),
        }
    }
}

/// Takes a run off the number of running ones when dropped.
#[derive(Debug)]
pub(crate) struct ActiveRun<'a>(&'a Recorder);

impl Drop for ActiveRun<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Run = Run {
        label: ResultLabel::Success,
        terminal: false,
        panicked: false,
        timed_out: false,
        took: Duration::from_millis(5),
    };

    #[test]
    fn all_series_exist_with_0_from_the_start() {
        let metrics = Recorder::new("c".into(), 3).snapshot();
        let counters = [
            metrics.success,
            metrics.error,
            metrics.requeue,
            metrics.requeue_after,
            metrics.errors,
            metrics.terminal_errors,
            metrics.panics,
            metrics.timeouts,
            metrics.reconcile_time.count(),
            metrics.stale_skips,
            metrics.stale_reconciles,
        ];
        assert_eq!(counters, [0; 11]);
        assert_eq!(
            (metrics.max_concurrent_reconciles, metrics.active_workers),
            (3, 0)
        );
        assert_eq!(metrics.reconcile_time.buckets.len(), 41);
    }

    #[test]
    fn a_run_counts_in_its_result_and_its_flags() {
        let recorder = Recorder::new("c".into(), 1);
        recorder.finish_run(PLAIN);
        recorder.finish_run(Run {
            label: ResultLabel::Requeue,
            ..PLAIN
        });
        recorder.finish_run(Run {
            label: ResultLabel::RequeueAfter,
            ..PLAIN
        });
        recorder.finish_run(Run {
            label: ResultLabel::Error,
            terminal: true,
            ..PLAIN
        });
        recorder.finish_run(Run {
            label: ResultLabel::Error,
            panicked: true,
            ..PLAIN
        });
        recorder.finish_run(Run {
            label: ResultLabel::Error,
            timed_out: true,
            ..PLAIN
        });
        let m = recorder.snapshot();
        assert_eq!(
            (m.success, m.requeue, m.requeue_after, m.error, m.errors),
            (1, 1, 1, 3, 3)
        );
        assert_eq!((m.terminal_errors, m.panics, m.timeouts), (1, 1, 1));
    }

    #[test]
    fn a_time_falls_in_the_bucket_of_the_next_bound() {
        let recorder = Recorder::new("c".into(), 1);
        // 5 ms is the first bound itself, which belongs to its bucket.
        for (millis, bucket) in [(0, 0), (5, 0), (6, 1), (60_000, 39), (60_001, 40)] {
            let before = recorder.snapshot().reconcile_time.buckets[bucket];
            recorder.finish_run(Run {
                took: Duration::from_millis(millis),
                ..PLAIN
            });
            let after = recorder.snapshot().reconcile_time.buckets[bucket];
            assert_eq!(after, before + 1, "{millis} ms");
        }
        assert_eq!(
            recorder.snapshot().reconcile_time.sum,
            Duration::from_millis(120_012)
        );
    }

    #[test]
    fn an_active_run_is_counted_while_its_guard_lives() {
        let recorder = Recorder::new("c".into(), 1);
        let run = recorder.start_run();
        assert_eq!(recorder.snapshot().active_workers, 1);
        drop(run);
        assert_eq!(recorder.snapshot().active_workers, 0);
    }
}
