//! What a VM says about itself (P-27), read without any call.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use google_cloud_compute_v1::model::{self, instance::Status};
use k8s_openapi::jiff::Timestamp;

use super::id::Place;
use super::request::{
    self, LABEL_CLUSTER, LABEL_HASH, LABEL_MANAGED, LABEL_UID, META_NAMESPACE, META_PROXY,
};
use crate::api::SpecHash;
use crate::provider::{Hint, Incarnation, Instance, InstanceState, MANAGED_BY, Owner};

/// P-05: carries the labels of this owner.
#[must_use]
pub fn is_owned_by(vm: &model::Instance, owner: &Owner) -> bool {
    request::owner_labels(owner)
        .iter()
        .all(|(key, value)| vm.labels.get(*key) == Some(value))
}

/// P-05: the Proxy that the labels name, of whatever cluster; `None` where one of them is missing.
///
/// Its namespace and name come from the metadata, and are empty where those are missing.
#[must_use]
pub fn owner_of(vm: &model::Instance) -> Option<Owner> {
    let label = |key| vm.labels.get(key).filter(|text| !text.is_empty());
    if label(LABEL_MANAGED)? != MANAGED_BY {
        return None;
    }
    let items = vm
        .metadata
        .as_ref()
        .map(|metadata| metadata.items.as_slice())
        .unwrap_or_default();
    let noted = |key: &str| {
        let item = items.iter().find(|item| item.key.as_deref() == Some(key));
        item.and_then(|item| item.value.clone()).unwrap_or_default()
    };
    Some(Owner {
        cluster_id: Arc::from(label(LABEL_CLUSTER)?.as_str()),
        uid: label(LABEL_UID)?.clone(),
        namespace: noted(META_NAMESPACE),
        proxy: noted(META_PROXY),
    })
}

/// The VM as the operator sees it; `None` where it lacks what every VM has.
#[must_use]
pub fn instance(project: &str, vm: &model::Instance, hint: &Hint) -> Option<Instance> {
    let name = vm.name.as_deref()?;
    let zone = vm.zone.as_deref().map(last_segment)?;
    let id = vm.id?;
    let (state, deleting) = state(vm);
    let status = vm
        .status
        .as_ref()
        .and_then(Status::name)
        .unwrap_or("unknown");
    let message = match vm.status_message.as_deref() {
        Some(text) if !text.is_empty() => Cow::Owned(format!("{status}: {text}")),
        _ if state == InstanceState::Running => Cow::Borrowed(""),
        _ => Cow::Owned(status.to_owned()),
    };
    Some(Instance {
        id: Place {
            project,
            zone,
            name,
        }
        .id(),
        incarnation: Incarnation::new(id.to_string()),
        state,
        deleting,
        ready: state == InstanceState::Running,
        ips: addresses(vm),
        zone: Some(zone.to_owned()),
        created: vm
            .creation_timestamp
            .as_deref()
            .and_then(|text| text.parse::<Timestamp>().ok()),
        tags: vm.labels.clone().into_iter().collect::<BTreeMap<_, _>>(),
        spec_hash: vm
            .labels
            .get(LABEL_HASH)
            .and_then(|tag| SpecHash::from_tag(tag).ok()),
        message,
        // A VM that comes up may still vanish, and then its operation alone says why.
        operation: hint
            .operation
            .clone()
            .filter(|_| state == InstanceState::Provisioning && is_same(hint, id)),
    })
}

/// A VM that was asked for, and does not show yet.
#[must_use]
pub fn unseen(place: Place<'_>, incarnation: Incarnation, operation: Arc<str>) -> Instance {
    Instance {
        id: place.id(),
        incarnation,
        state: InstanceState::Provisioning,
        deleting: false,
        ready: false,
        ips: Vec::new(),
        zone: Some(place.zone.to_owned()),
        created: None,
        tags: BTreeMap::new(),
        spec_hash: None,
        message: Cow::Borrowed("asked for, not shown yet"),
        operation: Some(operation),
    }
}

/// P-27: state, and whether it is on its way out.
fn state(vm: &model::Instance) -> (InstanceState, bool) {
    let up = if addresses(vm).is_empty() {
        InstanceState::Provisioning
    } else {
        InstanceState::Running
    };
    match &vm.status {
        Some(Status::Running | Status::Repairing) => (up, false),
        Some(Status::Stopping | Status::PendingStop | Status::Suspending) => {
            (InstanceState::Stopped, true)
        }
        Some(Status::Suspended | Status::Terminated | Status::Stopped) => {
            (InstanceState::Stopped, false)
        }
        Some(Status::Deprovisioning) => (InstanceState::Terminated, true),
        Some(Status::Provisioning | Status::Staging | Status::Pending) | None => {
            (InstanceState::Provisioning, false)
        }
        // A status that came with a later API: what has its address is not taken out of service.
        Some(_) => (up, false),
    }
}

/// The public address first, where the VM is to have one; none until that is there.
fn addresses(vm: &model::Instance) -> Vec<String> {
    let Some(interface) = vm.network_interfaces.first() else {
        return Vec::new();
    };
    let is_set = |text: &&String| !text.is_empty();
    let public = interface
        .access_configs
        .iter()
        .find_map(|access| access.nat_ip.as_ref().filter(is_set));
    let private = interface.network_ip.as_ref().filter(is_set);
    if !interface.access_configs.is_empty() && public.is_none() {
        return Vec::new();
    }
    public.into_iter().chain(private).cloned().collect()
}

