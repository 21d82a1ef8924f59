//! Who owns which fields: the entries of `metadata.managedFields`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{fields_v1, set::FieldSet};

/// The most entries of updates; older ones are put together.
const MAX_UPDATE_MANAGERS: usize = 10;
/// The manager of what was put together.
const ANCIENT: &str = "ancient-changes";

/// How a manager came to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// What tells one entry from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ManagerId {
    pub(super) manager: String,
    pub(super) operation: Operation,
    /// "" for appliers, who have one entry whatever version they applied.
    pub(super) api_version: String,
    pub(super) subresource: String,
}

/// The fields that a manager owns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Owned {
    pub(super) set: FieldSet,
    /// The version in which the fields are named.
    pub(super) api_version: String,
    /// When the entry last changed, RFC 3339.
    pub(super) time: Option<Value>,
}

/// All owners of an object's fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Managers(pub(super) BTreeMap<ManagerId, Owned>);

/// The text of a member, "" when it has none.
fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Managers {
    /// Reads `metadata.managedFields`; `None` when an entry makes no sense.
    pub(super) fn read(entries: &Value) -> Option<Self> {
        let mut managers = BTreeMap::new();
        for entry in entries.as_array()? {
            let operation = match text(entry, "operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return None,
            };
            let api_version = text(entry, "apiVersion");
            if api_version.is_empty() || text(entry, "fieldsType") != "FieldsV1" {
                return None;
            }
            let set = match entry.get("fieldsV1") {
                None | Some(Value::Null) => FieldSet::default(),
                Some(fields) => fields_v1::read(fields).ok()?,
            };
            let id = ManagerId {
                manager: text(entry, "manager").to_owned(),
                operation,
                api_version: match operation {
                    Operation::Apply => String::new(),
                    Operation::Update => api_version.to_owned(),
                },
                subresource: text(entry, "subresource").to_owned(),
            };
            let owned = Owned {
                set,
                api_version: api_version.to_owned(),
                time: entry.get("time").filter(|time| !time.is_null()).cloned(),
            };
            managers.insert(id, owned);
        }
        Some(Self(managers))
    }

    /// The entries as JSON, in the real server's order; `None` without any.
    pub(super) fn write(self) -> Option<Value> {
        if self.0.is_empty() {
            return None;
        }
        let mut entries: Vec<(ManagerId, Owned)> = self.0.into_iter().collect();
        entries.sort_by(|(a, of_a), (b, of_b)| {
            let order = a.operation.cmp(&b.operation);
            order
                .then_with(|| seconds(of_a).cmp(&seconds(of_b)))
                .then_with(|| a.manager.cmp(&b.manager))
                .then_with(|| of_a.api_version.cmp(&of_b.api_version))
                .then_with(|| a.subresource.cmp(&b.subresource))
        });
        let entries = entries.into_iter().map(|(id, owned)| {
            let mut entry = json!({
                "operation": id.operation.name(), "apiVersion": owned.api_version,
                "fieldsType": "FieldsV1", "fieldsV1": fields_v1::write(&owned.set),
            });
            if !id.manager.is_empty() {
                entry["manager"] = Value::from(id.manager);
            }
            if let Some(time) = owned.time {
                entry["time"] = time;
            }
            if !id.subresource.is_empty() {
                entry["subresource"] = Value::from(id.subresource);
            }
            entry
        });
        Some(entries.collect())
    }

    /// Puts the oldest entries of updates together until there are few enough.
    pub(super) fn cap(&mut self) {
        let is_update = |id: &ManagerId| id.operation == Operation::Update;
        if self.0.keys().filter(|id| is_update(id)).count() <= MAX_UPDATE_MANAGERS {
            return;
        }
        let mut updates: Vec<(Option<String>, ManagerId)> = self
            .0
            .iter()
            .filter(|(id, _)| is_update(id))
            .map(|(id, owned)| (seconds(owned).map(str::to_owned), id.clone()))
            .collect();
        updates.sort();
        let mut excess = updates.len() - MAX_UPDATE_MANAGERS;
        // The first of each version waits for a second one to be put together with.
        let mut first: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (_, id) in updates {
            if excess == 0 {
                break;
            }
            let Some(owned) = self.0.get(&id).cloned() else {
                continue;
            };
            let Some(waiting) = first.get(&owned.api_version).cloned() else {
                first.insert(owned.api_version, id);
                continue;
            };
            let bucket = ManagerId {
                manager: ANCIENT.to_owned(),
                operation: Operation::Update,
                api_version: owned.api_version.clone(),
                subresource: String::new(),
            };
            let kept = self.0.remove(&bucket).or_else(|| self.0.remove(&waiting));
            let set = kept.map_or_else(FieldSet::default, |kept| kept.set);
            self.0.remove(&id);
            let together = Owned {
                set: owned.set.union(&set),
                ..owned
            };
            self.0.insert(bucket, together);
            excess -= 1;
        }
    }
}

