//! CustomResourceDefinitions: defaults, validation, deletion of the instances first.

use serde_json::{Map, Value, json};

use super::{Hooks, object_mut};
use crate::{registry::metadata, schema::crd};

/// Keeps a definition until its instances are gone.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

pub(crate) const DEFINITION: Hooks = Hooks {
    default: crd::apply_defaults,
    prepare_create: |object| {
        let stored: Vec<Value> = object
            .pointer("/spec/versions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter(|version| version["storage"] == true)
            .map(|version| version["name"].clone())
            .collect();
        object["status"] = json!({
            "acceptedNames": {"kind": "", "plural": ""}, "conditions": [], "storedVersions": stored,
        });
    },
    prepare_update: |object, _| {
        let storage = object
            .pointer("/spec/versions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .find(|version| version["storage"] == true)
            .map(|version| version["name"].clone());
        let status = object_mut(object, "status");
        let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
        if let (Some(storage), Some(stored)) = (storage, stored.as_array_mut())
            && !stored.contains(&storage)
        {
            stored.push(storage);
        }
    },
    validate: |new, old| crd::validate(new, old),
    begin_delete: |object, stamp| {
        let mut finalizers: Vec<String> = metadata::finalizers(object)
            .into_iter()
            .map(str::to_owned)
            .collect();
        if !finalizers.iter().any(|name| name == CLEANUP_FINALIZER) {
            finalizers.push(CLEANUP_FINALIZER.to_owned());
        }
        metadata::set_finalizers(object, &finalizers);
        set_condition(
            object,
            "Terminating",
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
            stamp,
        );
    },
    ..Hooks::NONE
};

/// Sets a condition of a definition's status. The transition time moves only with the status.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    stamp: &str,
) {
    let conditions = object_mut(object, "status")
        .entry("conditions")
        .or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    let index = conditions
        .iter()
        .position(|condition| condition["type"] == kind);
    let mut condition: Map<String, Value> = match index {
        Some(index) => conditions[index].as_object().cloned().unwrap_or_default(),
        None => Map::new(),
    };
    if condition.get("status").and_then(Value::as_str) != Some(status) {
        condition.insert("lastTransitionTime".to_owned(), Value::from(stamp));
    }
    for (key, value) in [
        ("type", kind),
        ("status", status),
        ("reason", reason),
        ("message", message),
    ] {
        condition.insert(key.to_owned(), Value::from(value));
    }
    match index {
        Some(index) => conditions[index] = Value::Object(condition),
        None => conditions.push(Value::Object(condition)),
    }
}

/// Whether a condition of a definition is `True`.
pub(crate) fn has_condition(object: &Value, kind: &str) -> bool {
    object
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}
