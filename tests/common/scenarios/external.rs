//! Proxies that somebody else runs.

use kube_client::ResourceExt;
use proxy_operator::api::conditions::{ConditionType, Reason};
use serde_json::json;

use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::world::World;

fn endpoint() -> serde_json::Value {
    json!({ "mode": "External", "endpoint": { "host": "127.0.0.1", "port": 3128 } })
}

pub(crate) async fn t02_an_external_proxy_is_ready_without_finalizer_or_pod(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::proxy("theirs", &endpoint())).await;
    let proxy = fleet::ready(world, "theirs").await;
    assert!(proxy.finalizers().is_empty());
    assert_eq!(fleet::hash(&proxy), None);
    let status = proxy.status.as_ref().expect("a status");
    assert_eq!(status.ip.as_deref(), Some("127.0.0.1"));
    assert_eq!(status.provider_id, None);
    assert_eq!(
        fleet::reason(&proxy, ConditionType::Provisioned),
        Some(Reason::ExternalEndpoint)
    );
    assert!(fleet::all_pods(world).await.is_empty());
    if let Some(cluster) = world.embedded_cluster() {
        let calls = cluster.counters().count(|request| {
            request.user == crate::common::world::OPERATOR_USER && request.resource == "pods"
        });
        assert_eq!(calls, 0, "no provider call is ever made");
    }
}

pub(crate) async fn t04_an_external_proxy_goes_at_once(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::proxy("theirs", &endpoint())).await;
    fleet::ready(world, "theirs").await;
    fleet::delete(world, "theirs").await;
    assert!(fleet::get(world, "theirs").await.is_none());
}

pub(crate) async fn t09_a_proxy_that_turns_external_and_back_leaves_no_pod_behind(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let managed = fleet::ready(world, "one").await;
    let external = json!({ "spec": {
        "mode": "External", "provider": null, "endpoint": { "host": "127.0.0.1", "port": 3128 }
    } });
    fleet::edit(world, "one", &external).await;
    let released = fleet::until(world, "one", "has let its pod go", |proxy| {
        proxy.finalizers().is_empty() && fleet::instance(proxy).is_none() && fleet::is_ready(proxy)
    })
    .await;
    assert_eq!(fleet::hash(&released), None);
    assert!(fleet::pods_of(world, &managed).await.is_empty());
    let back = json!({ "spec": { "mode": "Managed", "provider": "kubernetes", "endpoint": null } });
    fleet::edit(world, "one", &back).await;
    let again = fleet::replaced(world, "one", &managed).await;
    assert_eq!(fleet::pods_of(world, &again).await.len(), 1);
    fleet::answers(world, &again).await;
}
