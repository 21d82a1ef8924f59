//! Server-side apply: say which fields you want, and the server keeps track of whose they are.
//!
//! An [`Apply`] sends only the fields its controller means, under the controller's name as field
//! manager. What the same manager applied earlier and leaves out now is removed; fields of others
//! are left alone. A field that another manager has set to another value is a conflict, which
//! [`Apply::force`] takes over: right for a controller that alone decides about its fields, wrong for
//! one that shares them.
//!
//! Don't apply an object as it came from a cache: all its fields would become yours. Build one with
//! the fields you mean, as a type or as JSON.
//!
//! ```no_run
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # async fn example(api: kube_client::Api<ConfigMap>) -> Result<(), controller::apply::Error> {
//! use controller::apply::Apply;
//! use serde_json::json;
//!
//! let apply = Apply::as_manager("mirror.example.dev")?.force();
//! let mirror = json!({
//!     "apiVersion": "v1",
//!     "kind": "ConfigMap",
//!     "metadata": { "name": "a-mirror" },
//!     "data": { "text": "one" },
//! });
//! let applied: ConfigMap = apply.object(&api, &mirror).await?;
//! # Ok(()) }
//! ```

use std::fmt;
use std::fmt::Debug;

use kube_client::Api;
use kube_client::api::{Patch, PatchParams};
use kube_core::{Resource, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::consistency::notice;
use crate::retry::MaybeConflict;

/// Longest name of a field manager, in characters.
const MANAGER_LIMIT: usize = 128;

/// Applies objects as one field manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apply {
    manager: String,
    force: bool,
}

/// A field that another manager holds at another value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldConflict {
    /// Path of the field, such as `.data.text`.
    pub field: String,
    /// The server's words on who holds it.
    pub holder: String,
}

impl fmt::Display for FieldConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.holder)
    }
}

/// Why an object was not applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is none for a field manager.
    #[error("field manager {name:?} must have 1 to 128 printable characters")]
    InvalidManager {
        /// The name asked for.
        name: Box<str>,
    },
    /// The object can't be written as JSON.
    #[error("write the object as JSON")]
    Serialize(#[source] serde_json::Error),
    /// The server needs this to know what is applied.
    #[error("object to apply has no {field}")]
    Incomplete {
        /// Path of the missing field.
        field: &'static str,
    },
    /// Other managers hold fields at other values; nothing was applied.
    #[error("apply {object}: fields belong to others ({}); force takes them over", fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Conflict {
        /// Name of the object.
        object: String,
        /// The fields.
        fields: Vec<FieldConflict>,
    },
    /// The server refused the object or was not reached.
    #[error("apply {object}")]
    Send {
        /// Name of the object.
        object: String,
        /// What the client reported.
        #[source]
        source: Box<kube_client::Error>,
    },
}

impl MaybeConflict for Error {
    /// A conflict of fields is none here: a repetition would conflict alike.
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Send { source, .. } if source.is_conflict())
    }
}

impl Apply {
    /// Applies as `manager`: a name that the controller keeps for ever, since what it applied under
    /// another name stays that name's.
    ///
    /// # Errors
    /// [`Error::InvalidManager`].
    pub fn as_manager(manager: impl Into<String>) -> Result<Self, Error> {
        let manager = manager.into();
        let length = manager.chars().count();
        if !(1..=MANAGER_LIMIT).contains(&length) || manager.chars().any(char::is_control) {
            let name = manager.into();
            return Err(Error::InvalidManager { name });
        }
        Ok(Self {
            manager,
            force: false,
        })
    }

    /// Takes over fields that other managers hold.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// Applies `object`: creates it, or changes the fields it has; gives the whole result.
    ///
    /// With a `resourceVersion` the server refuses the object with 409 Conflict unless it still has
    /// that version. `managedFields` are left out, as the server demands.
    ///
    /// Cancellation safety: a dropped call may have been carried out; applying again is harmless.
    ///
    /// # Errors
    /// [`Error::Conflict`] names each field that belongs to somebody else (never with
    /// [`force`](Self::force)); [`Error::Incomplete`], [`Error::Serialize`], [`Error::Send`].
    pub async fn object<K>(&self, api: &Api<K>, object: &impl Serialize) -> Result<K, Error>
    where
        K: Resource + Clone + Debug + DeserializeOwned + 'static,
    {
        let (name, object) = prepared(object)?;
        let result = api
            .patch(&name, &self.params(), &Patch::Apply(object))
            .await;
        result
            .inspect(notice)
            .map_err(|error| classify(name, error))
    }

