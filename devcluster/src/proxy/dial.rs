//! Outgoing connections: resolve, allow, bind to the source address, connect.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::{TcpSocket, TcpStream, lookup_host},
    time::timeout,
};

use super::refusal::Refusal;

/// Which addresses a proxy may connect to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedTargets {
    /// Addresses of this machine's loopback interface.
    #[default]
    Loopback,
    /// Every address.
    Any,
}

impl AllowedTargets {
    /// Whether a connection to that address may be opened.
    #[must_use]
    pub fn allow(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Loopback => address.to_canonical().is_loopback(),
        }
    }
}

/// Host and port of a target; the host is without brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Target {
    pub(super) fn new(host: &str, port: u16) -> Self {
        let host = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        Self {
            host: host.to_owned(),
            port,
        }
    }

    /// The form of a `Host` field; the port is left out where it is the default of `http`.
    pub(super) fn host_field(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        if self.port == 80 {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

/// Opens connections to targets from one source address.
#[derive(Debug)]
pub(super) struct Dialer {
    own: SocketAddr,
    source: Option<IpAddr>,
    allowed: AllowedTargets,
    timeout: Duration,
}

impl Dialer {
    pub(super) fn new(
        own: SocketAddr,
        source: Option<IpAddr>,
        allowed: AllowedTargets,
        timeout: Duration,
    ) -> Self {
        Self {
            own,
            source,
            allowed,
            timeout,
        }
    }

    /// Connects to the first address of the target that accepts.
    pub(super) async fn dial(&self, target: &Target) -> Result<TcpStream, Refusal> {
        let shown = target.host_field();
        match timeout(self.timeout, self.connect_any(target, &shown)).await {
            Ok(result) => result,
            Err(_) => Err(Refusal::ConnectTimeout { target: shown }),
        }
    }

    async fn connect_any(&self, target: &Target, shown: &str) -> Result<TcpStream, Refusal> {
        let resolved: Vec<SocketAddr> = match target.host.parse::<IpAddr>() {
            Ok(literal) => vec![SocketAddr::new(literal, target.port)],
            Err(_) => lookup_host((target.host.as_str(), target.port))
                .await
                .map_err(|source| Refusal::Resolve {
                    target: shown.to_owned(),
                    source,
                })?
                .collect(),
        };
        let candidates = self.candidates(&resolved, shown)?;
        let mut last = None;
        for address in candidates {
            match self.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(source) => last = Some(source),
            }
        }
        Err(Refusal::Connect {
            target: shown.to_owned(),
            source: last.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into()),
        })
    }

    /// The resolved addresses that may and can be called.
    ///
    /// One forbidden address among them is enough to refuse the target: a name that also points
    /// elsewhere must not work by luck.
    fn candidates(&self, resolved: &[SocketAddr], shown: &str) -> Result<Vec<SocketAddr>, Refusal> {
        if resolved
            .iter()
            .any(|address| !self.allowed.allow(address.ip()))
        {
            return Err(Refusal::TargetForbidden {
                target: shown.to_owned(),
            });
        }
        if resolved.contains(&self.own) {
            return Err(Refusal::Loop);
        }
        Ok(resolved
            .iter()
            .copied()
            .filter(|address| self.source.is_none_or(|s| s.is_ipv4() == address.is_ipv4()))
            .collect())
    }

    async fn connect(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }?;
        if let Some(source) = self.source {
            socket.bind(SocketAddr::new(source, 0))?;
        }
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialer(allowed: AllowedTargets) -> Dialer {
        let own = SocketAddr::from(([127, 0, 0, 9], 3128));
        Dialer::new(
            own,
            Some([127, 0, 0, 9].into()),
            allowed,
            Duration::from_secs(1),
        )
    }

    #[test]
    fn a_target_is_judged_by_its_resolved_addresses() {
        let cases: [(&[&str], AllowedTargets, Result<usize, &str>); 8] = [
            (&["127.0.0.1:80"], AllowedTargets::Loopback, Ok(1)),
            (
                &["127.64.3.2:80", "[::1]:80"],
                AllowedTargets::Loopback,
                Ok(1),
            ),
            (&["[::ffff:127.0.0.1]:80"], AllowedTargets::Loopback, Ok(0)),
            (&["10.0.0.1:80"], AllowedTargets::Loopback, Err("forbidden")),
            (
                &["127.0.0.1:80", "10.0.0.1:80"],
                AllowedTargets::Loopback,
                Err("forbidden"),
            ),
            (
                &["[::ffff:10.0.0.1]:80"],
                AllowedTargets::Loopback,
                Err("forbidden"),
            ),
            (&["10.0.0.1:80"], AllowedTargets::Any, Ok(1)),
            (&["127.0.0.9:3128"], AllowedTargets::Any, Err("loop")),
        ];
        for (addresses, allowed, expected) in cases {
            let resolved: Vec<SocketAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            let got = dialer(allowed)
                .candidates(&resolved, "t")
                .map(|c| c.len())
                .map_err(|e| match e {
                    Refusal::TargetForbidden { .. } => "forbidden",
                    Refusal::Loop => "loop",
                    _ => "other",
                });
            assert_eq!(got, expected, "{addresses:?} {allowed:?}");
        }
    }

    #[test]
    fn the_host_field_has_brackets_and_leaves_out_port_80() {
        for (host, port, field) in [
            ("example.test", 80, "example.test"),
            ("example.test", 8080, "example.test:8080"),
            ("[::1]", 80, "[::1]"),
            ("::1", 81, "[::1]:81"),
        ] {
            assert_eq!(Target::new(host, port).host_field(), field);
        }
    }
}
