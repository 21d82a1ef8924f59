//! A pod's status as the kubelet writes it, rendered from a small report.

use std::net::IpAddr;

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    jiff::Timestamp,
};
use serde_json::{Map, Value, json};

use crate::clock::seconds_text;

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl PodPhase {
    fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// How a container's last run ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) started: Timestamp,
    pub(super) finished: Timestamp,
}

/// The state shared by all containers of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ContainerState {
    Waiting { reason: String, message: String },
    Running { since: Timestamp },
    Ended,
}

impl ContainerState {
    pub(super) fn waiting(reason: &str, message: &str) -> Self {
        Self::Waiting {
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }
}

/// All that decides a pod's status; two equal reports need one write.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) phase: PodPhase,
    pub(super) generation: Option<i64>,
    pub(super) claimed_at: Timestamp,
    pub(super) host_ip: IpAddr,
    pub(super) pod_ip: Option<IpAddr>,
    pub(super) sandbox: bool,
    pub(super) gates_open: bool,
    pub(super) containers: ContainerState,
    /// Readiness by container, in the order of the spec.
    pub(super) ready: Vec<bool>,
    pub(super) restarts: i32,
    pub(super) last_exit: Option<Exit>,
}

/// Whether every readiness gate of the pod has a True condition.
pub(super) fn gates_open(pod: &Pod) -> bool {
    let gates = pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten());
    let mut types = gates.map(|gate| gate.condition_type.as_str());
    types.all(|gate| condition_is(pod, gate, "True"))
}

/// The strategic merge patch of `/status` that brings the pod to the report.
///
/// It carries the pod's uid, so that it never lands on a successor of the same name.
pub(super) fn render(report: &Report, pod: &Pod, now: Timestamp) -> Value {
    let mut status = Map::new();
    if let Some(generation) = report.generation {
        status.insert("observedGeneration".to_owned(), json!(generation));
    }
    status.insert("phase".to_owned(), json!(report.phase.name()));
    status.insert(
        "startTime".to_owned(),
        json!(seconds_text(report.claimed_at)),
    );
    status.insert("hostIP".to_owned(), json!(report.host_ip));
    status.insert(
        "hostIPs".to_owned(),
        ips(report.host_ip, shown_ip(pod, "hostIP")),
    );
    if let Some(ip) = report.pod_ip {
        status.insert("podIP".to_owned(), json!(ip));
        status.insert("podIPs".to_owned(), ips(ip, shown_ip(pod, "podIP")));
    }
    let spec = pod.spec.as_ref();
    let containers = spec.map_or(&[][..], |spec| &spec.containers);
    let statuses: Vec<Value> = containers
        .iter()
        .enumerate()
        .map(|(i, container)| {
            container_status(report, pod, container, report.ready.get(i) == Some(&true))
        })
        .collect();
    status.insert("containerStatuses".to_owned(), json!(statuses));
    let init: Vec<Value> = spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
        .map(|container| init_status(report, pod, container))
        .collect();
    if !init.is_empty() {
        status.insert("initContainerStatuses".to_owned(), json!(init));
    }
    let conditions = conditions(report, pod, containers, now);
    status.insert("conditions".to_owned(), json!(conditions));
    json!({ "metadata": { "uid": pod.metadata.uid }, "status": status })
}

/// `podIPs` and `hostIPs` merge by address: an address that changed must be taken out.
fn ips(ip: IpAddr, shown: Option<&str>) -> Value {
    if shown.is_some_and(|shown| shown != ip.to_string()) {
        json!([{ "$patch": "replace" }, { "ip": ip }])
    } else {
        json!([{ "ip": ip }])
    }
}

fn shown_ip<'a>(pod: &'a Pod, field: &str) -> Option<&'a str> {
    let status = pod.status.as_ref()?;
    let ip = if field == "podIP" {
        status.pod_ip.as_ref()
    } else {
        status.host_ip.as_ref()
    };
    ip.map(String::as_str).filter(|ip| !ip.is_empty())
}

fn container_status(report: &Report, pod: &Pod, container: &Container, ready: bool) -> Value {
    let id = container_id(pod, &container.name, report.restarts);
    let mut status = json!({
        "name": container.name,
        "image": container.image.as_deref().unwrap_or_default(),
        "imageID": "",
        "restartCount": report.restarts,
        "ready": ready,
        "started": matches!(report.containers, ContainerState::Running { .. }),
        "state": {},
        "lastState": {},
    });
    let exit = report.last_exit.as_ref();
    let last_id = container_id(pod, &container.name, (report.restarts - 1).max(0));
    match &report.containers {
        ContainerState::Waiting { reason, message } => {
            let mut waiting = json!({ "reason": reason });
            if !message.is_empty() {
                waiting["message"] = json!(message);
            }
            status["state"] = json!({ "waiting": waiting });
        }
        ContainerState::Running { since } => {
            status["state"] = json!({ "running": { "startedAt": seconds_text(*since) } });
            status["containerID"] = json!(id);
            status["imageID"] = json!(image_id(container));
        }
        ContainerState::Ended => {
            status["state"] = match exit {
                Some(exit) => terminated(exit, &id),
                None => json!({ "terminated": {
                    "exitCode": 137,
                    "reason": "ContainerStatusUnknown",
                    "message": "The container was not started before the pod was deleted",
                } }),
            };
            if exit.is_some() {
                status["containerID"] = json!(id);
                status["imageID"] = json!(image_id(container));
            }
            return status;
        }
    }
    if let Some(exit) = exit {
        status["lastState"] = terminated(exit, &last_id);
    }
    status
}

