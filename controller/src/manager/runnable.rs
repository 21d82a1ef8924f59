//! One thing that a manager runs.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use informer::ObjectKey;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::reconcile::BoxError;

/// What a runnable is told by, and tells by.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    /// Cancelled when it must end.
    pub(crate) stop: CancellationToken,
    /// Cancelled when this process has become leader, or leads from the start.
    pub(crate) elected: CancellationToken,
    /// Counts the tasks of its own: one that blocks its thread outlives it when it is dropped.
    pub(crate) tasks: TaskTracker,
}

impl Tokens {
    /// Resolves once no task of its own is left. Cancel-safe.
    pub(super) async fn no_task_is_left(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

pub(super) type Run = BoxFuture<'static, Result<(), BoxError>>;

/// Tells the keys that a controller reconciles now.
pub(super) type Keys = Arc<dyn Fn() -> Vec<ObjectKey> + Send + Sync>;

enum Start {
    /// For one start; none after it.
    Once(Option<Box<dyn FnOnce(Tokens) -> Run + Send>>),
    /// For any number, one after the other.
    Anew(Box<dyn FnMut(Tokens) -> Run + Send>),
}

/// Something with a name that runs until it is told to end; see [`Manager::add`].
///
/// [`Manager::add`]: crate::Manager::add
#[must_use = "a runnable does nothing until a manager runs it"]
pub struct Runnable {
    pub(super) name: String,
    start: Start,
    pub(super) ready: Option<BoxFuture<'static, ()>>,
    /// Of a controller alone.
    pub(super) keys: Option<Keys>,
    /// Started before the leadership, and told of it.
    pub(super) warm: bool,
    /// Runs, or has run, in the present term.
    started: bool,
}

impl fmt::Debug for Runnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runnable")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Runnable {
    /// Something that `run` does once; it must end when its token is cancelled.
    pub fn new<F, Fut, E>(name: impl Into<String>, run: F) -> Self
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Self::once(name.into(), move |tokens| run(tokens.stop))
    }

    /// Something that `run` may do several times, one after the other: for each term of a leader.
    pub fn anew<F, Fut, E>(name: impl Into<String>, mut run: F) -> Self
    where
        F: FnMut(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Self::each(name.into(), move |tokens| run(tokens.stop))
    }

    /// Groups that start later wait until `ready` resolves, after this has been started.
    pub fn ready_when(mut self, ready: impl Future<Output = ()> + Send + 'static) -> Self {
        self.ready = Some(ready.boxed());
        self
    }

    pub(super) fn once<F, Fut, E>(name: String, run: F) -> Self
    where
        F: FnOnce(Tokens) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let run = move |tokens| run(tokens).map(|result| result.map_err(Into::into)).boxed();
        Self::with(name, Start::Once(Some(Box::new(run))))
    }

    pub(super) fn each<F, Fut, E>(name: String, mut run: F) -> Self
    where
        F: FnMut(Tokens) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let run = move |tokens| run(tokens).map(|result| result.map_err(Into::into)).boxed();
        Self::with(name, Start::Anew(Box::new(run)))
    }

    fn with(name: String, start: Start) -> Self {
        Self {
            name,
            start,
            ready: None,
            keys: None,
            warm: false,
            started: false,
        }
    }

    pub(super) fn warm(mut self, warm: bool) -> Self {
        self.warm = warm;
        self
    }

    /// Tells by `keys` what it works on, so that a stop can name what it drops.
    pub(super) fn working_on<F>(mut self, keys: F) -> Self
    where
        F: Fn() -> Vec<ObjectKey> + Send + Sync + 'static,
    {
        self.keys = Some(Arc::new(keys));
        self
    }

    /// Whether it can be started again after it has ended.
    pub(super) fn starts_anew(&self) -> bool {
        matches!(self.start, Start::Anew(_))
    }

    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    /// A new term begins, in which it may start again.
    pub(super) fn rearm(&mut self) {
        self.started = false;
    }

    /// Starts it; none if it was started and can be no second time.
    pub(super) fn start(&mut self, tokens: Tokens) -> Option<Run> {
        self.started = true;
        match &mut self.start {
            Start::Once(start) => start.take().map(|start| start(tokens)),
            Start::Anew(start) => Some(start(tokens)),
        }
    }
}
