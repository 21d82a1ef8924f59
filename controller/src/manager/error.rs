//! Why a manager ended otherwise than by a clean stop.

use std::fmt;
use std::time::Duration;

use informer::{ObjectKey, Unsynced};

use crate::election;
use crate::error::{Chain, list};
use crate::reconcile::BoxError;

/// Why a manager ended otherwise than by a clean stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Informers without their initial list in time.
    #[error("informers not synced within {timeout:?}: {}", list(.unsynced))]
    SyncTimeout {
        /// How long the manager waited.
        timeout: Duration,
        /// The informers that are missing, each with its kind and what holds it up.
        unsynced: Vec<Unsynced>,
    },
    /// Something was not ready in time, so what comes after it was not started.
    #[error("not ready within {timeout:?}: {}", .names.join(", "))]
    NotReady {
        /// How long the manager waited.
        timeout: Duration,
        /// What was not ready.
        names: Vec<String>,
    },
    /// The election begins anew after a loss, and something that needs the leadership can't.
    #[error(
        "the election rejoins after a loss, but {} can be started only once: add it by \
         add_controller_from",
        .names.join(", ")
    )]
    StartsOnce {
        /// What was added for a single start.
        names: Vec<String>,
    },
    /// The election ended: most often the Lease was lost.
    #[error("leader election ended")]
    Election(#[source] Box<election::Error>),
    /// Something the manager ran ended with an error.
    #[error("{name} failed")]
    Failed {
        /// What it was.
        name: String,
        /// Its error.
        #[source]
        source: BoxError,
    },
    /// Something the manager ran ended by a panic.
    #[error("{name} panicked: {message}")]
    Panicked {
        /// What it was.
        name: String,
        /// What the panic said.
        message: String,
    },
    /// The grace time was over before everything had ended.
    #[error("still running after the grace time of {grace:?}: {}", list(.running))]
    GraceExceeded {
        /// The grace time.
        grace: Duration,
        /// What was dropped.
        running: Vec<Dropped>,
    },
    /// More than one of the above, in the order in which they happened.
    #[error("{}", chains(.errors))]
    Several {
        /// The errors.
        errors: Vec<Error>,
    },
}

impl Error {
    /// Whether the Lease was lost, alone or beside other errors.
    #[must_use]
    pub fn is_lease_lost(&self) -> bool {
        match self {
            Self::Election(_) => true,
            Self::Several { errors } => errors.iter().any(Self::is_lease_lost),
            _ => false,
        }
    }

    /// One error of all; none if there are none.
    pub(super) fn of(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several { errors }),
        }
    }
}

/// Something that was still running when the grace time was over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// What it was, such as `controller sites` or `task sweep`.
    pub name: String,
    /// Of a controller: the keys whose reconciles were dropped, the longest under way first; at most as
    /// many as it has workers.
    pub keys: Vec<ObjectKey>,
}

impl fmt::Display for Dropped {
    /// The name, and the keys in parentheses if there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.keys.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", list(&self.keys))
    }
}

/// The manager is stopping, or has ended: what was to be added is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the manager is stopping: nothing more is started")]
#[non_exhaustive]
pub struct Stopping;

fn chains(errors: &[Error]) -> String {
    errors
        .iter()
        .map(|error| Chain(error).to_string())
        .collect::<Vec<_>>()
        .join("; ")
}
