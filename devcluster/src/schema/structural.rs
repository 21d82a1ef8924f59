//! A structural schema as a tree.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use super::{formats, path, re2};

/// One node of a schema: of its spine, or nested below `allOf`, `anyOf`, `oneOf` or `not`.
#[derive(Clone, Debug, Default)]
pub(super) struct Schema {
    pub(super) type_name: String,
    pub(super) properties: BTreeMap<String, Schema>,
    pub(super) items: Option<Box<Schema>>,
    pub(super) additional: Option<Additional>,
    pub(super) nullable: bool,
    pub(super) default: Option<Value>,
    pub(super) preserve_unknown: bool,
    pub(super) embedded: bool,
    pub(super) int_or_string: bool,
    pub(super) list_type: Option<String>,
    pub(super) list_map_keys: Vec<String>,
    pub(super) map_type: Option<String>,
    pub(super) rules: Vec<RuleSource>,
    pub(super) checks: Checks,
    /// Keywords that only matter to whether a nested node is structural.
    pub(super) title: bool,
    pub(super) description: bool,
}

/// `additionalProperties`.
#[derive(Clone, Debug)]
pub(super) enum Additional {
    /// Any value, or none.
    Allowed(bool),
    /// Values of this schema.
    Of(Box<Schema>),
}

/// Constraints on a value that say nothing about its structure.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    /// The format as written.
    pub(super) declared_format: String,
    /// The format if it is one that is checked for the node's type, else empty.
    pub(super) format: String,
    pub(super) maximum: Option<f64>,
    pub(super) exclusive_maximum: bool,
    pub(super) minimum: Option<f64>,
    pub(super) exclusive_minimum: bool,
    pub(super) multiple_of: Option<f64>,
    pub(super) max_length: Option<i64>,
    pub(super) min_length: Option<i64>,
    pub(super) pattern: Option<Pattern>,
    pub(super) max_items: Option<i64>,
    pub(super) min_items: Option<i64>,
    pub(super) unique_items: bool,
    pub(super) max_properties: Option<i64>,
    pub(super) min_properties: Option<i64>,
    pub(super) required: Vec<String>,
    pub(super) enumeration: Vec<Value>,
    pub(super) all_of: Vec<Schema>,
    pub(super) any_of: Vec<Schema>,
    pub(super) one_of: Vec<Schema>,
    pub(super) not: Option<Box<Schema>>,
}

/// A regular expression with its source; the source alone if it does not compile.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub(super) source: String,
    pub(super) compiled: Result<Regex, String>,
}

/// One entry of `x-kubernetes-validations` as written.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleSource {
    pub(super) rule: String,
    pub(super) message: String,
    pub(super) message_expression: String,
    pub(super) reason: Option<String>,
    pub(super) field_path: String,
    pub(super) optional_old_self: Option<bool>,
}

impl Schema {
    /// Reads a schema; keywords of the wrong type are as if absent, since the definition's own
    /// type was checked before.
    pub(super) fn parse(source: &Value) -> Self {
        let text = |key: &str| source.get(key).and_then(Value::as_str).unwrap_or_default();
        let flag = |key: &str| source.get(key).and_then(Value::as_bool).unwrap_or_default();
        let type_name = text("type").to_owned();
        let checks = Checks::parse(source, &type_name);
        Self {
            properties: source
                .get("properties")
                .and_then(Value::as_object)
                .map(|all| {
                    all.iter()
                        .map(|(k, v)| (k.clone(), Self::parse(v)))
                        .collect()
                })
                .unwrap_or_default(),
            items: source
                .get("items")
                .filter(|items| items.is_object())
                .map(|items| Box::new(Self::parse(items))),
            additional: source
                .get("additionalProperties")
                .and_then(|value| match value {
                    Value::Bool(allowed) => Some(Additional::Allowed(*allowed)),
                    Value::Object(_) => Some(Additional::Of(Box::new(Self::parse(value)))),
                    _ => None,
                }),
            nullable: flag("nullable"),
            default: source.get("default").filter(|v| !v.is_null()).cloned(),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            list_type: source
                .get("x-kubernetes-list-type")
                .and_then(Value::as_str)
                .map(str::to_owned),
            list_map_keys: strings(source.get("x-kubernetes-list-map-keys")),
            map_type: source
                .get("x-kubernetes-map-type")
                .and_then(Value::as_str)
                .map(str::to_owned),
            rules: source
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .map(|rules| rules.iter().map(RuleSource::parse).collect())
                .unwrap_or_default(),
            title: !text("title").is_empty(),
            description: !text("description").is_empty(),
            type_name,
            checks,
        }
    }

