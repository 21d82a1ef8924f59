//! The scale subresource: `autoscaling/v1` Scale of anything that counts replicas.

use std::sync::Arc;

use http::header;
use serde_json::{Map, Value, json};

use super::{
    Api, Call, apply, body,
    options::WriteOptions,
    ownership::{Ownership, Writer, put_entries, take_entries},
    patch::{Patch, PatchType},
    subresource::object_of,
    update::{Change, Origin, Part},
};
use crate::{
    apply::{FieldTracking, Live, Replicas, SCALE_VERSION},
    error::{ApiError, ApiResult},
    http::{
        accept::{self, Offer},
        response::{self, ApiResponse},
    },
    registry::{
        Resource,
        resource::{ScalePaths, metadata_text},
    },
    schema::FieldError,
};

impl Api {
    pub(super) fn get_scale(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        accept::negotiate(call.header(header::ACCEPT), Offer::Plain)?;
        let stored = self.existing(call)?;
        let object = call.resource.read(&stored);
        let scale = scale_of(&call.resource, &object)?;
        Ok(response::json(200, &scale))
    }

    pub(super) fn update_scale(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let sent = body::decode_as(call, "autoscaling/v1", "Scale")?;
        let sent_name = metadata_text(&sent, "name");
        if sent_name != call.name() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({sent_name}) does not match the name on the URL ({})",
                call.name()
            )));
        }
        let options = WriteOptions::parse(&call.query, "UpdateOptions")?;
        self.write_scale(call, options, |_| Ok(Wanted::of(sent.clone())))
    }

    pub(super) fn patch_scale(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let applies = self.tracking != FieldTracking::Off;
        if PatchType::of(call, applies)? == PatchType::Apply {
            return self.apply_scale(call);
        }
        let patch = Patch::decode(call)?;
        let resource = Arc::clone(&call.resource);
        let options = WriteOptions::parse(&call.query, "PatchOptions")?;
        self.write_scale(call, options, |live| {
            patch.apply(&resource, live.object).map(Wanted::of)
        })
    }

    fn apply_scale(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let options = WriteOptions::parse_apply(&call.query)?;
        let config = apply::decode(call, options)?;
        apply::check_type(SCALE_VERSION, "Scale", &config)?;
        let writer = Writer::of(call, "scale");
        self.with_scale_tracker(&writer, |tracker| tracker.check_config(&config))?;
        if call.resource.is_custom() {
            // The real server cannot do that either, and says so in these words.
            return Err(ApiError::unknown(format!(
                "failed to convert new object ({}/{}; {SCALE_VERSION}, Kind=Scale) to proper version: \
                 request to convert CR to an invalid group/version: {SCALE_VERSION}",
                metadata_text(&config, "namespace"),
                metadata_text(&config, "name"),
            )));
        }
        self.write_scale(call, options, |live| {
            let applied = self.with_scale_tracker(&writer, |tracker| {
                tracker.applied(live, &config, options.force)
            })?;
            Ok(Wanted {
                scale: applied.object,
                entries: Some(applied.entries),
            })
        })
    }

    fn write_scale(
        &self,
        call: &mut Call,
        options: WriteOptions,
        wanted: impl Fn(Live<'_>) -> ApiResult<Wanted>,
    ) -> ApiResult<ApiResponse> {
        accept::negotiate(call.header(header::ACCEPT), Offer::Plain)?;
        let resource = Arc::clone(&call.resource);
        let key = call.key();
        let writer = Writer::of(call, "scale");
        let mut change = Change {
            resource: &resource,
            key: &key,
            part: Part::Main,
            origin: Origin::Patch,
            ownership: Ownership::Proposed,
            dry_run: options.dry_run,
        };
        let changed = self.change(&mut change, &mut call.warnings, |current, _| {
            let paths = paths_of(&resource)?;
            let at = Replicas::at(&paths.spec_replicas);
            // A missing count is made by the write.
            let scale = scale_of(&resource, current).unwrap_or_else(|_| json!({"spec": {}}));
            let mut new = current.clone();
            let entries = take_entries(&mut new);
            let scale_entries = at.entries_of_scale(entries.as_ref());
            let live = Live {
                object: &scale,
                entries: scale_entries.as_ref(),
                exists: true,
            };
            let Wanted {
                scale: wanted,
                entries: applied,
            } = wanted(live)?;
            let replicas = match &wanted["spec"]["replicas"] {
                Value::Null => 0,
                count => count.as_i64().ok_or_else(|| {
                    ApiError::bad_request(format!(
                        "spec.replicas must be a whole number, not {count}"
                    ))
                })?,
            };
            if replicas < 0 {
                let error = FieldError::invalid(
                    "spec.replicas",
                    replicas,
                    "must be greater than or equal to 0",
                );
                return Err(ApiError::invalid(
                    "autoscaling",
                    "Scale",
                    key.name(),
                    &[error],
                ));
            }
            if entries.is_some() {
                let scale_entries = applied.unwrap_or_else(|| {
                    let changed = json!({"spec": {"replicas": replicas}});
                    let before = json!({"spec": {"replicas": scale["spec"]["replicas"]}});
                    let live = Live {
                        object: &before,
                        ..live
                    };
                    self.with_scale_tracker(&writer, |tracker| tracker.taken(live, &changed))
                });
                let version = resource.api_version();
                let entries =
                    at.entries_of_object(entries.as_ref(), scale_entries.as_ref(), &version);
                put_entries(&mut new, entries);
            }
            let revision = metadata_text(&wanted, "resourceVersion");
            new["metadata"]["resourceVersion"] = Value::from(revision);
            set_path(&mut new, &paths.spec_replicas, Value::from(replicas));
            Ok(new)
        })?;
        let object = object_of(&resource, changed);
        Ok(response::json(200, &scale_of(&resource, &object)?))
    }
}

