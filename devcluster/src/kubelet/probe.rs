//! Readiness probes: read from the spec, and really executed against a pod's address.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, header::HOST};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::{net::TcpStream, time::timeout};

/// A readiness probe with its defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbePlan {
    pub(super) action: ProbeAction,
    pub(super) initial_delay: Duration,
    pub(super) period: Duration,
    pub(super) timeout: Duration,
    pub(super) success_threshold: u32,
    pub(super) failure_threshold: u32,
}

/// What a probe does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeAction {
    /// Connects; host none is the pod's address.
    Tcp { host: Option<String>, port: u16 },
    /// Sends a GET and wants a status from 200 to 399.
    Http {
        host: Option<String>,
        port: u16,
        path: String,
        headers: Vec<(String, String)>,
    },
    /// A kind of probe a simulated container cannot run (exec, gRPC, HTTPS): it passes.
    Assumed,
    /// A port name the container does not have: it fails.
    UnknownPort,
}

impl ProbePlan {
    /// Reads the readiness probe of a container, if it has one; where nothing real serves
    /// (`real` false) there is nobody to ask.
    pub(super) fn of(container: &Container, real: bool) -> Option<Self> {
        let probe = container.readiness_probe.as_ref()?;
        Some(Self {
            action: if real {
                action(probe, container)
            } else {
                ProbeAction::Assumed
            },
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        })
    }

    /// Runs the probe once; whatever goes wrong is a failure with its reason.
    pub(super) async fn run(&self, pod_ip: IpAddr) -> Result<(), String> {
        match timeout(self.timeout, self.attempt(pod_ip)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        }
    }

    async fn attempt(&self, pod_ip: IpAddr) -> Result<(), String> {
        match &self.action {
            ProbeAction::Assumed => Ok(()),
            ProbeAction::UnknownPort => {
                Err("the probe names a port the container lacks".to_owned())
            }
            ProbeAction::Tcp { host, port } => {
                connect(host.as_deref(), pod_ip, *port).await.map(drop)
            }
            ProbeAction::Http {
                host,
                port,
                path,
                headers,
            } => {
                let stream = connect(host.as_deref(), pod_ip, *port).await?;
                let authority = SocketAddr::new(pod_ip, *port).to_string();
                let request = request(path, headers, &authority)?;
                let status = get(stream, request)
                    .await
                    .map_err(|error| error.to_string())?;
                if (200..400).contains(&status) {
                    Ok(())
                } else {
                    Err(format!("HTTP probe failed with status code {status}"))
                }
            }
        }
    }
}

async fn connect(host: Option<&str>, pod_ip: IpAddr, port: u16) -> Result<TcpStream, String> {
    let stream = match host {
        Some(host) => TcpStream::connect((host, port)).await,
        None => TcpStream::connect((pod_ip, port)).await,
    };
    stream.map_err(|error| format!("dial tcp {pod_ip}:{port}: {error}"))
}

fn request(
    path: &str,
    headers: &[(String, String)],
    authority: &str,
) -> Result<Request<Empty<Bytes>>, String> {
    let mut request = Request::get(path)
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let fields = request.headers_mut();
    fields.insert(
        HOST,
        HeaderValue::from_str(authority).map_err(|error| error.to_string())?,
    );
    for (name, value) in headers {
        let name: HeaderName = name.parse().map_err(|_| format!("header name {name:?}"))?;
        let value = HeaderValue::from_str(value).map_err(|_| format!("value of header {name}"))?;
        fields.insert(name, value);
    }
    Ok(request)
}

async fn get(stream: TcpStream, request: Request<Empty<Bytes>>) -> hyper::Result<u16> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let response = sender.send_request(request);
    tokio::select! {
        response = response => Ok(response?.status().as_u16()),
        // The connection ends first only by an error or without an answer.
        ended = connection => Err(match ended {
            Err(error) => error,
            Ok(()) => return Ok(0),
        }),
    }
}

