//! What the load server serves, and how it is told to.
//!
//! Spoken over a plain socket, so that it takes no part in what is measured.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Error;

/// Annotation with the moment at which an event was sent, in nanoseconds since 1970.
pub(crate) const SENT_AT: &str = "bench.proxyoperator.dev/ts";
/// Object i, counted from 0, is at version `FIRST_VERSION + i + 1` in the beginning.
pub(crate) const FIRST_VERSION: i64 = 1_000_000_000;
/// Event j is for object `j * STRIDE mod n`.
pub(crate) const STRIDE: i64 = 7919;

/// The wall clock, in nanoseconds since 1970.
pub(crate) fn unix_nanos() -> i64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the time stamps of another process"
    )]
    let now = SystemTime::now();
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// A load server.
#[derive(Debug, Clone)]
pub(crate) struct Replayd {
    host: String,
}

impl Replayd {
    pub(crate) fn at(url: &str) -> Result<Self, Error> {
        let host = url.strip_prefix("http://").filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| {
            Error::Usage(format!(
                "--url {url:?} is no load server; write http://HOST:PORT"
            ))
        })?;
        Ok(Self {
            host: host.trim_end_matches('/').to_owned(),
        })
    }

    /// Empties the plan of events.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        self.call("POST", "/bench/reset").map(drop)
    }

    /// Adds `events` to the plan, `rate` of them each second, or with 0 at full speed.
    pub(crate) fn start(&self, events: i64, rate: f64) -> Result<(), Error> {
        self.call("POST", &format!("/bench/start?events={events}&rate={rate}"))
            .map(drop)
    }

    /// CPU time of the server so far, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64, Error> {
        let body = self.call("GET", "/bench/stats")?;
        let stats: serde_json::Value =
            serde_json::from_str(&body).map_err(|error| self.failure("/bench/stats", &error))?;
        stats["cpu_s"]
            .as_f64()
            .ok_or_else(|| self.failure("/bench/stats", &"no cpu_s in the answer"))
    }

    fn call(&self, method: &str, path: &str) -> Result<String, Error> {
        let exchange = || -> std::io::Result<String> {
            let mut socket = TcpStream::connect(&self.host)?;
            write!(
                socket,
                "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                self.host
            )?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange().map_err(|error| self.failure(path, &error))?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
            _ => Err(self.failure(path, &answer.lines().next().unwrap_or("no answer"))),
        }
    }

    fn failure(&self, path: &str, cause: &dyn std::fmt::Display) -> Error {
        Error::Failed(format!("http://{}{path}: {cause}", self.host))
    }
}
