//! What a user implements and what a reconcile may answer.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use futures::future::Either;
use informer::ObjectKey;
use kube_core::Resource;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use uuid::Uuid;

use crate::consistency::{Lag, Run};
use crate::error::{Chain, api_status};
use crate::failure::Failure;
use crate::retry::MaybeConflict;

/// The work of a controller: bring one object's world to the state the object asks for.
///
/// Called with a key, not with an event: read the object from a lister (or live), compare with
/// what is there, act, and answer what to do next. It must be idempotent, since a key also comes
/// again after a restart, a relist or a retry. A key whose object is gone is a normal call, not an
/// error. One key is never reconciled twice at the same time.
///
/// # Examples
/// ```
/// use controller::{Action, Context, ObjectKey, ReconcileError, Reconciler};
///
/// struct Hello;
///
/// impl Reconciler for Hello {
///     async fn reconcile(
///         &self,
///         key: &ObjectKey,
///         ctx: &Context,
///     ) -> Result<Action, ReconcileError> {
///         tracing::info!(%key, attempt = ctx.attempt(), "hello");
///         Ok(Action::Done)
///     }
/// }
/// ```
pub trait Reconciler: Send + Sync + 'static {
    /// Reconciles the object named `key`.
    ///
    /// The future is dropped at an await point when the grace time of a stop is over, or a second
    /// after the [deadline](crate::ControllerOptions::reconcile_timeout): a step that must not be
    /// torn apart checks [`Context::is_cancelled`] before it starts.
    ///
    /// # Errors
    /// Any error puts the key back with backoff, unless it is a
    /// [terminal](ReconcileError::terminal) one.
    fn reconcile(
        &self,
        key: &ObjectKey,
        ctx: &Context,
    ) -> impl Future<Output = Result<Action, ReconcileError>> + Send;
}

/// [`Reconciler`] behind a pointer, so that a controller has no type parameter.
pub(crate) trait ErasedReconciler: Send + Sync {
    fn reconcile<'a>(
        &'a self,
        key: &'a ObjectKey,
        ctx: &'a Context,
    ) -> Pin<Box<dyn Future<Output = Result<Action, Failure>> + Send + 'a>>;
}

impl<R: Reconciler> ErasedReconciler for R {
    fn reconcile<'a>(
        &'a self,
        key: &'a ObjectKey,
        ctx: &'a Context,
    ) -> Pin<Box<dyn Future<Output = Result<Action, Failure>> + Send + 'a>> {
        // Called within the future, so that a panic before its first await is one of the run too, and so
        // is one of the error that it ends with.
        Box::pin(async move {
            let result = Reconciler::reconcile(self, key, ctx).await;
            result.map_err(Failure::from)
        })
    }
}

/// What is known about one run of a reconciler.
///
/// [`Context::default`] is a first attempt that is never cancelled, for calling a reconciler from
/// a unit test.
#[derive(Debug)]
pub struct Context {
    pub(crate) id: Uuid,
    pub(crate) attempt: u32,
    pub(crate) priority: i32,
    pub(crate) stop: CancellationToken,
    /// Child of `stop` that the deadline cancels as well, and whoever was given it. Made when it
    /// is asked for: most runs end before anybody does.
    cancel: OnceLock<CancellationToken>,
    pub(crate) deadline: Option<Instant>,
    /// By what name own writes are noted, if they are.
    run: Option<Run>,
    stale: Option<Box<Lag>>,
}

impl Default for Context {
    fn default() -> Self {
        let stop = CancellationToken::new();
        Self::new(1, 0, stop, None)
    }
}

impl Clone for Context {
    /// The same run: a clone's token is the same one.
    fn clone(&self) -> Self {
        Self {
            id: self.id,
            attempt: self.attempt,
            priority: self.priority,
            stop: self.stop.clone(),
            cancel: self.token().clone().into(),
            deadline: self.deadline,
            run: self.run.clone(),
            stale: self.stale.clone(),
        }
    }
}

impl Context {
    /// A run under `stop`, with a fresh id.
    pub(crate) fn new(
        attempt: u32,
        priority: i32,
        stop: CancellationToken,
        deadline: Option<Instant>,
    ) -> Self {
        // From the thread's generator: one system call for each reconcile would be felt.
        let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
        Self {
            id,
            attempt,
            priority,
            stop,
            cancel: OnceLock::new(),
            deadline,
            run: None,
            stale: None,
        }
    }

    /// The same for a run whose writes are noted, and which may have begun with caches that lag.
    pub(crate) fn of(mut self, run: Run, stale: Option<Lag>) -> Self {
        self.run = Some(run);
        self.stale = stale.map(Box::new);
        self
    }

