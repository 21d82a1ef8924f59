//! An object with an applied configuration laid over it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    fields::check_scalar,
    path::PathElement,
    schema::{Form, Items, ListType, MapType, Type},
    walk::{Misfit, item_elements, items},
};

/// Lays `config` over `live`: leaves of the configuration win, nothing is removed. Items that both have
/// take the order of the configuration, others stay where they were.
///
/// # Errors
/// An item of a list cannot be told from others.
pub(super) fn merge(ty: Type<'_>, live: &Value, config: &Value) -> Result<Value, Misfit> {
    Ok(value(ty, Some(live), Some(config))?.unwrap_or(Value::Null))
}

fn value(
    ty: Type<'_>,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Result<Option<Value>, Misfit> {
    let (live_form, config_form) = (ty.form(live), ty.form(config));
    match (live, config) {
        (None, None) => Ok(None),
        (_, None) => in_form(ty, live_form, live, config),
        // Where the forms differ the configuration's counts.
        _ => in_form(ty, config_form, live, config),
    }
}

/// The configuration's value, else the live one.
fn leaf(live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    config.or(live).cloned()
}

fn in_form<'t>(
    ty: Type<'t>,
    form: Form<'t>,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Result<Option<Value>, Misfit> {
    match form {
        Form::Nothing => Err(Misfit::new("schema error: invalid atom")),
        Form::Scalar(scalar) => {
            let misfit = |value: Option<&Value>| value.and_then(|v| check_scalar(scalar, v));
            match (misfit(live), misfit(config)) {
                (Some(misfit), Some(_)) => Err(misfit),
                _ => Ok(leaf(live, config)),
            }
        }
        Form::Map(map) => {
            let empty =
                |value: Option<&Value>| value.and_then(Value::as_object).is_none_or(Map::is_empty);
            if map.atomic || (empty(live) && empty(config)) {
                return Ok(leaf(live, config));
            }
            fields(ty, map, live, config)
        }
        Form::List(list) => {
            let nothing = items(live).is_empty() && items(config).is_empty();
            if list.items == Items::Atomic || nothing {
                return Ok(leaf(live, config));
            }
            Ok(Some(Value::Array(merged_items(
                ty,
                list,
                items(live),
                items(config),
            )?)))
        }
    }
}

fn fields<'t>(
    ty: Type<'t>,
    map: &'t MapType,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Result<Option<Value>, Misfit> {
    let (live, config) = (
        live.and_then(Value::as_object),
        config.and_then(Value::as_object),
    );
    let names = live
        .into_iter()
        .flatten()
        .chain(config.into_iter().flatten())
        .map(|(name, _)| name);
    let mut merged = Map::new();
    for name in names {
        if merged.contains_key(name) {
            continue;
        }
        let old = live.and_then(|fields| fields.get(name));
        let new = config.and_then(|fields| fields.get(name));
        let one = match ty.field(map, name) {
            Some((of, _)) => value(of, old, new)
                .map_err(|misfit| misfit.below(&PathElement::Field(name.clone())))?,
            None => leaf(old, new),
        };
        if let Some(one) = one {
            merged.insert(name.clone(), one);
        }
    }
    Ok((!merged.is_empty()).then_some(Value::Object(merged)))
}

