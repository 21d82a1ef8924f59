//! Why a controller can't be built or ends, and how errors are printed.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use informer::Unsynced;
use kube_core::Status;

use crate::reconcile::BoxError;

/// Why a controller can't be built, or ended before it was stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is no label value.
    #[error(
        "controller name {name:?} must be 1 to 63 characters of a-z, A-Z, 0-9, '-', '_', '.', \
         with a letter or digit at both ends"
    )]
    InvalidName {
        /// The name asked for.
        name: Box<str>,
    },
    /// Another controller of this process has the name.
    #[error("a controller named {name:?} exists already in this process")]
    NameTaken {
        /// The name asked for.
        name: Box<str>,
    },
    /// An option has a value out of its range.
    #[error("controller option {option} is {value}, expected {expected}")]
    InvalidOption {
        /// Field of [`ControllerOptions`](crate::ControllerOptions).
        option: &'static str,
        /// Its value.
        value: Box<str>,
        /// What is allowed.
        expected: &'static str,
    },
    /// A controller without a source would never reconcile anything.
    #[error("controller {name:?} has no source: add one with for_object, owns, watches or feed")]
    NoSource {
        /// Name of the controller.
        name: Box<str>,
    },
    /// The work queue refused its options.
    #[error("set up the work queue of controller {name:?}")]
    Queue {
        /// Name of the controller.
        name: Box<str>,
        /// What the queue reported.
        #[source]
        source: Box<workqueue::Error>,
    },
    /// An informer refused the controller's handler.
    #[error("register controller {name:?} with the informer of {informer}")]
    Source {
        /// Name of the controller.
        name: Box<str>,
        /// Name of the informer.
        informer: Box<str>,
        /// What the informer reported.
        #[source]
        source: Box<informer::Error>,
    },
    /// The initial lists did not come, or were not handled, in time.
    #[error("controller {name:?} not synced within {timeout:?}: {}", list(.unsynced))]
    SyncTimeout {
        /// Name of the controller.
        name: Box<str>,
        /// How long it waited.
        timeout: Duration,
        /// The handlers that are missing, each with what holds it up.
        unsynced: Box<[Unsynced]>,
    },
    /// A feed failed or panicked.
    #[error("feed {feed:?} of controller {name:?} failed")]
    Feed {
        /// Name of the controller.
        name: Box<str>,
        /// Name of the feed.
        feed: Box<str>,
        /// What it reported.
        #[source]
        source: BoxError,
    },
    /// The controller has ended, so a further source would lead to nothing.
    #[error("controller {name:?} has stopped")]
    Stopped {
        /// Name of the controller.
        name: Box<str>,
    },
    /// A worker ended before the stop, or by a panic outside of a reconcile: a fault of this crate.
    #[error("a worker of controller {name:?} ended: {reason}")]
    Worker {
        /// Name of the controller.
        name: Box<str>,
        /// What the runtime reported.
        reason: Box<str>,
    },
}

pub(crate) fn list(items: &[impl fmt::Display]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Prints an error and its chain of causes, divided by colons.
///
/// A cause whose text stands in the line already (some errors print their source themselves) is
/// left out. An API server's answer is printed by code, reason and message; the client's own text
/// for it would add the whole `Status` for debugging.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for error in chain(self.0) {
            let answer = status_of(error);
            let part = match answer {
                Some(status) => format!(
                    "the server answered {} {}: {}",
                    status.code, status.reason, status.message
                ),
                None => error.to_string(),
            };
            if !text.contains(&part) {
                let colon = if text.is_empty() { "" } else { ": " };
                text.push_str(colon);
                text.push_str(&part);
            }
            // Its own source is the same status once more.
            if answer.is_some() {
                break;
            }
        }
        f.write_str(&text)
    }
}

/// The API server's answer in the chain of an error, if there is one.
pub(crate) fn api_status<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    chain(error).find_map(status_of)
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The API server's answer if `error` itself is one.
fn status_of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Status> {
    // A source of type `Box<Error>` shows itself as the box in the chain.
    let boxed = || {
        error
            .downcast_ref::<Box<kube_client::Error>>()
            .map(|boxed| &**boxed)
    };
    match error.downcast_ref().or_else(boxed) {
        Some(kube_client::Error::Api(status)) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Level {
        #[error("outer")]
        Outer(#[source] Box<Level>),
        #[error("middle: {0}")]
        Repeating(#[source] Box<Level>),
        #[error("inner")]
        Inner,
    }

    #[test]
    fn a_chain_is_printed_once_from_outer_to_inner() {
        let repeating = Level::Repeating(Box::new(Level::Inner));
        let error = Level::Outer(Box::new(repeating));
        assert_eq!(Chain(&error).to_string(), "outer: middle: inner");
    }
}
