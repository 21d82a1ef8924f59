//! What passes admission and is wrong all the same ends in a condition that says how to mend it.

use k8s_openapi::api::core::v1::Pod;
use kube_client::core::params::PostParams;
use kube_client::{Api, ResourceExt};
use proxy_operator::api::conditions::{ConditionType, Reason};
use proxy_operator::api::v1alpha1::Phase;
use serde_json::json;

use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::world::World;

pub(crate) async fn b08_an_unknown_provider_is_named_with_the_configured_ones(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({ "provider": "gcp" }))).await;
    let proxy = fleet::until(world, "one", "has failed", |proxy| {
        proxy
            .status
            .as_ref()
            .is_some_and(|status| status.phase == Some(Phase::Failed))
    })
    .await;
    let provisioned = ConditionType::Provisioned;
    assert_eq!(
        fleet::reason(&proxy, provisioned),
        Some(Reason::ProviderNotConfigured)
    );
    let message = fleet::message(&proxy, provisioned);
    assert!(
        message.contains("gcp") && message.contains("kubernetes"),
        "{message}"
    );
    fleet::delete(world, "one").await;
    fleet::gone(world, "one").await;
}

pub(crate) async fn t39_a_permanent_error_is_silent_until_the_spec_changes(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    // Within the schema's bounds, and refused by the API server when the pod is made.
    let bad = json!({ "machine": { "kubernetes": {
        "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "1" } }
    } } });
    fleet::create(world, &fleet::managed("one", &bad)).await;
    let failed = fleet::until(world, "one", "has failed", |proxy| {
        fleet::reason(proxy, ConditionType::Provisioned) == Some(Reason::PermanentError)
    })
    .await;
    assert_eq!(
        failed.status.as_ref().and_then(|status| status.phase),
        Some(Phase::Failed)
    );
    assert!(fleet::all_pods(world).await.is_empty());
    let good = json!({ "spec": { "machine": { "kubernetes": {
        "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "1" } }
    } } } });
    let edited = fleet::edit(world, "one", &good).await;
    assert_eq!(
        edited.metadata.resource_version.is_some(),
        failed.metadata.resource_version.is_some()
    );
    let healed = fleet::ready(world, "one").await;
    fleet::answers(world, &healed).await;
}

pub(crate) async fn t45_a_foreign_pod_under_our_name_is_left_alone(world: &World) {
    let proxy = fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let pods: Api<Pod> = world.api();
    let foreign: Pod = serde_json::from_value(json!({
        "metadata": { "name": format!("px-{}", proxy.uid().expect("a UID")) },
        "spec": { "containers": [{ "name": "theirs", "image": "registry.example/theirs:1" }] }
    }))
    .expect("a Pod");
    let foreign = pods
        .create(&PostParams::default(), &foreign)
        .await
        .expect("a foreign pod");
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    let failed = fleet::until(world, "one", "has met a foreign pod", |proxy| {
        fleet::reason(proxy, ConditionType::Provisioned) == Some(Reason::NameCollision)
    })
    .await;
    assert_eq!(
        failed.status.as_ref().and_then(|status| status.phase),
        Some(Phase::Failed)
    );
    fleet::delete(world, "one").await;
    fleet::gone(world, "one").await;
    let still = pods
        .get(&foreign.name_any())
        .await
        .expect("the foreign pod is untouched");
    assert_eq!(still.uid(), foreign.uid());
    assert!(still.metadata.deletion_timestamp.is_none());
}