/// The items of both lists. Those of the configuration come in its order; an item that only the live list
/// has stays behind those that it followed there.
fn merged_items<'t>(
    ty: Type<'t>,
    list: &'t ListType,
    live: &[Value],
    config: &[Value],
) -> Result<Vec<Value>, Misfit> {
    let of = ty.item(list);
    let live_elements = item_elements(ty, list, live)?;
    let config_elements = item_elements(ty, list, config)?;
    let mut configured = BTreeSet::new();
    for element in &config_elements {
        if !configured.insert(element) {
            return Err(Misfit::new(format!("duplicate entries for key {element}")));
        }
    }
    // A live item that stands there twice cannot be merged with: it has no place of its own.
    let mut places: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
    for (element, item) in live_elements.iter().zip(live) {
        places
            .entry(element)
            .and_modify(|place| *place = None)
            .or_insert(Some(item));
    }
    let mut shared = config_elements
        .iter()
        .filter(|element| places.contains_key(element))
        .peekable();
    let mut done = BTreeSet::new();
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let (mut at_live, mut at_config) = (0, 0);
    while at_live < live.len() || at_config < config.len() {
        let next = config_elements.get(at_config);
        if let Some(element) = live_elements.get(at_live) {
            if !configured.contains(element) {
                let kept = value(of, live.get(at_live), None);
                merged.extend(kept.map_err(|misfit| misfit.below(element))?);
                at_live += 1;
                continue;
            }
            let out_of_turn = shared.peek().is_some_and(|awaited| *awaited != element);
            if next.is_some() && out_of_turn {
                at_live += 1;
                continue;
            }
            if next == Some(element) || done.contains(element) {
                at_live += 1;
            }
        }
        let Some(element) = next else { continue };
        let old = places.get(element).copied().flatten();
        let one = value(of, old, config.get(at_config));
        merged.extend(one.map_err(|misfit| misfit.below(element))?);
        done.insert(element);
        if shared.peek() == Some(&element) {
            shared.next();
        }
        at_config += 1;
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::{super::schema::Schema, *};

    fn schema() -> Schema {
        Schema::custom(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                    "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
                "atom": {"type": "object", "x-kubernetes-map-type": "atomic",
                    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
                "list": {"type": "array", "items": {"type": "integer"}},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            }}}}),
        )
    }

    fn merged(live: Value, config: Value) -> Value {
        let schema = schema();
        let whole = |spec: Value| json!({"spec": spec});
        merge(schema.root(), &whole(live), &whole(config)).unwrap()["spec"].clone()
    }

    #[test]
    fn pieces_are_replaced_and_the_rest_is_laid_over() {
        let cases = [
            (
                json!({"map": {"a": 1}}),
                json!({"map": {"b": 2}}),
                json!({"map": {"a": 1, "b": 2}}),
            ),
            (
                json!({"atom": {"a": 1}}),
                json!({"atom": {"b": 2}}),
                json!({"atom": {"b": 2}}),
            ),
            (
                json!({"list": [1, 2]}),
                json!({"list": [3]}),
                json!({"list": [3]}),
            ),
            (
                json!({"keyed": [{"k": "a", "v": 1}, {"k": "b", "v": 2}]}),
                json!({"keyed": [{"k": "b", "v": 3}, {"k": "c"}]}),
                json!({"keyed": [{"k": "a", "v": 1}, {"k": "b", "v": 3}, {"k": "c"}]}),
            ),
            (json!({"map": {}}), json!({"map": {}}), json!({"map": {}})),
            (json!({"map": null}), json!({}), json!({"map": null})),
        ];
        for (live, config, expected) in cases {
            assert_eq!(
                merged(live.clone(), config.clone()),
                expected,
                "{live} {config}"
            );
        }
    }

    /// Orders worked out with structured-merge-diff 6.4.
    #[test]
    fn shared_items_take_the_order_of_the_configuration() {
        let cases = [
            ("a b c", "c b a", "c b a"),
            ("a x", "c a d", "c a x d"),
            ("a b x", "b a d", "b x a d"),
            ("x a y b z", "b a", "x y b z a"),
            ("a b", "", "a b"),
            ("", "b a", "b a"),
            ("a", "b", "a b"),
        ];
        let list = |text: &str| -> Value { text.split_whitespace().collect() };
        for (live, config, expected) in cases {
            let got = merged(json!({"set": list(live)}), json!({"set": list(config)}));
            assert_eq!(got["set"], list(expected), "{live} + {config}");
        }
    }

    #[test]
    fn a_configuration_may_not_name_an_item_twice() {
        let schema = schema();
        let config = json!({"spec": {"set": ["a", "a"]}});
        let error = merge(schema.root(), &json!({"spec": {"set": ["b"]}}), &config).unwrap_err();
        assert_eq!(
            error.to_string(),
            ".spec.set: duplicate entries for key [=\"a\"]"
        );
    }

    proptest! {
        #[test]
        fn merging_twice_is_merging_once_and_loses_nothing(
            live in prop::collection::btree_set("[a-f]", 0..5),
            config in prop::collection::btree_set("[a-f]", 0..5).prop_map(|set| set.into_iter().collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let config = json!({"set": config});
            let once = merged(json!({"set": live}), config.clone());
            prop_assert_eq!(&merged(once.clone(), config.clone()), &once);
            let items = |value: &Value| -> Vec<String> {
                value["set"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
            };
            let got = items(&once);
            for item in live.iter().chain(&items(&config)) {
                prop_assert_eq!(got.iter().filter(|one| *one == item).count(), 1);
            }
            let in_order: Vec<String> = got.into_iter().filter(|item| items(&config).contains(item)).collect();
            prop_assert_eq!(in_order, items(&config));
        }
    }
}
