//! Columns and cells of the built-in kinds that have a printer of their own.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Column, age, list_at, number_at, pod, text_at};

type Cells = fn(&Value, Timestamp) -> Vec<Value>;

/// The columns of a kind and the function that fills them.
pub(super) fn columns_and_rows(group: &str, kind: &str) -> (Vec<Column>, Cells) {
    match (group, kind) {
        ("", "Pod") => (pod::columns(), pod::cells),
        ("", "Namespace") => (
            vec![
                name(),
                text("Status", "The status of the namespace"),
                age_column(),
            ],
            |object, now| {
                vec![
                    name_of(object),
                    text_at(object, &["status", "phase"]).into(),
                    age(object, now),
                ]
            },
        ),
        ("", "Node") => (node_columns(), node_cells),
        ("", "Secret") => (
            vec![
                name(),
                text(
                    "Type",
                    "Used to facilitate programmatic handling of secret data.",
                ),
                text("Data", "Number of keys of the secret data."),
                age_column(),
            ],
            |object, now| {
                vec![
                    name_of(object),
                    text_at(object, &["type"]).into(),
                    size(&object["data"]).into(),
                    age(object, now),
                ]
            },
        ),
        ("", "ConfigMap") => (
            vec![
                name(),
                text("Data", "Number of keys of the data."),
                age_column(),
            ],
            |object, now| {
                let keys = size(&object["data"]) + size(&object["binaryData"]);
                vec![name_of(object), keys.into(), age(object, now)]
            },
        ),
        ("", "ServiceAccount") => (vec![name(), age_column()], |object, now| {
            vec![name_of(object), age(object, now)]
        }),
        ("" | "events.k8s.io", "Event") => (event_columns(), event_cells),
        ("coordination.k8s.io", "Lease") => (
            vec![
                name(),
                text("Holder", "Identity of the holder of the lease."),
                age_column(),
            ],
            |object, now| {
                let holder = text_at(object, &["spec", "holderIdentity"]);
                vec![name_of(object), holder.into(), age(object, now)]
            },
        ),
        ("apps", "Deployment") => (deployment_columns(), deployment_cells),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            (definition_columns(), definition_cells)
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            (binding_columns(), binding_cells)
        }
        _ => (
            vec![
                name(),
                Column::new("Created At", "date", "Time of creation, in UTC."),
            ],
            |object, _| {
                let created = text_at(object, &["metadata", "creationTimestamp"]);
                vec![name_of(object), created.into()]
            },
        ),
    }
}

fn name() -> Column {
    Column::name()
}

fn text(name: &str, description: &str) -> Column {
    Column::new(name, "string", description)
}

pub(super) fn age_column() -> Column {
    text("Age", "Time since the object was created.")
}

pub(super) fn name_of(object: &Value) -> Value {
    text_at(object, &["metadata", "name"]).into()
}

pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    age::since(text_at(object, &["metadata", "creationTimestamp"]), now).into()
}

fn created_column() -> Column {
    Column::new("Created At", "date", "Time of creation, in UTC.")
}

fn created(object: &Value) -> Value {
    text_at(object, &["metadata", "creationTimestamp"]).into()
}

