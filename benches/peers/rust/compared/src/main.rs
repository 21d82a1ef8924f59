//! Publishes each `Site` as a ConfigMap `NAME-page`; a deleted site leaves `NAME-archive` behind.
//! The controller of docs/compared.md with kube-runtime, which has no leader election and no
//! endpoints for metrics and readiness: those are left out here.
use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{self, Event as Step, finalizer};
use kube::runtime::watcher;
use kube::{Client, CustomResource, Resource as _, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const NAME: &str = "example.dev/site"; // of finalizer, field manager and reporter of events

#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Debug, Clone)]
#[kube(group = "example.dev", version = "v1", kind = "Site")]
#[kube(namespaced, status = "SiteStatus")]
pub struct SiteSpec {
    title: String,
}

#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone)]
pub struct SiteStatus {
    published: String,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error(transparent)]
    Finalizer(#[from] Box<finalizer::Error<kube::Error>>),
}

struct Sites {
    client: Client,
    events: Recorder,
}

impl Sites {
    fn params() -> PatchParams {
        PatchParams::apply(NAME).force()
    }

    async fn publish(&self, site: &Site, suffix: &str, owners: Value) -> Result<(), kube::Error> {
        let namespace = site.namespace().unwrap_or_default();
        let pages: Api<ConfigMap> = Api::namespaced(self.client.clone(), &namespace);
        let name = site.name_any() + suffix;
        let meta = json!({ "name": name, "ownerReferences": owners });
        let page = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
            "data": { "title": site.spec.title } });
        pages
            .patch(&name, &Self::params(), &Patch::Apply(page))
            .await?;
        Ok(())
    }

    async fn live(&self, api: &Api<Site>, site: &Site) -> Result<Action, kube::Error> {
        let owner = site.controller_owner_ref(&());
        self.publish(site, "-page", json!(owner.as_slice())).await?;
        let title = &site.spec.title;
        if !matches!(&site.status, Some(status) if status.published == *title) {
            let status = json!({ "apiVersion": "example.dev/v1", "kind": "Site",
                "status": { "published": title } });
            let patch = Patch::Apply(status);
            api.patch_status(&site.name_any(), &Self::params(), &patch)
                .await?;
            let event = Event {
                type_: EventType::Normal,
                reason: "Published".to_owned(),
                note: Some(title.clone()),
                action: "Apply".to_owned(),
                secondary: None,
            };
            self.events.publish(&event, &site.object_ref(&())).await?;
        }
        Ok(Action::await_change())
    }
}

async fn reconcile(site: Arc<Site>, sites: Arc<Sites>) -> Result<Action, Error> {
    let namespace = site.namespace().unwrap_or_default();
    let api: Api<Site> = Api::namespaced(sites.client.clone(), &namespace);
    let step = async |step| match step {
        Step::Apply(site) => sites.live(&api, &site).await,
        Step::Cleanup(site) => {
            sites.publish(&site, "-archive", json!([])).await?;
            Ok(Action::await_change())
        }
    };
    Ok(finalizer(&api, NAME, site, step).await.map_err(Box::new)?)
}

/// The error policy has no count of failures, so the wait is the same each time.
fn again(_: Arc<Site>, _: &Error, _: Arc<Sites>) -> Action {
    Action::requeue(Duration::from_secs(5))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().init();
    let client = Client::try_default().await?;
    let reporter = Reporter {
        controller: NAME.to_owned(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    let events = Recorder::new(client.clone(), reporter);
    let (sites, pages) = (Api::all(client.clone()), Api::all(client.clone()));
    Controller::new(sites, watcher::Config::default())
        .owns::<ConfigMap>(pages, watcher::Config::default())
        .shutdown_on_signal()
        .run(reconcile, again, Arc::new(Sites { client, events }))
        .for_each(async |result| match result {
            Ok((site, _)) => tracing::debug!(%site, "reconciled"),
            Err(error) => tracing::warn!(%error, "reconcile failed"),
        })
        .await;
    Ok(())
}
