//! A JSON parser that notices keys which occur twice in one object.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A key that occurred twice in one JSON object of a request body; the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DuplicateField {
    /// Its path, e.g. `metadata.labels.a`.
    pub(crate) path: String,
}

impl fmt::Display for DuplicateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "duplicate field \"{}\"", self.path)
    }
}

/// Parses JSON and reports keys that occur twice in one object; the last one counts.
///
/// # Errors
/// The syntax error; also if anything but blanks follows the value.
pub(crate) fn parse_json(bytes: &[u8]) -> Result<(Value, Vec<DuplicateField>), serde_json::Error> {
    let duplicates = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let root = Node {
        parent: None,
        step: Step::Root,
        duplicates: &duplicates,
    };
    let value = root.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, duplicates.into_inner()))
}

/// How a value is reached from the one that holds it.
enum Step<'a> {
    Root,
    Field(&'a str),
    Item(usize),
}

/// A place in the document; its path is put together only when there is something to report.
struct Node<'a> {
    parent: Option<&'a Node<'a>>,
    step: Step<'a>,
    duplicates: &'a RefCell<Vec<DuplicateField>>,
}

impl Node<'_> {
    fn path(&self) -> String {
        let above = self.parent.map(Node::path).unwrap_or_default();
        match self.step {
            Step::Root => above,
            Step::Item(index) => format!("{above}[{index}]"),
            Step::Field(name) if above.is_empty() => name.to_owned(),
            Step::Field(name) => format!("{above}.{name}"),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let step = Step::Item(list.len());
            let node = Node {
                parent: Some(&self),
                step,
                duplicates: self.duplicates,
            };
            match items.next_element_seed(node)? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let node = Node {
                parent: Some(&self),
                step: Step::Field(&name),
                duplicates: self.duplicates,
            };
            if map.contains_key(&name) {
                self.duplicates
                    .borrow_mut()
                    .push(DuplicateField { path: node.path() });
            }
            let value = fields.next_value_seed(node)?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn w8_duplicate_keys_are_named_with_their_path_and_the_last_counts() {
        let text = br#"{"a":1,"m":{"l":[{"x":1,"x":2},{"x":3}],"k":{"y":1,"y":1}},"a":2}"#;
        let (value, duplicates) = parse_json(text).unwrap();
        assert_eq!(
            value,
            json!({"a": 2, "m": {"l": [{"x": 2}, {"x": 3}], "k": {"y": 1}}})
        );
        let texts: Vec<String> = duplicates.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "duplicate field \"m.l[0].x\"",
                "duplicate field \"m.k.y\"",
                "duplicate field \"a\"",
            ]
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::btree_map(".{0,4}", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_was_written_is_read_back(value in any_json()) {
            let text = value.to_string();
            let (read, duplicates) = parse_json(text.as_bytes()).unwrap();
            let usual: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read, usual);
            prop_assert_eq!(duplicates, Vec::new());
        }
    }

    #[test]
    fn values_are_those_of_the_usual_parser() {
        for text in [
            "null",
            "[1,-2,1.5,1e3,true,\"é\\n\",{}]",
            "18446744073709551615",
            "\"x\"",
        ] {
            let (value, _) = parse_json(text.as_bytes()).unwrap();
            assert_eq!(
                value,
                serde_json::from_str::<Value>(text).unwrap(),
                "{text}"
            );
        }
        for text in ["", "{", "{} {}", "[1,]"] {
            assert!(parse_json(text.as_bytes()).is_err(), "{text}");
        }
    }
}
