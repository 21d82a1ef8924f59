//! How long a key waits that is added rate limited.
//!
//! | limiter | delay |
//! |---|---|
//! | [`ItemExponential`] | doubles with each failure of the key |
//! | [`FastSlow`] | short for the key's first failures, long for later ones |
//! | [`Bucket`] | until a token shared by all keys is free |
//! | [`KeyBucket`] | until a token of the key's own is free |
//! | [`MaxOf`] | the longest of several limiters |
//! | [`WithMaxWait`] | that of another limiter, capped |
//! | [`Jitter`] | that of another limiter, spread at random |
//! | [`ByClass`] | that of the limiter which a function of the key picks |
//!
//! Limiters are state machines without a clock: the time is handed in. They work without a queue:
//!
//! ```
//! use std::time::Duration;
//! use workqueue::limiter::{ItemExponential, RateLimiter};
//!
//! let limiter = ItemExponential::new(Duration::from_millis(5), Duration::from_secs(1000));
//! let now = tokio::time::Instant::now();
//! assert_eq!(limiter.when((&"a").into(), now), Duration::from_millis(5));
//! assert_eq!(limiter.when((&"a").into(), now), Duration::from_millis(10));
//! assert_eq!(limiter.num_requeues((&"a").into()), 2);
//! limiter.forget((&"a").into());
//! assert_eq!(limiter.when((&"a").into(), now), Duration::from_millis(5));
//! ```

mod bucket;
mod class;
mod exponential;
mod fast_slow;
mod jitter;
mod max_of;
mod max_wait;
mod memory;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

pub use self::{
    bucket::{Bucket, KeyBucket},
    class::ByClass,
    exponential::ItemExponential,
    fast_slow::FastSlow,
    jitter::Jitter,
    max_of::MaxOf,
    max_wait::WithMaxWait,
};
use crate::key::{KeyRef, QueueKey};

/// Decides how long a key waits, and remembers what it needs for that.
///
/// Called from many threads at once, without any lock of the queue held.
pub trait RateLimiter<K>: Send + Sync + 'static {
    /// How long the key has to wait from `now` on. Counts as a failure of the key.
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration;

    /// Forgets the key's failures.
    fn forget(&self, key: KeyRef<'_, K>);

    /// Calls of [`when`](Self::when) for the key since it was last forgotten.
    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32;

    /// The longest delay that `when` gives, if there is a bound.
    fn max_delay(&self) -> Option<Duration> {
        None
    }

    /// How many keys the limiter remembers.
    fn tracked(&self) -> usize {
        0
    }

    /// How many keys the limiter has forgotten on its own, because they were idle for long.
    fn evicted(&self) -> u64 {
        0
    }
}

impl<K, L: RateLimiter<K> + ?Sized> RateLimiter<K> for Arc<L> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        (**self).when(key, now)
    }

    fn forget(&self, key: KeyRef<'_, K>) {
        (**self).forget(key);
    }

    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32 {
        (**self).num_requeues(key)
    }

    fn max_delay(&self) -> Option<Duration> {
        (**self).max_delay()
    }

    fn tracked(&self) -> usize {
        (**self).tracked()
    }

    fn evicted(&self) -> u64 {
        (**self).evicted()
    }
}

/// 5 ms doubling to 1000 s for each key: the default here, and that of controller-runtime's
/// controllers with a priority queue.
pub fn controller_default<K: QueueKey>() -> ItemExponential<K> {
    ItemExponential::new(Duration::from_millis(5), Duration::from_secs(1000))
}

/// 1 ms doubling to 1000 s for each key: client-go's default for items.
pub fn item_default<K: QueueKey>() -> ItemExponential<K> {
    ItemExponential::new(Duration::from_millis(1), Duration::from_secs(1000))
}

/// 5 ms doubling to 1000 s for each key, and at most 10 keys a second after a burst of 100:
/// client-go's default for controllers.
pub fn client_go_default<K: QueueKey>() -> MaxOf<K> {
    MaxOf::new(vec![
        Arc::new(controller_default()),
        Arc::new(Bucket::default()),
    ])
}

#[cfg(test)]
mod testing {
    use super::*;

    /// The delays of `n` failures of a key at one moment.
    pub(super) fn delays(
        limiter: &impl RateLimiter<&'static str>,
        key: &'static str,
        n: usize,
    ) -> Vec<Duration> {
        let now = Instant::now();
        (0..n).map(|_| limiter.when((&key).into(), now)).collect()
    }

    pub(super) fn millis<const N: usize>(millis: [u64; N]) -> [Duration; N] {
        millis.map(Duration::from_millis)
    }
}
