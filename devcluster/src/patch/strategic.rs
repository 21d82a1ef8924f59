//! Strategic merge patch: merging by the types of the built-in kinds.
//!
//! Maps merge; lists merge by key or by value where their field says so, else they are replaced.
//! Directives: `$patch` (replace, delete), `$retainKeys`, `$deleteFromPrimitiveList/FIELD` and
//! `$setElementOrder/FIELD`.

use serde_json::{Map, Value};

use super::PatchError;
use crate::types::{Field, Shape, TypeRef};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of type `ty` and returns the result.
///
/// # Errors
/// [`PatchError::Malformed`] for a patch that is no object or a directive of the wrong form,
/// [`PatchError::Failed`] for an unknown directive or a list item without its merge key.
pub(crate) fn strategic(target: &Value, patch: &Value, ty: TypeRef) -> Result<Value, PatchError> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(malformed("invalid JSON document"));
    };
    merge_map(target.clone(), patch, &Shape::Object(ty)).map(Value::Object)
}

fn malformed(message: impl Into<String>) -> PatchError {
    PatchError::Malformed(message.into())
}

fn failed(message: impl Into<String>) -> PatchError {
    PatchError::Failed(message.into())
}

/// A value as the real server prints it in these errors: `map[a:1 b:[x y]]`.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", shown(value)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
        scalar => scalar.to_string(),
    }
}

/// The field `name` of a value of `shape`, where there is one.
fn field_of(shape: &Shape, name: &str) -> Option<&'static Field> {
    match shape {
        Shape::Object(ty) | Shape::BoolOr(ty) | Shape::ListOr(ty) => ty.field(name),
        _ => None,
    }
}

fn shape_below(shape: &Shape, name: &str) -> Shape {
    match shape {
        Shape::Map(of) => (**of).clone(),
        _ => field_of(shape, name).map_or(Shape::Any, |field| field.shape.clone()),
    }
}

fn merge_map(
    mut target: Map<String, Value>,
    patch: &Map<String, Value>,
    shape: &Shape,
) -> Result<Map<String, Value>, PatchError> {
    match patch
        .get(PATCH)
        .map(|directive| directive.as_str().unwrap_or_default())
    {
        None => {}
        Some("replace") => {
            let mut whole = patch.clone();
            whole.remove(PATCH);
            return Ok(whole);
        }
        Some("delete") => return Ok(Map::new()),
        Some(other) => return Err(unknown_directive(other, patch)),
    }
    retain_keys(&mut target, patch)?;
    let mut ordered = Vec::new();
    for (key, order) in patch {
        if let Some(name) = key.strip_prefix(SET_ORDER) {
            set_element_order(&mut target, patch, name, order, shape)?;
            ordered.push(name);
        }
    }
    for (key, value) in patch {
        let is_done =
            key == RETAIN_KEYS || key.starts_with(SET_ORDER) || ordered.contains(&key.as_str());
        if is_done {
            continue;
        }
        if let Some(name) = key.strip_prefix(DELETE_FROM_LIST) {
            delete_from_list(&mut target, name, value)?;
            continue;
        }
        if value.is_null() {
            target.remove(key);
            continue;
        }
        let merged = match (target.remove(key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => Some(Value::Object(merge_map(
                old,
                new,
                &shape_below(shape, key),
            )?)),
            (Some(Value::Array(old)), Value::Array(new)) => {
                Some(Value::Array(merge_field(old, new, field_of(shape, key))?))
            }
            _ => without_directives(value),
        };
        if let Some(merged) = merged {
            target.insert(key.clone(), merged);
        }
    }
    Ok(target)
}

fn unknown_directive(directive: &str, patch: &Map<String, Value>) -> PatchError {
    let map = shown(&Value::Object(patch.clone()));
    failed(format!("unknown patch type: {directive} in map: {map}"))
}

/// Keeps only the keys that `$retainKeys` lists.
fn retain_keys(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), PatchError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else {
        return Ok(());
    };
    let bad = || malformed("invalid patch format of retainKeys");
    let keys = keys.as_array().ok_or_else(bad)?;
    let is_kept = |name: &str| keys.iter().any(|key| key == name);
    let strays = patch
        .iter()
        .any(|(name, value)| !value.is_null() && !name.starts_with('$') && !is_kept(name));
    if strays {
        return Err(bad());
    }
    target.retain(|name, _| is_kept(name));
    Ok(())
}

