//! H-18, S-07: how many Proxies of a group may be out of service at a time for a replacement.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use controller::ObjectKey;

use crate::api::conditions::{self, ConditionStatus, ConditionType, Reason};
use crate::api::{Mode, Proxy};

/// Proxies that stand in for each other: one namespace, provider and zone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group(String);

impl Group {
    /// The group of a Managed Proxy; an External one belongs to none.
    pub(crate) fn of(proxy: &Proxy) -> Option<Self> {
        if proxy.spec.mode == Mode::External {
            return None;
        }
        let zone = proxy
            .spec
            .machine
            .as_ref()
            .and_then(|machine| machine.zone.as_deref().or(machine.region.as_deref()));
        Some(Self(format!(
            "{}/{}/{}",
            proxy.metadata.namespace.as_deref().unwrap_or_default(),
            proxy.spec.provider.as_deref().unwrap_or_default(),
            zone.unwrap_or_default(),
        )))
    }

    /// The group as a value of an index.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A group as the cache shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Proxies of the group.
    pub(crate) all: usize,
    /// Those of them that are out of service; where there are more than [`enough`], some of them.
    pub(crate) unavailable: HashSet<ObjectKey>,
}

/// Out of service for a replacement: its machine goes, is gone, or its successor comes up.
pub(crate) fn is_unavailable(proxy: &Proxy) -> bool {
    // One that is being deleted takes itself out, and comes back into service never.
    if proxy.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(status) = &proxy.status else {
        return false;
    };
    if conditions::status(&status.conditions, ConditionType::Provisioned)
        != Some(ConditionStatus::False)
    {
        return false;
    }
    let goes = matches!(
        conditions::reason(&status.conditions, ConditionType::Provisioned),
        Some(
            Reason::Replacing
                | Reason::Draining
                | Reason::InstanceLost
                | Reason::InstanceStopped
                | Reason::ProvisioningTimeout
        )
    );
    // One that never had a machine takes nothing out of service while it gets its first.
    goes || status.replacements.is_some()
}

/// Most Proxies of a group of that size out of service at a time.
pub(crate) fn limit(all: usize) -> usize {
    (all / 10).max(1)
}

/// So many Proxies of a group of that size decide, whichever they are: without the one that asks
/// they use the limit up.
pub(crate) fn enough(all: usize) -> usize {
    limit(all) + 1
}

/// The replacements under way that this process allowed.
///
/// A cache shows a replacement only after its status was written and seen, so what was allowed is
/// remembered until the Proxy serves again or is gone. After a restart the status alone counts.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    granted: Mutex<HashMap<ObjectKey, Group>>,
}

impl Budget {
    fn granted(&self) -> MutexGuard<'_, HashMap<ObjectKey, Group>> {
        // Each change is one insert or remove: a panic in between leaves nothing half done.
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the Proxy may go out of service now; remembers a yes.
    ///
    /// `census` is asked under a lock, so that two Proxies cannot take the same place.
    pub(crate) fn allow(
        &self,
        key: &ObjectKey,
        group: &Group,
        census: impl FnOnce(&Group) -> Census,
    ) -> bool {
        let mut granted = self.granted();
        let Census { all, unavailable } = census(group);
        let others = granted
            .iter()
            .filter(|(other, of)| *of == group && !unavailable.contains(*other))
            .map(|(other, _)| other)
            .chain(&unavailable)
            .filter(|other| *other != key)
            .count();
        if others >= limit(all) {
            return false;
        }
        granted.insert(key.clone(), group.clone());
        true
    }

    /// The Proxy serves again, or is gone.
    pub(crate) fn give_back(&self, key: &ObjectKey) {
        self.granted().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;

    fn key(n: usize) -> ObjectKey {
        ObjectKey::namespaced("crawl", format!("p{n}"))
    }

    fn group() -> Group {
        Group("crawl/fake/".to_owned())
    }

    #[test]
    fn h18_a_tenth_and_at_least_one_may_be_out_of_service() {
        for (all, want) in [(0, 1), (1, 1), (19, 1), (20, 2), (1000, 100)] {
            assert_eq!(limit(all), want, "{all}");
        }
    }

    #[test]
    fn h18_what_the_cache_shows_counts_after_a_restart() {
        let budget = Budget::default();
        let census = |_: &Group| Census {
            all: 20,
            unavailable: HashSet::from([key(1), key(2)]),
        };
        assert!(!budget.allow(&key(3), &group(), census));
        assert!(budget.allow(&key(1), &group(), census), "it is out already");
    }

    #[test]
    fn h18_the_word_of_the_status_decides_who_is_out_of_service() {
        let proxy = |status: &str, reason: &str, replaced: bool| -> Proxy {
            let mut object = json!({
                "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
                "metadata": { "name": "a", "namespace": "crawl" }, "spec": { "provider": "fake" },
                "status": { "conditions": [{ "type": "Provisioned", "status": status,
                    "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
            });
            if replaced {
                object["status"]["replacements"] = json!({ "count24h": 1 });
            }
            serde_json::from_value(object).expect("a Proxy")
        };
        for (status, reason, replaced, want) in [
            ("True", "Created", true, false),
            ("False", "Provisioning", false, false),
            ("False", "Provisioning", true, true),
            ("False", "QuotaExceeded", true, true),
            ("False", "Replacing", false, true),
            ("False", "InstanceLost", false, true),
            ("False", "InstanceStopped", false, true),
            ("False", "CloudInitError", false, false),
        ] {
            let mut proxy = proxy(status, reason, replaced);
            let found = is_unavailable(&proxy);
            assert_eq!(found, want, "{status} {reason} {replaced}");
            proxy.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            assert!(!is_unavailable(&proxy), "being deleted: {status} {reason}");
        }
    }

    proptest! {
        #[test]
        fn h18_no_order_of_questions_and_views_exceeds_the_limit(
            all in 1_usize..40,
            steps in prop::collection::vec((0_usize..40, 0_u8..4), 0..200),
        ) {
            let budget = Budget::default();
            let mut out = HashSet::new();
            let mut shown = HashSet::new();
            for (n, step) in steps {
                let key = key(n % all);
                match step {
                    0 | 1 => {
                        let some = shown.iter().take(enough(all)).cloned();
                        let census = |_: &Group| Census { all, unavailable: some.collect() };
                        if budget.allow(&key, &group(), census) {
                            out.insert(key);
                        }
                    }
                    // The cache shows what is so, sooner or later.
                    2 => shown.clone_from(&out),
                    // A Proxy serves again; the cache may show the older state for a while.
                    _ => {
                        if out.remove(&key) {
                            budget.give_back(&key);
                        }
                    }
                }
                prop_assert!(out.len() <= limit(all), "{} of {all}", out.len());
            }
        }
    }
}
