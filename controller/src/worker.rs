//! The workers: take a key, reconcile it, settle the result.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::Fuse;
use informer::ObjectKey;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, error, field, info_span, warn};
use workqueue::limiter::RateLimiter;
use workqueue::{AddOptions, KeyRef, Origin};

use crate::brake::Brake;
use crate::consistency::{Consistency, Lag, OwnWrites, Run as OwnRun};
use crate::failure::Failure;
use crate::journal::{Ended, Journal, Next, Trigger};
use crate::metrics::{Recorder, ResultLabel, Run};
use crate::panic::{self, Panic};
use crate::reconcile::{Action, Context, ErasedReconciler, ReconcileError};
use crate::settle::{Delay, Requeue, Settlement, settle};
use crate::sharding::{Entry, Gate};
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
    pub(crate) journal: Arc<Journal>,
    /// What runs have written, if keys are held back until the caches show it.
    pub(crate) own_writes: Option<Arc<OwnWrites>>,
    pub(crate) brake: Brake,
    /// Says which keys are this process's, if it shares them with others.
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) options: ControllerOptions,
}

/// How a reconcile ended, before it is settled.
struct Outcome {
    result: Result<Action, Failure>,
    panicked: bool,
    deadline_passed: bool,
}

/// The result of a run, if it had one.
type Course = Result<Result<Action, Failure>, Box<Panic>>;

