//! The agent: one task that owns every pod, and short tasks for what takes time.
//!
//! Pods come in by a watch, steps of theirs by a delay queue, results by a join set. An idle pod
//! costs memory only. At most one step of a pod is under way, so its steps never overtake.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube_client::Client;
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::{Id, JoinError, JoinSet},
    time::{Instant, timeout},
};
use tokio_util::{
    sync::CancellationToken,
    time::{DelayQueue, delay_queue},
};
use tracing::{debug, warn};

use super::{
    KubeletOptions,
    address::AddressPool,
    calls::{annotate, bind, patch_status, remove},
    events::{Warning, emit},
    lifecycle::{Blocked, Life, Now, Step},
    plan::{PLAN_COMPONENT, is_finished, plan_of},
    pod::{PodKey, bound_to, key_of, version},
    registry::Registry,
    scheduler::{NodeView, is_waiting, place},
    status::{Report, condition, render},
    watch::Change,
    workload::{Workload, WorkloadSettings, drain, prepare},
};
use crate::clock::Clock;

/// Steps under way at one time that ask the API; drains, which take as long as clients do, aside.
const CONCURRENT: usize = 64;
/// Deadline of one step's API calls.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Reason of the condition and name of the component when no node takes a pod.
const UNSCHEDULABLE: &str = "Unschedulable";
const SCHEDULER: &str = "default-scheduler";

/// What the agent knows about one pod.
struct Record {
    pod: Pod,
    uid: String,
    /// The node that has the pod, also before the API shows the binding.
    node: Option<String>,
    life: Option<Life>,
    workload: Option<Workload>,
    busy: bool,
    queued: bool,
    timer: Option<delay_queue::Key>,
    failures: u32,
    /// Why no node takes the pod, as last written.
    unschedulable: Option<String>,
    /// The last Warning Event, so that it is not repeated.
    warned: Option<Warning>,
}

/// The end of a step.
enum Outcome {
    Bound(String),
    Marked(String),
    Reported(Report, Box<Pod>),
    Prepared(Result<Workload, Blocked>),
    Probed(usize, Result<(), String>),
    Drained,
    Removed,
    Warned,
    Failed(kube_client::Error),
    TimedOut,
}

/// Everything that outlives single steps.
pub(super) struct Agent {
    client: Client,
    clock: Clock,
    options: KubeletOptions,
    settings: Arc<WorkloadSettings>,
    addresses: AddressPool,
    /// Address of each node of this kubelet.
    own: BTreeMap<String, IpAddr>,
    /// Every node of the cluster, for the scheduler.
    nodes: BTreeMap<String, NodeView>,
    n_pods: HashMap<String, usize>,
    pods: HashMap<PodKey, Record>,
    /// Pods that no node took; tried again when nodes change or a pod makes room.
    unplaced: HashSet<PodKey>,
    due: VecDeque<PodKey>,
    timers: DelayQueue<PodKey>,
    steps: JoinSet<(PodKey, String, Outcome)>,
    step_of: HashMap<Id, PodKey>,
    /// Those of the steps that wait for clients to go.
    drains: HashSet<Id>,
    registry: Registry,
}

impl Agent {
    pub(super) fn new(
        client: Client,
        clock: Clock,
        options: KubeletOptions,
        addresses: AddressPool,
        own: BTreeMap<String, IpAddr>,
        registry: Registry,
    ) -> Self {
        let settings = Arc::new(WorkloadSettings {
            serve: options.proxy,
            addressing: options.addressing,
            allowed: options.allowed_targets,
            seed: options.seed,
        });
        Self {
            client,
            clock,
            options,
            settings,
            addresses,
            own,
            nodes: BTreeMap::new(),
            n_pods: HashMap::new(),
            pods: HashMap::new(),
            unplaced: HashSet::new(),
            due: VecDeque::new(),
            timers: DelayQueue::new(),
            steps: JoinSet::new(),
            step_of: HashMap::new(),
            drains: HashSet::new(),
            registry,
        }
    }

