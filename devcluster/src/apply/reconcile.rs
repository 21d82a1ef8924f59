//! Owned fields brought in line with a schema that changed since they were written.
//!
//! Where a struct, map or list has become one piece, whoever owned some of it owns it as a whole. The other
//! way nothing is done, as in the real server: the piece stays with its owner until somebody writes below it.

use super::{
    path::PathElement,
    schema::{Form, Items, Type},
    set::{FieldSet, Node},
};

/// The set as it must read under the schema; `None` when it already does.
pub(super) fn reconciled(ty: Type<'_>, set: &FieldSet) -> Option<FieldSet> {
    (!is_in_line(ty, set)).then(|| below(ty, set))
}

/// Whether the set reads so already, as it nearly always does: nothing is copied to find that out.
fn is_in_line(ty: Type<'_>, set: &FieldSet) -> bool {
    set.nodes().iter().all(|node| {
        node.children.is_empty()
            || type_of(ty, node).is_none_or(|of| !is_piece(of) && is_in_line(of, &node.children))
    })
}

/// The type at a node, where it has one of its own.
fn type_of<'t>(ty: Type<'t>, node: &Node) -> Option<Type<'t>> {
    match (ty.form(None), &node.element) {
        (Form::Map(map), PathElement::Field(name)) if !map.is_free_form() => {
            ty.field(map, name).map(|(of, _)| of)
        }
        (Form::List(list), PathElement::Key(_) | PathElement::Value(_)) => Some(ty.item(list)),
        _ => None,
    }
}

fn below(ty: Type<'_>, set: &FieldSet) -> FieldSet {
    FieldSet::of_nodes(set.nodes().iter().map(|node| {
        let Some(of) = type_of(ty, node) else {
            return node.clone();
        };
        if !node.children.is_empty() && is_piece(of) {
            return Node {
                element: node.element.clone(),
                member: true,
                children: FieldSet::default(),
            };
        }
        Node {
            element: node.element.clone(),
            member: node.member,
            children: below(of, &node.children),
        }
    }))
}

fn is_piece(ty: Type<'_>) -> bool {
    match ty.form(None) {
        Form::Map(map) => map.atomic && !map.is_free_form(),
        Form::List(list) => list.items == Items::Atomic,
        Form::Scalar(_) | Form::Nothing => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::fields_v1, super::schema::Schema, *};

    #[test]
    fn what_became_one_piece_is_owned_as_a_whole() {
        let schema = Schema::custom(&json!({"type": "object", "properties": {
            "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
            "open": {"type": "object", "properties": {"a": {"type": "string"}}},
        }}));
        let owned = |set: serde_json::Value| fields_v1::read(&set).unwrap();
        let before = owned(json!({
            "f:atom": {".": {}, "f:a": {}}, "f:list": {"k:{\"k\":\"x\"}": {"f:k": {}}}, "f:open": {"f:a": {}},
        }));
        let after = reconciled(schema.root(), &before).unwrap();
        assert_eq!(
            fields_v1::write(&after),
            json!({"f:atom": {}, "f:list": {}, "f:open": {"f:a": {}}})
        );
        assert_eq!(reconciled(schema.root(), &after), None);
    }
}
