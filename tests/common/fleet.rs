//! Proxies, their pods and their Secrets, as a user sees and changes them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube_client::core::params::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::api::conditions::{self, ConditionStatus, ConditionType, Reason};
use proxy_operator::api::v1alpha1::Phase;
use proxy_operator::api::{Proxy, SPEC_HASH_ANNOTATION};
use serde_json::{Value, json};

use super::eventually::eventually;
use super::through;
use super::world::World;

/// How long any single step may take, on a slow machine too.
pub(crate) const STEP: Duration = Duration::from_secs(40);

/// A Managed Proxy on pods with an addition to its spec.
pub(crate) fn managed(name: &str, addition: &Value) -> Proxy {
    let mut spec = json!({ "mode": "Managed", "provider": "kubernetes" });
    merge(&mut spec, addition);
    proxy(name, &spec)
}

/// A Proxy with exactly this spec.
pub(crate) fn proxy(name: &str, spec: &Value) -> Proxy {
    serde_json::from_value(json!({
        "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
        "metadata": { "name": name }, "spec": spec
    }))
    .expect("a Proxy")
}

fn merge(target: &mut Value, addition: &Value) {
    if let (Some(target), Some(addition)) = (target.as_object_mut(), addition.as_object()) {
        target.extend(
            addition
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
    }
}

/// Creates a Proxy.
pub(crate) async fn create(world: &World, proxy: &Proxy) -> Proxy {
    let proxies: Api<Proxy> = world.api();
    proxies
        .create(&PostParams::default(), proxy)
        .await
        .expect("the Proxy is accepted")
}

/// Changes a Proxy by a merge patch, as `kubectl patch --type merge` does.
pub(crate) async fn edit(world: &World, name: &str, patch: &Value) -> Proxy {
    let proxies: Api<Proxy> = world.api();
    proxies
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("the edit is accepted")
}

/// Asks for a Proxy's deletion.
pub(crate) async fn delete(world: &World, name: &str) {
    let proxies: Api<Proxy> = world.api();
    proxies
        .delete(name, &DeleteParams::default())
        .await
        .expect("the Proxy can be deleted");
}

/// The Proxy as the server has it.
pub(crate) async fn get(world: &World, name: &str) -> Option<Proxy> {
    let proxies: Api<Proxy> = world.api();
    proxies.get_opt(name).await.expect("Proxies can be read")
}

/// Writes a Secret of one key.
pub(crate) async fn put_secret(world: &World, name: &str, key: &str, text: &str) {
    let secrets: Api<Secret> = world.api();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": name }, "stringData": { key: text }
    }))
    .expect("a Secret");
    if secrets
        .get_opt(name)
        .await
        .expect("Secrets can be read")
        .is_none()
    {
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .expect("the Secret is accepted");
    } else {
        let patch = Patch::Merge(json!({ "stringData": { key: text } }));
        secrets
            .patch(name, &PatchParams::default(), &patch)
            .await
            .expect("the Secret changes");
    }
}

/// The pods of a Proxy that are there, being deleted or not.
pub(crate) async fn pods_of(world: &World, proxy: &Proxy) -> Vec<Pod> {
    let pods: Api<Pod> = world.api();
    let selector = format!(
        "{}={}",
        super::pods::PROXY_UID,
        proxy.uid().expect("a stored Proxy has a UID")
    );
    pods.list(&ListParams::default().labels(&selector))
        .await
        .expect("pods can be listed")
        .items
}

/// All pods of the fleet's namespace.
pub(crate) async fn all_pods(world: &World) -> Vec<Pod> {
    let pods: Api<Pod> = world.api();
    pods.list(&ListParams::default())
        .await
        .expect("pods can be listed")
        .items
}

/// The reason of a condition, if the condition is there.
pub(crate) fn reason(proxy: &Proxy, kind: ConditionType) -> Option<Reason> {
    conditions::reason(&proxy.status.as_ref()?.conditions, kind)
}

