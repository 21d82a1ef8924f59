//! Uniqueness in lists of type `set` and `map`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::field_error::FieldError;
use super::path::Place;
use super::structural::Schema;

/// Every repeated item of a set and every repeated key of a map list.
pub(super) fn problems(
    schema: &Schema,
    value: &Value,
    at: &Place<'_>,
    errors: &mut Vec<FieldError>,
) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(of) = schema.additional_schema() {
                    problems(of, value, &at.key(name), errors);
                }
                if let Some(property) = schema.properties.get(name) {
                    problems(property, value, &at.child(name), errors);
                }
            }
        }
        Value::Array(items) => {
            match schema.list_type.as_deref() {
                Some("set") => {
                    for index in repeated(items) {
                        let field = at.index(index).to_string();
                        errors.push(FieldError::duplicate(field, items[index].clone()));
                    }
                }
                Some("map") => map_problems(schema, items, at, errors),
                _ => {}
            }
            if let Some(of) = schema.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    problems(of, item, &at.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

fn map_problems(schema: &Schema, items: &[Value], at: &Place<'_>, errors: &mut Vec<FieldError>) {
    let is_entry = |item: &Value| item.is_object() || item.is_null();
    if let Some(index) = items.iter().position(|item| !is_entry(item)) {
        errors.push(FieldError::invalid(
            at.index(index).to_string(),
            items[index].clone(),
            "must be an object for an array of list-type map",
        ));
        return;
    }
    let keys: Vec<Value> = items
        .iter()
        .map(|item| {
            let key: Map<String, Value> = schema
                .list_map_keys
                .iter()
                .filter_map(|name| Some((name.clone(), item.get(name)?.clone())))
                .collect();
            Value::Object(key)
        })
        .collect();
    for index in repeated(&keys) {
        errors.push(FieldError::duplicate(
            at.index(index).to_string(),
            keys[index].clone(),
        ));
    }
}

/// Indexes of the second occurrence of each value that occurs more than once.
fn repeated(values: &[Value]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(values.len());
    let mut second = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            second.push(index);
        }
    }
    second
}
