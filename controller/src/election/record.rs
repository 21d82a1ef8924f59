//! What stands in a Lease, and how it is written without losing what others wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The part of a Lease that an election reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Who holds the Lease; empty if nobody does.
    pub holder: String,
    /// How long after its last change nobody else may take it, in whole seconds; `None` if the
    /// Lease does not say, or says nothing sensible.
    pub lease_duration: Option<Duration>,
    /// When the present holder got it, by that holder's wall clock.
    pub acquire_time: Option<Timestamp>,
    /// When it was renewed last, by the holder's wall clock. Never compared with a clock of ours.
    pub renew_time: Option<Timestamp>,
    /// How often the holder has changed. It never falls while the Lease exists, so it serves as
    /// the number of a term.
    pub transitions: u32,
}

/// A Lease as the server gave it, with all its fields, known and unknown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lease(Value);

impl Lease {
    /// A Lease that does not exist yet.
    pub(crate) fn new(
        namespace: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
        record: &Record,
    ) -> Self {
        let mut metadata = json!({ "namespace": namespace, "name": name });
        if !labels.is_empty() {
            metadata["labels"] = json!(labels);
        }
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
        });
        Self(object).with(record, &BTreeMap::new())
    }

    /// The Lease in the server's words; anything that is no object counts as an empty one.
    pub(crate) fn from_json(object: Value) -> Self {
        Self(object)
    }

    pub(crate) fn to_json(&self) -> &Value {
        &self.0
    }

    /// What tells one state of the Lease from another.
    #[cfg(test)]
    pub(crate) fn version(&self) -> Option<&str> {
        self.0.pointer("/metadata/resourceVersion")?.as_str()
    }

    /// The record in it.
    pub(crate) fn record(&self) -> Record {
        let field = |name: &str| self.0.get("spec").and_then(|spec| spec.get(name));
        let time = |name| field(name)?.as_str()?.parse().ok();
        Record {
            holder: field("holderIdentity")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            lease_duration: field("leaseDurationSeconds")
                .and_then(Value::as_u64)
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            acquire_time: time("acquireTime"),
            renew_time: time("renewTime"),
            transitions: field("leaseTransitions")
                .and_then(Value::as_u64)
                .and_then(|n| n.try_into().ok())
                .unwrap_or_default(),
        }
    }

    /// The same Lease with another record and with `labels` set. Every other field stays, the
    /// resource version included, so that an update of a state that is gone is refused.
    pub(crate) fn with(&self, record: &Record, labels: &BTreeMap<String, String>) -> Self {
        let Self(mut object) = self.clone();
        let spec = entry(&mut object, "spec");
        spec.insert("holderIdentity".to_owned(), json!(record.holder));
        if let Some(duration) = record.lease_duration {
            let seconds = json!(duration.as_secs());
            spec.insert("leaseDurationSeconds".to_owned(), seconds);
        }
        for (name, time) in [
            ("acquireTime", record.acquire_time),
            ("renewTime", record.renew_time),
        ] {
            if let Some(time) = time {
                spec.insert(name.to_owned(), json!(micro_time(time)));
            }
        }
        spec.insert("leaseTransitions".to_owned(), json!(record.transitions));
        if !labels.is_empty() {
            let known = entry(entry_value(&mut object, "metadata"), "labels");
            known.extend(
                labels
                    .iter()
                    .map(|(key, value)| (key.clone(), json!(value))),
            );
        }
        Self(object)
    }
}

/// The field as an object, made one if it is none.
fn entry<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let value = entry_value(object, field);
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("made one above")
}

fn entry_value<'a>(object: &'a mut Value, field: &str) -> &'a mut Value {
    if !object.is_object() {
        *object = json!({});
    }
    &mut object[field]
}

/// The form of a `MicroTime`: UTC with exactly six decimals.
fn micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            holder: "me".to_owned(),
            lease_duration: Some(Duration::from_secs(15)),
            acquire_time: Some("2026-01-02T03:04:05.000006Z".parse().unwrap()),
            renew_time: Some("2026-01-02T03:04:06Z".parse().unwrap()),
            transitions: 3,
        }
    }

    #[test]
    fn l4_a_record_survives_the_way_through_a_lease() {
        let lease = Lease::new("ns", "name", &BTreeMap::new(), &record());
        assert_eq!(lease.record(), record());
        assert_eq!(
            lease.to_json()["spec"],
            json!({
                "holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 3,
                "acquireTime": "2026-01-02T03:04:05.000006Z",
                "renewTime": "2026-01-02T03:04:06.000000Z",
            })
        );
    }

    #[test]
    fn c50_an_update_keeps_labels_and_fields_that_nobody_knows() {
        let before = json!({
            "metadata": { "name": "name", "resourceVersion": "7", "labels": { "a": "theirs", "b": "b" },
                          "annotations": { "x": "y" }, "future": 1 },
            "spec": { "holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 2,
                      "strategy": "OldestEmulationVersion", "preferredHolder": "p", "future": [1] },
            "future": true,
        });
        let labels = BTreeMap::from([("a".to_owned(), "ours".to_owned())]);
        let after = Lease::from_json(before.clone()).with(&record(), &labels);
        let mut expected = before;
        expected["metadata"]["labels"]["a"] = json!("ours");
        for (field, value) in [
            ("holderIdentity", json!("me")),
            ("leaseTransitions", json!(3)),
            ("acquireTime", json!("2026-01-02T03:04:05.000006Z")),
            ("renewTime", json!("2026-01-02T03:04:06.000000Z")),
        ] {
            expected["spec"][field] = value;
        }
        assert_eq!(*after.to_json(), expected);
        assert_eq!(after.version(), Some("7"));
    }

    #[test]
    fn a_lease_without_a_sensible_record_reads_as_held_by_nobody() {
        for object in [
            json!({}),
            json!(7),
            json!({ "spec": null }),
            json!({ "spec": { "leaseDurationSeconds": -1, "leaseTransitions": "x",
                              "renewTime": "yesterday" } }),
        ] {
            let record = Lease::from_json(object.clone()).record();
            assert_eq!(record.holder, "", "{object}");
            assert_eq!(record.lease_duration, None, "{object}");
            assert_eq!(
                (record.renew_time, record.transitions),
                (None, 0),
                "{object}"
            );
        }
    }
}
