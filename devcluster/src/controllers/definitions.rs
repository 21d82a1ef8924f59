//! Definitions: their names are accepted, their resources served, and at the end their instances deleted.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::any_change;
use crate::{
    handlers::{Api, DeleteOptions},
    registry::{
        Resource, custom,
        hooks::definition::{CLEANUP_FINALIZER, has_condition, set_condition},
        metadata,
        names::accept,
        resource::metadata_text,
    },
    store::{Key, Scope, StoredObject, Watcher},
};

/// Keeps the served resources and the status of definitions in step with what is asked for, until `stop`.
pub(crate) async fn establish_definitions(api: Arc<Api>, stop: CancellationToken) {
    let mut controller = Controller {
        definitions: api
            .registry
            .built_in("apiextensions.k8s.io", "customresourcedefinitions"),
        api,
        served: BTreeMap::new(),
        emptying: Vec::new(),
    };
    loop {
        // The watcher is opened before the pass, so that no change falls between.
        let (_, watcher) = controller
            .definitions
            .collection
            .scan_and_watch(Scope::All, |_, _| ControlFlow::Break(()));
        controller.pass();
        let mut watchers = vec![watcher];
        watchers.append(&mut controller.emptying);
        tokio::select! {
            () = stop.cancelled() => return,
            () = any_change(&mut watchers) => {}
        }
    }
}

struct Controller {
    api: Arc<Api>,
    definitions: Arc<Resource>,
    /// What is served for each definition, as text to compare.
    served: BTreeMap<String, String>,
    /// Collections whose last objects are awaited.
    emptying: Vec<Watcher>,
}

impl Controller {
    /// Looks at every definition once.
    fn pass(&mut self) {
        let mut all: BTreeMap<String, (Arc<StoredObject>, Value)> = BTreeMap::new();
        let scanned = self
            .definitions
            .collection
            .scan(Scope::All, None, None, |key, object| {
                all.insert(key.name().to_owned(), (Arc::clone(object), Value::Null));
                ControlFlow::Continue(())
            });
        debug_assert!(scanned.is_ok(), "the present is never compacted");
        for (stored, value) in all.values_mut() {
            *value = self.definitions.read(stored);
        }
        let gone: Vec<String> = self
            .served
            .keys()
            .filter(|name| !all.contains_key(*name))
            .cloned()
            .collect();
        for name in gone {
            self.served.remove(&name);
            self.api.registry.serve(&name, Vec::new());
        }
        let names: Vec<String> = all.keys().cloned().collect();
        for name in names {
            let others: Vec<&Value> = all
                .iter()
                .filter(|(other, _)| **other != name)
                .map(|(_, (_, value))| value)
                .filter(|value| value["spec"]["group"] == all[&name].1["spec"]["group"])
                .collect();
            let (stored, current) = &all[&name];
            let wanted = with_status(current, &others, &self.api.clock.stamp());
            let stored = Arc::clone(stored);
            self.reconcile(&name, &stored, wanted);
            // The next definition sees the names that this one got.
            if let Some(newest) = self.definitions.collection.get(&Key::new(None, &name)) {
                let value = self.definitions.read(&newest);
                all.insert(name, (newest, value));
            }
        }
    }

    fn reconcile(&mut self, name: &str, stored: &StoredObject, mut wanted: Value) {
        let established = has_condition(&wanted, "Established");
        if established {
            // Served first: who sees Established may use it at once.
            self.serve(name, &wanted);
        }
        let deleting = metadata::is_deleting(&wanted);
        let empty = !deleting || self.delete_instances(name);
        if deleting && empty {
            let kept: Vec<String> = metadata::finalizers(&wanted)
                .into_iter()
                .filter(|finalizer| *finalizer != CLEANUP_FINALIZER)
                .map(str::to_owned)
                .collect();
            metadata::set_finalizers(&mut wanted, &kept);
            let key = Key::new(None, name);
            if kept.is_empty() {
                self.served.remove(name);
                self.api.registry.serve(name, Vec::new());
                let group = wanted["spec"]["group"].as_str().unwrap_or_default();
                let plural = wanted["status"]["acceptedNames"]["plural"]
                    .as_str()
                    .unwrap_or_default();
                let removed = self
                    .definitions
                    .collection
                    .remove(&key, stored.revision, None);
                if removed.is_ok() {
                    self.api.store.drop_collection(&format!("{group}/{plural}"));
                }
                return;
            }
        }
        let current = self.definitions.read(stored);
        if wanted != current {
            let owned = self.api.own_status(&self.definitions, &current, wanted);
            let draft = self.definitions.draft(owned);
            let replaced =
                self.definitions
                    .collection
                    .replace(&Key::new(None, name), stored.revision, draft);
            if let Err(error) = replaced {
                // Somebody wrote meanwhile: the watcher brings the next pass.
                tracing::debug!(
                    definition = name,
                    ?error,
                    "definition changed during a pass"
                );
            }
        }
    }

