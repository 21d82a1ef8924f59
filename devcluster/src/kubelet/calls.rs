//! The writes about one pod, each guarded by its uid.

use k8s_openapi::api::core::v1::Pod;
use kube_client::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use super::nodes::is_code;

fn pods_of(client: &Client, pod: &Pod) -> Api<Pod> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    Api::namespaced(client.clone(), namespace)
}

fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Binds the pod to the node.
pub(super) async fn bind(client: &Client, pod: &Pod, node: &str) -> kube_client::Result<()> {
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            // The server refuses the binding of a successor of the same name.
            "uid": pod.metadata.uid,
        },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let params = PostParams::default();
    pods_of(client, pod)
        .create_subresource::<_, Value>("binding", name_of(pod), &params, &binding)
        .await
        .map(drop)
}

/// Patches the status; the patch names the uid.
pub(super) async fn patch_status(
    client: &Client,
    pod: &Pod,
    patch: Value,
) -> kube_client::Result<Pod> {
    let params = PatchParams::default();
    pods_of(client, pod)
        .patch_status(name_of(pod), &params, &Patch::Strategic(patch))
        .await
}

/// Tells by an annotation where the pod's ports are reached, if that is elsewhere.
pub(super) async fn annotate(
    client: &Client,
    pod: &Pod,
    port_map: Option<&str>,
) -> kube_client::Result<()> {
    let Some(port_map) = port_map else {
        return Ok(());
    };
    let patch = json!({ "metadata": {
        "uid": pod.metadata.uid,
        "annotations": { "devcluster/port-map": port_map },
    } });
    let params = PatchParams::default();
    pods_of(client, pod)
        .patch(name_of(pod), &params, &Patch::Merge(patch))
        .await
        .map(drop)
}

/// Deletes the pod for good; one that is gone or was replaced is as good as deleted.
pub(super) async fn remove(client: &Client, pod: &Pod) -> kube_client::Result<()> {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods_of(client, pod).delete(name_of(pod), &params).await {
        Err(error) if is_code(&error, 404) || is_code(&error, 409) => Ok(()),
        outcome => outcome.map(drop),
    }
}
