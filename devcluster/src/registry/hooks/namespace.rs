//! Namespaces: phase, finalizers of the spec, names that stay.

use serde_json::{Value, json};

use super::{Hooks, object_mut, set_default, text_at};
use crate::registry::resource::metadata_mut;

/// The label that carries a namespace's own name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(crate) const NAMESPACE: Hooks = Hooks {
    default: |object| {
        let name = text_at(object, "/metadata/name").to_owned();
        let metadata = metadata_mut(object);
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut()
            && !name.is_empty()
        {
            labels.insert(NAME_LABEL.to_owned(), Value::from(name));
        }
        set_default(object_mut(object, "status"), "phase", "Active");
    },
    prepare_create: |object| {
        object["status"] = json!({"phase": "Active"});
        let spec = object_mut(object, "spec");
        let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
        if let Some(list) = finalizers.as_array_mut()
            && !list.iter().any(|name| name == "kubernetes")
        {
            list.push(Value::from("kubernetes"));
        }
    },
    // Only `/finalize` changes the finalizers of the spec.
    prepare_update: |object, old| object["spec"] = old["spec"].clone(),
    deny_delete: |object| {
        matches!(
            text_at(object, "/metadata/name"),
            "default" | "kube-system" | "kube-public"
        )
        .then_some("this namespace may not be deleted")
    },
    begin_delete: |object, _| {
        object_mut(object, "status").insert("phase".to_owned(), Value::from("Terminating"));
    },
    holds_deletion: |object| {
        object
            .pointer("/spec/finalizers")
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
    },
    ..Hooks::NONE
};
