//! Manifests of any kind: read from files and texts, sent to an API server.

use std::path::{Path, PathBuf};

use kube_client::core::params::{Patch, PatchParams};
use kube_client::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube_client::{Api, Client};
use serde_json::Value;

/// A path below the project's folder.
pub(crate) fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Every object of a text in YAML.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("valid YAML");
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}

/// Every object of a file of `manifests/base`.
pub(crate) fn of_base(file: &str) -> Vec<Value> {
    let path = in_project("manifests/base").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    objects(&text)
}

/// Where objects like this one are, in its namespace if it has one.
pub(crate) fn place(client: &Client, object: &DynamicObject) -> Api<DynamicObject> {
    let types = object.types.clone().expect("a manifest has a kind");
    let kind = GroupVersionKind::try_from(&types).expect("a group, version and kind");
    let resource = ApiResource::from_gvk(&kind);
    match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// A manifest as an object whose kind only the server knows.
pub(crate) fn dynamic(manifest: &Value) -> DynamicObject {
    serde_json::from_value(manifest.clone()).expect("a manifest is an object")
}

/// Sends a manifest by server-side apply, strict about fields that the server does not know.
pub(crate) async fn apply(client: &Client, manifest: &Value, dry_run: bool) -> DynamicObject {
    let object = dynamic(manifest);
    let name = object.metadata.name.clone().expect("a manifest has a name");
    let mut params = PatchParams::apply("manifests").validation_strict().force();
    params.dry_run = dry_run;
    place(client, &object)
        .patch(&name, &params, &Patch::Apply(manifest))
        .await
        .unwrap_or_else(|error| panic!("{} {name}: {error}", manifest["kind"]))
}
