//! Paths to fields and list items, in the order and the texts of the real server.

use std::{cmp::Ordering, fmt};

use serde_json::Value;

use crate::schema::gofmt;

/// One step of a path.
///
/// Steps order as they do in the real server: names, keys, values, indexes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathElement {
    /// A field of a struct, or a key of a map.
    Field(String),
    /// The item of a list of type `map` whose key fields have these values; sorted by name.
    Key(Vec<(String, Scalar)>),
    /// The item of a list of type `set` that has this value.
    Value(Scalar),
    /// The item of an atomic list at this place.
    Index(i64),
}

/// A value that identifies an item, ordered as in the real server: numbers, texts, flags.
///
/// Whole and floating numbers compare by what they count, so `1` is `1.0`.
#[derive(Clone, Debug)]
pub(super) struct Scalar(pub(super) Value);

impl Scalar {
    fn rank(&self) -> u8 {
        match self.0 {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => {
                    let float = |n: &serde_json::Number| n.as_f64().unwrap_or_default();
                    float(a).total_cmp(&float(b))
                }
            },
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (a, b) => self
                .rank()
                .cmp(&other.rank())
                .then_with(|| a.to_string().cmp(&b.to_string())),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scalar {}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Value::String(text) => f.write_str(&gofmt::quote(text)),
            other => f.write_str(&gofmt::plain(other)),
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={value}")?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// The text of a path, e.g. `.spec.containers[name="a"].image`.
pub(super) fn text(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_read_as_the_real_server_writes_them() {
        let key = |name: &str, value: Value| (name.to_owned(), Scalar(value));
        let path = [
            PathElement::Field("spec".into()),
            PathElement::Key(vec![
                key("port", json!(80)),
                key("protocol", json!("T\"CP")),
            ]),
            PathElement::Value(Scalar(json!("a/b"))),
            PathElement::Index(3),
        ];
        assert_eq!(
            text(&path),
            ".spec[port=80,protocol=\"T\\\"CP\"][=\"a/b\"][3]"
        );
    }

    #[test]
    fn numbers_are_one_whatever_their_form_and_come_first() {
        let sorted = [
            json!(-1),
            json!(1),
            json!(1.5),
            json!("a"),
            json!("b"),
            json!(false),
        ];
        for pair in sorted.windows(2) {
            assert!(
                Scalar(pair[0].clone()) < Scalar(pair[1].clone()),
                "{pair:?}"
            );
        }
        assert_eq!(Scalar(json!(1)), Scalar(json!(1.0)));
    }
}
