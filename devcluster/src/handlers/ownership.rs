//! Ownership of fields in requests: who writes, and what `metadata.managedFields` come to.

use std::borrow::Cow;

use http::header;
use serde_json::{Map, Value};

use super::{Api, Call, update::Part};
use crate::{
    apply::{
        FieldTracking, Live, ResetFields, SCALE_VERSION, Tracker, Type, Versions, built_in,
        equal_but_for_times,
    },
    registry::{
        Resource,
        resource::{metadata_mut, set_type},
    },
    types,
};

/// The most bytes of a manager's name.
const NAME_LIMIT: usize = 128;

/// Who writes, as far as the ownership of fields goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    manager: String,
    /// "" for the main resource.
    subresource: &'static str,
}

impl Writer {
    /// The writer of a request: its `fieldManager`, else what its user agent starts with.
    pub(super) fn of(call: &Call, subresource: &'static str) -> Self {
        let agent = call.header(header::USER_AGENT).unwrap_or_default();
        let manager = match call.query.text("fieldManager") {
            Some(manager) => manager.to_owned(),
            None => of_agent(agent),
        };
        Self {
            manager,
            subresource,
        }
    }

    /// The API server itself.
    pub(crate) fn server(subresource: &'static str) -> Self {
        Self {
            manager: "kube-apiserver".to_owned(),
            subresource,
        }
    }

    /// One of the controllers that a real cluster runs beside its API server.
    pub(crate) fn controller() -> Self {
        Self {
            manager: "kube-controller-manager".to_owned(),
            subresource: "",
        }
    }
}

/// What comes before the first slash of a user agent, printable and cut to the limit of names.
fn of_agent(agent: &str) -> String {
    let name = agent.split('/').next().unwrap_or_default();
    let mut manager = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if manager.len() + c.len_utf8() > NAME_LIMIT {
            break;
        }
        manager.push(c);
    }
    manager
}

/// What a write does to the ownership of fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ownership<'a> {
    /// Nothing: the server moves on what is written.
    Kept,
    /// The writer comes to own what the write changes.
    Update(&'a Writer),
    /// The proposal carries its entries.
    Proposed,
}

/// Takes `metadata.managedFields` out of an object.
pub(super) fn take_entries(object: &mut Value) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    metadata.remove("managedFields")
}

/// Puts `metadata.managedFields` into an object; `None` leaves it without.
pub(super) fn put_entries(object: &mut Value, entries: Option<Value>) {
    if let Some(entries) = entries {
        metadata_mut(object).insert("managedFields".to_owned(), entries);
    }
}

/// An object of a kind before it was made.
pub(super) fn unborn(resource: &Resource) -> Value {
    let mut object = Value::Object(Map::new());
    if resource.is_custom() {
        set_type(&mut object, &resource.api_version(), &resource.kind);
    }
    object
}

impl Api {
    /// The entries of an object after a write. `live` is the object before it, without its entries.
    pub(super) fn entries_after(
        &self,
        resource: &Resource,
        part: Part,
        ownership: Ownership<'_>,
        live: Live<'_>,
        (proposed, sent): (&Value, Option<Value>),
    ) -> Option<Value> {
        if self.tracking == FieldTracking::Off {
            return None;
        }
        match ownership {
            Ownership::Kept => live.entries.cloned(),
            Ownership::Proposed => sent,
            // Nothing changes hands where nothing changes.
            Ownership::Update(_)
                if live.exists && live.object == proposed && says_nothing(&live, sent.as_ref()) =>
            {
                live.entries.cloned()
            }
            Ownership::Update(writer) => self.with_tracker(resource, part, writer, |tracker| {
                tracker.updated(live, proposed, sent.as_ref())
            }),
        }
    }

