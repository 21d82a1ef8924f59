//! Proxies as pods of the cluster that the operator runs in (P-10 to P-13).
//!
//! [`pod`] builds the pod, [`state`] reads one, [`mod@classify`] tells what a refusal means; all three
//! are pure. This file carries the calls out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube_client::Api;
use kube_core::params::{DeleteParams, GetParams, ListParams, PostParams, Preconditions};
use kube_core::{Resource, ResourceExt};

use super::{
    Capabilities, CreateRequest, Creation, Error, Hint, Incarnation, Instance, Listed, Owner, Page,
    Provider, ProviderId, Reason,
};
use crate::crash::{self, Cp};
use crate::secret::Held;

pub mod classify;
pub mod pod;
pub mod state;

use classify::{Op, classify};

/// How long a create waits for an older pod of the same name to go.
const BEING_DELETED_RETRY: Duration = Duration::from_secs(2);
/// Objects asked for in one list call.
const PAGE_SIZE: u32 = 500;
/// What the API server takes in one Secret, less room for its other fields.
const MAX_CLOUD_INIT_BYTES: usize = 1_000_000;

/// Runs each proxy as one pod in its Proxy's namespace.
#[derive(Clone)]
pub struct KubernetesProvider {
    client: kube_client::Client,
    default_image: Option<Arc<str>>,
    field_manager: &'static str,
    /// The namespaces that are listed; all of them if none is named.
    namespaces: Arc<[String]>,
}

impl fmt::Debug for KubernetesProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesProvider")
            .field("default_image", &self.default_image)
            .finish_non_exhaustive()
    }
}

impl KubernetesProvider {
    /// Makes a provider that works through `client`.
    ///
    /// `default_image` serves the Proxies that name none of their own.
    #[must_use]
    pub fn new(client: kube_client::Client, default_image: Option<Arc<str>>) -> Self {
        Self {
            client,
            default_image,
            field_manager: super::MANAGED_BY,
            namespaces: Arc::default(),
        }
    }

