//! The workers: take a key, reconcile it, settle the result.

use std::sync::Arc;
use std::time::Duration;

use informer::ObjectKey;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, error, field, info_span, warn};
use workqueue::limiter::RateLimiter;
use workqueue::{AddOptions, KeyRef, Origin};

use crate::metrics::{Recorder, ResultLabel, Run};
use crate::panic::{self, Panic};
use crate::reconcile::{Action, Cancelled, Context, ErasedReconciler, ReconcileError};
use crate::retry::MaybeConflict;
use crate::settle::{Delay, Requeue, settle};
use crate::{ControllerOptions, Item, Queue};

/// How long a cancelled reconcile may go on after its deadline before it is dropped.
pub(crate) const DEADLINE_GRACE: Duration = Duration::from_secs(1);

/// What the workers of one controller share.
pub(crate) struct Workshop {
    pub(crate) controller: Arc<str>,
    pub(crate) reconciler: Box<dyn ErasedReconciler>,
    pub(crate) queue: Queue,
    /// The limiter of the queue.
    pub(crate) limiter: Arc<dyn RateLimiter<ObjectKey>>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) options: ControllerOptions,
}

/// How a reconcile ended, before it is settled.
struct Outcome {
    result: Result<Action, ReconcileError>,
    panicked: bool,
    deadline_passed: bool,
}

/// The reconcile was dropped because its deadline had passed.
#[derive(Debug, thiserror::Error)]
#[error("reconcile dropped: it did not end within {timeout:?}")]
struct DeadlineExceeded {
    timeout: Duration,
}

impl Workshop {
    /// Works off keys until `stop`, or until the queue is shut down and empty.
    ///
    /// After `stop` no further key is taken; the run under way is finished and settled.
    pub(crate) async fn work(&self, stop: CancellationToken) {
        loop {
            // Cancel-safe: a pending `get` holds no key.
            let item = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                item = self.queue.get() => item,
            };
            match item {
                Some(item) => self.process(item, &stop).await,
                None => return,
            }
        }
    }

    /// Reconciles one key. The item is held to the end, so the key can't run elsewhere meanwhile;
    /// its requeue is on record before the queue learns that it is done.
    async fn process(&self, item: Item, stop: &CancellationToken) {
        let key = item.key();
        let attempt = self.queue.num_requeues(key).saturating_add(1);
        let deadline = self
            .options
            .reconcile_timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        let ctx = Context::new(attempt, item.priority(), stop.clone(), deadline);
        let span = self.span(key, &ctx);

        let started = Instant::now();
        let active = self.recorder.start_run();
        let outcome = self.reconcile(key, &ctx).instrument(span.clone()).await;
        drop(active);

        let settlement = settle(&outcome.result, item.priority());
        span.in_scope(|| report(&outcome, attempt));
        self.recorder.finish_run(Run {
            label: settlement.label,
            terminal: outcome
                .result
                .as_ref()
                .is_err_and(ReconcileError::is_terminal),
            panicked: outcome.panicked,
            timed_out: outcome.deadline_passed && settlement.label == ResultLabel::Error,
            took: started.elapsed(),
        });
        if settlement.forget {
            self.queue.forget(key);
        }
        if let Some(requeue) = settlement.requeue {
            self.requeue(key, requeue);
        }
        drop(item);
    }

    fn span(&self, key: &ObjectKey, ctx: &Context) -> Span {
        info_span!(
            "reconcile",
            controller = &*self.controller,
            "k8s.namespace.name" = key.namespace(),
            "k8s.resource.name" = key.name(),
            "reconcile.id" = %ctx.id(),
            "reconcile.attempt" = ctx.attempt(),
            "reconcile.priority" = ctx.priority(),
            "otel.status_code" = field::Empty,
        )
    }

    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Outcome {
        let run = panic::catch(self.reconciler.reconcile(key, ctx));
        let Some((deadline, timeout)) = ctx.deadline().zip(self.options.reconcile_timeout) else {
            return self.outcome(run.await, false);
        };
        tokio::pin!(run);
        if let Ok(result) = tokio::time::timeout_at(deadline, &mut run).await {
            return self.outcome(result, false);
        }
        // A stop that came first is the cause of the end, not the deadline.
        let deadline_passed = ctx.cause() != Some(Cancelled::Stop);
        ctx.token().cancel();
        match tokio::time::timeout(DEADLINE_GRACE, run).await {
            Ok(result) => self.outcome(result, deadline_passed),
            Err(_) => {
                let result = Err(ReconcileError::retry(DeadlineExceeded { timeout }));
                Outcome {
                    result,
                    panicked: false,
                    deadline_passed,
                }
            }
        }
    }

    fn outcome(
        &self,
        result: Result<Result<Action, ReconcileError>, Panic>,
        deadline_passed: bool,
    ) -> Outcome {
        match result {
            Ok(result) => Outcome {
                result,
                panicked: false,
                deadline_passed,
            },
            Err(panic) => {
                error!(
                    "exception.message" = panic.message,
                    "exception.location" = panic.location,
                    "exception.stacktrace" = panic.backtrace,
                    recovered = self.options.recover_panic,
                    "reconcile panicked"
                );
                if !self.options.recover_panic {
                    std::process::abort();
                }
                let result = Err(ReconcileError::retry(panic));
                Outcome {
                    result,
                    panicked: true,
                    deadline_passed,
                }
            }
        }
    }

    fn requeue(&self, key: &ObjectKey, requeue: Requeue) {
        let after = match requeue.delay {
            Delay::Exactly(after) => after,
            // Asked here and not by a rate-limited add, which takes the shorter of two waits.
            Delay::Backoff { at_least } => self
                .limiter
                .when(KeyRef::from(key), Instant::now())
                .max(at_least),
        };
        let options = AddOptions {
            after: Some(after),
            priority: Some(requeue.priority),
            origin: Origin::Result,
            ..AddOptions::default()
        };
        self.queue.add_with(key, options);
    }
}

/// Logs the end of a run, a repeated failure at its 1st, 2nd, 4th, 8th, … attempt.
///
/// A conflict is the normal course of two writers and not worth a warning.
fn report(outcome: &Outcome, attempt: u32) {
    let error = match &outcome.result {
        Ok(action) => {
            debug!(?action, "reconciled");
            return;
        }
        // The panic has its own, fuller line.
        Err(_) if outcome.panicked => return,
        Err(error) => error,
    };
    Span::current().record("otel.status_code", "ERROR");
    if error.is_terminal() {
        error!(%error, "reconcile failed for good; the next event tries again");
    } else if error.is_conflict() || !attempt.is_power_of_two() {
        debug!(%error, attempt, "reconcile failed; it is retried");
    } else {
        warn!(%error, attempt, "reconcile failed; it is retried");
    }
}
