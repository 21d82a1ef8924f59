//! Ownership between an object and its Scale: who owns the count of replicas in one owns it in the other.

use serde_json::Value;

use super::{
    managers::{ManagerId, Managers, Operation, Owned},
    path::PathElement,
    set::FieldSet,
};

/// The version of Scale.
pub(crate) const SCALE_VERSION: &str = "autoscaling/v1";

/// Where an object has its count of replicas.
#[derive(Clone, Debug)]
pub(crate) struct Replicas(Vec<PathElement>);

impl Replicas {
    /// At a dotted path, e.g. `spec.replicas`.
    pub(crate) fn at(dotted: &str) -> Self {
        let steps = dotted.trim_start_matches('.').split('.');
        Self(
            steps
                .map(|step| PathElement::Field(step.to_owned()))
                .collect(),
        )
    }

    /// The entries of the object's Scale.
    pub(crate) fn entries_of_scale(&self, entries: Option<&Value>) -> Option<Value> {
        let of_object = entries.and_then(Managers::read).unwrap_or_default();
        let owners = of_object.0.into_iter();
        let owners = owners.filter(|(_, owned)| owned.set.has(&self.0));
        let owners = owners.map(|(id, owned)| {
            let owned = Owned {
                set: in_scale(),
                api_version: SCALE_VERSION.to_owned(),
                ..owned
            };
            (of_version(id, SCALE_VERSION), owned)
        });
        Managers(owners.collect()).write()
    }

    /// The entries of the object after those of its Scale became these.
    pub(crate) fn entries_of_object(
        &self,
        entries: Option<&Value>,
        of_scale: Option<&Value>,
        api_version: &str,
    ) -> Option<Value> {
        let mut of_object = entries.and_then(Managers::read).unwrap_or_default();
        let mut of_scale = of_scale.and_then(Managers::read).unwrap_or_default();
        let mut replicas = FieldSet::default();
        replicas.insert(&self.0);
        for (id, owned) in &mut of_object.0 {
            if owned.set.has(&self.0)
                && of_scale
                    .0
                    .remove(&of_version(id.clone(), SCALE_VERSION))
                    .is_none()
            {
                owned.set = owned.set.difference(&replicas);
            }
        }
        of_object.0.retain(|_, owned| !owned.set.is_empty());
        for (id, _) in of_scale.0 {
            // As in the real server: what comes from a Scale has no time.
            let owned = Owned {
                set: replicas.clone(),
                api_version: api_version.to_owned(),
                time: None,
            };
            of_object.0.insert(of_version(id, api_version), owned);
        }
        of_object.write()
    }
}

fn in_scale() -> FieldSet {
    FieldSet::of_fields(&[&["spec", "replicas"]])
}

fn of_version(id: ManagerId, api_version: &str) -> ManagerId {
    match id.operation {
        Operation::Apply => id,
        Operation::Update => ManagerId {
            api_version: api_version.to_owned(),
            ..id
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_takes_the_count_in_the_scale_takes_it_in_the_object() {
        let entries = json!([{
            "manager": "m", "operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:paused": {}, "f:replicas": {}}},
        }]);
        let replicas = Replicas::at(".spec.replicas");
        let scale = replicas.entries_of_scale(Some(&entries)).unwrap();
        assert_eq!(scale[0]["apiVersion"], SCALE_VERSION);
        assert_eq!(scale[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        // Nothing changed hands.
        let same = replicas.entries_of_object(Some(&entries), Some(&scale), "apps/v1");
        assert_eq!(same, Some(entries.clone()));
        let taken = json!([{
            "manager": "n", "operation": "Update", "apiVersion": "autoscaling/v1", "fieldsType": "FieldsV1",
            "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }]);
        let after = replicas
            .entries_of_object(Some(&entries), Some(&taken), "apps/v1")
            .unwrap();
        assert_eq!(after[0]["manager"], "n");
        assert_eq!(after[0]["apiVersion"], "apps/v1");
        assert_eq!(after[0].get("time"), None);
        assert_eq!(after[1]["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
    }
}
