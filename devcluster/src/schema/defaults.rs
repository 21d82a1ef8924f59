//! Defaults of a schema: filling them in, and checking that they are valid themselves.

use serde_json::Value;

use super::cel::{self, Rules};
use super::field_error::FieldError;
use super::structural::{Schema, property_path};
use super::{path, prune, validate};

/// Drops nulls where null is neither allowed nor replaced by a default, then fills in defaults.
pub(super) fn apply(schema: &Schema, value: &mut Value) {
    drop_nulls(Some(schema), value);
    fill(schema, value);
}

fn is_refused_null(value: &Value, schema: &Schema) -> bool {
    value.is_null() && !schema.nullable
}

fn drop_nulls(schema: Option<&Schema>, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let schema = schema.and_then(|schema| schema.field(name));
            if schema.is_some_and(|s| is_refused_null(value, s) && s.default.is_none()) {
                return false;
            }
            drop_nulls(schema, value);
            true
        }),
        Value::Array(items) => {
            let schema = schema.and_then(|schema| schema.items.as_deref());
            for item in items {
                drop_nulls(schema, item);
            }
        }
        _ => {}
    }
}

fn fill(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else {
                    continue;
                };
                if fields
                    .get(name)
                    .is_none_or(|value| is_refused_null(value, property))
                {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(of) = schema.field(name) {
                    fill_value(of, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = schema.items.as_deref() {
                for item in items {
                    fill_value(of, item);
                }
            }
        }
        _ => {}
    }
}

fn fill_value(schema: &Schema, value: &mut Value) {
    if is_refused_null(value, schema)
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
    fill(schema, value);
}

/// What is wrong with the defaults in a schema; `at` is its place in the definition.
pub(super) fn problems(schema: &Schema, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(default) = &schema.default {
        let at = path::child(at, "default");
        if !prune::is_pruned(schema, default) {
            errors.push(FieldError::invalid(
                &at,
                default.clone(),
                "must not have unknown fields",
            ));
        }
        let found = validate::validate(schema, default, None, &at);
        if found.is_empty() {
            // Rules that do not compile are reported on their own.
            let rules = Rules::compile(schema, "", schema.embedded, &mut Vec::new());
            errors.extend(cel::validate(
                schema,
                &rules,
                &at,
                default,
                None,
                schema.embedded,
            ));
        } else {
            errors.extend(found);
        }
    }
    if let Some(items) = &schema.items {
        problems(items, &path::child(at, "items"), errors);
    }
    for (name, property) in &schema.properties {
        problems(property, &property_path(at, name), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c4_nulls_go_where_they_are_not_allowed_and_defaults_come() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "string", "default": "x"},
            "n": {"type": "string", "nullable": true, "default": "x"},
            "d": {"type": "string"},
            "o": {"type": "object", "default": {}, "properties": {
                "p": {"type": "integer", "default": 3}}},
            "l": {"type": "array", "items": {"type": "object", "properties": {
                "q": {"type": "boolean", "default": true}}}},
            "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {
                "r": {"type": "integer", "default": 1}}}},
        }}));
        let mut value = json!({"a": null, "n": null, "d": null, "l": [{}], "m": {"k": {}}});
        apply(&schema, &mut value);
        assert_eq!(
            value,
            json!({"a": "x", "n": null, "o": {"p": 3}, "l": [{"q": true}], "m": {"k": {"r": 1}}})
        );
    }

    #[test]
    fn c2_defaults_must_be_valid_themselves() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "string", "default": 1},
            "o": {"type": "object", "default": {"zz": 1}, "properties": {}},
            "r": {"type": "integer", "default": 1, "x-kubernetes-validations": [
                {"rule": "self > 1", "message": "too small"}]},
        }}));
        let mut errors = Vec::new();
        problems(&schema, "s", &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "s.properties[a].default: Invalid value: \"integer\":  in body must be of type \
                 string: \"integer\"",
                "s.properties[o].default: Invalid value: {\"zz\":1}: must not have unknown fields",
                "s.properties[r].default: Invalid value: 1: too small",
            ]
        );
    }
}
