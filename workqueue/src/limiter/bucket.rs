//! Token buckets: one for all keys, or one for each.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{RateLimiter, memory::Memory};
use crate::{
    clock::saturating_nanos,
    key::{KeyRef, QueueKey},
};

/// How fast tokens come, and how many may be saved.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Nanoseconds between two tokens.
    interval: u64,
    burst: u64,
}

impl Rate {
    fn new(interval: Duration, burst: u32) -> Self {
        Self {
            interval: saturating_nanos(interval),
            burst: burst.into(),
        }
    }

    /// Reserves the next token: `full_at` is when the bucket would be full again, which moves on
    /// by one interval. Returns the new value and how long to wait for the token.
    fn reserve(self, full_at: u64, now: u64) -> (u64, u64) {
        let full_at = full_at.max(now).saturating_add(self.interval);
        let saved = self.interval.saturating_mul(self.burst);
        (full_at, full_at.saturating_sub(now.saturating_add(saved)))
    }
}

/// One token bucket over all keys: each call takes the next free token, however far ahead.
///
/// Knows nothing about keys, so `num_requeues` is 0 and `forget` does nothing. A long queue in
/// front of a bucket sends keys hours ahead; see [`WithMaxWait`](super::WithMaxWait).
#[derive(Debug)]
pub struct Bucket {
    rate: Rate,
    start: OnceLock<Instant>,
    full_at: AtomicU64,
}

impl Bucket {
    /// A token each `interval`, at most `burst` of them saved; the bucket starts full.
    pub fn new(interval: Duration, burst: u32) -> Self {
        Self {
            rate: Rate::new(interval, burst),
            start: OnceLock::new(),
            full_at: AtomicU64::new(0),
        }
    }
}

/// 10 tokens a second, burst 100.
impl Default for Bucket {
    fn default() -> Self {
        Self::new(Duration::from_millis(100), 100)
    }
}

impl<K> RateLimiter<K> for Bucket {
    fn when(&self, _: KeyRef<'_, K>, now: Instant) -> Duration {
        let start = *self.start.get_or_init(|| now);
        let now = saturating_nanos(now.saturating_duration_since(start));
        let mut wait = 0;
        self.full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let (next, token_in) = self.rate.reserve(full_at, now);
                wait = token_in;
                Some(next)
            })
            .ok();
        Duration::from_nanos(wait)
    }

    fn forget(&self, _: KeyRef<'_, K>) {}

    fn num_requeues(&self, _: KeyRef<'_, K>) -> u32 {
        0
    }
}

/// A token bucket for each key.
///
/// As [`Bucket`], `num_requeues` is 0 and `forget` does nothing. A key whose bucket has been full
/// for as long as it takes to fill is no longer remembered, which makes no difference to it.
#[derive(Debug)]
pub struct KeyBucket<K> {
    rate: Rate,
    full_at: Memory<K, u64>,
}

impl<K: QueueKey> KeyBucket<K> {
    /// For each key a token each `interval`, at most `burst` of them saved.
    pub fn new(interval: Duration, burst: u32) -> Self {
        let fill = interval.saturating_mul(burst.max(1));
        Self {
            rate: Rate::new(interval, burst),
            full_at: Memory::new(fill.saturating_mul(2)),
        }
    }
}

impl<K: QueueKey> RateLimiter<K> for KeyBucket<K> {
    fn when(&self, key: KeyRef<'_, K>, now: Instant) -> Duration {
        let at = self.full_at.nanos(now);
        let wait = self.full_at.update(key, now, |full_at| {
            let (next, wait) = self.rate.reserve(*full_at, at);
            *full_at = next;
            wait
        });
        Duration::from_nanos(wait)
    }

    fn forget(&self, _: KeyRef<'_, K>) {}

    fn num_requeues(&self, _: KeyRef<'_, K>) -> u32 {
        0
    }

    fn tracked(&self) -> usize {
        self.full_at.len()
    }

    fn evicted(&self) -> u64 {
        self.full_at.evicted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::testing::{delays, millis};

    #[test]
    fn q22_ten_a_second_with_burst_100_at_a_frozen_clock() {
        let delays = delays(&Bucket::default(), "key", 201);
        assert!(delays[..100].iter().all(Duration::is_zero));
        assert_eq!(delays[100], Duration::from_millis(100));
        assert_eq!(delays[200], Duration::from_millis(10_100));
    }

    #[test]
    fn w44_tokens_come_back_with_time_up_to_the_burst() {
        let bucket = Bucket::new(Duration::from_secs(1), 2);
        let start = Instant::now();
        let at = |seconds| {
            RateLimiter::<&str>::when(
                &bucket,
                (&"key").into(),
                start + Duration::from_secs(seconds),
            )
        };
        assert_eq!([at(0), at(0), at(0)], [0, 0, 1].map(Duration::from_secs));
        assert_eq!(at(2), Duration::ZERO);
        assert_eq!(
            [at(100), at(100), at(100)],
            [0, 0, 1].map(Duration::from_secs)
        );
        assert_eq!(
            RateLimiter::<&str>::num_requeues(&bucket, (&"key").into()),
            0
        );
    }

    #[test]
    fn w50_each_key_has_its_own_bucket() {
        let limiter = KeyBucket::new(Duration::from_millis(10), 2);
        assert_eq!(delays(&limiter, "one", 4), millis([0, 0, 10, 20]));
        assert_eq!(delays(&limiter, "two", 3), millis([0, 0, 10]));
        assert_eq!(limiter.num_requeues((&"one").into()), 0);
        assert_eq!(limiter.tracked(), 2);
    }

    #[test]
    fn w42_a_bucket_without_end_saturates() {
        let limiter = KeyBucket::new(Duration::MAX, 1);
        let delays = delays(&limiter, "key", 3);
        assert!(
            delays
                .iter()
                .all(|delay| *delay <= Duration::from_nanos(u64::MAX))
        );
    }
}
