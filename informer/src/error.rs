//! Errors of the informer's own calls, and the classes of failure that a reflector meets.

use std::any::Any;
use std::fmt;

/// An error of any type, as user code may return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a call on an informer was refused or its run ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of the index is taken.
    #[error("index `{name}` exists already")]
    IndexExists {
        /// The name.
        name: String,
    },
    /// No index has this name; `add_index` makes one.
    #[error("no index is named `{name}`: add it with `Informer::add_index`")]
    UnknownIndex {
        /// The name.
        name: String,
    },
    /// The store cannot number more indexes.
    #[error("a store takes at most 65535 indexes")]
    TooManyIndexes,
    /// The setting can be changed only before `run`.
    #[error("{what} cannot be set after the informer of {informer} was started")]
    Started {
        /// The setting.
        what: &'static str,
        /// Name of the informer.
        informer: String,
    },
    /// `run` was called before; an informer runs once.
    #[error("the informer of {informer} was started before, and runs only once")]
    AlreadyRan {
        /// Name of the informer.
        informer: String,
    },
    /// The informer has stopped, so nothing more will be delivered.
    #[error("the informer of {informer} has stopped")]
    Stopped {
        /// Name of the informer.
        informer: String,
    },
    /// A handler's removal was awaited inside that handler, which would wait for itself.
    #[error("handler `{handler}` cannot wait for its own removal: call it from another task")]
    OwnCallback {
        /// Name of the handler.
        handler: String,
    },
    /// The server does not know the kind, and [`OnMissingKind::Stop`](crate::OnMissingKind)
    /// was chosen.
    #[error("the server does not know the kind of the informer of {informer}: {message}")]
    KindMissing {
        /// Name of the informer.
        informer: String,
        /// The server's answer.
        message: String,
    },
    /// A panic ended the informer: that of a handler under
    /// [`OnPanic::Crash`](crate::OnPanic::Crash), or the differences that
    /// [`check_streamed_lists`](crate::InformerOptions::check_streamed_lists) finds.
    #[error("the informer of {informer} panicked: {message}")]
    Panicked {
        /// Name of the informer.
        informer: String,
        /// What the panic said.
        message: String,
    },
    /// An informer of this name, resource and version keeps metrics in the same registry.
    #[error("an informer named `{name}` of {resource} exists already: give this one another name")]
    NameTaken {
        /// The name.
        name: String,
        /// The kind.
        resource: String,
    },
    /// Nobody asked for an informer of the kind, and reads may not start one.
    #[error("no informer of {kind} exists: ask the factory for it before reads")]
    NoInformer {
        /// The kind.
        kind: String,
    },
    /// An option has a value that cannot work.
    #[error("option `{option}`: {problem}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// What is wrong with it and what to write instead.
        problem: String,
    },
}

/// The class of a failure: what it means, apart from where it was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Cause {
    /// The version asked for is older than the server keeps (410, `Expired`, `Gone`).
    Expired,
    /// The version asked for is newer than the server's state.
    VersionTooLarge,
    /// The server asks for fewer calls (429).
    Throttled,
    /// The credentials are not accepted (401), or there are none to be had.
    Unauthorized,
    /// The role does not allow the call (403).
    Forbidden,
    /// The server does not know the kind (404).
    NotFound,
    /// The server refuses the request's form (400, 405, 406, 415, 422).
    Invalid,
    /// The server failed (500 `InternalError`).
    Internal,
    /// The server, or something before it, cannot serve now (other 5xx).
    Unavailable,
    /// Nobody listens at the server's address.
    Refused,
    /// The connection failed or broke.
    Transport,
    /// A call took longer than it may.
    Deadline,
    /// The answer is not what such a call answers.
    Protocol,
    /// An object does not fit its type.
    Decode,
    /// A watch ended at once without anything new.
    ShortWatch,
    /// The server's state went back: it began anew.
    BeganAnew,
    /// User code panicked.
    Panic,
    /// Any other refusal.
    Other,
}

impl Cause {
    /// The class as a word for labels and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::VersionTooLarge => "version_too_large",
            Self::Throttled => "throttled",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Transport => "transport",
            Self::Deadline => "deadline",
            Self::Protocol => "protocol",
            Self::Decode => "decode",
            Self::ShortWatch => "short_watch",
            Self::BeganAnew => "began_anew",
            Self::Panic => "panic",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The message of an error with all its sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let part = source.to_string();
        // Wrappers often repeat their source's text as their own.
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = source.source();
    }
    text
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
