//! Events: one store, two versions (`v1` and `events.k8s.io/v1`).

use serde_json::{Map, Value, json};

use super::{Conversion, Hooks, text_at};
use crate::{registry::resource::set_type, schema::FieldError};

pub(crate) const CORE_EVENT: Hooks = Hooks {
    default: |object| {
        // These members have no "absent" form in the core version.
        for key in ["source", "firstTimestamp", "lastTimestamp", "eventTime"] {
            if object.get(key).is_none() {
                object[key] = if key == "source" {
                    json!({})
                } else {
                    Value::Null
                };
            }
        }
        for key in ["reportingComponent", "reportingInstance"] {
            if object.get(key).is_none() {
                object[key] = Value::from("");
            }
        }
    },
    validate: |new, _| {
        let involved = text_at(new, "/involvedObject/namespace");
        let namespace = text_at(new, "/metadata/namespace");
        let fits = involved == namespace || (involved.is_empty() && namespace == "default");
        if fits {
            Vec::new()
        } else {
            vec![FieldError::invalid(
                "involvedObject.namespace",
                involved,
                "does not match event.namespace",
            )]
        }
    },
    ..Hooks::NONE
};

pub(crate) const EVENT: Hooks = Hooks {
    validate: |new, _| {
        let mut errors = Vec::new();
        let regarding = text_at(new, "/regarding/namespace");
        let namespace = text_at(new, "/metadata/namespace");
        if regarding != namespace && !(regarding.is_empty() && namespace == "default") {
            errors.push(FieldError::invalid(
                "regarding.namespace",
                regarding,
                "does not match event.namespace",
            ));
        }
        for key in [
            "reportingController",
            "reportingInstance",
            "action",
            "reason",
            "type",
        ] {
            if text_at(new, &format!("/{key}")).is_empty() {
                errors.push(FieldError::required(key, ""));
            }
        }
        if new.get("eventTime").is_none_or(Value::is_null) {
            errors.push(FieldError::required("eventTime", ""));
        }
        errors
    },
    conversion: Some(Conversion {
        to_storage,
        from_storage,
        field,
    }),
    ..Hooks::NONE
};

/// The members whose names differ: `events.k8s.io/v1`, then `v1`.
const RENAMED: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.insert(to.to_owned(), value);
    }
}

/// An `events.k8s.io/v1` event as a `v1` one.
pub(crate) fn to_storage(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        for (new, core) in RENAMED {
            rename(object, new, core);
        }
    }
    (CORE_EVENT.default)(value);
    set_type(value, "v1", "Event");
}

/// A `v1` event as an `events.k8s.io/v1` one.
pub(crate) fn from_storage(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        for (new, core) in RENAMED {
            rename(object, core, new);
        }
    }
    set_type(value, "events.k8s.io/v1", "Event");
}

fn field(path: &str) -> &str {
    match path {
        "regarding.kind" => "involvedObject.kind",
        "regarding.namespace" => "involvedObject.namespace",
        "regarding.name" => "involvedObject.name",
        "regarding.uid" => "involvedObject.uid",
        "regarding.apiVersion" => "involvedObject.apiVersion",
        "regarding.resourceVersion" => "involvedObject.resourceVersion",
        "regarding.fieldPath" => "involvedObject.fieldPath",
        "reportingController" => "reportingComponent",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_show_one_event() {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "reason": "r",
            "regarding": {"name": "p"}, "reportingController": "c", "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingInstance": "i",
        });
        let mut stored = event.clone();
        to_storage(&mut stored);
        assert_eq!(stored["involvedObject"]["name"], "p");
        assert_eq!(stored["message"], "n");
        assert_eq!(stored["apiVersion"], "v1");
        let mut back = stored;
        from_storage(&mut back);
        for (key, value) in event.as_object().unwrap() {
            assert_eq!(&back[key], value, "{key}");
        }
    }
}
