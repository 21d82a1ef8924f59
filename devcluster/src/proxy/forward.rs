//! One proxy request: checked, then forwarded or turned into a tunnel.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header::HOST};
use http_body_util::{BodyExt as _, Empty, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    client::conn::http1,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::copy_bidirectional,
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::debug;

use super::{
    connection::{Shared, Slot},
    counters::count,
    dial::Target,
    fields::{add_via, passed_before, strip_hop_by_hop},
    refusal::Refusal,
    shape::Activity,
};

/// Body of an answer: the target's, passed on frame by frame, or a short text.
pub(super) type ProxyBody = BoxBody<Bytes, hyper::Error>;

/// The connection a request came on.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    pub(super) slot: Arc<Slot>,
    pub(super) activity: Arc<Activity>,
}

/// What a request asks for, read from its method and target alone.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Health,
    Forward(Target),
    Tunnel(Target),
}

/// Answers a request; a refusal becomes a response with its reason as text.
pub(super) async fn answer(client: &Client, request: Request<Incoming>) -> Response<ProxyBody> {
    let shared = &client.shared;
    match handle(client, request).await {
        Ok(response) => response,
        Err(refusal) => {
            count(refusal.counter(&shared.counters));
            debug!(address = %shared.address, status = refusal.status().as_u16(), %refusal,
                "request refused");
            refusal.response()
        }
    }
}

async fn handle(
    client: &Client,
    request: Request<Incoming>,
) -> Result<Response<ProxyBody>, Refusal> {
    let shared = &client.shared;
    let asked = classify(request.method(), request.uri())?;
    if asked == Asked::Health {
        count(&shared.counters.health_checks);
        return Ok(health(shared.stop.is_cancelled()));
    }
    if shared
        .auth
        .as_ref()
        .is_some_and(|auth| !auth.admit(request.headers()))
    {
        return Err(Refusal::AuthRequired);
    }
    if passed_before(request.headers(), shared.address) {
        return Err(Refusal::Loop);
    }
    if !shared.faults.latency.is_zero() {
        sleep(shared.faults.latency).await;
    }
    if shared.faults.strike() {
        return Err(Refusal::Injected);
    }
    match asked {
        Asked::Tunnel(target) => open_tunnel(client, request, &target).await,
        Asked::Forward(target) => forward(shared, request, &target).await,
        Asked::Health => Ok(health(false)),
    }
}

fn classify(method: &Method, uri: &Uri) -> Result<Asked, Refusal> {
    if method == Method::CONNECT {
        return match (uri.host(), uri.port_u16()) {
            (Some(host), Some(port)) => Ok(Asked::Tunnel(Target::new(host, port))),
            _ => Err(Refusal::ConnectTarget),
        };
    }
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(host)) => Ok(Asked::Forward(Target::new(
            host,
            uri.port_u16().unwrap_or(80),
        ))),
        (Some(scheme), _) => Err(Refusal::Scheme(scheme.to_owned())),
        (None, _) if method == Method::GET && uri.path() == "/healthz" => Ok(Asked::Health),
        (None, _) => Err(Refusal::NotForProxy),
    }
}

fn health(draining: bool) -> Response<ProxyBody> {
    let (status, text) = if draining {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ok\n")
    };
    let mut response = Response::new(Full::from(text).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
}

async fn forward(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    target: &Target,
) -> Result<Response<ProxyBody>, Refusal> {
    let failed = |source| Refusal::Exchange {
        target: target.host_field(),
        source,
    };
    let stream = shared.dialer.dial(target).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let kill = shared.kill.clone();
    shared.tasks.spawn(async move {
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    debug!(%error, "connection to the target ended early");
                }
            }
            () = kill.cancelled() => {}
        }
    });
    let outgoing = outgoing(shared, request, target);
    let mut response = timeout(
        shared.limits.response_timeout,
        sender.send_request(outgoing),
    )
    .await
    .map_err(|_| Refusal::ResponseTimeout {
        target: target.host_field(),
    })?
    .map_err(failed)?;
    count(&shared.counters.forwarded);
    let version = response.version();
    strip_hop_by_hop(response.headers_mut());
    add_via(response.headers_mut(), version, shared.address);
    *response.version_mut() = Version::HTTP_11;
    Ok(response.map(|body| body.boxed()))
}

/// The request in origin form, as the target is to see it.
fn outgoing(shared: &Shared, request: Request<Incoming>, target: &Target) -> Request<Incoming> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    strip_hop_by_hop(&mut head.headers);
    add_via(&mut head.headers, head.version, shared.address);
    head.version = Version::HTTP_11;
    // The authority of an absolute-form target replaces whatever Host said (RFC 9112, 3.2.2).
    let host = HeaderValue::from_str(&target.host_field())
        .expect("the host of a parsed URI is of visible ASCII characters");
    head.headers.insert(HOST, host);
    Request::from_parts(head, body)
}

async fn open_tunnel(
    client: &Client,
    request: Request<Incoming>,
    target: &Target,
) -> Result<Response<ProxyBody>, Refusal> {
    let shared = &client.shared;
    let upstream = shared.dialer.dial(target).await?;
    count(&shared.counters.tunnels);
    let upgrade = hyper::upgrade::on(request);
    let owned = client.clone();
    shared.tasks.spawn(async move {
        tokio::select! {
            () = run_tunnel(&owned, upgrade, upstream) => {}
            () = owned.shared.kill.cancelled() => {}
        }
        drop(owned.slot);
    });
    Ok(Response::new(
        Empty::new().map_err(|never| match never {}).boxed(),
    ))
}

async fn run_tunnel(client: &Client, upgrade: OnUpgrade, mut upstream: TcpStream) {
    let upgraded: Upgraded = match upgrade.await {
        Ok(upgraded) => upgraded,
        Err(error) => {
            debug!(%error, "client left before its tunnel was open");
            return;
        }
    };
    let mut downstream = TokioIo::new(upgraded);
    let mut copying = std::pin::pin!(copy_bidirectional(&mut downstream, &mut upstream));
    let idle_timeout = client.shared.limits.tunnel_idle_timeout;
    loop {
        let idle_at = client.activity.last() + idle_timeout;
        tokio::select! {
            copied = copying.as_mut() => {
                if let Err(error) = copied {
                    debug!(%error, "tunnel ended early");
                }
                return;
            }
            () = sleep_until(idle_at) => {
                if Instant::now() >= client.activity.last() + idle_timeout {
                    debug!(address = %client.shared.address, "idle tunnel closed");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_method_and_target() {
        let forward = |host: &str, port| Ok(Asked::Forward(Target::new(host, port)));
        let cases = [
            ("GET", "http://a.test/x?y=1", forward("a.test", 80)),
            ("POST", "http://a.test:81", forward("a.test", 81)),
            ("GET", "http://[::1]:81/", forward("::1", 81)),
            ("GET", "http://user:secret@a.test/", forward("a.test", 80)),
            (
                "CONNECT",
                "a.test:443",
                Ok(Asked::Tunnel(Target::new("a.test", 443))),
            ),
            ("CONNECT", "a.test", Err(400)),
            ("GET", "https://a.test/", Err(501)),
            ("GET", "/healthz", Ok(Asked::Health)),
            ("POST", "/healthz", Err(400)),
            ("GET", "/", Err(400)),
            ("OPTIONS", "*", Err(400)),
        ];
        for (method, uri, expected) in cases {
            let got = classify(&method.parse().unwrap(), &uri.parse().unwrap())
                .map_err(|refusal| refusal.status().as_u16());
            assert_eq!(got, expected, "{method} {uri}");
        }
    }
}