fn terminated(exit: &Exit, id: &str) -> Value {
    json!({ "terminated": {
        "exitCode": exit.code,
        "reason": if exit.code == 0 { "Completed" } else { "Error" },
        "startedAt": seconds_text(exit.started),
        "finishedAt": seconds_text(exit.finished),
        "containerID": id,
    } })
}

/// Init containers have ended in good order as soon as the containers are up.
fn init_status(report: &Report, pod: &Pod, container: &Container) -> Value {
    let id = container_id(pod, &container.name, 0);
    let up = report.phase == PodPhase::Running || report.last_exit.is_some();
    let sidecar = container.restart_policy.as_deref() == Some("Always");
    let since = match &report.containers {
        ContainerState::Running { since } => *since,
        _ => report.claimed_at,
    };
    let state = match (up, sidecar) {
        (false, _) => json!({ "waiting": { "reason": "PodInitializing" } }),
        (true, true) if report.phase == PodPhase::Running => {
            json!({ "running": { "startedAt": seconds_text(since) } })
        }
        (true, _) => terminated(
            &Exit {
                code: 0,
                started: report.claimed_at,
                finished: since,
            },
            &id,
        ),
    };
    json!({
        "name": container.name,
        "image": container.image.as_deref().unwrap_or_default(),
        "imageID": if up { image_id(container) } else { String::new() },
        "containerID": if up { id } else { String::new() },
        "restartCount": 0,
        "ready": up,
        "started": up && sidecar,
        "state": state,
        "lastState": {},
    })
}

fn conditions(report: &Report, pod: &Pod, containers: &[Container], now: Timestamp) -> Vec<Value> {
    let finished = matches!(report.phase, PodPhase::Succeeded | PodPhase::Failed);
    let up = report.phase == PodPhase::Running;
    let init = pod.spec.as_ref().is_some_and(|spec| {
        spec.init_containers
            .as_ref()
            .is_some_and(|containers| !containers.is_empty())
    });
    let unready: Vec<&str> = containers
        .iter()
        .enumerate()
        .filter(|(i, _)| report.ready.get(*i) != Some(&true))
        .map(|(_, container)| container.name.as_str())
        .collect();
    let unready_because = || {
        if finished {
            let reason = if report.phase == PodPhase::Succeeded {
                "PodCompleted"
            } else {
                "PodFailed"
            };
            (reason, String::new())
        } else {
            (
                "ContainersNotReady",
                format!("containers with unready status: [{}]", unready.join(" ")),
            )
        }
    };
    let containers_ready = up && unready.is_empty();
    let held = |type_, held: bool, reason, message| {
        condition(pod, type_, held, (!held).then_some((reason, message)), now)
    };
    let (reason, message) = unready_because();
    let ready = if containers_ready && !report.gates_open {
        let message = "the condition of a readiness gate is not True".to_owned();
        held("Ready", false, "ReadinessGatesNotReady", message)
    } else {
        held("Ready", containers_ready, reason, message.clone())
    };
    vec![
        held(
            "PodReadyToStartContainers",
            report.sandbox,
            "",
            String::new(),
        ),
        held(
            "Initialized",
            !init || up || report.last_exit.is_some(),
            "ContainersNotInitialized",
            "containers with incomplete status".to_owned(),
        ),
        ready,
        held("ContainersReady", containers_ready, reason, message),
        held("PodScheduled", true, "", String::new()),
    ]
}

/// A condition; the time of its last transition stays while its status does.
pub(super) fn condition(
    pod: &Pod,
    type_: &str,
    held: bool,
    because: Option<(&str, String)>,
    now: Timestamp,
) -> Value {
    let status = if held { "True" } else { "False" };
    let shown = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|shown| shown.type_ == type_ && shown.status == status);
    let since = shown
        .and_then(|shown| shown.last_transition_time.as_ref())
        .map_or(now, |t| t.0);
    // Null takes out what an earlier status said.
    let (reason, message) = because.unwrap_or_default();
    json!({
        "type": type_,
        "status": status,
        "lastTransitionTime": seconds_text(since),
        "reason": if reason.is_empty() { Value::Null } else { json!(reason) },
        "message": if message.is_empty() { Value::Null } else { json!(message) },
    })
}

fn condition_is(pod: &Pod, type_: &str, status: &str) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == type_ && condition.status == status)
}

fn container_id(pod: &Pod, container: &str, restarts: i32) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    format!("devcluster://{uid}/{container}/{restarts}")
}

