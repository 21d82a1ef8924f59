//! Where a reflector gets its objects from: the seam between state machine and API server.

pub(crate) mod decode;
mod filter;
pub(crate) mod frame;
mod intake;
pub mod kube;
mod named;
mod outline;
pub(crate) mod scan;
#[cfg(feature = "testing")]
pub mod scripted;
mod structure;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use kube_core::Status;

use crate::ObjectKey;

pub use self::kube::{KubeSource, ReadOptions, Scope};

/// Lists and watches the objects of one kind in one scope.
///
/// Namespace and selectors belong to the source, so that list and watch always ask for the same
/// set. Both calls may be dropped at any point; dropping ends the request.
pub trait ListWatch<K>: Send + Sync + 'static {
    /// Starts one list call (one page of it where the request sets a limit).
    ///
    /// The stream yields objects while the answer arrives and ends after [`ListPart::End`] or
    /// after its first error. An answer that breaks off is an error, never an early end.
    fn list(&self, request: ListRequest) -> BoxStream<'static, Result<ListPart<K>, Error>>;

    /// Opens a watch; the outer result is the answer's status, the stream its frames.
    ///
    /// The stream yields all complete frames that arrived together. Its end is the normal end of
    /// a watch; bytes that break off inside a frame end the stream as well, without an error,
    /// since the lost event comes again after a resume.
    fn watch(&self, request: WatchRequest) -> BoxFuture<'static, Result<WatchStream<K>, Error>>;

    /// Whether the source may be asked for streamed initial state
    /// ([`WatchRequest::initial_events`]); a fake that only lists says no.
    fn supports_watch_list(&self) -> bool {
        true
    }
}

/// Events of one open watch, in batches of what arrived together.
pub type WatchStream<K> = BoxStream<'static, Result<Vec<WatchEvent<K>>, Error>>;

/// Which state a list may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListVersion {
    /// Any cached state (`resourceVersion=0`).
    Any,
    /// A state at least as new as this resource version.
    NotOlderThan(Arc<str>),
    /// The state of just this resource version, if the server still has it.
    Exact(Arc<str>),
    /// The newest state, read through the server's storage (no `resourceVersion`).
    Consistent,
}

/// One list call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// The state asked for; not sent along with a continue token.
    pub version: ListVersion,
    /// Largest number of objects in the answer; `None` asks for all of them.
    pub limit: Option<u32>,
    /// Token out of the page before.
    pub continue_token: Option<String>,
}

/// One watch call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// The version after which events are wanted.
    pub resource_version: String,
    /// When the server shall end the watch.
    pub timeout: Duration,
    /// Ask for the initial state as events, ended by a marked bookmark.
    pub initial_events: bool,
}

/// What arrives from a list call.
#[derive(Debug)]
pub enum ListPart<K> {
    /// Objects in the answer's order; one that could not be read is an `Err`.
    Items(Vec<Result<K, Box<Malformed>>>),
    /// The answer is complete.
    End(ListEnd),
}

/// The metadata of a complete list answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListEnd {
    /// Version of the state that the answer shows.
    pub resource_version: String,
    /// Token for the next page, if there is one.
    pub continue_token: Option<String>,
}

/// One frame of a watch.
#[derive(Debug)]
pub enum WatchEvent<K> {
    /// An object was created, or began to match the selectors.
    Added(K),
    /// An object changed.
    Modified(K),
    /// An object was deleted, or ceased to match; this is its last state.
    Deleted(K),
    /// The server's progress without any object.
    Bookmark {
        /// Version up to which the watch is complete.
        resource_version: String,
        /// Marks the end of a streamed initial state.
        initial_events_end: bool,
    },
    /// A frame that names an object which cannot be read.
    Malformed(Box<Malformed>),
    /// The server ends the watch with this status.
    Error(Box<Status>),
}

/// An object that could not be decoded, with all that is known of it. None of its data can be
/// printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {} cannot be read at `{path}`: {problem}",
    key.as_ref().map_or_else(|| "without a readable name".to_owned(), ToString::to_string)
)]
pub struct Malformed {
    /// The kind that was asked for.
    pub kind: String,
    /// Namespace and name, where they are readable.
    pub key: Option<ObjectKey>,
    /// The object's UID, where it is readable.
    pub uid: Option<String>,
    /// The object's resource version, where it is readable.
    pub resource_version: Option<String>,
    /// Path to the field that does not fit, such as `spec.containers[0].image`.
    pub path: String,
    /// What does not fit. Values of the object never stand here.
    pub problem: String,
    /// Whether the frame said that the object is gone.
    pub deleted: bool,
    /// Whether it is an object of another kind: then name, UID and version are not those of any
    /// object that was asked for, and nothing follows from them.
    pub foreign: bool,
    /// The object as it was sent, where that is kept.
    pub raw: Option<RawObject>,
}

/// The JSON text of an object that could not be read.
///
/// It may hold secrets, so it shows its length alone wherever it is printed.
#[derive(Clone, PartialEq, Eq)]
pub struct RawObject(Arc<str>);

impl RawObject {
    /// Wraps a text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for RawObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawObject({} bytes)", self.len())
    }
}

/// Why a list or a watch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with a status other than success, or ended a watch with one.
    #[error("server answered {} {}: {}", status.code, status.reason, status.message)]
    Status {
        /// The server's answer.
        status: Box<Status>,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// Nobody listens at the server's address.
    #[error("connection refused")]
    Refused(#[source] Box<kube_client::Error>),
    /// The request could not be sent, or the answer broke off.
    #[error("transport failed")]
    Transport(#[source] Box<kube_client::Error>),
    /// There are no credentials to make the call with.
    #[error("credentials cannot be had")]
    Credentials(#[source] crate::client::CredentialsError),
    /// The call took longer than it may.
    #[error("no answer to {step} within {} s", after.as_secs_f32())]
    Deadline {
        /// The call.
        step: &'static str,
        /// Its time.
        after: Duration,
    },
    /// The answer is not what a list or watch answers.
    #[error("unusable answer: {0}")]
    Answer(String),
    /// The request cannot be expressed in HTTP.
    #[error("request cannot be built")]
    Request(#[source] http::Error),
}

impl Error {
    /// An error from a status, with the wait that its details ask for.
    pub fn status(status: Status) -> Self {
        let seconds = status
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds);
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Self::Status {
            status: Box::new(status),
            retry_after,
        }
    }

    /// How long the server asked to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Which parts of an object are left out while reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Skip `metadata.managedFields`. They are most of a decoded object's memory.
    pub managed_fields: bool,
    /// Skip the annotation of `kubectl apply`. An object read without it must not be written
    /// back whole, or the annotation is lost on the server.
    pub last_applied: bool,
}

impl Default for Cut {
    /// Without `managedFields`, with the annotation.
    fn default() -> Self {
        Self {
            managed_fields: true,
            last_applied: false,
        }
    }
}

impl<K> fmt::Debug for dyn ListWatch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListWatch")
    }
}
