//! Which fields a value has, whether it fits its type, and what remains when fields are taken away.

use serde_json::{Map, Value};

use super::{
    path::PathElement,
    schema::{Form, Items, ListType, ScalarType, Type},
    set::{FieldSet, Node},
    walk::{Misfit, Misfits, item_element},
};
use crate::schema::gofmt;

/// Checks a value against its type; lists that are not one piece may hold no item twice.
///
/// # Errors
/// Everything that does not fit.
pub(super) fn check(ty: Type<'_>, value: &Value) -> Result<(), Misfits> {
    let mut found = Vec::new();
    check_value(ty, value, &mut found);
    Misfits::check(found)
}

fn check_value(ty: Type<'_>, value: &Value, found: &mut Vec<Misfit>) {
    match (ty.form(Some(value)), value) {
        (Form::Nothing, _) => found.push(Misfit::new("schema error: invalid atom")),
        (_, Value::Null) => {}
        (Form::Map(map), Value::Object(fields)) => {
            for (name, value) in fields {
                let element = PathElement::Field(name.clone());
                match ty.field(map, name) {
                    Some((of, _)) => below(&element, found, |found| {
                        check_value(of, value, found);
                    }),
                    None => {
                        found.push(Misfit::new("field not declared in schema").below(&element));
                        return;
                    }
                }
            }
        }
        (Form::List(list), Value::Array(items)) => {
            check_items(ty, list, items, found);
        }
        (Form::Scalar(scalar), value) => found.extend(check_scalar(scalar, value)),
        (Form::Map(_), value) => {
            found.push(Misfit::new(format!(
                "expected map, got &{{{}}}",
                plain(value)
            )));
        }
        (Form::List(_), value) => {
            found.push(Misfit::new(format!(
                "expected list, got &{{{}}}",
                plain(value)
            )));
        }
    }
}

fn check_items(ty: Type<'_>, list: &ListType, items: &[Value], found: &mut Vec<Misfit>) {
    let mut seen: Vec<PathElement> = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let element = if list.items == Items::Atomic {
            PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX))
        } else {
            match item_element(ty, list, item) {
                Ok(element) => element,
                Err(problem) => {
                    found.push(Misfit::new(format!("element {at}: {problem}")));
                    return;
                }
            }
        };
        if list.items != Items::Atomic {
            match seen.binary_search(&element) {
                Ok(_) => found.push(Misfit::new(format!("duplicate entries for key {element}"))),
                Err(place) => seen.insert(place, element.clone()),
            }
        }
        below(&element, found, |found| {
            check_value(ty.item(list), item, found);
        });
    }
}

/// Runs a check whose misfits lie below an element.
fn below(element: &PathElement, found: &mut Vec<Misfit>, check: impl FnOnce(&mut Vec<Misfit>)) {
    let mut inner = Vec::new();
    check(&mut inner);
    found.extend(inner.into_iter().map(|misfit| misfit.below(element)));
}

pub(super) fn check_scalar(scalar: ScalarType, value: &Value) -> Option<Misfit> {
    let fits = match (scalar, value) {
        (_, Value::Null)
        | (ScalarType::Number, Value::Number(_))
        | (ScalarType::Text, Value::String(_))
        | (ScalarType::Flag, Value::Bool(_)) => true,
        (ScalarType::Any, value) => !value.is_array() && !value.is_object(),
        _ => false,
    };
    if fits {
        return None;
    }
    Some(Misfit::new(match scalar {
        ScalarType::Number => {
            format!("expected numeric (int or float), got {}", type_name(value))
        }
        ScalarType::Text => format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            literal(value)
        ),
        ScalarType::Flag => format!("expected boolean, got &{{{}}}", plain(value)),
        ScalarType::Any => format!("expected any scalar, got &{{{}}}", plain(value)),
    }))
}

/// The name of a value's type in the real server's language.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as a literal of the real server's language (`%#v`).
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => gofmt::quote(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(literal).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}:{}", gofmt::quote(name), literal(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
        scalar => gofmt::plain(scalar),
    }
}

/// A value as the real server's language prints it (`%v`).
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", plain(value)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
        scalar => gofmt::plain(scalar),
    }
}