    /// The schema of a field's value: a property's, else that of additional properties.
    pub(super) fn field(&self, name: &str) -> Option<&Schema> {
        self.properties
            .get(name)
            .or_else(|| self.additional_schema())
    }

    /// The schema of additional properties, where there is one.
    pub(super) fn additional_schema(&self) -> Option<&Schema> {
        match &self.additional {
            Some(Additional::Of(schema)) => Some(schema),
            _ => None,
        }
    }

    /// The types as messages name them.
    pub(super) fn types(&self) -> &[&'static str] {
        if self.int_or_string {
            return &["integer", "string"];
        }
        match self.type_name.as_str() {
            "object" => &["object"],
            "array" => &["array"],
            "string" => &["string"],
            "integer" => &["integer"],
            "number" => &["number"],
            "boolean" => &["boolean"],
            "null" => &["null"],
            _ => &[],
        }
    }

    /// Whether the node says no more than its type.
    pub(super) fn is_only_type(&self, type_name: &str) -> bool {
        self.type_name == type_name
            && self.properties.is_empty()
            && self.items.is_none()
            && self.additional.is_none()
            && self.checks.is_empty()
    }
}

impl Checks {
    fn parse(source: &Value, type_name: &str) -> Self {
        let float = |key: &str| source.get(key).and_then(Value::as_f64);
        let count = |key: &str| source.get(key).and_then(Value::as_i64);
        let flag = |key: &str| source.get(key).and_then(Value::as_bool).unwrap_or_default();
        let schemas = |key: &str| {
            source
                .get(key)
                .and_then(Value::as_array)
                .map(|all| all.iter().map(Schema::parse).collect())
                .unwrap_or_default()
        };
        let declared_format = source
            .get("format")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let format = if formats::is_checked(&declared_format, type_name) {
            declared_format.clone()
        } else {
            String::new()
        };
        Self {
            declared_format,
            format,
            maximum: float("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            minimum: float("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            multiple_of: float("multipleOf"),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            pattern: source
                .get("pattern")
                .and_then(Value::as_str)
                .filter(|p| !p.is_empty())
                .map(Pattern::new),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            unique_items: flag("uniqueItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            required: strings(source.get("required")),
            enumeration: source
                .get("enum")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            all_of: schemas("allOf"),
            any_of: schemas("anyOf"),
            one_of: schemas("oneOf"),
            not: source
                .get("not")
                .map(|schema| Box::new(Schema::parse(schema))),
        }
    }

    /// Whether nothing is constrained.
    pub(super) fn is_empty(&self) -> bool {
        self.declared_format.is_empty()
            && self.maximum.is_none()
            && self.minimum.is_none()
            && self.multiple_of.is_none()
            && self.max_length.is_none()
            && self.min_length.is_none()
            && self.pattern.is_none()
            && self.enumeration.is_empty()
            && self.required.is_empty()
            && self.all_of.is_empty()
            && self.any_of.is_empty()
            && self.one_of.is_empty()
            && self.not.is_none()
    }
}

impl Pattern {
    fn new(source: &str) -> Self {
        let compiled = re2::compile(source);
        Self {
            source: source.to_owned(),
            compiled,
        }
    }
}

impl RuleSource {
    fn parse(source: &Value) -> Self {
        let text = |key: &str| {
            source
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: source
                .get("reason")
                .and_then(Value::as_str)
                .map(str::to_owned),
            field_path: text("fieldPath"),
            optional_old_self: source.get("optionalOldSelf").and_then(Value::as_bool),
        }
    }
}

fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .map(|all| {
            all.iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
}

/// Place of a property in a schema.
pub(super) fn property_path(at: &str, name: &str) -> String {
    path::key(&path::child(at, "properties"), name)
}
