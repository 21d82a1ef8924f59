//! Mirrors every ConfigMap labelled `example.dev/mirror=true` into `<name>-mirror` beside it.
//!
//! The mirror is owned by its source, so it follows every change of either, and a finalizer on the
//! source deletes it first. Run it against the cluster of your kubeconfig:
//! `cargo run -p controller --example configmap_mirror`

use controller::informer::client::{self, ClientOptions, ConfigSource};
use controller::owners;
use controller::predicate;
use controller::{
    Action, Context, Controller, Informer, InformerOptions, Manager, ObjectKey, ReconcileError,
    Reconciler, Signals, Source, finalizer,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Client;
use kube_client::api::{Api, DeleteParams, PostParams};

/// Marks a ConfigMap that is to be mirrored.
pub(crate) const LABEL: &str = "example.dev/mirror";
/// Keeps a source until its mirror is gone.
pub(crate) const FINALIZER: &str = "example.dev/mirror-cleanup";

/// Keeps the mirrors in step with their sources.
struct Mirror {
    client: Client,
    configs: Informer<ConfigMap>,
}

impl Reconciler for Mirror {
    async fn reconcile(&self, key: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
        let lister = self.configs.lister();
        let (Some(source), Some(namespace)) = (lister.get(key), key.namespace()) else {
            return Ok(Action::Done); // gone, and its mirror with it
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let name = format!("{}-mirror", key.name());
        let present = lister.get(&ObjectKey::namespaced(namespace, name.as_str()));
        let wanted = source
            .metadata
            .labels
            .iter()
            .flatten()
            .any(|(k, v)| k == LABEL && v == "true");

        if source.metadata.deletion_timestamp.is_some() || !wanted {
            if let Some(mirror) =
                present.filter(|mirror| owners::is_controlled_by(&**mirror, &*source))
            {
                api.delete(
                    mirror.metadata.name.as_deref().unwrap_or(&name),
                    &DeleteParams::default(),
                )
                .await?;
                return Ok(Action::Done); // the event of the deletion brings the key back
            }
            finalizer::remove(&api, &*source, FINALIZER).await?;
            return Ok(Action::Done);
        }
        if finalizer::add(&api, &*source, FINALIZER).await?.is_some() {
            return Ok(Action::Done); // so does the event of this patch
        }
        let mut mirror = present.as_deref().cloned().unwrap_or_default();
        mirror.metadata.name = Some(name.clone());
        mirror.metadata.namespace = Some(namespace.to_owned());
        mirror.data.clone_from(&source.data);
        mirror.binary_data.clone_from(&source.binary_data);
        // An object of that name that somebody else controls is never overwritten.
        owners::set_controller(&mut mirror, &*source).map_err(ReconcileError::terminal)?;
        match present {
            Some(present) if *present == mirror => {}
            Some(_) => drop(api.replace(&name, &PostParams::default(), &mirror).await?),
            None => drop(api.create(&PostParams::default(), &mirror).await?),
        }
        Ok(Action::Done)
    }
}

/// The informer and the controller over it.
pub(crate) fn build(
    client: Client,
) -> Result<(Informer<ConfigMap>, Controller), Box<dyn std::error::Error + Send + Sync>> {
    let configs: Informer<ConfigMap> = Informer::new(client.clone(), InformerOptions::default())?;
    let mirror = Mirror {
        client,
        configs: configs.clone(),
    };
    let controller = Controller::builder("configmap-mirror", mirror)
        .source(Source::object(&configs).filter(predicate::resource_version_changed()))
        .source(Source::controlled_by::<ConfigMap>(&configs))
        .build()?;
    Ok((configs, controller))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let signals = Signals::install()?;
    let client = client::connect(
        client::load_config(&ConfigSource::default()).await?,
        ClientOptions::default(),
    )?;
    let (configs, controller) = build(client)?;
    Manager::default()
        .add_informer(&configs)
        .add_controller(controller)
        .run(signals.stop())
        .await?;
    Ok(())
}