    fn serve(&mut self, name: &str, definition: &Value) {
        let deleting = metadata::is_deleting(definition);
        let uid = metadata_text(definition, "uid");
        let form = json!([
            uid,
            definition["spec"],
            definition["status"]["acceptedNames"],
            deleting
        ])
        .to_string();
        if self.served.get(name) == Some(&form) {
            return;
        }
        match custom::resources(definition, &self.api.store) {
            Ok(resources) => {
                self.api.registry.serve(name, resources);
                self.served.insert(name.to_owned(), form);
            }
            Err(errors) => {
                let problems = crate::schema::aggregate(&errors);
                tracing::error!(
                    definition = name,
                    problems,
                    "the schema does not compile, nothing is served"
                );
            }
        }
    }

    /// Deletes what is left of a definition's objects; whether none is left.
    fn delete_instances(&mut self, definition: &str) -> bool {
        let catalog = self.api.registry.catalog();
        let served = catalog.collections().find(|resource| {
            resource
                .custom()
                .is_some_and(|custom| custom.definition == definition)
        });
        let Some(resource) = served else { return true };
        let mut keys = Vec::new();
        let (_, watcher) = resource.collection.scan_and_watch(Scope::All, |key, _| {
            keys.push(key.clone());
            ControlFlow::Continue(())
        });
        for key in &keys {
            if let Err(error) = self
                .api
                .delete_object(resource, key, &DeleteOptions::default())
            {
                tracing::debug!(%error, ?key, "instance of a deleted definition");
            }
        }
        let empty = resource.collection.len() == 0;
        if !empty {
            self.emptying.push(watcher);
        }
        empty
    }
}

/// The definition with the status that its names and the other definitions of its group lead to.
fn with_status(definition: &Value, others: &[&Value], stamp: &str) -> Value {
    let mut new = definition.clone();
    let acceptance = accept(definition, others);
    new["status"]["acceptedNames"] = acceptance.names;
    let was_accepted = has_condition(definition, "NamesAccepted");
    let was_established = has_condition(definition, "Established");
    match &acceptance.clash {
        None => {
            set_condition(
                &mut new,
                "NamesAccepted",
                "True",
                "NoConflicts",
                "no conflicts found",
                stamp,
            );
            let accepted = "the initial names have been accepted";
            if was_accepted || was_established {
                set_condition(
                    &mut new,
                    "Established",
                    "True",
                    "InitialNamesAccepted",
                    accepted,
                    stamp,
                );
            } else {
                set_condition(
                    &mut new,
                    "Established",
                    "False",
                    "Installing",
                    accepted,
                    stamp,
                );
            }
        }
        Some((reason, message)) => {
            set_condition(&mut new, "NamesAccepted", "False", reason, message, stamp);
            if !was_established {
                let message = "not all names are accepted";
                set_condition(
                    &mut new,
                    "Established",
                    "False",
                    "NotAccepted",
                    message,
                    stamp,
                );
            }
        }
    }
    if metadata::is_deleting(&new) {
        set_condition(
            &mut new,
            "Terminating",
            "True",
            "InstanceDeletionInProgress",
            "CustomResource deletion is in progress",
            stamp,
        );
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Value {
        json!({"metadata": {"name": "foos.x"}, "spec": {"group": "x", "names": {
            "plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList",
        }}})
    }

    #[test]
    fn names_are_accepted_first_and_the_definition_established_next() {
        let first = with_status(&definition(), &[], "t1");
        assert!(has_condition(&first, "NamesAccepted"));
        assert!(!has_condition(&first, "Established"));
        let second = with_status(&first, &[], "t2");
        assert!(has_condition(&second, "Established"));
        assert_eq!(
            with_status(&second, &[], "t3"),
            second,
            "nothing left to do"
        );
    }

    #[test]
    fn a_clash_leaves_an_established_definition_established() {
        let mut other = with_status(&definition(), &[], "t");
        other["status"]["acceptedNames"]["plural"] = json!("bars");
        let clashing = with_status(&definition(), &[&other], "t");
        assert!(!has_condition(&clashing, "NamesAccepted"));
        let established = with_status(&with_status(&definition(), &[], "t"), &[], "t");
        assert!(has_condition(
            &with_status(&established, &[&other], "t"),
            "Established"
        ));
    }
}
