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
    #[error("namespace {ID_NAMESPACE}, whose UID is the cluster's id, could not be read within {}s", .waited.as_secs())]
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
                "namespace kube-system, whose UID is the cluster's id, cannot be read; trying again"
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