    /// Random id of this run, the `reconcile.id` of its span.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// 1 for the first run of a key, one more for each run since its last success.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Priority the key was handed out with; 0 is normal, higher goes first.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// The moment this run is cancelled, if the controller has a deadline for reconciles.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Reports whether the controller stops or the deadline has passed; check it before a write.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.get().unwrap_or(&self.stop).is_cancelled()
    }

    /// Waits for what [`is_cancelled`](Self::is_cancelled) reports. Cancel-safe.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.token().cancelled()
    }

    /// Token behind [`is_cancelled`](Self::is_cancelled), for calls that take one. Cancelling it
    /// ends no other run.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        self.cancel.get_or_init(|| self.stop.child_token())
    }

    /// Notes that this run wrote `object`, as the server answered with it, so that the key runs again
    /// only when the caches show it; see [`consistency`](crate::consistency).
    ///
    /// For calls of an `Api` of one's own: what this crate's functions write is noticed without it.
    ///
    /// ```
    /// # use controller::{Context, ReconcileError};
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube_client::{Api, api::PostParams};
    /// # async fn example(api: Api<ConfigMap>, config: ConfigMap, ctx: &Context) -> Result<(), ReconcileError> {
    /// let created = api.create(&PostParams::default(), &config).await?;
    /// ctx.wrote(&created);
    /// # Ok(()) }
    /// ```
    pub fn wrote<K: Resource + 'static>(&self, object: &K) {
        if let Some(run) = &self.run {
            run.wrote(object);
        }
    }

    /// `future`, during which this crate's functions notice their writes as those of this run. A
    /// controller does that for the reconcile; wrap what runs on a task of its own.
    pub fn noticing<'a, F>(&self, future: F) -> impl Future<Output = F::Output> + Send + use<'a, F>
    where
        F: Future + Send + 'a,
    {
        match &self.run {
            Some(run) => Either::Left(run.clone().during(future)),
            None => Either::Right(future),
        }
    }

    /// How far the caches are behind an own write of this key, if they are although it was waited for
    /// as long as [`read_your_writes`](crate::ControllerOptions::read_your_writes) says: what the
    /// decision rests on should be read live.
    #[must_use]
    pub fn stale(&self) -> Option<&Lag> {
        self.stale.as_deref()
    }

    /// Why this run is cancelled; `None` while neither stop nor deadline has come.
    #[must_use]
    pub fn cause(&self) -> Option<Cancelled> {
        if self.stop.is_cancelled() {
            return Some(Cancelled::Stop);
        }
        let has_come = |deadline: &Instant| self.is_cancelled() && *deadline <= Instant::now();
        let deadline = self.deadline.filter(has_come);
        deadline.map(|_| Cancelled::Deadline)
    }
}

/// Why a reconcile was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The controller stops.
    Stop,
    /// The reconcile ran longer than its deadline.
    Deadline,
}

/// What happens to a key after a reconcile without error.
///
/// Mirrors controller-runtime's `Result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Action {
    /// Nothing until the next event; the key's failures are forgotten.
    #[default]
    Done,
    /// Again after the key's backoff, which grows as it does for errors.
    Requeue,
    /// Again after this time, or earlier by an event; the key's failures are forgotten.
    ///
    /// The time is one reminder, not a second run beside the event: a run in between cancels it.
    /// Zero means at once, for a reconciler that goes step by step. Whoever asks for it more than 16
    /// times in a row goes round in circles: the further ones wait as for [`Requeue`](Self::Requeue)
    /// until the key answers otherwise.
    RequeueAfter(Duration),
    /// `Requeue` (`after` is none) or `RequeueAfter` at another priority than the key had.
    RequeueAt {
        /// Priority of the next run.
        priority: i32,
        /// Delay as in [`RequeueAfter`](Self::RequeueAfter); none as in
        /// [`Requeue`](Self::Requeue).
        after: Option<Duration>,
    },
}

impl Action {
    /// The same with a priority for the next run; without effect on [`Done`](Self::Done).
    #[must_use]
    pub const fn at_priority(self, priority: i32) -> Self {
        match self {
            Self::Done => Self::Done,
            Self::Requeue => Self::RequeueAt {
                priority,
                after: None,
            },
            Self::RequeueAfter(after) => Self::RequeueAt {
                priority,
                after: Some(after),
            },
            Self::RequeueAt { after, .. } => Self::RequeueAt { priority, after },
        }
    }
}

/// A boxed error of any kind.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A failed reconcile: the cause, and how the key goes on.
///
/// Every error converts by `?` into one that is retried with backoff, as [`retry`](Self::retry).
/// To make that conversion possible the type itself is no [`std::error::Error`]; its cause, with
/// type and chain intact, is [`source`](Self::source).
#[derive(Debug)]
pub struct ReconcileError {
    class: Class,
    priority: Option<i32>,
    source: BoxError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Retry { at_least: Option<Duration> },
    Terminal,
}

