//! A server on loopback, and a client that speaks bytes.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

struct Serving {
    address: SocketAddr,
    stop: CancellationToken,
    running: JoinSet<()>,
}

impl Serving {
    fn start(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::with(change, |server| server)
    }

    fn with(
        change: impl FnOnce(&mut ServerOptions),
        more: impl FnOnce(HttpServer) -> HttpServer,
    ) -> Self {
        let mut options = ServerOptions::loopback(0);
        change(&mut options);
        let server = HttpServer::bind(options)
            .unwrap()
            .route("/healthz", Health::new())
            .route("/echo", |request: &PageRequest<'_>| {
                let PageRequest { subpath, query } = request;
                Page::text(http::StatusCode::OK, format!("{subpath}|{query}"))
            })
            .route("/echo/deep", |_: &PageRequest<'_>| {
                Page::text(http::StatusCode::OK, "deep")
            })
            .route("/panic", |_: &PageRequest<'_>| -> Page {
                panic!("no luck")
            });
        let server = more(server);
        let (address, stop) = (server.address(), CancellationToken::new());
        let mut running = JoinSet::new();
        let token = stop.clone();
        running.spawn(async move { server.run(token).await.unwrap() });
        Self {
            address,
            stop,
            running,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request on a connection of its own; gives code, head and body.
    async fn ask(&self, method: &str, path: &str, headers: &str) -> (u16, String, String) {
        let mut stream = self.connect().await;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        parse(&read(&mut stream).await)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask("GET", path, "").await;
        (status, body)
    }

    async fn end(mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.running.join_next()).await;
        ended.expect("it ends").unwrap().unwrap();
    }
}

async fn read(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let all = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    // A peer that resets has said all the same what it had to say.
    drop(all.expect("the server answers or closes"));
    String::from_utf8(answer).unwrap()
}

fn parse(answer: &str) -> (u16, String, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_default(), head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn a_path_is_answered_by_the_endpoint_with_the_longest_one_above_it() {
    let serving = Serving::start(|_| {});
    for (path, status, body) in [
        ("/healthz", 200, "ok"),
        ("/healthz/", 200, "ok"),
        ("/healthz/x", 404, "404 not found\n"),
        ("/echo", 200, "|"),
        ("/echo/a/b?c=d", 200, "a/b|c=d"),
        ("/echo/deep", 200, "deep"),
        ("/echo/deeper", 200, "deeper|"),
        ("/echoes", 404, "404 not found\n"),
        ("/", 404, "404 not found\n"),
        ("/panic", 500, "500 internal error\n"),
    ] {
        assert_eq!(serving.get(path).await, (status, body.to_owned()), "{path}");
    }
    let (status, head, body) = serving.ask("HEAD", "/echo/a", "").await;
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.to_lowercase().contains("content-length: 2"), "{head}");
    let (status, head, _) = serving.ask("POST", "/echo", "Content-Length: 0\r\n").await;
    assert_eq!(status, 405);
    assert!(head.to_lowercase().contains("allow: get, head"), "{head}");
    serving.end().await;
}

#[tokio::test]
async fn c36_an_address_in_use_is_an_error_that_names_it_when_the_server_is_made() {
    let serving = Serving::start(|_| {});
    let error = HttpServer::bind(ServerOptions::on(serving.address)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&serving.address.to_string()), "{text}");
    serving.end().await;
}

#[tokio::test]
async fn a_peer_that_sends_no_head_in_time_is_dropped() {
    let serving = Serving::start(|options| options.header_timeout = Duration::from_millis(200));
    for begin in ["", "GET /healthz HT"] {
        let mut stream = serving.connect().await;
        stream.write_all(begin.as_bytes()).await.unwrap();
        let answer = read(&mut stream).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // One that has been answered and then stays silent, too.
    let mut stream = serving.connect().await;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(read(&mut stream).await.ends_with("ok"));
    serving.end().await;
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let serving = Serving::start(|_| {});
    let long = format!("X-Long: {}\r\n", "a".repeat(64 * 1024));
    let mut stream = serving.connect().await;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{long}\r\n");
    // It may close before all was sent.
    drop(stream.write_all(request.as_bytes()).await);
    let (status, ..) = parse(&read(&mut stream).await);
    assert_ne!(status, 200);
    serving.end().await;
}

#[tokio::test]
async fn no_more_connections_are_taken_than_allowed() {
    let serving = Serving::start(|options| options.max_connections = 2);
    let two = serving.connect().await;
    let mut one = serving.connect().await;
    // The one before it has been accepted, too, when it is answered.
    one.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 12];
    one.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    // The third waits; it gets its turn when a place is free.
    let mut third = serving.connect().await;
    third
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), third.readable()).await;
    assert!(early.is_err(), "two connections are open");
    drop(two);
    assert!(read(&mut third).await.ends_with("ok"));
    serving.end().await;
}

