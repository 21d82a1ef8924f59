//! Delete: preconditions, propagation, grace, finalizers.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    Api, Call,
    options::{DeleteOptions, Propagation},
    present::View,
};
use crate::{
    clock::seconds_text,
    error::{ApiError, ApiResult, Named},
    http::response::{self, ApiResponse},
    registry::{
        Resource, metadata,
        resource::{metadata_mut, metadata_text},
    },
    store::{CommitError, Key, StoredObject},
};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// What a deletion came to.
#[derive(Debug)]
pub(crate) enum Deletion {
    /// The object is gone; this was its last content.
    Removed(Arc<StoredObject>),
    /// The object is marked, and stays until what holds it lets go.
    Marked(Arc<StoredObject>),
    /// It would be marked.
    WouldMark(Value),
    /// It would be gone.
    WouldRemove(Value),
}

impl Api {
    pub(super) fn delete(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let view = View::for_item(self, call)?;
        let options = DeleteOptions::parse(call)?;
        let resource = Arc::clone(&call.resource);
        let key = call.key();
        Ok(match self.delete_object(&resource, &key, &options)? {
            Deletion::Marked(object) => view.stored(200, &object),
            Deletion::WouldMark(object) => view.value(200, object),
            Deletion::Removed(object) if resource.traits.delete_returns_object => {
                view.stored(200, &object)
            }
            Deletion::WouldRemove(object) if resource.traits.delete_returns_object => {
                view.value(200, object)
            }
            Deletion::Removed(object) => response::json(
                200,
                &success(&resource, &key, &object.field("metadata.uid")),
            ),
            Deletion::WouldRemove(object) => response::json(
                200,
                &success(&resource, &key, metadata_text(&object, "uid")),
            ),
        })
    }

    /// Deletes one object by the rules of its kind.
    ///
    /// # Errors
    /// 404 without the object, 409 when a precondition fails, 403 when it may not be deleted.
    pub(crate) fn delete_object(
        &self,
        resource: &Resource,
        key: &Key,
        options: &DeleteOptions,
    ) -> ApiResult<Deletion> {
        loop {
            let stored = resource
                .collection
                .get(key)
                .ok_or_else(|| ApiError::not_found(resource.named(), key.name()))?;
            let current = resource.read(&stored);
            check_preconditions(resource, key, &current, options)?;
            if let Some(why) = (resource.hooks.deny_delete)(&current) {
                return Err(ApiError::forbidden(resource.named(), key.name(), why));
            }
            let marked = mark(resource, &current, options, self.clock.now());
            let committed = match (marked, options.dry_run) {
                (Some(new), true) => return Ok(Deletion::WouldMark(new)),
                (None, true) => return Ok(Deletion::WouldRemove(current)),
                (Some(new), false) if new == current => return Ok(Deletion::Marked(stored)),
                (Some(new), false) => resource
                    .collection
                    .replace(key, stored.revision, resource.draft(new))
                    .map(Deletion::Marked),
                (None, false) => resource
                    .collection
                    .remove(key, stored.revision, None)
                    .map(Deletion::Removed),
            };
            match committed {
                Ok(deletion) => return Ok(deletion),
                Err(CommitError::Changed | CommitError::Missing | CommitError::Exists(_)) => {}
            }
        }
    }
}

