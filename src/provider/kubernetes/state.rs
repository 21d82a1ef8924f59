//! What the state of a pod says about the proxy in it (P-12), without any call.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::Resource;

use super::pod::{
    LABEL_CLUSTER, LABEL_HASH, LABEL_MANAGED_BY, LABEL_PROXY, LABEL_UID, provider_id,
};
use crate::api::SpecHash;
use crate::provider::{Hint, Incarnation, Instance, InstanceState, MANAGED_BY, Owner};

/// How long a node may be silent before its pod counts as stopped.
pub const NODE_SILENCE: Duration = Duration::from_secs(5 * 60);

/// Longest text taken over from a pod, in characters.
const MAX_MESSAGE: usize = 512;

/// The owner that the labels name; `None` for an object that the operator did not make.
pub fn owner_of<K: Resource>(object: &K) -> Option<Owner> {
    let meta = object.meta();
    let labels = meta.labels.as_ref()?;
    if labels.get(LABEL_MANAGED_BY)? != MANAGED_BY {
        return None;
    }
    Some(Owner {
        cluster_id: Arc::from(labels.get(LABEL_CLUSTER)?.as_str()),
        uid: labels.get(LABEL_UID)?.clone(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        proxy: labels.get(LABEL_PROXY).cloned().unwrap_or_default(),
    })
}

/// True if the object has cluster id, UID and managed-by of this owner (P-05).
pub fn is_owned_by<K: Resource>(object: &K, owner: &Owner) -> bool {
    owner_of(object)
        .is_some_and(|found| found.cluster_id == owner.cluster_id && found.uid == owner.uid)
}

/// Reads a pod as an instance; `None` for an object without name, namespace or UID.
#[must_use]
pub fn instance(pod: &Pod, hint: &Hint, now: Timestamp) -> Option<Instance> {
    let meta = pod.meta();
    let (namespace, name) = (meta.namespace.as_deref()?, meta.name.as_deref()?);
    let incarnation = Incarnation::new(meta.uid.as_deref()?);
    let ips = ips(pod);
    let tags = meta.labels.clone().unwrap_or_default();
    let known = hint
        .incarnation
        .as_ref()
        .is_none_or(|known| *known == incarnation);
    let state = state(pod, hint.was_running && known, !ips.is_empty(), now);
    Some(Instance {
        id: provider_id(namespace, name),
        state,
        deleting: meta.deletion_timestamp.is_some(),
        ready: condition(pod, "Ready").is_some_and(|c| c.status == "True"),
        ips,
        zone: None,
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        spec_hash: tags
            .get(LABEL_HASH)
            .and_then(|tag| SpecHash::from_tag(tag).ok()),
        tags,
        message: message(pod, state),
        operation: None,
        incarnation,
    })
}

fn state(pod: &Pod, was_running: bool, has_ip: bool, now: Timestamp) -> InstanceState {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    match phase {
        Some("Succeeded" | "Failed") => InstanceState::Terminated,
        Some("Running") if node_is_silent(pod, now) => InstanceState::Stopped,
        Some("Running") if !has_ip => InstanceState::Provisioning,
        Some("Running") => {
            let ready = condition(pod, "Ready").is_some_and(|c| c.status == "True");
            if ready || was_running {
                InstanceState::Running
            } else {
                InstanceState::Provisioning
            }
        }
        // Pending, Unknown (never written any more), or no status yet.
        _ => InstanceState::Provisioning,
    }
}

/// The node lifecycle controller turns Ready to False on the pods of a node it cannot reach and
/// leaves ContainersReady as it was; the kubelet never writes this pair for long.
fn node_is_silent(pod: &Pod, now: Timestamp) -> bool {
    let containers_ready = condition(pod, "ContainersReady").is_some_and(|c| c.status == "True");
    let since = condition(pod, "Ready")
        .filter(|c| c.status == "False")
        .and_then(|c| c.last_transition_time.as_ref());
    let limit = SignedDuration::try_from(NODE_SILENCE).expect("five minutes fit");
    containers_ready && since.is_some_and(|since| now.duration_since(since.0) > limit)
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

fn ips(pod: &Pod) -> Vec<String> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let mut ips: Vec<String> = status.pod_ip.iter().cloned().collect();
    for other in status.pod_ips.iter().flatten() {
        if !ips.contains(&other.ip) {
            ips.push(other.ip.clone());
        }
    }
    ips.retain(|ip| !ip.is_empty());
    ips
}

/// What holds the pod back, in the cluster's words; empty for one that runs well.
fn message(pod: &Pod, state: InstanceState) -> Cow<'static, str> {
    let Some(status) = &pod.status else {
        return Cow::Borrowed("");
    };
    let own = words(status.reason.as_deref(), status.message.as_deref());
    let unscheduled = || {
        condition(pod, "PodScheduled")
            .filter(|c| c.status == "False")
            .and_then(|c| words(c.reason.as_deref(), c.message.as_deref()))
    };
    let waiting = || {
        status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .flatten()
            .find_map(waiting)
    };
    match own.or_else(unscheduled).or_else(waiting) {
        Some(text) => Cow::Owned(text.chars().take(MAX_MESSAGE).collect()),
        None if state == InstanceState::Stopped => {
            Cow::Borrowed("the node has not been heard of for 5 minutes")
        }
        None => Cow::Borrowed(""),
    }
}

fn waiting(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    words(waiting.reason.as_deref(), waiting.message.as_deref())
}

