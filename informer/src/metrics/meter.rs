//! Counting, without a lock where events pass.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{BUCKETS, Histogram, Summary};
use crate::Cause;

/// Number and sum of values.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Meter {
    pub(crate) fn add(&self, value: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn add_duration(&self, value: Duration) {
        self.add(nanos(value));
    }

    pub(crate) fn read(&self) -> Summary {
        Summary {
            count: self.count.load(Ordering::Relaxed),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// What a reflector measures.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) list_duration: Meter,
    pub(crate) items_per_list: Meter,
    pub(crate) watch_duration: Meter,
    pub(crate) items_per_watch: Meter,
    relists: Mutex<BTreeMap<Cause, u64>>,
}

impl Meters {
    /// A list will be made again because of a failure of this class.
    pub(crate) fn relist(&self, cause: Cause) {
        *self.relists.lock().entry(cause).or_default() += 1;
    }

    pub(crate) fn relists(&self) -> BTreeMap<Cause, u64> {
        self.relists.lock().clone()
    }
}

/// How long the calls of a handler take.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    buckets: [AtomicU64; BUCKETS.len()],
    total: Meter,
}

impl Latency {
    pub(crate) fn observe(&self, took: Duration) {
        let took = nanos(took);
        let bucket = BUCKETS.partition_point(|bound| *bound < took);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.total.add(took);
    }

    /// Adds what was observed to `histogram`.
    pub(crate) fn add_to(&self, histogram: &mut Histogram) {
        for (sum, bucket) in histogram.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        let total = self.total.read();
        histogram.count += total.count;
        histogram.sum += Duration::from_nanos(total.sum);
    }
}

fn nanos(value: Duration) -> u64 {
    u64::try_from(value.as_nanos()).unwrap_or(u64::MAX)
}
