//! `reconcile_delete`: the branches, and the release of an instance that E-02 shares.

use kube_core::ResourceExt;

use super::drain::{Drain, drain};
use super::error::Error;
use super::failure;
use super::news::Deed;
use super::pass::Pass;
use super::plan::{self, Deletion, Release};
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::conditions::Reason;
use crate::crash::{self, Cp};
use crate::provider::{self, Instance, Provider, name_from_uid};

/// Where the release of an instance stands.
pub(super) enum Released {
    /// No instance is left.
    Gone,
    /// It is on its way out.
    Waiting(String),
    /// `spec.paused` keeps it.
    Held,
}

/// What ended a release before its time.
pub(super) enum Refused {
    /// A provider did not do its part.
    Provider {
        provider: String,
        error: provider::Error,
    },
    /// S-12: the Proxy could not be confirmed.
    Unconfirmed(Error),
}

impl Refused {
    fn by(provider: &str) -> impl Fn(provider::Error) -> Self {
        move |error| Self::Provider {
            provider: provider.to_owned(),
            error,
        }
    }

    /// The provider's words, if it was one.
    pub(super) fn words(&self) -> Option<String> {
        match self {
            Self::Provider { provider, error } => Some(format!("provider {provider}: {error}")),
            Self::Unconfirmed(_) => None,
        }
    }

    /// what to tell of it; a deletion that is blocked is told of by its condition.
    pub(super) fn deed(&self) -> Option<Deed> {
        let is_blocked = self.reason() == Some(Reason::DeletionBlocked);
        self.words()
            .filter(|_| !is_blocked)
            .map(Deed::DeletionFailed)
    }

    /// nobody can look for an instance at that provider.
    fn reason(&self) -> Option<Reason> {
        match self {
            Self::Provider { error, .. } => Some(failure::deletion_reason(error)),
            Self::Unconfirmed(_) => None,
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Provider { provider, error } => Self::Provider {
                provider,
                source: error,
            },
            Refused::Unconfirmed(error) => error,
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
                let recorded = pass.draft.get().provider_id.clone();
                let instance = recorded.unwrap_or_else(|| name_from_uid(pass.uid()));
                tracing::warn!(
                    proxy = pass.proxy().name_any(),
                    instance,
                    "instance abandoned as its Proxy asks; it is an orphan from now on"
                );
                self.let_go(pass).await?;
                pass.deed = Some(Deed::Abandoned(instance));
                Ok(Next::Event)
            }
            //
            Deletion::NeverProvisioned => {
                self.let_go(pass).await?;
                Ok(Next::Event)
            }
            Deletion::NotConfigured(name) => {
                let message = self.not_configured(&name);
                pass.draft.not_provisioned(Reason::DeletionBlocked, message);
                Ok(Next::Event)
            }
            //
            Deletion::Release(owners) => self.release_and_let_go(pass, &owners).await,
        }
    }

    async fn release_and_let_go(
        &self,
        pass: &mut Pass<'_>,
        owners: &[String],
    ) -> Result<Next, Error> {
        // S-08
        let active = self.leases.drain(pass.uid());
        let (spec, status, now) = (&pass.proxy().spec, pass.draft.get(), pass.draft.now());
        if let Drain::Wait(rest) = drain(active, spec, status, now) {
            let message = "the Proxy is being deleted; leases on it may still end";
            pass.draft.not_provisioned(Reason::Draining, message);
            return Ok(Next::After(rest));
        }
        match self.release(pass, owners).await {
            Ok(Released::Gone) => {
                crash::point(Cp::Cp8);
                self.let_go(pass).await?;
                pass.deed = released(pass);
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
                if refused.reason() == Some(Reason::DeletionBlocked)
                    && pass.recorded().is_none()
                    && plan::was_never_provisioned(pass.proxy()) =>
            {
                self.let_go(pass).await?;
                Ok(Next::Event)
            }
            Err(refused) => {
                if let (Some(reason), Some(words)) = (refused.reason(), refused.words()) {
                    pass.deed = refused.deed();
                    pass.draft.not_provisioned(reason, words);
                }
                Err(refused.into())
            }
        }
    }

    /// Takes the finalizer away, by a live copy (S-12).
    async fn let_go(&self, pass: &mut Pass<'_>) -> Result<(), Error> {
        self.confirm(pass).await?;
        pass.remove_finalizer().await
    }

    /// Deletes what these providers hold of this Proxy; each is asked until one has something.
    pub(super) async fn release(
        &self,
        pass: &mut Pass<'_>,
        owners: &[String],
    ) -> Result<Released, Refused> {
        for name in owners {
            let instance = match self.seek(pass, name).await? {
                Sought::Found(instance) => instance,
                Sought::Nothing => continue,
                Sought::MayNotShow => {
                    let message = format!("provider {name} may not show the instance yet");
                    return Ok(Released::Waiting(message));
                }
            };
            pass.draft.record(name, &instance);
            match plan::release(Some(&instance), plan::hold_of(pass.proxy())) {
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
        let owner = pass.owner(&self.cluster_id);
        for name in owners {
            let left = self.provider(name)?.delete_leftovers(&owner).await;
            left.map_err(Refused::by(name))?;
        }
        Ok(Released::Gone)
    }

    /// X-02, S-02: the instance on record, or the one a crash kept off the record.
    async fn seek(&self, pass: &Pass<'_>, name: &str) -> Result<Sought, Refused> {
        let provider = self.provider(name)?;
        let owner = pass.owner(&self.cluster_id);
        let mut found = match pass.recorded() {
            Some(_) => self.look(pass, provider).await,
            None => provider.find(&owner).await,
        };
        // One read that does not show it is no proof where reads lag: a list has to agree, and one
        // that fails does not.
        if matches!(found, Ok(None))
            && pass.recorded().is_some()
            && provider.capabilities().eventually_consistent
        {
            found = provider.find(&owner).await;
        }
        let found = match found {
            // What was to make it has failed, so there is none.
            Err(error) if error.has_ended() && pass.draft.get().operation.is_some() => None,
            found => found.map_err(Refused::by(name))?,
        };
        match found {
            Some(instance) => Ok(Sought::Found(Box::new(instance))),
            None if self.may_not_show_yet(pass, provider) => Ok(Sought::MayNotShow),
            None => Ok(Sought::Nothing),
        }
    }

    fn provider(&self, name: &str) -> Result<&dyn Provider, Refused> {
        self.providers
            .get(name)
            .map(|provider| &**provider)
            .ok_or_else(|| {
                let missing = self.not_configured(name);
                Refused::by(name)(provider::Error::new(
                    provider::Reason::NotConfigured,
                    missing,
                ))
            })
    }

    async fn delete_released(
        &self,
        pass: &mut Pass<'_>,
        name: &str,
        instance: &Instance,
    ) -> Result<(), Refused> {
        self.confirm(pass).await.map_err(Refused::Unconfirmed)?;
        let owner = pass.owner(&self.cluster_id);
        self.provider(name)?
            .delete(&instance.id, &owner, &instance.incarnation)
            .await
            .map_err(Refused::by(name))
    }
}

/// What to tell of a release that ended, if there was anything to release.
pub(super) fn released(pass: &Pass<'_>) -> Option<Deed> {
    pass.recorded().map(|id| Deed::Released(id.to_string()))
}

/// What a provider knows of a Proxy's instance.
enum Sought {
    Found(Box<Instance>),
    Nothing,
    /// It was asked for a moment ago, and the provider may not show it yet.
    MayNotShow,
}
