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
    let mut changed = false;
    let set = below(ty, set, &mut changed);
    changed.then_some(set)
}

fn below(ty: Type<'_>, set: &FieldSet, changed: &mut bool) -> FieldSet {
    FieldSet::of_nodes(set.nodes().iter().map(|node| {
        let of = match (ty.form(None), &node.element) {
            (Form::Map(map), PathElement::Field(name)) if !map.is_free_form() => {
                ty.field(map, name).map(|(of, _)| of)
            }
            (Form::List(list), PathElement::Key(_) | PathElement::Value(_)) => Some(ty.item(list)),
            _ => None,
        };
        let Some(of) = of else { return node.clone() };
        if !node.children.is_empty() && is_piece(of) {
            *changed = true;
            return Node {
                element: node.element.clone(),
                member: true,
                children: FieldSet::default(),
            };
        }
        Node {
            element: node.element.clone(),
            member: node.member,
            children: below(of, &node.children, changed),
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
