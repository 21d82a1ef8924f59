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

    // News that change no generation wake the Proxy. Nothing comes of it by the time that another
    // one, which came after it, is Ready; `one` itself is as its user left it.
    let note = json!({ "metadata": { "labels": { "noted": "yes" } } });
    let noted = fleet::edit(world, "one", &note).await;
    fleet::create(world, &fleet::managed("two", &json!({}))).await;
    fleet::ready(world, "two").await;
    let still = fleet::get(world, "one").await.expect("it is there");
    assert_eq!(still.resource_version(), noted.resource_version());
    if let Some(cluster) = world.embedded_cluster() {
        let tries = cluster.counters().count(|request| {
            request.user == crate::common::world::OPERATOR_USER
                && request.verb == "create"
                && request.resource == "pods"
        });
        assert_eq!(tries, 2, "one refused, one for the other Proxy");
    }

    let good = json!({ "spec": { "machine": { "kubernetes": {
        "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "1" } }
    } } } });
    fleet::edit(world, "one", &good).await;
    let healed = fleet::ready(world, "one").await;
    assert_eq!(
        healed
            .status
            .as_ref()
            .and_then(|status| status.latch.as_ref()),
        None
    );
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
