//! FieldsV1: the JSON form of a set of fields.
//!
//! A key names an element: `f:` and a field's name, `k:` and the JSON of key fields, `v:` and the JSON of a
//! value, `i:` and an index. Below it stand the elements beneath; `.` says that the element itself is a
//! member, which needs no saying where nothing stands below.

use serde_json::{Map, Value};

use super::{
    path::{PathElement, Scalar},
    set::{FieldSet, Node},
};

/// What is no FieldsV1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not FieldsV1: {0}")]
pub(super) struct Unreadable(String);

/// A set as FieldsV1.
pub(super) fn write(set: &FieldSet) -> Value {
    Value::Object(
        set.nodes()
            .iter()
            .map(|node| (key(&node.element), body(node)))
            .collect(),
    )
}

fn body(node: &Node) -> Value {
    let mut below = match write(&node.children) {
        Value::Object(below) => below,
        _ => Map::new(),
    };
    if node.member && !below.is_empty() {
        below.insert(".".to_owned(), Value::Object(Map::new()));
    }
    Value::Object(below)
}

fn key(element: &PathElement) -> String {
    match element {
        PathElement::Field(name) => format!("f:{name}"),
        PathElement::Key(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), value.0))
                .collect();
            format!("k:{{{}}}", fields.join(","))
        }
        PathElement::Value(value) => format!("v:{}", value.0),
        PathElement::Index(index) => format!("i:{index}"),
    }
}

/// Reads FieldsV1. Elements of a kind that is not known are left out, as the real server does.
///
/// # Errors
/// A key without a prefix, or one whose rest is not what its prefix says.
pub(super) fn read(fields: &Value) -> Result<FieldSet, Unreadable> {
    let Some(fields) = fields.as_object() else {
        return Err(Unreadable(format!("{fields} is no object")));
    };
    let mut nodes = Vec::with_capacity(fields.len());
    for (key, below) in fields {
        if key == "." {
            continue;
        }
        if let Some(element) = element(key)? {
            let children = read(below)?;
            let member = children.is_empty() || below.get(".").is_some();
            nodes.push(Node {
                element,
                member,
                children,
            });
        }
    }
    Ok(FieldSet::of_nodes(nodes))
}

fn element(key: &str) -> Result<Option<PathElement>, Unreadable> {
    let wrong = || Unreadable(format!("the key {key:?} names no path element"));
    let (kind, rest) = key.split_once(':').ok_or_else(wrong)?;
    let json = || serde_json::from_str::<Value>(rest).map_err(|_| wrong());
    Ok(Some(match kind {
        "f" => PathElement::Field(rest.to_owned()),
        "v" => PathElement::Value(Scalar(json()?)),
        "i" => PathElement::Index(rest.parse().map_err(|_| wrong())?),
        "k" => {
            let Value::Object(fields) = json()? else {
                return Err(wrong());
            };
            let mut fields: Vec<(String, Scalar)> = fields
                .into_iter()
                .map(|(name, value)| (name, Scalar(value)))
                .collect();
            fields.sort();
            PathElement::Key(fields)
        }
        _ if kind.len() == 1 => return Ok(None),
        _ => return Err(wrong()),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::{super::set::tests::any_set, *};

    proptest! {
        #[test]
        fn what_is_written_is_read_back(set in any_set()) {
            prop_assert_eq!(read(&write(&set)), Ok(set));
        }
    }

    #[test]
    fn the_forms_are_those_of_the_real_server() {
        let recorded = json!({
            "f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {
                "f:ports": {
                    ".": {},
                    "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}},
                },
                "f:replicas": {},
            },
        });
        let set = read(&recorded).unwrap();
        assert_eq!(write(&set), recorded);
        let paths: Vec<String> = set
            .paths()
            .iter()
            .map(|path| super::super::path::text(path))
            .collect();
        assert_eq!(
            paths,
            [
                ".metadata.finalizers",
                ".metadata.finalizers[=\"a/b\"]",
                ".spec.ports",
                ".spec.replicas",
                ".spec.ports[port=80,protocol=\"TCP\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].port",
                ".spec.ports[port=80,protocol=\"TCP\"].protocol",
            ]
        );
    }

    #[test]
    fn unknown_kinds_are_skipped_and_broken_keys_refused() {
        let set = read(&json!({"z:new": {"f:a": {}}, "f:b": {}})).unwrap();
        assert_eq!(write(&set), json!({"f:b": {}}));
        for broken in [
            json!({"spec": {}}),
            json!({"k:[1]": {}}),
            json!({"v:{": {}}),
            json!({"i:x": {}}),
            json!([1]),
        ] {
            assert!(read(&broken).is_err(), "{broken}");
        }
    }
}
