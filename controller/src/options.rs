//! Settings of a controller.

use std::time::Duration;

use crate::error::Error;

/// How a controller runs; every field has a safe default.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerOptions {
    /// Number of reconciles that may run at the same time (for different keys). Default 1.
    pub workers: usize,
    /// Wait after the first failure of a key; doubles with each further one. Default 5 ms.
    pub backoff_base: Duration,
    /// Longest wait of a failing key. Default 1000 s.
    pub backoff_max: Duration,
    /// Multiplies each backoff by a random factor in `[1 − j, 1 + j]`, so that keys that failed
    /// together don't come again together; 0 to 1. Default 0 (off).
    pub backoff_jitter: f64,
    /// How long the sources may take to deliver their initial lists before the controller gives
    /// up. Default 2 min.
    pub sync_timeout: Duration,
    /// Time after which a reconcile is cancelled ([`Context::is_cancelled`]); one that has not
    /// returned a second later is dropped and counts as failed. None or zero: no limit. Default
    /// none.
    ///
    /// [`Context::is_cancelled`]: crate::Context::is_cancelled
    pub reconcile_timeout: Option<Duration>,
    /// How long a key is held back at most while the caches do not show its own last write, after
    /// which it runs with [`Context::stale`] set; see [`consistency`](crate::consistency). None or zero:
    /// not held back. Default 10 s.
    ///
    /// [`Context::stale`]: crate::Context::stale
    pub read_your_writes: Option<Duration>,
    /// Whether a panic in a reconcile counts as a failure of its key (true) or ends the process
    /// after a log line (false). Default true. Without unwinding (`panic = "abort"`) a panic always
    /// ends the process.
    pub recover_panic: bool,
    /// How long a reconcile may run before [`ControllerHandle::check_alive`] reports it, for a
    /// liveness probe. It is not cancelled by this. None: never reported. Default none.
    ///
    /// [`ControllerHandle::check_alive`]: crate::ControllerHandle::check_alive
    pub stuck_after: Option<Duration>,
    /// Number of keys whose last runs are kept for [`ControllerHandle::history`]; those that ran
    /// longest ago go first, but those whose last run failed after all others. A key takes up to some
    /// 800 bytes, and the text of errors. 0: none. Default 1024.
    ///
    /// [`ControllerHandle::history`]: crate::ControllerHandle::history
    pub history_keys: usize,
    /// Whether the sources start and sync before this process leads (in a [`Manager`] with an
    /// election), so that a new leader begins with a full queue. Nothing is reconciled before.
    /// Default false.
    ///
    /// [`Manager`]: crate::Manager
    pub warm_up: bool,
    /// Whether a [`Manager`] with an election runs it only while this process leads. False for one that
    /// may run in every process at once, such as one that writes nothing, or whose processes share the
    /// keys ([`sharding`](crate::sharding)): it starts with the tasks, whoever leads. Default true.
    ///
    /// [`Manager`]: crate::Manager
    pub needs_leadership: bool,
    /// Whether a second controller of the same name in this process is an error. If it is none, the
    /// counters of both are added up, and the second one's queue has no series of its own. Default
    /// true.
    pub unique_name: bool,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            workers: 1,
            backoff_base: Duration::from_millis(5),
            backoff_max: Duration::from_secs(1000),
            backoff_jitter: 0.0,
            sync_timeout: Duration::from_secs(120),
            reconcile_timeout: None,
            read_your_writes: Some(Duration::from_secs(10)),
            recover_panic: true,
            stuck_after: None,
            history_keys: 1024,
            warm_up: false,
            needs_leadership: true,
            unique_name: true,
        }
    }
}

impl ControllerOptions {
    /// The options if they make sense, with the zero deadline as none.
    pub(crate) fn validated(mut self) -> Result<Self, Error> {
        let fault = |option, value: String, expected| {
            Err(Error::InvalidOption {
                option,
                value: value.into(),
                expected,
            })
        };
        if self.workers == 0 {
            return fault("workers", "0".to_owned(), "at least 1");
        }
        if self.backoff_base.is_zero() {
            return fault(
                "backoff_base",
                format!("{:?}", self.backoff_base),
                "more than 0",
            );
        }
        if self.backoff_max < self.backoff_base {
            let value = format!("{:?}", self.backoff_max);
            return fault("backoff_max", value, "no less than backoff_base");
        }
        if !(0.0..=1.0).contains(&self.backoff_jitter) {
            return fault("backoff_jitter", self.backoff_jitter.to_string(), "0 to 1");
        }
        if self.sync_timeout.is_zero() {
            return fault("sync_timeout", "0s".to_owned(), "more than 0");
        }
        let some = |time: &Duration| !time.is_zero();
        self.reconcile_timeout = self.reconcile_timeout.filter(some);
        self.read_your_writes = self.read_your_writes.filter(some);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_option_value_and_what_is_allowed() {
        let good = ControllerOptions::default;
        let cases = [
            (
                ControllerOptions {
                    workers: 0,
                    ..good()
                },
                "workers is 0, expected at least 1",
            ),
            (
                ControllerOptions {
                    backoff_base: Duration::ZERO,
                    ..good()
                },
                "backoff_base is 0ns, expected more than 0",
            ),
            (
                ControllerOptions {
                    backoff_max: Duration::from_millis(1),
                    ..good()
                },
                "backoff_max is 1ms, expected no less than backoff_base",
            ),
            (
                ControllerOptions {
                    backoff_jitter: 1.5,
                    ..good()
                },
                "backoff_jitter is 1.5, expected 0 to 1",
            ),
            (
                ControllerOptions {
                    backoff_jitter: f64::NAN,
                    ..good()
                },
                "backoff_jitter is NaN, expected 0 to 1",
            ),
            (
                ControllerOptions {
                    sync_timeout: Duration::ZERO,
                    ..good()
                },
                "sync_timeout is 0s, expected more than 0",
            ),
        ];
        for (options, text) in cases {
            let error = options.validated().unwrap_err().to_string();
            assert_eq!(error, format!("controller option {text}"));
        }
    }

    #[test]
    fn a_time_of_0_is_none() {
        let options = ControllerOptions {
            reconcile_timeout: Some(Duration::ZERO),
            read_your_writes: Some(Duration::ZERO),
            ..Default::default()
        };
        let none = ControllerOptions {
            reconcile_timeout: None,
            read_your_writes: None,
            ..Default::default()
        };
        assert_eq!(options.validated().unwrap(), none);
    }
}
