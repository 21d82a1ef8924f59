//! The same admission tests on each API server.

use std::path::Path;
use std::time::Duration;

use devcluster::DevCluster;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::core::params::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_client::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube_client::{Api, Client, Config, Error};
use proxy_operator::api::{self, Proxy, ProxySpec, validation};
use realcluster::RealCluster;
use serde_json::{Value, json};

use crate::cases::{self, Refused};

const SERVED_WITHIN: Duration = Duration::from_secs(20);

/// A running API server and an administrator's client of it.
pub(crate) struct Server {
    pub(crate) client: Client,
    // Held: the server ends with it.
    _cluster: Cluster,
}

#[expect(dead_code, reason = "held for what dropping them ends")]
enum Cluster {
    Embedded(Box<DevCluster>),
    Real(Box<RealCluster>),
}

impl Server {
    pub(crate) async fn embedded() -> Self {
        let cluster = DevCluster::builder().start().await.expect("it starts");
        let dir = tempfile::tempdir().expect("a folder");
        let kubeconfig = dir.path().join("kubeconfig");
        cluster.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
        let client = client(&kubeconfig).await;
        Server {
            client,
            _cluster: Cluster::Embedded(Box::new(cluster)),
        }
    }

    /// None, and it says so, where the real one is not built.
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    async fn real() -> Option<Self> {
        let options = realcluster::Options::default();
        let Some(cluster) = RealCluster::start_if_built(&options)
            .await
            .expect("it starts")
        else {
            eprintln!("skipped: no real API server is built");
            return None;
        };
        let client = client(cluster.kubeconfig()).await;
        Some(Server {
            client,
            _cluster: Cluster::Real(Box::new(cluster)),
        })
    }
}

mod embedded {
    use super::Server;

    #[tokio::test]
    async fn c02_admission_follows_the_rules() {
        super::admission_follows_the_rules(&Server::embedded().await.client).await;
    }

    #[tokio::test]
    async fn c02_what_an_older_definition_let_through_can_be_reported() {
        let server = Server::embedded().await;
        super::what_an_older_definition_let_through_can_be_reported(&server.client).await;
    }

    #[tokio::test]
    async fn c05_c06_columns_are_shown_and_fields_selected() {
        super::columns_are_shown_and_fields_selected(&Server::embedded().await.client).await;
    }
}

mod real {
    use super::Server;

    #[tokio::test]
    async fn c02_admission_follows_the_rules() {
        if let Some(server) = Server::real().await {
            super::admission_follows_the_rules(&server.client).await;
        }
    }

    #[tokio::test]
    async fn c02_what_an_older_definition_let_through_can_be_reported() {
        if let Some(server) = Server::real().await {
            super::what_an_older_definition_let_through_can_be_reported(&server.client).await;
        }
    }

