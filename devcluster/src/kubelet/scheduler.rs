//! The scheduler stub: which node takes a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};

/// What placement needs to know of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeView {
    pub(super) name: String,
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    unschedulable: bool,
    max_pods: usize,
}

impl NodeView {
    pub(super) fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let allocatable = node.status.as_ref().and_then(|status| {
            let resources = status.allocatable.as_ref().or(status.capacity.as_ref())?;
            resources.get("pods")?.0.parse().ok()
        });
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec
                .and_then(|spec| spec.taints.clone())
                .unwrap_or_default(),
            unschedulable: spec.and_then(|spec| spec.unschedulable) == Some(true),
            max_pods: allocatable.unwrap_or(0),
        }
    }

    fn refuses(&self, pod: &Pod, pods_here: usize) -> Option<&'static str> {
        let spec = pod.spec.as_ref()?;
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let selected = spec
            .node_selector
            .iter()
            .flatten()
            .all(|(key, value)| self.labels.get(key) == Some(value));
        let unschedulable = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let tolerated = |taint: &Taint| tolerations.iter().any(|t| tolerates(t, taint));
        if self.unschedulable && !tolerated(&unschedulable) {
            Some("were unschedulable")
        } else if !selected {
            Some("didn't match Pod's node affinity/selector")
        } else if self
            .taints
            .iter()
            .any(|taint| repels(taint) && !tolerated(taint))
        {
            Some("had untolerated taint(s)")
        } else if pods_here >= self.max_pods {
            Some("had too many pods")
        } else {
            None
        }
    }
}

/// Whether the stub is asked to place this pod: unbound, without gates, by the default scheduler.
pub(super) fn is_waiting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
        && pod.spec.as_ref().is_some_and(|spec| {
            spec.node_name.as_ref().is_none_or(String::is_empty)
                && spec
                    .scheduler_name
                    .as_deref()
                    .unwrap_or("default-scheduler")
                    == "default-scheduler"
                && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
        })
}

/// The node with the fewest pods among those that take this one, the first by name of equals.
///
/// # Errors
///
/// Why no node takes it, counted by reason.
pub(super) fn place<'a>(
    pod: &Pod,
    nodes: impl IntoIterator<Item = &'a NodeView>,
    pods_on: impl Fn(&str) -> usize,
) -> Result<&'a str, String> {
    let mut best: Option<(usize, &str)> = None;
    let mut refusals: BTreeMap<&str, usize> = BTreeMap::new();
    let mut n_nodes = 0;
    for node in nodes {
        n_nodes += 1;
        let here = pods_on(&node.name);
        match node.refuses(pod, here) {
            Some(reason) => *refusals.entry(reason).or_default() += 1,
            None => {
                let candidate = (here, node.name.as_str());
                best = Some(best.map_or(candidate, |best| best.min(candidate)));
            }
        }
    }
    best.map(|(_, name)| name).ok_or_else(|| {
        let reasons: Vec<String> = refusals
            .iter()
            .map(|(reason, n)| format!("{n} node(s) {reason}"))
            .collect();
        let reasons = if reasons.is_empty() {
            "no nodes".to_owned()
        } else {
            reasons.join(", ")
        };
        format!("0/{n_nodes} nodes are available: {reasons}.")
    })
}

fn repels(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let any = |text: Option<&str>| text.unwrap_or_default().is_empty();
    let effect = toleration.effect.as_deref();
    let key = toleration.key.as_deref();
    (any(effect) || effect == Some(taint.effect.as_str()))
        && match toleration.operator.as_deref().unwrap_or("Equal") {
            "Exists" => any(key) || key == Some(taint.key.as_str()),
            _ => {
                key == Some(taint.key.as_str())
                    && toleration.value.as_deref().unwrap_or_default()
                        == taint.value.as_deref().unwrap_or_default()
            }
        }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, spec: &Value, max_pods: &str) -> NodeView {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "zone": name } },
            "spec": spec,
            "status": { "allocatable": { "pods": max_pods } },
        }))
        .unwrap();
        NodeView::of(&node)
    }

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap()
    }

    #[test]
    fn a_pod_goes_to_the_least_loaded_node_that_takes_it() {
        let tainted = json!({ "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule" }] });
        let nodes = [
            node("a", &json!({}), "3"),
            node("b", &json!({}), "10"),
            node("c", &tainted, "10"),
            node("d", &json!({ "unschedulable": true }), "10"),
            node(
                "e",
                &json!({ "taints": [{ "key": "s", "effect": "PreferNoSchedule" }] }),
                "10",
            ),
        ];
        let counts = |name: &str| match name {
            "a" => 3,
            "b" => 2,
            "e" => 4,
            _ => 0,
        };
        let toleration = |value: Value| json!({ "containers": [], "tolerations": [value] });
        let cases = [
            (json!({ "containers": [] }), Ok("b")),
            (
                toleration(json!({ "key": "k", "value": "v", "effect": "NoSchedule" })),
                Ok("c"),
            ),
            (
                toleration(json!({ "key": "k", "operator": "Exists" })),
                Ok("c"),
            ),
            (toleration(json!({ "operator": "Exists" })), Ok("c")),
            (toleration(json!({ "key": "k", "value": "w" })), Ok("b")),
            (
                json!({ "containers": [], "nodeSelector": { "zone": "e" } }),
                Ok("e"),
            ),
            (
                json!({ "containers": [], "nodeSelector": { "zone": "a" } }),
                Err(
                    "0/5 nodes are available: 3 node(s) didn't match Pod's node \
                     affinity/selector, 1 node(s) had too many pods, 1 node(s) were \
                     unschedulable.",
                ),
            ),
        ];
        for (spec, expected) in cases {
            let pod = pod(&spec);
            let got = place(&pod, &nodes, counts);
            assert_eq!(
                got.as_ref().map_err(String::as_str).copied(),
                expected,
                "{spec}"
            );
        }
        let none = place(&pod(&json!({ "containers": [] })), &[], counts);
        assert_eq!(none, Err("0/0 nodes are available: no nodes.".to_owned()));
    }

    #[test]
    fn only_unbound_pods_of_the_default_scheduler_without_gates_wait() {
        let cases = [
            (json!({ "containers": [] }), true),
            (
                json!({ "containers": [], "schedulerName": "default-scheduler" }),
                true,
            ),
            (json!({ "containers": [], "schedulerName": "mine" }), false),
            (json!({ "containers": [], "nodeName": "a" }), false),
            (
                json!({ "containers": [], "schedulingGates": [{ "name": "g" }] }),
                false,
            ),
        ];
        for (spec, waits) in cases {
            assert_eq!(is_waiting(&pod(&spec)), waits, "{spec}");
        }
    }
}
