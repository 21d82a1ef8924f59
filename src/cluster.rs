//! The id of the cluster that the operator serves.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube_client::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Refused;

/// The namespace whose UID is a cluster's id unless one is given (G-06).
const ID_NAMESPACE: &str = "kube-system";

/// Why the cluster's id is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server could not be asked for the cluster's id.
    #[error("the API server did not tell the cluster's id within {}s", .waited.as_secs())]
    Unreachable {
        /// How long it was tried.
        waited: Duration,
        /// The latest cause.
        source: Refused,
    },
    /// The operator may not read the namespace that gives the id.
    #[error(
        "namespace {ID_NAMESPACE} cannot be read, and its UID is the default cluster id; allow \
         `get` on it (as manifests/ does) or set --cluster-id"
    )]
    NoClusterId(#[source] Refused),
}

/// Asks for the cluster's id, again and again with backoff until `patience` is over.
///
/// `None` if `stop` came first.
pub(crate) async fn id(
    client: &Client,
    patience: Duration,
    stop: &CancellationToken,
) -> Result<Option<Arc<str>>, Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let start = Instant::now();
    let mut pause = Duration::from_millis(500);
    let mut last_cause = String::new();
    loop {
        let error = tokio::select! {
            answer = namespaces.get(ID_NAMESPACE) => match answer {
                Ok(namespace) => return Ok(namespace.metadata.uid.map(Arc::from)),
                Err(error) => Refused::from(error),
            },
            () = stop.cancelled() => return Ok(None),
        };
        if error.is_forbidden() || error.is_not_found() {
            return Err(Error::NoClusterId(error));
        }
        let cause = error.to_string();
        if cause != last_cause {
            tracing::warn!(
                error = cause,
                "the API server does not tell the cluster's id, trying again"
            );
            last_cause = cause;
        }
        let waited = start.elapsed();
        if waited >= patience {
            return Err(Error::Unreachable {
                waited,
                source: error,
            });
        }
        tokio::select! {
            () = tokio::time::sleep(pause.min(patience - waited)) => {}
            () = stop.cancelled() => return Ok(None),
        }
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}