    /// Works until the token is cancelled or a watch ends.
    pub(super) async fn run(
        mut self,
        mut pods: mpsc::Receiver<Change<Pod>>,
        mut nodes: mpsc::Receiver<Change<Node>>,
        stop: CancellationToken,
    ) {
        loop {
            while self.steps.len() - self.drains.len() < CONCURRENT
                && let Some(key) = self.due.pop_front()
            {
                self.advance(&key);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                change = pods.recv() => match change {
                    Some(change) => self.pods_changed(change),
                    None => return,
                },
                change = nodes.recv() => match change {
                    Some(change) => self.nodes_changed(change),
                    None => return,
                },
                Some(expired) = self.timers.next(), if !self.timers.is_empty() => {
                    let key = expired.into_inner();
                    if let Some(record) = self.pods.get_mut(&key) {
                        record.timer = None;
                    }
                    self.enqueue(&key);
                }
                Some(joined) = self.steps.join_next_with_id(), if !self.steps.is_empty() => {
                    self.step_ended(joined);
                }
            }
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: Instant::now(),
            wall: self.clock.now(),
        }
    }

    fn pods_changed(&mut self, change: Change<Pod>) {
        match change {
            Change::Applied(pod) => self.observe(pod),
            Change::Deleted(pod) => {
                let key = key_of(&pod);
                let uid = pod.metadata.uid.unwrap_or_default();
                if self.pods.get(&key).is_some_and(|record| record.uid == uid) {
                    self.forget(&key);
                }
            }
            Change::Replaced(pods) => {
                let mut vanished: HashSet<PodKey> = self.pods.keys().cloned().collect();
                for pod in pods {
                    vanished.remove(&key_of(&pod));
                    self.observe(pod);
                }
                for key in vanished {
                    self.forget(&key);
                }
            }
        }
    }

    fn observe(&mut self, pod: Pod) {
        let key = key_of(&pod);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if self.pods.get(&key).is_some_and(|record| record.uid != uid) {
            self.forget(&key);
        }
        let bound = bound_to(&pod);
        let record = self.pods.entry(Arc::clone(&key)).or_insert_with(|| Record {
            pod: Pod::default(),
            uid,
            node: None,
            life: None,
            workload: None,
            busy: false,
            queued: false,
            timer: None,
            failures: 0,
            unschedulable: None,
            warned: None,
        });
        if version(&pod) >= version(&record.pod) {
            record.pod = pod;
        }
        if let Some(node) = bound {
            self.assign(&key, node);
        }
        self.enqueue(&key);
    }

    /// Counts the pod on its node, once.
    fn assign(&mut self, key: &PodKey, node: String) {
        if let Some(record) = self.pods.get_mut(key)
            && record.node.is_none()
        {
            *self.n_pods.entry(node.clone()).or_default() += 1;
            record.node = Some(node);
        }
    }

    /// The pod is gone: what serves for it is cut, and a step under way will find it gone.
    fn forget(&mut self, key: &PodKey) {
        let Some(record) = self.pods.remove(key) else {
            return;
        };
        if let Some(timer) = &record.timer {
            self.timers.try_remove(timer);
        }
        self.registry.remove(key);
        self.unplaced.remove(key);
        if let Some(node) = &record.node
            && let Some(n) = self.n_pods.get_mut(node)
        {
            *n = n.saturating_sub(1);
        }
        self.retry_unplaced();
    }

    fn nodes_changed(&mut self, change: Change<Node>) {
        match change {
            Change::Replaced(nodes) => {
                self.nodes = nodes
                    .iter()
                    .map(NodeView::of)
                    .map(|node| (node.name.clone(), node))
                    .collect();
            }
            Change::Applied(node) => {
                let view = NodeView::of(&node);
                // Heartbeats change nothing that placement asks for.
                if self.nodes.insert(view.name.clone(), view.clone()) == Some(view) {
                    return;
                }
            }
            Change::Deleted(node) => {
                self.nodes
                    .remove(node.metadata.name.as_deref().unwrap_or_default());
            }
        }
        self.retry_unplaced();
    }

