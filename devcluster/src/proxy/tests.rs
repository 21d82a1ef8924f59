use std::{net::IpAddr, num::NonZeroU64};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::*;
use crate::echo::{Call, EchoServer};

const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));

fn options() -> ProxyOptions {
    ProxyOptions {
        listen: (SOURCE, 0).into(),
        source_ip: Some(SOURCE),
        ..ProxyOptions::default()
    }
}

/// Sends one request on a connection of its own and collects the answer.
async fn send(to: SocketAddr, request: Request<Empty<Bytes>>) -> (Response<()>, Bytes) {
    let stream = TcpStream::connect(to).await.unwrap();
    exchange(stream, request).await
}

async fn exchange(stream: TcpStream, request: Request<Empty<Bytes>>) -> (Response<()>, Bytes) {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let response = sender.send_request(request).await.unwrap();
    let (head, body) = response.into_parts();
    (
        Response::from_parts(head, ()),
        body.collect().await.unwrap().to_bytes(),
    )
}

fn get(uri: &str) -> http::request::Builder {
    Request::get(uri).header("host", "ignored.test")
}

async fn raw(to: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Opens a tunnel and returns the stream behind it.
async fn connect(to: SocketAddr, target: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(
        head.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    stream
}

#[tokio::test]
async fn a_plain_request_reaches_the_target_from_the_source_address() {
    let echo = EchoServer::start().await.unwrap();
    let proxy = ForwardProxy::start(options()).await.unwrap();
    let request = get(&format!("{}/a/b?c=d", echo.url()))
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("x-end", "2")
        .header("proxy-authorization", "Basic eDp5")
        .body(Empty::new())
        .unwrap();
    let (head, body) = send(proxy.address(), request).await;
    assert_eq!(head.status(), StatusCode::OK);
    let via = format!("1.1 {}", proxy.address());
    assert_eq!(head.headers()["via"], via.as_str());

    let call: Call = serde_json::from_slice(&body).unwrap();
    assert_eq!((call.ip, call.path.as_str()), (SOURCE, "/a/b?c=d"));
    assert_eq!(call.headers["host"], echo.address().to_string());
    assert_eq!(call.headers["via"], via);
    assert_eq!(call.headers["x-end"], "2");
    assert!(!call.headers.contains_key("x-hop"), "{call:?}");
    assert!(
        !call.headers.contains_key("proxy-authorization"),
        "{call:?}"
    );
    assert_eq!(echo.calls_from(SOURCE), [call]);
    assert_eq!(proxy.counters().forwarded, 1);
}

#[tokio::test]
async fn a_tunnel_reaches_the_target_from_the_source_address() {
    let echo = EchoServer::start().await.unwrap();
    let proxy = ForwardProxy::start(options()).await.unwrap();
    let stream = connect(proxy.address(), echo.address()).await;
    let request = get("/through").body(Empty::new()).unwrap();
    let (head, body) = exchange(stream, request).await;
    assert_eq!(head.status(), StatusCode::OK);
    assert!(
        head.headers().get("via").is_none(),
        "a tunnel changes nothing"
    );
    let call: Call = serde_json::from_slice(&body).unwrap();
    assert_eq!((call.ip, call.path.as_str()), (SOURCE, "/through"));
    assert_eq!(proxy.counters().tunnels, 1);
}

#[tokio::test]
async fn credentials_are_asked_for_on_requests_and_tunnels_but_not_on_health_checks() {
    let echo = EchoServer::start().await.unwrap();
    let auth = Credentials::new("user", "pass");
    let proxy = ForwardProxy::start(ProxyOptions {
        auth: Some(auth.clone()),
        ..options()
    })
    .await
    .unwrap();
    let (head, _) = send(
        proxy.address(),
        get(&echo.url()).body(Empty::new()).unwrap(),
    )
    .await;
    assert_eq!(head.status(), StatusCode::PROXY_AUTHENTICATION_REQUIRED);
    assert!(
        head.headers()["proxy-authenticate"]
            .to_str()
            .unwrap()
            .starts_with("Basic ")
    );

    let target = echo.address();
    let request =
        format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n\r\n");
    assert!(
        raw(proxy.address(), &request)
            .await
            .starts_with("HTTP/1.1 407")
    );
    assert!(echo.calls().is_empty());

    let admitted = get(&echo.url())
        .header("proxy-authorization", auth.header_value())
        .body(Empty::new())
        .unwrap();
    assert_eq!(
        send(proxy.address(), admitted).await.0.status(),
        StatusCode::OK
    );

    let (head, body) = send(proxy.address(), get("/healthz").body(Empty::new()).unwrap()).await;
    assert_eq!((head.status(), &body[..]), (StatusCode::OK, &b"ok\n"[..]));
    let counters = proxy.counters();
    assert_eq!(
        (
            counters.refused_auth,
            counters.forwarded,
            counters.health_checks
        ),
        (2, 1, 1)
    );
}

#[tokio::test]
async fn what_cannot_be_forwarded_is_refused_with_a_reason() {
    let proxy = ForwardProxy::start(options()).await.unwrap();
    let own = proxy.address();
    let free = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let via = format!("via: 1.1 {own}\r\n");
    let cases = [
        ("GET http://192.0.2.1/", "", "403", "not allowed"),
        ("CONNECT 192.0.2.1:443", "", "403", "not allowed"),
        ("GET /", "", "400", "absolute URL"),
        ("GET https://127.0.0.1/", "", "501", "CONNECT"),
        (
            &format!("GET http://{own}/"),
            "",
            "508",
            "back to this proxy",
        ),
        (
            "GET http://127.0.0.1:1/",
            via.as_str(),
            "508",
            "back to this proxy",
        ),
        (&format!("GET http://{free}/"), "", "502", "connect to"),
        (&format!("CONNECT {free}"), "", "502", "connect to"),
        ("GET http://no-such-host.invalid/", "", "502", "resolve"),
    ];
    for (line, fields, status, text) in cases {
        let request = format!("{line} HTTP/1.1\r\nhost: x\r\n{fields}connection: close\r\n\r\n");
        let answer = raw(own, &request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{line}: {answer}"
        );
        assert!(answer.contains(text), "{line}: {answer}");
    }
    let counters = proxy.counters();
    assert_eq!(
        (
            counters.refused_target,
            counters.refused_request,
            counters.failed_upstream
        ),
        (2, 4, 3)
    );
}

#[tokio::test]
async fn shutdown_lets_a_running_tunnel_finish_and_takes_no_new_client() {
    let echo = EchoServer::start().await.unwrap();
    let proxy = Arc::new(ForwardProxy::start(options()).await.unwrap());
    let address = proxy.address();
    let tunnel = connect(address, echo.address()).await;
    let mut stopping = JoinSet::new();
    let stopped = Arc::clone(&proxy);
    stopping.spawn(async move { stopped.shutdown(Duration::from_secs(30)).await });
    let refused = tokio::time::timeout(Duration::from_secs(10), async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    refused
        .await
        .expect("the listener closes when the shutdown begins");
    let (head, _) = exchange(tunnel, get("/late").body(Empty::new()).unwrap()).await;
    assert_eq!(head.status(), StatusCode::OK);
    stopping.join_next().await.unwrap().unwrap();
    assert_eq!(proxy.counters().open_connections, 0);
}

#[tokio::test]
async fn what_outlives_the_grace_is_cut() {
    let echo = EchoServer::start().await.unwrap();
    let proxy = ForwardProxy::start(options()).await.unwrap();
    let mut tunnel = connect(proxy.address(), echo.address()).await;
    proxy.shutdown(Duration::from_millis(20)).await;
    assert_eq!(proxy.counters().open_connections, 0);
    let end = tunnel.read(&mut [0; 1]).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[tokio::test]
async fn dropping_the_handle_ends_everything() {
    let echo = EchoServer::start().await.unwrap();
    let proxy = ForwardProxy::start(options()).await.unwrap();
    let address = proxy.address();
    let mut tunnel = connect(address, echo.address()).await;
    drop(proxy);
    let end = tunnel.read(&mut [0; 1]).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let again = ForwardProxy::start(ProxyOptions {
        listen: address,
        ..options()
    });
    tokio::time::timeout(Duration::from_secs(10), async {
        let mut again = again.await;
        while again.is_err() {
            tokio::task::yield_now().await;
            let options = ProxyOptions {
                listen: address,
                ..options()
            };
            again = ForwardProxy::start(options).await;
        }
    })
    .await
    .expect("the port becomes free");
}

#[tokio::test]
async fn the_limit_on_connections_makes_further_clients_wait() {
    let echo = EchoServer::start().await.unwrap();
    let limits = ProxyLimits {
        connections: 1,
        ..ProxyLimits::default()
    };
    let proxy = ForwardProxy::start(ProxyOptions {
        limits,
        ..options()
    })
    .await
    .unwrap();
    let tunnel = connect(proxy.address(), echo.address()).await;
    let request = || get("/healthz").body(Empty::new()).unwrap();
    let waiting = send(proxy.address(), request());
    let mut waiting = std::pin::pin!(waiting);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), waiting.as_mut())
            .await
            .is_err()
    );
    assert_eq!(proxy.counters().connections, 1);
    drop(tunnel);
    assert_eq!(waiting.await.0.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_idle_tunnel_is_closed() {
    let echo = EchoServer::start().await.unwrap();
    let limits = ProxyLimits {
        tunnel_idle_timeout: Duration::from_millis(30),
        ..ProxyLimits::default()
    };
    let proxy = ForwardProxy::start(ProxyOptions {
        limits,
        ..options()
    })
    .await
    .unwrap();
    let mut tunnel = connect(proxy.address(), echo.address()).await;
    let end = tokio::time::timeout(Duration::from_secs(10), tunnel.read(&mut [0; 1])).await;
    assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
}

#[tokio::test]
async fn options_outside_their_range_are_named() {
    type Change = fn(&mut ProxyOptions);
    let cases: [(Change, &str); 4] = [
        (|o| o.limits.connections = 0, "limits.connections"),
        (|o| o.limits.head_bytes = 100, "limits.head_bytes"),
        (|o| o.source_ip = Some("::1".parse().unwrap()), "source_ip"),
        (|o| o.impairment.error_ratio = 1.5, "impairment"),
    ];
    for (change, named) in cases {
        let mut options = options();
        change(&mut options);
        match ForwardProxy::start(options).await {
            Err(Error::Option { option, .. }) => assert_eq!(option, named),
            other => panic!("{named}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn injected_errors_and_bandwidth_are_seen_by_the_client() {
    let echo = EchoServer::start().await.unwrap();
    let impairment = Impairment {
        error_ratio: 1.0,
        bytes_per_second: NonZeroU64::new(1_000_000),
        latency: Duration::from_millis(1),
        ..Impairment::default()
    };
    let proxy = ForwardProxy::start(ProxyOptions {
        impairment,
        ..options()
    })
    .await
    .unwrap();
    let (head, body) = send(
        proxy.address(),
        get(&echo.url()).body(Empty::new()).unwrap(),
    )
    .await;
    assert_eq!(head.status(), StatusCode::BAD_GATEWAY);
    assert!(body.starts_with(b"error made on purpose"));
    assert!(echo.calls().is_empty());
    assert_eq!(proxy.counters().injected_errors, 1);
}

#[tokio::test]
async fn the_client_gets_through_both_ways_and_shows_refusals() {
    let echo = EchoServer::start().await.unwrap();
    let auth = Credentials::new("user", "pass");
    let proxy = ForwardProxy::start(ProxyOptions {
        auth: Some(auth.clone()),
        ..options()
    })
    .await
    .unwrap();
    let url = format!("{}/x?y=1", echo.url());
    let client = ProxyClient::new(proxy.address().to_string(), Some(auth));
    for answer in [
        client.get(&url).await.unwrap(),
        client.get_tunneled(&url).await.unwrap(),
    ] {
        assert_eq!(answer.status, StatusCode::OK);
        let call: Call = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((call.ip, call.path.as_str()), (SOURCE, "/x?y=1"));
    }
    let stranger = ProxyClient::new(proxy.address().to_string(), None);
    let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
    assert_eq!(stranger.get(&url).await.unwrap().status, status);
    match stranger.get_tunneled(&url).await {
        Err(ClientError::TunnelRefused {
            status: refused, ..
        }) => assert_eq!(refused, status),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        stranger.get("ftp://x/").await,
        Err(ClientError::Url { .. })
    ));
    proxy.shutdown(Duration::ZERO).await;
    assert!(matches!(
        stranger.get(&url).await,
        Err(ClientError::Connect { .. })
    ));
}
