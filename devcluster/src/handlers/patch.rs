//! Patch: merge, JSON and strategic merge.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Api, Call, body,
    options::{FieldValidation, WriteOptions},
    ownership::{Ownership, Writer},
    present::View,
    update::{Change, Origin, Part, subresource_of},
};
use crate::{
    apply::FieldTracking,
    error::{ApiError, ApiResult},
    http::response::ApiResponse,
    patch::{self, PatchError},
    registry::{
        Resource,
        resource::{metadata_text, set_type},
    },
    schema::FieldError,
};

/// The kinds of patches that are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

impl PatchType {
    /// The type of a patch; applies only where fields have owners.
    pub(super) fn of(call: &Call, applies: bool) -> ApiResult<Self> {
        let custom = call.resource.is_custom();
        match body::media_type(call) {
            JSON => Ok(Self::Json),
            MERGE => Ok(Self::Merge),
            STRATEGIC if !custom => Ok(Self::Strategic),
            APPLY if applies => Ok(Self::Apply),
            _ => {
                let offered = [
                    (JSON, true),
                    (MERGE, true),
                    (STRATEGIC, !custom),
                    (APPLY, applies),
                ];
                let offered = offered.into_iter().filter(|(_, is)| *is);
                let offered: Vec<&str> = offered.map(|(name, _)| name).collect();
                Err(ApiError::unsupported_media_type(&offered))
            }
        }
    }
}

/// A patch, decoded.
#[derive(Clone, Debug)]
pub(super) struct Patch {
    kind: PatchType,
    value: Value,
}

impl Patch {
    /// Decodes a patch that is no apply.
    pub(super) fn decode(call: &Call) -> ApiResult<Self> {
        let kind = PatchType::of(call, false)?;
        let value: Value = serde_json::from_slice(&call.body)
            .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
        if kind != PatchType::Json && !value.is_object() {
            return Err(ApiError::bad_request(format!(
                "error decoding patch: it must be a JSON object, not {value}"
            )));
        }
        Ok(Self { kind, value })
    }

    /// The patched object.
    pub(super) fn apply(&self, resource: &Resource, current: &Value) -> ApiResult<Value> {
        let applied = match self.kind {
            PatchType::Json => {
                let mut new = current.clone();
                patch::json(&mut new, &self.value).map(|()| new)
            }
            PatchType::Merge => {
                let mut new = current.clone();
                patch::merge(&mut new, &self.value);
                Ok(new)
            }
            PatchType::Strategic => match resource.builtin_type() {
                Some(ty) => patch::strategic(current, &self.value, ty),
                None => {
                    return Err(ApiError::unsupported_media_type(&[JSON, MERGE]));
                }
            },
            PatchType::Apply => {
                return Err(ApiError::unsupported_media_type(&[JSON, MERGE, STRATEGIC]));
            }
        };
        let new = applied.map_err(|error| match error {
            PatchError::TooManyOperations(found) => {
                ApiError::too_many_patch_operations(patch::MAX_JSON_PATCH_OPERATIONS, found)
            }
            PatchError::Unprocessable(_) => ApiError::unprocessable(error.to_string()),
            PatchError::Failed(message) => ApiError::unknown(message),
            other => ApiError::bad_request(other.to_string()),
        })?;
        if new.is_object() {
            Ok(new)
        } else {
            Err(ApiError::unprocessable("the patch leaves no object"))
        }
    }
}

impl Api {
    pub(super) fn patch(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        self.patch_part(call, Part::Main)
    }

    pub(super) fn patch_part(&self, call: &mut Call, part: Part) -> ApiResult<ApiResponse> {
        if call.path.name.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        // A type that is not offered is told before its options are judged.
        let applies = self.tracking != FieldTracking::Off;
        if PatchType::of(call, applies)? == PatchType::Apply {
            return self.apply(call, part);
        }
        let view = View::for_item(self, call)?;
        let options = WriteOptions::parse(&call.query, "PatchOptions")?;
        let patch = Patch::decode(call)?;
        let resource = Arc::clone(&call.resource);
        let key = call.key();
        let writer = Writer::of(call, subresource_of(part));
        let mut change = Change {
            resource: &resource,
            key: &key,
            part,
            origin: Origin::Patch,
            ownership: Ownership::Update(&writer),
            dry_run: options.dry_run,
        };
        let changed = self.change(&mut change, &mut call.warnings, |current, warnings| {
            let mut new = patch.apply(&resource, current)?;
            check_type(&resource, &new, &patch.value)?;
            set_type(&mut new, &resource.api_version(), &resource.kind);
            let unknown = resource
                .normalise(&mut new)
                .map_err(|error| ApiError::invalid_patch(&patch.value, error.message()))?;
            let problems = body::problems(&unknown, &[]);
            match options.field_validation {
                FieldValidation::Ignore => {}
                FieldValidation::Warn => warnings.extend(problems),
                FieldValidation::Strict if problems.is_empty() => {}
                FieldValidation::Strict => {
                    let why = format!("strict decoding error: {}", problems.join(", "));
                    return Err(ApiError::invalid_patch(&patch.value, &why));
                }
            }
            Ok(new)
        })?;
        Ok(changed.response(&view))
    }
}

/// A patch may not turn an object into one of another kind.
fn check_type(resource: &Resource, new: &Value, patch: &Value) -> ApiResult<()> {
    let kind = new["kind"].as_str().unwrap_or_default();
    let version = new["apiVersion"].as_str().unwrap_or_default();
    let expected = resource.api_version();
    if *kind == *resource.kind && version == expected {
        return Ok(());
    }
    if !resource.is_custom() {
        let why = format!("the type must stay {expected}, Kind={}", resource.kind);
        return Err(ApiError::invalid_patch(patch, &why));
    }
    let pairs = [
        ("apiVersion", version, expected.as_str()),
        ("kind", kind, &*resource.kind),
    ];
    let errors: Vec<FieldError> = pairs
        .into_iter()
        .filter(|(_, is, must)| is != must)
        .map(|(field, is, must)| FieldError::invalid(field, is, format!("must be {must}")))
        .collect();
    let name = metadata_text(new, "name");
    Err(ApiError::invalid(&resource.group, kind, name, &errors))
}