/// The message of a condition; empty if the condition is not there.
pub(crate) fn message(proxy: &Proxy, kind: ConditionType) -> &str {
    proxy
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, kind))
        .map_or("", |condition| condition.message.as_str())
}

/// The hash that the operator noted on the Proxy.
pub(crate) fn hash(proxy: &Proxy) -> Option<&str> {
    proxy
        .annotations()
        .get(SPEC_HASH_ANNOTATION)
        .map(String::as_str)
}

/// Waits until the Proxy passes a check.
pub(crate) async fn until(
    world: &World,
    name: &str,
    what: &str,
    check: impl Fn(&Proxy) -> bool,
) -> Proxy {
    eventually(STEP, &format!("{name}: {what}"), || async {
        let proxy = get(world, name).await.ok_or("it is gone")?;
        if check(&proxy) {
            Ok(proxy)
        } else {
            Err(describe(&proxy))
        }
    })
    .await
}

/// Waits until the Proxy is Ready at its newest generation.
pub(crate) async fn ready(world: &World, name: &str) -> Proxy {
    until(world, name, "is Ready", is_ready).await
}

/// Whether the status says Ready, for the newest generation.
pub(crate) fn is_ready(proxy: &Proxy) -> bool {
    proxy.status.as_ref().is_some_and(|status| {
        status.phase == Some(Phase::Ready)
            && status.observed_generation == proxy.metadata.generation
            && conditions::status(&status.conditions, ConditionType::Ready)
                == Some(ConditionStatus::True)
    })
}

/// Waits until the Proxy is gone.
pub(crate) async fn gone(world: &World, name: &str) {
    eventually(STEP, &format!("{name} is gone"), || async {
        match get(world, name).await {
            None => Ok(()),
            Some(proxy) => Err(describe(&proxy)),
        }
    })
    .await;
}

/// Waits until a Ready Proxy runs on an instance other than `before`.
pub(crate) async fn replaced(world: &World, name: &str, before: &Proxy) -> Proxy {
    let old = instance(before);
    until(world, name, "is Ready on another instance", |proxy| {
        is_ready(proxy) && instance(proxy).is_some() && instance(proxy) != old
    })
    .await
}

/// The incarnation that the status names.
pub(crate) fn instance(proxy: &Proxy) -> Option<&str> {
    proxy.status.as_ref()?.instance_uid.as_deref()
}

/// Fetches the echo page through the Proxy, plain and by CONNECT, and shows that the caller was its own address.
pub(crate) async fn answers(world: &World, proxy: &Proxy) {
    let status = proxy.status.as_ref().expect("a Ready Proxy has a status");
    let endpoint = status
        .endpoint
        .as_ref()
        .expect("a Ready Proxy has an endpoint");
    let address = format!("{}:{}", endpoint.host, endpoint.port);
    let target = world.echo.address();
    let own = status.ip.as_deref().expect("a Ready Proxy has an address");
    assert_eq!(
        through::plain(&address, target)
            .await
            .expect("a plain answer")
            .ip,
        own
    );
    assert_eq!(
        through::tunnel(&address, target)
            .await
            .expect("a tunnelled answer")
            .ip,
        own
    );
}

/// What a Proxy looks like, in a failure's text.
pub(crate) fn describe(proxy: &Proxy) -> String {
    let Some(status) = &proxy.status else {
        return format!("{}: no status", proxy.name_any());
    };
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .map(|c| format!("{}={}/{} ({})", c.type_, c.status, c.reason, c.message))
        .collect();
    format!(
        "{}: phase {:?}, generation {:?} (observed {:?}), deleted {}, finalizers {:?}, instance {:?}, {}",
        proxy.name_any(),
        status.phase,
        proxy.metadata.generation,
        status.observed_generation,
        proxy.metadata.deletion_timestamp.is_some(),
        proxy.finalizers(),
        status.instance_uid,
        conditions.join(", "),
    )
}
