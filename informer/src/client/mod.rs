//! The HTTP stack to the API server.
//!
//! [`connect`] builds a `kube_client::Client` on connections without Nagle's delay and with TCP
//! keepalive, in which every call has a deadline, is repeated only where repeating is safe, and
//! names its program. With HTTP/1.1 each open watch holds a connection of its own; with
//! [`ClientOptions::http2`] all calls share one.

mod config;
mod credentials;
mod intent;
mod limiter;
mod retry;
mod transport;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube_client::Client;
use kube_client::client::{Body, ConfigExt as _};
use tower::{BoxError, ServiceBuilder};

pub use self::config::{ConfigSource, load_config};
pub use self::credentials::CredentialsError;
pub(crate) use self::retry::{MAX_ASKED, MAX_RETRIES};
pub use self::transport::CallOptions;
pub(crate) use self::transport::{failure, retry_after};

use self::credentials::without_secrets;
use self::limiter::Limiter;
use self::transport::{Calls, Timeouts};

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kubeconfig file cannot be used.
    #[error("kubeconfig {place} cannot be used")]
    Kubeconfig {
        /// The file or the place that was looked at.
        place: String,
        /// What is wrong with it. Nothing of what stands in it, which may be a secret.
        #[source]
        source: BoxError,
    },
    /// The pod's service account cannot be used.
    #[error("in-cluster configuration cannot be used")]
    InCluster(#[source] Box<kube_client::config::InClusterError>),
    /// Credentials or certificates of the configuration cannot be used; a [`CredentialsError`] where
    /// there are no credentials to be had.
    #[error("credentials or certificates cannot be used")]
    Credentials(#[source] BoxError),
    /// The configuration asks for something that this stack does not do.
    #[error("{0}")]
    Unsupported(String),
    /// An option cannot be used.
    #[error("option `{option}`: {problem}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A client drives connections on a Tokio runtime, and there is none.
    #[error("a client can be made only inside a Tokio runtime")]
    NoRuntime,
}

/// Calls that a client makes on average and at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Calls per second in the long run.
    pub per_second: NonZeroU32,
    /// Calls that may be made at once after a pause.
    pub burst: NonZeroU32,
}

/// How a client calls.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name of the program in the `User-Agent` header, by which servers log and prioritise.
    pub user_agent: String,
    /// Longest time to connect.
    pub connect_timeout: Duration,
    /// Longest time for a call with its answer, other than lists and watches.
    pub call_timeout: Duration,
    /// Longest time for a list with its answer.
    pub list_timeout: Duration,
    /// Longest time until a watch is answered; the events after that have no limit.
    pub watch_open_timeout: Duration,
    /// Silence after which the kernel asks a peer whether it is still there.
    pub keepalive: Duration,
    /// Speak HTTP/2 over TLS: all calls and watches share one connection, and a dead peer is found
    /// by pings within 45 s. The server, and whatever stands before it, must offer it. Streams
    /// above the number that the server allows on a connection wait for their turn, and one packet
    /// lost holds up all.
    pub http2: bool,
    /// Pace of calls; `None` leaves it to the server's priority and fairness.
    pub rate_limit: Option<RateLimit>,
    /// Repeat failed calls where that is safe.
    pub retry: bool,
}

impl Default for ClientOptions {
    /// 10 s per call, 60 s per list, 15 s to open a watch, safe repetition, HTTP/1.1, no limit of
    /// pace.
    fn default() -> Self {
        Self {
            user_agent: concat!("informer/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(10),
            list_timeout: Duration::from_secs(60),
            watch_open_timeout: Duration::from_secs(15),
            keepalive: Duration::from_secs(30),
            http2: false,
            rate_limit: None,
            retry: true,
        }
    }
}

/// How long a ping of an HTTP/2 connection may stay without an answer.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// As kube-client's own connector, which speaks HTTP/1.1 alone, for HTTP/2 alone.
fn with_http2(
    config: &kube_client::Config,
    tcp: HttpConnector,
) -> Result<HttpsConnector<HttpConnector>, Error> {
    let tls = config
        .rustls_client_config()
        .map_err(|error| Error::Credentials(error.into()))?;
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let fixed = name.clone().try_into().map_err(|_| Error::InvalidOption {
            option: "tls-server-name",
            problem: format!("`{name}` in the kubeconfig is no name of a server"),
        })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(fixed));
    }
    Ok(builder.enable_http2().wrap_connector(tcp))
}

/// Builds a client for `config`. Makes no request and opens no connection.
///
/// # Errors
/// Credentials or certificates that cannot be read, a configured HTTP proxy, an unusable option,
/// or a call outside of a Tokio runtime.
pub fn connect(mut config: kube_client::Config, options: ClientOptions) -> Result<Client, Error> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(Error::NoRuntime);
    }
    if config.proxy_url.is_some() {
        let problem = "the kubeconfig names a proxy for the API server, which is not supported";
        return Err(Error::Unsupported(problem.to_owned()));
    }
    let agent = HeaderValue::try_from(options.user_agent).map_err(|_| Error::InvalidOption {
        option: "user_agent",
        problem: "it holds characters that no header may hold".to_owned(),
    })?;
    config.headers.push((USER_AGENT, agent));

    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(options.connect_timeout));
    tcp.set_keepalive(Some(options.keepalive));
    tcp.set_keepalive_interval(Some(options.keepalive / 3));
    tcp.set_keepalive_retries(Some(3));

    let exec = config.auth_info.exec.as_ref();
    let plugin = exec.and_then(|exec| exec.command.as_deref()).map(Arc::from);
    let credentials = |error: kube_client::Error| {
        Error::Credentials(without_secrets(error.into(), plugin.as_deref()))
    };
    let http2 = options.http2 && config.cluster_url.scheme_str() != Some("http");
    let tls = if http2 {
        with_http2(&config, tcp)?
    } else {
        config
            .rustls_https_connector_with_connector(tcp)
            .map_err(credentials)?
    };
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        // Calls that begin together wait for one connection instead of opening one each.
        .http2_only(http2)
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(options.keepalive)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(tls);
    let authorized = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(credentials)?)
        .layer(config.extra_headers_layer().map_err(credentials)?)
        .map_err(BoxError::from)
        .service(http);
    let timeouts = Timeouts {
        call: options.call_timeout,
        list: options.list_timeout,
        watch_open: options.watch_open_timeout,
    };
    let limiter = options.rate_limit.map(Limiter::new);
    let calls = Calls::new(authorized, timeouts, limiter, options.retry).with_plugin(plugin);
    Ok(Client::new(calls, config.default_namespace))
}
