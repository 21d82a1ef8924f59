//! Finalizers: the name in an object's metadata that keeps it alive until clean-up is done.
//!
//! [`contains`], [`plan_add`] and [`plan_remove`] decide without IO; [`add`] and [`remove`] carry
//! the plan out as one merge patch that holds the `resourceVersion` the decision was made on, so a
//! stale decision is refused with 409 Conflict instead of overwriting another writer's finalizers.
//! [`Finalizers`] holds a controller's clean-ups by name and does both at the right time.

mod registry;

use std::fmt::Debug;

use kube_client::Api;
use kube_client::api::{Patch, PatchParams};
use kube_core::Resource;
use kube_core::metadata::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::registry::{CleanUp, CleanUpError, Finalized, Finalizers};
use crate::consistency::notice;
use crate::retry::MaybeConflict;

/// Why a finalizer was not added or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object is being deleted; the API server refuses new finalizers then.
    #[error("object {object} is being deleted, so finalizer {finalizer} can't be added any more")]
    Terminating {
        /// Name of the object.
        object: String,
        /// The finalizer that was asked for.
        finalizer: String,
    },
    /// The object does not come from the API server.
    #[error("object has no metadata.{field}: read it from the API server before patching it")]
    Incomplete {
        /// The missing field.
        field: &'static str,
    },
    /// The patch was refused or did not arrive.
    #[error("patch the finalizers of {object}")]
    Patch {
        /// Name of the object.
        object: String,
        /// What the client reported.
        #[source]
        source: Box<kube_client::Error>,
    },
    /// Two clean-ups under one name.
    #[error("finalizer {finalizer} is registered already")]
    Registered {
        /// The name.
        finalizer: String,
    },
    /// Clean-ups failed; their finalizers keep the object.
    #[error("clean up after {object}: {}", registry::failed(.failures))]
    CleanUp {
        /// Name of the object.
        object: String,
        /// Each failure, in the order of registration.
        failures: Vec<CleanUpError>,
    },
}

impl Error {
    /// Whether the object was not there any more.
    fn is_gone(&self) -> bool {
        match self {
            Self::Patch { source, .. } => {
                matches!(&**source, kube_client::Error::Api(status) if status.is_not_found())
            }
            _ => false,
        }
    }
}

impl MaybeConflict for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Patch { source, .. } if source.is_conflict())
    }
}

/// Reports whether `object` carries `finalizer`.
pub fn contains(object: &impl Resource, finalizer: &str) -> bool {
    listed(object.meta()).iter().any(|name| name == finalizer)
}

/// Merge patch that adds `finalizer`; `None` if it's there already.
///
/// # Errors
/// [`Error::Terminating`] if the object is being deleted, [`Error::Incomplete`] if it has no
/// `resourceVersion` to guard the patch with.
pub fn plan_add(object: &impl Resource, finalizer: &str) -> Result<Option<Value>, Error> {
    if contains(object, finalizer) {
        return Ok(None);
    }
    let meta = object.meta();
    if meta.deletion_timestamp.is_some() {
        let object = meta.name.clone().unwrap_or_default();
        return Err(Error::Terminating {
            object,
            finalizer: finalizer.to_owned(),
        });
    }
    let wanted = listed(meta).iter().map(String::as_str).chain([finalizer]);
    plan(meta, wanted).map(Some)
}

/// Merge patch that removes `finalizer` and keeps the others in order; `None` if it's not there.
///
/// # Errors
/// [`Error::Incomplete`] if the object has no `resourceVersion` to guard the patch with.
pub fn plan_remove(object: &impl Resource, finalizer: &str) -> Result<Option<Value>, Error> {
    if !contains(object, finalizer) {
        return Ok(None);
    }
    let meta = object.meta();
    let left = listed(meta)
        .iter()
        .map(String::as_str)
        .filter(|name| *name != finalizer);
    plan(meta, left).map(Some)
}

