//! Deletes a ConfigMap once the time in its annotation `example.dev/expires` has come.
use controller::informer::client::{self, ClientOptions, ConfigSource};
use controller::{
    Action, BoxError, Context, Controller, Informer, InformerOptions, Lister, Manager, ObjectKey,
    ReconcileError, Reconciler, Signals,
};
use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube_client::api::{Api, DeleteParams, Preconditions};
use kube_client::{Client, ResourceExt as _};

struct Expiry {
    client: Client,
    lister: Lister<ConfigMap>,
}

impl Reconciler for Expiry {
    async fn reconcile(&self, key: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
        let (Some(config), Some(namespace)) = (self.lister.get(key), key.namespace()) else {
            return Ok(Action::Done); // gone
        };
        let Some(text) = config.annotations().get("example.dev/expires") else {
            return Ok(Action::Done);
        };
        let Ok(expires) = text.parse::<Timestamp>() else {
            let problem = "annotation example.dev/expires: write a time as 2030-01-31T12:00:00Z";
            return Err(ReconcileError::terminal(problem)); // until the next change
        };
        let left = expires.duration_since(Timestamp::now());
        if left.is_positive() {
            return Ok(Action::RequeueAfter(left.unsigned_abs())); // or with an earlier change
        }
        let as_read = DeleteParams::default().preconditions(Preconditions {
            uid: config.uid(),
            resource_version: config.resource_version(),
        });
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        api.delete(key.name(), &as_read).await?; // a failure comes again, with backoff
        Ok(Action::Done)
    }
}

pub(crate) fn expiry(client: Client) -> Result<Manager, BoxError> {
    let configs: Informer<ConfigMap> = Informer::new(client.clone(), InformerOptions::default())?;
    let lister = configs.lister();
    let controller = Controller::builder("configmap-expiry", Expiry { client, lister })
        .for_object(&configs)
        .build()?;
    let manager = Manager::default().add_informer(&configs);
    Ok(manager.add_controller(controller))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let signals = Signals::install()?;
    let config = client::load_config(&ConfigSource::default()).await?;
    let client = client::connect(config, ClientOptions::default())?;
    Ok(expiry(client)?.run(signals.stop()).await?)
}