    fn retry_unplaced(&mut self) {
        for key in std::mem::take(&mut self.unplaced) {
            self.enqueue(&key);
        }
    }

    fn enqueue(&mut self, key: &PodKey) {
        if let Some(record) = self.pods.get_mut(key)
            && !record.queued
        {
            record.queued = true;
            self.due.push_back(Arc::clone(key));
        }
    }

    /// Begins the pod's next step, if there is one now.
    fn advance(&mut self, key: &PodKey) {
        let now = self.now();
        let Some(record) = self.pods.get_mut(key) else {
            return;
        };
        record.queued = false;
        if record.busy {
            return;
        }
        if let Some(timer) = record.timer.take() {
            self.timers.try_remove(&timer);
        }
        match record.node.clone() {
            None => self.schedule(key),
            Some(node) => {
                if let Some(host_ip) = self.own.get(&node).copied() {
                    self.live(key, host_ip, now);
                }
            }
        }
    }

    fn schedule(&mut self, key: &PodKey) {
        let Some(record) = self.pods.get(key) else {
            return;
        };
        if !self.options.scheduler || !is_waiting(&record.pod) {
            return;
        }
        if self.nodes.is_empty() {
            self.unplaced.insert(Arc::clone(key));
            return;
        }
        let pods_on = |node: &str| self.n_pods.get(node).copied().unwrap_or(0);
        match place(&record.pod, self.nodes.values(), pods_on) {
            Ok(node) => {
                let node = node.to_owned();
                let pod = record.pod.clone();
                // Counted at once, so that a burst of pods spreads; a failed binding takes it back.
                self.assign(key, node.clone());
                let client = self.client.clone();
                self.begin(key, async move {
                    match bind(&client, &pod, &node).await {
                        Ok(()) => Outcome::Bound(node),
                        Err(error) => Outcome::Failed(error),
                    }
                });
            }
            Err(message) if record.unschedulable.as_ref() == Some(&message) => {
                self.unplaced.insert(Arc::clone(key));
            }
            Err(message) => {
                let pod = record.pod.clone();
                let client = self.client.clone();
                let now = self.clock.now();
                self.begin(key, async move {
                    let refused = (UNSCHEDULABLE, message.clone());
                    let condition = condition(&pod, "PodScheduled", false, Some(refused), now);
                    let patch = json!({
                        "metadata": { "uid": pod.metadata.uid },
                        "status": { "conditions": [condition] },
                    });
                    if let Err(error) = patch_status(&client, &pod, patch).await {
                        return Outcome::Failed(error);
                    }
                    let reason = "FailedScheduling";
                    let warning = Warning {
                        component: SCHEDULER,
                        reason,
                        message: message.clone(),
                    };
                    emit(&client, &pod, &warning, now).await;
                    Outcome::Marked(message)
                });
            }
        }
    }

