//! The state machine that keeps a store equal to the server: list, watch, resume, list again.

pub(crate) mod backoff;
pub(crate) mod classify;
mod report;
pub(crate) mod state;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use kube_core::Resource;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use self::backoff::{Backoff, BackoffOptions, RetryWindow};
use self::classify::{Next, Step};
use self::report::Reporter;
use self::state::State;
use crate::error::panic_text;
use crate::shared::Core;
use crate::source::{
    self, ListEnd, ListPart, ListRequest, ListVersion, ListWatch, Malformed, WatchEvent,
    WatchRequest,
};
use crate::store::{BuildUp, Delta};
use crate::{BoxError, Cause, ObjectKey};

pub use self::backoff::BackoffOptions as ReflectorBackoff;

/// Changes an object before it is stored, such as by leaving out what nobody reads.
///
/// Runs once for each object that arrives, on list and watch alike. An error counts as one of
/// decoding.
pub type Transform<K> = Arc<dyn Fn(&mut K) -> Result<(), BoxError> + Send + Sync>;

/// Told of every failure of list and watch.
pub type ErrorHandler = Arc<dyn Fn(&ReflectorError) + Send + Sync>;

/// What happens with an object that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMalformed {
    /// It is reported and left out; a copy already in the cache stays as it is.
    #[default]
    Skip,
    /// The list or watch fails, and is tried again after a wait.
    Fail,
}

/// What happens when the server does not know the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissingKind {
    /// It is asked again after a wait, until the kind appears.
    #[default]
    Retry,
    /// The informer ends with [`Error::KindMissing`](crate::Error::KindMissing).
    Stop,
}

/// How a reflector lists and watches.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) consistent_first: bool,
    pub(crate) page_size: Option<u32>,
    pub(crate) list_timeout: Duration,
    pub(crate) open_timeout: Duration,
    pub(crate) min_watch_timeout: Duration,
    pub(crate) backoff: BackoffOptions,
    pub(crate) internal_error_window: Duration,
    pub(crate) on_malformed: OnMalformed,
    pub(crate) on_missing_kind: OnMissingKind,
}

