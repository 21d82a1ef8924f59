//! The side that talks to the server: one write at a time, until told to stop.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::body::{patch, whole};
use super::ledger::{Now, Outcome, Repeats, Write};
use super::recorder::{ObjectName, Shared, add};
use super::sink::{EventSink, Failure};
use crate::error::Chain;

/// Tries of one write.
const TRIES: u32 = 12;
/// Time between two tries.
const PAUSE: Duration = Duration::from_secs(10);
/// Longest time of one call.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Longest time of the last writes after a stop.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Brings the events of a recorder to its sink; made by [`recorder`](super::recorder).
///
/// Until it runs, events wait in the queue. Once it has ended, or is dropped, they are dropped.
#[must_use = "events are written only while the writer runs"]
pub struct EventWriter {
    shared: Arc<Shared>,
    sink: Box<dyn EventSink>,
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter")
            .field("reporter", &self.shared.reporter)
            .finish_non_exhaustive()
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        self.shared.state().closed = true;
    }
}

/// One try of a write.
enum Try {
    Ended(Outcome),
    Failed,
}

impl EventWriter {
    pub(super) fn new(shared: Arc<Shared>, sink: Box<dyn EventSink>) -> Self {
        Self { shared, sink }
    }

    /// Writes until `stop`, then tries once to write what is left, for at most 5 s.
    ///
    /// While the server can't be reached everything waits: each write is tried 12 times, 10 s
    /// apart, and repetitions are counted meanwhile. No task is spawned.
    ///
    /// Cancellation safety: dropping the future drops what is not yet written.
    ///
    /// # Errors
    /// None; the type lets it be one of a manager's tasks.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Infallible> {
        let limit = async {
            stop.cancelled().await;
            sleep(STOP_LIMIT).await;
        };
        tokio::select! {
            () = self.work(&stop) => {}
            () = limit => warn!("the last events were not written within {STOP_LIMIT:?}"),
        }
        let left = self.shared.state().ledger.unwritten();
        if left > 0 {
            let counter = &self.shared.counters.undelivered;
            counter.fetch_add(u64::try_from(left).unwrap_or(u64::MAX), Ordering::Relaxed);
            warn!(left, "events not written before the end");
        }
        Ok(())
    }

    async fn work(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let (write, due) = {
                let mut state = self.shared.state();
                state.ledger.tick(Now::read());
                (state.ledger.take(), state.ledger.due())
            };
            match write {
                Some(write) => {
                    let outcome = self.deliver(&write, stop).await;
                    self.settle(&write, outcome);
                }
                None => self.idle(due, stop).await,
            }
        }
        self.flush().await;
    }

    /// Waits for a stop, a write, or the moment `due`.
    async fn idle(&self, due: Option<Instant>, stop: &CancellationToken) {
        let reminder = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        // Nothing is lost by dropping the others: a wake-up that came is stored.
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.shared.wake.notified() => {}
            () = reminder => {}
        }
    }

    /// Tries until it ends, the tries are used up, or `stop` leaves time for one more.
    async fn deliver(&self, write: &Write, stop: &CancellationToken) -> Outcome {
        for tries in 1..=TRIES {
            if let Try::Ended(outcome) = self.attempt(write, tries).await {
                return outcome;
            }
            let last = stop.is_cancelled();
            if last || tries == TRIES {
                break;
            }
            let pause = pause(self.shared.repeats, tries, rand::random());
            let stopped = stop.run_until_cancelled(sleep(pause)).await.is_none();
            if stopped {
                return match self.attempt(write, tries + 1).await {
                    Try::Ended(outcome) => outcome,
                    Try::Failed => Outcome::Undelivered,
                };
            }
        }
        Outcome::Undelivered
    }

    async fn attempt(&self, write: &Write, tries: u32) -> Try {
        let object = ObjectName(&write.tally.regarding);
        let reason = &*write.tally.notice.reason;
        let result = match timeout(CALL_LIMIT, self.call(write)).await {
            Ok(result) => result,
            Err(_) => {
                warn!(%object, reason, tries, "event not written: no answer within {CALL_LIMIT:?}");
                return Try::Failed;
            }
        };
        let Err(error) = result else {
            return Try::Ended(Outcome::Written);
        };
        let failure = Failure::of(&error);
        let error = Chain(&error);
        match failure {
            Failure::Transport if tries.is_power_of_two() => {
                warn!(%object, reason, %error, tries, "event not written; it may be tried again");
                Try::Failed
            }
            Failure::Transport => Try::Failed,
            // It was gone a moment ago: somebody else has created it since.
            Failure::Exists if write.known => Try::Failed,
            Failure::Exists | Failure::Terminating => {
                debug!(%object, reason, %error, "event rejected");
                Try::Ended(Outcome::Rejected)
            }
            Failure::NotFound | Failure::Rejected => {
                warn!(%object, reason, %error, "event rejected");
                Try::Ended(Outcome::Rejected)
            }
        }
    }

    /// Patches an event thought to be known; creates it if it is not.
    async fn call(&self, write: &Write) -> Result<(), kube_client::Error> {
        let (repeats, tally) = (self.shared.repeats, &write.tally);
        if write.known {
            let patch = patch(repeats, tally);
            match self.sink.patch(&tally.namespace, &tally.name, &patch).await {
                Err(error) if Failure::of(&error) == Failure::NotFound => {}
                other => return other,
            }
        }
        let event =
            whole(repeats, &self.shared.reporter, tally).map_err(kube_client::Error::SerdeError)?;
        self.sink.create(&tally.namespace, &event).await
    }

    fn settle(&self, write: &Write, outcome: Outcome) {
        let counters = &self.shared.counters;
        match outcome {
            Outcome::Written => drop(add(&counters.written)),
            Outcome::Rejected => drop(add(&counters.rejected)),
            Outcome::Undelivered => {
                add(&counters.undelivered);
                let (object, reason) = (
                    ObjectName(&write.tally.regarding),
                    &*write.tally.notice.reason,
                );
                error!(%object, reason, "event given up: the server could not be reached");
            }
        }
        self.shared
            .state()
            .ledger
            .settle(write, outcome, Now::read());
    }

    /// One try for everything left, until the first that does not reach the server.
    async fn flush(&self) {
        {
            let mut state = self.shared.state();
            state.closed = true;
            state.ledger.flush();
        }
        loop {
            let Some(write) = self.shared.state().ledger.take() else {
                return;
            };
            match self.attempt(&write, TRIES).await {
                Try::Ended(outcome) => self.settle(&write, outcome),
                Try::Failed => return self.settle(&write, Outcome::Undelivered),
            }
        }
    }
}

/// Time after the `tries`-th try, for a random number in `[0, 1)`.
///
/// Many processes lose one server at the same time and must not all come back at the same time.
fn pause(repeats: Repeats, tries: u32, random: f64) -> Duration {
    match (repeats, tries) {
        (Repeats::Series, _) => PAUSE.mul_f64(1.0 + 0.25 * random),
        (Repeats::Each, 1) => PAUSE.mul_f64(random),
        (Repeats::Each, _) => PAUSE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c64_the_first_pause_is_random_and_c66_each_pause_of_a_series_has_jitter() {
        let seconds = |repeats, tries, random| pause(repeats, tries, random).as_secs_f64();
        for (repeats, tries, random, expected) in [
            (Repeats::Each, 1, 0.0, 0.0),
            (Repeats::Each, 1, 0.5, 5.0),
            (Repeats::Each, 2, 0.5, 10.0),
            (Repeats::Each, 11, 0.9, 10.0),
            (Repeats::Series, 1, 0.0, 10.0),
            (Repeats::Series, 7, 0.8, 12.0),
        ] {
            assert_eq!(seconds(repeats, tries, random), expected);
        }
    }
}