/// Every field and item that a value mentions: leaves, items of lists, keys of maps, and structs with
/// nothing in them.
pub(super) fn mentioned(ty: Type<'_>, value: &Value) -> FieldSet {
    below_of(ty, value).1
}

/// Whether a value is a leaf, else what lies below it.
fn below_of(ty: Type<'_>, value: &Value) -> (bool, FieldSet) {
    match ty.form(Some(value)) {
        Form::Nothing => (false, FieldSet::default()),
        Form::Scalar(_) => (true, FieldSet::default()),
        Form::Map(map) if map.atomic => (true, FieldSet::default()),
        Form::List(list) if list.items == Items::Atomic => (true, FieldSet::default()),
        Form::Map(map) => {
            let fields = value.as_object().into_iter().flatten();
            let nodes = fields.filter_map(|(name, value)| {
                let (of, declared) = ty.field(map, name)?;
                let (leaf, children) = below_of(of, value);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                Some(Node {
                    element: PathElement::Field(name.clone()),
                    member: leaf || empty || !declared,
                    children,
                })
            });
            (false, FieldSet::of_nodes(nodes))
        }
        Form::List(list) => (false, mentioned_items(ty, list, value)),
    }
}

fn mentioned_items(ty: Type<'_>, list: &ListType, value: &Value) -> FieldSet {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let elements: Vec<(PathElement, &Value)> = items
        .iter()
        .filter_map(|item| Some((item_element(ty, list, item).ok()?, item)))
        .collect();
    let mut sorted: Vec<&PathElement> = elements.iter().map(|(element, _)| element).collect();
    sorted.sort();
    let twice = |element: &PathElement| {
        let first = sorted.partition_point(|other| *other < element);
        sorted.get(first + 1) == Some(&element)
    };
    FieldSet::of_nodes(elements.iter().map(|(element, item)| Node {
        element: element.clone(),
        member: true,
        // Items that cannot be told apart are owned as one piece.
        children: if twice(element) {
            FieldSet::default()
        } else {
            below_of(ty.item(list), item).1
        },
    }))
}

/// A set with the declared fields on the way to its members as members too.
pub(super) fn with_declared_parents(ty: Option<Type<'_>>, set: &FieldSet) -> FieldSet {
    let map = ty.and_then(|ty| ty.as_map().map(|map| (ty, map)));
    FieldSet::of_nodes(set.nodes().iter().map(|node| {
        let (of, declared) = match &node.element {
            PathElement::Field(name) => match map.and_then(|(ty, map)| ty.field(map, name)) {
                Some((of, declared)) => (Some(of), declared),
                None => (None, false),
            },
            PathElement::Key(_) => {
                let item = ty.and_then(|ty| ty.as_list().map(|list| ty.item(list)));
                (item, false)
            }
            PathElement::Value(_) | PathElement::Index(_) => (None, false),
        };
        Node {
            element: node.element.clone(),
            member: node.member || (declared && !node.children.is_empty()),
            children: with_declared_parents(of, &node.children),
        }
    }))
}

/// A value without the fields and items of a set. What loses everything becomes null; pieces that are
/// atomic stay or go as a whole.
pub(super) fn without(ty: Type<'_>, value: &Value, set: &FieldSet) -> Value {
    match (ty.form(Some(value)), value) {
        (Form::Scalar(_), value) => value.clone(),
        (Form::Map(map), Value::Object(fields)) if !map.atomic => {
            let kept: Map<String, Value> = fields
                .iter()
                .filter_map(|(name, value)| {
                    let node = set.node(&PathElement::Field(name.clone()));
                    let kept = match (node, ty.field(map, name)) {
                        (Some(node), _) if node.member => return None,
                        (Some(node), Some((of, _))) => without(of, value, &node.children),
                        _ => value.clone(),
                    };
                    Some((name.clone(), kept))
                })
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        (Form::List(list), Value::Array(items)) if list.items != Items::Atomic => {
            let kept: Vec<Value> = items
                .iter()
                .filter_map(|item| {
                    let node = item_element(ty, list, item)
                        .ok()
                        .and_then(|element| set.node(&element));
                    match node {
                        Some(node) if node.member => None,
                        Some(node) => Some(without(ty.item(list), item, &node.children)),
                        None => Some(item.clone()),
                    }
                })
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Array(kept)
            }
        }
        _ => Value::Null,
    }
}