#[tokio::test]
async fn a_stop_ends_idle_connections_and_frees_the_address() {
    let serving = Serving::start(|_| {});
    let address = serving.address;
    let mut idle = serving.connect().await;
    serving.end().await;
    assert_eq!(read(&mut idle).await, "");
    let again = HttpServer::bind(ServerOptions::on(address));
    assert!(again.is_ok(), "{again:?}");
}

#[tokio::test]
async fn tls_is_served_with_the_files_named_and_a_bad_file_is_named() {
    let dir = std::env::temp_dir().join(format!("controller-tls-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&dir).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = TlsFiles {
        certificate: dir.join("tls.crt"),
        key: dir.join("tls.key"),
    };
    let missing = HttpServer::bind(ServerOptions {
        tls: Some(files.clone()),
        ..ServerOptions::loopback(0)
    });
    let text = missing.unwrap_err().to_string();
    assert!(
        text.contains("certificate") && text.contains("tls.crt"),
        "{text}"
    );
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, "no key").unwrap();
    let bad = HttpServer::bind(ServerOptions {
        tls: Some(files.clone()),
        ..ServerOptions::loopback(0)
    });
    let text = bad.unwrap_err().to_string();
    assert!(
        text.contains("private key") && text.contains("tls.key"),
        "{text}"
    );
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();

    let serving = Serving::start(|options| options.tls = Some(files));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut stream = connector
        .connect(name, serving.connect().await)
        .await
        .unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    // The peer ends without a closing alert once it has answered.
    drop(stream.read_to_string(&mut answer).await);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serving.end().await;
    std::fs::remove_dir_all(&dir).unwrap();
}

/// An API server that knows two tokens, and lets one of their users see `/echo`.
fn reviewer() -> kube_client::Client {
    use kube_client::client::Body;
    let service = tower::service_fn(|request: http::Request<Body>| async move {
        let path = request.uri().path().to_owned();
        let bytes = request.into_body().collect_bytes().await.unwrap();
        let asked: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let mut answer = asked.clone();
        if path.ends_with("/tokenreviews") {
            let token = asked["spec"]["token"].as_str().unwrap();
            answer["status"] = match token {
                "reader" | "guest" => serde_json::json!({
                    "authenticated": true, "user": { "username": token, "groups": ["g"] },
                }),
                _ => serde_json::json!({ "authenticated": false }),
            };
        } else {
            assert!(path.ends_with("/subjectaccessreviews"), "{path}");
            let attributes = &asked["spec"]["nonResourceAttributes"];
            assert_eq!(attributes["verb"], "get");
            let allowed = asked["spec"]["user"] == "reader" && attributes["path"] == "/echo";
            answer["status"] = serde_json::json!({ "allowed": allowed });
        }
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        Ok::<_, std::convert::Infallible>(http::Response::builder().status(201).body(body).unwrap())
    });
    kube_client::Client::new(service, "default")
}

#[tokio::test]
async fn c36_only_those_read_whom_the_api_server_knows_and_allows() {
    let serving = Serving::with(
        |_| {},
        |server| server.with_auth(TokenAuth::new(reviewer())),
    );
    for (path, header, status) in [
        ("/echo", "", 401),
        ("/echo", "Authorization: Basic cmVhZGVy\r\n", 401),
        ("/echo", "Authorization: Bearer nobody\r\n", 401),
        ("/echo", "Authorization: Bearer guest\r\n", 403),
        ("/echo", "Authorization: Bearer reader\r\n", 200),
        ("/healthz", "Authorization: Bearer reader\r\n", 403),
        ("/unknown", "", 401),
    ] {
        let (found, head, _) = serving.ask("GET", path, header).await;
        assert_eq!(found, status, "{path} with {header:?}");
        let challenged = head.to_lowercase().contains("www-authenticate: bearer");
        assert_eq!(challenged, status == 401, "{head}");
    }
    serving.end().await;

    let known = TokenAuth::new(reviewer()).without_authorization();
    let serving = Serving::with(|_| {}, |server| server.with_auth(known));
    let (status, ..) = serving
        .ask("GET", "/echo", "Authorization: Bearer guest\r\n")
        .await;
    assert_eq!(status, 200);
    serving.end().await;
}

#[tokio::test]
async fn c36_without_an_answer_of_the_api_server_nobody_reads() {
    let service = tower::service_fn(|_: http::Request<kube_client::client::Body>| async {
        Err::<http::Response<kube_client::client::Body>, _>(io::Error::other("away"))
    });
    let auth = TokenAuth::new(kube_client::Client::new(service, "default"));
    let serving = Serving::with(|_| {}, |server| server.with_auth(auth));
    let (status, ..) = serving
        .ask("GET", "/echo", "Authorization: Bearer reader\r\n")
        .await;
    assert_eq!(status, 503);
    serving.end().await;
}
