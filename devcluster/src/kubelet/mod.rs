//! Simulated nodes: they register, run pods and say so, through the public API alone.
//!
//! A [`Kubelet`] needs nothing but a [`Client`], so the same nodes serve the embedded API server
//! (in process or over HTTPS) and a real kube-apiserver.
//!
//! - Nodes `sim-node-000`, … with capacity, conditions and Leases; their not-ready taint is
//!   removed once they are Ready.
//! - A scheduler stub binds Pending pods of `default-scheduler` without gates: nodeSelector,
//!   taints, cordoned nodes and the number of pods; of the nodes that fit, the emptiest.
//! - Pods go from ContainerCreating to Running and Ready by seeded delays. They wait, with the
//!   real kubelet's reason, while a Secret or ConfigMap they need is missing.
//! - A pod whose container has a port named `proxy` really serves a [forward
//!   proxy](crate::proxy) on its pod address, with Basic credentials from `PROXY_USERNAME` and
//!   `PROXY_PASSWORD` of the container's environment; its readiness probe is really executed.
//! - A deleted pod drains within its grace time, is reported terminated, and is then removed with
//!   a precondition on its uid. One that vanishes is cut at once.
//! - Pod annotations: `devcluster/run-for`, `devcluster/exit-code`, `devcluster/start-delay`,
//!   `devcluster/proxy-latency`, `devcluster/proxy-error-ratio`,
//!   `devcluster/proxy-bytes-per-second`.
//!
//! At rest it holds two watches and one timer for Leases; a pod has a timer only while it waits
//! for something or is probed, and never a task.
//!
//! Not done: processes, images, logs, exec, liveness and startup probes, resource limits, volumes
//! beyond the check that their Secrets and ConfigMaps exist.

mod address;
mod agent;
mod calls;
mod delay;
mod events;
mod lifecycle;
mod nodes;
mod plan;
mod pod;
mod probe;
mod references;
mod registry;
mod scheduler;
mod status;
mod watch;
mod workload;

use std::{collections::BTreeMap, fmt, io, time::Duration};

use http::{HeaderValue, Request, header::USER_AGENT};
use kube_client::{Api, Client, client::Body};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tower::service_fn;
use tracing::{info, warn};

pub use self::{address::Addressing, delay::Delay, registry::PodProxy};

use self::{address::AddressPool, agent::Agent, nodes::SimNode, registry::Registry};
use crate::{clock::Clock, proxy::AllowedTargets};

/// User agent of every request, so that counters tell it from others.
pub const KUBELET_USER_AGENT: &str = "devcluster-kubelet";

/// Changes that may wait for the agent, by kind.
const CHANGES: usize = 256;

/// What can go wrong when simulated nodes start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is outside of its range.
    #[error("kubelet option {option}: {problem}")]
    Option {
        /// Name of the field.
        option: &'static str,
        /// What is wrong and what to give instead.
        problem: String,
    },
    /// No addresses for nodes could be claimed on this machine.
    #[error("claim addresses for nodes in 127.64.0.0/10 (Addressing::Virtual needs none)")]
    Addresses(#[source] io::Error),
    /// The API server did not take a node.
    #[error("register node {node}")]
    Register {
        /// Name of the node.
        node: String,
        /// The API's answer, or why there is none.
        #[source]
        source: Box<kube_client::Error>,
    },
}

/// How simulated nodes behave.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeletOptions {
    /// Number of nodes, from 1 to 999.
    pub nodes: usize,
    /// Pods one node takes.
    pub pods_per_node: usize,
    /// From binding to running.
    pub start_delay: Delay,
    /// From deletion to the end of the containers, within the pod's grace time.
    pub stop_delay: Delay,
    /// Seed of the delays and of proxies' errors.
    pub seed: u64,
    /// Whether Pending pods are placed; off where a real scheduler runs.
    pub scheduler: bool,
    /// Whether container ports named `proxy` are really served.
    pub proxy: bool,
    /// Which addresses pods get; `Loopback` becomes `Virtual` on other systems than Linux.
    pub addressing: Addressing,
    /// What the pods' proxies may call.
    pub allowed_targets: AllowedTargets,
}

impl Default for KubeletOptions {
    /// Two nodes for 500 pods each that start in 300 ms and stop in 100 ms.
    fn default() -> Self {
        Self {
            nodes: 2,
            pods_per_node: 500,
            start_delay: Duration::from_millis(300).into(),
            stop_delay: Duration::from_millis(100).into(),
            seed: 0,
            scheduler: true,
            proxy: true,
            addressing: Addressing::default(),
            allowed_targets: AllowedTargets::default(),
        }
    }
}

