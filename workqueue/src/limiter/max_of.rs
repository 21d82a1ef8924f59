//! Several limiters at once.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::RateLimiter;
use crate::key::KeyRef;

/// The longest delay of several limiters; all of them are asked, and count, each time.
pub struct MaxOf<K> {
    limiters: Vec<Arc<dyn RateLimiter<K>>>,
}

impl<K> MaxOf<K> {
    /// The longest delay of these; none without any.
    pub fn new(limiters: Vec<Arc<dyn RateLimiter<K>>>) -> Self {
        Self { limiters }
    }
}

impl<K: 'static> RateLimiter<K> for MaxOf<K> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        self.limiters
            .iter()
            .map(|limiter| limiter.when(key, now))
            .max()
            .unwrap_or_default()
    }

    fn forget(&self, key: KeyRef<'_, K>) {
        for limiter in &self.limiters {
            limiter.forget(key);
        }
    }

    fn num_requeues(&self, key: KeyRef<'_, K>) -> u32 {
        self.limiters
            .iter()
            .map(|limiter| limiter.num_requeues(key))
            .max()
            .unwrap_or_default()
    }

    fn max_delay(&self) -> Option<Duration> {
        self.limiters
            .iter()
            .try_fold(Duration::ZERO, |max, limiter| {
                limiter.max_delay().map(|delay| delay.max(max))
            })
    }

    fn tracked(&self) -> usize {
        self.limiters
            .iter()
            .map(|limiter| limiter.tracked())
            .max()
            .unwrap_or_default()
    }

    fn evicted(&self) -> u64 {
        self.limiters.iter().map(|limiter| limiter.evicted()).sum()
    }
}

impl<K> fmt::Debug for MaxOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaxOf")
            .field("limiters", &self.limiters.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{
        FastSlow, ItemExponential, client_go_default,
        testing::{delays, millis},
    };

    #[test]
    fn q20_the_longer_delay_holds_at_each_step_and_forget_reaches_both() {
        let ms = Duration::from_millis;
        let limiter = MaxOf::new(vec![
            Arc::new(FastSlow::new(ms(5), ms(3000), 3)),
            Arc::new(ItemExponential::new(ms(1), ms(1000))),
        ]);
        assert_eq!(delays(&limiter, "one", 5), millis([5, 5, 5, 3000, 3000]));
        assert_eq!(limiter.num_requeues((&"one").into()), 5);
        assert_eq!(delays(&limiter, "two", 2), millis([5, 5]));
        limiter.forget((&"one").into());
        assert_eq!(limiter.num_requeues((&"one").into()), 0);
        assert_eq!(delays(&limiter, "one", 1), millis([5]));
        assert_eq!(limiter.max_delay(), Some(ms(3000)));
    }

    #[test]
    fn w47_the_default_of_client_go_is_exponential_until_the_bucket_is_empty() {
        let limiter = client_go_default();
        let delays = delays(&limiter, "key", 101);
        assert_eq!(delays[..4], millis([5, 10, 20, 40]));
        assert_eq!(delays[99], Duration::from_secs(1000));
        assert_eq!(limiter.max_delay(), None);
    }

    #[test]
    fn none_of_no_limiters_delays() {
        let limiter = MaxOf::new(Vec::new());
        assert_eq!(delays(&limiter, "key", 2), [Duration::ZERO; 2]);
        assert_eq!(limiter.num_requeues((&"key").into()), 0);
    }
}
