//! What the walks over typed values share: identifying the items of lists, and errors with a place.

use std::fmt;

use serde_json::Value;

use super::{
    path::{PathElement, Scalar},
    schema::{Items, ListType, Type},
};

/// A value that does not fit its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    path: String,
    problem: String,
}

/// All misfits of a value; their text is the real server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfits(Vec<Misfit>);

impl Misfit {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            problem: problem.into(),
        }
    }

    pub(super) fn below(mut self, element: &PathElement) -> Self {
        self.path.insert_str(0, &element.to_string());
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.problem)
    }
}

impl Misfits {
    /// `Ok` when there are none.
    pub(super) fn check(found: Vec<Misfit>) -> Result<(), Self> {
        if found.is_empty() {
            Ok(())
        } else {
            Err(Self(found))
        }
    }
}

impl From<Misfit> for Misfits {
    fn from(one: Misfit) -> Self {
        Self(vec![one])
    }
}

impl fmt::Display for Misfits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = self.0.as_slice() {
            return one.fmt(f);
        }
        f.write_str("errors:")?;
        for one in &self.0 {
            write!(f, "\n  {one}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Misfits {}

/// How a path names an item of a list that is not one piece.
///
/// # Errors
/// The item cannot be told from others.
pub(super) fn item_element(
    of: Type<'_>,
    list: &ListType,
    item: &Value,
) -> Result<PathElement, String> {
    match &list.items {
        Items::Atomic => Err("invalid indexing of non-associative list".to_owned()),
        Items::Set => match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => {
                Err("not supported: associative list with lists as elements".to_owned())
            }
            Value::Null => Err(
                "associative list without keys has an element that's an explicit null".to_owned(),
            ),
            scalar => Ok(PathElement::Value(Scalar(scalar.clone()))),
        },
        Items::Keyed(keys) => keyed_element(of, list, keys, item),
    }
}

fn keyed_element(
    of: Type<'_>,
    list: &ListType,
    keys: &[String],
    item: &Value,
) -> Result<PathElement, String> {
    let fields = match item {
        Value::Null => {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        Value::Object(fields) => fields,
        _ => {
            return Err("associative list with keys may not have non-map elements".to_owned());
        }
    };
    let mut found: Vec<(String, Scalar)> = keys
        .iter()
        .filter_map(|key| {
            let value = fields.get(key).or_else(|| of.key_default(list, key))?;
            Some((key.clone(), Scalar(value.clone())))
        })
        .collect();
    if found.is_empty() {
        let keys: Vec<String> = keys.iter().map(|key| format!("\"{key}\"")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have \
             default values for any key fields)",
            keys.join(" ")
        ));
    }
    found.sort();
    Ok(PathElement::Key(found))
}

/// How a path names each item of a list.
///
/// # Errors
/// The first item that cannot be told from others.
pub(super) fn item_elements(
    of: Type<'_>,
    list: &ListType,
    items: &[Value],
) -> Result<Vec<PathElement>, Misfit> {
    items
        .iter()
        .enumerate()
        .map(|(at, item)| {
            item_element(of, list, item)
                .map_err(|problem| Misfit::new(format!("element {at}: {problem}")))
        })
        .collect()
}

/// The items of a list; none where there is no list.
pub(super) fn items(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}
