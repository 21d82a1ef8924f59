//! The same admission tests on each API server.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::core::params::{DeleteParams, ListParams, PostParams};
use kube_client::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube_client::{Api, Client, Config, Error};
use proxy_operator::api::{self, Proxy};
use realcluster::RealCluster;
use serde_json::Value;

use crate::cases::{self, Refused};

const SERVED_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test]
async fn c02_the_real_api_server_admits_what_the_rules_say() {
    let options = realcluster::Options::default();
    let Some(cluster) = RealCluster::start_if_built(&options)
        .await
        .expect("it starts")
    else {
        eprintln!("skipped: no real API server is built");
        return;
    };
    admits_what_the_rules_say(client(cluster.kubeconfig()).await).await;
}

async fn client(kubeconfig: &Path) -> Client {
    let config = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

async fn admits_what_the_rules_say(client: Client) {
    install(&client).await;
    let kind = GroupVersionKind::gvk(api::GROUP, "v1alpha1", "Proxy");
    let resource = ApiResource::from_gvk_with_plural(&kind, "proxies");
    let proxies: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);

    let mut wrong = Vec::new();
    for case in cases::refused_by_rules()
        .into_iter()
        .chain(cases::refused_by_limits())
    {
        if let Err(reason) = is_refused(&proxies, &case).await {
            wrong.push(format!("{} {}: {reason}", case.rule, case.what));
        }
    }
    for (what, manifest) in cases::accepted() {
        if let Err(error) = proxies
            .create(&PostParams::default(), &object(&manifest))
            .await
        {
            wrong.push(format!("{what}: {error}"));
            continue;
        }
        let typed: Api<Proxy> = Api::namespaced(client.clone(), "default");
        let stored = typed
            .get(name(&manifest))
            .await
            .expect("the types can read it");
        let read: Proxy = serde_json::from_value(manifest.clone()).expect("a readable manifest");
        if stored.spec != read.spec {
            wrong.push(format!(
                "{what}: the server's defaults are not those of the types"
            ));
        }
        delete(&proxies, name(&manifest)).await;
    }
    for (what, old, new) in cases::accepted_changes() {
        let created = proxies.create(&PostParams::default(), &object(&old)).await;
        let created = created.unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Err(error) = replace(&proxies, &created, &new).await {
            wrong.push(format!("{what}: {error}"));
        }
        delete(&proxies, name(&new)).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn install(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), &api::crd())
        .await
        .expect("the definition is accepted, the cost of its rules included");
    let proxies: Api<Proxy> = Api::namespaced(client.clone(), "default");
    let served = async {
        while proxies.list(&ListParams::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SERVED_WITHIN, served)
        .await
        .expect("the resource is served");
}

/// Whether exactly the expected refusals come, each with its field and text.
async fn is_refused(proxies: &Api<DynamicObject>, case: &Refused) -> Result<(), String> {
    let answer = match &case.old {
        None => {
            proxies
                .create(&PostParams::default(), &object(&case.manifest))
                .await
        }
        Some(old) => {
            let created = proxies.create(&PostParams::default(), &object(old)).await;
            let created = created.map_err(|error| format!("the object before it: {error}"))?;
            let answer = replace(proxies, &created, &case.manifest).await;
            delete(proxies, name(old)).await;
            answer
        }
    };
    let status = match answer {
        Err(Error::Api(status)) if status.code == 422 => status,
        Err(error) => return Err(format!("not a refusal: {error}")),
        Ok(_) => {
            delete(proxies, name(&case.manifest)).await;
            return Err("taken".to_owned());
        }
    };
    let causes = status
        .details
        .as_ref()
        .map(|details| details.causes.as_slice());
    let causes: Vec<_> = causes
        .unwrap_or_default()
        .iter()
        // Says only that rules are not looked at while the schema's limits are broken.
        .filter(|cause| {
            !cause
                .message
                .contains("some validation rules were not checked")
        })
        .collect();
    let is_named = |(field, text): &(&str, &str)| {
        causes
            .iter()
            .any(|cause| cause.field == *field && cause.message.contains(text))
    };
    if case.refusals.iter().all(is_named) && causes.len() == case.refusals.len() {
        if status.message.contains("hunter2") {
            return Err(format!("repeats a password: {}", status.message));
        }
        return Ok(());
    }
    Err(format!("expected {:?}, got {causes:?}", case.refusals))
}

async fn replace(
    proxies: &Api<DynamicObject>,
    created: &DynamicObject,
    manifest: &Value,
) -> Result<DynamicObject, Error> {
    let mut object = object(manifest);
    object.metadata.resource_version = created.metadata.resource_version.clone();
    proxies
        .replace(name(manifest), &PostParams::default(), &object)
        .await
}

async fn delete(proxies: &Api<DynamicObject>, name: &str) {
    proxies
        .delete(name, &DeleteParams::default())
        .await
        .expect("it was created");
}

fn object(manifest: &Value) -> DynamicObject {
    serde_json::from_value(manifest.clone()).expect("a manifest is an object")
}

fn name(manifest: &Value) -> &str {
    manifest["metadata"]["name"]
        .as_str()
        .expect("a manifest has a name")
}
