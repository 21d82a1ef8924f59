//! Updates and applies of several managers, one after the other.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Live, ResetFields, Schema, Tracker, Type, Versions, built_in};
use crate::{
    error::{ApiError, ApiResult},
    types,
};

/// Two versions of one schema; objects are the same in both.
struct Widgets(Schema);

impl Versions for Widgets {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        ["g/v1", "g/v2"]
            .contains(&api_version)
            .then(|| self.0.root())
    }

    fn convert<'v>(&self, object: &'v Value, api_version: &str) -> Cow<'v, Value> {
        let mut converted = object.clone();
        converted["apiVersion"] = Value::from(api_version);
        Cow::Owned(converted)
    }
}

struct BuiltIn(&'static str, &'static str);

impl Versions for BuiltIn {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        (api_version == self.0).then(|| built_in(types::lookup(self.0, self.1).unwrap()))
    }

    fn convert<'v>(&self, object: &'v Value, _: &str) -> Cow<'v, Value> {
        Cow::Borrowed(object)
    }
}

fn widgets() -> Widgets {
    Widgets(Schema::custom(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "string"},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k", "p"], "items": {"type": "object", "properties": {
                    "k": {"type": "string"}, "p": {"type": "string", "default": "TCP"}, "v": {"type": "string"},
                }}},
            "atom": {"type": "object", "x-kubernetes-map-type": "atomic",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            "list": {"type": "array", "items": {"type": "string"}},
        }},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }})))
}

/// An object that is written to, with a time that goes on.
struct World<V> {
    versions: V,
    object: Option<Value>,
    entries: Option<Value>,
    second: u32,
}

impl<V: Versions> World<V> {
    fn new(versions: V) -> Self {
        Self {
            versions,
            object: None,
            entries: None,
            second: 0,
        }
    }

    fn write<T>(&mut self, manager: &str, step: impl FnOnce(&Tracker<'_>, Live<'_>) -> T) -> T {
        self.second += 1;
        let unborn = Value::Object(Map::new());
        let reset = ResetFields::of(&[&["status"]]);
        let tracker = Tracker {
            versions: &self.versions,
            api_version: if manager.starts_with("v2-") {
                "g/v2"
            } else {
                "g/v1"
            },
            reset: &reset,
            manager,
            subresource: "",
            now: &format!("2026-01-01T00:00:{:02}Z", self.second),
            tracks_new: true,
        };
        let live = Live {
            object: self.object.as_ref().unwrap_or(&unborn),
            entries: self.entries.as_ref(),
            exists: self.object.is_some(),
        };
        step(&tracker, live)
    }

    fn update(&mut self, manager: &str, new: Value) {
        let new = object(new);
        self.entries = self.write(manager, |tracker, live| tracker.updated(live, &new, None));
        self.object = Some(new);
    }

    fn apply(&mut self, manager: &str, config: Value, force: bool) -> ApiResult<()> {
        let config = object(config);
        let applied = self.write(manager, |tracker, live| {
            tracker.check_config(&config)?;
            tracker.applied(live, &config, force)
        })?;
        self.object = Some(applied.object);
        self.entries = applied.entries;
        Ok(())
    }

    fn spec(&self) -> Value {
        self.object.as_ref().unwrap()["spec"].clone()
    }

    /// The fields that a manager owns.
    fn of(&self, manager: &str) -> Value {
        let entries = self.entries.as_ref().and_then(Value::as_array);
        let found = entries
            .into_iter()
            .flatten()
            .find(|entry| entry["manager"] == manager);
        found.map_or(Value::Null, |entry| entry["fieldsV1"]["f:spec"].clone())
    }

    fn time_of(&self, manager: &str) -> Value {
        let entries = self.entries.as_ref().and_then(Value::as_array);
        let found = entries
            .into_iter()
            .flatten()
            .find(|entry| entry["manager"] == manager);
        found.map_or(Value::Null, |entry| entry["time"].clone())
    }
}

/// A widget; an empty spec is none.
fn object(spec: Value) -> Value {
    let mut object = json!({"apiVersion": "g/v1", "kind": "Widget", "metadata": {"name": "w"}});
    if spec.as_object().is_some_and(|fields| !fields.is_empty()) {
        object["spec"] = spec;
    }
    object
}