fn image_id(container: &Container) -> String {
    format!(
        "devcluster://{}",
        container.image.as_deref().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn report() -> Report {
        Report {
            phase: PodPhase::Running,
            generation: Some(1),
            claimed_at: at("2026-01-01T00:00:00Z"),
            host_ip: [127, 64, 0, 1].into(),
            pod_ip: Some([127, 64, 0, 2].into()),
            sandbox: true,
            gates_open: true,
            containers: ContainerState::Running {
                since: at("2026-01-01T00:00:01.7Z"),
            },
            ready: vec![true],
            restarts: 0,
            last_exit: None,
        }
    }

    fn held<'a>(patch: &'a Value, type_: &str) -> &'a Value {
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|c| c["type"] == type_).unwrap()
    }

    #[test]
    fn a_ready_pod_shows_addresses_times_and_true_conditions() {
        let pod = pod(json!({
            "metadata": { "name": "a", "uid": "u" },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        }));
        let patch = render(&report(), &pod, at("2026-01-01T00:00:02Z"));
        assert_eq!(patch["metadata"], json!({ "uid": "u" }));
        let status = &patch["status"];
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["podIP"], "127.64.0.2");
        assert_eq!(status["podIPs"], json!([{ "ip": "127.64.0.2" }]));
        assert_eq!(status["startTime"], "2026-01-01T00:00:00Z");
        let container = &status["containerStatuses"][0];
        assert_eq!(
            container["state"]["running"]["startedAt"],
            "2026-01-01T00:00:01Z"
        );
        assert_eq!(container["ready"], true);
        for type_ in [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
        ] {
            assert_eq!(held(&patch, type_)["status"], "True", "{type_}");
        }
    }

    #[test]
    fn a_transition_time_stays_while_the_status_stays() {
        let pod = pod(json!({
            "metadata": { "name": "a", "uid": "u" },
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "conditions": [
                { "type": "Ready", "status": "False", "lastTransitionTime": "2025-01-01T00:00:00Z" },
                { "type": "PodScheduled", "status": "True",
                  "lastTransitionTime": "2025-01-01T00:00:00Z" },
            ] },
        }));
        let patch = render(&report(), &pod, at("2026-01-01T00:00:02Z"));
        assert_eq!(
            held(&patch, "Ready")["lastTransitionTime"],
            "2026-01-01T00:00:02Z"
        );
        assert_eq!(
            held(&patch, "PodScheduled")["lastTransitionTime"],
            "2025-01-01T00:00:00Z"
        );
    }

    #[test]
    fn a_new_address_replaces_the_old_one() {
        let pod = pod(json!({
            "metadata": { "name": "a", "uid": "u" },
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "podIP": "127.64.9.9", "podIPs": [{ "ip": "127.64.9.9" }],
                        "hostIP": "127.64.0.1" },
        }));
        let status = &render(&report(), &pod, at("2026-01-01T00:00:02Z"))["status"];
        assert_eq!(
            status["podIPs"],
            json!([{ "$patch": "replace" }, { "ip": "127.64.0.2" }])
        );
        assert_eq!(status["hostIPs"], json!([{ "ip": "127.64.0.1" }]));
    }

    #[test]
    fn what_holds_a_pod_back_is_said() {
        let gated = pod(json!({
            "metadata": { "name": "a", "uid": "u" },
            "spec": { "containers": [{ "name": "c" }, { "name": "d" }],
                      "readinessGates": [{ "conditionType": "example.test/gate" }],
                      "initContainers": [{ "name": "i" }] },
        }));
        assert!(!gates_open(&gated));
        let now = at("2026-01-01T00:00:02Z");

        let ready = Report {
            gates_open: false,
            ready: vec![true, true],
            ..report()
        };
        let patch = render(&ready, &gated, now);
        assert_eq!(held(&patch, "Ready")["reason"], "ReadinessGatesNotReady");
        assert_eq!(held(&patch, "ContainersReady")["status"], "True");

        let part = Report {
            ready: vec![true, false],
            ..report()
        };
        let patch = render(&part, &gated, now);
        assert_eq!(
            held(&patch, "Ready")["message"],
            "containers with unready status: [d]"
        );

        let creating = Report {
            phase: PodPhase::Pending,
            containers: ContainerState::waiting("ContainerCreating", ""),
            ready: vec![false, false],
            sandbox: false,
            pod_ip: None,
            ..report()
        };
        let patch = render(&creating, &gated, now);
        assert_eq!(held(&patch, "Initialized")["status"], "False");
        assert_eq!(
            patch["status"]["initContainerStatuses"][0]["state"]["waiting"]["reason"],
            "PodInitializing"
        );
        assert!(patch["status"].get("podIP").is_none());

        let exit = Exit {
            code: 3,
            started: now,
            finished: now,
        };
        let failed = Report {
            phase: PodPhase::Failed,
            containers: ContainerState::Ended,
            ready: vec![false, false],
            last_exit: Some(exit),
            ..report()
        };
        let patch = render(&failed, &gated, now);
        assert_eq!(held(&patch, "Ready")["reason"], "PodFailed");
        let state = &patch["status"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(
            (&state["exitCode"], &state["reason"]),
            (&json!(3), &json!("Error"))
        );
    }
}
