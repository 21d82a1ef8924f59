//! Nodes: the taint that a new node carries.

use serde_json::{Value, json};

use super::{Hooks, object_mut};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub(crate) const NODE: Hooks = Hooks {
    prepare_create: |object| {
        let spec = object_mut(object, "spec");
        let taints = spec.entry("taints").or_insert_with(|| json!([]));
        if let Some(taints) = taints.as_array_mut()
            && !taints
                .iter()
                .any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule")
        {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
        }
    },
    prepare_update: |object, _| {
        let empty = object
            .pointer("/spec/taints")
            .and_then(Value::as_array)
            .is_some_and(Vec::is_empty);
        if empty {
            object_mut(object, "spec").remove("taints");
        }
    },
    ..Hooks::NONE
};
