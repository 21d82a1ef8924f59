//! Different limiters for different kinds of keys.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::RateLimiter;
use crate::key::KeyRef;

/// The limiter that a function of the key picks.
pub struct ByClass<K, F> {
    class: F,
    limiters: Vec<Arc<dyn RateLimiter<K>>>,
}

impl<K, F: Fn(&K) -> usize> ByClass<K, F> {
    /// `class` gives an index into `limiters`; one beyond the end means the last, and without any
    /// limiter nothing is delayed.
    pub fn new(class: F, limiters: Vec<Arc<dyn RateLimiter<K>>>) -> Self {
        Self { class, limiters }
    }

    fn pick(&self, key: &K) -> Option<&dyn RateLimiter<K>> {
        let last = self.limiters.len().checked_sub(1)?;
        Some(&*self.limiters[(self.class)(key).min(last)])
    }
}

impl<K: 'static, F: Fn(&K) -> usize + Send + Sync + 'static> RateLimiter<K> for ByClass<K, F> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        self.pick(key.key())
            .map_or(Duration::ZERO, |limiter| limiter.when(key, now))
    }

    fn forget(&self, key: KeyRef<'_, K>) {
        if let Some(limiter) = self.pick(key.key()) {
            limiter.forget(key);
        }
    }

    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32 {
        self.pick(key.key())
            .map_or(0, |limiter| limiter.num_requeues(key))
    }

    fn max_delay(&self) -> Option<Duration> {
        self.limiters
            .iter()
            .try_fold(Duration::ZERO, |max, limiter| {
                limiter.max_delay().map(|delay| delay.max(max))
            })
    }

    fn tracked(&self) -> usize {
        self.limiters.iter().map(|limiter| limiter.tracked()).sum()
    }

    fn evicted(&self) -> u64 {
        self.limiters.iter().map(|limiter| limiter.evicted()).sum()
    }
}

impl<K, F> fmt::Debug for ByClass<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByClass")
            .field("limiters", &self.limiters.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{
        ItemExponential,
        testing::{delays, millis},
    };

    #[test]
    fn w50_the_class_of_a_key_picks_its_limiter() {
        let doubling = |ms| {
            let base = Duration::from_millis(ms);
            Arc::new(ItemExponential::new(base, Duration::from_secs(1))) as Arc<dyn RateLimiter<_>>
        };
        let limiter = ByClass::new(|key: &&str| key.len(), vec![doubling(1), doubling(10)]);
        assert_eq!(delays(&limiter, "", 3), millis([1, 2, 4]));
        assert_eq!(delays(&limiter, "b", 2), millis([10, 20]));
        assert_eq!(delays(&limiter, "beyond", 1), millis([10]));
        limiter.forget((&"b").into());
        assert_eq!(limiter.num_requeues((&"b").into()), 0);
        assert_eq!(limiter.num_requeues((&"").into()), 3);
        assert_eq!(limiter.tracked(), 2);
    }
}
