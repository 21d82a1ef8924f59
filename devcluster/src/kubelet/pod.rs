//! What tells pods and their versions apart.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

/// `namespace/name`.
pub(super) type PodKey = Arc<str>;

/// The key of a pod.
pub(super) fn key_of(pod: &Pod) -> PodKey {
    let meta = &pod.metadata;
    format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or("default"),
        meta.name.as_deref().unwrap_or_default()
    )
    .into()
}

/// The node that the API shows the pod on.
pub(super) fn bound_to(pod: &Pod) -> Option<String> {
    pod.spec
        .as_ref()?
        .node_name
        .clone()
        .filter(|node| !node.is_empty())
}

/// The revision, comparable within one API server; zero where it is none.
pub(super) fn version(pod: &Pod) -> u64 {
    pod.metadata
        .resource_version
        .as_deref()
        .and_then(|rv| rv.parse().ok())
        .unwrap_or(0)
}
