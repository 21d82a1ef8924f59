//! Why a pass over a Proxy failed.

use std::time::Duration;

use controller::MaybeConflict;

use super::inputs;
use crate::provider;

/// Why a pass over a Proxy failed; each is retried with backoff.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cache was too old and the live read failed.
    #[error("read the Proxy from the API server")]
    Read(#[source] Box<kube_client::Error>),
    /// A patch of the Proxy's metadata failed.
    #[error("patch the Proxy's {what}")]
    Metadata {
        /// What was to be written.
        what: &'static str,
        /// The cause.
        source: Box<kube_client::Error>,
    },
    /// A patch of the Proxy's finalizers failed.
    #[error(transparent)]
    Finalizer(#[from] controller::finalizer::Error),
    /// The patch of the Proxy's status failed.
    #[error("patch the Proxy's status")]
    Status(#[source] Box<kube_client::Error>),
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
            Self::Inputs(_) | Self::Provider { .. } => false,
        }
    }

    /// The object is gone from the API server.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        let source = match self {
            Self::Read(source) | Self::Status(source) | Self::Metadata { source, .. } => source,
            Self::Finalizer(controller::finalizer::Error::Patch { source, .. }) => source,
            _ => return false,
        };
        matches!(&**source, kube_client::Error::Api(status) if status.is_not_found())
    }

    /// The wait that a provider asked for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Provider { source, .. } => source.retry_after(),
            _ => None,
        }
    }
}