impl ReconcileError {
    /// Retried after the key's backoff.
    ///
    /// If the cause is an API server's answer with a retry-after, that time is the least wait.
    pub fn retry(cause: impl Into<BoxError>) -> Self {
        let source = cause.into();
        let at_least = api_status(&*source)
            .and_then(|status| status.details.as_ref())
            .map(|details| details.retry_after_seconds)
            .filter(|&seconds| seconds > 0)
            .map(|seconds| Duration::from_secs(seconds.into()));
        Self {
            class: Class::Retry { at_least },
            priority: None,
            source,
        }
    }

    /// Retried after the key's backoff, but not before `at_least` has passed.
    pub fn retry_after(cause: impl Into<BoxError>, at_least: Duration) -> Self {
        let class = Class::Retry {
            at_least: Some(at_least),
        };
        Self {
            class,
            priority: None,
            source: cause.into(),
        }
    }

    /// Not retried: the next run comes with the next event. The key's failures are forgotten.
    pub fn terminal(cause: impl Into<BoxError>) -> Self {
        Self {
            class: Class::Terminal,
            priority: None,
            source: cause.into(),
        }
    }

    /// The same with a priority for the retry; without it the key keeps the one it had.
    #[must_use]
    pub fn at_priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Reports whether the key is not retried.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.class == Class::Terminal
    }

    /// The cause.
    #[must_use]
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    pub(crate) fn priority(&self) -> Option<i32> {
        self.priority
    }
}

impl MaybeConflict for ReconcileError {
    fn is_conflict(&self) -> bool {
        api_status(&*self.source).is_some_and(kube_core::Status::is_conflict)
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for ReconcileError {
    fn from(cause: E) -> Self {
        Self::retry(cause)
    }
}

impl fmt::Display for ReconcileError {
    /// Prints the cause and its chain, divided by colons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Chain(&*self.source).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use kube_core::Status;
    use kube_core::response::StatusDetails;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("write the status")]
    struct Wrapped(#[source] Box<kube_client::Error>);

    fn answer(reason: &str, code: u16, retry_after_seconds: u32) -> kube_client::Error {
        let details = StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds,
        };
        let status = Status::failure("the server's words", reason).with_code(code);
        kube_client::Error::Api(Box::new(status.with_details(details)))
    }

    #[test]
    fn any_error_is_retried_and_a_servers_retry_after_is_the_least_wait() {
        let cases: [(ReconcileError, Option<u64>, bool); 5] = [
            (std::io::Error::other("disk").into(), None, false),
            (answer("TooManyRequests", 429, 7).into(), Some(7), false),
            (
                Wrapped(Box::new(answer("TooManyRequests", 429, 7))).into(),
                Some(7),
                false,
            ),
            (
                Wrapped(Box::new(answer("Conflict", 409, 0))).into(),
                None,
                true,
            ),
            (
                ReconcileError::retry_after("quota", Duration::from_secs(60)),
                Some(60),
                false,
            ),
        ];
        for (error, seconds, conflict) in cases {
            let at_least = seconds.map(Duration::from_secs);
            assert_eq!(error.class(), Class::Retry { at_least }, "{error}");
            assert_eq!(error.is_conflict(), conflict, "{error}");
            assert!(!error.is_terminal());
        }
    }

    #[test]
    fn the_cause_keeps_its_type_and_the_text_names_the_whole_chain() {
        let error = ReconcileError::terminal(Wrapped(Box::new(answer("Invalid", 422, 0))));
        assert!(error.is_terminal());
        assert!(error.source().downcast_ref::<Wrapped>().is_some());
        let text = error.to_string();
        assert_eq!(
            text,
            "write the status: the server answered 422 Invalid: the server's words"
        );
    }

    #[test]
    fn a_priority_is_put_on_every_requeue() {
        let after = Duration::from_secs(1);
        assert_eq!(Action::Done.at_priority(5), Action::Done);
        assert_eq!(
            Action::Requeue.at_priority(5),
            Action::RequeueAt {
                priority: 5,
                after: None
            }
        );
        assert_eq!(
            Action::RequeueAfter(after).at_priority(5).at_priority(6),
            Action::RequeueAt {
                priority: 6,
                after: Some(after)
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_context_names_the_cause_of_its_end() {
        let (stop, second) = (CancellationToken::new(), Duration::from_secs(1));
        let with_deadline = Context::new(1, 0, stop.clone(), Some(Instant::now() + second));
        assert_eq!(with_deadline.cause(), None);
        with_deadline.token().cancel();
        assert_eq!(with_deadline.cause(), None, "it has cancelled itself");
        tokio::time::advance(second).await;
        assert_eq!(with_deadline.cause(), Some(Cancelled::Deadline));
        assert!(
            !stop.is_cancelled(),
            "a deadline ends one run and not the controller"
        );
        let other = Context::new(1, 0, stop.clone(), None);
        stop.cancel();
        assert_eq!(other.cause(), Some(Cancelled::Stop));
        assert_ne!(other.id(), with_deadline.id());
    }
}
