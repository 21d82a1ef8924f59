//! Mirrors every ConfigMap labelled `example.dev/mirror=true` into `<name>-mirror` beside it.
//!
//! The mirror is owned by its source and follows every change of either; a finalizer on the source
//! deletes it first. Run it against the cluster of your kubeconfig:
//! `cargo run -p controller --example configmap_mirror`

use controller::informer::client::{self, ClientOptions, ConfigSource};
use controller::{
    Action, BoxError, Context, Controller, Informer, InformerOptions, Manager, ObjectKey,
    ReconcileError, Reconciler, Signals, Source, finalizer, owners, predicate,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::{Api, DeleteParams, PostParams};
use kube_client::{Client, ResourceExt as _};

const LABEL: &str = "example.dev/mirror";
const FINALIZER: &str = "example.dev/mirror-cleanup";

/// Keeps the mirrors in step with their sources.
struct Mirror {
    client: Client,
    configs: Informer<ConfigMap>,
}

impl Reconciler for Mirror {
    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Result<Action, ReconcileError> {
        let lister = self.configs.lister();
        let (Some(source), Some(namespace)) = (lister.get(key), key.namespace()) else {
            return Ok(Action::Done); // gone, and its mirror before it
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let name = format!("{}-mirror", key.name());
        let present = lister.get(&ObjectKey::namespaced(namespace, name.as_str()));
        let is_ours = |mirror: &ConfigMap| owners::is_controlled_by(mirror, &*source);

        let wanted = source
            .labels()
            .get(LABEL)
            .is_some_and(|value| value == "true");
        if !wanted || source.metadata.deletion_timestamp.is_some() {
            if present.is_some_and(|mirror| is_ours(&mirror)) {
                api.delete(&name, &DeleteParams::default()).await?;
                return Ok(Action::Done); // the event of this deletion brings the key back
            }
            finalizer::remove(&api, &*source, FINALIZER).await?;
            return Ok(Action::Done);
        }
        if finalizer::add(&api, &*source, FINALIZER).await?.is_some() {
            return Ok(Action::Done); // so does the event of this patch
        }
        let mut mirror = match present.as_deref() {
            Some(mirror) if !is_ours(mirror) => {
                let problem = format!("{name} exists and is no mirror: rename one of the two");
                return Err(ReconcileError::terminal(problem));
            }
            Some(mirror) => mirror.clone(),
            None => ConfigMap::default(),
        };
        mirror.metadata.name = Some(name.clone());
        mirror.metadata.namespace = Some(namespace.to_owned());
        mirror.data.clone_from(&source.data);
        mirror.binary_data.clone_from(&source.binary_data);
        owners::set_controller(&mut mirror, &*source)?;
        match present {
            Some(present) if *present == mirror => {}
            Some(_) => ctx.wrote(&api.replace(&name, &PostParams::default(), &mirror).await?),
            None => ctx.wrote(&api.create(&PostParams::default(), &mirror).await?),
        }
        Ok(Action::Done)
    }
}

/// A manager of the informer and the controller over it.
pub(crate) fn mirror(client: Client) -> Result<Manager, BoxError> {
    let configs: Informer<ConfigMap> = Informer::new(client.clone(), InformerOptions::default())?;
    let reconciler = Mirror {
        client,
        configs: configs.clone(),
    };
    let controller = Controller::builder("configmap-mirror", reconciler)
        .source(Source::object(&configs).filter(predicate::resource_version_changed()))
        .source(Source::controlled_by::<ConfigMap>(&configs))
        .build()?;
    Ok(Manager::default()
        .add_informer(&configs)
        .add_controller(controller))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let signals = Signals::install()?;
    let config = client::load_config(&ConfigSource::default()).await?;
    let client = client::connect(config, ClientOptions::default())?;
    mirror(client)?.run(signals.stop()).await?;
    Ok(())
}
