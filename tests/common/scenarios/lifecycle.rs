//! From creation over change and loss to deletion.

use kube_client::core::params::DeleteParams;
use kube_client::{Api, ResourceExt};
use proxy_operator::api::FINALIZER;
use proxy_operator::api::conditions::{ConditionType, Reason};
use serde_json::json;

use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::pods::PodMonitor;
use crate::common::world::World;

/// What a stop may take.
const GRACE: std::time::Duration = std::time::Duration::from_secs(30);
const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];

pub(crate) async fn t01_a_managed_fleet_gets_ready_and_forwards(world: &World) {
    let monitor = PodMonitor::start(world).await;
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    for name in NAMES {
        fleet::create(world, &fleet::managed(name, &json!({}))).await;
    }
    let mut addresses = std::collections::BTreeSet::new();
    for name in NAMES {
        let proxy = fleet::ready(world, name).await;
        let status = proxy.status.as_ref().expect("a status");
        let uid = proxy.uid().expect("a UID");
        assert_eq!(proxy.finalizers(), [FINALIZER]);
        assert_eq!(
            status.provider_id.as_deref(),
            Some(format!("kubernetes://fleet/px-{uid}").as_str())
        );
        assert_eq!(
            fleet::reason(&proxy, ConditionType::Provisioned),
            Some(Reason::Created)
        );
        assert_eq!(
            fleet::reason(&proxy, ConditionType::Synced),
            Some(Reason::InSync)
        );
        assert_eq!(
            fleet::reason(&proxy, ConditionType::Healthy),
            Some(Reason::ProbingDisabled)
        );
        assert_eq!(
            fleet::reason(&proxy, ConditionType::Ready),
            Some(Reason::Serving)
        );
        assert!(fleet::hash(&proxy).is_some_and(|hash| hash.starts_with("v1:")));
        assert!(
            addresses.insert(status.ip.clone()),
            "every pod has an address of its own"
        );
        fleet::answers(world, &proxy).await;
        assert_eq!(monitor.ever(&uid), 1);
    }
    monitor.assert_never_two();
}

pub(crate) async fn t03_a_deleted_proxy_goes_after_its_pod(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let proxy = fleet::ready(world, "one").await;
    fleet::delete(world, "one").await;
    loop {
        let pods = fleet::pods_of(world, &proxy).await;
        if fleet::get(world, "one").await.is_none() {
            break;
        }
        // Read in this order: a pod that is there while the object is already gone would show here.
        if pods.is_empty() {
            fleet::gone(world, "one").await;
            break;
        }
    }
    assert!(
        fleet::all_pods(world).await.is_empty(),
        "the pod went before the object"
    );
}

pub(crate) async fn t05_a_changed_machine_is_replaced_under_the_same_name(world: &World) {
    let monitor = PodMonitor::start(world).await;
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let before = fleet::ready(world, "one").await;
    fleet::edit(
        world,
        "one",
        &json!({ "spec": { "tags": { "team": "search" } } }),
    )
    .await;
    let after = fleet::replaced(world, "one", &before).await;
    assert_ne!(fleet::hash(&after), fleet::hash(&before));
    let name = |proxy: &_| {
        let proxy: &proxy_operator::api::Proxy = proxy;
        proxy
            .status
            .as_ref()
            .and_then(|status| status.provider_id.clone())
    };
    assert_eq!(name(&after), name(&before));
    let pods = fleet::pods_of(world, &after).await;
    assert_eq!(pods.len(), 1);
    assert_eq!(
        pods[0].labels().get("team").map(String::as_str),
        Some("search")
    );
    fleet::answers(world, &after).await;
    monitor.assert_never_two();
    assert_eq!(monitor.ever(&after.uid().expect("a UID")), 2);
}

pub(crate) async fn t06_what_is_not_in_the_hash_replaces_nothing(world: &World) {
    let monitor = PodMonitor::start(world).await;
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let before = fleet::ready(world, "one").await;
    let edit = json!({
        "metadata": { "labels": { "pool": "a" } },
        "spec": {
            "healthCheck": { "intervalSeconds": 60 },
            "lease": { "weight": 5 },
            "location": { "country": "DE" },
        }
    });
    fleet::edit(world, "one", &edit).await;
    let after = fleet::until(world, "one", "has seen the edit", |proxy| {
        proxy.metadata.generation > before.metadata.generation && fleet::is_ready(proxy)
    })
    .await;
    assert_eq!(fleet::instance(&after), fleet::instance(&before));
    assert_eq!(fleet::hash(&after), fleet::hash(&before));
    assert_eq!(monitor.ever(&after.uid().expect("a UID")), 1);
}

pub(crate) async fn t13_a_pod_deleted_by_hand_is_made_again_once(world: &World) {
    let monitor = PodMonitor::start(world).await;
    let _operator = Operator::start(&world.operator_kubeconfig(), &["--drift-poll", "500ms"]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let before = fleet::ready(world, "one").await;
    let pod = fleet::pods_of(world, &before).await.remove(0);
    let pods: Api<k8s_openapi::api::core::v1::Pod> = world.api();
    pods.delete(&pod.name_any(), &DeleteParams::default())
        .await
        .expect("the pod can be deleted");
    let after = fleet::replaced(world, "one", &before).await;
    fleet::answers(world, &after).await;
    monitor.assert_never_two();
    assert_eq!(monitor.ever(&after.uid().expect("a UID")), 2);
}

pub(crate) async fn t34_a_proxy_deleted_at_once_leaves_nothing(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    for name in NAMES {
        fleet::create(world, &fleet::managed(name, &json!({}))).await;
        fleet::delete(world, name).await;
    }
    for name in NAMES {
        fleet::gone(world, name).await;
    }
    crate::common::eventually::eventually(fleet::STEP, "no pod is left", || async {
        let pods = fleet::all_pods(world).await;
        if pods.is_empty() {
            Ok(())
        } else {
            Err(format!("{} pods", pods.len()))
        }
    })
    .await;
}

pub(crate) async fn the_operator_ends_on_sigterm_and_leaves_the_fleet_as_it_is(world: &World) {
    let mut operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let before = fleet::ready(world, "one").await;
    assert_eq!(operator.terminate(GRACE).await, Some(0));
    let after = fleet::get(world, "one").await.expect("it stays");
    assert_eq!(after.status, before.status);
    fleet::answers(world, &after).await;
}