    /// A new status by the server's own hand, owned by it.
    pub(crate) fn own_status(&self, resource: &Resource, live: &Value, mut new: Value) -> Value {
        let mut live = live.clone();
        let (entries, sent) = (take_entries(&mut live), take_entries(&mut new));
        let before = Live {
            object: &live,
            entries: entries.as_ref(),
            exists: true,
        };
        let writer = Writer::server("status");
        let ownership = Ownership::Update(&writer);
        let entries = self.entries_after(resource, Part::Status, ownership, before, (&new, sent));
        put_entries(&mut new, entries);
        new
    }

    /// Runs a step with the tracker of a writer's writes to Scales.
    pub(super) fn with_scale_tracker<T>(
        &self,
        writer: &Writer,
        step: impl FnOnce(&Tracker<'_>) -> T,
    ) -> T {
        step(&Tracker {
            versions: &ScaleVersions,
            api_version: SCALE_VERSION,
            reset: &ResetFields::default(),
            manager: &writer.manager,
            subresource: writer.subresource,
            now: &self.clock.stamp(),
            tracks_new: true,
        })
    }

    /// Runs a step with the tracker of a writer's writes to a part of a resource.
    pub(super) fn with_tracker<T>(
        &self,
        resource: &Resource,
        part: Part,
        writer: &Writer,
        step: impl FnOnce(&Tracker<'_>) -> T,
    ) -> T {
        let reset = reset_fields(resource, part);
        step(&Tracker {
            versions: resource,
            api_version: &resource.api_version(),
            reset: &reset,
            manager: &writer.manager,
            subresource: writer.subresource,
            now: &self.clock.stamp(),
            tracks_new: self.tracking == FieldTracking::Full,
        })
    }
}

/// Scale, of which there is one version.
struct ScaleVersions;

impl Versions for ScaleVersions {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        (api_version == SCALE_VERSION)
            .then(|| types::lookup(SCALE_VERSION, "Scale").map(built_in))
            .flatten()
    }

    fn convert<'v>(&self, object: &'v Value, _: &str) -> Cow<'v, Value> {
        Cow::Borrowed(object)
    }
}

/// Whether the entries that were sent are those that the object has, or none.
fn says_nothing(live: &Live<'_>, sent: Option<&Value>) -> bool {
    match (sent, live.entries) {
        (None, _) => true,
        (Some(sent), Some(live)) => sent == live,
        (Some(_), None) => false,
    }
}

/// Whether two objects, without their entries, and these are the same but for the times of entries.
pub(super) fn unchanged(
    (new, new_entries): (&Value, Option<&Value>),
    (old, old_entries): (&Value, Option<&Value>),
) -> bool {
    let same_entries = match (new_entries, old_entries) {
        (None, None) => true,
        (Some(new), Some(old)) => equal_but_for_times(new, old),
        _ => false,
    };
    same_entries && new == old
}

/// The fields that a write of a part of an object cannot touch.
fn reset_fields(resource: &Resource, part: Part) -> ResetFields {
    match part {
        Part::Main | Part::Whole if resource.status => ResetFields::of(&[&["status"]]),
        Part::Main | Part::Whole => ResetFields::default(),
        Part::Status if resource.is_custom() => ResetFields::of(&[&["metadata"], &["spec"]]),
        Part::Status => match &*resource.kind {
            "Pod" => ResetFields::of(&[
                &["spec"],
                &["metadata", "deletionTimestamp"],
                &["metadata", "ownerReferences"],
            ]),
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
                ResetFields::of(&[&["spec"], &["metadata", "labels"]])
            }
            _ => ResetFields::of(&[&["spec"]]),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m10_a_manager_is_what_a_user_agent_starts_with() {
        let long = "é".repeat(100);
        for (agent, manager) in [
            ("kubectl/v1.37.2 (linux/amd64) kubernetes/abc", "kubectl"),
            ("plain", "plain"),
            ("", ""),
            ("a\u{1}b/c", "ab"),
            (&long, &long[..128]),
        ] {
            assert_eq!(of_agent(agent), manager, "{agent}");
        }
    }
}
