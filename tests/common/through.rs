//! Requests through a proxy, spoken by hand so that nothing hides what the proxy answers.

use serde::Deserialize;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What the echo server saw.
#[derive(Debug, Deserialize)]
pub(crate) struct Seen {
    /// The caller's address.
    pub(crate) ip: String,
}

/// Fetches a page of `target` through the proxy with an absolute-form request.
pub(crate) async fn plain(proxy: &str, target: SocketAddr) -> Result<Seen, String> {
    let mut stream = connect(proxy).await?;
    request(&mut stream, &format!("http://{target}/plain"), target).await
}

/// Fetches a page of `target` through a tunnel that the proxy opens on CONNECT.
pub(crate) async fn tunnel(proxy: &str, target: SocketAddr) -> Result<Seen, String> {
    let mut stream = connect(proxy).await?;
    send(
        &mut stream,
        &format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
    )
    .await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(
            stream
                .read_u8()
                .await
                .map_err(|error| format!("CONNECT: {error}"))?,
        );
    }
    let head = String::from_utf8_lossy(&head);
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("CONNECT: {head}"));
    }
    request(&mut stream, "/tunnel", target).await
}

async fn connect(proxy: &str) -> Result<TcpStream, String> {
    TcpStream::connect(proxy)
        .await
        .map_err(|error| format!("connect to {proxy}: {error}"))
}

async fn send(stream: &mut TcpStream, text: &str) -> Result<(), String> {
    stream
        .write_all(text.as_bytes())
        .await
        .map_err(|error| error.to_string())
}

async fn request(stream: &mut TcpStream, uri: &str, target: SocketAddr) -> Result<Seen, String> {
    send(
        stream,
        &format!("GET {uri} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n"),
    )
    .await?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .map_err(|error| error.to_string())?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or("no end of the header")?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(answer);
    }
    let json = body
        .find('{')
        .zip(body.rfind('}'))
        .ok_or_else(|| format!("no JSON: {body}"))?;
    serde_json::from_str(&body[json.0..=json.1]).map_err(|error| format!("{error}: {body}"))
}
