//! The cluster's clock: wall-clock readings that follow tokio's time.

use std::fmt;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall-clock time of one cluster.
///
/// The wall clock is read once, when the cluster starts; from then on the time is that reading plus the
/// elapsed [`tokio::time::Instant`]. Timestamps, token expiry, watch timeouts and age texts therefore
/// agree with each other, and all of them follow a paused tokio runtime.
#[derive(Clone, Copy)]
pub struct Clock {
    started_at: Timestamp,
    started: Instant,
}

impl Clock {
    /// Starts a clock at the current wall-clock time.
    pub fn start() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// Starts a clock that reads `at` now.
    pub fn starting_at(at: Timestamp) -> Self {
        Self {
            started_at: at,
            started: Instant::now(),
        }
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        let elapsed =
            SignedDuration::try_from(self.started.elapsed()).unwrap_or(SignedDuration::MAX);
        self.started_at
            .checked_add(elapsed)
            .unwrap_or(Timestamp::MAX)
    }

    /// The current time as object metadata shows it: UTC, whole seconds, `Z`.
    pub fn stamp(&self) -> String {
        seconds_text(self.now())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// Formats a time as RFC 3339 in UTC with whole seconds (`2026-01-31T08:00:00Z`).
pub(crate) fn seconds_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_paused_time() {
        let start: Timestamp = "2026-03-01T00:00:00.9Z".parse().unwrap();
        let clock = Clock::starting_at(start);
        assert_eq!(clock.stamp(), "2026-03-01T00:00:00Z");
        tokio::time::advance(Duration::from_millis(90_100)).await;
        assert_eq!(clock.stamp(), "2026-03-01T00:01:31Z");
    }
}
