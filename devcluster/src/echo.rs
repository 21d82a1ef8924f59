//! An HTTP server on loopback that tells each caller how it was seen.
//!
//! It answers every request with a [`Call`] as JSON (`ip`, `port`, `method`, `path`, `headers`) and
//! remembers the latest calls, so that a test or a demonstration can prove which proxy called.
//! Values of `authorization`, `proxy-authorization` and `cookie` are not kept, only their presence.
//! The connections of a caller are independent: there is no limit on bodies (they are read and
//! dropped), none on calls, and [`REMEMBERED`] bounds the memory.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tracing::debug;

/// How many calls an [`EchoHandle`] remembers; older ones are forgotten.
pub const REMEMBERED: usize = 4096;

/// What can go wrong when an echo server starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No port of 127.0.0.1 could be bound.
    #[error("bind the echo server to 127.0.0.1")]
    Bind(#[source] io::Error),
}

/// One request as the server saw it; also the JSON it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Address the request came from.
    pub ip: IpAddr,
    /// Port the request came from.
    pub port: u16,
    /// Request method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Header fields, lower-case names, several values joined by `, `.
    pub headers: BTreeMap<String, String>,
}

/// Starts echo servers; see the [module](self).
#[derive(Debug)]
pub struct EchoServer;

impl EchoServer {
    /// Binds a free port of 127.0.0.1 and serves until the handle is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Bind`] if no port is free.
    pub async fn start() -> Result<EchoHandle, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .map_err(Error::Bind)?;
        let address = listener.local_addr().map_err(Error::Bind)?;
        let calls = Arc::new(Mutex::new(VecDeque::new()));
        let mut owner = JoinSet::new();
        owner.spawn(accept_loop(listener, Arc::clone(&calls)));
        Ok(EchoHandle {
            address,
            calls,
            _owner: owner,
        })
    }
}

/// A running echo server; dropping it closes its connections.
pub struct EchoHandle {
    address: SocketAddr,
    calls: Arc<Mutex<VecDeque<Call>>>,
    _owner: JoinSet<()>,
}

impl EchoHandle {
    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL without a path, e.g. `http://127.0.0.1:41234`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The remembered calls, oldest first.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().iter().cloned().collect()
    }

    /// The remembered calls that came from one address, oldest first.
    #[must_use]
    pub fn calls_from(&self, ip: IpAddr) -> Vec<Call> {
        self.calls
            .lock()
            .iter()
            .filter(|call| call.ip == ip)
            .cloned()
            .collect()
    }

    /// Forgets what was seen so far.
    pub fn forget(&self) {
        self.calls.lock().clear();
    }
}

impl fmt::Debug for EchoHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EchoHandle")
            .field("address", &self.address)
            .field("calls", &self.calls.lock().len())
            .finish_non_exhaustive()
    }
}

async fn accept_loop(listener: TcpListener, calls: Arc<Mutex<VecDeque<Call>>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(serve(stream, peer, Arc::clone(&calls)));
                }
                Err(error) => debug!(%error, "echo server could not accept"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, calls: Arc<Mutex<VecDeque<Call>>>) {
    let service = service_fn(move |request| {
        let calls = Arc::clone(&calls);
        async move { Ok::<_, Infallible>(answer(&calls, peer, request).await) }
    });
    let served = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%peer, %error, "caller of the echo server left early");
    }
}

async fn answer(
    calls: &Mutex<VecDeque<Call>>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let call = Call {
        ip: peer.ip(),
        port: peer.port(),
        method: request.method().to_string(),
        path: request
            .uri()
            .path_and_query()
            .map_or("/", |path| path.as_str())
            .to_owned(),
        headers: shown(request.headers()),
    };
    let mut body = request.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    let json = serde_json::to_vec_pretty(&call).expect("a call has string keys only");
    let mut calls = calls.lock();
    if calls.len() == REMEMBERED {
        calls.pop_front();
    }
    calls.push_back(call);
    drop(calls);
    let mut response = Response::new(Full::from(json));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn shown(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let secret = matches!(
            name.as_str(),
            "authorization" | "proxy-authorization" | "cookie"
        );
        let value = if secret {
            "(redacted)".into()
        } else {
            String::from_utf8_lossy(value.as_bytes())
        };
        shown
            .entry(name.as_str().to_owned())
            .and_modify(|all| {
                all.push_str(", ");
                all.push_str(&value);
            })
            .or_insert_with(|| value.into_owned());
    }
    shown
}