fn size(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

fn node_columns() -> Vec<Column> {
    let wide = |name: &str, description: &str| text(name, description).wide();
    vec![
        name(),
        text("Status", "The status of the node"),
        text("Roles", "The roles of the node"),
        age_column(),
        text("Version", "Version of the node agent."),
        wide("Internal-IP", "Address inside the cluster."),
        wide("External-IP", "Address outside the cluster."),
        wide("OS-Image", "Operating system of the node."),
        wide("Kernel-Version", "Kernel of the node."),
        wide("Container-Runtime", "Container runtime of the node."),
    ]
}

fn node_cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let ready = list_at(node, &["status", "conditions"])
        .iter()
        .find(|condition| condition["type"] == "Ready")
        .map_or("Unknown", |ready| {
            if ready["status"] == "True" {
                "Ready"
            } else {
                "NotReady"
            }
        });
    let status = if node["spec"]["unschedulable"] == true {
        format!("{ready},SchedulingDisabled")
    } else {
        ready.to_owned()
    };
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let roles: BTreeSet<&str> = labels
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None if key == "kubernetes.io/role" => value.as_str(),
                None => None,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    let roles: Vec<&str> = roles.into_iter().collect();
    let address = |kind: &str| {
        let found = list_at(node, &["status", "addresses"])
            .iter()
            .find(|address| address["type"] == kind)
            .map(|address| text_at(address, &["address"]));
        found.unwrap_or("<none>").to_owned()
    };
    let info = |key: &str| text_at(node, &["status", "nodeInfo", key]);
    let kernel = match info("architecture") {
        "" => or(info("kernelVersion"), "<unknown>").to_owned(),
        architecture => format!(
            "{} ({architecture})",
            or(info("kernelVersion"), "<unknown>")
        ),
    };
    vec![
        name_of(node),
        status.into(),
        or(&roles.join(","), "<none>").into(),
        age(node, now),
        info("kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        or(info("osImage"), "<unknown>").into(),
        kernel.into(),
        or(info("containerRuntimeVersion"), "<unknown>").into(),
    ]
}

fn event_columns() -> Vec<Column> {
    let name = name().wide();
    vec![
        text("Last Seen", "Time of the latest occurrence."),
        text("Type", "Normal or Warning."),
        text("Reason", "Short reason, for machines."),
        text("Object", "The object that the event is about."),
        text(
            "Subobject",
            "The part of the object that the event is about.",
        )
        .wide(),
        text("Source", "The component that reported the event.").wide(),
        text("Message", "Description, for people."),
        text("First Seen", "Time of the first occurrence.").wide(),
        text("Count", "Number of occurrences.").wide(),
        name,
    ]
}

/// Cells of an event in the form of either group: what one calls `involvedObject`, `message`
/// and `source` the other calls `regarding`, `note` and `deprecatedSource`.
fn event_cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let either = |names: [&str; 2], path: &[&str]| {
        names
            .iter()
            .map(|name| {
                let full: Vec<&str> = std::iter::once(*name).chain(path.iter().copied()).collect();
                text_at(event, &full)
            })
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    };
    let time = |text: &str| age::since(text, now);
    let first = match either(["firstTimestamp", "deprecatedFirstTimestamp"], &[]) {
        "" => time(text_at(event, &["eventTime"])),
        first => time(first),
    };
    let mut last = match either(["lastTimestamp", "deprecatedLastTimestamp"], &[]) {
        "" => first.clone(),
        last => time(last),
    };
    let mut count = number_at(event, &["count"]).max(number_at(event, &["deprecatedCount"]));
    if event["series"].is_object() {
        last = time(text_at(event, &["series", "lastObservedTime"]));
        count = number_at(event, &["series", "count"]);
    } else if count == 0 {
        count = 1;
    }
    let about = ["involvedObject", "regarding"];
    let kind = either(about, &["kind"]).to_lowercase();
    let object = match either(about, &["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let sources = ["source", "deprecatedSource"];
    let component = or(
        either(sources, &["component"]),
        either(["reportingComponent", "reportingController"], &[]),
    );
    let instance = or(
        either(sources, &["host"]),
        text_at(event, &["reportingInstance"]),
    );
    let source = match instance {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    };
    vec![
        last.into(),
        text_at(event, &["type"]).into(),
        text_at(event, &["reason"]).into(),
        object.into(),
        either(about, &["fieldPath"]).into(),
        source.into(),
        either(["message", "note"], &[]).trim().into(),
        first.into(),
        count.into(),
        name_of(event),
    ]
}

fn deployment_columns() -> Vec<Column> {
    vec![
        name(),
        text("Ready", "Number of the pod with ready state"),
        text("Up-to-date", "Number of pods of the wanted template."),
        text("Available", "Number of available pods."),
        age_column(),
        text("Containers", "Names of each container in the template.").wide(),
        text(
            "Images",
            "Images referenced by each container in the template.",
        )
        .wide(),
        text("Selector", "Label selector of the pods.").wide(),
    ]
}

fn deployment_cells(deployment: &Value, now: Timestamp) -> Vec<Value> {
    let status = |key: &str| number_at(deployment, &["status", key]);
    let wanted = number_at(deployment, &["spec", "replicas"]);
    let containers = list_at(deployment, &["spec", "template", "spec", "containers"]);
    let joined = |key: &str| {
        let all: Vec<&str> = containers.iter().map(|c| text_at(c, &[key])).collect();
        all.join(",")
    };
    vec![
        name_of(deployment),
        format!("{}/{wanted}", status("readyReplicas")).into(),
        status("updatedReplicas").into(),
        status("availableReplicas").into(),
        age(deployment, now),
        joined("name").into(),
        joined("image").into(),
        selector_text(&deployment["spec"]["selector"]).into(),
    ]
}

/// A label selector object in the form of a query parameter.
fn selector_text(selector: &Value) -> String {
    let mut terms: Vec<(&str, String)> = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| {
            (
                &**key,
                format!("{key}={}", value.as_str().unwrap_or_default()),
            )
        })
        .collect();
    for expression in list_at(selector, &["matchExpressions"]) {
        let key = text_at(expression, &["key"]);
        let mut values: Vec<&str> = list_at(expression, &["values"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let values = values.join(",");
        let term = match text_at(expression, &["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        terms.push((key, term));
    }
    if terms.is_empty() {
        return "<none>".to_owned();
    }
    terms.sort_by_key(|(key, _)| *key);
    let terms: Vec<String> = terms.into_iter().map(|(_, term)| term).collect();
    terms.join(",")
}

fn definition_columns() -> Vec<Column> {
    vec![
        name(),
        text("Scope", "Cluster/Namespaced"),
        text("Versions", "Served versions"),
        created_column(),
        text("Group", "API group").wide(),
        text("Kind", "CustomResource kind").wide(),
        text("ShortNames", "Short names").wide(),
        Column::new("Established", "boolean", "Established status").wide(),
    ]
}

fn definition_cells(definition: &Value, _: Timestamp) -> Vec<Value> {
    let spec = |path: &[&str]| {
        let path: Vec<&str> = std::iter::once("spec")
            .chain(path.iter().copied())
            .collect();
        Value::from(text_at(definition, &path))
    };
    let mut versions: Vec<String> = list_at(definition, &["spec", "versions"])
        .iter()
        .filter(|version| version["served"] == true)
        .map(|version| {
            let mark = if version["storage"] == true {
                "(storage)"
            } else {
                ""
            };
            format!("{}{mark}", text_at(version, &["name"]))
        })
        .collect();
    versions.sort_unstable();
    let short_names: Vec<&str> = list_at(definition, &["spec", "names", "shortNames"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let is_established = list_at(definition, &["status", "conditions"])
        .iter()
        .any(|c| c["type"] == "Established" && c["status"] == "True");
    vec![
        name_of(definition),
        spec(&["scope"]),
        versions.join(",").into(),
        created(definition),
        spec(&["group"]),
        spec(&["names", "kind"]),
        short_names.join(",").into(),
        is_established.into(),
    ]
}

fn binding_columns() -> Vec<Column> {
    vec![
        name(),
        text("Role", "The role that is granted."),
        age_column(),
        text("Users", "Users in the binding").wide(),
        text("Groups", "Groups in the binding").wide(),
        text("ServiceAccounts", "ServiceAccounts in the binding").wide(),
    ]
}

fn binding_cells(binding: &Value, now: Timestamp) -> Vec<Value> {
    let role = json!(format!(
        "{}/{}",
        text_at(binding, &["roleRef", "kind"]),
        text_at(binding, &["roleRef", "name"])
    ));
    let subjects = |kind: &str| {
        let names: Vec<String> = list_at(binding, &["subjects"])
            .iter()
            .filter(|subject| subject["kind"] == kind)
            .map(|subject| match text_at(subject, &["namespace"]) {
                "" => text_at(subject, &["name"]).to_owned(),
                namespace => format!("{namespace}/{}", text_at(subject, &["name"])),
            })
            .collect();
        Value::from(names.join(", "))
    };
    vec![
        name_of(binding),
        role,
        age(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n9_cells_are_those_of_the_real_printers() {
        let created = json!("2024-01-01T00:00:00Z");
        let meta = |name: &str| json!({"name": name, "creationTimestamp": created});
        let cases = [
            (
                ("", "Namespace"),
                json!({"metadata": meta("n"), "status": {"phase": "Active"}}),
                json!(["n", "Active", "60m"]),
            ),
            (
                ("", "Secret"),
                json!({"metadata": meta("s"), "type": "Opaque", "data": {"a": "", "b": ""}}),
                json!(["s", "Opaque", 2, "60m"]),
            ),
            (
                ("", "Node"),
                json!({"metadata": {"name": "n", "creationTimestamp": created,
                        "labels": {"node-role.kubernetes.io/worker": ""}},
                    "spec": {"unschedulable": true},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}],
                        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                        "nodeInfo": {"kubeletVersion": "v1", "kernelVersion": "6",
                            "architecture": "amd64"}}}),
                json!([
                    "n",
                    "Ready,SchedulingDisabled",
                    "worker",
                    "60m",
                    "v1",
                    "10.0.0.1",
                    "<none>",
                    "<unknown>",
                    "6 (amd64)",
                    "<unknown>"
                ]),
            ),
            (
                ("coordination.k8s.io", "Lease"),
                json!({"metadata": meta("l"), "spec": {"holderIdentity": "h"}}),
                json!(["l", "h", "60m"]),
            ),
            (
                ("", "Event"),
                json!({"metadata": {"name": "e"}, "type": "Warning", "reason": "R",
                    "message": " m ", "involvedObject": {"kind": "Pod", "name": "p"},
                    "source": {"component": "c", "host": "h"},
                    "firstTimestamp": "2024-01-01T00:00:00Z",
                    "lastTimestamp": "2024-01-01T00:59:00Z", "count": 3}),
                json!([
                    "60s", "Warning", "R", "pod/p", "", "c, h", "m", "60m", 3, "e"
                ]),
            ),
            (
                ("events.k8s.io", "Event"),
                json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "R", "note": "m",
                    "regarding": {"kind": "Pod", "name": "p"}, "reportingController": "c",
                    "eventTime": "2024-01-01T00:59:50.000000Z"}),
                json!(["10s", "Normal", "R", "pod/p", "", "c", "m", "10s", 1, "e"]),
            ),
            (
                ("apps", "Deployment"),
                json!({"metadata": meta("d"), "spec": {"replicas": 2,
                        "selector": {"matchLabels": {"a": "b"}},
                        "template": {"spec": {"containers": [
                            {"name": "x", "image": "i"}, {"name": "y", "image": "j"}]}}},
                    "status": {"readyReplicas": 1, "updatedReplicas": 2}}),
                json!(["d", "1/2", 2, 0, "60m", "x,y", "i,j", "a=b"]),
            ),
            (
                ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
                json!({"metadata": meta("b"), "roleRef": {"kind": "ClusterRole", "name": "r"},
                    "subjects": [
                        {"kind": "User", "name": "u"},
                        {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]}),
                json!(["b", "ClusterRole/r", "60m", "u", "", "n/s"]),
            ),
        ];
        let now = "2024-01-01T01:00:00Z".parse().unwrap();
        for ((group, kind), object, expected) in cases {
            let (columns, cells) = columns_and_rows(group, kind);
            let cells = cells(&object, now);
            assert_eq!(columns.len(), cells.len(), "{kind}");
            assert_eq!(Value::from(cells), expected, "{group} {kind}");
        }
    }
}