/// The answer to a deletion that removed the object.
pub(super) fn success(resource: &Resource, key: &Key, uid: &str) -> Value {
    let mut details = json!({"name": key.name(), "kind": &*resource.plural, "uid": uid});
    if !resource.group.is_empty() {
        details["group"] = Value::from(&*resource.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

pub(super) fn check_preconditions(
    resource: &Resource,
    key: &Key,
    current: &Value,
    options: &DeleteOptions,
) -> ApiResult<()> {
    let checks = [
        (
            "UID",
            &options.uid,
            metadata_text(current, "uid"),
            "deleted and then recreated",
        ),
        (
            "ResourceVersion",
            &options.resource_version,
            metadata_text(current, "resourceVersion"),
            "modified",
        ),
    ];
    for (what, wanted, is, happened) in checks {
        if let Some(wanted) = wanted
            && wanted != is
        {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({is}). \
                 The object might have been {happened}"
            );
            // Named by kind here, as the real server does.
            let named = Named {
                group: &resource.group,
                plural: &resource.kind,
            };
            return Err(ApiError::conflict(named, key.name(), &why));
        }
    }
    Ok(())
}

/// The object marked as being deleted; `None` when nothing holds it and it goes at once.
fn mark(
    resource: &Resource,
    current: &Value,
    options: &DeleteOptions,
    now: Timestamp,
) -> Option<Value> {
    let mut new = current.clone();
    let deleting = metadata::is_deleting(current);
    if !deleting {
        (resource.hooks.begin_delete)(&mut new, &seconds_text(now));
    }
    if !resource.traits.no_propagation {
        let wanted = propagate(&metadata::finalizers(&new), options.propagation);
        metadata::set_finalizers(&mut new, &wanted);
    }
    let wished = resource
        .hooks
        .grace
        .map_or(0, |grace| grace(current, options.grace));
    let graceful = resource.hooks.grace.is_some();
    let before = current["metadata"]["deletionGracePeriodSeconds"].as_i64();
    let grace = match before.filter(|_| deleting) {
        // A second request may only shorten.
        Some(before) if !graceful || wished >= before => before,
        _ => wished,
    };
    let held = !metadata::finalizers(&new).is_empty() || (resource.hooks.holds_deletion)(&new);
    // A graceful deletion ends with the request that says 0; repeating the first one changes nothing.
    let waits = grace > 0;
    if !held && !waits {
        return None;
    }
    if !deleting || before != Some(grace) {
        let from = match (deleting, before) {
            (true, Some(before)) => first_request(current, before).unwrap_or(now),
            _ => now,
        };
        let at = from
            .checked_add(SignedDuration::from_secs(grace))
            .unwrap_or(Timestamp::MAX)
            .max(now);
        let metadata = metadata_mut(&mut new);
        metadata.insert(
            "deletionTimestamp".to_owned(),
            Value::from(seconds_text(at)),
        );
        metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::from(grace));
    }
    if !deleting {
        metadata::bump_generation(&mut new);
    }
    Some(new)
}

/// When the deletion was first asked for.
fn first_request(object: &Value, grace: i64) -> Option<Timestamp> {
    let ends: Timestamp = metadata_text(object, "deletionTimestamp").parse().ok()?;
    ends.checked_sub(SignedDuration::from_secs(grace)).ok()
}

/// The finalizers under a propagation policy.
fn propagate(finalizers: &[&str], policy: Option<Propagation>) -> Vec<String> {
    let mut kept: Vec<String> = finalizers.iter().map(|name| (*name).to_owned()).collect();
    let Some(policy) = policy else { return kept };
    kept.retain(|name| name != FOREGROUND && name != ORPHAN);
    match policy {
        Propagation::Foreground => kept.push(FOREGROUND.to_owned()),
        Propagation::Orphan => kept.push(ORPHAN.to_owned()),
        Propagation::Background => {}
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_replaces_the_propagation_finalizers_and_keeps_others() {
        let own = ["a/b", ORPHAN];
        let cases = [
            (None, vec!["a/b", ORPHAN]),
            (Some(Propagation::Background), vec!["a/b"]),
            (Some(Propagation::Foreground), vec!["a/b", FOREGROUND]),
            (Some(Propagation::Orphan), vec!["a/b", ORPHAN]),
        ];
        for (policy, expected) in cases {
            assert_eq!(propagate(&own, policy), expected, "{policy:?}");
        }
    }

    fn pod(grace: Option<(&str, i64)>) -> Value {
        let mut pod = json!({
            "metadata": {"name": "p", "generation": 1},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30},
        });
        if let Some((at, seconds)) = grace {
            pod["metadata"]["deletionTimestamp"] = Value::from(at);
            pod["metadata"]["deletionGracePeriodSeconds"] = Value::from(seconds);
        }
        pod
    }

    #[test]
    fn a_graceful_deletion_is_marked_then_only_shortened_then_done() {
        let store = crate::store::Store::new();
        let pods = crate::registry::Registry::new(&store).built_in("", "pods");
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let marked = |pod: &Value, grace: Option<i64>| {
            let options = DeleteOptions {
                grace,
                ..DeleteOptions::default()
            };
            mark(&pods, pod, &options, now).map(|new| {
                let metadata = &new["metadata"];
                let at = metadata["deletionTimestamp"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                (at, metadata["deletionGracePeriodSeconds"].as_i64())
            })
        };
        let at = |text: &str, seconds| Some((text.to_owned(), Some(seconds)));
        assert_eq!(marked(&pod(None), None), at("2026-01-01T00:00:40Z", 30));
        // Asked for at :05, so the end is counted from there, but never lies before now.
        let deleting = pod(Some(("2026-01-01T00:00:35Z", 30)));
        assert_eq!(marked(&deleting, None), at("2026-01-01T00:00:35Z", 30));
        assert_eq!(marked(&deleting, Some(60)), at("2026-01-01T00:00:35Z", 30));
        assert_eq!(marked(&deleting, Some(8)), at("2026-01-01T00:00:13Z", 8));
        assert_eq!(marked(&deleting, Some(2)), at("2026-01-01T00:00:10Z", 2));
        assert_eq!(marked(&deleting, Some(0)), None);
    }
}