    #[tokio::test]
    async fn c05_c06_columns_are_shown_and_fields_selected() {
        if let Some(server) = Server::real().await {
            super::columns_are_shown_and_fields_selected(&server.client).await;
        }
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let config = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

async fn admission_follows_the_rules(client: &Client) {
    install(client).await;
    let proxies = dynamic_proxies(client);

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

/// The operator patches metadata and status of such an object, and its user can mend or delete it.
async fn what_an_older_definition_let_through_can_be_reported(client: &Client) {
    let mut older = serde_json::to_value(api::crd()).expect("plain texts");
    drop_rules(&mut older);
    install_definition(
        client,
        &serde_json::from_value(older).expect("still a definition"),
    )
    .await;
    let proxies: Api<Proxy> = Api::namespaced(client.clone(), "default");
    let dynamic = dynamic_proxies(client);
    let mut names = Vec::new();
    for (n, case) in cases::refused_by_rules().into_iter().enumerate() {
        if case.old.is_some() {
            continue;
        }
        let mut manifest = case.manifest;
        if case.rule != "V13" {
            manifest["metadata"]["name"] = json!(format!("case-{n}"));
        }
        let created = dynamic
            .create(&PostParams::default(), &object(&manifest))
            .await;
        created.unwrap_or_else(|error| panic!("{} {}: {error}", case.rule, case.what));
        names.push((
            name(&manifest).to_owned(),
            format!("{} {}", case.rule, case.what),
        ));
    }

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut newer = api::crd();
    let present = definitions
        .get("proxies.crawl.proxyoperator.dev")
        .await
        .expect("installed");
    newer.metadata.resource_version = present.metadata.resource_version;
    let params = PostParams::default();
    let replaced = definitions
        .replace("proxies.crawl.proxyoperator.dev", &params, &newer)
        .await;
    replaced.expect("an addition");
    let enforced = async {
        let breaks_v1 = Proxy::new("probe", ProxySpec::default());
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        while proxies.create(&dry, &breaks_v1).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SERVED_WITHIN, enforced)
        .await
        .expect("the rules come into force");

    let mut wrong = Vec::new();
    for (name, what) in names {
        let read = proxies.get(&name).await.expect("the types can read it");
        let fault = validation::summary(&validation::validate(&read));
        let fault = fault.unwrap_or_else(|| panic!("{what}: nothing to report"));
        let status = json!({ "status": { "phase": "Failed", "conditions": [{
            "type": "Provisioned", "status": "False", "reason": "PermanentError",
            "message": fault, "lastTransitionTime": "2026-01-02T03:04:05Z",
        }] } });
        let finalizer = json!({ "metadata": { "finalizers": [api::FINALIZER] } });
        let release = json!({ "metadata": { "finalizers": [] } });
        let params = PatchParams::default();
        let steps = async {
            proxies
                .patch(&name, &params, &Patch::Merge(&finalizer))
                .await?;
            proxies
                .patch_status(&name, &params, &Patch::Merge(&status))
                .await?;
            proxies.delete(&name, &DeleteParams::default()).await?;
            proxies.patch(&name, &params, &Patch::Merge(&release)).await
        };
        if let Err(error) = steps.await {
            wrong.push(format!("{what}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn drop_rules(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(drop_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_rules),
        _ => {}
    }
}

async fn columns_are_shown_and_fields_selected(client: &Client) {
    install(client).await;
    let proxies: Api<Proxy> = Api::namespaced(client.clone(), "default");
    for (name, spec) in [
        (
            "a",
            json!({ "provider": "sim", "machine": { "zone": "eu-1a" } }),
        ),
        (
            "b",
            json!({ "mode": "External", "endpoint": { "host": "192.0.2.7", "port": 1 } }),
        ),
    ] {
        let spec = serde_json::from_value(spec).expect("a readable spec");
        let created = proxies
            .create(&PostParams::default(), &Proxy::new(name, spec))
            .await;
        created.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({ "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-02T03:04:05Z" })
    };
    let status = json!({ "status": {
        "phase": "Verifying", "ip": "192.0.2.9", "providerID": "sim://px-a",
        "health": { "exitIP": "192.0.2.10" },
        "conditions": [
            condition("Healthy", "Unknown", "AwaitingFirstProbe", "no result"),
            condition("Provisioned", "True", "Created", "runs"),
        ],
    } });
    let patch = Patch::Merge(&status);
    proxies
        .patch_status("a", &PatchParams::default(), &patch)
        .await
        .expect("a status");

    for (selector, expected) in [
        ("spec.mode=External", "b"),
        ("spec.mode=Managed", "a"),
        ("spec.provider=sim", "a"),
        ("spec.provider=", "b"),
        ("spec.protocol=http", "a b"),
        ("spec.machine.zone=eu-1a", "a"),
        ("status.phase=Verifying", "a"),
        ("status.phase!=Verifying", "b"),
        ("status.ip=192.0.2.9", "a"),
        ("status.providerID=sim://px-a", "a"),
        ("spec.provider=sim,status.phase=Ready", ""),
    ] {
        let list = proxies.list(&ListParams::default().fields(selector)).await;
        let list = list.unwrap_or_else(|error| panic!("{selector}: {error}"));
        let names: Vec<_> = list
            .iter()
            .filter_map(|proxy| proxy.metadata.name.as_deref())
            .collect();
        assert_eq!(names.join(" "), expected, "{selector}");
    }

    let request =
        http::Request::get("/apis/crawl.proxyoperator.dev/v1alpha1/namespaces/default/proxies")
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())
            .expect("a request");
    let table: Value = client.request(request).await.expect("a table");
    let columns: Vec<_> = table["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| {
            (
                column["name"].as_str().unwrap_or_default(),
                &column["priority"],
            )
        })
        .collect();
    let narrow = [
        "Name", "Mode", "Provider", "Phase", "IP", "Healthy", "Reason", "Age",
    ];
    let wide = ["Zone", "ExitIP", "ProviderID", "Message"];
    let expected: Vec<_> = narrow
        .map(|name| (name, json!(0)))
        .into_iter()
        .chain(wide.map(|name| (name, json!(1))))
        .collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, priority)| (*name, priority))
        .collect();
    assert_eq!(columns, expected);
    let mut cells = table["rows"][0]["cells"].as_array().expect("cells").clone();
    assert!(cells.remove(7).is_string(), "an age");
    let expected = json!([
        "a",
        "Managed",
        "sim",
        "Verifying",
        "192.0.2.9",
        "Unknown",
        "Created",
        "eu-1a",
        "192.0.2.10",
        "sim://px-a",
        "runs",
    ]);
    assert_eq!(Value::Array(cells), expected);
}

/// Proxies without a type, so that a manifest is sent as it stands.
pub(crate) fn dynamic_proxies(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(api::GROUP, "v1alpha1", "Proxy");
    let resource = ApiResource::from_gvk_with_plural(&kind, "proxies");
    Api::namespaced_with(client.clone(), "default", &resource)
}

pub(crate) async fn install(client: &Client) {
    install_definition(client, &api::crd()).await;
}

async fn install_definition(client: &Client, definition: &CustomResourceDefinition) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), definition)
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
pub(crate) async fn is_refused(proxies: &Api<DynamicObject>, case: &Refused) -> Result<(), String> {
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