/// The time of an entry as far as the order goes; without one an entry is the oldest.
fn seconds(owned: &Owned) -> Option<&str> {
    owned.time.as_ref().and_then(Value::as_str)
}

/// Whether entries say that all ownership is to be forgotten: none, or one with nothing in it.
pub(super) fn is_reset(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only
            .as_object()
            .is_some_and(|entry| entry.values().all(Value::is_null)),
        _ => false,
    }
}

/// Whether two lists of entries say the same but for times.
pub(crate) fn equal_but_for_times(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_array(), b.as_array()) else {
        return a == b;
    };
    let same = |a: &Value, b: &Value| {
        let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
            return a == b;
        };
        let rest = |entry: &serde_json::Map<String, Value>| {
            entry.len() - usize::from(entry.contains_key("time"))
        };
        rest(a) == rest(b)
            && a.iter()
                .all(|(key, value)| key == "time" || b.get(key) == Some(value))
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, second: u32, fields: impl Into<Value>) -> Value {
        let fields = fields.into();
        json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "time": format!("2026-01-01T00:00:{second:02}Z"), "fieldsV1": fields,
        })
    }

    #[test]
    fn entries_are_read_and_written_in_order() {
        let apply = json!({
            "manager": "z", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}}, "subresource": "status",
        });
        let entries = json!([
            entry("b", 2, json!({"f:b": {}})),
            entry("c", 1, json!({"f:c": {}})),
            apply,
        ]);
        let written = Managers::read(&entries).unwrap().write().unwrap();
        assert_eq!(written, json!([entries[2], entries[1], entries[0]]));
        assert_eq!(Managers::default().write(), None);
    }

    #[test]
    fn entries_that_make_no_sense_are_refused() {
        let good = entry("a", 1, json!({}));
        for (key, value) in [
            ("operation", json!("Delete")),
            ("apiVersion", json!("")),
            ("fieldsType", json!("V2")),
            ("fieldsV1", json!({"x": 1})),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert_eq!(Managers::read(&json!([bad])), None, "{key}");
        }
        assert!(Managers::read(&json!([good])).is_some());
    }

    #[test]
    fn m10_the_oldest_updates_are_put_together() {
        let entries: Vec<Value> = (0..12)
            .map(|n| entry(&format!("m{n:02}"), n, json!({format!("f:{n}"): {}})))
            .collect();
        let mut managers = Managers::read(&Value::Array(entries)).unwrap();
        managers.cap();
        let written = managers.write().unwrap();
        let names: Vec<&str> = written
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| text(entry, "manager"))
            .collect();
        assert_eq!(names.len(), 10);
        assert_eq!(names[..2], ["ancient-changes", "m03"]);
        let ancient = &written[0];
        assert_eq!(
            ancient["fieldsV1"],
            json!({"f:0": {}, "f:1": {}, "f:2": {}})
        );
        assert_eq!(ancient["time"], "2026-01-01T00:00:02Z");
    }

    #[test]
    fn resets_are_none_or_one_with_nothing_in_it() {
        for (entries, expected) in [
            (json!([]), true),
            (json!([{}]), true),
            (json!([{"manager": null}]), true),
            (json!([{}, {}]), false),
            (json!([{"manager": "a"}]), false),
            (json!(null), false),
        ] {
            assert_eq!(is_reset(&entries), expected, "{entries}");
        }
    }

    #[test]
    fn times_alone_make_no_difference() {
        let a = json!([entry("a", 1, json!({"f:x": {}}))]);
        assert!(equal_but_for_times(
            &a,
            &json!([entry("a", 2, json!({"f:x": {}}))])
        ));
        assert!(!equal_but_for_times(
            &a,
            &json!([entry("b", 1, json!({"f:x": {}}))])
        ));
        assert!(!equal_but_for_times(
            &a,
            &json!([entry("a", 1, json!({"f:y": {}}))])
        ));
        assert!(!equal_but_for_times(&a, &json!([])));
    }
}
