//! The state machine that keeps a store equal to the server: list, watch, resume, list again.

pub(crate) mod backoff;
pub(crate) mod classify;
pub(crate) mod consistency;
mod list;
mod pager;
mod report;
pub(crate) mod state;
mod stream;
mod unreadable;
mod watch;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube_core::Resource;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use self::backoff::{Backoff, BackoffOptions, RetryWindow};
use self::classify::{Next, Step};
use self::report::Reporter;
use self::state::State;
use self::stream::{Filled, StreamMemory};
use crate::client::{MAX_ASKED, MAX_RETRIES};
use crate::shared::Core;
use crate::source::{self, ListVersion, ListWatch, Malformed};
use crate::{BoxError, Cause, ObjectKey};

pub use self::backoff::BackoffOptions as ReflectorBackoff;
pub(crate) use self::unreadable::Unreadable;

/// Changes an object before it is stored, such as by leaving out what nobody reads.
///
/// Runs once for each object that arrives, on list and watch alike. An error counts as one of
/// decoding. Its text, which may hold values of the object, stands nowhere: log it where it is made
/// if that is safe.
pub type Transform<K> = Arc<dyn Fn(&mut K) -> Result<(), BoxError> + Send + Sync>;

/// Told of every failure of list and watch.
pub type ErrorHandler = Arc<dyn Fn(&ReflectorError) + Send + Sync>;

/// What happens with an object that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMalformed {
    /// It is reported and left out; a copy already in the cache stays as it is.
    #[default]
    Skip,
    /// As [`OnMalformed::Skip`], and the object's text is kept with its record in
    /// [`Informer::malformed`](crate::Informer::malformed), for a reader of another form. It
    /// stands in no error or log. Of metadata informers no text is kept, since what does not fit
    /// there may be a whole object.
    KeepRaw,
    /// The list or watch fails, and is tried again after a wait.
    Fail,
}

/// Longest wait for a kind that the server does not know: once it is there somebody counts on it.
const MISSING_KIND_WAIT: Duration = Duration::from_secs(10);

/// What happens when the server does not know the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissingKind {
    /// It is asked again after a wait, of 10 s at most, until the kind appears.
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
    pub(crate) watch_list: bool,
    pub(crate) min_watch_timeout: Duration,
    pub(crate) max_silence: Duration,
    pub(crate) backoff: BackoffOptions,
    pub(crate) internal_error_window: Duration,
    pub(crate) check_streams: bool,
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
    /// An object cannot be read. This is a report and the reflector goes on, unless
    /// [`OnMalformed::Fail`] was chosen.
    #[error(transparent)]
    Malformed(Box<Malformed>),
    /// A watch ended at once without anything new.
    #[error("watch ended within 1 s and without anything new")]
    ShortWatch,
    /// An object was announced as new at a version that the cache has passed.
    #[error("server announces {key} as new at a version already passed: its state began anew")]
    BeganAnew {
        /// The object.
        key: ObjectKey,
    },
    /// A transform panicked. What it said may be a value of the object, and goes to the process's
    /// panic hook alone.
    #[error("panic in {what}")]
    Panicked {
        /// The user code.
        what: &'static str,
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
    streams: StreamMemory,
    /// Objects of the list in progress that could not be read.
    listed_unreadable: HashSet<ObjectKey>,
    /// Failures in a row, without a successful call between them, that asked for a wait.
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
            streams: StreamMemory::default(),
            listed_unreadable: HashSet::new(),
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
            let (step, error) = match self.stream().await {
                Ok(Filled::Open(watch)) => self.watch(Some(watch)).await,
                Ok(Filled::No) => {
                    let request = self.state.list_request();
                    let consistent = request.version == ListVersion::Consistent;
                    match self.list(request).await {
                        Ok(()) => self.watch(None).await,
                        Err(error) => (Step::List { consistent }, error),
                    }
                }
                Err(failure) => failure,
            };
            let cause = error.cause();
            self.reporter.failed(&error);
            if cause == Cause::NotFound && self.options.on_missing_kind == OnMissingKind::Stop {
                return KindMissing(crate::error::chain(&error));
            }
            if !self.state.version().is_empty() {
                self.core.progress.meters.relist(cause);
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
        let wait = match error.cause() {
            Cause::NotFound => wait.min(MISSING_KIND_WAIT),
            _ => wait,
        };
        let asked = error.retry_after().map(|asked| asked.min(MAX_ASKED));
        self.asked_waits = if asked.is_some() {
            self.asked_waits + 1
        } else {
            0
        };
        // The server's wait stands in for ours, it is not put on top.
        let wait = match asked {
            Some(asked) if self.asked_waits <= MAX_RETRIES => wait.max(asked),
            _ => wait,
        };
        tracing::debug!(
            informer = self.core.progress.name(),
            ?wait,
            "waiting after a failure"
        );
        tokio::time::sleep(wait).await;
    }
}