/// A failure of list or watch, by the step that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReflectorError {
    /// A list failed.
    #[error("list failed")]
    List(#[source] source::Error),
    /// A watch could not be opened.
    #[error("watch cannot be opened")]
    OpenWatch(#[source] source::Error),
    /// An open watch failed.
    #[error("watch failed")]
    Watch(#[source] source::Error),
    /// An object cannot be read. Under [`OnMalformed::Skip`] this is a report, and the reflector
    /// goes on.
    #[error(transparent)]
    Malformed(Malformed),
    /// A watch ended at once without any event.
    #[error("watch ended within 1 s and without any event")]
    ShortWatch,
    /// An object was announced as new at a version that the cache has passed.
    #[error("server announces {key} as new at a version already passed: its state began anew")]
    BeganAnew {
        /// The object.
        key: ObjectKey,
    },
    /// A transform panicked.
    #[error("panic in {what}: {message}")]
    Panicked {
        /// The user code.
        what: &'static str,
        /// What it said.
        message: String,
    },
}

impl ReflectorError {
    /// Class of the failure.
    pub fn cause(&self) -> Cause {
        match self {
            Self::List(error) | Self::OpenWatch(error) | Self::Watch(error) => {
                classify::cause(error)
            }
            Self::Malformed(_) => Cause::Decode,
            Self::ShortWatch => Cause::ShortWatch,
            Self::BeganAnew { .. } => Cause::BeganAnew,
            Self::Panicked { .. } => Cause::Panic,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::List(error) | Self::OpenWatch(error) | Self::Watch(error) => error.retry_after(),
            _ => None,
        }
    }
}

/// A watch shorter than this and without events failed.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// How long after its own timeout a watch is given up.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// Longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Number of such waits in a row that are kept.
const MAX_RETRY_AFTERS: u32 = 10;

/// Ended for good: the server does not know the kind, and waiting was not wanted.
#[derive(Debug)]
pub(crate) struct KindMissing(pub(crate) String);

/// Feeds one store.
pub(crate) struct Reflector<K> {
    source: Arc<dyn ListWatch<K>>,
    core: Arc<Core<K>>,
    options: Options,
    transform: Option<Transform<K>>,
    reporter: Reporter,
    state: State,
    backoff: Backoff,
    window: RetryWindow,
    asked_waits: u32,
    dice: SmallRng,
}

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    pub(crate) fn new(
        source: Arc<dyn ListWatch<K>>,
        core: Arc<Core<K>>,
        options: Options,
        transform: Option<Transform<K>>,
        error_handler: Option<ErrorHandler>,
    ) -> Self {
        Self {
            reporter: Reporter::new(Arc::clone(&core.progress), error_handler),
            state: State::new(options.consistent_first, options.page_size),
            backoff: Backoff::new(options.backoff),
            window: RetryWindow::new(options.internal_error_window),
            asked_waits: 0,
            dice: SmallRng::from_os_rng(),
            source,
            core,
            options,
            transform,
        }
    }

    /// Runs until dropped. Dropping it ends request and wait at once and delivers nothing more.
    pub(crate) async fn run(&mut self) -> KindMissing {
        loop {
            let request = self.state.list_request();
            let consistent = request.version == ListVersion::Consistent;
            let failure = match self.list(request).await {
                Ok(()) => self.watch().await,
                Err(error) => (Step::List { consistent }, error),
            };
            let (step, error) = failure;
            let cause = error.cause();
            self.reporter.failed(&error);
            if cause == Cause::NotFound && self.options.on_missing_kind == OnMissingKind::Stop {
                return KindMissing(crate::error::chain(&error));
            }
            if classify::next(step, cause) == Next::ListConsistent {
                self.state.version_refused();
                continue;
            }
            self.pause(&error).await;
        }
    }

    async fn pause(&mut self, error: &ReflectorError) {
        let wait = self.backoff.step(Instant::now(), self.dice.random());
        let asked = error.retry_after().map(|asked| asked.min(MAX_RETRY_AFTER));
        self.asked_waits = if asked.is_some() {
            self.asked_waits + 1
        } else {
            0
        };
        // The server's wait stands in for ours, it is not put on top.
        let wait = match asked {
            Some(asked) if self.asked_waits <= MAX_RETRY_AFTERS => wait.max(asked),
            _ => wait,
        };
        tracing::debug!(
            informer = self.core.progress.name(),
            ?wait,
            "waiting after a failure"
        );
        tokio::time::sleep(wait).await;
    }

    /// Lists everything into the store.
    async fn list(&mut self, first: ListRequest) -> Result<(), ReflectorError> {
        self.core
            .progress
            .stats
            .lists
            .fetch_add(1, Ordering::Relaxed);
        let mut built = self.core.store.build_up();
        let mut request = first.clone();
        let mut pages = 0;
        let end = loop {
            match self.list_page(request.clone(), &mut built).await {
                Ok(mut end) => {
                    pages += 1;
                    match end.continue_token.take() {
                        Some(token) => request = State::next_page(&first, token),
                        None => break end,
                    }
                }
                Err(error)
                    if request.continue_token.is_some() && error.cause() == Cause::Expired =>
                {
                    self.reporter.failed(&error);
                    built = self.core.store.build_up();
                    request = State::whole_list(&first);
                }
                Err(error) => return Err(error),
            }
        };
        self.core.replace(built, &end.resource_version);
        self.state.listed(&first, pages, &end.resource_version);
        self.reporter.listed();
        Ok(())
    }

    async fn list_page(
        &mut self,
        request: ListRequest,
        built: &mut BuildUp<K>,
    ) -> Result<ListEnd, ReflectorError> {
        let after = self.options.list_timeout;
        let mut parts = self.source.list(request);
        let page = async {
            while let Some(part) = parts.next().await {
                match part.map_err(ReflectorError::List)? {
                    ListPart::Items(items) => {
                        for item in items {
                            self.take_listed(item, built)?;
                        }
                    }
                    ListPart::End(end) if end.resource_version.is_empty() => {
                        return Err(ReflectorError::List(source::Error::Answer(
                            "a list without metadata.resourceVersion".to_owned(),
                        )));
                    }
                    ListPart::End(end) => return Ok(end),
                }
            }
            Err(ReflectorError::List(source::Error::Answer(
                "a list without an end".to_owned(),
            )))
        };
        match tokio::time::timeout(after, page).await {
            Ok(result) => result,
            Err(_) => Err(ReflectorError::List(source::Error::Deadline {
                step: "list",
                after,
            })),
        }
    }

    fn take_listed(
        &mut self,
        item: Result<K, Malformed>,
        built: &mut BuildUp<K>,
    ) -> Result<(), ReflectorError> {
        match item.map_or_else(
            |malformed| Ok(Err(malformed)),
            |object| self.prepare(object),
        )? {
            Ok(object) => {
                let named = built.put(object);
                debug_assert!(named, "objects are prepared with a name");
            }
            Err(malformed) => {
                // It is there, only unreadable: its stored copy must not look deleted.
                if let Some(key) = &malformed.key {
                    built.keep(key);
                }
                self.skip(malformed)?;
            }
        }
        Ok(())
    }

    /// Makes an object fit for the store.
    fn prepare(&self, mut object: K) -> Result<Result<K, Malformed>, ReflectorError> {
        let malformed = |object: &K, path: &str, problem: String| Malformed {
            kind: self.core.progress.kind.clone(),
            key: ObjectKey::try_of(object),
            uid: object.meta().uid.clone(),
            resource_version: object.meta().resource_version.clone(),
            path: path.to_owned(),
            problem,
            deleted: false,
        };
        if let Some(transform) = &self.transform {
            match catch_unwind(AssertUnwindSafe(|| transform(&mut object))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let problem = format!("the transform refuses it: {error}");
                    return Ok(Err(malformed(&object, "", problem)));
                }
                Err(panic) => {
                    return Err(ReflectorError::Panicked {
                        what: "transform",
                        message: panic_text(&*panic).to_owned(),
                    });
                }
            }
        }
        if ObjectKey::try_of(&object).is_none() {
            let problem = "the object has no name".to_owned();
            return Ok(Err(malformed(&object, "metadata.name", problem)));
        }
        Ok(Ok(object))
    }

    fn skip(&mut self, malformed: Malformed) -> Result<(), ReflectorError> {
        let error = ReflectorError::Malformed(malformed);
        match self.options.on_malformed {
            OnMalformed::Fail => Err(error),
            OnMalformed::Skip => {
                self.reporter.skipped(&error);
                Ok(())
            }
        }
    }

    /// Watches from the version reached, again and again, until only a list can help.
    async fn watch(&mut self) -> (Step, ReflectorError) {
        loop {
            let (step, error) = match self.watch_once().await {
                Ok(()) => continue,
                Err(failure) => failure,
            };
            let again = match classify::next(step, error.cause()) {
                Next::Watch => true,
                Next::WatchInsideWindow => self.window.admits(Instant::now()),
                Next::List | Next::ListConsistent => false,
            };
            if !again {
                return (step, error);
            }
            self.reporter.failed(&error);
            self.pause(&error).await;
        }
    }

    /// One watch until its normal end.
    async fn watch_once(&mut self) -> Result<(), (Step, ReflectorError)> {
        let timeout = self.watch_timeout();
        let request = WatchRequest {
            resource_version: self.state.version().to_owned(),
            timeout,
            initial_events: false,
        };
        // From no version or from "0" the server first sends what exists, and none of that is a
        // point to resume from.
        let mut resumable = !matches!(request.resource_version.as_str(), "" | "0");
        let began = Instant::now();
        let after = self.options.open_timeout;
        let opened = tokio::time::timeout(after, self.source.watch(request))
            .await
            .unwrap_or(Err(source::Error::Deadline {
                step: "watch",
                after,
            }));
        let mut stream =
            opened.map_err(|error| (Step::OpenWatch, ReflectorError::OpenWatch(error)))?;
        self.core
            .progress
            .stats
            .watches
            .fetch_add(1, Ordering::Relaxed);
        self.reporter.watching();

        let mut silent = true;
        let end = began + timeout + WATCH_GRACE;
        // A peer that neither sends nor ends is given up as if it had ended the watch.
        while let Ok(Some(batch)) = tokio::time::timeout_at(end, stream.next()).await {
            silent = false;
            let batch = batch.map_err(|error| (Step::Watch, ReflectorError::Watch(error)))?;
            self.take_batch(batch, &mut resumable)
                .map_err(|error| (Step::Watch, error))?;
            // A full buffer of frames must not keep the thread from others.
            tokio::task::coop::consume_budget().await;
        }
        if silent && began.elapsed() < SHORT_WATCH {
            self.core
                .progress
                .stats
                .short_watches
                .fetch_add(1, Ordering::Relaxed);
            return Err((Step::Watch, ReflectorError::ShortWatch));
        }
        Ok(())
    }

    fn watch_timeout(&mut self) -> Duration {
        let min = self.options.min_watch_timeout.as_secs();
        Duration::from_secs(self.dice.random_range(min..=2 * min))
    }

    /// Applies frames that arrived together, up to the first that ends the watch.
    fn take_batch(
        &mut self,
        batch: Vec<WatchEvent<K>>,
        resumable: &mut bool,
    ) -> Result<(), ReflectorError> {
        let strict = *resumable;
        let mut deltas = Vec::with_capacity(batch.len());
        let mut reached: Option<String> = None;
        let mut failure = None;
        for event in batch {
            match self.take_event(event, &mut deltas, resumable) {
                Ok(version) if *resumable => reached = version.or(reached),
                Ok(_) => {}
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if !deltas.is_empty() || reached.is_some() {
            if let Some(key) = self.core.apply(deltas, reached.as_deref(), strict) {
                return Err(ReflectorError::BeganAnew { key });
            }
            if let Some(version) = &reached {
                self.state.reached(version);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Turns one frame into a step for the store; the result is the version that it carries.
    fn take_event(
        &mut self,
        event: WatchEvent<K>,
        deltas: &mut Vec<Delta<K>>,
        resumable: &mut bool,
    ) -> Result<Option<String>, ReflectorError> {
        let added = matches!(event, WatchEvent::Added(_));
        let (object, wrap): (K, fn(K) -> Delta<K>) = match event {
            WatchEvent::Error(status) => {
                return Err(ReflectorError::Watch(source::Error::status(*status)));
            }
            WatchEvent::Bookmark {
                resource_version, ..
            } => {
                *resumable = true;
                return Ok(Some(resource_version).filter(|version| !version.is_empty()));
            }
            WatchEvent::Malformed(malformed) => {
                return self.take_malformed(malformed, deltas);
            }
            WatchEvent::Added(object) => (object, Delta::Added),
            WatchEvent::Modified(object) => (object, Delta::Modified),
            WatchEvent::Deleted(object) => (object, Delta::Deleted),
        };
        self.core
            .progress
            .stats
            .events
            .fetch_add(1, Ordering::Relaxed);
        *resumable |= !added;
        let version = object.meta().resource_version.clone();
        match self.prepare(object)? {
            Ok(object) => deltas.push(wrap(object)),
            Err(malformed) => self.skip(malformed)?,
        }
        Ok(version)
    }

    fn take_malformed(
        &mut self,
        malformed: Malformed,
        deltas: &mut Vec<Delta<K>>,
    ) -> Result<Option<String>, ReflectorError> {
        self.core
            .progress
            .stats
            .events
            .fetch_add(1, Ordering::Relaxed);
        let version = malformed.resource_version.clone();
        if malformed.deleted
            && let Some(key) = &malformed.key
        {
            deltas.push(Delta::Vanished(key.clone()));
        }
        self.skip(malformed)?;
        Ok(version)
    }
}