fn action(probe: &Probe, container: &Container) -> ProbeAction {
    let own_host = |host: &Option<String>| host.clone().filter(|host| !host.is_empty());
    if let Some(tcp) = &probe.tcp_socket {
        return match port_number(&tcp.port, container) {
            Some(port) => ProbeAction::Tcp {
                host: own_host(&tcp.host),
                port,
            },
            None => ProbeAction::UnknownPort,
        };
    }
    match &probe.http_get {
        Some(HTTPGetAction {
            scheme: Some(scheme),
            ..
        }) if scheme == "HTTPS" => ProbeAction::Assumed,
        Some(get) => match port_number(&get.port, container) {
            Some(port) => ProbeAction::Http {
                host: own_host(&get.host),
                port,
                path: get
                    .path
                    .clone()
                    .filter(|path| !path.is_empty())
                    .unwrap_or("/".to_owned()),
                headers: get
                    .http_headers
                    .iter()
                    .flatten()
                    .map(|header| (header.name.clone(), header.value.clone()))
                    .collect(),
            },
            None => ProbeAction::UnknownPort,
        },
        None => ProbeAction::Assumed,
    }
}

/// A port by number or by the name of one of the container's ports.
fn port_number(port: &IntOrString, container: &Container) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref() == Some(name))
            .and_then(|port| u16::try_from(port.container_port).ok()),
    }
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    let given = value.and_then(|value| u64::try_from(value).ok());
    Duration::from_secs(match given {
        // The API server fills in the defaults; zero means unset except for the initial delay.
        Some(0) | None => default,
        Some(seconds) => seconds,
    })
}

fn count(value: Option<i32>, default: u32) -> u32 {
    value
        .and_then(|value| u32::try_from(value).ok())
        .filter(|count| *count > 0)
        .unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;
    use crate::echo::EchoServer;

    fn plan(probe: &Value) -> ProbePlan {
        let container: Container = serde_json::from_value(json!({
            "name": "c",
            "ports": [{ "name": "proxy", "containerPort": 3128 }],
            "readinessProbe": probe,
        }))
        .unwrap();
        ProbePlan::of(&container, true).unwrap()
    }

    #[test]
    fn probes_are_read_with_their_defaults() {
        let tcp = plan(&json!({ "tcpSocket": { "port": "proxy" }, "periodSeconds": 5 }));
        assert_eq!(
            tcp.action,
            ProbeAction::Tcp {
                host: None,
                port: 3128
            }
        );
        assert_eq!(
            (tcp.period, tcp.timeout),
            (Duration::from_secs(5), Duration::from_secs(1))
        );
        assert_eq!((tcp.success_threshold, tcp.failure_threshold), (1, 3));
        let cases = [
            (
                json!({ "tcpSocket": { "port": "other" } }),
                ProbeAction::UnknownPort,
            ),
            (
                json!({ "exec": { "command": ["true"] } }),
                ProbeAction::Assumed,
            ),
            (
                json!({ "httpGet": { "port": 1, "scheme": "HTTPS" } }),
                ProbeAction::Assumed,
            ),
            (
                json!({ "httpGet": { "port": 80, "httpHeaders": [{ "name": "a", "value": "b" }] } }),
                ProbeAction::Http {
                    host: None,
                    port: 80,
                    path: "/".to_owned(),
                    headers: vec![("a".to_owned(), "b".to_owned())],
                },
            ),
        ];
        for (probe, action) in cases {
            assert_eq!(plan(&probe).action, action, "{probe}");
        }
    }

    #[tokio::test]
    async fn probes_really_ask_the_port() {
        let echo = EchoServer::start().await.unwrap();
        let ip = echo.address().ip();
        let port = echo.address().port();
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap().port()
        };
        let tcp = |port| plan(&json!({ "tcpSocket": { "port": port } }));
        assert_eq!(tcp(port).run(ip).await, Ok(()));
        assert!(tcp(closed).run(ip).await.is_err());
        let http = plan(&json!({ "httpGet": { "port": port, "path": "/ready?x=1" } }));
        assert_eq!(http.run(ip).await, Ok(()));
        assert_eq!(echo.calls().last().unwrap().path, "/ready?x=1");
        assert!(
            plan(&json!({ "httpGet": { "port": closed } }))
                .run(ip)
                .await
                .is_err()
        );
    }
}
