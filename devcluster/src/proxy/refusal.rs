//! Why a request is not forwarded, and the answer that says so.

use std::{io, sync::atomic::AtomicU64};

use http::{HeaderValue, Response, StatusCode, header::PROXY_AUTHENTICATE};
use http_body_util::{BodyExt as _, Full};

use super::{counters::Counters, forward::ProxyBody};

/// The reason for an answer made by the proxy itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("this proxy needs a user name and a password (Proxy-Authorization: Basic)")]
    AuthRequired,
    #[error(
        "this is a forward proxy: send an absolute URL (GET http://host/path) or CONNECT host:port"
    )]
    NotForProxy,
    #[error("the target of CONNECT must be host:port")]
    ConnectTarget,
    #[error("scheme {0:?} cannot be forwarded: use http, or CONNECT for the rest")]
    Scheme(String),
    #[error("target {target} is not allowed: this proxy calls loopback addresses only")]
    TargetForbidden { target: String },
    #[error("the request leads back to this proxy")]
    Loop,
    #[error("resolve {target}: {source}")]
    Resolve { target: String, source: io::Error },
    #[error("connect to {target}: {source}")]
    Connect { target: String, source: io::Error },
    #[error("connect to {target}: no answer in time")]
    ConnectTimeout { target: String },
    #[error("exchange with {target}: {source}")]
    Exchange {
        target: String,
        source: hyper::Error,
    },
    #[error("{target} did not begin its response in time")]
    ResponseTimeout { target: String },
    #[error("error made on purpose")]
    Injected,
}

impl Refusal {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::AuthRequired => StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            Self::NotForProxy | Self::ConnectTarget => StatusCode::BAD_REQUEST,
            Self::Scheme(_) => StatusCode::NOT_IMPLEMENTED,
            Self::TargetForbidden { .. } => StatusCode::FORBIDDEN,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Exchange { .. }
            | Self::Injected => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout { .. } | Self::ResponseTimeout { .. } => {
                StatusCode::GATEWAY_TIMEOUT
            }
        }
    }

    pub(super) fn counter<'a>(&self, counters: &'a Counters) -> &'a AtomicU64 {
        match self {
            Self::AuthRequired => &counters.refused_auth,
            Self::NotForProxy | Self::ConnectTarget | Self::Scheme(_) | Self::Loop => {
                &counters.refused_request
            }
            Self::TargetForbidden { .. } => &counters.refused_target,
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Exchange { .. }
            | Self::ResponseTimeout { .. } => &counters.failed_upstream,
            Self::Injected => &counters.injected_errors,
        }
    }

    pub(super) fn response(&self) -> Response<ProxyBody> {
        let body = Full::from(format!("{self}\n"))
            .map_err(|never| match never {})
            .boxed();
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        if matches!(self, Self::AuthRequired) {
            headers.insert(
                PROXY_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"proxy\", charset=\"UTF-8\""),
            );
        }
        response
    }
}