    fn live(&mut self, key: &PodKey, host_ip: IpAddr, now: Now) {
        let Some(record) = self.pods.get_mut(key) else {
            return;
        };
        let life = match &mut record.life {
            Some(life) => life,
            slot @ None => {
                let plan = plan_of(&record.pod, key, &self.options);
                let life = if is_finished(&record.pod) {
                    Life::finished(plan, host_ip, now)
                } else {
                    match pod_address(&record.pod, host_ip, &mut self.addresses) {
                        Ok(pod_ip) => Life::claim(&record.pod, plan, host_ip, pod_ip, now),
                        Err(error) => {
                            warn!(pod = %key, %error, "no address for a pod");
                            self.retry(key);
                            return;
                        }
                    }
                };
                slot.insert(life)
            }
        };
        let step = life.next(&record.pod, now);
        if !life.is_up() && record.workload.take().is_some() {
            self.registry.remove(key);
        }
        let client = self.client.clone();
        match step {
            Step::Idle => {}
            Step::Wait(at) => record.timer = Some(self.timers.insert_at(Arc::clone(key), at)),
            Step::Report(report) => {
                let pod = record.pod.clone();
                let patch = render(&report, &pod, now.wall);
                self.begin(key, async move {
                    match patch_status(&client, &pod, patch).await {
                        Ok(written) => Outcome::Reported(report, Box::new(written)),
                        Err(error) => Outcome::Failed(error),
                    }
                });
            }
            Step::Prepare => {
                let pod = record.pod.clone();
                let pod_ip = life.pod_ip();
                let settings = Arc::clone(&self.settings);
                self.begin(key, async move {
                    let prepared = prepare(&client, &pod, pod_ip, &settings).await;
                    let workload = match prepared {
                        Ok(Ok(workload)) => workload,
                        Ok(Err(blocked)) => return Outcome::Prepared(Err(blocked)),
                        Err(error) => return Outcome::Failed(error),
                    };
                    match annotate(&client, &pod, workload.port_map.as_deref()).await {
                        Ok(()) => Outcome::Prepared(Ok(workload)),
                        Err(error) => Outcome::Failed(error),
                    }
                });
            }
            Step::Probe(container) => {
                let Some(probe) = life.probe(container).cloned() else {
                    return;
                };
                let pod_ip = life.pod_ip();
                self.begin(key, async move {
                    Outcome::Probed(container, probe.run(pod_ip).await)
                });
            }
            Step::Drain(grace) => {
                let proxies = record
                    .workload
                    .iter()
                    .flat_map(|w| w.proxies.iter().cloned());
                let proxies: Vec<_> = proxies.collect();
                let drained = async move {
                    drain(proxies, grace).await;
                    Outcome::Drained
                };
                if let Some(id) = self.begin_unbounded(key, drained) {
                    self.drains.insert(id);
                }
            }
            Step::Remove => {
                let pod = record.pod.clone();
                self.begin(key, async move {
                    match remove(&client, &pod).await {
                        Ok(()) => Outcome::Removed,
                        Err(error) => Outcome::Failed(error),
                    }
                });
            }
        }
    }

    /// Runs a step that must end within [`CALL_TIMEOUT`].
    fn begin(&mut self, key: &PodKey, step: impl Future<Output = Outcome> + Send + 'static) {
        let bounded = async move {
            let ended = timeout(CALL_TIMEOUT, step).await;
            ended.unwrap_or(Outcome::TimedOut)
        };
        self.begin_unbounded(key, bounded);
    }

    fn begin_unbounded(
        &mut self,
        key: &PodKey,
        step: impl Future<Output = Outcome> + Send + 'static,
    ) -> Option<Id> {
        let record = self.pods.get_mut(key)?;
        record.busy = true;
        let (owned, uid) = (Arc::clone(key), record.uid.clone());
        let task = self.steps.spawn(async move { (owned, uid, step.await) });
        self.step_of.insert(task.id(), Arc::clone(key));
        Some(task.id())
    }

    fn step_ended(&mut self, joined: Result<(Id, (PodKey, String, Outcome)), JoinError>) {
        match joined {
            Ok((id, (key, uid, outcome))) => {
                self.step_of.remove(&id);
                self.drains.remove(&id);
                // An outcome for a pod that is gone is dropped, and with it what it started.
                if self.pods.get(&key).is_some_and(|record| record.uid == uid) {
                    self.apply(&key, outcome);
                }
            }
            Err(error) => {
                self.drains.remove(&error.id());
                let Some(key) = self.step_of.remove(&error.id()) else {
                    return;
                };
                warn!(pod = %key, %error, "a step of a simulated pod failed");
                self.retry(&key);
            }
        }
    }

