//! Columns and cells of pods: the status in one word.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::built_in::{age, age_column, name_of};
use super::{Column, age::since, list_at, number_at, text_at};

pub(super) fn columns() -> Vec<Column> {
    let text = |name: &str, description: &str| Column::new(name, "string", description);
    vec![
        Column::name(),
        text(
            "Ready",
            "The aggregate readiness state of this pod for accepting traffic.",
        ),
        text(
            "Status",
            "The aggregate status of the containers in this pod.",
        ),
        text(
            "Restarts",
            "The number of times the containers in this pod have been restarted and when the \
             last container in this pod has restarted.",
        ),
        age_column(),
        text("IP", "Address of the pod.").wide(),
        text("Node", "Node that the pod runs on.").wide(),
        text(
            "Nominated Node",
            "Node that the pod will run on once others have left.",
        )
        .wide(),
        text(
            "Readiness Gates",
            "Further conditions for readiness that hold.",
        )
        .wide(),
    ]
}

/// The condition by which clients style the row of a pod that has ended.
pub(super) fn finished_condition(object: &Value) -> Option<Value> {
    if object["kind"] != "Pod" {
        return None;
    }
    let (reason, message) = match text_at(object, &["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": reason, "message": message}))
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summarize(pod);
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, since(last, now))
        }
        _ => summary.restarts.to_string(),
    };
    let or_none = |text: &str| Value::from(if text.is_empty() { "<none>" } else { text });
    let ip = list_at(pod, &["status", "podIPs"])
        .first()
        .map_or("", |ip| text_at(ip, &["ip"]));
    vec![
        name_of(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.status.into(),
        restarts.into(),
        age(pod, now),
        or_none(ip),
        or_none(text_at(pod, &["spec", "nodeName"])),
        or_none(text_at(pod, &["status", "nominatedNodeName"])),
        readiness_gates(pod).into(),
    ]
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list_at(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let holding = gates
        .iter()
        .filter(|gate| condition(pod, text_at(gate, &["conditionType"])).is_some_and(is_true))
        .count();
    format!("{holding}/{}", gates.len())
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    list_at(pod, &["status", "conditions"])
        .iter()
        .find(|condition| condition["type"] == kind)
}

fn is_true(condition: &Value) -> bool {
    condition["status"] == "True"
}

struct Summary<'a> {
    status: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<&'a str>,
}

/// Restarts of some containers and when the latest of them ended.
#[derive(Clone, Copy, Default)]
struct Restarts<'a> {
    count: i64,
    last: Option<&'a str>,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, container: &'a Value) {
        self.count += number_at(container, &["restartCount"]);
        let ended = text_at(container, &["lastState", "terminated", "finishedAt"]);
        // Times of one form compare as text.
        if !ended.is_empty() && self.last.is_none_or(|last| last < ended) {
            self.last = Some(ended);
        }
    }
}

fn summarize(pod: &Value) -> Summary<'_> {
    let phase = text_at(pod, &["status", "phase"]);
    let mut status = match text_at(pod, &["status", "reason"]) {
        "" => phase.to_owned(),
        reason => reason.to_owned(),
    };
    if condition(pod, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated") {
        "SchedulingGated".clone_into(&mut status);
    }
    let init_specs = list_at(pod, &["spec", "initContainers"]);
    let restarts_always = |name: &str| {
        init_specs
            .iter()
            .any(|c| c["name"] == name && c["restartPolicy"] == "Always")
    };
    let sidecars = init_specs
        .iter()
        .filter(|c| c["restartPolicy"] == "Always")
        .count();
    let total = list_at(pod, &["spec", "containers"]).len() + sidecars;

    let mut ready = 0;
    let mut restarts = Restarts::default();
    let mut sidecar_restarts = Restarts::default();
    let mut initializing = None;
    for (index, container) in list_at(pod, &["status", "initContainerStatuses"])
        .iter()
        .enumerate()
    {
        restarts.add(container);
        let is_sidecar = restarts_always(text_at(container, &["name"]));
        if is_sidecar {
            sidecar_restarts.add(container);
        }
        let ended = &container["state"]["terminated"];
        if ended.is_object() && number_at(ended, &["exitCode"]) == 0 {
            continue;
        }
        if is_sidecar && container["started"] == true {
            ready += usize::from(container["ready"] == true);
            continue;
        }
        let waiting = text_at(container, &["state", "waiting", "reason"]);
        initializing = Some(if ended.is_object() {
            format!("Init:{}", end_reason(ended))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", init_specs.len())
        });
        break;
    }
    let is_initialized = condition(pod, "Initialized").is_some_and(is_true);
    if let Some(reason) = &initializing {
        status.clone_from(reason);
    }
    if initializing.is_none() || is_initialized {
        restarts = sidecar_restarts;
        status = main_containers(pod, status, &mut ready, &mut restarts);
    }
    if !text_at(pod, &["metadata", "deletionTimestamp"]).is_empty() {
        if pod["status"]["reason"] == "NodeLost" {
            "Unknown".clone_into(&mut status);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut status);
        }
    }
    Summary {
        status,
        ready,
        total,
        restarts: restarts.count,
        last_restart: restarts.last,
    }
}