fn is_same(hint: &Hint, id: u64) -> bool {
    hint.incarnation
        .as_ref()
        .is_none_or(|known| known.as_str() == id.to_string())
}

fn last_segment(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(status: &str, interface: &serde_json::Value) -> model::Instance {
        serde_json::from_value(serde_json::json!({
            "id": "4000000000000000001", "name": "px-u-1", "status": status,
            "zone": "https://www.googleapis.com/compute/v1/projects/my-project-1/zones/europe-west1-b",
            "creationTimestamp": "2026-01-02T03:04:05.678-07:00",
            "labels": {
                "pxo-managed": "proxy-operator", "pxo-cluster": "c", "pxo-uid": "u-1",
                "pxo-hash": "v1-0123456789abcdef0123456789abcdef01234567", "team": "crawl",
            },
            "networkInterfaces": [interface],
        }))
        .expect("a VM")
    }

    fn public() -> serde_json::Value {
        serde_json::json!({ "networkIP": "10.0.0.2", "accessConfigs": [{ "natIP": "192.0.2.1" }] })
    }

    fn read(vm: &model::Instance) -> Instance {
        instance("my-project-1", vm, &Hint::default()).expect("a whole VM")
    }

    #[test]
    fn p27_every_status_has_its_state() {
        use InstanceState::{Provisioning, Running, Stopped, Terminated};
        for (status, want, deleting) in [
            ("PROVISIONING", Provisioning, false),
            ("STAGING", Provisioning, false),
            ("PENDING", Provisioning, false),
            ("RUNNING", Running, false),
            ("REPAIRING", Running, false),
            ("STOPPING", Stopped, true),
            ("PENDING_STOP", Stopped, true),
            ("SUSPENDING", Stopped, true),
            ("SUSPENDED", Stopped, false),
            ("TERMINATED", Stopped, false),
            ("STOPPED", Stopped, false),
            ("DEPROVISIONING", Terminated, true),
            ("MIGRATING", Running, false),
        ] {
            let seen = read(&vm(status, &public()));
            assert_eq!((seen.state, seen.deleting), (want, deleting), "{status}");
            assert_eq!(
                seen.message.is_empty(),
                want == Running,
                "{status}: {}",
                seen.message
            );
        }
    }

    #[test]
    fn p03_a_vm_without_its_address_is_still_coming_up() {
        for (interface, ips) in [
            (public(), &["192.0.2.1", "10.0.0.2"][..]),
            (
                serde_json::json!({ "networkIP": "10.0.0.2" }),
                &["10.0.0.2"],
            ),
            (
                serde_json::json!({ "networkIP": "10.0.0.2", "accessConfigs": [{}] }),
                &[],
            ),
            (serde_json::json!({}), &[]),
        ] {
            let seen = read(&vm("RUNNING", &interface));
            assert_eq!(seen.ips, ips);
            assert_eq!(
                seen.state == InstanceState::Running,
                !ips.is_empty(),
                "{ips:?}"
            );
        }
    }

    #[test]
    fn p23_a_vm_is_read_with_its_id_its_life_and_its_hash() {
        let seen = read(&vm("RUNNING", &public()));
        assert_eq!(seen.id.as_str(), "gce://my-project-1/europe-west1-b/px-u-1");
        assert_eq!(seen.incarnation.as_str(), "4000000000000000001");
        assert_eq!(seen.zone.as_deref(), Some("europe-west1-b"));
        assert_eq!(seen.created, "2026-01-02T10:04:05.678Z".parse().ok());
        let hash = seen.spec_hash.expect("stamped");
        assert_eq!(hash.tag(), "v1-0123456789abcdef0123456789abcdef01234567");
        assert_eq!(seen.tags.get("team").map(String::as_str), Some("crawl"));
    }

    #[test]
    fn p05_all_three_labels_make_a_vm_ours() {
        let owner = crate::provider::Owner {
            cluster_id: Arc::from("c"),
            ..crate::provider::conformance::owner("u-1")
        };
        let whole = vm("RUNNING", &public());
        assert!(is_owned_by(&whole, &owner));
        let read = owner_of(&whole).expect("labelled");
        assert_eq!(
            (&*read.cluster_id, &*read.uid, &*read.proxy),
            ("c", "u-1", "")
        );
        for key in [LABEL_MANAGED, LABEL_CLUSTER, LABEL_UID] {
            let mut less = whole.clone();
            less.labels.remove(key);
            assert!(!is_owned_by(&less, &owner), "{key}");
            assert_eq!(owner_of(&less), None, "{key}");
        }
    }

    #[test]
    fn an_operation_is_remembered_until_its_vm_runs() {
        let hint = Hint {
            operation: Some(Arc::from("operation-1")),
            ..Hint::default()
        };
        let operation = |status: &str, hint: &Hint| {
            instance("p", &vm(status, &public()), hint)
                .expect("a VM")
                .operation
        };
        assert_eq!(operation("STAGING", &hint).as_deref(), Some("operation-1"));
        assert_eq!(operation("RUNNING", &hint), None);
        let other = Hint {
            incarnation: Some(Incarnation::new("7")),
            ..hint
        };
        assert_eq!(operation("STAGING", &other), None, "it made another life");
    }
}