fn fields(error: &ApiError) -> Vec<String> {
    let causes = error.status()["details"]["causes"].clone();
    let causes = causes.as_array().cloned().unwrap_or_default();
    causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn p6_what_is_applied_no_more_goes_unless_others_own_it() {
    let mut world = World::new(widgets());
    world
        .apply(
            "m",
            json!({"a": "1", "map": {"x": "1", "y": "1"}, "keyed": [{"k": "a"}, {"k": "b"}]}),
            false,
        )
        .unwrap();
    world.apply("n", json!({"map": {"y": "1"}}), false).unwrap();
    world
        .apply("m", json!({"keyed": [{"k": "b"}]}), false)
        .unwrap();
    assert_eq!(
        world.spec(),
        json!({"map": {"y": "1"}, "keyed": [{"k": "b"}]})
    );
    world.apply("n", json!({}), false).unwrap();
    assert_eq!(world.spec(), json!({"keyed": [{"k": "b"}]}));
    world.apply("m", json!({}), false).unwrap();
    assert_eq!(world.object, Some(object(json!({}))));
}

#[test]
fn p5_a_value_that_another_owns_is_a_conflict_until_forced() {
    let mut world = World::new(widgets());
    world
        .apply(
            "m",
            json!({"a": "1", "atom": {"a": "1"}, "set": ["x"]}),
            false,
        )
        .unwrap();
    world
        .apply("n", json!({"a": "1", "set": ["x", "y"]}), false)
        .unwrap();
    assert_eq!(
        world.of("n"),
        json!({"f:a": {}, "f:set": {"v:\"x\"": {}, "v:\"y\"": {}}})
    );
    let refused = world
        .apply("n", json!({"a": "2", "atom": {"b": "1"}}), false)
        .unwrap_err();
    assert_eq!(refused.code(), 409);
    assert_eq!(fields(&refused), [".spec.a", ".spec.atom"]);
    world
        .apply("n", json!({"a": "2", "atom": {"b": "1"}}), true)
        .unwrap();
    assert_eq!(
        world.spec(),
        json!({"a": "2", "atom": {"b": "1"}, "set": ["x"]})
    );
    assert_eq!(world.of("m"), json!({"f:set": {"v:\"x\"": {}}}));
    assert_eq!(world.of("n"), json!({"f:a": {}, "f:atom": {}}));
}

#[test]
fn p6_an_update_takes_what_it_changes_from_all_others() {
    let mut world = World::new(widgets());
    world
        .apply("m", json!({"a": "1", "b": "1"}), false)
        .unwrap();
    world.update("u", json!({"a": "2", "b": "1"}));
    assert_eq!(world.of("m"), json!({"f:b": {}}));
    assert_eq!(world.of("u"), json!({"f:a": {}}));
    let refused = world
        .apply("m", json!({"a": "1", "b": "1"}), false)
        .unwrap_err();
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"u\" using g/v1: .spec.a"
    );
    // The value that stands there is no conflict.
    world
        .apply("m", json!({"a": "2", "b": "1"}), false)
        .unwrap();
    world.update("u", json!({"b": "1"}));
    assert_eq!(world.of("u"), Value::Null);
    assert_eq!(world.of("m"), json!({"f:b": {}}));
}

#[test]
fn p4_missing_keys_of_items_are_their_defaults() {
    let mut world = World::new(widgets());
    world
        .apply("m", json!({"keyed": [{"k": "a", "v": "1"}]}), false)
        .unwrap();
    let item = "k:{\"k\":\"a\",\"p\":\"TCP\"}";
    assert_eq!(
        world.of("m"),
        json!({"f:keyed": {item: {".": {}, "f:k": {}, "f:v": {}}}})
    );
    let refused = world
        .apply(
            "n",
            json!({"keyed": [{"k": "a", "p": "TCP", "v": "2"}]}),
            false,
        )
        .unwrap_err();
    assert_eq!(fields(&refused), [".spec.keyed[k=\"a\",p=\"TCP\"].v"]);
    world
        .apply("n", json!({"keyed": [{"k": "a", "p": "UDP"}]}), false)
        .unwrap();
    assert_eq!(world.spec()["keyed"].as_array().unwrap().len(), 2);
}