fn words(reason: Option<&str>, message: Option<&str>) -> Option<String> {
    match (
        reason.filter(|text| !text.is_empty()),
        message.filter(|text| !text.is_empty()),
    ) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
        (Some(text), None) | (None, Some(text)) => Some(text.to_owned()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).expect("a pod")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("in range")
    }

    fn ready(status: &str, containers: &str, since: i64) -> serde_json::Value {
        json!([
            { "type": "Ready", "status": status, "lastTransitionTime": at(since).to_string() },
            { "type": "ContainersReady", "status": containers },
        ])
    }

    #[test]
    fn p12_the_state_follows_phase_readiness_and_history() {
        use InstanceState::{Provisioning, Running, Stopped, Terminated};
        let never = json!([]);
        for (phase, conditions, ip, was_running, now, want) in [
            ("Pending", never.clone(), None, false, 0, Provisioning),
            ("Pending", never.clone(), None, true, 0, Provisioning),
            (
                "Running",
                ready("True", "True", 0),
                Some("10.0.0.1"),
                false,
                0,
                Running,
            ),
            (
                "Running",
                ready("True", "True", 0),
                None,
                false,
                0,
                Provisioning,
            ),
            (
                "Running",
                ready("False", "False", 0),
                Some("10.0.0.1"),
                false,
                0,
                Provisioning,
            ),
            (
                "Running",
                ready("False", "False", 0),
                Some("10.0.0.1"),
                true,
                900,
                Running,
            ),
            (
                "Running",
                ready("False", "True", 0),
                Some("10.0.0.1"),
                true,
                300,
                Running,
            ),
            (
                "Running",
                ready("False", "True", 0),
                Some("10.0.0.1"),
                true,
                301,
                Stopped,
            ),
            (
                "Running",
                ready("False", "True", 0),
                Some("10.0.0.1"),
                false,
                301,
                Stopped,
            ),
            ("Succeeded", never.clone(), None, true, 0, Terminated),
            (
                "Failed",
                never.clone(),
                Some("10.0.0.1"),
                true,
                0,
                Terminated,
            ),
        ] {
            let mut status = json!({ "phase": phase, "conditions": conditions });
            if let Some(ip) = ip {
                status["podIP"] = json!(ip);
            }
            let pod = pod(json!({
                "metadata": { "name": "px-1", "namespace": "a", "uid": "u" }, "status": status,
            }));
            let hint = Hint {
                incarnation: None,
                was_running,
                ..Hint::default()
            };
            let instance = instance(&pod, &hint, at(now)).expect("named");
            assert_eq!(
                instance.state, want,
                "{phase} {ip:?} before={was_running} +{now}s"
            );
        }
    }

    #[test]
    fn p12_the_history_of_another_incarnation_does_not_count() {
        let pod = pod(json!({
            "metadata": { "name": "px-1", "namespace": "a", "uid": "new" },
            "status": { "phase": "Running", "podIP": "10.0.0.1", "conditions": ready("False", "False", 0) },
        }));
        let hint = Hint {
            incarnation: Some(Incarnation::new("old")),
            was_running: true,
            ..Hint::default()
        };
        let seen = instance(&pod, &hint, at(1)).expect("named");
        assert_eq!(seen.state, InstanceState::Provisioning);
    }

    #[test]
    fn p12_what_holds_a_pod_back_is_in_the_message() {
        for (status, want) in [
            (
                json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False",
                    "reason": "Unschedulable", "message": "0/1 nodes are available" }] }),
                "Unschedulable: 0/1 nodes are available",
            ),
            (
                json!({ "phase": "Pending", "containerStatuses": [{ "name": "proxy", "image": "", "imageID": "",
                    "ready": false, "restartCount": 0,
                    "state": { "waiting": { "reason": "ImagePullBackOff" } } }] }),
                "ImagePullBackOff",
            ),
            (
                json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" }),
                "Evicted: low on memory",
            ),
            (json!({ "phase": "Running", "podIP": "10.0.0.1" }), ""),
        ] {
            let pod = pod(json!({
                "metadata": { "name": "px-1", "namespace": "a", "uid": "u" }, "status": status,
            }));
            let seen = instance(&pod, &Hint::default(), at(0)).expect("named");
            assert_eq!(seen.message, want);
        }
    }

    #[test]
    fn p05_an_object_without_all_three_marks_is_a_strangers() {
        let full = json!({
            LABEL_CLUSTER: "c", LABEL_UID: "u", LABEL_MANAGED_BY: MANAGED_BY, LABEL_PROXY: "a",
        });
        let owner = Owner {
            cluster_id: Arc::from("c"),
            uid: "u".to_owned(),
            namespace: "ns".to_owned(),
            proxy: "a".to_owned(),
        };
        let with = |labels: &serde_json::Value| {
            pod(json!({ "metadata": { "name": "px-u", "namespace": "ns", "labels": labels } }))
        };
        assert!(is_owned_by(&with(&full), &owner));
        for label in [LABEL_CLUSTER, LABEL_UID, LABEL_MANAGED_BY] {
            let mut less = full.clone();
            less.as_object_mut().expect("a map").remove(label);
            assert!(!is_owned_by(&with(&less), &owner), "without {label}");
            let mut other = full.clone();
            other[label] = json!("x");
            assert!(!is_owned_by(&with(&other), &owner), "other {label}");
        }
    }
}
