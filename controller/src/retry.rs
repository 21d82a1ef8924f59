//! Repeating a write that lost a race for the object's resourceVersion.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Errors that can be the API server's refusal of a stale `resourceVersion`.
pub trait MaybeConflict {
    /// Reports whether the server refused the write with 409 Conflict.
    ///
    /// 409 AlreadyExists has the same code and is not a conflict: a repeat would fail alike.
    fn is_conflict(&self) -> bool;
}

impl MaybeConflict for kube_client::Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(status) if status.is_conflict())
    }
}

/// How often a conflicting write is tried, and how long the pauses between the tries are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steps {
    /// Number of tries in all; 0 counts as 1.
    pub tries: u32,
    /// Pause after the first conflict.
    pub base: Duration,
    /// Each further pause is this many times the one before.
    pub factor: f64,
    /// A pause `d` becomes a random one in `[d, d · (1 + jitter)]`; negative counts as 0.
    pub jitter: f64,
}

impl Steps {
    /// For an object with few writers: 5 tries, 10 ms apart (client-go's `DefaultRetry`).
    pub const LIGHT: Self = Self {
        tries: 5,
        base: Duration::from_millis(10),
        factor: 1.0,
        jitter: 0.1,
    };
    /// For an object with many writers: 4 tries, 10, 50 and 250 ms apart (client-go's
    /// `DefaultBackoff`).
    pub const HEAVY: Self = Self {
        tries: 4,
        base: Duration::from_millis(10),
        factor: 5.0,
        jitter: 0.1,
    };

