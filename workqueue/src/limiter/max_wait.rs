//! A cap on another limiter's delays.

use std::time::Duration;

use tokio::time::Instant;

use super::RateLimiter;
use crate::key::KeyRef;

/// Another limiter's delay, at most `max`.
#[derive(Debug)]
pub struct WithMaxWait<L> {
    inner: L,
    max: Duration,
}

impl<L> WithMaxWait<L> {
    /// Caps the delays of `inner` at `max`.
    pub fn new(inner: L, max: Duration) -> Self {
        Self { inner, max }
    }
}

impl<K, L: RateLimiter<K>> RateLimiter<K> for WithMaxWait<L> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        self.inner.when(key, now).min(self.max)
    }

    fn forget(&self, key: KeyRef<'_, K>) {
        self.inner.forget(key);
    }

    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32 {
        self.inner.num_requeues(key)
    }

    fn max_delay(&self) -> Option<Duration> {
        Some(
            self.inner
                .max_delay()
                .map_or(self.max, |delay| delay.min(self.max)),
        )
    }

    fn tracked(&self) -> usize {
        self.inner.tracked()
    }

    fn evicted(&self) -> u64 {
        self.inner.evicted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{
        Bucket, FastSlow,
        testing::{delays, millis},
    };

    #[test]
    fn q21_short_delays_pass_and_long_ones_are_cut() {
        let inner = FastSlow::new(Duration::from_millis(5), Duration::from_secs(1000), 3);
        let limiter = WithMaxWait::new(inner, Duration::from_secs(500));
        assert_eq!(
            delays(&limiter, "key", 5),
            millis([5, 5, 5, 500_000, 500_000])
        );
        assert_eq!(limiter.num_requeues((&"key").into()), 5);
        limiter.forget((&"key").into());
        assert_eq!(delays(&limiter, "key", 1), millis([5]));
    }

    #[test]
    fn w46_a_bucket_sends_no_key_further_ahead_than_the_cap() {
        let limiter = WithMaxWait::new(Bucket::default(), Duration::from_secs(60));
        let delays = delays(&limiter, "key", 10_000);
        assert_eq!(delays[9_999], Duration::from_secs(60));
    }
}
