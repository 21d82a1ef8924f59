//! Patches between two states of an object, with or without a guard against other writers.
//!
//! [`merge`] and [`json`](fn@json) give what turns one state into another; [`locked`] makes a merge or
//! strategic patch good for one version only; [`json_locked`] does so for a JSON patch. All are pure
//! functions on what serializes. Which to use:
//!
//! | | lists | absent members | who takes it |
//! |---|---|---|---|
//! | merge | replaced whole | removed by null | every kind |
//! | JSON | changed by index | removed by operation | every kind; guard it, or an index may have moved |
//! | strategic | merged by key | removed by null | built-in kinds only |
//!
//! There is no function for the difference in strategic form: it depends on the merge keys of the
//! server's types. Write such a patch by hand, and send it with
//! [`Patch::Strategic`](kube_client::api::Patch::Strategic).
//!
//! ```
//! # fn main() -> Result<(), controller::patch::Error> {
//! use controller::patch;
//! use serde_json::json;
//!
//! let old = json!({ "metadata": { "resourceVersion": "7" }, "data": { "a": "1", "b": "2" } });
//! let new = json!({ "metadata": { "resourceVersion": "7" }, "data": { "a": "1", "c": "3" } });
//! let patch = patch::merge(&old, &new)?.expect("they differ");
//! assert_eq!(patch, json!({ "data": { "b": null, "c": "3" } }));
//! # Ok(()) }
//! ```

use kube_core::Resource;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Why there is no patch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A state can't be written as JSON.
    #[error("write the object as JSON")]
    Serialize(#[from] serde_json::Error),
    /// The state does not come from the API server.
    #[error(
        "object has no metadata.resourceVersion: read it from the API server before patching it"
    )]
    NoVersion,
}

/// JSON merge patch (RFC 7386) that turns `old` into `new`; `None` if they are alike.
///
/// A member that is null in `new` counts as absent: a merge patch can't tell them apart.
///
/// # Errors
/// [`Error::Serialize`].
pub fn merge<K: Serialize>(old: &K, new: &K) -> Result<Option<Value>, Error> {
    let (old, new) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    Ok(merge_values(&old, &new))
}

/// JSON patch (RFC 6902) that turns `old` into `new`; empty if they are alike.
///
/// # Errors
/// [`Error::Serialize`].
pub fn json<K: Serialize>(old: &K, new: &K) -> Result<json_patch::Patch, Error> {
    let (old, new) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    Ok(json_patch::diff(&old, &new))
}

/// The merge or strategic patch `patch`, refused with 409 Conflict unless the object on the server
/// still has the version that `read` has.
///
/// # Errors
/// [`Error::NoVersion`].
pub fn locked(mut patch: Value, read: &impl Resource) -> Result<Value, Error> {
    let version = version_of(read)?;
    patch["metadata"]["resourceVersion"] = Value::from(version);
    Ok(patch)
}

/// The JSON patch `patch`, refused with 409 Conflict unless the object on the server still has the
/// version that `read` has.
///
/// # Errors
/// [`Error::NoVersion`].
pub fn json_locked(
    patch: json_patch::Patch,
    read: &impl Resource,
) -> Result<json_patch::Patch, Error> {
    let version = version_of(read)?;
    // Not `test`: its failure is 422, which says nothing about the reason.
    let lock = json!([{ "op": "replace", "path": "/metadata/resourceVersion", "value": version }]);
    let mut all: json_patch::Patch = serde_json::from_value(lock)?;
    all.0.extend(patch.0);
    Ok(all)
}

fn version_of(object: &impl Resource) -> Result<&str, Error> {
    let version = object.meta().resource_version.as_deref();
    version
        .filter(|version| !version.is_empty())
        .ok_or(Error::NoVersion)
}

/// [`merge`] on values.
pub(crate) fn merge_values(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (name, value) in new.iter().filter(|(_, value)| !value.is_null()) {
        let change = match old.get(name).filter(|old| !old.is_null()) {
            Some(old) => merge_values(old, value),
            None => Some(value.clone()),
        };
        if let Some(change) = change {
            patch.insert(name.clone(), change);
        }
    }
    let gone = |name: &str| new.get(name).is_none_or(Value::is_null);
    for (name, _) in old
        .iter()
        .filter(|(name, value)| !value.is_null() && gone(name))
    {
        patch.insert(name.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn c74_a_merge_patch_holds_what_differs() {
        for (old, new, expected) in [
            (json!({}), json!({}), None),
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1}), json!({"a": 2}), Some(json!({"a": 2}))),
            (json!({"a": 1}), json!({}), Some(json!({"a": null}))),
            (
                json!({"a": 1}),
                json!({"a": null}),
                Some(json!({"a": null})),
            ),
            (json!({}), json!({"a": null}), None),
            (json!({"a": null}), json!({}), None),
            (
                json!({}),
                json!({"a": {"b": 1}}),
                Some(json!({"a": {"b": 1}})),
            ),
            (
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": 1, "c": 3}}),
                Some(json!({"a": {"c": 3}})),
            ),
            (
                json!({"a": [1, 2]}),
                json!({"a": [1, 3]}),
                Some(json!({"a": [1, 3]})),
            ),
            (
                json!({"a": {"b": 1}}),
                json!({"a": 1}),
                Some(json!({"a": 1})),
            ),
            (
                json!({"a": {"b": 1}}),
                json!({"a": {}}),
                Some(json!({"a": {"b": null}})),
            ),
        ] {
            assert_eq!(merge(&old, &new).unwrap(), expected, "{old} to {new}");
        }
    }

    #[test]
    fn c74_a_lock_is_the_version_that_was_read() {
        let mut read = ConfigMap::default();
        assert!(matches!(locked(json!({}), &read), Err(Error::NoVersion)));
        let none = json_patch::Patch(Vec::new());
        assert!(matches!(
            json_locked(none.clone(), &read),
            Err(Error::NoVersion)
        ));
        read.metadata.resource_version = Some("7".to_owned());
        for (patch, expected) in [
            (json!({}), json!({"metadata": {"resourceVersion": "7"}})),
            (
                json!({"metadata": {"labels": {"a": "b"}}, "data": null}),
                json!({"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}, "data": null}),
            ),
        ] {
            assert_eq!(locked(patch, &read).unwrap(), expected);
        }
        let lock = json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}]);
        assert_eq!(
            serde_json::to_value(json_locked(none, &read).unwrap()).unwrap(),
            lock
        );
    }

    fn value() -> impl Strategy<Value = Value> {
        // No null below an object: a merge patch can't carry one.
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0u8..4).prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..3).prop_map(Value::from),
                btree_map("[a-c]", inner, 0..4).prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn c74_a_patch_applied_to_the_old_state_gives_the_new_one(old in value(), new in value()) {
            let mut merged = old.clone();
            if let Some(patch) = merge(&old, &new).unwrap() {
                json_patch::merge(&mut merged, &patch);
            }
            prop_assert_eq!(&merged, &new);
            let mut patched = old.clone();
            json_patch::patch(&mut patched, &json(&old, &new).unwrap()).unwrap();
            prop_assert_eq!(patched, new);
        }
    }
}
