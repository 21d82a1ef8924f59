//! A client that sends requests through a proxy, and shows what the proxy answers.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, StatusCode, Uri,
    header::{HOST, PROXY_AUTHORIZATION},
};
use http_body_util::{BodyExt as _, Empty};
use hyper::{
    client::conn::http1,
    rt::{Read, Write},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::auth::Credentials;

/// Longest time of one exchange, from connecting to the last byte.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request through a proxy got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The URL cannot be sent through a proxy.
    #[error("{url:?} is no http:// URL with a host")]
    Url {
        /// The URL as given.
        url: String,
    },
    /// The proxy does not answer.
    #[error("connect to proxy {proxy}")]
    Connect {
        /// Address of the proxy.
        proxy: String,
        /// What the system reported.
        #[source]
        source: std::io::Error,
    },
    /// The proxy refused the tunnel.
    #[error("proxy {proxy} answered CONNECT with {status}")]
    TunnelRefused {
        /// Address of the proxy.
        proxy: String,
        /// Its answer.
        status: StatusCode,
    },
    /// The connection broke, or what came was no HTTP.
    #[error("exchange through proxy {proxy}")]
    Exchange {
        /// Address of the proxy.
        proxy: String,
        /// What went wrong.
        #[source]
        source: hyper::Error,
    },
    /// It took too long.
    #[error("no answer through proxy {proxy} within {}s", EXCHANGE_TIMEOUT.as_secs())]
    Timeout {
        /// Address of the proxy.
        proxy: String,
    },
}

/// An answer that came through a proxy; with a status of 4xx or 5xx it may be the proxy's own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}

/// Sends GET requests through one HTTP proxy, each on a connection of its own.
#[derive(Debug, Clone)]
pub struct ProxyClient {
    proxy: String,
    auth: Option<Credentials>,
}

impl ProxyClient {
    /// A client of the proxy at `host:port`; nothing is connected yet.
    pub fn new(proxy: impl Into<String>, auth: Option<Credentials>) -> Self {
        Self {
            proxy: proxy.into(),
            auth,
        }
    }

    /// Fetches an `http://` URL by an absolute-form request.
    ///
    /// Cancellation safe: dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; an answer of the proxy itself, such as 407, is none.
    pub async fn get(&self, url: &str) -> Result<Answer, ClientError> {
        let (uri, authority) = parse(url)?;
        self.within(async {
            let stream = self.connect().await?;
            self.exchange(
                TokioIo::new(stream),
                self.request(Method::GET, uri, &authority, true),
            )
            .await
        })
        .await
    }

    /// Fetches an `http://` URL by a request inside of a tunnel (`CONNECT`).
    ///
    /// Cancellation safe: dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; [`ClientError::TunnelRefused`] with the proxy's answer if there is no
    /// tunnel.
    pub async fn get_tunneled(&self, url: &str) -> Result<Answer, ClientError> {
        let (uri, authority) = parse(url)?;
        self.within(async {
            let stream = self.connect().await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|e| self.broken(e))?;
            let target = with_port(&uri, &authority)?;
            let connect = self.request(Method::CONNECT, target, &authority, true);
            let tunneled = async move {
                let response = sender
                    .send_request(connect)
                    .await
                    .map_err(|e| self.broken(e))?;
                let status = response.status();
                if !status.is_success() {
                    let proxy = self.proxy.clone();
                    return Err(ClientError::TunnelRefused { proxy, status });
                }
                let tunnel = hyper::upgrade::on(response)
                    .await
                    .map_err(|e| self.broken(e))?;
                let path = origin_form(&uri);
                self.exchange(tunnel, self.request(Method::GET, path, &authority, false))
                    .await
            };
            // The connection drives the request until it becomes the tunnel.
            let (answer, _) = tokio::join!(tunneled, connection.with_upgrades());
            answer
        })
        .await
    }

    async fn within(
        &self,
        exchange: impl Future<Output = Result<Answer, ClientError>>,
    ) -> Result<Answer, ClientError> {
        tokio::time::timeout(EXCHANGE_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| {
                Err(ClientError::Timeout {
                    proxy: self.proxy.clone(),
                })
            })
    }

    async fn connect(&self) -> Result<TcpStream, ClientError> {
        TcpStream::connect(&self.proxy)
            .await
            .map_err(|source| ClientError::Connect {
                proxy: self.proxy.clone(),
                source,
            })
    }

    fn broken(&self, source: hyper::Error) -> ClientError {
        ClientError::Exchange {
            proxy: self.proxy.clone(),
            source,
        }
    }

    fn request(
        &self,
        method: Method,
        uri: Uri,
        authority: &HeaderValue,
        to_proxy: bool,
    ) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        request.headers_mut().insert(HOST, authority.clone());
        if to_proxy && let Some(auth) = &self.auth {
            let value = HeaderValue::from_str(&auth.header_value())
                .expect("Basic credentials are base64 text");
            request.headers_mut().insert(PROXY_AUTHORIZATION, value);
        }
        request
    }

    async fn exchange<S>(
        &self,
        stream: S,
        request: Request<Empty<Bytes>>,
    ) -> Result<Answer, ClientError>
    where
        S: Read + Write + Unpin,
    {
        let (mut sender, connection) =
            http1::handshake(stream).await.map_err(|e| self.broken(e))?;
        let answered = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok(Answer { status, body })
        };
        // The connection ends once the sender is dropped with the answer.
        let (answer, _) = tokio::join!(answered, connection);
        answer.map_err(|source| self.broken(source))
    }
}

fn parse(url: &str) -> Result<(Uri, HeaderValue), ClientError> {
    let refuse = || ClientError::Url {
        url: url.to_owned(),
    };
    let uri: Uri = url.parse().map_err(|_| refuse())?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
    let authority = authority.ok_or_else(refuse)?.as_str();
    let authority = HeaderValue::from_str(authority).map_err(|_| refuse())?;
    Ok((uri, authority))
}

/// The target of CONNECT: always with a port.
fn with_port(uri: &Uri, authority: &HeaderValue) -> Result<Uri, ClientError> {
    let host = uri.host().unwrap_or_default();
    let target = format!("{host}:{}", uri.port_u16().unwrap_or(80));
    target.parse().map_err(|_| ClientError::Url {
        url: format!("{authority:?}"),
    })
}

fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().unwrap_or_else(|_| Uri::from_static("/"))
}
