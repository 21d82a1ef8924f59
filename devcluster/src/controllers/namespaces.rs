//! Namespaces: a default account in each, and an end that takes their contents along.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::any_change;
use crate::{
    error::ApiResult,
    handlers::{Api, DeleteOptions, Ownership, Writer},
    registry::{Resource, metadata},
    store::{Key, Scope, StoredObject, Watcher},
};

/// What is done for namespaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceOptions {
    /// Contents of a namespace that is being deleted are deleted, then the namespace is finalized.
    pub(crate) empty_terminating: bool,
    /// Every active namespace gets the service account `default`.
    pub(crate) default_account: bool,
}

/// Tends namespaces until `stop`.
pub(crate) async fn tend_namespaces(
    api: Arc<Api>,
    options: NamespaceOptions,
    stop: CancellationToken,
) {
    let namespaces = api.registry.built_in("", "namespaces");
    let accounts = api.registry.built_in("", "serviceaccounts");
    let controller = Controller {
        api,
        namespaces,
        accounts,
    };
    loop {
        let mut found = Vec::new();
        let (_, watcher) =
            controller
                .namespaces
                .collection
                .scan_and_watch(Scope::All, |key, object| {
                    found.push((key.clone(), Arc::clone(object)));
                    ControlFlow::Continue(())
                });
        let mut watchers = vec![watcher];
        if options.default_account {
            // A default account that is deleted comes back.
            let accounts = &controller.accounts.collection;
            watchers.push(
                accounts
                    .scan_and_watch(Scope::All, |_, _| ControlFlow::Break(()))
                    .1,
            );
        }
        for (key, stored) in found {
            if stored.field("metadata.deletionTimestamp").is_empty() {
                if options.default_account {
                    controller.ensure_default_account(key.name());
                }
            } else if options.empty_terminating {
                controller.empty(&key, &mut watchers);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = any_change(&mut watchers) => {}
        }
    }
}

struct Controller {
    api: Arc<Api>,
    namespaces: Arc<Resource>,
    accounts: Arc<Resource>,
}

impl Controller {
    fn ensure_default_account(&self, namespace: &str) {
        if self
            .accounts
            .collection
            .get(&Key::new(Some(namespace), "default"))
            .is_some()
        {
            return;
        }
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let created = self.api.create_object(
            &self.accounts,
            Some(namespace),
            account,
            Ownership::Update(&Writer::controller()),
            false,
            &mut Vec::new(),
        );
        if let Err(error) = created {
            tracing::debug!(namespace, %error, "cannot create the default account");
        }
    }

    /// Deletes the contents of a namespace; finalizes it when there are none. Watchers of what is left are
    /// added.
    fn empty(&self, namespace: &Key, watchers: &mut Vec<Watcher>) {
        let catalog = self.api.registry.catalog();
        let mut remaining: BTreeMap<String, usize> = BTreeMap::new();
        let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
        for resource in catalog.collections().filter(|resource| resource.namespaced) {
            let scope = Scope::Namespace(namespace.name());
            let mut keys = Vec::new();
            let (_, watcher) = resource.collection.scan_and_watch(scope, |key, _| {
                keys.push(key.clone());
                ControlFlow::Continue(())
            });
            for key in &keys {
                if let Err(error) = self
                    .api
                    .delete_object(resource, key, &DeleteOptions::default())
                {
                    tracing::debug!(%error, ?key, "content of a deleted namespace");
                }
            }
            let mut left = 0;
            for key in keys {
                if let Some(object) = resource.collection.get(&key) {
                    left += 1;
                    for finalizer in metadata::finalizers(&object.value()) {
                        *finalizers.entry(finalizer.to_owned()).or_default() += 1;
                    }
                }
            }
            if left > 0 {
                remaining.insert(format!("{}.", resource.named()), left);
                watchers.push(watcher);
            }
        }
        match self.report(namespace, &remaining, &finalizers) {
            Ok(Some(removed)) => self.sweep(namespace, removed.revision),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, ?namespace, "namespace is gone"),
        }
    }

    /// Removes what was stored after its kind was looked through and before the namespace went, by requests
    /// that were admitted while the namespace was active. What is newer lies in a namespace of the same name.
    fn sweep(&self, namespace: &Key, went: u64) {
        let catalog = self.api.registry.catalog();
        for resource in catalog.collections().filter(|resource| resource.namespaced) {
            let mut late = Vec::new();
            let scope = Scope::Namespace(namespace.name());
            let (_, watcher) = resource.collection.scan_and_watch(scope, |key, object| {
                if object.revision < went {
                    late.push((key.clone(), object.revision));
                }
                ControlFlow::Continue(())
            });
            drop(watcher);
            for (key, revision) in late {
                let removed = resource.collection.remove(&key, revision, None);
                tracing::debug!(?key, done = removed.is_ok(), "late content of a namespace");
            }
        }
    }

    /// Writes what is left into the status, or takes the finalizer away when nothing is; gives the namespace
    /// if it went with that.
    fn report(
        &self,
        namespace: &Key,
        remaining: &BTreeMap<String, usize>,
        finalizers: &BTreeMap<String, usize>,
    ) -> ApiResult<Option<Arc<StoredObject>>> {
        let stamp = self.api.clock.stamp();
        self.api
            .change_whole(&self.namespaces, namespace, |current| {
                let mut new = current.clone();
                if remaining.is_empty() {
                    let kept: Vec<Value> = current["spec"]["finalizers"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter(|name| **name != "kubernetes")
                        .cloned()
                        .collect();
                    new["spec"] = if kept.is_empty() {
                        json!({})
                    } else {
                        json!({"finalizers": kept})
                    };
                } else {
                    new["status"]["conditions"] = conditions(
                        &current["status"]["conditions"],
                        remaining,
                        finalizers,
                        &stamp,
                    );
                }
                new
            })
    }
}

/// The conditions of a namespace whose contents are not all gone.
fn conditions(
    before: &Value,
    remaining: &BTreeMap<String, usize>,
    finalizers: &BTreeMap<String, usize>,
    stamp: &str,
) -> Value {
    let list = |counts: &BTreeMap<String, usize>, what: &str| {
        let texts: Vec<String> = counts
            .iter()
            .map(|(name, count)| match what {
                "resource" => format!("{name} has {count} resource instances"),
                _ => format!("{name} in {count} resource instances"),
            })
            .collect();
        texts.join(", ")
    };
    let content = format!(
        "Some resources are remaining: {}",
        list(remaining, "resource")
    );
    let held = format!(
        "Some content in the namespace has finalizers remaining: {}",
        list(finalizers, "finalizer")
    );
    let has_finalizers = !finalizers.is_empty();
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            false,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            "NamespaceContentRemaining",
            true,
            "SomeResourcesRemain",
            content.as_str(),
        ),
        (
            "NamespaceFinalizersRemaining",
            has_finalizers,
            if has_finalizers {
                "SomeFinalizersRemain"
            } else {
                "ContentHasNoFinalizers"
            },
            if has_finalizers {
                held.as_str()
            } else {
                "All content-preserving finalizers finished"
            },
        ),
    ];
    rows.into_iter()
        .map(|(kind, holds, reason, message)| {
            let status = if holds { "True" } else { "False" };
            let since = before
                .as_array()
                .into_iter()
                .flatten()
                .find(|condition| condition["type"] == kind && condition["status"] == status)
                .and_then(|condition| condition["lastTransitionTime"].as_str())
                .unwrap_or(stamp);
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": since,
            })
        })
        .collect()
}
