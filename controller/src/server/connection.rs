//! Accepting connections and answering the requests on them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::auth::{TokenAuth, Verdict};
use super::page::{Endpoint, Page, PageRequest};

/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// After a stop, connections get this long to finish their answers.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Age at which a connection is closed, after the answer under way. One that does not read its answer
/// holds its place for no longer.
const MAX_AGE: Duration = Duration::from_secs(300);
/// Pause after a failed accept, such as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener and its limits.
pub(super) struct Listening {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) max_connections: usize,
    pub(super) header_timeout: Duration,
}

/// Which endpoint answers for which path.
#[derive(Default)]
pub(super) struct Site {
    routes: Vec<(String, Box<dyn Endpoint>)>,
    pub(super) auth: Option<TokenAuth>,
}

impl Site {
    pub(super) fn route(&mut self, path: &str, endpoint: Box<dyn Endpoint>) {
        let path = path.trim_end_matches('/').to_owned();
        self.routes.retain(|(known, _)| *known != path);
        self.routes.push((path, endpoint));
    }

    pub(super) fn paths(&self) -> Vec<&str> {
        self.routes.iter().map(|(path, _)| path.as_str()).collect()
    }

    /// The endpoint with the longest path that `path` is, or lies below, and what is below it.
    fn find<'a>(&self, path: &'a str) -> Option<(&dyn Endpoint, &'a str)> {
        let mut found: Option<(usize, &dyn Endpoint, &'a str)> = None;
        for (known, endpoint) in &self.routes {
            let Some(rest) = path.strip_prefix(known.as_str()) else {
                continue;
            };
            let below = match rest.strip_prefix('/') {
                Some(below) => below,
                None if rest.is_empty() => rest,
                None => continue,
            };
            if found.is_none_or(|(length, ..)| length < known.len()) {
                found = Some((known.len(), &**endpoint, below));
            }
        }
        found.map(|(_, endpoint, below)| (endpoint, below))
    }

    async fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let page = Page::text(StatusCode::METHOD_NOT_ALLOWED, "405 only GET and HEAD\n");
            let mut response = response(page);
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        let path = request.uri().path();
        if let Some(auth) = &self.auth {
            let refused = match auth.verdict(request.headers(), path).await {
                Verdict::Allowed => None,
                Verdict::Unknown => Some((StatusCode::UNAUTHORIZED, "401 unauthorized\n")),
                Verdict::Forbidden => Some((StatusCode::FORBIDDEN, "403 forbidden\n")),
                Verdict::Unavailable => Some((
                    StatusCode::SERVICE_UNAVAILABLE,
                    "503 authentication is not available\n",
                )),
            };
            if let Some((status, text)) = refused {
                let mut response = response(Page::text(status, text));
                if status == StatusCode::UNAUTHORIZED {
                    let scheme = HeaderValue::from_static("Bearer");
                    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                }
                return response;
            }
        }
        let query = request.uri().query().unwrap_or_default();
        let page = match self.find(path) {
            None => Page::not_found(),
            Some((endpoint, subpath)) => {
                let request = PageRequest { subpath, query };
                // An endpoint is shared by reference, and says itself what a panic leaves behind.
                let answer = catch_unwind(AssertUnwindSafe(|| endpoint.answer(&request)));
                answer.unwrap_or_else(|_| {
                    error!(path, "an endpoint panicked");
                    Page::text(StatusCode::INTERNAL_SERVER_ERROR, "500 internal error\n")
                })
            }
        };
        response(page)
    }
}

fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Serves until `stop`, then waits for connections to end. Dropping it closes them all.
pub(super) async fn serve(listening: Listening, site: Arc<Site>, stop: CancellationToken) {
    let Listening {
        listener,
        tls,
        max_connections,
        header_timeout,
    } = listening;
    let places = Arc::new(Semaphore::new(max_connections));
    let mut connections = JoinSet::new();
    loop {
        // Those that have ended free their memory here.
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((socket, peer, place)) = accepted else {
            continue;
        };
        let (tls, site, stop) = (tls.clone(), Arc::clone(&site), stop.clone());
        connections.spawn(async move {
            let _place = place;
            let Some(tls) = tls else {
                connection(socket, peer, header_timeout, site, stop).await;
                return;
            };
            let handshake = tokio::time::timeout(header_timeout, tls.accept(socket));
            let shaken = tokio::select! {
                () = stop.cancelled() => return,
                shaken = handshake => shaken,
            };
            match shaken {
                Ok(Ok(stream)) => connection(stream, peer, header_timeout, site, stop).await,
                Ok(Err(error)) => debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => debug!(%peer, "TLS handshake timed out"),
            }
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Waits for a free place and then for a connection. Cancel-safe.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(
    tokio::net::TcpStream,
    SocketAddr,
    tokio::sync::OwnedSemaphorePermit,
)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.expect("the semaphore is never closed");
    match listener.accept().await {
        Ok((socket, peer)) => Some((socket, peer, place)),
        Err(error) => {
            warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn connection<S>(
    stream: S,
    peer: SocketAddr,
    header_timeout: Duration,
    site: Arc<Site>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(site.respond(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let old = tokio::time::sleep(MAX_AGE);
    let early = tokio::select! {
        served = connection.as_mut() => Some(served),
        () = stop.cancelled() => None,
        () = old => None,
    };
    let served = match early {
        Some(served) => served,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(DRAIN_LIMIT, connection).await {
                Ok(served) => served,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = served {
        debug!(%peer, %error, "connection ended");
    }
}