/// A Scale that is wanted, and its entries where an apply said whose it is.
struct Wanted {
    scale: Value,
    entries: Option<Option<Value>>,
}

impl Wanted {
    fn of(scale: Value) -> Self {
        Self {
            scale,
            entries: None,
        }
    }
}

fn paths_of(resource: &Resource) -> ApiResult<&ScalePaths> {
    resource
        .scale
        .as_ref()
        .ok_or_else(ApiError::no_such_resource)
}

/// The Scale of an object.
fn scale_of(resource: &Resource, object: &Value) -> ApiResult<Value> {
    let paths = paths_of(resource)?;
    let replicas = path(object, &paths.spec_replicas)
        .and_then(Value::as_i64)
        .ok_or_else(|| {
            ApiError::internal(&format!(
                "the spec replicas field \"{}\" does not exist",
                paths.spec_replicas
            ))
        })?;
    let mut metadata = Map::new();
    for key in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = object["metadata"].get(key) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    let mut status = json!({
        "replicas": path(object, &paths.status_replicas).and_then(Value::as_i64).unwrap_or(0),
    });
    let selector = paths
        .label_selector
        .as_deref()
        .and_then(|at| path(object, at));
    let selector = match selector {
        Some(Value::String(text)) => text.clone(),
        Some(selector) => selector_text(selector),
        None => String::new(),
    };
    if !selector.is_empty() {
        status["selector"] = Value::from(selector);
    }
    Ok(json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": if replicas == 0 { json!({}) } else { json!({"replicas": replicas}) },
        "status": status,
    }))
}

/// A LabelSelector object in the grammar of `labelSelector`.
fn selector_text(selector: &Value) -> String {
    let equal = selector["matchLabels"].as_object().into_iter().flatten();
    let mut terms: Vec<String> = equal
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for expression in selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let values = values.join(",");
        terms.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.join(",")
}

fn path<'a>(object: &'a Value, dotted: &str) -> Option<&'a Value> {
    dotted
        .trim_start_matches('.')
        .split('.')
        .try_fold(object, |at, step| at.get(step))
}

fn set_path(object: &mut Value, dotted: &str, value: Value) {
    let mut at = object;
    for step in dotted.trim_start_matches('.').split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[step];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_written_in_the_grammar_of_requests() {
        let selector = json!({
            "matchLabels": {"a": "b"},
            "matchExpressions": [
                {"key": "k", "operator": "In", "values": ["x", "y"]},
                {"key": "z", "operator": "DoesNotExist"},
            ],
        });
        assert_eq!(selector_text(&selector), "a=b,k in (x,y),!z");
    }

    #[test]
    fn a_missing_path_is_made() {
        let mut object = json!({"spec": null});
        set_path(&mut object, ".spec.a.replicas", json!(3));
        assert_eq!(object, json!({"spec": {"a": {"replicas": 3}}}));
    }
}