/// The reconcile was dropped because another process may be about to run its key.
#[derive(Debug, thiserror::Error)]
#[error("reconcile dropped: this process's place in the ring could not be renewed in time")]
struct Fenced;

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
    pub(crate) async fn work(&self, worker: usize, stop: CancellationToken) {
        let mut stopped = std::pin::pin!(stop.cancelled());
        while !stop.is_cancelled() {
            // Cancel-safe: a pending `get` holds no key. Most of the time it has one, and then nobody
            // need be told of a stop.
            let item = tokio::select! {
                biased;
                item = self.queue.get() => item,
                () = stopped.as_mut() => return,
            };
            match item {
                Some(item) => self.process(worker, item, &stop).await,
                None => return,
            }
        }
    }

    /// Reconciles one key. The item is held to the end, so the key can't run elsewhere meanwhile;
    /// its requeue is on record before the queue learns that it is done.
    async fn process(&self, worker: usize, item: Item<'_>, stop: &CancellationToken) {
        let key = item.key();
        let (pass, refused) = match self.enter(key) {
            Ok(Some(Entry::Run(pass))) => (Some(pass), None),
            Ok(None) => (None, None),
            Ok(Some(Entry::NotNow)) => {
                // Its failures here say nothing of its next run, maybe elsewhere.
                item.forget();
                self.brake.forget(key);
                return;
            }
            Err(panic) => (None, Some(panic)),
        };
        let stale = match self.consistency(key) {
            // A panic of the gate is told now: it is a failed run, which reads no cache.
            _ if refused.is_some() => None,
            Consistency::Level => None,
            Consistency::Behind(lag) => return self.hold_back(&item, &lag),
            Consistency::Overdue(lag) => Some(lag),
        };
        let attempt = item.num_requeues().saturating_add(1);
        let ctx = self.context(&item, attempt, stale, stop);
        let span = self.span(key, &ctx);
        if let Some(lag) = ctx.stale() {
            self.recorder.start_stale();
            span.in_scope(|| warn!(%lag, "own write not shown in time; reconciling all the same"));
        }

        let began = Instant::now();
        let active = (
            self.recorder.start_run(),
            self.journal.begin(worker, key, began),
        );
        let outcome = match refused {
            Some(panic) => span.in_scope(|| self.outcome(Err(panic), false)),
            None => {
                let fence = pass.as_ref().map(|pass| &pass.fence);
                let run = self.reconcile(key, &ctx, fence);
                run.instrument(span.clone()).await
            }
        };
        let took = began.elapsed();
        drop(active);

        span.in_scope(|| report(&outcome, attempt));
        let settlement = span.in_scope(|| self.settlement(&item, &outcome));
        self.recorder.finish_run(Run {
            label: settlement.label,
            terminal: outcome.result.as_ref().is_err_and(Failure::is_terminal),
            panicked: outcome.panicked,
            timed_out: outcome.deadline_passed && settlement.label == ResultLabel::Error,
            took,
        });
        // Nobody else counts failures of the key meanwhile: without any there is nothing to forget.
        if settlement.forget && attempt > 1 {
            item.forget();
        }
        let next = settlement
            .requeue
            .and_then(|requeue| self.requeue(&item, requeue));
        self.journal.end(&Ended {
            key,
            began,
            took,
            attempt,
            priority: item.priority(),
            result: &outcome.result,
            next,
        });
        if let Some(pass) = pass.filter(|_| next.is_none())
            && let Err(panic) = panic::guard(|| pass.settled(key))
        {
            // The place of the key is remembered for longer than need be.
            span.in_scope(|| self.panicked(&panic));
        }
        drop(item);
    }

    /// What becomes of a key after a run.
    fn settlement(&self, item: &Item<'_>, outcome: &Outcome) -> Settlement {
        let settlement = settle(&outcome.result, item.priority());
        let Some(too_often) = self.brake.ended(item.key(), settlement.is_at_once()) else {
            return settlement;
        };
        if too_often.is_power_of_two() {
            warn!(
                too_often,
                "asks again and again to come at once; it is slowed down"
            );
        }
        settlement.braked()
    }

    fn context(
        &self,
        item: &Item<'_>,
        attempt: u32,
        stale: Option<Lag>,
        stop: &CancellationToken,
    ) -> Context {
        let timeout = self.options.reconcile_timeout;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let ctx = Context::new(attempt, item.priority(), stop.clone(), deadline);
        match &self.own_writes {
            Some(own_writes) => ctx.of(OwnRun::new(own_writes, item.key()), stale),
            None => ctx,
        }
    }

    /// Whether the caches show what the key's last run wrote.
    fn consistency(&self, key: &ObjectKey) -> Consistency {
        let own_writes = self.own_writes.as_ref();
        own_writes.map_or(Consistency::Level, |own_writes| own_writes.check(key))
    }

    /// Puts a key back for which it is too early; an event makes it come earlier. That is no retry.
    fn hold_back(&self, item: &Item<'_>, lag: &Lag) {
        self.recorder.skip_stale();
        debug!(controller = &*self.controller, key = %item.key(), %lag, "own write not shown yet");
        item.add_with(AddOptions {
            after: Some(lag.look_again()),
            priority: Some(item.priority()),
            origin: Origin::Result,
            uncounted: true,
            ..AddOptions::default()
        });
    }

    /// Asks the gate, if there is one. It calls what the user has given to place keys, whose panic
    /// must not end the worker.
    fn enter(&self, key: &ObjectKey) -> Result<Option<Entry>, Box<Panic>> {
        match &self.gate {
            None => Ok(None),
            Some(gate) => panic::guard(|| Some(gate.enter(key))),
        }
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

    /// One run, up to its end, or to its drop: past its deadline, or once `fence` is cancelled.
    async fn reconcile(
        &self,
        key: &ObjectKey,
        ctx: &Context,
        fence: Option<&CancellationToken>,
    ) -> Outcome {
        let run = ctx.noticing(self.reconciler.reconcile(key, ctx));
        let mut run = std::pin::pin!(run.fuse());
        let course = self.course(panic::catch(run.as_mut()), ctx);
        let (result, deadline_passed) = match fence {
            None => course.await,
            Some(fence) => tokio::select! {
                biased;
                ended = course => ended,
                () = fence.cancelled() => (Ok(Err(ReconcileError::retry(Fenced).into())), false),
            },
        };
        // What has not ended is dropped, which is code of the user's as well.
        let dropped = panic::guard(|| run.set(Fuse::terminated()));
        let result = match (result, dropped) {
            (Ok(_), Err(panic)) => Err(panic),
            (result, _) => result,
        };
        self.outcome(result, deadline_passed)
    }

    /// Waits for the end of `run` as long as its deadline allows; and whether that had a part in it.
    async fn course(
        &self,
        mut run: impl Future<Output = Course> + Unpin,
        ctx: &Context,
    ) -> (Course, bool) {
        let Some((deadline, timeout)) = ctx.deadline().zip(self.options.reconcile_timeout) else {
            return (run.await, false);
        };
        if let Ok(result) = tokio::time::timeout_at(deadline, &mut run).await {
            return (result, false);
        }
        // A stop that came first is the cause of the end, or the run itself, and not the deadline.
        let deadline_passed = !ctx.is_cancelled();
        ctx.token().cancel();
        let result = tokio::time::timeout(DEADLINE_GRACE, run).await;
        let dropped = || ReconcileError::retry(DeadlineExceeded { timeout }).into();
        (
            result.unwrap_or_else(|_| Ok(Err(dropped()))),
            deadline_passed,
        )
    }

    fn outcome(&self, result: Course, deadline_passed: bool) -> Outcome {
        match result {
            Ok(result) => Outcome {
                result,
                panicked: false,
                deadline_passed,
            },
            Err(panic) => {
                self.panicked(&panic);
                let result = Err(ReconcileError::retry(*panic).into());
                Outcome {
                    result,
                    panicked: true,
                    deadline_passed,
                }
            }
        }
    }

    /// Logs a panic, and ends the process if the options ask for that.
    fn panicked(&self, panic: &Panic) {
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
    }

    /// Puts a key back, and says when it comes again unless that lies beyond all time.
    fn requeue(&self, item: &Item<'_>, requeue: Requeue) -> Option<Next> {
        let now = Instant::now();
        let (after, trigger) = match requeue.delay {
            Delay::Exactly(after) => (after, Trigger::Requested),
            // Asked here and not by a rate-limited add, which takes the shorter of two waits.
            Delay::Backoff { at_least } => {
                let wait = self.limiter.when(KeyRef::from(item.key()), now);
                (wait.max(at_least), Trigger::Backoff)
            }
        };
        let options = AddOptions {
            after: Some(after),
            priority: Some(requeue.priority),
            origin: Origin::Result,
            ..AddOptions::default()
        };
        item.add_with(options);
        let due = now.checked_add(after)?;
        Some(Next { due, trigger })
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
        error!(error = %error.text, "reconcile failed for good; the next event tries again");
    } else if error.is_conflict || !attempt.is_power_of_two() {
        debug!(error = %error.text, attempt, "reconcile failed; it is retried");
    } else {
        warn!(error = %error.text, attempt, "reconcile failed; it is retried");
    }
}
