//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, BufReader},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{body::Aborted, response::ApiResponse};
use crate::faults::Away;

/// A peer that has not finished its TLS handshake by then is dropped.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// A peer that has not begun its first request by then is dropped, as hyper does with later ones.
const FIRST_BYTE_LIMIT: Duration = Duration::from_secs(30);
/// After a stop, connections get this long to finish their responses.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Pause after a failed accept, e.g. when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers requests.
pub(crate) trait Respond: Send + Sync + 'static {
    /// Answers one request, or breaks the connection. Never panics.
    fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<ApiResponse, Aborted>> + Send;
}

/// How a server ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// Connections finish their responses within two seconds.
    pub(crate) drain: CancellationToken,
    /// Connections break at once, as when the process dies.
    pub(crate) cut: CancellationToken,
}

/// Serves a listener until it is stopped. Each connection is a task of `tasks`.
pub(crate) async fn serve<R: Respond>(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    responder: Arc<R>,
    stop: Stop,
    tasks: TaskTracker,
) {
    let Stop { drain: stop, cut } = stop;
    let acceptor = tls.map(TlsAcceptor::from);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            () = cut.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let (acceptor, responder, stop) = (acceptor.clone(), Arc::clone(&responder), stop.clone());
        let serve = async move {
            let Some(acceptor) = acceptor else {
                connection(socket, peer, responder, stop).await;
                return;
            };
            let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(socket));
            let shaken = tokio::select! {
                // Nothing was promised to such a peer yet.
                () = stop.cancelled() => return,
                shaken = handshake => shaken,
            };
            match shaken {
                Ok(Ok(stream)) => connection(stream, peer, responder, stop).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
            }
        };
        let cut = cut.clone();
        tasks.spawn(async move { cut.run_until_cancelled(serve).await });
    }
}

async fn connection<S, R>(stream: S, peer: SocketAddr, responder: Arc<R>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    R: Respond,
{
    // Which version the peer speaks is told by its first bytes; hyper waits for them for ever.
    let mut stream = BufReader::new(stream);
    let begun = tokio::select! {
        () = stop.cancelled() => return,
        begun = tokio::time::timeout(FIRST_BYTE_LIMIT, stream.fill_buf()) => begun,
    };
    if !matches!(begun, Ok(Ok(bytes)) if !bytes.is_empty()) {
        tracing::debug!(%peer, "connection ended before its first request");
        return;
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000);
    let away = Away::default();
    let asked = away.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(away.clone());
        Arc::clone(&responder).respond(request)
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut leaving = false;
    let served = loop {
        tokio::select! {
            served = connection.as_mut() => break served,
            () = asked.0.cancelled(), if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(DRAIN_LIMIT, connection).await {
                    Ok(served) => break served,
                    Err(_) => return,
                }
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, error = &*error, "connection ended");
    }
}