/// Starts simulated nodes; see the [module](self).
#[derive(Debug)]
pub struct Kubelet;

impl Kubelet {
    /// Registers the nodes and runs them until the handle is shut down or dropped.
    ///
    /// When this returns, every node is Ready and takes pods. Nodes of an earlier kubelet of the
    /// same names are taken over; pods it left are started again. Two kubelets must not serve the
    /// same cluster at one time. Cancelling this future leaves the nodes registered so far.
    ///
    /// # Errors
    ///
    /// [`Error::Option`], [`Error::Addresses`], or [`Error::Register`] with the API's answer; a
    /// later failure of the API is retried for ever instead.
    pub async fn start(client: Client, options: KubeletOptions) -> Result<KubeletHandle, Error> {
        validate(&options)?;
        let options = KubeletOptions {
            addressing: usable(options.addressing),
            ..options
        };
        let client = with_user_agent(client);
        let clock = Clock::start();
        let mut addresses = AddressPool::new(options.addressing);
        let mut nodes = Vec::with_capacity(options.nodes);
        for index in 0..options.nodes {
            let node = SimNode {
                name: SimNode::name_of(index),
                ip: addresses.take().map_err(Error::Addresses)?,
                max_pods: options.pods_per_node,
            };
            nodes::register(&client, &node, clock)
                .await
                .map_err(|source| Error::Register {
                    node: node.name.clone(),
                    source: Box::new(source),
                })?;
            nodes.push(node);
        }
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        info!(nodes = names.len(), addressing = ?options.addressing, "simulated nodes are Ready");
        let own: BTreeMap<_, _> = nodes
            .iter()
            .map(|node| (node.name.clone(), node.ip))
            .collect();
        let registry = Registry::default();
        let stop = CancellationToken::new();
        let (pod_changes, pods) = mpsc::channel(CHANGES);
        let (node_changes, nodes_seen) = mpsc::channel(CHANGES);
        let agent = Agent::new(
            client.clone(),
            clock,
            options,
            addresses,
            own,
            registry.clone(),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::follow(Api::all(client.clone()), pod_changes));
        tasks.spawn(watch::follow(Api::all(client.clone()), node_changes));
        tasks.spawn(agent.run(pods, nodes_seen, stop.clone()));
        let until = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = nodes::heartbeat(client, nodes, clock) => {}
                () = until.cancelled() => {}
            }
        });
        Ok(KubeletHandle {
            names,
            registry,
            stop,
            tasks,
        })
    }
}

/// Running simulated nodes; dropping it ends them and cuts their pods' proxies.
///
/// Nodes and pods stay in the API as they were.
pub struct KubeletHandle {
    names: Vec<String>,
    registry: Registry,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl KubeletHandle {
    /// Names of the nodes.
    #[must_use]
    pub fn nodes(&self) -> &[String] {
        &self.names
    }

    /// The proxies that pods serve now, by pod.
    #[must_use]
    pub fn proxies(&self) -> Vec<PodProxy> {
        self.registry.list()
    }

    /// Ends the nodes and waits until nothing of them runs.
    ///
    /// Steps under way are cut, as by a crash of the node. Cancelling it cuts the rest.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl fmt::Debug for KubeletHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeletHandle")
            .field("nodes", &self.names)
            .finish_non_exhaustive()
    }
}

/// Only Linux lets every address of 127.0.0.0/8 be bound without being configured first.
fn usable(addressing: Addressing) -> Addressing {
    if addressing == Addressing::Loopback && !cfg!(target_os = "linux") {
        warn!("pods get addresses that cannot be dialled: loopback addresses need Linux");
        return Addressing::Virtual;
    }
    addressing
}

fn validate(options: &KubeletOptions) -> Result<(), Error> {
    let refuse = |option, problem: &str| {
        Err(Error::Option {
            option,
            problem: problem.to_owned(),
        })
    };
    if !(1..=999).contains(&options.nodes) {
        return refuse("nodes", "give a number from 1 to 999");
    }
    if options.pods_per_node == 0 {
        return refuse("pods_per_node", "0 takes no pod; give at least 1");
    }
    Ok(())
}

/// The same client under the kubelet's name.
fn with_user_agent(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |mut request: Request<Body>| {
        let client = client.clone();
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(KUBELET_USER_AGENT));
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}