/// The status that the main containers give; the first container has the last word.
fn main_containers<'a>(
    pod: &'a Value,
    mut status: String,
    ready: &mut usize,
    restarts: &mut Restarts<'a>,
) -> String {
    let mut is_running = false;
    let mut failure = None;
    for container in list_at(pod, &["status", "containerStatuses"]).iter().rev() {
        restarts.add(container);
        let state = &container["state"];
        let waiting = text_at(state, &["waiting", "reason"]);
        if !waiting.is_empty() {
            waiting.clone_into(&mut status);
        } else if state["terminated"].is_object() {
            status = end_reason(&state["terminated"]);
            if number_at(state, &["terminated", "exitCode"]) != 0 {
                failure = Some(status.clone());
            }
        } else if container["ready"] == true && state["running"].is_object() {
            is_running = true;
            *ready += 1;
        }
    }
    if status != "Completed" {
        return status;
    }
    let is_ready = condition(pod, "Ready").is_some_and(is_true);
    match (is_running, failure) {
        (true, _) if is_ready => "Running".to_owned(),
        (_, Some(failure)) => failure,
        (true, None) => "NotReady".to_owned(),
        (false, None) => status,
    }
}

fn end_reason(terminated: &Value) -> String {
    match (
        text_at(terminated, &["reason"]),
        number_at(terminated, &["signal"]),
    ) {
        ("", 0) => format!("ExitCode:{}", number_at(terminated, &["exitCode"])),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(status: &Value, deleting: bool) -> Vec<Value> {
        let mut pod = json!({
            "kind": "Pod",
            "metadata": {"name": "p", "creationTimestamp": "2024-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeName": "n"},
            "status": status,
        });
        if deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:01:00Z");
        }
        cells(&pod, "2024-01-01T00:02:00Z".parse().unwrap())
    }

    #[test]
    fn n9_the_status_of_a_pod_is_told_as_the_real_printer_does() {
        let running = json!({"ready": true, "restartCount": 0, "state": {"running": {}}});
        let cases = [
            (
                "pending",
                json!({"phase": "Pending"}),
                false,
                "0/2",
                "Pending",
                "0",
            ),
            (
                "one of two ready",
                json!({"phase": "Running", "containerStatuses": [running,
                    {"ready": false, "restartCount": 2, "state": {"running": {}},
                        "lastState": {"terminated": {"finishedAt": "2024-01-01T00:01:00Z"}}}]}),
                false,
                "1/2",
                "Running",
                "2 (60s ago)",
            ),
            (
                "crash loop",
                json!({"phase": "Running", "containerStatuses": [
                    {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 1}]}),
                false,
                "0/2",
                "CrashLoopBackOff",
                "1",
            ),
            (
                "init failed",
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"state": {"terminated": {"exitCode": 3}}}]}),
                false,
                "0/2",
                "Init:ExitCode:3",
                "0",
            ),
            (
                "init waits",
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"state": {"waiting": {"reason": "PodInitializing"}}}]}),
                false,
                "0/2",
                "Init:0/0",
                "0",
            ),
            (
                "one completed and one runs ready",
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [
                        {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}},
                        running]}),
                false,
                "1/2",
                "Running",
                "0",
            ),
            (
                "terminating",
                json!({"phase": "Running", "containerStatuses": [running, running]}),
                true,
                "2/2",
                "Terminating",
                "0",
            ),
            (
                "finished and deleted",
                json!({"phase": "Succeeded"}),
                true,
                "0/2",
                "Succeeded",
                "0",
            ),
            (
                "evicted",
                json!({"phase": "Failed", "reason": "Evicted"}),
                false,
                "0/2",
                "Evicted",
                "0",
            ),
        ];
        for (name, status, deleting, ready, word, restarts) in cases {
            let row = row(&status, deleting);
            assert_eq!(
                row[1..4],
                [json!(ready), json!(word), json!(restarts)],
                "{name}"
            );
            assert_eq!(
                row[4..],
                [
                    json!("2m"),
                    json!("<none>"),
                    json!("n"),
                    json!("<none>"),
                    json!("<none>")
                ]
            );
        }
    }

    #[test]
    fn n8_a_finished_pod_has_a_row_condition() {
        let pod = json!({"kind": "Pod", "status": {"phase": "Failed"}});
        assert_eq!(finished_condition(&pod).unwrap()["reason"], "Failed");
        assert_eq!(finished_condition(&json!({"kind": "Pod"})), None);
    }
}
