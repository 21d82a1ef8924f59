//! Apply: a configuration of one manager, laid over the object or made into one.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Api, Call, body,
    create::Created,
    options::{FieldValidation, WriteOptions},
    ownership::{Ownership, Writer, put_entries, take_entries, unborn},
    present::View,
    update::{Change, Origin, Part},
};
use crate::{
    apply::{Live, Tracker},
    error::{ApiError, ApiResult},
    http::response::ApiResponse,
    registry::{
        Resource,
        resource::{metadata_mut, metadata_text},
    },
    store::Key,
};

impl Api {
    pub(super) fn apply(&self, call: &mut Call, part: Part) -> ApiResult<ApiResponse> {
        let view = View::for_item(self, call)?;
        let options = WriteOptions::parse_apply(&call.query)?;
        let config = decode(call, options)?;
        let resource = Arc::clone(&call.resource);
        let key = call.key();
        let subresource = if part == Part::Status { "status" } else { "" };
        let writer = Writer::of(call, subresource);
        let force = options.force;
        check_type(&resource.api_version(), &resource.kind, &config)?;
        self.with_tracker(&resource, part, &writer, |tracker| {
            tracker.check_config(&config)
        })?;
        loop {
            if resource.collection.get(&key).is_none() {
                if part != Part::Main {
                    return Err(ApiError::not_found(resource.named(), key.name()));
                }
                let object = self.with_tracker(&resource, part, &writer, |tracker| {
                    laid_over(tracker, &resource, None, &config, force)
                })?;
                match self.create_applied(call, &resource, &key, object, options.dry_run) {
                    // Somebody made it meanwhile: it is applied to.
                    Err(error) if error.is_already_exists() => continue,
                    created => {
                        return Ok(match created? {
                            Created::Stored(stored) => view.stored(201, &stored),
                            Created::Checked(value) => view.value(201, value),
                        });
                    }
                }
            }
            let mut change = Change {
                resource: &resource,
                key: &key,
                part,
                origin: Origin::Patch,
                ownership: Ownership::Proposed,
                dry_run: options.dry_run,
            };
            let changed = self.change(&mut change, &mut call.warnings, |current, _| {
                self.with_tracker(&resource, part, &writer, |tracker| {
                    laid_over(tracker, &resource, Some(current), &config, force)
                })
            });
            match changed {
                // It went meanwhile: it is made again.
                Err(error) if error.code() == 404 && part == Part::Main => {}
                changed => return Ok(changed?.response(&view)),
            }
        }
    }

    fn create_applied(
        &self,
        call: &mut Call,
        resource: &Resource,
        key: &Key,
        mut object: Value,
        dry_run: bool,
    ) -> ApiResult<Created> {
        let uid = metadata_text(&object, "uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict(resource.named(), key.name(), &why));
        }
        let name = metadata_text(&object, "name");
        if name.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                key.name()
            )));
        }
        if name != key.name() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                key.name()
            )));
        }
        self.authorize_create(call)?;
        // As in the real server: what does not exist has no version to be compared with.
        metadata_mut(&mut object).remove("resourceVersion");
        self.create_object(
            resource,
            key.namespace(),
            object,
            Ownership::Proposed,
            dry_run,
            &mut call.warnings,
        )
    }
}

/// The object that an apply leads to, with defaults and its entries.
fn laid_over(
    tracker: &Tracker<'_>,
    resource: &Resource,
    current: Option<&Value>,
    config: &Value,
    force: bool,
) -> ApiResult<Value> {
    let mut live = current.cloned().unwrap_or_else(|| unborn(resource));
    let entries = take_entries(&mut live);
    let live = Live {
        object: &live,
        entries: entries.as_ref(),
        exists: current.is_some(),
    };
    let mut applied = tracker.applied(live, config, force)?;
    // What the configuration may hold was checked; what is left are texts of a form.
    resource.normalise(&mut applied.object).map_err(|error| {
        ApiError::unknown(format!(
            "failed to convert new object ({}/{}) to proper version: {}",
            metadata_text(config, "namespace"),
            metadata_text(config, "name"),
            error.message()
        ))
    })?;
    put_entries(&mut applied.object, applied.entries);
    Ok(applied.object)
}

/// The configuration of a request. Keys that stand there twice are refused, warned of or ignored by the
/// options; what the kind does not have is never taken.
pub(super) fn decode(call: &mut Call, options: WriteOptions) -> ApiResult<Value> {
    let unreadable = |error: ApiError| {
        ApiError::bad_request(format!("error decoding patch: {}", error.message()))
    };
    let body::Document { value, duplicates } =
        body::yaml_document(&call.body).map_err(unreadable)?;
    if !value.is_object() {
        return Err(ApiError::bad_request(format!(
            "error decoding patch: the configuration must be an object, not {value}"
        )));
    }
    match (options.field_validation, duplicates.as_slice()) {
        (FieldValidation::Ignore, _) | (_, []) => {}
        (FieldValidation::Warn, _) => call.warnings.extend(duplicates),
        (FieldValidation::Strict, _) => {
            return Err(ApiError::bad_request(format!(
                "error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
                duplicates.join("\n  ")
            )));
        }
    }
    Ok(value)
}

/// A configuration names the kind and the version of its path.
pub(super) fn check_type(expected: &str, kind: &str, config: &Value) -> ApiResult<()> {
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let (named, api_version) = (text("kind"), text("apiVersion"));
    if named == kind && api_version == expected {
        return Ok(());
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Err(ApiError::bad_request(format!(
        "invalid object type: {group}/{version}, Kind={named}"
    )))
}
