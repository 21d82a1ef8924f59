//! Type and metadata of resources embedded in a custom resource.

use serde_json::{Map, Value};

use super::field_error::FieldError;
use super::names;
use super::path::{self, Place};
use super::structural::Schema;

/// What is wrong with apiVersion, kind and metadata of every embedded resource.
pub(super) fn problems(
    schema: &Schema,
    value: &Value,
    at: &Place<'_>,
    errors: &mut Vec<FieldError>,
) {
    match value {
        Value::Object(fields) => {
            if schema.embedded {
                resource(fields, &at.to_string(), errors);
            }
            for (name, value) in fields {
                if let Some(property) = schema.properties.get(name) {
                    problems(property, value, &at.child(name), errors);
                } else if let Some(of) = schema.additional_schema() {
                    problems(of, value, &at.key(name), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = schema.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    problems(of, item, &at.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

fn resource(fields: &Map<String, Value>, at: &str, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let field = path::child(at, name);
        match fields.get(name) {
            None => errors.push(FieldError::required(field, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(field, "", "must not be empty"));
            }
            Some(Value::String(text)) if name == "kind" => {
                let found = names::dns_1035_label_problems(&text.to_lowercase());
                if !found.is_empty() {
                    let detail = format!(
                        "may have mixed case, but should otherwise match: {}",
                        found.join(",")
                    );
                    errors.push(FieldError::invalid(field, text.as_str(), detail));
                }
            }
            Some(Value::String(text)) => {
                if text.matches('/').count() > 1 {
                    let detail = format!("unexpected GroupVersion string: {text}");
                    errors.push(FieldError::invalid(field, text.as_str(), detail));
                }
            }
            Some(other) => {
                errors.push(FieldError::invalid(
                    field,
                    other.clone(),
                    "must be a string",
                ));
            }
        }
    }
    let Some(metadata) = fields.get("metadata") else {
        return;
    };
    let at = path::child(at, "metadata");
    let Some(metadata) = metadata.as_object() else {
        let detail = "json: cannot unmarshal into Go value of type v1.ObjectMeta";
        errors.push(FieldError::invalid(at, metadata.clone(), detail));
        return;
    };
    for (kind, check_value) in [("labels", true), ("annotations", false)] {
        let at = path::child(&at, kind);
        let entries = metadata
            .get(kind)
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        for (key, value) in entries {
            for problem in names::label_key_problems(key) {
                errors.push(FieldError::invalid(at.as_str(), key.as_str(), problem));
            }
            if let Some(text) = value.as_str().filter(|_| check_value) {
                for problem in names::label_value_problems(text) {
                    errors.push(FieldError::invalid(at.as_str(), text, problem));
                }
            }
        }
    }
}
