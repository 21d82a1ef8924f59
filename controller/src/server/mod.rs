//! HTTP endpoints of a controller process: health, readiness, metrics, diagnostics.
//!
//! A server is bound when it is made, so that an address in use is an error before anything else
//! starts, and runs in the first group of a [`Manager`](crate::Manager).
//!
//! ```no_run
//! # fn example(manager: controller::Manager) -> Result<controller::Manager, controller::server::Error> {
//! use controller::server::{Diagnostics, HttpServer, MetricsPage, ServerOptions, liveness, readiness};
//!
//! let directory = manager.directory();
//! let probes = HttpServer::bind(ServerOptions::on(([0, 0, 0, 0], 8081)))?
//!     .route("/healthz", liveness(&directory))
//!     .route("/readyz", readiness(&directory));
//! let metrics = HttpServer::bind(ServerOptions::on(([127, 0, 0, 1], 8080)))?
//!     .route("/metrics", MetricsPage::of(&directory))
//!     .route("/debug/state", Diagnostics::of(&directory));
//! Ok(manager.add_server(probes).add_server(metrics))
//! # }
//! ```
//!
//! What a server takes: GET and HEAD over HTTP/1.1, a bounded number of connections of at most five
//! minutes, heads of requests of up to 16 KiB that arrive within the header timeout. TLS and authentication by the API
//! server are optional; without them anybody who reaches the address may read, so pick loopback or
//! a network policy.

mod auth;
mod connection;
mod diagnostics;
mod exposition;
mod health;
mod page;
mod probes;
mod tls;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::connection::{Listening, Site};

pub use self::auth::TokenAuth;
pub use self::diagnostics::Diagnostics;
pub use self::exposition::MetricsPage;
pub use self::health::Health;
pub use self::page::{Endpoint, Page, PageRequest};
pub use self::probes::{liveness, readiness};

/// Why a server could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system reported.
        #[source]
        source: io::Error,
    },
    /// A server is made inside a tokio runtime.
    #[error("a server can be made only inside a tokio runtime")]
    NoRuntime,
    /// A file of the certificate or key cannot be read, or holds none.
    #[error("read a PEM {what} from {path}", path = .path.display())]
    Pem {
        /// Certificate or private key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<rustls::pki_types::pem::Error>,
    },
    /// Certificate and key do not make a server.
    #[error("use the certificate of {path}", path = .path.display())]
    Certificate {
        /// The file of the certificate.
        path: PathBuf,
        /// What is wrong with them.
        #[source]
        source: Box<rustls::Error>,
    },
}

/// Files of a serving certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those between it and its authority, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Where and how a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Address and port; port 0 picks a free one.
    pub address: SocketAddr,
    /// Connections at the same time; further ones wait to be accepted. Default 64.
    pub max_connections: usize,
    /// How long the head of a request may take to arrive, from the opening of a connection or the
    /// end of the request before. Default 10 s.
    pub header_timeout: Duration,
    /// Serving certificate; read once, when the server is made. Default none: plain HTTP.
    pub tls: Option<TlsFiles>,
}

impl ServerOptions {
    /// Options for an address, the rest by default.
    #[must_use]
    pub fn on(address: impl Into<SocketAddr>) -> Self {
        Self {
            address: address.into(),
            max_connections: 64,
            header_timeout: Duration::from_secs(10),
            tls: None,
        }
    }

    /// Options for a port of the loopback address, the rest by default.
    #[must_use]
    pub fn loopback(port: u16) -> Self {
        Self::on(([127, 0, 0, 1], port))
    }
}

/// A server that listens already; it answers once it runs.
#[must_use = "a server answers nothing until it runs"]
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
    options: ServerOptions,
    site: Site,
}

impl fmt::Debug for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpServer")
            .field("address", &self.address)
            .field("tls", &self.tls.is_some())
            .field("paths", &self.site.paths())
            .finish_non_exhaustive()
    }
}

impl HttpServer {
    /// Listens; connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::Bind`] if the address is in use or not ours, [`Error::Pem`] and
    /// [`Error::Certificate`] for files of no use, [`Error::NoRuntime`].
    pub fn bind(options: ServerOptions) -> Result<Self, Error> {
        let tls = options.tls.as_ref().map(tls::config).transpose()?;
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::NoRuntime);
        }
        let address = options.address;
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listen().map_err(|source| Error::Bind { address, source })?;
        Ok(Self {
            listener,
            address,
            tls,
            options,
            site: Site::default(),
        })
    }

    /// The address it listens on, with the port that was picked.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets `endpoint` answer for `path` and everything below it, unless a longer path fits.
    pub fn route(mut self, path: impl Into<String>, endpoint: impl Endpoint) -> Self {
        self.site.route(&path.into(), Box::new(endpoint));
        self
    }

    /// Lets only those read whom the API server knows by their token, and, if `auth` says so, whom
    /// it allows to.
    pub fn with_auth(mut self, auth: TokenAuth) -> Self {
        self.site.auth = Some(auth);
        self
    }

    /// Serves until `stop`, then lets answers under way be finished for at most 2 s.
    ///
    /// Cancellation safety: dropping the future closes listener and connections.
    ///
    /// # Errors
    /// None; the type says that it may be run by a manager.
    pub async fn run(self, stop: CancellationToken) -> Result<(), std::convert::Infallible> {
        let listening = Listening {
            listener: self.listener,
            tls: self.tls.map(tokio_rustls::TlsAcceptor::from),
            max_connections: self.options.max_connections.max(1),
            header_timeout: self.options.header_timeout,
        };
        tracing::info!(address = %self.address, paths = ?self.site.paths(), "serving HTTP");
        connection::serve(listening, Arc::new(self.site), stop).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
