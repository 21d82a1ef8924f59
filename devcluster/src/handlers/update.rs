//! Update: PUT, and the read-modify-write that patches and subresources share.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Api, Call, body,
    create::{Created, set_namespace},
    options::WriteOptions,
    ownership::{Ownership, Writer, put_entries, take_entries, unchanged},
    present::View,
};
use crate::{
    apply::Live,
    error::{ApiError, ApiResult},
    http::response::ApiResponse,
    registry::{
        Resource,
        metadata::{self, Write},
        resource::metadata_text,
    },
    schema::FieldError,
    store::{CommitError, Key, StoredObject},
};

/// Which part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything but the status, where the status is a subresource.
    Main,
    /// The status.
    Status,
    /// Everything, by the server itself.
    Whole,
}

/// How a change came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A whole object was sent: it must name the version it replaces.
    Put,
    /// The sent change was applied to the newest version.
    Patch,
}

/// A change of one object.
pub(super) struct Change<'a> {
    pub(super) resource: &'a Resource,
    pub(super) key: &'a Key,
    pub(super) part: Part,
    pub(super) origin: Origin,
    pub(super) ownership: Ownership<'a>,
    pub(super) dry_run: bool,
}

/// The outcome of a change.
pub(super) enum Changed {
    /// Stored, or equal to what was stored.
    Stored(Arc<StoredObject>),
    /// Checked only.
    Checked(Value),
    /// It took away what kept the object: removed.
    Removed(Arc<StoredObject>),
}

impl Changed {
    pub(super) fn response(self, view: &View) -> ApiResponse {
        match self {
            Self::Stored(object) | Self::Removed(object) => view.stored(200, &object),
            Self::Checked(value) => view.value(200, value),
        }
    }
}

impl Api {
    pub(super) fn update(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        self.update_part(call, Part::Main)
    }

