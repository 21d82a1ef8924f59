//! Requests through a proxy of the fleet, proven by what the echo server saw.

use std::net::IpAddr;

use devcluster::echo::{Call, EchoHandle};
use devcluster::proxy::{Answer, ClientError, Credentials, ProxyClient};
use k8s_openapi::api::core::v1::Secret;
use kube_client::{Api, Client};

use crate::api::Proxy;

/// A page that was fetched through a proxy twice: by a plain request and through a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Visit {
    /// Address the proxy was called at.
    pub(super) proxy: String,
    /// Status code and caller's address of the plain request.
    pub(super) plain: (u16, IpAddr),
    /// Status code and caller's address of the request in the tunnel.
    pub(super) tunnel: (u16, IpAddr),
}

impl Visit {
    /// One line that says it all.
    pub(super) fn line(&self) -> String {
        format!(
            "GET {} seen from {}, CONNECT + GET {} seen from {}",
            self.plain.0, self.plain.1, self.tunnel.0, self.tunnel.1
        )
    }
}

/// Fetches a page of the echo server through the proxy, both ways.
///
/// The error says in words what is missing: an endpoint, credentials, an answer, or that the echo
/// server saw somebody else than `status.ip`.
pub(super) async fn visit(
    client: &Client,
    proxy: &Proxy,
    echo: &EchoHandle,
) -> Result<Visit, String> {
    let status = proxy.status.as_ref().ok_or("no status yet")?;
    let endpoint = status.endpoint.as_ref().ok_or("no status.endpoint yet")?;
    let own: IpAddr = status
        .ip
        .as_deref()
        .and_then(|ip| ip.parse().ok())
        .ok_or("status.ip is no address")?;
    let address = format!("{}:{}", endpoint.host, endpoint.port);
    let through = ProxyClient::new(address.clone(), credentials(client, proxy).await?);
    let url = |path: &str| format!("{}/{path}", echo.url());
    let plain = seen(through.get(&url("plain")).await, own)?;
    let tunnel = seen(through.get_tunneled(&url("tunnel")).await, own)?;
    Ok(Visit {
        proxy: address,
        plain,
        tunnel,
    })
}

/// Status and caller of an answer, if the echo server gave it and saw the right caller.
fn seen(answer: Result<Answer, ClientError>, own: IpAddr) -> Result<(u16, IpAddr), String> {
    let answer = answer.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    })?;
    let status = answer.status.as_u16();
    let call: Call = serde_json::from_slice(&answer.body).map_err(|_| {
        format!(
            "answered {status} {}",
            String::from_utf8_lossy(&answer.body).trim()
        )
    })?;
    if !answer.status.is_success() {
        Err(format!("answered {status}"))
    } else if call.ip == own {
        Ok((status, call.ip))
    } else {
        Err(format!("the echo server saw {} instead of {own}", call.ip))
    }
}

async fn credentials(client: &Client, proxy: &Proxy) -> Result<Option<Credentials>, String> {
    let Some(auth) = &proxy.spec.auth else {
        return Ok(None);
    };
    let reference = &auth.secret_ref;
    let namespace = proxy.metadata.namespace.as_deref().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets
        .get(&reference.name)
        .await
        .map_err(|error| format!("Secret {}: {error}", reference.name))?;
    let data = secret.data.unwrap_or_default();
    let value = |key: &str| {
        let missing = || format!("Secret {} has no key {key}", reference.name);
        data.get(key)
            .map(|value| value.0.clone())
            .ok_or_else(missing)
    };
    Ok(Some(Credentials::new(
        value(&reference.username_key)?,
        value(&reference.password_key)?,
    )))
}