fn delete_from_list(
    target: &mut Map<String, Value>,
    name: &str,
    values: &Value,
) -> Result<(), PatchError> {
    let values = values
        .as_array()
        .ok_or_else(|| malformed("invalid patch format of primitive list"))?;
    if let Some(Value::Array(items)) = target.get_mut(name) {
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

/// Merges the field `name` of the patch, if it is there, and puts its list into `order`.
fn set_element_order(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    name: &str,
    order: &Value,
    shape: &Shape,
) -> Result<(), PatchError> {
    let bad = || malformed("invalid patch format of setElementOrder list");
    let order = order.as_array().ok_or_else(bad)?;
    let old = match target.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::Array(items)) => Some(items.clone()),
        Some(_) => return Err(bad()),
    };
    let new = match patch.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::Array(items)) => Some(items),
        Some(_) => return Err(bad()),
    };
    let field = field_of(shape, name);
    let key = field.and_then(|field| field.merge_key.as_deref());
    let listed = |item: &Value| order.iter().any(|entry| same_item(entry, item, key));
    let plain: Vec<&Value> = new
        .into_iter()
        .flatten()
        .filter(|item| item.get(PATCH).is_none())
        .collect();
    if plain.iter().any(|item| !listed(item)) {
        let plain = shown(&Value::Array(plain.into_iter().cloned().collect()));
        let order = shown(&Value::Array(order.clone()));
        return Err(failed(format!(
            "The order in patch list:\n{plain}\n doesn't match $setElementOrder list:\n{order}\n"
        )));
    }
    let server_order = old.clone().unwrap_or_default();
    let merged = match (old, new) {
        (None, None) => return Ok(()),
        (Some(old), None) => old,
        (None, Some(new)) => new.iter().filter_map(without_directives).collect(),
        (Some(old), Some(new)) => merge_field(old, new, field)?,
    };
    let (patched, server_only) = merged.into_iter().partition(|item| listed(item));
    let sorted = in_order(patched, server_only, order, &server_order, key);
    target.insert(name.to_owned(), Value::Array(sorted));
    Ok(())
}

fn merge_field(
    old: Vec<Value>,
    new: &[Value],
    field: Option<&Field>,
) -> Result<Vec<Value>, PatchError> {
    let Some(field) = field.filter(|field| field.merges) else {
        return Ok(new.to_vec());
    };
    let item_shape = match &field.shape {
        Shape::List(of) => &**of,
        _ => &Shape::Any,
    };
    merge_list(old, new, field.merge_key.as_deref(), item_shape)
}

fn merge_list(
    old: Vec<Value>,
    new: &[Value],
    key: Option<&str>,
    item_shape: &Shape,
) -> Result<Vec<Value>, PatchError> {
    let is_map_list = old.iter().chain(new).any(Value::is_object);
    if !is_map_list {
        let mut merged = old.clone();
        merged.extend(new.iter().filter(|item| !old.contains(item)).cloned());
        let (patched, server_only) = merged.into_iter().partition(|item| new.contains(item));
        return Ok(in_order(patched, server_only, new, &old, None));
    }
    let key = key.ok_or_else(|| failed("cannot merge lists without merge key"))?;
    let (kept, items, replaces) = split_special(old, new, key)?;
    if replaces {
        return Ok(items);
    }
    let mut merged = kept.clone();
    for item in &items {
        let entry = item
            .as_object()
            .filter(|entry| entry.contains_key(key))
            .ok_or_else(|| no_merge_key(item, key))?;
        match merged
            .iter()
            .position(|old| same_item(old, item, Some(key)))
        {
            Some(at) => {
                let former = match merged[at].take() {
                    Value::Object(former) => former,
                    _ => Map::new(),
                };
                merged[at] = Value::Object(merge_map(former, entry, item_shape)?);
            }
            None => merged.extend(without_directives(item)),
        }
    }
    let is_patched = |item: &Value| items.iter().any(|new| same_item(new, item, Some(key)));
    let (patched, server_only) = merged.into_iter().partition(is_patched);
    Ok(in_order(patched, server_only, &items, &kept, Some(key)))
}