    fn apply(&mut self, key: &PodKey, outcome: Outcome) {
        let now = self.now();
        let Some(record) = self.pods.get_mut(key) else {
            return;
        };
        record.busy = false;
        let mut warning = None;
        match outcome {
            Outcome::Failed(error) => {
                debug!(pod = %key, %error, "a step of a simulated pod is tried again");
                self.unassign_unbound(key);
                self.retry(key);
                return;
            }
            Outcome::TimedOut => {
                debug!(pod = %key, "a step of a simulated pod took too long");
                self.unassign_unbound(key);
                self.retry(key);
                return;
            }
            Outcome::Bound(node) => {
                debug!(pod = %key, node, "pod bound");
                record.unschedulable = None;
                if bound_to(&record.pod).is_none()
                    && let Some(spec) = &mut record.pod.spec
                {
                    spec.node_name = Some(node);
                }
            }
            Outcome::Marked(message) => record.unschedulable = Some(message),
            Outcome::Reported(report, written) => {
                if version(&written) > version(&record.pod) {
                    record.pod = *written;
                    record.pod.metadata.managed_fields = None;
                }
                if let Some(life) = &mut record.life {
                    life.reported(report);
                }
            }
            Outcome::Prepared(outcome) => {
                let outcome = outcome.map(|workload| {
                    let serving = workload.is_serving();
                    self.registry.insert(key, &workload.proxies);
                    record.workload = Some(workload);
                    serving
                });
                if let Err(blocked) = &outcome {
                    let mounting = !blocked.sandbox;
                    let reason = if mounting { "FailedMount" } else { "Failed" };
                    let message = blocked.message.clone();
                    warning = Some(Warning {
                        component: PLAN_COMPONENT,
                        reason,
                        message,
                    });
                }
                if let Some(life) = &mut record.life {
                    life.prepared(outcome, now);
                }
            }
            Outcome::Probed(container, result) => {
                if let Err(problem) = &result {
                    let message = format!("Readiness probe failed: {problem}");
                    let reason = "Unhealthy";
                    warning = Some(Warning {
                        component: PLAN_COMPONENT,
                        reason,
                        message,
                    });
                }
                if let Some(life) = &mut record.life {
                    life.probed(container, result.is_ok(), now);
                }
            }
            Outcome::Warned => {}
            Outcome::Drained => {
                if let Some(life) = &mut record.life {
                    life.drained();
                }
            }
            Outcome::Removed => {
                if let Some(life) = &mut record.life {
                    life.removed();
                }
            }
        }
        record.failures = 0;
        match warning {
            Some(warning) if record.warned.as_ref() != Some(&warning) => {
                record.warned = Some(warning.clone());
                let (client, pod) = (self.client.clone(), record.pod.clone());
                let wall = now.wall;
                self.warn(
                    key,
                    async move { emit(&client, &pod, &warning, wall).await },
                );
            }
            _ => self.enqueue(key),
        }
    }

    /// Writes an Event, then goes on with the pod.
    fn warn(&mut self, key: &PodKey, emit: impl Future<Output = ()> + Send + 'static) {
        self.begin(key, async move {
            emit.await;
            Outcome::Warned
        });
    }

    /// Takes back the node of a pod whose binding did not succeed.
    fn unassign_unbound(&mut self, key: &PodKey) {
        let Some(record) = self.pods.get_mut(key) else {
            return;
        };
        if record.life.is_none()
            && bound_to(&record.pod).is_none()
            && let Some(node) = record.node.take()
            && let Some(n) = self.n_pods.get_mut(&node)
        {
            *n = n.saturating_sub(1);
        }
    }

    /// Tries the pod again after a pause that doubles with each failure in a row.
    fn retry(&mut self, key: &PodKey) {
        let Some(record) = self.pods.get_mut(key) else {
            return;
        };
        record.busy = false;
        let pause = RETRY_BASE
            .saturating_mul(2_u32.saturating_pow(record.failures))
            .min(RETRY_MAX);
        record.failures = record.failures.saturating_add(1);
        if let Some(timer) = record.timer.take() {
            self.timers.try_remove(&timer);
        }
        record.timer = Some(self.timers.insert(Arc::clone(key), pause));
    }
}

fn pod_address(pod: &Pod, host_ip: IpAddr, addresses: &mut AddressPool) -> std::io::Result<IpAddr> {
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    if host_network {
        Ok(host_ip)
    } else {
        addresses.take()
    }
}
