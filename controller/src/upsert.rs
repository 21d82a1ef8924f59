//! Create an object or bring it to the state wanted, without a write when nothing differs.
//!
//! [`create_or_update`] and [`create_or_patch`] take the object as it is (from a lister, or read
//! live), let a function change it, and write what came out. Mirror controller-runtime's functions
//! of these names, except that the caller reads the object.
//!
//! ```no_run
//! # use controller::BoxError;
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # async fn example(api: kube_client::Api<ConfigMap>, present: Option<&ConfigMap>) -> Result<(), BoxError> {
//! use controller::upsert::{Written, create_or_update, named};
//!
//! let fresh = || named("default", "a-mirror");
//! let (mirror, written) = create_or_update(&api, present, fresh, |mirror| {
//!     mirror.data.get_or_insert_default().insert("text".into(), "one".into());
//!     Ok::<_, BoxError>(())
//! })
//! .await?;
//! if written != Written::Unchanged {
//!     tracing::info!(version = mirror.metadata.resource_version, "{written}");
//! }
//! # Ok(()) }
//! ```

use std::fmt;
use std::fmt::Debug;

use kube_client::Api;
use kube_client::api::{Patch, PatchParams, PostParams};
use kube_core::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::consistency::notice;
use crate::patch::merge_values;
use crate::reconcile::BoxError;
use crate::retry::MaybeConflict;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Nothing: the object is as it should be.
    Unchanged,
    /// The object, for the first time.
    Created,
    /// All but the status.
    Updated,
    /// The status and other parts, by two requests.
    UpdatedStatus,
    /// The status alone.
    UpdatedStatusOnly,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unchanged => "unchanged",
            Self::Created => "created",
            Self::Updated => "updated",
            Self::UpdatedStatus => "updated with its status",
            Self::UpdatedStatusOnly => "status updated",
        })
    }
}

/// Why an object was not brought to the state wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's function refused.
    #[error("change {object}")]
    Change {
        /// Name of the object.
        object: String,
        /// The function's error.
        #[source]
        source: BoxError,
    },
    /// The caller's function changed name or namespace, which would make it another object.
    #[error("name or namespace of {from} was changed to {to}: that is another object")]
    Renamed {
        /// Namespace and name before.
        from: String,
        /// Namespace and name after.
        to: String,
    },
    /// A state can't be written as JSON.
    #[error("write {object} as JSON")]
    Serialize {
        /// Name of the object.
        object: String,
        /// What serde reported.
        #[source]
        source: serde_json::Error,
    },
    /// The server refused the write or was not reached.
    #[error("{step} {object}")]
    Write {
        /// Which write it was, such as `create`.
        step: &'static str,
        /// Name of the object.
        object: String,
        /// What the client reported.
        #[source]
        source: Box<kube_client::Error>,
    },
}

impl MaybeConflict for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.is_conflict())
    }
}

/// A default object with a name, for the start of one that is not there yet. An empty namespace is
/// none.
pub fn named<K: Resource + Default>(namespace: &str, name: impl Into<String>) -> K {
    let mut object = K::default();
    let meta = object.meta_mut();
    meta.name = Some(name.into());
    meta.namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
    object
}

/// Creates `fresh()`, or replaces `present`, each changed by `change`; gives what the server has
/// now, and what was written. What `change` returns beside its error doesn't matter.
///
/// The replacement holds the version of `present`, so a stale one is refused with 409 Conflict; if
/// `present` is none although the object exists, the create is refused with 409 AlreadyExists. Both
/// come right with the next reconcile, or by reading live and trying again. `change` starts from
/// what the server has filled in, so its defaults are no difference.
///
/// Cost: both states are written as JSON to compare them; one request or none.
///
/// Cancellation safety: whether the write of a dropped call took place is unknown.
///
/// # Errors
/// [`Error`] says which step failed.
pub async fn create_or_update<K, T, E>(
    api: &Api<K>,
    present: Option<&K>,
    fresh: impl FnOnce() -> K,
    change: impl FnOnce(&mut K) -> Result<T, E>,
) -> Result<(K, Written), Error>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + 'static,
    E: Into<BoxError>,
{
    let Some(present) = present else {
        return create(api, fresh(), change).await;
    };
    let changed = changed(present.clone(), change)?;
    let name = name_of(present);
    if value_of(present)? == value_of(&changed)? {
        return Ok((changed, Written::Unchanged));
    }
    let result = api.replace(&name, &PostParams::default(), &changed).await;
    let object = result
        .inspect(notice)
        .map_err(|source| failed("update", name, source))?;
    Ok((object, Written::Updated))
}

