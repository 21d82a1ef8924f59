//! Nodes: their objects, registration and heartbeats.

use std::{net::IpAddr, time::Duration};

use futures::future::join_all;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    jiff::Timestamp,
};
use kube_client::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use crate::clock::{Clock, seconds_text};

/// Namespace of the nodes' Leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// How often a Lease is renewed, and for how long it holds.
const LEASE_INTERVAL: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;
/// The status is written with every n-th renewal: every five minutes.
const STATUS_EVERY: u32 = 30;
/// Heartbeats under way at one time.
const CONCURRENT: usize = 16;
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Tries of a write that another writer may cross.
const CONFLICT_TRIES: usize = 5;

/// One simulated node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SimNode {
    pub(super) name: String,
    pub(super) ip: IpAddr,
    pub(super) max_pods: usize,
}

impl SimNode {
    /// The name of the n-th node: `sim-node-000`, `sim-node-001`, …
    pub(super) fn name_of(index: usize) -> String {
        format!("sim-node-{index:03}")
    }

    fn object(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {
                    "kubernetes.io/hostname": self.name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": architecture(),
                },
            },
        })
    }

    fn status(&self, since: Timestamp, now: Timestamp) -> Value {
        let resources = json!({
            "cpu": "64",
            "memory": "256Gi",
            "ephemeral-storage": "1Ti",
            "pods": self.max_pods.to_string(),
        });
        json!({ "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                { "type": "InternalIP", "address": self.ip },
                { "type": "Hostname", "address": self.name },
            ],
            "conditions": conditions(since, now),
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "nodeInfo": {
                "architecture": architecture(),
                "bootID": "",
                "containerRuntimeVersion": concat!("devcluster://", env!("CARGO_PKG_VERSION")),
                "kernelVersion": "simulated",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.37.2",
                "machineID": self.name,
                "operatingSystem": "linux",
                "osImage": "simulated",
                "systemUUID": self.name,
            },
        } })
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn conditions(since: Timestamp, now: Timestamp) -> Value {
    let rows = [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "memory is simulated",
        ),
        (
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "disk is simulated",
        ),
        (
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "processes are simulated",
        ),
        (
            "NetworkUnavailable",
            "False",
            "RouteCreated",
            "pods have addresses of this machine",
        ),
        (
            "Ready",
            "True",
            "KubeletReady",
            "simulated kubelet is posting ready status",
        ),
    ];
    rows.iter()
        .map(|(type_, status, reason, message)| {
            json!({
                "type": type_,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": seconds_text(now),
                "lastTransitionTime": seconds_text(since),
            })
        })
        .collect()
}

/// Creates the node or takes it over, reports it Ready and removes its not-ready taint.
///
/// # Errors
///
/// The API's, with the step that failed unchanged.
pub(super) async fn register(
    client: &Client,
    node: &SimNode,
    clock: Clock,
) -> kube_client::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    create_unless_there(&nodes, &node.object()).await?;
    let now = clock.now();
    patch_status(&nodes, node, now, now).await?;
    renew(client, node, clock).await?;
    untaint(&nodes, &node.name).await
}

