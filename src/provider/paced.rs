//! Deadline, pace and trace of every provider call, around any provider.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use governor::{DefaultDirectRateLimiter, Quota};
use tracing::Instrument;

use super::{Around, CALL_TIMEOUT, Error, Provider, Reason};

/// How fast a provider may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Calls per second in the long run.
    pub per_second: NonZeroU32,
    /// Calls that may come at once after a pause.
    pub burst: NonZeroU32,
}

impl Pace {
    /// So many calls per second in the long run, and two seconds' worth of them at once.
    #[must_use]
    pub fn of(per_second: NonZeroU32) -> Self {
        Self {
            per_second,
            burst: per_second.saturating_mul(NonZeroU32::MIN.saturating_add(1)),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            per_second: NonZeroU32::new(100).expect("not zero"),
            burst: NonZeroU32::new(200).expect("not zero"),
        }
    }
}

/// A provider whose calls wait for their turn, have a deadline and stand in a span.
///
/// The deadline of [`CALL_TIMEOUT`] runs from the moment the call's turn came.
#[derive(Debug)]
pub struct Paced<P> {
    name: Arc<str>,
    inner: P,
    limiter: DefaultDirectRateLimiter,
    timeout: Duration,
}

impl<P: Provider> Paced<P> {
    /// Puts `inner` under that pace; `name` is the one in the configuration.
    pub fn new(name: impl Into<Arc<str>>, inner: P, pace: Pace) -> Self {
        let quota = Quota::per_second(pace.per_second).allow_burst(pace.burst);
        Self {
            name: name.into(),
            inner,
            limiter: DefaultDirectRateLimiter::direct(quota),
            timeout: CALL_TIMEOUT,
        }
    }
}

impl<P: Provider> Around for Paced<P> {
    fn inner(&self) -> &dyn Provider {
        &self.inner
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        op: &'static str,
        call: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let span = tracing::debug_span!("provider.call", provider = %self.name, op);
        async move {
            self.limiter.until_ready().await;
            let outcome = match tokio::time::timeout(self.timeout, call).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::new(
                    Reason::Timeout,
                    format!("{op}: no answer of provider {} in {:?}", self.name, self.timeout),
                )),
            };
            if let Err(error) = &outcome {
                tracing::debug!(class = error.class().as_str(), code = error.code(), %error, "refused");
            }
            outcome
        }
        .instrument(span)
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::fake::{FakeProvider, Fault, owner};

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_hangs_is_a_transient_error_after_thirty_seconds() {
        let world = FakeProvider::default();
        world.fault("find", Fault::Hang);
        let paced = Paced::new("slow", world, Pace::default());
        let start = tokio::time::Instant::now();
        let error = paced.find(&owner("u1")).await.expect_err("nothing answers");
        assert_eq!(error.reason(), Reason::Timeout);
        assert_eq!(start.elapsed().as_secs(), 30);
        assert!(error.message().contains("slow"), "{error}");
    }
}