    /// As [`object`](Self::object) for the subresource `status`; other fields are ignored, and the
    /// object must exist.
    ///
    /// # Errors
    /// Those of [`object`](Self::object).
    pub async fn status<K>(&self, api: &Api<K>, object: &impl Serialize) -> Result<K, Error>
    where
        K: Resource + Clone + Debug + DeserializeOwned + 'static,
    {
        let (name, object) = prepared(object)?;
        let result = api
            .patch_status(&name, &self.params(), &Patch::Apply(object))
            .await;
        result
            .inspect(notice)
            .map_err(|error| classify(name, error))
    }

    /// Applies `status`, or the part of it that this controller sets, as the status of `object`.
    ///
    /// # Errors
    /// Those of [`object`](Self::object).
    pub async fn status_of<K>(
        &self,
        api: &Api<K>,
        object: &K,
        status: &impl Serialize,
    ) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
    {
        let status = serde_json::to_value(status).map_err(Error::Serialize)?;
        let whole = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": object.meta().name },
            "status": status,
        });
        self.status(api, &whole).await
    }

    fn params(&self) -> PatchParams {
        PatchParams {
            field_manager: Some(self.manager.clone()),
            force: self.force,
            ..PatchParams::default()
        }
    }
}

/// Name and body of an object that can be applied.
fn prepared(object: &impl Serialize) -> Result<(String, Value), Error> {
    let mut object = serde_json::to_value(object).map_err(Error::Serialize)?;
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    for (pointer, field) in [
        ("/apiVersion", "apiVersion"),
        ("/kind", "kind"),
        ("/metadata/name", "metadata.name"),
    ] {
        if text(pointer).is_empty() {
            return Err(Error::Incomplete { field });
        }
    }
    let name = text("/metadata/name").to_owned();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Ok((name, object))
}

fn classify(object: String, error: kube_client::Error) -> Error {
    let fields = match &error {
        kube_client::Error::Api(status) => field_conflicts(status),
        _ => Vec::new(),
    };
    if fields.is_empty() {
        let source = Box::new(error);
        Error::Send { object, source }
    } else {
        Error::Conflict { object, fields }
    }
}

fn field_conflicts(status: &Status) -> Vec<FieldConflict> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| FieldConflict {
            field: cause.field.clone(),
            holder: cause.message.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn c74_a_field_manager_has_1_to_128_printable_characters() {
        let long = "ä".repeat(129);
        for (name, valid) in [
            ("mirror.example.dev", true),
            ("my controller", true),
            ("", false),
            ("a\nb", false),
            (&long[2..], true),
            (&long, false),
        ] {
            assert_eq!(Apply::as_manager(name).is_ok(), valid, "{name:?}");
        }
    }

    #[test]
    fn c74_an_object_to_apply_has_type_and_name_and_no_managed_fields() {
        let mut typed = ConfigMap::default();
        typed.metadata.name = Some("a".to_owned());
        typed.metadata.managed_fields = Some(Vec::new());
        let (name, body) = prepared(&typed).unwrap();
        assert_eq!(name, "a");
        let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        assert_eq!(body, expected);
        for (object, missing) in [
            (
                json!({"kind": "A", "metadata": {"name": "a"}}),
                "apiVersion",
            ),
            (
                json!({"apiVersion": "v1", "metadata": {"name": "a"}}),
                "kind",
            ),
            (json!({"apiVersion": "v1", "kind": "A"}), "metadata.name"),
            (
                json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": ""}}),
                "metadata.name",
            ),
        ] {
            let error = prepared(&object).unwrap_err();
            assert!(
                matches!(error, Error::Incomplete { field } if field == missing),
                "{error}"
            );
        }
    }
}