async fn untaint(nodes: &Api<Node>, name: &str) -> kube_client::Result<()> {
    let mut tries = 0;
    loop {
        let node = nodes.get(name).await?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let (gone, kept): (Vec<_>, Vec<_>) =
            taints.into_iter().partition(|taint| taint.key == NOT_READY);
        if gone.is_empty() {
            return Ok(());
        }
        let patch = json!({
            "metadata": { "resourceVersion": node.metadata.resource_version },
            "spec": { "taints": if kept.is_empty() { Value::Null } else { json!(kept) } },
        });
        match nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(_) => return Ok(()),
            Err(error) if is_code(&error, 409) && tries < CONFLICT_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Renews Leases and reports statuses until it is dropped.
///
/// A node that was deleted from the API is not registered again, as with the real kubelet; its
/// heartbeats go on failing quietly.
pub(super) async fn heartbeat(client: Client, nodes: Vec<SimNode>, clock: Clock) {
    let started = clock.now();
    let mut ticks = interval(LEASE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut beat: u32 = 0;
    let mut failures: u32 = 0;
    loop {
        ticks.tick().await;
        beat = beat.wrapping_add(1);
        let report = beat.is_multiple_of(STATUS_EVERY);
        let mut failed = None;
        for some in nodes.chunks(CONCURRENT) {
            let beats = some
                .iter()
                .map(|node| beat_once(&client, node, clock, started, report));
            let outcomes = join_all(beats).await;
            failed = failed.or(outcomes.into_iter().find_map(Result::err));
        }
        match failed {
            None => failures = 0,
            Some(error) => {
                failures = failures.saturating_add(1);
                if failures.is_power_of_two() {
                    warn!(failures, %error, "heartbeat of simulated nodes failed");
                }
            }
        }
    }
}

async fn beat_once(
    client: &Client,
    node: &SimNode,
    clock: Clock,
    started: Timestamp,
    report: bool,
) -> kube_client::Result<()> {
    renew(client, node, clock).await?;
    if report {
        let nodes: Api<Node> = Api::all(client.clone());
        match patch_status(&nodes, node, started, clock.now()).await {
            Err(error) if is_code(&error, 404) => debug!(node = node.name, "node was deleted"),
            outcome => return outcome,
        }
    }
    Ok(())
}

async fn patch_status(
    nodes: &Api<Node>,
    node: &SimNode,
    since: Timestamp,
    now: Timestamp,
) -> kube_client::Result<()> {
    let patch = Patch::Merge(node.status(since, now));
    nodes
        .patch_status(&node.name, &PatchParams::default(), &patch)
        .await
        .map(drop)
}

async fn renew(client: &Client, node: &SimNode, clock: Clock) -> kube_client::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let spec = json!({
        "holderIdentity": node.name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": clock.now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
    });
    let patch = Patch::Merge(json!({ "spec": spec }));
    match leases
        .patch(&node.name, &PatchParams::default(), &patch)
        .await
    {
        Err(error) if is_code(&error, 404) => {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": { "name": node.name, "namespace": LEASE_NAMESPACE },
                "spec": spec,
            });
            create_unless_there(&leases, &lease).await
        }
        outcome => outcome.map(drop),
    }
}

async fn create_unless_there<K>(api: &Api<K>, object: &Value) -> kube_client::Result<()>
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let object: K =
        serde_json::from_value(object.clone()).map_err(kube_client::Error::SerdeError)?;
    match api.create(&PostParams::default(), &object).await {
        Err(error) if is_code(&error, 409) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Whether the API answered with that status code.
pub(super) fn is_code(error: &kube_client::Error, code: u16) -> bool {
    matches!(error, kube_client::Error::Api(status) if status.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_with_capacity_and_addresses() {
        let node = SimNode {
            name: SimNode::name_of(7),
            ip: [127, 64, 0, 1].into(),
            max_pods: 42,
        };
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut object = node.object();
        object["status"] = node.status(since, now)["status"].clone();
        let typed: Node = serde_json::from_value(object).unwrap();
        assert_eq!(typed.metadata.name.as_deref(), Some("sim-node-007"));
        assert_eq!(
            typed.metadata.labels.unwrap()["kubernetes.io/hostname"],
            "sim-node-007"
        );
        let status = typed.status.unwrap();
        assert_eq!(status.allocatable.unwrap()["pods"].0, "42");
        assert_eq!(status.addresses.unwrap()[0].address, "127.64.0.1");
        let conditions = status.conditions.unwrap();
        assert_eq!(conditions.len(), 5);
        let ready = conditions.iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "True");
        assert_eq!(ready.last_heartbeat_time.as_ref().unwrap().0, now);
        assert_eq!(ready.last_transition_time.as_ref().unwrap().0, since);
    }
}
