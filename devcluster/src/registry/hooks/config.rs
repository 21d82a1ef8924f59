//! ConfigMaps and Secrets: write-only text data, types, immutability.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{Hooks, object_mut, set_default, text_at};
use crate::schema::FieldError;

/// The most bytes of data that a ConfigMap or Secret may hold.
const DATA_LIMIT: usize = 1024 * 1024;

pub(crate) const CONFIG_MAP: Hooks = Hooks {
    default: drop_empty_maps,
    validate: |new, old| {
        let mut errors = validate_keys(new, &["data", "binaryData"]);
        if let Some(old) = old {
            errors.extend(frozen(new, old, &["data", "binaryData"]));
        }
        errors
    },
    ..Hooks::NONE
};

pub(crate) const SECRET: Hooks = Hooks {
    default: |object| {
        if let Some(object) = object.as_object_mut() {
            set_default(object, "type", "Opaque");
        }
        let Some(Value::Object(texts)) =
            object.as_object_mut().and_then(|o| o.remove("stringData"))
        else {
            return drop_empty_maps(object);
        };
        let data = object_mut(object, "data");
        for (key, value) in texts {
            let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
            data.insert(key, Value::from(encoded));
        }
        drop_empty_maps(object);
    },
    validate: |new, old| {
        let mut errors = validate_keys(new, &["data"]);
        for (key, value) in members(new, "data") {
            if STANDARD.decode(value.as_str().unwrap_or_default()).is_err() {
                errors.push(FieldError::invalid(
                    format!("data[{key}]"),
                    "",
                    "must be base64",
                ));
            }
        }
        if let Some(old) = old {
            if text_at(new, "/type") != text_at(old, "/type") {
                errors.push(FieldError::invalid(
                    "type",
                    text_at(new, "/type"),
                    "field is immutable",
                ));
            }
            errors.extend(frozen(new, old, &["data"]));
        }
        errors
    },
    ..Hooks::NONE
};

fn members<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object
        .get(key)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

/// Empty maps are left out, as the real server's typed objects leave them out.
fn drop_empty_maps(object: &mut Value) {
    if let Some(object) = object.as_object_mut() {
        for key in ["data", "binaryData"] {
            if object
                .get(key)
                .is_some_and(|map| map.as_object().is_some_and(Map::is_empty))
            {
                object.remove(key);
            }
        }
    }
}

fn validate_keys(object: &Value, maps: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for map in maps {
        for (key, value) in members(object, map) {
            size += value.as_str().map_or(0, str::len);
            let valid = !key.is_empty()
                && key.len() <= 253
                && key
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c))
                && !matches!(key.as_str(), "." | "..")
                && !key.starts_with("..");
            if !valid {
                errors.push(FieldError::invalid(
                    format!("{map}[{key}]"),
                    key.as_str(),
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' \
                     (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                ));
            }
        }
    }
    if let [first, second] = maps {
        for (key, _) in members(object, first) {
            if object.get(*second).and_then(|map| map.get(key)).is_some() {
                errors.push(FieldError::invalid(
                    format!("{first}[{key}]"),
                    key.as_str(),
                    format!("duplicate of key present in {second}"),
                ));
            }
        }
    }
    if size > DATA_LIMIT {
        errors.push(FieldError::too_long("", 1024 * 1024));
    }
    errors
}

/// What an immutable object forbids.
fn frozen(new: &Value, old: &Value, maps: &[&str]) -> Vec<FieldError> {
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if new.get("immutable") != Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(
            "immutable",
            "field is immutable when `immutable` is set",
        ));
    }
    for map in maps {
        if new.get(*map) != old.get(*map) {
            errors.push(FieldError::forbidden(
                *map,
                "field is immutable when `immutable` is set",
            ));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_data_becomes_encoded_data_and_wins() {
        let mut secret = json!({"data": {"a": "eA==", "b": "eQ=="}, "stringData": {"a": "new"}});
        (SECRET.default)(&mut secret);
        assert_eq!(
            secret,
            json!({"type": "Opaque", "data": {"a": "bmV3", "b": "eQ=="}})
        );
    }

    #[test]
    fn types_and_frozen_data_cannot_change() {
        let old = json!({"type": "Opaque", "data": {"a": "eA=="}, "immutable": true});
        let cases = [
            (
                json!({"type": "x", "data": {"a": "eA=="}, "immutable": true}),
                vec!["type"],
            ),
            (
                json!({"type": "Opaque", "data": {"a": "eQ=="}, "immutable": true}),
                vec!["data"],
            ),
            (
                json!({"type": "Opaque", "data": {"a": "eA=="}}),
                vec!["immutable"],
            ),
            (old.clone(), vec![]),
        ];
        for (new, expected) in cases {
            let fields: Vec<String> = (SECRET.validate)(&new, Some(&old))
                .into_iter()
                .map(|error| error.field)
                .collect();
            assert_eq!(fields, expected, "{new}");
        }
    }
}
