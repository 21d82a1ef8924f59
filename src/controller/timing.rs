//! The times of the reconciler, and from a decision to a wait.

use std::time::Duration;

/// How long the reconciler waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two looks at an instance that comes up. Default 10 s.
    pub provisioning_poll: Duration,
    /// Between two looks at an instance that goes away. Default 10 s.
    pub deletion_poll: Duration,
    /// Between two looks at an instance that runs, give or take 10 %. Default 5 min.
    pub drift_poll: Duration,
    /// Before the next step of the same work. Default 50 ms.
    pub requeue_now: Duration,
    /// Before the next try after a quota or stock refusal, give or take 20 %. Default 10 min.
    pub quota_retry: Duration,
    /// Before the next try of a replacement that the disruption budget put off, give or take 20 %.
    /// Default 30 s.
    pub budget_retry: Duration,
    /// Wait after the first failure of a Proxy; doubles with each further one. Default 500 ms.
    pub backoff_base: Duration,
    /// Longest wait of a failing Proxy. Default 5 min.
    pub backoff_max: Duration,
    /// Age at which an instance that never came up is deleted and made again. Default 15 min.
    pub provisioning_timeout: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            provisioning_poll: Duration::from_secs(10),
            deletion_poll: Duration::from_secs(10),
            drift_poll: Duration::from_secs(5 * 60),
            requeue_now: Duration::from_millis(50),
            quota_retry: Duration::from_secs(10 * 60),
            budget_retry: Duration::from_secs(30),
            backoff_base: Duration::from_millis(500),
            backoff_max: Duration::from_secs(5 * 60),
            provisioning_timeout: Duration::from_secs(15 * 60),
        }
    }
}

/// When a Proxy comes again, if no event brings it earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// With the next event.
    Event,
    /// At once: the copy in hand turned out to be old.
    AtOnce,
    /// After REQUEUE_NOW: one step is done, the next is known.
    Now,
    /// After PROVISIONING_POLL.
    Provisioning,
    /// After DELETION_POLL.
    Deletion,
    /// After DRIFT_POLL.
    Drift,
    /// After DRIFT_POLL, or after this where that is less.
    Within(Duration),
    /// After QUOTA_RETRY.
    Quota,
    /// After BUDGET_RETRY: other Proxies are being replaced.
    Budget,
    /// After this.
    After(Duration),
    /// After this and up to a fifth more, so that those who wait for one another do not meet again.
    Turn(Duration),
}

impl Next {
    /// True for what must not go on for ever without something else in between.
    pub(crate) fn is_a_step(self) -> bool {
        matches!(self, Self::AtOnce | Self::Now)
    }
}

impl Timing {
    /// The wait for `next`; `random` in [-1, 1] spreads those that would fall together.
    pub(crate) fn wait(&self, next: Next, random: f64) -> Option<Duration> {
        match next {
            Next::Event => None,
            Next::AtOnce => Some(Duration::ZERO),
            Next::Now => Some(self.requeue_now),
            Next::Provisioning => Some(self.provisioning_poll),
            Next::Deletion => Some(self.deletion_poll),
            Next::Drift => Some(spread(self.drift_poll, 0.1, random)),
            Next::Within(most) => Some(spread(self.drift_poll, 0.1, random).min(most)),
            Next::Quota => Some(spread(self.quota_retry, 0.2, random)),
            Next::Budget => Some(spread(self.budget_retry, 0.2, random)),
            Next::After(wait) => Some(wait),
            Next::Turn(wait) => Some(wait + wait.mul_f64(0.2 * random.abs().min(1.0))),
        }
    }
}

fn spread(wait: Duration, share: f64, random: f64) -> Duration {
    wait.mul_f64(1.0 + share * random.clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_of_running_instances_and_quota_retries_are_spread() {
        let timing = Timing::default();
        for (next, random, want) in [
            (Next::Event, 0.0, None),
            (Next::AtOnce, 1.0, Some(0.0)),
            (Next::Now, 1.0, Some(0.05)),
            (Next::Provisioning, 1.0, Some(10.0)),
            (Next::Deletion, -1.0, Some(10.0)),
            (Next::Drift, -1.0, Some(270.0)),
            (Next::Drift, 1.0, Some(330.0)),
            (Next::Quota, -1.0, Some(480.0)),
            (Next::Quota, 7.0, Some(720.0)),
            (Next::Within(Duration::from_secs(5)), 1.0, Some(5.0)),
            (Next::Within(Duration::from_secs(999)), -1.0, Some(270.0)),
            (Next::Budget, 1.0, Some(36.0)),
            (Next::After(Duration::from_secs(7)), 1.0, Some(7.0)),
            (Next::Turn(Duration::from_secs(10)), -1.0, Some(12.0)),
            (Next::Turn(Duration::from_secs(10)), 0.0, Some(10.0)),
        ] {
            let wait = timing.wait(next, random).map(|wait| wait.as_secs_f64());
            assert_eq!(wait, want, "{next:?} at {random}");
        }
    }
}