/// Carries out `$patch` items: gives what is kept of the old list, the plain new items, and
/// whether they replace it.
fn split_special(
    mut old: Vec<Value>,
    new: &[Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>, bool), PatchError> {
    let mut items = Vec::new();
    let mut replaces = false;
    for item in new {
        let Some(directive) = item.get(PATCH) else {
            items.push(item.clone());
            continue;
        };
        match directive.as_str().unwrap_or_default() {
            "delete" => {
                if item.get(key).is_none() {
                    return Err(no_merge_key(item, key));
                }
                old.retain(|former| !same_item(former, item, Some(key)));
            }
            "replace" => replaces = true,
            "merge" => {
                return Err(failed("merging lists cannot yet be specified in the patch"));
            }
            other => {
                let entry = item.as_object().cloned().unwrap_or_default();
                return Err(unknown_directive(other, &entry));
            }
        }
    }
    Ok((old, items, replaces))
}

fn no_merge_key(item: &Value, key: &str) -> PatchError {
    failed(format!(
        "map: {} does not contain declared merge key: {key}",
        shown(item)
    ))
}

/// Whether two list items are the same one: by key for maps, by value for scalars.
fn same_item(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => match (a.get(key), b.get(key)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        },
        None => a == b,
    }
}

/// Puts patched items into the patch's order and the others into the server's, and interleaves
/// them: of an item of each, the server's goes first if it stood first before.
fn in_order(
    mut patched: Vec<Value>,
    mut server_only: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let place =
        |order: &[Value], item: &Value| order.iter().position(|entry| same_item(entry, item, key));
    patched.sort_by_key(|item| place(patch_order, item).unwrap_or(usize::MAX));
    server_only.sort_by_key(|item| place(server_order, item).unwrap_or(usize::MAX));
    let mut sorted = Vec::with_capacity(patched.len() + server_only.len());
    let mut left = server_only.into_iter().peekable();
    let mut right = patched.into_iter().peekable();
    loop {
        let server_first = match (left.peek(), right.peek()) {
            (None, None) => return sorted,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => {
                matches!((place(server_order, l), place(server_order, r)), (Some(l), Some(r)) if l < r)
            }
        };
        sorted.extend(if server_first {
            left.next()
        } else {
            right.next()
        });
    }
}