    /// Lists pods of these namespaces alone, for an operator without rights on the whole cluster;
    /// without a name in it all of them, as before.
    #[must_use]
    pub fn within(mut self, namespaces: &[String]) -> Self {
        self.namespaces = namespaces.into();
        self
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn post_params(&self) -> PostParams {
        PostParams {
            field_manager: Some(self.field_manager.to_owned()),
            ..PostParams::default()
        }
    }

    async fn create_pod(&self, request: &CreateRequest) -> Result<Creation, Error> {
        let pod = pod::build_pod(request, self.default_image.as_deref())?;
        if let Some(secret) = pod::build_inline_secret(request) {
            self.ensure_inline_secret(&request.owner, Held::new(secret))
                .await?;
        }
        let pods = self.pods(&request.owner.namespace);
        match pods.create(&self.post_params(), &pod).await {
            Ok(created) => {
                crash::point(Cp::Cp2);
                tracing::info!(pod = %created.name_any(), uid = created.meta().uid, "pod created");
                Ok(Creation::Created(self.read(
                    &created,
                    &request.owner,
                    &Hint::default(),
                )?))
            }
            Err(kube_client::Error::Api(status)) if status.is_already_exists() => {
                self.adopt(&pods, &request.owner).await
            }
            Err(error) => Err(classify(Op::Create, &error)),
        }
    }

    /// S-01: somebody made a pod of this name before; finds out whether it is this Proxy's.
    async fn adopt(&self, pods: &Api<Pod>, owner: &Owner) -> Result<Creation, Error> {
        let name = owner.instance_name();
        let going = || {
            Error::new(
                Reason::BeingDeleted,
                format!("an older pod {name} is still being deleted"),
            )
            .with_retry_after(BEING_DELETED_RETRY)
        };
        let pod = match pods.get(&name).await {
            Ok(pod) => pod,
            Err(error) => {
                let error = classify(Op::Get, &error);
                return Err(if error.is_not_found() { going() } else { error });
            }
        };
        if !state::is_owned_by(&pod, owner) {
            return Err(Error::new(
                Reason::NameCollision,
                format!(
                    "pod {}/{name} exists and does not carry this Proxy's labels; delete or \
                     rename it",
                    owner.namespace
                ),
            ));
        }
        if pod.meta().deletion_timestamp.is_some() {
            return Err(going());
        }
        Ok(Creation::Adopted(self.read(
            &pod,
            owner,
            &Hint::default(),
        )?))
    }

    /// Makes the Secret of inline user data, or replaces the one of an older instance.
    async fn ensure_inline_secret(&self, owner: &Owner, wanted: Held) -> Result<(), Error> {
        let secrets = self.secrets(&owner.namespace);
        match secrets.create(&self.post_params(), &wanted).await {
            Ok(made) => {
                drop(Held::new(made));
                return Ok(());
            }
            Err(kube_client::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(classify(Op::Create, &error)),
        }
        let name = wanted.name_any();
        let retry = || {
            Error::new(
                Reason::BeingDeleted,
                format!("Secret {name} is still being replaced"),
            )
            .with_retry_after(BEING_DELETED_RETRY)
        };
        let found = match secrets.get(&name).await {
            Ok(found) => Held::new(found),
            Err(error) => {
                let error = classify(Op::Get, &error);
                return Err(if error.is_not_found() { retry() } else { error });
            }
        };
        if !state::is_owned_by(&*found, owner) {
            return Err(Error::new(
                Reason::NameCollision,
                format!(
                    "Secret {}/{name} exists and does not carry this Proxy's labels; delete or \
                     rename it",
                    owner.namespace
                ),
            ));
        }
        if found.meta().deletion_timestamp.is_some() {
            return Err(retry());
        }
        if found.data == wanted.data {
            return Ok(());
        }
        delete_exactly(&secrets, &name, found.meta().uid.as_deref()).await?;
        match secrets.create(&self.post_params(), &wanted).await {
            Ok(made) => {
                drop(Held::new(made));
                Ok(())
            }
            Err(kube_client::Error::Api(status)) if status.is_already_exists() => Err(retry()),
            Err(error) => Err(classify(Op::Create, &error)),
        }
    }

    async fn get_pod(
        &self,
        id: &ProviderId,
        owner: &Owner,
        hint: &Hint,
    ) -> Result<Instance, Error> {
        let (namespace, name) = parse_id(id)?;
        let pod = self
            .pods(namespace)
            .get(name)
            .await
            .map_err(|error| classify(Op::Get, &error))?;
        self.read(&pod, owner, hint)
    }

    async fn delete_pod(
        &self,
        id: &ProviderId,
        owner: &Owner,
        incarnation: &Incarnation,
    ) -> Result<(), Error> {
        let (namespace, name) = parse_id(id)?;
        let pods = self.pods(namespace);
        let pod = match pods.get(name).await {
            Ok(pod) => pod,
            Err(error) => {
                let error = classify(Op::Get, &error);
                return if error.is_not_found() {
                    Ok(())
                } else {
                    Err(error)
                };
            }
        };
        if !state::is_owned_by(&pod, owner)
            || pod.meta().uid.as_deref() != Some(incarnation.as_str())
            || pod.meta().deletion_timestamp.is_some()
        {
            return Ok(());
        }
        // The Secret goes first: a crash in between leaves a pod that is deleted again, and with
        // it nothing that only a garbage collector would find.
        if let Some(secret) = pod::inline_secret_of(&pod) {
            self.delete_inline_secret(namespace, secret, owner).await?;
        }
        delete_exactly(&pods, name, Some(incarnation.as_str())).await?;
        tracing::info!(pod = name, uid = %incarnation, "pod deletion accepted");
        Ok(())
    }

    async fn delete_inline_secret(
        &self,
        namespace: &str,
        name: &str,
        owner: &Owner,
    ) -> Result<(), Error> {
        let secrets = self.secrets(namespace);
        match secrets.get_metadata_with(name, &GetParams::default()).await {
            Ok(found) if state::is_owned_by(&found, owner) => {
                delete_exactly(&secrets, name, found.metadata.uid.as_deref()).await
            }
            Ok(_) => Ok(()),
            Err(error) => {
                let error = classify(Op::Get, &error);
                if error.is_not_found() {
                    Ok(())
                } else {
                    Err(error)
                }
            }
        }
    }

    async fn list_pods(&self, cluster_id: &str, page: Option<&str>) -> Result<Page, Error> {
        let mut params = ListParams::default()
            .labels(&pod::selector(cluster_id))
            .limit(PAGE_SIZE);
        // Where it goes on: which of the namespaces, and the server's token.
        let (nth, token) = page
            .and_then(|page| page.split_once(' '))
            .unwrap_or_default();
        let nth: usize = nth.parse().unwrap_or_default();
        if !token.is_empty() {
            params = params.continue_token(token);
        }
        let pods: Api<Pod> = match self.namespaces.get(nth) {
            Some(namespace) => self.pods(namespace),
            None => Api::all(self.client.clone()),
        };
        let list = pods
            .list(&params)
            .await
            .map_err(|error| classify(Op::List, &error))?;
        let now = now();
        Ok(Page {
            instances: list
                .items
                .iter()
                .filter_map(|pod| listed(pod, cluster_id, now))
                .collect(),
            next: match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => Some(format!("{nth} {token}")),
                None => (nth + 1 < self.namespaces.len()).then(|| format!("{} ", nth + 1)),
            },
            unreachable: Vec::new(),
        })
    }

    fn read(&self, pod: &Pod, owner: &Owner, hint: &Hint) -> Result<Instance, Error> {
        let gone = || {
            Error::new(
                Reason::Gone,
                format!("pod {} is not this Proxy's instance", pod.name_any()),
            )
        };
        if !state::is_owned_by(pod, owner) {
            return Err(gone());
        }
        state::instance(pod, hint, now()).ok_or_else(gone)
    }
}

fn listed(pod: &Pod, cluster_id: &str, now: Timestamp) -> Option<Listed> {
    let owner = state::owner_of(pod).filter(|owner| *owner.cluster_id == *cluster_id)?;
    let instance = state::instance(pod, &Hint::default(), now)?;
    Some(Listed { owner, instance })
}

fn now() -> Timestamp {
    Timestamp::now()
}

/// Deletes that very object; one that is gone or was replaced counts as deleted.
async fn delete_exactly<K>(api: &Api<K>, name: &str, uid: Option<&str>) -> Result<(), Error>
where
    K: Clone + fmt::Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube_client::Error::Api(status)) if status.is_conflict() => Ok(()),
        Err(error) => {
            let error = classify(Op::Delete, &error);
            if error.is_not_found() {
                Ok(())
            } else {
                Err(error)
            }
        }
    }
}

