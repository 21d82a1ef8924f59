//! Create.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Api, Call, body,
    options::WriteOptions,
    ownership::{Ownership, Writer, put_entries, take_entries, unborn},
    present::View,
    update::Part,
};
use crate::{
    apply::Live,
    error::{ApiError, ApiResult, Named},
    http::response::ApiResponse,
    registry::{
        Resource,
        metadata::{self, Write},
        resource::{metadata_mut, metadata_text},
    },
    store::{CommitError, Key, StoredObject},
};

/// Random suffixes that are tried before a `generateName` is given up.
const NAME_TRIES: usize = 8;

/// A created object: stored, or only checked.
pub(crate) enum Created {
    Stored(Arc<StoredObject>),
    Checked(Value),
}

impl Api {
    pub(super) fn create(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        if call.path.name.is_some() || (call.resource.namespaced && call.namespace().is_none()) {
            return Err(ApiError::method_not_allowed());
        }
        let view = View::for_item(self, call)?;
        let options = WriteOptions::parse(&call.query, "CreateOptions")?;
        let object = body::decode(call, options)?;
        let namespace = call.namespace().map(str::to_owned);
        let resource = Arc::clone(&call.resource);
        let writer = Writer::of(call, "");
        let created = self.create_object(
            &resource,
            namespace.as_deref(),
            object,
            Ownership::Update(&writer),
            options.dry_run,
            &mut call.warnings,
        )?;
        Ok(match created {
            Created::Stored(stored) => view.stored(201, &stored),
            Created::Checked(value) => view.value(201, value),
        })
    }

    /// Creates a decoded object in a namespace.
    pub(crate) fn create_object(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        mut object: Value,
        ownership: Ownership<'_>,
        dry_run: bool,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Created> {
        set_namespace(&mut object, namespace)?;
        if !metadata_text(&object, "resourceVersion").is_empty() {
            return Err(ApiError::unknown(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let generated = metadata_text(&object, "name").is_empty()
            && !metadata_text(&object, "generateName").is_empty();
        let prefix = metadata_text(&object, "generateName").to_owned();
        if generated {
            set_name(&mut object, &metadata::generated_name(&prefix));
        }
        let sent = take_entries(&mut object);
        let live = Live {
            object: &unborn(resource),
            entries: None,
            exists: false,
        };
        let entries = self.entries_after(resource, Part::Main, ownership, live, (&object, sent));
        self.prepare_new(resource, &mut object, warnings);
        put_entries(&mut object, entries);
        let name = metadata_text(&object, "name").to_owned();
        self.admit_new(resource, namespace, &name)?;
        let mut errors = metadata::validate(resource, &object, Write::Create);
        errors.extend((resource.hooks.validate)(&object, None));
        if let Some(custom) = resource.custom() {
            errors.extend(custom.schema.validate(&object, None));
        }
        if !errors.is_empty() {
            return Err(resource.invalid(&name, &errors));
        }
        for _ in 0..NAME_TRIES {
            let name = metadata_text(&object, "name");
            let key = Key::new(namespace, name);
            if dry_run {
                if let Some(found) = resource.collection.get(&key) {
                    return Err(exists(resource, name, &found));
                }
                return Ok(Created::Checked(object));
            }
            match resource
                .collection
                .create(&key, resource.draft(object.clone()))
            {
                Ok(stored) => return self.confirm(resource, namespace, &key, stored),
                Err(CommitError::Exists(found)) if !generated => {
                    return Err(exists(resource, name, &found));
                }
                Err(_) => set_name(&mut object, &metadata::generated_name(&prefix)),
            }
        }
        let name = metadata_text(&object, "name");
        Err(ApiError::already_exists(resource.named(), name).with_retry_after(1))
    }

    /// Takes an object back whose namespace went while it was checked: nobody would ever find it.
    ///
    /// What was stored before the namespace went is found by the controller that removed it.
    fn confirm(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        key: &Key,
        stored: Arc<StoredObject>,
    ) -> ApiResult<Created> {
        let Some(namespace) = namespace else {
            return Ok(Created::Stored(stored));
        };
        if self
            .namespaces
            .collection
            .get(&Key::new(None, namespace))
            .is_some()
        {
            return Ok(Created::Stored(stored));
        }
        if let Err(error) = resource.collection.remove(key, stored.revision, None) {
            tracing::debug!(
                ?key,
                ?error,
                "an object without a namespace is gone already"
            );
        }
        Err(no_namespace(namespace))
    }

    fn prepare_new(&self, resource: &Resource, object: &mut Value, warnings: &mut Vec<String>) {
        if resource.status
            && !resource.traits.status_on_create
            && let Some(object) = object.as_object_mut()
        {
            object.remove("status");
        }
        warnings.extend(metadata::dedup_owners(object));
        warnings.extend(metadata::finalizer_warnings(object));
        metadata::prepare_create(resource, object, &self.clock.stamp());
        (resource.hooks.default)(object);
        (resource.hooks.prepare_create)(object);
    }

    /// Whether something may be created there now.
    fn admit_new(&self, resource: &Resource, namespace: Option<&str>, name: &str) -> ApiResult<()> {
        if let Some(custom) = resource.custom()
            && custom.terminating
        {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(ApiError::forbidden(resource.named(), name, why));
        }
        let Some(namespace) = namespace else {
            return Ok(());
        };
        let found = self.namespaces.collection.get(&Key::new(None, namespace));
        let Some(found) = found else {
            return Err(no_namespace(namespace));
        };
        if found.field("metadata.deletionTimestamp").is_empty() {
            return Ok(());
        }
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        Err(
            ApiError::forbidden(resource.named(), name, &why).with_cause(
                "NamespaceTerminating",
                &format!("namespace {namespace} is being terminated"),
                "metadata.namespace",
            ),
        )
    }
}

fn no_namespace(name: &str) -> ApiError {
    let named = Named {
        group: "",
        plural: "namespaces",
    };
    ApiError::not_found(named, name)
}

/// The 409 for a name that is taken.
fn exists(resource: &Resource, name: &str, found: &StoredObject) -> ApiError {
    if found.field("metadata.deletionTimestamp").is_empty() {
        ApiError::already_exists(resource.named(), name)
    } else {
        ApiError::already_exists_deleting(resource.named(), name)
    }
}

fn set_name(object: &mut Value, name: &str) {
    metadata_mut(object).insert("name".to_owned(), Value::from(name));
}

/// Puts an object into the namespace of the path: an empty one is filled, another one refused. Objects of
/// cluster-scoped kinds lose theirs.
pub(super) fn set_namespace(object: &mut Value, namespace: Option<&str>) -> ApiResult<()> {
    let metadata = metadata_mut(object);
    let Some(namespace) = namespace else {
        metadata.remove("namespace");
        return Ok(());
    };
    let sent = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !sent.is_empty() && sent != namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request \
             (the object says \"{sent}\", the path \"{namespace}\")"
        )));
    }
    metadata.insert("namespace".to_owned(), Value::from(namespace));
    Ok(())
}
