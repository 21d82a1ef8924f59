//! Where the cluster's id is kept, so that it does not change unseen (G-06).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube_client::{Api, Client};
use kube_core::Resource as _;
use kube_core::params::PostParams;
use tokio_util::sync::CancellationToken;

use super::{Change, Error, Seen, patiently};
use crate::Refused;
use crate::provider::{self, MANAGED_BY, Reason, Registry};

/// Name of the ConfigMap that keeps the cluster's id, in the operator's own namespace.
pub const CONFIG_MAP: &str = "proxy-operator";
/// Key of the id in it.
pub const KEY: &str = "cluster-id";

/// The ConfigMap of one operator.
#[derive(Clone)]
pub(crate) struct Store {
    configs: Api<ConfigMap>,
    namespace: String,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").field(&self.name()).finish()
    }
}

/// What was found, and what is in it.
struct Found {
    config: Option<ConfigMap>,
    id: Option<String>,
}

impl Store {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            configs: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
        }
    }

    /// Namespace and name.
    pub(crate) fn name(&self) -> String {
        format!("{}/{CONFIG_MAP}", self.namespace)
    }

    /// The ConfigMap, as what something is told about.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(ConfigMap::api_version(&()).into_owned()),
            kind: Some(ConfigMap::kind(&()).into_owned()),
            name: Some(CONFIG_MAP.to_owned()),
            namespace: Some(self.namespace.clone()),
            ..ObjectReference::default()
        }
    }

    /// The stored id; `None` where there is none.
    pub(crate) async fn read(&self) -> Result<Option<String>, Refused> {
        Ok(self.find().await?.id)
    }

    async fn find(&self) -> Result<Found, Refused> {
        let config = self.configs.get_opt(CONFIG_MAP).await?;
        let data = config.as_ref().and_then(|config| config.data.as_ref());
        let id = data.and_then(|data| data.get(KEY)).cloned();
        Ok(Found { config, id })
    }

    /// Keeps `id`, if it is the stored one, or none is, or nothing carries the stored one.
    ///
    /// Tries again with backoff until `patience` is over. `None` if `stop` came first.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] and [`Error::ChangeUnproven`] for a change that would leave instances to
    /// nobody; [`Error::NoStore`] without the rights; [`Error::Unreachable`].
    pub(crate) async fn settle(
        &self,
        id: &str,
        providers: &Registry,
        patience: Duration,
        stop: &CancellationToken,
    ) -> Result<Option<()>, Error> {
        let name = self.name();
        let what = format!("ConfigMap {name}, which keeps the cluster's id,");
        // A refused write means that another replica was faster: what it wrote is read again.
        let settled = patiently(&what, patience, stop, move || async move {
            let found = self.find().await?;
            match found.id {
                Some(stored) if stored == id => Ok(Ok(())),
                Some(old) => match self.nothing_carries(&old, id, providers).await {
                    Ok(()) => {
                        self.write(found.config, id).await?;
                        tracing::warn!(
                            old,
                            new = id,
                            "cluster id changed; no instance carries the old one"
                        );
                        Ok(Ok(()))
                    }
                    Err(error) => Ok(Err(error)),
                },
                None => self.write(found.config, id).await.map(Ok),
            }
        });
        match settled.await {
            Ok(None) => Ok(None),
            Ok(Some(settled)) => settled.map(Some),
            Err(gave_up) => Err(gave_up.or(|source| Error::NoStore {
                store: name.into(),
                source,
            })),
        }
    }

    async fn write(&self, found: Option<ConfigMap>, id: &str) -> Result<(), Refused> {
        let params = PostParams {
            field_manager: Some(MANAGED_BY.to_owned()),
            ..PostParams::default()
        };
        let is_new = found.is_none();
        let mut config = found.unwrap_or_default();
        config.metadata.name = Some(CONFIG_MAP.to_owned());
        let data = config.data.get_or_insert_with(BTreeMap::new);
        data.insert(KEY.to_owned(), id.to_owned());
        if is_new {
            self.configs.create(&params, &config).await?;
        } else {
            // With the version that was read: a change in between is not overwritten.
            self.configs.replace(CONFIG_MAP, &params, &config).await?;
        }
        Ok(())
    }

    /// Whether no provider has an instance with the old id.
    async fn nothing_carries(
        &self,
        old: &str,
        new: &str,
        providers: &Registry,
    ) -> Result<(), Error> {
        for (name, provider) in providers.iter() {
            let change = || {
                Box::new(Change {
                    store: self.name().into(),
                    old: old.into(),
                    new: new.into(),
                    provider: name.into(),
                })
            };
            let unproven = |source| Error::ChangeUnproven {
                change: change(),
                source,
            };
            let mut page: Option<String> = None;
            loop {
                let seen = provider.list_by_tag(old, page.as_deref()).await;
                let seen = seen.map_err(unproven)?;
                if let Some(first) = seen.instances.first() {
                    return Err(Error::Changed {
                        change: change(),
                        seen: Seen {
                            count: seen.instances.len(),
                            more: seen.next.is_some(),
                        },
                        example: first.instance.id.clone(),
                    });
                }
                if !seen.unreachable.is_empty() {
                    let silent = format!("no answer of {}", seen.unreachable.join(", "));
                    return Err(unproven(provider::Error::new(Reason::Unavailable, silent)));
                }
                page = seen.next;
                if page.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
