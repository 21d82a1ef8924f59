//! Doubling delays for each key.

use std::time::Duration;

use tokio::time::Instant;

use super::{RateLimiter, memory::Memory};
use crate::{
    clock::saturating_nanos,
    key::{KeyRef, QueueKey},
};

/// Delays a key by `base`·2ⁿ, at most `max`, where n is the number of its failures before.
///
/// Whatever does not fit into 2^64 − 1 ns counts as above `max`. A key that has not failed for
/// 2·`max` starts over.
#[derive(Debug)]
pub struct ItemExponential<K> {
    base: u64,
    max: u64,
    failures: Memory<K, u32>,
}

impl<K: QueueKey> ItemExponential<K> {
    /// Delays from `base` to `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base: saturating_nanos(base),
            max: saturating_nanos(max),
            failures: Memory::new(max.saturating_mul(2)),
        }
    }

    fn delay(&self, failures: u32) -> Duration {
        let factor = 1_u64.checked_shl(failures);
        let delay = match (self.base, factor) {
            (0, _) => 0,
            (base, Some(factor)) => base.saturating_mul(factor).min(self.max),
            (_, None) => self.max,
        };
        Duration::from_nanos(delay)
    }
}

impl<K: QueueKey> RateLimiter<K> for ItemExponential<K> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        let failures = self.failures.update(key, now, |failures| {
            let before = *failures;
            *failures = failures.saturating_add(1);
            before
        });
        self.delay(failures)
    }

    fn forget(&self, key: KeyRef<'_, K>) {
        self.failures.forget(key);
    }

    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32 {
        self.failures.read(key).unwrap_or(0)
    }

    fn max_delay(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.max))
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
    fn q17_delays_double_for_each_key_until_it_is_forgotten() {
        let limiter = ItemExponential::new(Duration::from_millis(1), Duration::from_secs(1));
        assert_eq!(delays(&limiter, "one", 5), millis([1, 2, 4, 8, 16]));
        assert_eq!(limiter.num_requeues((&"one").into()), 5);
        assert_eq!(delays(&limiter, "two", 2), millis([1, 2]));
        assert_eq!(limiter.tracked(), 2);
        limiter.forget((&"one").into());
        assert_eq!(limiter.num_requeues((&"one").into()), 0);
        assert_eq!(delays(&limiter, "one", 1), millis([1]));
    }

    #[test]
    fn q18_delays_end_at_the_maximum_whatever_overflows() {
        let hour = 3600;
        for (base, max) in [
            (Duration::from_millis(1), Duration::from_secs(1000)),
            (Duration::from_secs(60), Duration::from_secs(1000 * hour)),
        ] {
            let limiter = ItemExponential::new(base, max);
            let delays = delays(&limiter, "key", 1000);
            assert_eq!(delays[0], base);
            assert!(delays.is_sorted(), "{base:?}");
            assert_eq!(delays[999], max);
        }
    }

    #[test]
    fn q18_w42_one_nanosecond_reaches_the_top_of_the_range_at_call_65() {
        let top = Duration::from_nanos(u64::MAX);
        let delays = delays(
            &ItemExponential::new(Duration::from_nanos(1), top),
            "key",
            70,
        );
        assert_eq!(delays[63], Duration::from_nanos(1 << 63));
        assert!(delays[64..].iter().all(|delay| *delay == top));
    }

    #[test]
    fn w41_a_base_above_the_maximum_is_cut_and_none_stays_none() {
        let limiter = ItemExponential::new(Duration::from_secs(2), Duration::from_secs(1));
        assert_eq!(delays(&limiter, "key", 2), [Duration::from_secs(1); 2]);
        let limiter = ItemExponential::new(Duration::ZERO, Duration::from_secs(1));
        assert_eq!(delays(&limiter, "key", 70), [Duration::ZERO; 70]);
    }
}
