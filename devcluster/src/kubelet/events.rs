//! Events about pods, as kubelet and scheduler write them.

use k8s_openapi::{
    api::core::v1::{Event, Pod},
    jiff::Timestamp,
};
use kube_client::{Api, Client, api::PostParams};
use serde_json::json;
use tracing::debug;

use crate::clock::seconds_text;

/// Longest note of an Event; the API refuses more.
const MAX_MESSAGE: usize = 1024;

/// Something worth a Warning Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Warning {
    pub(super) component: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Writes the Event; an Event that cannot be written is not worth a failure.
pub(super) async fn emit(client: &Client, pod: &Pod, warning: &Warning, now: Timestamp) {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let event = match event(pod, warning, now) {
        Ok(event) => event,
        Err(error) => {
            debug!(%error, "event could not be built");
            return;
        }
    };
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        debug!(%error, reason = warning.reason, "event could not be written");
    }
}

fn event(pod: &Pod, warning: &Warning, now: Timestamp) -> serde_json::Result<Event> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let message: String = warning.message.chars().take(MAX_MESSAGE).collect();
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{name}.{:x}", now.as_nanosecond()),
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": name,
            "namespace": namespace,
            "uid": pod.metadata.uid,
        },
        "type": "Warning",
        "reason": warning.reason,
        "message": message,
        "source": { "component": warning.component },
        "reportingComponent": warning.component,
        "reportingInstance": "",
        "firstTimestamp": seconds_text(now),
        "lastTimestamp": seconds_text(now),
        "count": 1,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_pod_and_stays_within_the_limit() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n", "uid": "u" }
        }))
        .unwrap();
        let warning = Warning {
            component: "kubelet",
            reason: "FailedMount",
            message: "ä".repeat(2000),
        };
        let event = event(&pod, &warning, "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(event.involved_object.uid.as_deref(), Some("u"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("n"));
        assert!(event.metadata.name.unwrap().starts_with("a."));
        assert_eq!(event.message.unwrap().chars().count(), MAX_MESSAGE);
    }
}