fn parse_id(id: &ProviderId) -> Result<(&str, &str), Error> {
    id.as_str()
        .strip_prefix(pod::ID_SCHEME)
        .and_then(|path| path.split_once('/'))
        .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
        .ok_or_else(|| {
            Error::new(
                Reason::Unavailable,
                format!("{id} is no instance of this provider; want kubernetes://namespace/pod"),
            )
        })
}

impl Provider for KubernetesProvider {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        self.create_pod(request).boxed()
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        self.get_pod(id, owner, hint).boxed()
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.delete_pod(id, owner, incarnation).boxed()
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        async move {
            let id = pod::provider_id(&owner.namespace, &owner.instance_name());
            match self.get_pod(&id, owner, &Hint::default()).await {
                Ok(instance) => Ok(Some(instance)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    /// The Secret of inline user data is made before its pod, and stays when somebody else deletes
    /// the pod.
    fn delete_leftovers<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let name = pod::inline_secret_name(owner);
            self.delete_inline_secret(&owner.namespace, &name, owner)
                .await
        }
        .boxed()
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.list_pods(cluster_id, page).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_cloud_init_bytes: MAX_CLOUD_INIT_BYTES,
            write_ahead: false,
            eventually_consistent: false,
            supports_spot: false,
        }
    }
}

#[cfg(test)]
mod tests;