    pub(super) fn update_part(&self, call: &mut Call, part: Part) -> ApiResult<ApiResponse> {
        if call.path.name.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let view = View::for_item(self, call)?;
        let options = WriteOptions::parse(&call.query, "UpdateOptions")?;
        let object = body::decode(call, options)?;
        let sent_name = metadata_text(&object, "name");
        if sent_name != call.name()
            && !(sent_name.is_empty()
                && part == Part::Main
                && call.resource.traits.create_on_update)
        {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({sent_name}) does not match the name on the URL ({})",
                call.name()
            )));
        }
        let resource = Arc::clone(&call.resource);
        let writer = Writer::of(call, subresource_of(part));
        let key = call.key();
        if part == Part::Main
            && resource.traits.create_on_update
            && resource.collection.get(&key).is_none()
        {
            return self.create_by_update(call, &view, object, options, &writer);
        }
        let mut change = Change {
            resource: &resource,
            key: &key,
            part,
            origin: Origin::Put,
            ownership: Ownership::Update(&writer),
            dry_run: options.dry_run,
        };
        if !resource.traits.unconditional_update
            && metadata_text(&object, "resourceVersion").is_empty()
            && resource.collection.get(&key).is_some()
        {
            let error = FieldError::invalid(
                "metadata.resourceVersion",
                0,
                "must be specified for an update",
            );
            return Err(resource.invalid(call.name(), &[error]));
        }
        let changed = self.change(&mut change, &mut call.warnings, |_, _| Ok(object.clone()))?;
        Ok(changed.response(&view))
    }

    fn create_by_update(
        &self,
        call: &mut Call,
        view: &View,
        mut object: Value,
        options: WriteOptions,
        writer: &Writer,
    ) -> ApiResult<ApiResponse> {
        let uid = metadata_text(&object, "uid");
        if !uid.is_empty() {
            let why =
                format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
            return Err(ApiError::conflict(call.resource.named(), call.name(), &why));
        }
        self.authorize_create(call)?;
        let metadata = crate::registry::resource::metadata_mut(&mut object);
        metadata.remove("resourceVersion");
        metadata.insert("name".to_owned(), Value::from(call.path.name.clone()));
        let resource = Arc::clone(&call.resource);
        let namespace = call.namespace().map(str::to_owned);
        let created = self.create_object(
            &resource,
            namespace.as_deref(),
            object,
            Ownership::Update(writer),
            options.dry_run,
            &mut call.warnings,
        )?;
        Ok(match created {
            Created::Stored(stored) => view.stored(201, &stored),
            Created::Checked(value) => view.value(201, value),
        })
    }

    /// Reads, proposes and commits until nobody changed the object in between.
    ///
    /// `propose` makes the wanted object from the current one. It may be called several times.
    ///
    /// # Errors
    /// 404 without the object, 409 when the proposal names another version, 422 when it breaks rules.
    pub(super) fn change(
        &self,
        change: &mut Change<'_>,
        warnings: &mut Vec<String>,
        mut propose: impl FnMut(&Value, &mut Vec<String>) -> ApiResult<Value>,
    ) -> ApiResult<Changed> {
        let Change {
            resource,
            key,
            part,
            origin,
            ownership,
            dry_run,
        } = *change;
        loop {
            let stored = resource
                .collection
                .get(key)
                .ok_or_else(|| ApiError::not_found(resource.named(), key.name()))?;
            let mut current = resource.read(&stored);
            let mut new_warnings = Vec::new();
            let mut proposed = propose(&current, &mut new_warnings)?;
            check_identity(resource, key, &proposed, &current, origin)?;
            let live_entries = take_entries(&mut current);
            let sent = take_entries(&mut proposed);
            let live = Live {
                object: &current,
                entries: live_entries.as_ref(),
                exists: true,
            };
            let entries = self.entries_after(resource, part, ownership, live, (&proposed, sent));
            let mut new = self.prepare(change, proposed, &current, &mut new_warnings)?;
            let errors = validate(resource, part, &new, &current);
            if !errors.is_empty() {
                return Err(resource.invalid(key.name(), &errors));
            }
            let same = unchanged((&new, entries.as_ref()), (&current, live_entries.as_ref()));
            put_entries(&mut new, if same { live_entries } else { entries });
            let committed = if dry_run {
                return Ok(finish_dry_run(warnings, new_warnings, new));
            } else if released(resource, &new) {
                let draft = resource.draft(new);
                resource
                    .collection
                    .remove(key, stored.revision, Some(draft))
                    .map(Changed::Removed)
            } else if same {
                Ok(Changed::Stored(stored))
            } else {
                resource
                    .collection
                    .replace(key, stored.revision, resource.draft(new))
                    .map(Changed::Stored)
            };
            match committed {
                Ok(changed) => {
                    warnings.append(&mut new_warnings);
                    return Ok(changed);
                }
                // Somebody else made progress; the next round sees it.
                Err(CommitError::Changed | CommitError::Missing | CommitError::Exists(_)) => {}
            }
        }
    }

    /// A change by the control plane itself, which may touch everything. Gives the object's last content if
    /// that took away what kept it.
    ///
    /// # Errors
    /// 404 without the object, 422 when the result breaks rules.
    pub(crate) fn change_whole(
        &self,
        resource: &Resource,
        key: &Key,
        mut edit: impl FnMut(&Value) -> Value,
    ) -> ApiResult<Option<Arc<StoredObject>>> {
        let part = Part::Whole;
        let mut change = Change {
            resource,
            key,
            part,
            origin: Origin::Patch,
            ownership: Ownership::Kept,
            dry_run: false,
        };
        let changed = self.change(&mut change, &mut Vec::new(), |current, _| Ok(edit(current)))?;
        Ok(match changed {
            Changed::Removed(last) => Some(last),
            Changed::Stored(_) | Changed::Checked(_) => None,
        })
    }

    /// The object that the proposal leads to: what it may not touch is restored.
    fn prepare(
        &self,
        change: &Change<'_>,
        mut new: Value,
        current: &Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        let Change {
            resource,
            key,
            part,
            ..
        } = *change;
        set_namespace(&mut new, key.namespace())?;
        warnings.extend(metadata::dedup_owners(&mut new));
        if part == Part::Main {
            warnings.extend(metadata::finalizer_warnings(&new));
        }
        match part {
            Part::Main if resource.status => copy_member(&mut new, current, "status"),
            Part::Main | Part::Whole => {}
            Part::Status => new = with_status(resource, &new, current),
        }
        metadata::prepare_update(&mut new, current);
        let revision = Value::from(metadata_text(current, "resourceVersion"));
        new["metadata"]["resourceVersion"] = revision;
        (resource.hooks.default)(&mut new);
        match part {
            Part::Main => (resource.hooks.prepare_update)(&mut new, current),
            Part::Status => (resource.hooks.prepare_status)(&mut new, current),
            Part::Whole => {}
        }
        // A binding or finalization is no change of what is wanted.
        if part == Part::Main {
            metadata::count_generation(resource, &mut new, current);
        }
        Ok(new)
    }
}