/// Adds `finalizer` to `object` on the server; `None` if it was there already (no request).
///
/// `object` may be any view of the object (e.g. a metadata-only one) that has its
/// `resourceVersion`.
///
/// Cancellation safety: a dropped call may have added the finalizer; calling again is harmless.
///
/// # Errors
/// Those of [`plan_add`], and [`Error::Patch`], which is a conflict if `object` is stale.
pub async fn add<K>(
    api: &Api<K>,
    object: &impl Resource,
    finalizer: &str,
) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    match plan_add(object, finalizer)? {
        Some(patch) => send(api, object.meta(), &patch).await.map(Some),
        None => Ok(None),
    }
}

/// Removes `finalizer` from `object` on the server; `None` if there was nothing to remove.
///
/// An object that is gone already counts as "nothing to remove". Removing the last finalizer of
/// an object that is being deleted lets the server delete it; the answer is its final state.
///
/// Cancellation safety: a dropped call may have removed the finalizer; calling again is harmless.
///
/// # Errors
/// Those of [`plan_remove`], and [`Error::Patch`], which is a conflict if `object` is stale.
pub async fn remove<K>(
    api: &Api<K>,
    object: &impl Resource,
    finalizer: &str,
) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    let Some(patch) = plan_remove(object, finalizer)? else {
        return Ok(None);
    };
    match send(api, object.meta(), &patch).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

fn listed(meta: &ObjectMeta) -> &[String] {
    meta.finalizers.as_deref().unwrap_or_default()
}

/// The patch to `finalizers`, good only for the version that was read.
fn plan<'a>(meta: &ObjectMeta, finalizers: impl Iterator<Item = &'a str>) -> Result<Value, Error> {
    let version = meta.resource_version.as_deref().ok_or(Error::Incomplete {
        field: "resourceVersion",
    })?;
    let finalizers: Vec<&str> = finalizers.collect();
    Ok(json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } }))
}

async fn send<K>(api: &Api<K>, meta: &ObjectMeta, patch: &Value) -> Result<K, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    let name = meta
        .name
        .as_deref()
        .ok_or(Error::Incomplete { field: "name" })?;
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .inspect(notice)
        .map_err(|source| Error::Patch {
            object: name.to_owned(),
            source: Box::new(source),
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    const OURS: &str = "example.dev/cleanup";

    fn object(finalizers: &[&str]) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".to_owned());
        object.metadata.resource_version = Some("7".to_owned());
        object.metadata.finalizers =
            (!finalizers.is_empty()).then(|| finalizers.iter().map(|f| (*f).to_owned()).collect());
        object
    }

    fn patch(finalizers: &[&str]) -> Value {
        json!({ "metadata": { "resourceVersion": "7", "finalizers": finalizers } })
    }

    #[test]
    fn c71_plans_change_one_name_and_guard_it_by_the_version_read() {
        let cases = [
            (&[][..], Some(patch(&[OURS])), None),
            (&["other"][..], Some(patch(&["other", OURS])), None),
            (&[OURS][..], None, Some(patch(&[]))),
            (&["x", OURS, "y"][..], None, Some(patch(&["x", "y"]))),
        ];
        for (finalizers, added, removed) in cases {
            let object = object(finalizers);
            assert_eq!(contains(&object, OURS), finalizers.contains(&OURS));
            assert_eq!(
                plan_add(&object, OURS).unwrap(),
                added,
                "add to {finalizers:?}"
            );
            assert_eq!(
                plan_remove(&object, OURS).unwrap(),
                removed,
                "remove from {finalizers:?}"
            );
        }
    }

    #[test]
    fn c71_an_object_under_deletion_takes_no_new_finalizer_and_gives_its_own_back() {
        let mut object = object(&["other"]);
        object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert!(matches!(
            plan_add(&object, OURS),
            Err(Error::Terminating { object, finalizer }) if object == "a" && finalizer == OURS
        ));
        assert_eq!(plan_remove(&object, "other").unwrap(), Some(patch(&[])));
    }

    #[test]
    fn c71_an_object_without_version_is_refused_by_name_of_the_field() {
        let mut object = object(&["other"]);
        object.metadata.resource_version = None;
        for plan in [plan_add(&object, OURS), plan_remove(&object, "other")] {
            assert!(matches!(
                plan,
                Err(Error::Incomplete {
                    field: "resourceVersion"
                })
            ));
        }
    }
}