/// A patch's value where there is nothing to merge it with; none if it only deletes.
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            if fields
                .get(PATCH)
                .is_some_and(|directive| directive == "delete")
            {
                return None;
            }
            let kept = fields
                .iter()
                .filter(|(name, value)| !name.starts_with('$') && !value.is_null())
                .filter_map(|(name, value)| Some((name.clone(), without_directives(value)?)))
                .collect();
            Some(Value::Object(kept))
        }
        Value::Array(items) => Some(Value::Array(
            items.iter().filter_map(without_directives).collect(),
        )),
        scalar => Some(scalar.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod() -> TypeRef {
        crate::types::lookup("v1", "Pod").unwrap()
    }

    fn check(cases: &[(&str, Value, Value, Value)]) {
        for (name, target, patch, expected) in cases {
            let patched = strategic(target, patch, pod());
            assert_eq!(patched.as_ref(), Ok(expected), "{name}");
        }
    }

    #[test]
    fn p3_lists_merge_by_key_value_or_not_at_all() {
        check(&[
            (
                "containers by name",
                json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "b", "image": "2"}]}}),
                json!({"spec": {"containers": [
                    {"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}),
            ),
            (
                "a new container goes first, as the real server places it",
                json!({"spec": {"containers": [{"name": "a"}]}}),
                json!({"spec": {"containers": [{"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
            ),
            (
                "ports by containerPort",
                json!({"spec": {"containers": [{"name": "a", "ports": [
                    {"containerPort": 1, "name": "x"}]}]}}),
                json!({"spec": {"containers": [{"name": "a", "ports": [
                    {"containerPort": 1, "name": "y"}]}]}}),
                json!({"spec": {"containers": [{"name": "a", "ports": [
                    {"containerPort": 1, "name": "y"}]}]}}),
            ),
            (
                "$patch delete removes one",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
                json!({"spec": {"containers": [{"name": "b"}]}}),
            ),
            (
                "$patch replace replaces the list",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
                json!({"spec": {"containers": [{"name": "c"}]}}),
            ),
            (
                "tolerations are atomic",
                json!({"spec": {"tolerations": [{"key": "a"}]}}),
                json!({"spec": {"tolerations": [{"key": "b"}]}}),
                json!({"spec": {"tolerations": [{"key": "b"}]}}),
            ),
            (
                "finalizers are a set",
                json!({"metadata": {"finalizers": ["a", "b"]}}),
                json!({"metadata": {"finalizers": ["b", "c"]}}),
                json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
            ),
            (
                "$deleteFromPrimitiveList",
                json!({"metadata": {"finalizers": ["a", "b"]}}),
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
                json!({"metadata": {"finalizers": ["b"]}}),
            ),
            (
                "$setElementOrder sorts and keeps the server's own",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "s"}, {"name": "b"}]}}),
                json!({"spec": {
                    "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                    "containers": [{"name": "b", "image": "2"}]}}),
                json!({"spec": {"containers": [
                    {"name": "s"}, {"name": "b", "image": "2"}, {"name": "a"}]}}),
            ),
            (
                "conditions by type",
                json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            ),
        ]);
    }

    #[test]
    fn p3_maps_merge_null_deletes_and_directives_steer() {
        check(&[
            (
                "labels merge and null deletes",
                json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
                json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
                json!({"metadata": {"labels": {"b": "2", "c": "3"}}}),
            ),
            (
                "$patch replace on a map",
                json!({"metadata": {"labels": {"a": "1"}}}),
                json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
                json!({"metadata": {"labels": {"b": "2"}}}),
            ),
            (
                "$patch delete on a map",
                json!({"metadata": {"labels": {"a": "1"}}}),
                json!({"metadata": {"labels": {"$patch": "delete"}}}),
                json!({"metadata": {"labels": {}}}),
            ),
            (
                "$retainKeys drops the other source of a volume",
                json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"],
                    "secret": {"secretName": "s"}}]}}),
                json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}}),
            ),
            (
                "directives vanish where there is nothing to merge with",
                json!({}),
                json!({"spec": {"containers": [
                    {"name": "a", "$setElementOrder/ports": []},
                    {"name": "b", "$patch": "delete"}], "nodeName": null}}),
                json!({"spec": {"containers": [{"name": "a"}]}}),
            ),
        ]);
    }

    fn any_pod() -> impl Strategy<Value = Value> {
        let names = prop::collection::btree_set("[a-d]", 0..4);
        let finalizers = prop::collection::btree_set("[a-d]", 0..4);
        (names, finalizers, prop::option::of("[xyz]")).prop_map(|(names, finalizers, image)| {
            let containers: Vec<Value> = names
                .iter()
                .map(|name| json!({"name": name, "image": image}))
                .collect();
            json!({"metadata": {"finalizers": finalizers}, "spec": {"containers": containers}})
        })
    }

    proptest! {
        #[test]
        fn p3_applying_a_patch_twice_is_as_good_as_once(target in any_pod(), patch in any_pod()) {
            let once = strategic(&target, &patch, pod()).unwrap();
            prop_assert_eq!(strategic(&once, &patch, pod()).unwrap(), once);
        }

        #[test]
        fn p3_every_item_of_the_patch_is_there_and_none_of_the_target_is_lost(
            target in any_pod(),
            patch in any_pod(),
        ) {
            let merged = strategic(&target, &patch, pod()).unwrap();
            let names = |pod: &Value| -> std::collections::BTreeSet<String> {
                let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
                containers.map(|container| container["name"].to_string()).collect()
            };
            let expected: std::collections::BTreeSet<String> =
                names(&target).union(&names(&patch)).cloned().collect();
            prop_assert_eq!(names(&merged), expected);
        }

        #[test]
        fn p3_an_empty_patch_changes_nothing(target in any_pod()) {
            prop_assert_eq!(strategic(&target, &json!({}), pod()).unwrap(), target);
        }
    }

    /// With the defaults that a server adds to new list items after patching, taken from its
    /// answer.
    fn defaulted(mut patched: Value, recorded: &Value) -> Value {
        fill(&mut patched, recorded);
        patched
    }

    fn fill(value: &mut Value, recorded: &Value) {
        const DEFAULTED: [&str; 5] = [
            "imagePullPolicy",
            "protocol",
            "resources",
            "terminationMessagePath",
            "terminationMessagePolicy",
        ];
        match (value, recorded) {
            (Value::Object(fields), Value::Object(recorded)) => {
                for (name, field) in &mut *fields {
                    fill(field, recorded.get(name).unwrap_or(&Value::Null));
                }
                for name in DEFAULTED {
                    if let Some(value) = recorded.get(name) {
                        fields.entry(name).or_insert_with(|| value.clone());
                    }
                }
            }
            (Value::Array(items), Value::Array(recorded)) => {
                for (item, recorded) in items.iter_mut().zip(recorded) {
                    fill(item, recorded);
                }
            }
            _ => {}
        }
    }

    /// Answers recorded from a kube-apiserver 1.37.2 for patches of a Deployment.
    #[test]
    fn p3_patches_give_what_the_real_server_gives() {
        let recording: Value =
            serde_json::from_str(include_str!("recordings/strategic.json")).unwrap();
        let ty = crate::types::lookup("apps/v1", "Deployment").unwrap();
        for case in recording["cases"].as_array().unwrap() {
            let patched = strategic(&recording["object"], &case["patch"], ty);
            let name = &case["case"];
            match (patched, case.get("result")) {
                (Ok(patched), Some(result)) => {
                    let patched = defaulted(patched, result);
                    assert_eq!(
                        patched["spec"]["template"], result["spec"]["template"],
                        "{name}"
                    );
                    let finalizers = &patched["metadata"]["finalizers"];
                    assert_eq!(finalizers, &result["metadata"]["finalizers"], "{name}");
                    let labels = &patched["metadata"]["labels"];
                    let is_empty = labels.as_object().is_some_and(Map::is_empty);
                    let labels = if is_empty { &Value::Null } else { labels };
                    assert_eq!(labels, &result["metadata"]["labels"], "{name}");
                }
                (Err(PatchError::Failed(message)), None) => {
                    assert_eq!(
                        (&json!(500), &json!(message)),
                        (&case["code"], &case["message"])
                    );
                }
                (Err(error), None) => {
                    let message = json!(error.to_string());
                    assert_eq!((&json!(400), &message), (&case["code"], &case["message"]));
                }
                // A patch may also make an object that cannot be decoded.
                (Ok(mut patched), None) => {
                    assert!(crate::types::decode(ty, &mut patched).is_err(), "{name}");
                }
                (Err(error), Some(_)) => panic!("{name}: {error}"),
            }
        }
    }
}
