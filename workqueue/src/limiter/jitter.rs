//! Random spread of another limiter's delays.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::RateLimiter;
use crate::key::KeyRef;

/// Another limiter's delay times a random factor, so that keys which failed together do not come
/// back together. Never above the other limiter's `max_delay`.
#[derive(Debug)]
pub struct Jitter<L> {
    inner: L,
    low: f64,
    high: f64,
    state: AtomicU64,
}

impl<L> Jitter<L> {
    /// A common choice of `fraction`.
    pub const DEFAULT_FRACTION: f64 = 0.1;

    /// Factors from 1 − `fraction` to 1 + `fraction`, drawn from a generator with this seed;
    /// fractions outside [0, 1] are taken to the nearer end.
    pub fn new(inner: L, fraction: f64, seed: u64) -> Self {
        let fraction = if fraction.is_nan() {
            0.0
        } else {
            fraction.clamp(0.0, 1.0)
        };
        Self {
            inner,
            low: 1.0 - fraction,
            high: 1.0 + fraction,
            state: AtomicU64::new(seed),
        }
    }

    /// Full jitter: factors from 0 to 1.
    pub fn full(inner: L, seed: u64) -> Self {
        Self {
            inner,
            low: 0.0,
            high: 1.0,
            state: AtomicU64::new(seed),
        }
    }

    /// The next factor: `SplitMix64`, scaled.
    fn factor(&self) -> f64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self
            .state
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let unit = (z >> 11) as f64 / (1_u64 << 53) as f64;
        self.low + (self.high - self.low) * unit
    }
}

impl<K, L: RateLimiter<K>> RateLimiter<K> for Jitter<L> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        let delay = self.inner.when(key, now).as_secs_f64() * self.factor();
        let delay = Duration::try_from_secs_f64(delay).unwrap_or(Duration::MAX);
        delay.min(self.inner.max_delay().unwrap_or(Duration::MAX))
    }

    fn forget(&self, key: KeyRef<'_, K>) {
        self.inner.forget(key);
    }

    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32 {
        self.inner.num_requeues(key)
    }

    fn max_delay(&self) -> Option<Duration> {
        self.inner.max_delay()
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
    use crate::limiter::{FastSlow, ItemExponential, testing::delays};

    #[test]
    fn w48_factors_fill_the_range_and_follow_from_the_seed() {
        let second = Duration::from_secs(1);
        let constant = || FastSlow::new(second, 2 * second, u32::MAX);
        let draw = |limiter: Jitter<FastSlow<&'static str>>| delays(&limiter, "key", 1000);

        let tenth = draw(Jitter::new(constant(), 0.1, 1));
        assert!(tenth.iter().all(|d| (0.9..=1.1).contains(&d.as_secs_f64())));
        assert!(tenth.iter().any(|d| d.as_secs_f64() < 0.91));
        assert!(tenth.iter().any(|d| d.as_secs_f64() > 1.09));
        assert_eq!(tenth, draw(Jitter::new(constant(), 0.1, 1)));
        assert_ne!(tenth, draw(Jitter::new(constant(), 0.1, 2)));

        let full = draw(Jitter::full(constant(), 1));
        assert!(full.iter().all(|d| d.as_secs_f64() <= 1.0));
        assert!(full.iter().any(|d| d.as_secs_f64() < 0.02));
        assert!(full.iter().any(|d| d.as_secs_f64() > 0.98));
    }

    #[test]
    fn w48_the_maximum_of_the_inner_limiter_holds() {
        let max = Duration::from_secs(1);
        let limiter = Jitter::new(ItemExponential::new(Duration::from_millis(1), max), 0.5, 7);
        assert!(
            delays(&limiter, "key", 1000)
                .iter()
                .all(|delay| *delay <= max)
        );
    }
}