fn finish_dry_run(
    warnings: &mut Vec<String>,
    mut new_warnings: Vec<String>,
    new: Value,
) -> Changed {
    warnings.append(&mut new_warnings);
    Changed::Checked(new)
}

/// How entries of owners name a part.
pub(super) fn subresource_of(part: Part) -> &'static str {
    match part {
        Part::Status => "status",
        Part::Main | Part::Whole => "",
    }
}

/// Whether an object that is being deleted has lost everything that kept it.
pub(super) fn released(resource: &Resource, object: &Value) -> bool {
    let grace = object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0);
    metadata::is_deleting(object)
        && grace == 0
        && metadata::finalizers(object).is_empty()
        && !(resource.hooks.holds_deletion)(object)
}

/// Sets a member to that of another object, or removes it where the other has none.
fn copy_member(target: &mut Value, source: &Value, key: &str) {
    let Some(target) = target.as_object_mut() else {
        return;
    };
    match source.get(key) {
        Some(value) => target.insert(key.to_owned(), value.clone()),
        None => target.remove(key),
    };
}

/// The current object with the proposal's status. Built-in kinds also take labels and annotations, except
/// those whose status resets them.
fn with_status(resource: &Resource, proposed: &Value, current: &Value) -> Value {
    let mut new = current.clone();
    copy_member(&mut new, proposed, "status");
    if !resource.is_custom() && !resource.traits.status_keeps_metadata {
        copy_member(&mut new, proposed, "metadata");
    }
    new
}

fn check_identity(
    resource: &Resource,
    key: &Key,
    proposed: &Value,
    current: &Value,
    origin: Origin,
) -> ApiResult<()> {
    let name = metadata_text(proposed, "name");
    if name != key.name() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name()
        )));
    }
    let (uid, stored_uid) = (
        metadata_text(proposed, "uid"),
        metadata_text(current, "uid"),
    );
    if origin == Origin::Put && !uid.is_empty() && uid != stored_uid {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {stored_uid}"
        );
        return Err(ApiError::conflict(resource.named(), key.name(), &why));
    }
    let revision = metadata_text(proposed, "resourceVersion");
    if !revision.is_empty() {
        if revision.parse::<u64>().is_err() {
            let why = format!("strconv.ParseUint: parsing \"{revision}\": invalid syntax");
            return Err(ApiError::unknown(why));
        }
        if revision != metadata_text(current, "resourceVersion") {
            return Err(ApiError::modified(resource.named(), key.name()));
        }
    }
    Ok(())
}

fn validate(resource: &Resource, part: Part, new: &Value, current: &Value) -> Vec<FieldError> {
    let mut errors = metadata::validate(resource, new, Write::Update(current));
    match (resource.custom(), part) {
        (Some(custom), Part::Status) => errors.extend(custom.schema.validate_status(new, current)),
        (Some(custom), _) => errors.extend(custom.schema.validate(new, Some(current))),
        (None, Part::Main) => errors.extend((resource.hooks.validate)(new, Some(current))),
        (None, _) => {}
    }
    errors
}