#[test]
fn configurations_that_do_not_fit_are_refused_with_the_place() {
    let mut world = World::new(widgets());
    for (spec, problem) in [
        (
            json!({"a": 1}),
            ".spec.a: expected string, got &value.valueUnstructured{Value:1}",
        ),
        (
            json!({"nope": {}}),
            ".spec.nope: field not declared in schema",
        ),
        (
            json!({"set": ["x", "x"]}),
            ".spec.set: duplicate entries for key [=\"x\"]",
        ),
        (json!({"map": ["x"]}), ".spec.map: expected map, got &{[x]}"),
        (
            json!({"keyed": [{"v": "x"}], "list": "x"}),
            ".spec.list: expected list, got &{x}",
        ),
        (
            json!({"keyed": [1]}),
            ".spec.keyed: element 0: associative list with keys may not have non-map elements",
        ),
    ] {
        let refused = world.apply("m", spec.clone(), false).unwrap_err();
        assert_eq!(refused.code(), 500, "{spec}");
        assert_eq!(
            refused.message(),
            format!("failed to create typed patch object (/w; g/v1, Kind=Widget): {problem}")
        );
    }
}

#[test]
fn what_was_there_before_the_first_apply_has_an_owner() {
    let mut world = World::new(widgets());
    world.object = Some(object(json!({"a": "1", "b": "1"})));
    world.apply("m", json!({"a": "1"}), false).unwrap();
    assert_eq!(
        world.of("before-first-apply"),
        json!({".": {}, "f:a": {}, "f:b": {}})
    );
    assert_eq!(world.of("m"), json!({"f:a": {}}));
    let refused = world.apply("m", json!({"b": "2"}), false).unwrap_err();
    assert_eq!(fields(&refused), [".spec.b"]);
}

#[test]
fn m10_times_move_with_the_object_alone() {
    let mut world = World::new(widgets());
    world.apply("m", json!({"a": "1"}), false).unwrap();
    let first = world.time_of("m");
    world.apply("m", json!({"a": "1"}), false).unwrap();
    assert_eq!(world.time_of("m"), first);
    // As in the real server: owning what stands there changes no object, so it has no time.
    world.apply("n", json!({"a": "1"}), false).unwrap();
    assert_eq!(world.time_of("n"), Value::Null);
    world
        .apply("m", json!({"a": "1", "b": "1"}), false)
        .unwrap();
    assert_ne!(world.time_of("m"), first);
}

#[test]
fn p6_owners_of_one_version_lose_what_is_changed_in_another() {
    let mut world = World::new(widgets());
    let mut config = object(json!({"a": "1", "b": "1"}));
    config["apiVersion"] = json!("g/v2");
    let applied = world
        .write("v2-m", |tracker, live| {
            tracker.applied(live, &config, false)
        })
        .unwrap();
    (world.object, world.entries) = (Some(applied.object), applied.entries);
    world.update("u", json!({"a": "2", "b": "1"}));
    assert_eq!(world.of("v2-m"), json!({"f:b": {}}));
}

#[test]
fn p7_kubectl_takes_over_what_it_applied_on_the_client_s_side() {
    let mut world = World::new(widgets());
    let last = object(json!({"a": "1", "b": "1"}));
    let mut live = object(json!({"a": "1", "b": "2"}));
    live["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
        Value::from(last.to_string());
    world.entries = world.write("kubectl-client-side-apply", |tracker, unborn| {
        tracker.updated(unborn, &live, None)
    });
    world.object = Some(live);
    world.apply("kubectl", json!({"a": "3"}), false).unwrap();
    let annotations = &world.object.as_ref().unwrap()["metadata"]["annotations"];
    let noted = annotations["kubectl.kubernetes.io/last-applied-configuration"]
        .as_str()
        .unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(noted).unwrap(),
        object(json!({"a": "3"}))
    );
    // What others changed since is a conflict as ever.
    let refused = world
        .apply("kubectl", json!({"a": "3", "b": "3"}), false)
        .unwrap_err();
    assert_eq!(fields(&refused), [".spec.b"]);
}