    /// Pause after the `n`-th conflict (from 0) for a random number in `[0, 1)`.
    fn pause(&self, n: u32, random: f64) -> Duration {
        let grown = self.base.as_secs_f64() * self.factor.powf(f64::from(n));
        let seconds = grown * (1.0 + self.jitter.max(0.0) * random);
        // Not representable means "longer than anybody waits" (or a nonsense factor).
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

impl Default for Steps {
    fn default() -> Self {
        Self::LIGHT
    }
}

/// Runs `write` until it does something else than conflict, at most [`Steps::tries`] times.
///
/// `write` must read the object anew on each call, or it conflicts for ever. Any other error ends
/// the loop at once. Cancelling `stop` ends a pause at once and gives the last conflict back; a
/// call under way is never cut, since a dropped write may or may not have been carried out.
///
/// Cancellation safety: dropping the future drops the call under way, so whether that write took
/// place is unknown then.
///
/// # Errors
/// The error of the last call of `write`; after the last try that is the conflict.
///
/// # Examples
/// ```no_run
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube_client::api::PostParams;
/// # async fn example(api: kube_client::Api<ConfigMap>) -> Result<(), kube_client::Error> {
/// # let stop = tokio_util::sync::CancellationToken::new();
/// use controller::retry::{Steps, retry_on_conflict};
///
/// retry_on_conflict(Steps::LIGHT, &stop, || async {
///     let mut counter = api.get("counter").await?;
///     counter.data.get_or_insert_default().insert("seen".into(), "yes".into());
///     api.replace("counter", &PostParams::default(), &counter).await
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
pub async fn retry_on_conflict<T, E, F, Fut>(
    steps: Steps,
    stop: &CancellationToken,
    mut write: F,
) -> Result<T, E>
where
    E: MaybeConflict,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut conflicts = 0;
    loop {
        let error = match write().await {
            Err(error) if error.is_conflict() => error,
            other => return other,
        };
        conflicts += 1;
        if conflicts >= steps.tries || stop.is_cancelled() {
            return Err(error);
        }
        let pause = steps.pause(conflicts - 1, rand::random());
        debug!(
            conflicts,
            pause_ms = pause.as_millis(),
            "write conflicted; it is tried again"
        );
        if stop
            .run_until_cancelled(tokio::time::sleep(pause))
            .await
            .is_none()
        {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use kube_core::response::Status;
    use tokio::time::Instant;

    use super::*;

    #[derive(Debug, PartialEq)]
    enum Failure {
        Conflict(u32),
        Other,
    }

    impl MaybeConflict for Failure {
        fn is_conflict(&self) -> bool {
            matches!(self, Self::Conflict(_))
        }
    }

    /// Runs a script of answers; gives the result and the moments of the calls in ms.
    async fn play(
        steps: Steps,
        stop: &CancellationToken,
        script: impl Fn(u32) -> Result<u32, Failure>,
    ) -> (Result<u32, Failure>, Vec<u128>) {
        let start = Instant::now();
        let calls = RefCell::new(Vec::new());
        let result = retry_on_conflict(steps, stop, || {
            let mut calls = calls.borrow_mut();
            calls.push(start.elapsed().as_millis());
            let answer = script(u32::try_from(calls.len()).unwrap());
            async move { answer }
        })
        .await;
        (result, calls.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn e5_third_try_succeeds_after_two_conflicts() {
        let (result, calls) = play(Steps::LIGHT, &CancellationToken::new(), |n| {
            if n < 3 {
                Err(Failure::Conflict(n))
            } else {
                Ok(n)
            }
        })
        .await;
        assert_eq!(result, Ok(3));
        assert_eq!(calls.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn e5_another_error_ends_the_loop_at_once() {
        let (result, calls) = play(Steps::LIGHT, &CancellationToken::new(), |_| {
            Err(Failure::Other)
        })
        .await;
        assert_eq!(result, Err(Failure::Other));
        assert_eq!(calls, [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn e5_exhausted_tries_give_the_last_conflict() {
        for (steps, pauses) in [
            (Steps::LIGHT, &[10, 10, 10, 10][..]),
            (Steps::HEAVY, &[10, 50, 250]),
        ] {
            let (result, calls) = play(steps, &CancellationToken::new(), |n| {
                Err(Failure::Conflict(n))
            })
            .await;
            assert_eq!(result, Err(Failure::Conflict(steps.tries)));
            assert_eq!(calls.len(), pauses.len() + 1);
            for (pair, &pause) in calls.windows(2).zip(pauses) {
                let waited = pair[1] - pair[0];
                // One timer tick is 1 ms, and a sleep never ends early.
                assert!(
                    (pause..=pause * 11 / 10 + 1).contains(&waited),
                    "{waited} for {pause}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn e5_cancelling_a_pause_keeps_the_last_conflict() {
        let stop = CancellationToken::new();
        let steps = Steps {
            base: Duration::from_secs(3600),
            ..Steps::LIGHT
        };
        let (result, ()) = tokio::join!(play(steps, &stop, |n| Err(Failure::Conflict(n))), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.cancel();
        });
        assert_eq!(result, (Err(Failure::Conflict(1)), vec![0]));
    }

    #[tokio::test(start_paused = true)]
    async fn e5_cancelled_before_the_start_tries_once() {
        let stop = CancellationToken::new();
        stop.cancel();
        let (result, calls) = play(Steps::LIGHT, &stop, |n| Err(Failure::Conflict(n))).await;
        assert_eq!(result, Err(Failure::Conflict(1)));
        assert_eq!(calls.len(), 1);
    }

    #[test]
    fn c70_pauses_stay_in_their_bounds_and_never_panic() {
        let cases = [
            (Steps::HEAVY, 2, 0.0, Duration::from_millis(250)),
            (Steps::HEAVY, 2, 1.0, Duration::from_millis(275)),
            (
                Steps {
                    jitter: -3.0,
                    ..Steps::LIGHT
                },
                0,
                1.0,
                Duration::from_millis(10),
            ),
            (
                Steps {
                    factor: f64::MAX,
                    ..Steps::LIGHT
                },
                9,
                0.5,
                Duration::MAX,
            ),
            (
                Steps {
                    factor: f64::NAN,
                    ..Steps::LIGHT
                },
                1,
                0.5,
                Duration::MAX,
            ),
        ];
        for (steps, n, random, expected) in cases {
            assert_eq!(steps.pause(n, random), expected, "{steps:?}");
        }
    }

    #[test]
    fn c70_only_the_conflict_reason_of_409_counts() {
        for (reason, code, expected) in [
            ("Conflict", 409, true),
            ("AlreadyExists", 409, false),
            ("NotFound", 404, false),
        ] {
            let status = Status {
                reason: reason.into(),
                code,
                ..Status::default()
            };
            let error = kube_client::Error::Api(Box::new(status));
            assert_eq!(error.is_conflict(), expected, "{reason}");
        }
    }
}
