//! `reconcile_delete`: the branches, and the release of an instance that E-02 shares.

use kube_core::ResourceExt;

use super::error::Error;
use super::failure;
use super::pass::Pass;
use super::plan::{self, Deletion, Release};
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::conditions::Reason;
use crate::crash::{self, Cp};
use crate::provider::{self, Instance};

/// Where the release of an instance stands.
pub(super) enum Released {
    /// No instance is left.
    Gone,
    /// It is on its way out.
    Waiting(String),
    /// `spec.paused` keeps it.
    Held,
}

/// A provider that did not do its part of a release.
pub(super) struct Refused {
    pub(super) provider: String,
    pub(super) error: provider::Error,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Provider {
            provider: refused.provider,
            source: refused.error,
        }
    }
}

impl ProxyReconciler {
    pub(super) async fn reconcile_delete(&self, pass: &mut Pass<'_>) -> Result<Next, Error> {
        match plan::deletion(pass.proxy(), self.providers.names()) {
            //
            Deletion::NotOurs => Ok(Next::Event),
            //
            Deletion::Abandon => {
                tracing::warn!(
                    proxy = pass.proxy().name_any(),
                    instance = pass.draft.get().provider_id,
                    "instance abandoned as its Proxy asks; the operator does not delete it"
                );
                pass.remove_finalizer().await?;
                Ok(Next::Event)
            }
            //
            Deletion::NeverProvisioned => {
                pass.remove_finalizer().await?;
                Ok(Next::Event)
            }
            Deletion::NotConfigured(name) => {
                let message = self.not_configured(&name);
                pass.draft.not_provisioned(Reason::DeletionBlocked, message);
                Ok(Next::Event)
            }
            //
            Deletion::Release(owners) => match self.release(pass, &owners).await {
                Ok(Released::Gone) => {
                    crash::point(Cp::Cp8);
                    pass.remove_finalizer().await?;
                    Ok(Next::Event)
                }
                Ok(Released::Waiting(message)) => {
                    pass.draft.not_provisioned(Reason::Deleting, message);
                    Ok(Next::Deletion)
                }
                Ok(Released::Held) => {
                    let message = "spec.paused is true: the instance is not deleted";
                    pass.draft.not_provisioned(Reason::DeletionBlocked, message);
                    // It may go by other hands meanwhile, and then nothing holds the Proxy.
                    Ok(Next::Drift)
                }
                // without credentials nobody can look, and there is nothing to look for.
                Err(refused)
                    if failure::deletion_reason(&refused.error) == Reason::DeletionBlocked
                        && pass.recorded().is_none()
                        && plan::was_never_provisioned(pass.proxy()) =>
                {
                    pass.remove_finalizer().await?;
                    Ok(Next::Event)
                }
                Err(refused) => {
                    let reason = failure::deletion_reason(&refused.error);
                    let message = format!("provider {}: {}", refused.provider, refused.error);
                    pass.draft.not_provisioned(reason, message);
                    Err(refused.into())
                }
            },
        }
    }

    /// Deletes what these providers hold of this Proxy; each is asked until one has something.
    pub(super) async fn release(
        &self,
        pass: &mut Pass<'_>,
        owners: &[String],
    ) -> Result<Released, Refused> {
        for name in owners {
            let seen = self.seek(pass, name).await?;
            let step = plan::release(seen.as_ref(), plan::hold_of(pass.proxy()));
            let Some(instance) = seen else { continue };
            pass.draft.record(name, &instance);
            match step {
                Release::Gone => {}
                Release::Held => return Ok(Released::Held),
                Release::AlreadyDeleting => {}
                Release::Delete => {
                    self.delete_released(pass, name, &instance).await?;
                    crash::point(Cp::Cp7);
                }
            }
            return Ok(Released::Waiting(format!(
                "{} is being deleted",
                instance.id
            )));
        }
        Ok(Released::Gone)
    }

    /// X-02, S-02: the instance on record, or the one a crash kept off the record.
    async fn seek(&self, pass: &Pass<'_>, name: &str) -> Result<Option<Instance>, Refused> {
        let refused = |error| Refused {
            provider: name.to_owned(),
            error,
        };
        let Some(provider) = self.providers.get(name) else {
            return Err(refused(provider::Error::new(
                provider::Reason::NotConfigured,
                self.not_configured(name),
            )));
        };
        if pass.recorded().is_some() {
            self.look(pass, &**provider).await.map_err(refused)
        } else {
            provider
                .find(&pass.owner(&self.cluster_id))
                .await
                .map_err(refused)
        }
    }

    async fn delete_released(
        &self,
        pass: &Pass<'_>,
        name: &str,
        instance: &Instance,
    ) -> Result<(), Refused> {
        let Some(provider) = self.providers.get(name) else {
            return Ok(());
        };
        let owner = pass.owner(&self.cluster_id);
        provider
            .delete(&instance.id, &owner, &instance.incarnation)
            .await
            .map_err(|error| Refused {
                provider: name.to_owned(),
                error,
            })
    }
}
