//! The client's own pace.

use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

use super::RateLimit;

/// Tokio's clock, so that paused time paces as well.
#[derive(Clone, Debug)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

type Bucket = RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Duration>>;

/// A token bucket that all clones of a client share.
#[derive(Clone, Debug)]
pub(super) struct Limiter {
    bucket: Arc<Bucket>,
    clock: TokioClock,
}

impl Limiter {
    pub(super) fn new(limit: RateLimit) -> Self {
        let clock = TokioClock(Instant::now());
        let quota = Quota::per_second(limit.per_second).allow_burst(limit.burst);
        Self {
            bucket: Arc::new(RateLimiter::direct_with_clock(quota, clock.clone())),
            clock,
        }
    }

    /// Waits for a token. Cancel-safe: a dropped wait takes none.
    pub(super) async fn ready(&self) {
        // A refusal books nothing, so those who waited for the same token ask again.
        while let Err(refused) = self.bucket.check() {
            tokio::time::sleep(refused.wait_time_from(self.clock.now())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_beyond_the_burst_wait_for_the_pace() {
        let number = |n| NonZeroU32::new(n).unwrap();
        let limiter = Limiter::new(RateLimit {
            per_second: number(10),
            burst: number(5),
        });
        let began = Instant::now();
        let waits = (0..25).map(|_| limiter.ready());
        futures::future::join_all(waits).await;
        let took = began.elapsed();
        assert!(
            took >= Duration::from_millis(2000) && took < Duration::from_millis(2100),
            "{took:?}"
        );
    }
}
