//! A reverse proxy that puts fault rules before any API server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use futures::TryStreamExt as _;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use kube_client::Client;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Faults, action};
use crate::http::{
    body::{self, Aborted},
    response::ApiResponse,
    server::{self, Respond, Stop},
};

/// Largest body of a request.
const MAX_BODY: usize = 8 << 20;
/// Headers that belong to one connection, and those that the upstream client sets itself.
const OWN_HEADERS: [header::HeaderName; 7] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::UPGRADE,
];

/// A plain-HTTP proxy on loopback before an API server; dropping it ends it.
///
/// Every request goes on under the identity of the upstream client, whatever its own credentials are. A server
/// that cannot be reached looks like a connection that ends without an answer.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    connections: TaskTracker,
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    faults: Faults,
    upstream: Mutex<Upstream>,
}

struct Upstream(Client);

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Upstream")
    }
}

impl FaultProxy {
    /// Starts a proxy to the API server of a client, on any free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be opened.
    pub async fn start(upstream: Client) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            faults: Faults::default(),
            upstream: Mutex::new(Upstream(upstream)),
        });
        let stop = CancellationToken::new();
        let connections = TaskTracker::new();
        let mut task = JoinSet::new();
        task.spawn(server::serve(
            listener,
            None,
            Arc::clone(&shared),
            Stop {
                drain: stop.clone(),
                ..Stop::default()
            },
            connections.clone(),
        ));
        Ok(Self {
            address,
            shared,
            stop,
            connections,
            _task: task,
        })
    }

    /// `http://ADDRESS:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The rules.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Sends requests to another server from now on. Watches that are open stay with the old one.
    pub fn set_upstream(&self, upstream: Client) {
        self.shared.upstream.lock().0 = upstream;
    }

    /// Stops serving and waits for the connections, at most about two seconds.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.connections.close();
        self.connections.wait().await;
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    async fn forward(&self, request: Request<Incoming>) -> Result<ApiResponse, Aborted> {
        let (parts, sent) = request.into_parts();
        let sent = match Limited::new(sent, MAX_BODY).collect().await {
            Ok(sent) => sent.to_bytes(),
            Err(error) => return Ok(action::unreadable(&error)),
        };
        let mut forwarded = Request::new(kube_client::client::Body::from(sent));
        *forwarded.method_mut() = parts.method;
        *forwarded.uri_mut() = parts.uri;
        *forwarded.headers_mut() = without_own(parts.headers);
        let upstream = self.upstream.lock().0.clone();
        let answered = upstream.send(forwarded).await;
        let (mut head, answer) = answered
            .map_err(|error| {
                tracing::debug!(%error, "the server behind the proxy does not answer");
                Aborted
            })?
            .into_parts();
        head.headers = without_own(head.headers);
        head.version = http::Version::default();
        let answer = answer.into_data_stream().map_err(|error| {
            tracing::debug!(%error, "the server behind the proxy broke off");
            Aborted
        });
        Ok(ApiResponse::from_parts(head, body::fallible(answer)))
    }
}

fn without_own(mut headers: HeaderMap) -> HeaderMap {
    for name in &OWN_HEADERS {
        headers.remove(name);
    }
    headers
}

impl Respond for Shared {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Result<ApiResponse, Aborted> {
        let shared = Arc::clone(&self);
        self.faults
            .around(
                request,
                |request| async move { shared.forward(request).await },
            )
            .await
    }
}
