//! A few quick retries, then patience.

use std::time::Duration;

use tokio::time::Instant;

use super::{RateLimiter, memory::Memory};
use crate::key::{KeyRef, QueueKey};

/// Delays the first failures of a key by `fast`, later ones by `slow`.
///
/// A key that has not failed for twice the longer of both starts over.
#[derive(Debug)]
pub struct FastSlow<K> {
    fast: Duration,
    slow: Duration,
    max_fast: u32,
    failures: Memory<K, u32>,
}

impl<K: QueueKey> FastSlow<K> {
    /// `fast` for the first `max_fast` failures, then `slow`.
    pub fn new(fast: Duration, slow: Duration, max_fast: u32) -> Self {
        let idle = fast.max(slow).saturating_mul(2);
        Self {
            fast,
            slow,
            max_fast,
            failures: Memory::new(idle),
        }
    }
}

impl<K: QueueKey> RateLimiter<K> for FastSlow<K> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        let failures = self.failures.update(key, now, |failures| {
            *failures = failures.saturating_add(1);
            *failures
        });
        if failures <= self.max_fast {
            self.fast
        } else {
            self.slow
        }
    }

    fn forget(&self, key: KeyRef<'_, K>) {
        self.failures.forget(key);
    }

    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32 {
        self.failures.read(key).unwrap_or(0)
    }

    fn max_delay(&self) -> Option<Duration> {
        Some(self.fast.max(self.slow))
    }

    fn tracked(&self) -> usize {
        self.failures.len()
    }

    fn evicted(&self) -> u64 {
        self.failures.evicted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::testing::{delays, millis};

    #[test]
    fn q19_three_fast_calls_then_slow_ones_until_forgotten() {
        let limiter = FastSlow::new(Duration::from_millis(5), Duration::from_secs(10), 3);
        assert_eq!(
            delays(&limiter, "one", 5),
            millis([5, 5, 5, 10_000, 10_000])
        );
        assert_eq!(limiter.num_requeues((&"one").into()), 5);
        assert_eq!(delays(&limiter, "two", 2), millis([5, 5]));
        limiter.forget((&"one").into());
        assert_eq!(limiter.num_requeues((&"one").into()), 0);
        assert_eq!(delays(&limiter, "one", 4), millis([5, 5, 5, 10_000]));
    }
}