/// Creates `fresh()`, or sends what `change` changes in `present` as merge patches: one for the
/// status, one for all else.
///
/// Without a guard: the patch holds the changed fields only and wins over other writers of these
/// (lists count as one field). On a create the server ignores the status of kinds that have it as a
/// subresource, so the status is written by the next call.
///
/// Cost and cancellation safety as [`create_or_update`], with up to two requests.
///
/// # Errors
/// [`Error`] says which step failed.
pub async fn create_or_patch<K, T, E>(
    api: &Api<K>,
    present: Option<&K>,
    fresh: impl FnOnce() -> K,
    change: impl FnOnce(&mut K) -> Result<T, E>,
) -> Result<(K, Written), Error>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + 'static,
    E: Into<BoxError>,
{
    let Some(present) = present else {
        return create(api, fresh(), change).await;
    };
    let mut object = changed(present.clone(), change)?;
    let (rest, status) = patches(value_of(present)?, value_of(&object)?);
    let written = match (&rest, &status) {
        (None, None) => Written::Unchanged,
        (Some(_), None) => Written::Updated,
        (Some(_), Some(_)) => Written::UpdatedStatus,
        (None, Some(_)) => Written::UpdatedStatusOnly,
    };
    let (name, params) = (name_of(present), PatchParams::default());
    if let Some(patch) = rest {
        let result = api.patch(&name, &params, &Patch::Merge(patch)).await;
        object = result
            .inspect(notice)
            .map_err(|source| failed("patch", name.clone(), source))?;
    }
    if let Some(patch) = status {
        let result = api.patch_status(&name, &params, &Patch::Merge(patch)).await;
        object = result
            .inspect(notice)
            .map_err(|source| failed("patch the status of", name, source))?;
    }
    Ok((object, written))
}

async fn create<K, T, E>(
    api: &Api<K>,
    fresh: K,
    change: impl FnOnce(&mut K) -> Result<T, E>,
) -> Result<(K, Written), Error>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + 'static,
    E: Into<BoxError>,
{
    let object = changed(fresh, change)?;
    let result = api.create(&PostParams::default(), &object).await;
    let object = result
        .inspect(notice)
        .map_err(|source| failed("create", name_of(&object), source))?;
    Ok((object, Written::Created))
}

/// The object after `change`, which must leave it the same object.
fn changed<K: Resource, T, E: Into<BoxError>>(
    mut object: K,
    change: impl FnOnce(&mut K) -> Result<T, E>,
) -> Result<K, Error> {
    let from = place_of(&object);
    change(&mut object).map_err(|source| Error::Change {
        object: name_of(&object),
        source: source.into(),
    })?;
    let to = place_of(&object);
    if from == to {
        Ok(object)
    } else {
        Err(Error::Renamed { from, to })
    }
}

/// The merge patches to all but the status, and to the status.
fn patches(mut before: Value, mut after: Value) -> (Option<Value>, Option<Value>) {
    let take = |object: &mut Value| object.as_object_mut().and_then(|all| all.remove("status"));
    let (old, new) = (take(&mut before), take(&mut after));
    let wrapped = |status: Option<Value>| {
        status.map_or_else(
            || serde_json::json!({}),
            |status| serde_json::json!({ "status": status }),
        )
    };
    (
        merge_values(&before, &after),
        merge_values(&wrapped(old), &wrapped(new)),
    )
}

fn value_of<K: Resource + Serialize>(object: &K) -> Result<Value, Error> {
    serde_json::to_value(object).map_err(|source| Error::Serialize {
        object: name_of(object),
        source,
    })
}

fn failed(step: &'static str, object: String, source: kube_client::Error) -> Error {
    let source = Box::new(source);
    Error::Write {
        step,
        object,
        source,
    }
}

fn name_of(object: &impl Resource) -> String {
    object.meta().name.clone().unwrap_or_default()
}

fn place_of(object: &impl Resource) -> String {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", name_of(object))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    #[test]
    fn c73_name_and_namespace_stay_as_they_are() {
        type Change = fn(&mut ConfigMap) -> Result<(), BoxError>;
        let cases: [(Change, &str); 4] = [
            (|_| Ok(()), ""),
            (
                |object| {
                    object.metadata.name = Some("b".to_owned());
                    Ok(())
                },
                "name or namespace of ns/a was changed to ns/b: that is another object",
            ),
            (
                |object| {
                    object.metadata.namespace = None;
                    Ok(())
                },
                "name or namespace of ns/a was changed to /a: that is another object",
            ),
            (|_| Err("no".into()), "change a"),
        ];
        for (change, expected) in cases {
            let error = changed(named::<ConfigMap>("ns", "a"), change).err();
            assert_eq!(error.map(|e| e.to_string()).unwrap_or_default(), expected);
        }
    }

    #[test]
    fn c73_the_status_has_a_patch_of_its_own() {
        let before = json!({"spec": {"a": 1}, "status": {"b": 1}});
        for (after, rest, status) in [
            (before.clone(), None, None),
            (
                json!({"spec": {"a": 2}, "status": {"b": 1}}),
                Some(json!({"spec": {"a": 2}})),
                None,
            ),
            (
                json!({"spec": {"a": 1}, "status": {"b": 2}}),
                None,
                Some(json!({"status": {"b": 2}})),
            ),
            (
                json!({"spec": {}, "status": {"b": 2}}),
                Some(json!({"spec": {"a": null}})),
                Some(json!({"status": {"b": 2}})),
            ),
            (
                json!({"spec": {"a": 1}}),
                None,
                Some(json!({"status": null})),
            ),
        ] {
            assert_eq!(
                patches(before.clone(), after.clone()),
                (rest, status),
                "{after}"
            );
        }
    }
}
