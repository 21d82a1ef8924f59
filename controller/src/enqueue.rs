//! From an event to the keys that are to be reconciled: the decision, without effects.

use std::any::TypeId;
use std::collections::HashSet;

use informer::{Event, ObjectKey};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::Resource;

use crate::owners;

/// Priority of keys whose event is old news: objects of the initial list, and updates without a
/// new `resourceVersion` (resync, relist). The same number as controller-runtime's.
pub const LOW_PRIORITY: i32 = -100;

/// Priority for the keys of `event`; none if it says something new.
pub(crate) fn priority_of<K: Resource>(event: &Event<K>) -> Option<i32> {
    let old_news = match event {
        Event::Added {
            is_in_initial_list, ..
        } => *is_in_initial_list,
        Event::Updated { .. } => event.is_resync(),
        Event::Deleted { .. } => false,
    };
    old_news.then_some(LOW_PRIORITY)
}

/// Keys that `map` gives for the object of `event`, for an update of the old and the new one,
/// each once.
pub(crate) fn mapped_keys<K>(
    event: &Event<K>,
    map: impl Fn(&K) -> Vec<ObjectKey>,
) -> Vec<ObjectKey> {
    each_once(match event {
        Event::Added { object, .. } | Event::Deleted { object, .. } => map(object),
        Event::Updated { old, new } => {
            let mut keys = map(new);
            keys.extend(map(old));
            keys
        }
    })
}

/// The keys without repetitions, in the order of their first places.
pub(crate) fn each_once(mut keys: Vec<ObjectKey>) -> Vec<ObjectKey> {
    if keys.len() > 1 {
        let mut seen = HashSet::with_capacity(keys.len());
        keys.retain(|key| seen.insert(key.clone()));
    }
    keys
}

/// The kind whose objects are looked for among the owners of another object.
#[derive(Debug, Clone)]
pub(crate) struct OwnerKind {
    group: Box<str>,
    kind: Box<str>,
    cluster_scoped: bool,
}

impl OwnerKind {
    pub(crate) fn of<O>() -> Self
    where
        O: Resource<DynamicType = ()>,
        O::Scope: 'static,
    {
        Self {
            group: O::group(&()).into(),
            kind: O::kind(&()).into(),
            cluster_scoped: TypeId::of::<O::Scope>() == TypeId::of::<ClusterResourceScope>(),
        }
    }

    /// Keys of the owners of `child` that are of this kind, whatever their version.
    pub(crate) fn owners_of(&self, child: &impl Resource, only_controller: bool) -> Vec<ObjectKey> {
        let namespace = child
            .meta()
            .namespace
            .as_deref()
            .filter(|_| !self.cluster_scoped);
        owners::references(child)
            .iter()
            .filter(|reference| !only_controller || reference.controller == Some(true))
            .filter(|reference| self.matches(reference))
            .map(|reference| ObjectKey::from_parts(namespace, &reference.name))
            .collect()
    }

    fn matches(&self, reference: &OwnerReference) -> bool {
        *reference.kind == *self.kind
            && owners::group_of(&reference.api_version) == Some(&*self.group)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;

    fn reference(api_version: &str, kind: &str, name: &str, controller: bool) -> OwnerReference {
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: "u".to_owned(),
            controller: controller.then_some(true),
            block_owner_deletion: None,
        }
    }

    fn pod(version: &str, owners: Vec<OwnerReference>) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.resource_version = Some(version.to_owned());
        pod.metadata.owner_references = Some(owners);
        Arc::new(pod)
    }

    fn key(text: &str) -> ObjectKey {
        text.parse().unwrap()
    }

    #[test]
    fn k5_owners_match_by_group_and_kind_of_any_version() {
        let pod = pod(
            "1",
            vec![
                reference("apps/v1", "ReplicaSet", "a", true),
                reference("apps/v1beta9", "ReplicaSet", "b", false),
                reference("extensions/v1", "ReplicaSet", "other-group", true),
                reference("v1", "ReplicaSet", "no-group", true),
                reference("apps/v1", "Deployment", "other-kind", true),
                reference("apps/v1/x", "ReplicaSet", "malformed", true),
                reference("", "ReplicaSet", "empty", true),
                reference("v1", "Node", "n", false),
            ],
        );
        let sets = OwnerKind::of::<ReplicaSet>();
        assert_eq!(sets.owners_of(&*pod, false), [key("ns/a"), key("ns/b")]);
        assert_eq!(sets.owners_of(&*pod, true), [key("ns/a")]);
        let nodes = OwnerKind::of::<Node>();
        assert_eq!(
            nodes.owners_of(&*pod, false),
            [key("n")],
            "cluster scope has no namespace"
        );
        assert!(nodes.owners_of(&*pod, true).is_empty());
        assert!(sets.owners_of(&Pod::default(), false).is_empty());
    }

    #[test]
    fn k5_an_update_maps_old_and_new_and_duplicates_collapse() {
        let sets = OwnerKind::of::<ReplicaSet>();
        let owned = |names: &[&str]| {
            let owners = names
                .iter()
                .map(|n| reference("apps/v1", "ReplicaSet", n, true));
            pod("1", owners.collect())
        };
        let keys = |event: &Event<Pod>| mapped_keys(event, |pod| sets.owners_of(pod, false));
        let cases = [
            (&["a"][..], &["a"][..], vec![key("ns/a")]),
            (&["a"], &["b"], vec![key("ns/b"), key("ns/a")]),
            (&["a", "a"], &["b", "a"], vec![key("ns/b"), key("ns/a")]),
            (&[], &["a"], vec![key("ns/a")]),
            (&["a"], &[], vec![key("ns/a")]),
            (&[], &[], vec![]),
        ];
        for (old, new, expected) in cases {
            let event = Event::Updated {
                old: owned(old),
                new: owned(new),
            };
            assert_eq!(keys(&event), expected, "{old:?} to {new:?}");
        }
        let object = owned(&["a", "a"]);
        let added = Event::Added {
            object: Arc::clone(&object),
            is_in_initial_list: false,
        };
        assert_eq!(keys(&added), [key("ns/a")]);
        assert_eq!(
            keys(&Event::Deleted {
                object,
                last_cached: None,
                final_state_known: false
            }),
            [key("ns/a")]
        );
    }

    #[test]
    fn k5_old_news_have_low_priority() {
        let object = |version: &str| pod(version, vec![]);
        let added = |is_in_initial_list| Event::Added {
            object: object("1"),
            is_in_initial_list,
        };
        let updated = |old, new| Event::Updated {
            old: object(old),
            new: object(new),
        };
        let cases = [
            (added(true), Some(-100)),
            (added(false), None),
            (updated("1", "1"), Some(-100)),
            (updated("1", "2"), None),
            (
                Event::Deleted {
                    object: object("1"),
                    last_cached: None,
                    final_state_known: false,
                },
                None,
            ),
        ];
        for (event, expected) in cases {
            assert_eq!(priority_of(&event), expected, "{event:?}");
        }
    }
}
