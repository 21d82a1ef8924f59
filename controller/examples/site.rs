//! Publishes each `Site` as a ConfigMap `NAME-page`; a deleted site leaves `NAME-archive` behind.
//! `kubectl apply -f controller/examples/site.yaml; cargo run -p controller --example site`
use controller::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const NAME: &str = "example.dev/site"; // of finalizer, field manager and reporter of events

#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Debug, Clone)]
#[kube(group = "example.dev", version = "v1", kind = "Site")]
#[kube(namespaced, status = "SiteStatus")]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
pub(crate) struct SiteSpec {
    title: String,
}

#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone)]
pub(crate) struct SiteStatus {
    published: String,
}

struct Sites {
    client: Client,
    sites: Lister<Site>,
    apply: Apply,
    events: EventRecorder,
}

impl Sites {
    async fn publish(&self, site: &Site, kind: &str, owners: Value) -> Result<(), ReconcileError> {
        let pages = Api::namespaced(self.client.clone(), &site.namespace().unwrap_or_default());
        let meta = json!({ "name": site.name_any() + kind, "ownerReferences": owners });
        let page = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
            "data": { "title": site.spec.title } });
        self.apply.object::<ConfigMap>(&pages, &page).await?; // twice is as good as once
        Ok(())
    }
}

impl Reconciler for Sites {
    async fn reconcile(&self, key: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
        let (Some(site), Some(namespace)) = (self.sites.get(key), key.namespace()) else {
            return Ok(Action::Done); // gone
        };
        let api: Api<Site> = Api::namespaced(self.client.clone(), namespace);
        if site.metadata.deletion_timestamp.is_some() {
            self.publish(&site, "-archive", json!([])).await?;
            finalizer::remove(&api, &*site, NAME).await?; // now it may go, and its page with it
            return Ok(Action::Done);
        }
        finalizer::add(&api, &*site, NAME).await?; // what fails comes again, with backoff
        let owner = owners::controller_reference(&*site)?;
        self.publish(&site, "-page", json!([owner])).await?;
        let title = &site.spec.title;
        if !matches!(&site.status, Some(status) if status.published == *title) {
            let status = json!({ "published": title });
            self.apply.status_of(&api, &*site, &status).await?;
            let notice = Notice::normal("Published", "Apply", title);
            self.events.record(&*site, notice); // once: the next run sees this status
        }
        Ok(Action::Done)
    }
}

pub(crate) fn sites(client: Client, port: u16) -> Result<Manager, BoxError> {
    let sites = Informer::new(client.clone(), InformerOptions::default())?;
    let pages = Informer::<ConfigMap>::new(client.clone(), InformerOptions::default())?;
    let (events, writer) = recorder(client.clone(), RecorderOptions::new(NAME))?;
    let reconciler = Sites {
        client: client.clone(),
        sites: sites.lister(),
        apply: Apply::as_manager(NAME)?.force(), // also over a NAME-page that is not ours
        events,
    };
    let controller = Controller::builder("site", reconciler).for_object(&sites);
    let lease = ElectionOptions::new("default", "site.example.dev");
    let manager = Manager::default()
        .with_election(Elector::new(client, lease)?)
        .with_events(writer)
        .add_informer(&sites)
        .add_informer(&pages)
        .add_controller(controller.owns(&pages).build()?);
    let server = HttpServer::bind(ServerOptions::loopback(port))?
        .route("/readyz", readiness(&manager.directory()))
        .route("/metrics", MetricsPage::of(&manager.directory()));
    Ok(manager.add_server(server))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let signals = Signals::install()?;
    let config = client::load_config(&client::ConfigSource::default()).await?;
    let client = client::connect(config, client::ClientOptions::default())?;
    Ok(sites(client, 8080)?.run(signals.stop()).await?)
}
