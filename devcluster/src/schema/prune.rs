//! Pruning: dropping what a schema does not know.

use serde_json::{Map, Value};

use super::path::Place;
use super::structural::{Additional, Schema};

/// Fields that every resource has, whether or not its schema says so.
const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Prunes a whole object; returns the sorted paths of what was dropped.
pub(super) fn object(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    prune(object, Some(schema), true, &Place::start(""), &mut dropped);
    dropped.sort_unstable();
    dropped
}

/// Whether pruning a value that is no resource would drop anything.
pub(super) fn is_pruned(schema: &Schema, value: &Value) -> bool {
    let mut copy = value.clone();
    prune(
        &mut copy,
        Some(schema),
        schema.embedded,
        &Place::start(""),
        &mut Vec::new(),
    );
    copy == *value
}

fn prune(
    value: &mut Value,
    schema: Option<&Schema>,
    is_resource: bool,
    at: &Place<'_>,
    dropped: &mut Vec<String>,
) {
    if let Some(schema) = schema.filter(|schema| schema.preserve_unknown) {
        preserve(value, schema, is_resource, at, dropped);
        return;
    }
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                if is_resource && META_FIELDS.contains(&name.as_str()) {
                    return true;
                }
                let child = at.child(name);
                let Some(schema) = schema else {
                    dropped.push(child.to_string());
                    return false;
                };
                if let Some(property) = schema.properties.get(name) {
                    prune(value, Some(property), property.embedded, &child, dropped);
                    return true;
                }
                match &schema.additional {
                    Some(Additional::Of(of)) => {
                        prune(value, Some(of), of.embedded, &child, dropped);
                        true
                    }
                    Some(Additional::Allowed(_)) => {
                        prune(value, None, false, &child, dropped);
                        true
                    }
                    None => {
                        dropped.push(child.to_string());
                        false
                    }
                }
            });
        }
        Value::Array(items) => {
            let of = schema.and_then(|schema| schema.items.as_deref());
            let embedded = of.is_some_and(|of| of.embedded);
            for (index, item) in items.iter_mut().enumerate() {
                prune(item, of, embedded, &at.index(index), dropped);
            }
        }
        _ => {}
    }
}

/// Keeps unknown fields but prunes below the known ones.
fn preserve(
    value: &mut Value,
    schema: &Schema,
    is_resource: bool,
    at: &Place<'_>,
    dropped: &mut Vec<String>,
) {
    match value {
        Value::Object(fields) => preserve_fields(fields, schema, is_resource, at, dropped),
        Value::Array(items) => {
            if let Some(of) = schema.items.as_deref() {
                for (index, item) in items.iter_mut().enumerate() {
                    preserve(item, of, of.embedded, &at.index(index), dropped);
                }
            }
        }
        _ => {}
    }
}

fn preserve_fields(
    fields: &mut Map<String, Value>,
    schema: &Schema,
    is_resource: bool,
    at: &Place<'_>,
    dropped: &mut Vec<String>,
) {
    for (name, value) in fields {
        if is_resource && META_FIELDS.contains(&name.as_str()) {
            continue;
        }
        if let Some(of) = schema.field(name) {
            prune(value, Some(of), of.embedded, &at.child(name), dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c4_unknown_fields_are_dropped_and_named() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "array", "items": {"type": "object", "properties": {
                    "b": {"type": "string"}}}},
                "m": {"type": "object", "additionalProperties": {"type": "object"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"k": {"type": "object"}}},
                "pod": {"type": "object", "x-kubernetes-embedded-resource": true,
                    "properties": {"spec": {"type": "object"}}},
            }},
        }}));
        let mut value = json!({
            "apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "labels": {"x": "y"}},
            "zz": 1,
            "spec": {
                "a": [{"b": "x", "c": 1}],
                "m": {"k": {"x": 1}},
                "free": {"any": {"thing": 1}, "k": {"gone": 1}},
                "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}, "no": 1},
            },
        });
        let dropped = object(&schema, &mut value);
        assert_eq!(
            dropped,
            [
                "spec.a[0].c",
                "spec.free.k.gone",
                "spec.m.k.x",
                "spec.pod.no",
                "zz"
            ]
        );
        assert_eq!(
            value,
            json!({
                "apiVersion": "g/v1", "kind": "K",
                "metadata": {"name": "n", "labels": {"x": "y"}},
                "spec": {
                    "a": [{"b": "x"}],
                    "m": {"k": {}},
                    "free": {"any": {"thing": 1}, "k": {}},
                    "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}},
                },
            })
        );
    }
}
