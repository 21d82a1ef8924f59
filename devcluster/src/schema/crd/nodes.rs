//! Keywords that a schema may not use, or only together, at any of its nodes.

use serde_json::{Map, Value, json};

use super::text;
use super::version::whole_schema_error;
use crate::schema::cel;
use crate::schema::field_error::FieldError;
use crate::schema::path;
use crate::schema::structural::{Schema, property_path};

/// Keywords that may stand at the root beside a status subresource, as errors list them.
const ROOT_KEYWORDS: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    (
        "x-kubernetes-preserve-unknown-fields",
        "XPreserveUnknownFields",
    ),
    ("x-kubernetes-validations", "XValidations"),
];

/// The root may say little where the status is validated on its own.
pub(super) fn root_beside_status(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let type_name = text(schema, "type");
    if !type_name.is_empty() && type_name != "object" {
        errors.push(FieldError::invalid(
            path::child(at, "type"),
            type_name,
            "only \"object\" is allowed as the type at the root of the schema if the status \
             subresource is enabled",
        ));
        return;
    }
    let allowed = |keyword: &str| ROOT_KEYWORDS.iter().any(|(known, _)| *known == keyword);
    let is_set = |value: &Value| !(value.is_null() || *value == json!(false));
    let fields = schema.as_object().into_iter().flatten();
    if fields
        .filter(|(_, value)| is_set(value))
        .any(|(keyword, _)| !allowed(keyword))
    {
        let names: Vec<&str> = ROOT_KEYWORDS.iter().map(|(_, name)| *name).collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is \
             enabled",
            names.join(" ")
        );
        errors.push(whole_schema_error(at, schema, &detail));
    }
}

/// Where a node stands, as far as rules depend on it.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    is_root: bool,
    in_metadata: bool,
    /// Why a default may not stand here.
    no_default: Option<&'a str>,
}

/// Checks the root and every node below it.
pub(super) fn check(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let place = Place {
        is_root: true,
        ..Place::default()
    };
    if let Some(schema) = schema.as_object() {
        node(schema, at, place, errors);
    }
}

