//! What really serves for a pod: one forward proxy for each container port named `proxy`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU64,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube_client::Client;

use super::{
    address::Addressing,
    delay::parse_duration,
    lifecycle::Blocked,
    references::{Loaded, load, named, required},
};
use crate::proxy::{
    AllowedTargets, Credentials, ForwardProxy, Impairment, ProxyHandle, ProxyOptions,
};

/// Name of the container port that is really served.
const PROXY_PORT: &str = "proxy";
/// Environment variables with the credentials of the proxy.
const USERNAME: &str = "PROXY_USERNAME";
const PASSWORD: &str = "PROXY_PASSWORD";

/// Annotation of a pod: time each proxy request waits.
const LATENCY: &str = "devcluster/proxy-latency";
/// Annotation of a pod: part of proxy requests answered with 502.
const ERROR_RATIO: &str = "devcluster/proxy-error-ratio";
/// Annotation of a pod: bandwidth of each client connection and direction.
const BANDWIDTH: &str = "devcluster/proxy-bytes-per-second";

/// Settings shared by all workloads of a kubelet.
#[derive(Debug, Clone)]
pub(super) struct WorkloadSettings {
    pub(super) serve: bool,
    pub(super) addressing: Addressing,
    pub(super) allowed: AllowedTargets,
    pub(super) seed: u64,
}

/// The proxies of one pod; dropping it cuts them.
#[derive(Debug, Default)]
pub(super) struct Workload {
    pub(super) proxies: Vec<Arc<ProxyHandle>>,
    /// Where the ports are reached when the pod's address cannot be dialled, e.g.
    /// `3128=127.0.0.1:40001`.
    pub(super) port_map: Option<String>,
}

impl Workload {
    pub(super) fn is_serving(&self) -> bool {
        !self.proxies.is_empty()
    }

    /// Cuts every connection, also those a drain under way would let finish.
    pub(super) fn kill(&self) {
        for proxy in &self.proxies {
            proxy.kill();
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lets proxies finish within the grace time.
pub(super) async fn drain(proxies: Vec<Arc<ProxyHandle>>, grace: Duration) {
    join_all(proxies.iter().map(|proxy| proxy.shutdown(grace))).await;
}

/// Whether the kubelet serves something real for this pod.
pub(super) fn has_proxy(pod: &Pod) -> bool {
    containers(pod).any(|container| proxy_port(container).is_some())
}

/// Gets what the pod's containers need and starts its proxies.
///
/// # Errors
///
/// Outer: the API could not be asked. Inner: why the containers cannot start yet.
pub(super) async fn prepare(
    client: &Client,
    pod: &Pod,
    pod_ip: IpAddr,
    settings: &WorkloadSettings,
) -> kube_client::Result<Result<Workload, Blocked>> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let required = required(pod);
    let loaded = load(client, namespace, named(pod, &required)).await?;
    if let Some(blocked) = loaded.missing(namespace, &required) {
        return Ok(Err(blocked));
    }
    if !settings.serve {
        return Ok(Ok(Workload::default()));
    }
    Ok(start(pod, pod_ip, settings, &loaded).await)
}

async fn start(
    pod: &Pod,
    pod_ip: IpAddr,
    settings: &WorkloadSettings,
    loaded: &Loaded,
) -> Result<Workload, Blocked> {
    let mut workload = Workload::default();
    let mut mapped = Vec::new();
    for container in containers(pod) {
        let Some(port) = proxy_port(container) else {
            continue;
        };
        let options = options(pod, container, pod_ip, port, settings, loaded)
            .map_err(|message| blocked("CreateContainerConfigError", message))?;
        let proxy = ForwardProxy::start(options).await.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let message = format!("{error}: {}", cause.unwrap_or_default());
            blocked("RunContainerError", message)
        })?;
        mapped.push(format!("{port}={}", proxy.address()));
        workload.proxies.push(Arc::new(proxy));
    }
    if settings.addressing == Addressing::Virtual && !mapped.is_empty() {
        workload.port_map = Some(mapped.join(","));
    }
    Ok(workload)
}

fn blocked(reason: &'static str, message: String) -> Blocked {
    Blocked {
        reason,
        message,
        sandbox: true,
    }
}

fn options(
    pod: &Pod,
    container: &Container,
    pod_ip: IpAddr,
    port: u16,
    settings: &WorkloadSettings,
    loaded: &Loaded,
) -> Result<ProxyOptions, String> {
    let (listen, source_ip) = match settings.addressing {
        Addressing::Loopback => (SocketAddr::new(pod_ip, port), Some(pod_ip)),
        Addressing::Virtual => (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None),
    };
    let auth = match (
        loaded.env(container, USERNAME),
        loaded.env(container, PASSWORD),
    ) {
        (None, None) => None,
        (username, password) => Some(Credentials::new(
            username.unwrap_or_default(),
            password.unwrap_or_default(),
        )),
    };
    Ok(ProxyOptions {
        listen,
        source_ip,
        auth,
        allowed: settings.allowed,
        impairment: impairment(pod, settings.seed)?,
        ..ProxyOptions::default()
    })
}

fn impairment(pod: &Pod, seed: u64) -> Result<Impairment, String> {
    let annotations = pod.metadata.annotations.as_ref();
    let read = |name: &str| annotations.and_then(|all: &BTreeMap<String, String>| all.get(name));
    let mut impairment = Impairment {
        seed,
        ..Impairment::default()
    };
    if let Some(text) = read(LATENCY) {
        impairment.latency =
            parse_duration(text).map_err(|problem| format!("annotation {LATENCY}: {problem}"))?;
    }
    if let Some(text) = read(ERROR_RATIO) {
        impairment.error_ratio = text
            .parse()
            .ok()
            .filter(|ratio| (0.0..=1.0).contains(ratio))
            .ok_or_else(|| {
                format!("annotation {ERROR_RATIO}: {text:?} is no number from 0.0 to 1.0")
            })?;
    }
    if let Some(text) = read(BANDWIDTH) {
        let rate: NonZeroU64 = text
            .parse()
            .map_err(|_| format!("annotation {BANDWIDTH}: {text:?} is no positive number"))?;
        impairment.bytes_per_second = Some(rate);
    }
    Ok(impairment)
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| &spec.containers)
}

fn proxy_port(container: &Container) -> Option<u16> {
    container
        .ports
        .iter()
        .flatten()
        .find(|port| port.name.as_deref() == Some(PROXY_PORT))
        .and_then(|port| u16::try_from(port.container_port).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn annotated(name: &str, value: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "annotations": { name: value } },
        }))
        .unwrap()
    }

    #[test]
    fn impairment_comes_from_annotations_and_bad_ones_are_named() {
        let latency = impairment(&annotated(LATENCY, "20ms"), 3).unwrap();
        assert_eq!(
            (latency.latency, latency.seed),
            (Duration::from_millis(20), 3)
        );
        let ratio = impairment(&annotated(ERROR_RATIO, "0.25"), 0).unwrap();
        assert!((ratio.error_ratio - 0.25).abs() < f64::EPSILON);
        let rate = impairment(&annotated(BANDWIDTH, "1000"), 0).unwrap();
        assert_eq!(rate.bytes_per_second, NonZeroU64::new(1000));
        for (name, value) in [
            (LATENCY, "fast"),
            (ERROR_RATIO, "2"),
            (ERROR_RATIO, "NaN"),
            (BANDWIDTH, "0"),
        ] {
            let problem = impairment(&annotated(name, value), 0).unwrap_err();
            assert!(
                problem.contains(name) && problem.contains(value),
                "{problem}"
            );
        }
    }
}
