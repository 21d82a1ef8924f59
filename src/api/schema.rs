//! The structural schema of the Proxy resource.
//!
//! The types say what each field is; here stands what the types cannot say: bounds of maps and of
//! types that belong to core/v1, the restriction of `metadata`, and the CEL rules of
//! [`rules`](super::rules), hung on their nodes. Optional fields are not nullable: the API server
//! drops an explicit null, so a rule's `has()` means "there is a value".

use std::borrow::Cow;

use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::defaults;
use super::rules::{self, Rule};
use super::v1alpha1::{Proxy, ProxySpec, ProxyStatus};

/// Most tags of one proxy.
const MAX_TAGS: u32 = 32;
/// Longest value of a tag or of a pod label.
const MAX_LABEL_VALUE: u32 = 63;
/// A tag's value: empty, or letters, digits, `-` and `_` between two letters or digits.
const TAG_VALUE: &str = "^([a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)?$";
/// A quantity of core/v1, such as 500m or 128Mi.
const QUANTITY: &str =
    r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$";

impl JsonSchema for Proxy {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Proxy".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut root = json_schema!({
            "type": "object",
            "description": "A forward proxy for crawlers: a machine the operator runs, or an endpoint of somebody else.",
            "required": ["spec"],
            "properties": {
                // Named so that a rule can point at it; the API server knows the rest of metadata.
                "metadata": { "type": "object", "properties": { "name": { "type": "string" } } },
                "spec": generator.subschema_for::<ProxySpec>(),
                "status": generator.subschema_for::<ProxyStatus>(),
            },
        });
        Plain.transform(&mut root);
        for rule in rules::ALL {
            attach(&mut root, rule);
        }
        root
    }
}

/// Hangs a rule on its node.
fn attach(root: &mut Schema, rule: &Rule) {
    let mut node = root.as_object_mut().expect("the root is an object schema");
    for step in rule.node.split('.').filter(|step| !step.is_empty()) {
        let (name, is_item) = match step.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (step, false),
        };
        let found = node
            .get_mut("properties")
            .and_then(|properties| properties.get_mut(name))
            .and_then(|field| {
                if is_item {
                    field.get_mut("items")
                } else {
                    Some(field)
                }
            })
            .and_then(Value::as_object_mut);
        node = found.expect("the node of each rule is a field of the schema");
    }
    let list = node
        .entry("x-kubernetes-validations")
        .or_insert_with(|| json!([]));
    let rule = serde_json::to_value(rule.to_kube()).expect("a rule is plain text");
    list.as_array_mut()
        .expect("the list of rules is made here")
        .push(rule);
}

/// Takes out what a structural schema has no use for.
///
/// An `Option` becomes the bare type, formats that Kubernetes does not know go, and the default
/// of an object is spelled by the defaults of its fields.
struct Plain;

impl Transform for Plain {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(node) = schema.as_object_mut() else {
            return;
        };
        drop_null_type(node);
        drop_null_alternative(node);
        let is_unsigned = |format: &Value| format.as_str().is_some_and(|f| f.starts_with("uint"));
        if node.get("format").is_some_and(is_unsigned) {
            node.remove("format");
        }
        match node.get_mut("default") {
            Some(Value::Object(default)) => default.clear(),
            Some(Value::Null) => {
                node.remove("default");
            }
            _ => {}
        }
        node.remove("title");
    }
}

/// `type: [T, null]` becomes `type: T`.
fn drop_null_type(node: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = node.get_mut("type") else {
        return;
    };
    types.retain(|name| name != "null");
    if let [only] = types.as_slice() {
        let only = only.clone();
        node.insert("type".to_owned(), only);
    }
}

/// `anyOf: [T, null]` becomes T, with the description of the field rather than of its type.
fn drop_null_alternative(node: &mut Map<String, Value>) {
    let Some(Value::Array(alternatives)) = node.get_mut("anyOf") else {
        return;
    };
    alternatives.retain(|alternative| alternative.get("type") != Some(&json!("null")));
    if let [Value::Object(only)] = alternatives.as_slice() {
        let only = only.clone();
        node.remove("anyOf");
        for (key, value) in only {
            node.entry(key).or_insert(value);
        }
    }
}

pub(super) fn tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_TAGS,
        "additionalProperties": {
            "type": "string", "maxLength": MAX_LABEL_VALUE, "pattern": TAG_VALUE,
        },
    })
}

pub(super) fn object_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 253,
        "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    })
}

fn secret_key(default: &str) -> Schema {
    json_schema!({
        "type": "string",
        "default": default,
        "minLength": 1,
        "maxLength": 253,
        "pattern": "^[-._a-zA-Z0-9]+$",
    })
}

pub(super) fn secret_key_ca(_: &mut SchemaGenerator) -> Schema {
    secret_key(defaults::CA_KEY)
}

pub(super) fn secret_key_username(_: &mut SchemaGenerator) -> Schema {
    secret_key(defaults::USERNAME_KEY)
}

pub(super) fn secret_key_password(_: &mut SchemaGenerator) -> Schema {
    secret_key(defaults::PASSWORD_KEY)
}

pub(super) fn secret_key_cloud_init(_: &mut SchemaGenerator) -> Schema {
    secret_key(defaults::CLOUD_INIT_KEY)
}

/// `ResourceRequirements` without `claims`, which need a pod that names them.
pub(super) fn resources(_: &mut SchemaGenerator) -> Schema {
    let quantities = |description: &str| {
        json!({
            "type": "object",
            "description": description,
            "maxProperties": 16,
            "additionalProperties": {
                "x-kubernetes-int-or-string": true,
                "maxLength": 32,
                "pattern": QUANTITY,
            },
        })
    };
    json_schema!({
        "type": "object",
        "properties": {
            "limits": quantities("Most that the container may use, such as memory: 128Mi."),
            "requests": quantities("What the container is given for sure, such as cpu: 50m."),
        },
    })
}

pub(super) fn node_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": {
            "type": "string",
            "maxLength": MAX_LABEL_VALUE,
            "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        },
    })
}

pub(super) fn tolerations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "properties": {
                "key": {
                    "type": "string",
                    "description": "Key of the taint; every key unless set.",
                    "maxLength": 317,
                },
                "operator": {
                    "type": "string",
                    "description": "Whether the value counts; Equal unless set.",
                    "enum": ["Exists", "Equal"],
                },
                "value": {
                    "type": "string",
                    "description": "Value of the taint.",
                    "maxLength": MAX_LABEL_VALUE,
                },
                "effect": {
                    "type": "string",
                    "description": "Effect of the taint; every effect unless set.",
                    "enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
                },
                "tolerationSeconds": {
                    "type": "integer",
                    "format": "int64",
                    "description": "Seconds that a NoExecute taint is put up with; for ever unless set.",
                },
            },
        },
    })
}

pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "Type of the condition.",
                    "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
                },
                "status": {
                    "type": "string",
                    "description": "Whether the condition holds.",
                    "enum": ["True", "False", "Unknown"],
                },
                "reason": {
                    "type": "string",
                    "description": "Why, in one word.",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "type": "string",
                    "description": "Why, in words.",
                    "maxLength": 32768,
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "description": "Generation of the spec that this was concluded from.",
                    "minimum": 0,
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When the status of the condition last changed.",
                },
            },
        },
    })
}
