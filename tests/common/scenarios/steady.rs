//! A fleet at rest costs nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube_client::core::params::{ListParams, Patch, PatchParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::api::Proxy;
use serde_json::json;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::world::{OPERATOR_USER, World};

const NAMES: [&str; 4] = ["one", "two", "three", "four"];

/// Resource versions of all that the operator could have written.
async fn versions(world: &World) -> BTreeMap<String, String> {
    let (proxies, pods, secrets): (Api<Proxy>, Api<Pod>, Api<Secret>) =
        (world.api(), world.api(), world.api());
    let all = ListParams::default();
    let mut versions = BTreeMap::new();
    let mut note = |kind: &str, name: String, version: Option<String>| {
        versions.insert(format!("{kind}/{name}"), version.unwrap_or_default());
    };
    for proxy in proxies.list(&all).await.expect("a list").items {
        note("proxy", proxy.name_any(), proxy.resource_version());
    }
    for pod in pods.list(&all).await.expect("a list").items {
        note("pod", pod.name_any(), pod.resource_version());
    }
    for secret in secrets.list(&all).await.expect("a list").items {
        note("secret", secret.name_any(), secret.resource_version());
    }
    versions
}

pub(crate) async fn t14_a_settled_fleet_writes_nothing(world: &World) {
    let drift = Duration::from_millis(400);
    let _operator = Operator::start(&world.operator_kubeconfig(), &["--drift-poll", "400ms"]);
    fleet::put_secret(world, "boot", "user-data", "text").await;
    for name in NAMES {
        let addition = json!({ "cloudInit": { "secretRef": { "name": "boot" } } });
        fleet::create(world, &fleet::managed(name, &addition)).await;
    }
    for name in NAMES {
        fleet::ready(world, name).await;
    }
    let settled = versions(world).await;
    let counted = world
        .embedded_cluster()
        .map(devcluster::DevCluster::counters);

    // The same bytes again, under a resource version of their own.
    let secrets: Api<Secret> = world.api();
    let touch = Patch::Merge(json!({
        "metadata": { "annotations": { "touched": "yes" } }, "stringData": { "user-data": "text" }
    }));
    secrets
        .patch("boot", &PatchParams::default(), &touch)
        .await
        .expect("the Secret changes");

    if let (Some(cluster), Some(before)) = (world.embedded_cluster(), counted) {
        let polls = 3 * NAMES.len() as u64;
        eventually(fleet::STEP, "three drift polls of every Proxy", || async {
            let seen = cluster.counters().since(&before).count(|request| {
                request.user == OPERATOR_USER && request.verb == "get" && request.resource == "pods"
            });
            if seen >= polls {
                Ok(())
            } else {
                Err(format!("{seen} of {polls} polls"))
            }
        })
        .await;
        let since = cluster.counters().since(&before);
        assert_eq!(since.writes_by(OPERATOR_USER), 0, "{since:?}");
    } else {
        // The real server counts per verb only, not per user: what was written shows in the versions.
        tokio::time::sleep(drift * 4).await;
    }
    let mut after = versions(world).await;
    let mut before = settled;
    assert_ne!(
        after.remove("secret/boot"),
        before.remove("secret/boot"),
        "we touched it ourselves"
    );
    assert_eq!(after, before);
}
