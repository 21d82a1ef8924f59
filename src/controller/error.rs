//! Why a pass over a Proxy failed.

use std::sync::Arc;
use std::time::Duration;

use controller::retry::MaybeConflict as _;

use super::inputs;
use crate::api::Proxy;
use crate::{Refused, provider};

/// Why a pass over a Proxy failed; each is retried with backoff.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cache was too old and the live read failed.
    #[error("read the Proxy from the API server")]
    Read(#[source] Refused),
    /// S-12: the live Proxy is not what the pass took it for; it is none at all if this is empty.
    #[error("the copy of the Proxy in hand is old")]
    Outdated(Option<Arc<Proxy>>),
    /// S-12: this process does not lead, or cannot be sure that it still does.
    #[error("leadership is not certain; nothing is changed until it is")]
    NotLeading,
    /// A patch of the Proxy's metadata failed.
    #[error("patch the Proxy's {what}")]
    Metadata {
        /// What was to be written.
        what: &'static str,
        /// The cause.
        source: Refused,
    },
    /// A patch of the Proxy's finalizers failed.
    #[error(transparent)]
    Finalizer(#[from] controller::finalizer::Error),
    /// The patch of the Proxy's status failed.
    #[error("patch the Proxy's status")]
    Status(#[source] Refused),
    /// M4: an input is missing or unusable.
    #[error(transparent)]
    Inputs(#[from] inputs::Error),
    /// M10: a provider failed.
    #[error("provider {provider}")]
    Provider {
        /// Name of the provider in the configuration.
        provider: String,
        /// The cause.
        source: provider::Error,
    },
}

impl Error {
    /// The API server refused a write because the copy in hand is old: look again, at once.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Read(source) | Self::Status(source) | Self::Metadata { source, .. } => {
                source.is_conflict()
            }
            Self::Finalizer(error) => error.is_conflict(),
            Self::Inputs(_) | Self::Provider { .. } | Self::Outdated(_) | Self::NotLeading => false,
        }
    }

    /// The Proxy is not there any more; the event of its deletion says the rest.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Metadata { source, .. } => source.is_not_found(),
            Self::Finalizer(controller::finalizer::Error::Patch { source, .. }) => {
                matches!(&**source, kube_client::Error::Api(status) if status.is_not_found())
            }
            Self::Finalizer(_)
            | Self::Read(_)
            | Self::Status(_)
            | Self::Inputs(_)
            | Self::Outdated(_)
            | Self::NotLeading
            | Self::Provider { .. } => false,
        }
    }

    /// The wait that a provider or the API server asked for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Provider { source, .. } => source.retry_after(),
            Self::Read(source) | Self::Status(source) | Self::Metadata { source, .. } => {
                source.retry_after()
            }
            Self::Finalizer(_) | Self::Inputs(_) | Self::Outdated(_) | Self::NotLeading => None,
        }
    }
}