#[test]
fn typed_objects_own_the_structs_that_they_show() {
    let versions = BuiltIn("v1", "Pod");
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let reset = ResetFields::of(&[&["status"]]);
    let tracker = Tracker {
        versions: &versions,
        api_version: "v1",
        reset: &reset,
        manager: "m",
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        tracks_new: true,
    };
    let live = Live {
        object: &json!({}),
        entries: None,
        exists: false,
    };
    let entries = tracker.updated(live, &pod, None).unwrap();
    assert_eq!(
        entries[0]["fieldsV1"],
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
            ".": {}, "f:image": {}, "f:name": {}, "f:resources": {},
        }}}})
    );
}

/// A configuration of few fields, so that managers meet.
fn any_config() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec!["1", "2"]);
    let pairs =
        prop::collection::btree_map(prop::sample::select(vec!["x", "y"]), text.clone(), 1..3);
    let set = prop::collection::btree_set(prop::sample::select(vec!["p", "q", "r"]), 1..3);
    (
        prop::option::of(text.clone()),
        prop::option::of(pairs.clone()),
        prop::option::of(set),
        prop::option::of(pairs.clone()),
        prop::option::of(prop::collection::btree_map(
            prop::sample::select(vec!["x", "y"]),
            text,
            0..3,
        )),
    )
        .prop_map(|(a, map, set, keyed, atom)| {
            let mut spec = Map::new();
            let mut put = |name: &str, value: Option<Value>| {
                if let Some(value) = value {
                    spec.insert(name.to_owned(), value);
                }
            };
            put("a", a.map(Value::from));
            put("map", map.map(|map| json!(map)));
            put("set", set.map(|set| json!(set)));
            let items = |map: std::collections::BTreeMap<&str, &str>| -> Value {
                map.into_iter()
                    .map(|(k, v)| json!({"k": k, "v": v}))
                    .collect()
            };
            put("keyed", keyed.map(items));
            put("atom", atom.map(|_| json!({"a": "1"})));
            Value::Object(spec)
        })
}

/// Whether everything that a configuration says stands in an object.
fn holds(object: &Value, config: &Value) -> bool {
    match (object, config) {
        (Value::Object(object), Value::Object(config)) => config
            .iter()
            .all(|(key, value)| object.get(key).is_some_and(|own| holds(own, value))),
        (Value::Array(object), Value::Array(config)) => config
            .iter()
            .all(|item| object.iter().any(|own| holds(own, item))),
        (object, config) => object == config,
    }
}

proptest! {
    #[test]
    fn an_apply_holds_and_is_idempotent(steps in prop::collection::vec((0..3_u8, any_config()), 1..6)) {
        let mut world = World::new(widgets());
        for (manager, config) in steps {
            let manager = format!("m{manager}");
            world.apply(&manager, config.clone(), true).unwrap();
            prop_assert!(holds(&world.object.clone().unwrap(), &object(config.clone())), "{} {}", world.spec(), config);
            let (object, entries) = (world.object.clone(), world.entries.clone());
            world.apply(&manager, config, false).unwrap();
            prop_assert_eq!(&world.object, &object);
            prop_assert_eq!(&world.entries, &entries);
        }
    }

    #[test]
    fn who_applies_nothing_leaves_nothing(configs in prop::collection::vec(any_config(), 1..4)) {
        let mut world = World::new(widgets());
        for (n, config) in configs.iter().enumerate() {
            world.apply(&format!("m{n}"), config.clone(), true).unwrap();
        }
        for n in 0..configs.len() {
            world.apply(&format!("m{n}"), json!({}), false).unwrap();
        }
        prop_assert_eq!(world.entries.as_ref(), None);
        prop_assert_eq!(world.object, Some(object(Value::Null)));
    }

    #[test]
    fn what_an_update_changes_belongs_to_it_alone(config in any_config(), new in any_config()) {
        let mut world = World::new(widgets());
        world.apply("m", config.clone(), false).unwrap();
        world.update("u", new.clone());
        world.apply("m", config, true).unwrap();
        let again = world.object.clone();
        world.update("u", again.as_ref().unwrap()["spec"].clone());
        prop_assert_eq!(&world.object, &again);
    }
}