fn node(schema: &Map<String, Value>, at: &str, place: Place<'_>, errors: &mut Vec<FieldError>) {
    unsupported(schema, at, place, errors);
    if schema.get("uniqueItems") == Some(&json!(true)) {
        errors.push(FieldError::forbidden(
            path::child(at, "uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    children(schema, at, place, errors);
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(false)) {
        let field = path::child(at, "x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(
            field,
            false,
            "must be true or undefined",
        ));
    }
    collection_types(schema, at, errors);
    list_map_keys(schema, at, errors);
    rules(schema, at, errors);
}

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

fn unsupported(
    schema: &Map<String, Value>,
    at: &str,
    place: Place<'_>,
    errors: &mut Vec<FieldError>,
) {
    let type_name = schema
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !type_name.is_empty() && !TYPES.contains(&type_name) {
        errors.push(FieldError::not_supported(
            path::child(at, "type"),
            type_name,
            &TYPES,
        ));
    }
    if let Some(reason) = place.no_default
        && schema.get("default").is_some_and(|value| !value.is_null())
    {
        let detail = format!("must not be set {reason}");
        errors.push(FieldError::forbidden(path::child(at, "default"), detail));
    }
    let unknown = [
        "id",
        "additionalItems",
        "patternProperties",
        "definitions",
        "dependencies",
        "$ref",
    ];
    for keyword in unknown {
        if schema.get(keyword).is_some_and(|value| !value.is_null()) {
            let detail = format!("{keyword} is not supported");
            errors.push(FieldError::forbidden(path::child(at, keyword), detail));
        }
    }
    if type_name == "null" {
        errors.push(FieldError::forbidden(
            path::child(at, "type"),
            "type cannot be set to null, use nullable as an alternative",
        ));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(path::child(at, "items"), detail));
    }
    if place.in_metadata && schema.get("x-kubernetes-embedded-resource") == Some(&json!(true)) {
        errors.push(FieldError::forbidden(
            path::child(at, "x-kubernetes-embedded-resource"),
            "must not be used inside of resource meta",
        ));
    }
}

fn children(schema: &Map<String, Value>, at: &str, place: Place<'_>, errors: &mut Vec<FieldError>) {
    let below = Place {
        is_root: false,
        ..place
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    if let Some(additional) = schema.get("additionalProperties") {
        let at = path::child(at, "additionalProperties");
        if properties.is_some_and(|all| !all.is_empty()) && *additional != json!(true) {
            errors.push(FieldError::forbidden(
                &at,
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if let Some(of) = additional.as_object() {
            let mut place = below;
            if place.in_metadata {
                place.no_default = Some("inside additionalProperties applying to object metadata");
            }
            node(of, &at, place, errors);
        }
    }
    let place_is_root = place.is_root;
    let is_resource =
        place_is_root || schema.get("x-kubernetes-embedded-resource") == Some(&json!(true));
    for (name, property) in properties.into_iter().flatten() {
        let Some(property) = property.as_object() else {
            continue;
        };
        let mut place = below;
        let reason = format!("in top-level {name}");
        if is_resource && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            place.in_metadata = true;
            if place_is_root {
                place.no_default = Some(&reason);
            }
        }
        node(property, &property_path(at, name), place, errors);
    }
    if let Some(not) = schema.get("not").and_then(Value::as_object) {
        node(not, &path::child(at, "not"), below, errors);
    }
    for keyword in ["allOf", "oneOf", "anyOf"] {
        let all = schema.get(keyword).and_then(Value::as_array);
        for (index, nested) in all.into_iter().flatten().enumerate() {
            if let Some(nested) = nested.as_object() {
                node(
                    nested,
                    &path::index(&path::child(at, keyword), index),
                    below,
                    errors,
                );
            }
        }
    }
    if let Some(items) = schema.get("items").and_then(Value::as_object) {
        node(items, &path::child(at, "items"), below, errors);
    }
}

fn collection_types(schema: &Map<String, Value>, at: &str, errors: &mut Vec<FieldError>) {
    let type_name = schema
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let kinds: [(&str, &str, &[&str]); 2] = [
        ("x-kubernetes-map-type", "object", &["atomic", "granular"]),
        ("x-kubernetes-list-type", "array", &["atomic", "set", "map"]),
    ];
    for (keyword, wanted, allowed) in kinds {
        let Some(value) = schema.get(keyword).and_then(Value::as_str) else {
            continue;
        };
        if type_name != wanted {
            let field = path::child(at, "type");
            let detail = format!("must be {wanted} if {keyword} is specified");
            errors.push(if type_name.is_empty() {
                FieldError::required(field, detail)
            } else {
                FieldError::invalid(field, type_name, detail)
            });
        } else if value == "set" && keyword == "x-kubernetes-list-type" {
            set_items(schema.get("items").unwrap_or(&Value::Null), at, errors);
        }
        if !allowed.contains(&value) {
            errors.push(FieldError::not_supported(
                path::child(at, keyword),
                value,
                allowed,
            ));
        }
    }
}

fn set_items(items: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let at = path::child(at, "items");
    let list_type = &items["x-kubernetes-list-type"];
    match text(items, "type") {
        "array" if !(list_type.is_null() || *list_type == json!("atomic")) => {
            let field = path::child(&at, "x-kubernetes-list-type");
            errors.push(FieldError::invalid(field, list_type.clone(), detail));
        }
        "object" if items["x-kubernetes-map-type"] != json!("atomic") => {
            let field = path::child(&at, "x-kubernetes-map-type");
            errors.push(FieldError::invalid(field, list_type.clone(), detail));
        }
        _ => {}
    }
}

fn list_map_keys(schema: &Map<String, Value>, at: &str, errors: &mut Vec<FieldError>) {
    let list_type = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
    let keys_value = schema
        .get("x-kubernetes-list-map-keys")
        .cloned()
        .unwrap_or(json!([]));
    let keys: Vec<&str> = keys_value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !keys.is_empty() && list_type != Some("map") {
        let field = path::child(at, "x-kubernetes-list-type");
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list_type {
            None => FieldError::required(field, detail),
            Some(other) => FieldError::invalid(field, other, detail),
        });
    }
    let items = schema.get("items").filter(|items| items.is_object());
    if list_type == Some("map") {
        let at_keys = path::child(at, "x-kubernetes-list-map-keys");
        if keys.is_empty() {
            let detail = "must not be empty if x-kubernetes-list-type is map";
            errors.push(FieldError::required(&at_keys, detail));
        }
        match items {
            None => errors.push(FieldError::required(
                path::child(at, "items"),
                "must have a schema if x-kubernetes-list-type is map",
            )),
            Some(items) if text(items, "type") != "object" => errors.push(FieldError::invalid(
                format!("{at}.items.type"),
                text(items, "type"),
                "must be object if parent array's x-kubernetes-list-type is map",
            )),
            Some(items) => key_properties(&keys, &keys_value, items, at, &at_keys, errors),
        }
    }
    let (Some(list_type @ ("set" | "map")), Some(items)) = (list_type, items) else {
        return;
    };
    if items["nullable"] == true {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(
            format!("{at}.items.nullable"),
            detail,
        ));
    }
    if list_type == "map" {
        let required = items["required"].as_array();
        for key in keys {
            let Some(property) = items["properties"].get(key) else {
                continue;
            };
            let at = property_path(&path::child(at, "items"), key);
            let is_required = required.is_some_and(|all| all.iter().any(|name| name == key));
            if !is_required && property["default"].is_null() {
                errors.push(FieldError::required(
                    path::child(&at, "default"),
                    "this property is in x-kubernetes-list-map-keys, so it must have a default or \
                     be a required property",
                ));
            }
            if property["nullable"] == true {
                errors.push(FieldError::forbidden(
                    path::child(&at, "nullable"),
                    "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
                ));
            }
        }
    }
}

fn key_properties(
    keys: &[&str],
    keys_value: &Value,
    items: &Value,
    at: &str,
    at_keys: &str,
    errors: &mut Vec<FieldError>,
) {
    for (index, key) in keys.iter().enumerate() {
        match items["properties"].get(key) {
            Some(property) if matches!(text(property, "type"), "array" | "object") => {
                errors.push(FieldError::invalid(
                    format!("{}.type", property_path(&path::child(at, "items"), key)),
                    text(items, "type"),
                    "must be a scalar type if parent array's x-kubernetes-list-type is map",
                ));
            }
            Some(_) => {}
            None => errors.push(FieldError::invalid(
                at_keys,
                keys_value.clone(),
                "entries must all be names of item properties",
            )),
        }
        if keys[..index].contains(key) {
            let detail = "must not contain duplicate entries";
            errors.push(FieldError::invalid(at_keys, keys_value.clone(), detail));
        }
    }
}

const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

fn rules(schema: &Map<String, Value>, at: &str, errors: &mut Vec<FieldError>) {
    let rules = schema
        .get("x-kubernetes-validations")
        .and_then(Value::as_array);
    let Some(rules) = rules.filter(|rules| !rules.is_empty()) else {
        return;
    };
    let parsed = Schema::parse(&Value::Object(schema.clone()));
    for (index, rule) in rules.iter().enumerate() {
        let at = path::index(&path::child(at, "x-kubernetes-validations"), index);
        let source = text(rule, "rule").trim();
        let message = text(rule, "message");
        let breaks = |text: &str| text.contains(['\n', '\r']);
        if source.is_empty() {
            errors.push(FieldError::required(
                path::child(&at, "rule"),
                "rule is not specified",
            ));
        } else if !message.is_empty() && message.trim().is_empty() {
            let field = path::child(&at, "message");
            errors.push(FieldError::invalid(
                field,
                message,
                "must be non-empty if specified",
            ));
        } else if breaks(message.trim()) {
            let field = path::child(&at, "message");
            errors.push(FieldError::invalid(
                field,
                message,
                "must not contain line breaks",
            ));
        } else if breaks(source) && message.is_empty() {
            errors.push(FieldError::required(
                path::child(&at, "message"),
                "message must be specified if rule contains line breaks",
            ));
        }
        let expression = text(rule, "messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            errors.push(FieldError::required(
                path::child(&at, "messageExpression"),
                "messageExpression must be non-empty if specified",
            ));
        }
        if let Some(reason) = rule["reason"].as_str().filter(|r| !REASONS.contains(r)) {
            errors.push(FieldError::not_supported(
                path::child(&at, "reason"),
                reason,
                &REASONS,
            ));
        }
        let field_path = text(rule, "fieldPath");
        let field = path::child(&at, "fieldPath");
        if !field_path.is_empty() && field_path.trim().is_empty() {
            let detail = "must be non-empty if specified";
            errors.push(FieldError::invalid(&field, field_path, detail));
        }
        if breaks(field_path) {
            let detail = "must not contain line breaks";
            errors.push(FieldError::invalid(&field, field_path, detail));
        }
        if !field_path.is_empty() && !cel::is_field_path(field_path, &parsed) {
            errors.push(FieldError::invalid(
                &field,
                field_path,
                "must be a valid path",
            ));
        }
    }
}
