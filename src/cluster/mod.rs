//! The id of the cluster that the operator serves (G-06): where it comes from, and that it stays.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube_client::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Refused, provider};

mod store;

pub(crate) use store::Store;
pub use store::{CONFIG_MAP, KEY};

/// The namespace whose UID is a cluster's id unless one is given (G-06).
const ID_NAMESPACE: &str = "kube-system";

/// Why the cluster's id is not known, or must not be the one that it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server could not be asked.
    #[error("{what} could not be read within {}s", .waited.as_secs())]
    Unreachable {
        /// What was to be read, and why.
        what: Box<str>,
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
    /// The operator may not keep the id.
    #[error(
        "ConfigMap {store}, which keeps the cluster id, cannot be read or written; allow `create` \
         of ConfigMaps there, and `get` and `update` of this one (as manifests/ does), or name \
         the operator's own namespace by --leader-elect-namespace"
    )]
    NoStore {
        /// Namespace and name of the ConfigMap.
        store: Box<str>,
        /// What the API server said.
        source: Refused,
    },
    /// Another id is stored, and instances that carry it are still there.
    #[error(
        "the cluster id is {} now, and ConfigMap {} says {}, which {seen} at provider {} still \
         carry, such as {example}: nobody would look after them; start with --cluster-id {}, or \
         delete them first",
        .change.new, .change.store, .change.old, .change.provider, .change.old
    )]
    Changed {
        /// What was refused.
        change: Box<Change>,
        /// How many there are at least.
        seen: Seen,
        /// One of them.
        example: provider::ProviderId,
    },
    /// Another id is stored, and whether instances carry it cannot be told.
    #[error(
        "the cluster id is {} now, and ConfigMap {} says {}; whether instances at provider {} still \
         carry that cannot be told, so the change is refused; start with --cluster-id {}, or again \
         when the provider answers",
        .change.new, .change.store, .change.old, .change.provider, .change.old
    )]
    ChangeUnproven {
        /// What was refused.
        change: Box<Change>,
        /// What the provider said instead of an answer.
        source: provider::Error,
    },
}

/// A change of the cluster's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Namespace and name of the ConfigMap that keeps the id.
    pub store: Box<str>,
    /// The stored id.
    pub old: Box<str>,
    /// The id that was to be used.
    pub new: Box<str>,
    /// The provider because of which the change is refused.
    pub provider: Box<str>,
}

/// A number of instances, as far as they were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How many there were until the count ended.
    pub count: usize,
    /// Whether there are more.
    pub more: bool,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (before, plural) = match (self.more, self.count) {
            (true, _) => ("more than ", "s"),
            (false, 1) => ("", ""),
            (false, _) => ("", "s"),
        };
        write!(f, "{before}{} instance{plural}", self.count)
    }
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
    let what = "namespace kube-system, whose UID is the cluster's id,";
    let namespaces = &namespaces;
    let asked = patiently(what, patience, stop, move || async move {
        namespaces.get(ID_NAMESPACE).await.map_err(Refused::from)
    });
    match asked.await {
        Ok(Some(namespace)) => Ok(namespace.metadata.uid.map(Arc::from)),
        Ok(None) => Ok(None),
        Err(gave_up) => Err(gave_up.or(Error::NoClusterId)),
    }
}

/// Why nothing more is tried.
#[derive(Debug)]
pub(crate) enum GaveUp {
    /// The rights are missing, or what is asked for: waiting mends neither.
    Refused(Refused),
    /// Patience is over.
    Unreachable(Error),
}

impl GaveUp {
    fn or(self, refused: impl FnOnce(Refused) -> Error) -> Error {
        match self {
            Self::Refused(source) => refused(source),
            Self::Unreachable(error) => error,
        }
    }
}

/// Asks until there is an answer, with backoff, until `patience` is over; tells each cause once.
///
/// `None` if `stop` came first.
pub(crate) async fn patiently<T, F>(
    what: &str,
    patience: Duration,
    stop: &CancellationToken,
    mut ask: impl FnMut() -> F,
) -> Result<Option<T>, GaveUp>
where
    F: Future<Output = Result<T, Refused>>,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(500);
    let mut last_cause = String::new();
    loop {
        let error = match stop.run_until_cancelled(ask()).await {
            Some(Ok(answer)) => return Ok(Some(answer)),
            Some(Err(error)) => error,
            None => return Ok(None),
        };
        if error.is_forbidden() || error.is_not_found() {
            return Err(GaveUp::Refused(error));
        }
        let cause = error.to_string();
        if cause != last_cause {
            tracing::warn!(error = cause, "{what} cannot be read; trying again");
            last_cause = cause;
        }
        let waited = start.elapsed();
        if waited >= patience {
            return Err(GaveUp::Unreachable(Error::Unreachable {
                what: what.into(),
                waited,
                source: error,
            }));
        }
        let pause_now = tokio::time::sleep(pause.min(patience - waited));
        if stop.run_until_cancelled(pause_now).await.is_none() {
            return Ok(None);
        }
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube_client::client::Body;
    use serde_json::json;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(120);

    /// A server that answers with this code until `well` has passed, then with the namespace.
    fn server(code: u16, well: Duration) -> Client {
        let start = Instant::now();
        let service = tower::service_fn(move |_: http::Request<Body>| async move {
            let (code, answer) = if start.elapsed() < well {
                let reason = match code {
                    403 => "Forbidden",
                    404 => "NotFound",
                    _ => "ServiceUnavailable",
                };
                let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "code": code, "message": "not today", "reason": reason });
                (code, status)
            } else {
                let namespace = json!({ "apiVersion": "v1", "kind": "Namespace",
                    "metadata": { "name": ID_NAMESPACE, "uid": "c0ffee" } });
                (200, namespace)
            };
            let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
            let response = http::Response::builder().status(code).body(body);
            Ok::<_, Infallible>(response.expect("a response"))
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn r03_a_server_that_comes_back_in_time_tells_the_id() {
        let client = server(503, Duration::from_secs(100));
        let id = id(&client, PATIENCE, &CancellationToken::new()).await;
        assert_eq!(id.expect("in time").as_deref(), Some("c0ffee"));
    }

    #[tokio::test(start_paused = true)]
    async fn r03_after_two_minutes_the_error_names_what_was_not_read_and_the_cause() {
        let client = server(503, Duration::MAX);
        let start = Instant::now();
        let error = id(&client, PATIENCE, &CancellationToken::new()).await;
        let error = error.expect_err("nobody answers");
        assert_eq!(start.elapsed().as_secs(), 120);
        let text = crate::refused::chain(&error);
        for part in [ID_NAMESPACE, "120s", "not today", "503"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_right_to_read_the_namespace_the_error_names_right_and_flag_at_once() {
        for code in [403, 404] {
            let client = server(code, Duration::MAX);
            let start = Instant::now();
            let error = id(&client, PATIENCE, &CancellationToken::new()).await;
            let text = error.expect_err("refused").to_string();
            assert!(start.elapsed() < Duration::from_millis(100), "{code}");
            assert!(
                text.contains("--cluster-id") && text.contains("get"),
                "{text}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_wait() {
        let stop = CancellationToken::new();
        stop.cancel();
        let client = server(503, Duration::MAX);
        let id = id(&client, PATIENCE, &stop).await;
        assert_eq!(id.expect("asked to stop"), None);
    }
}
