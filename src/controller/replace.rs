//! M7 and M8: an instance that is not known to be the wanted one.

use super::budget::Group;
use super::drain::{Drain, drain};
use super::error::Error;
use super::failure;
use super::managed::Named;
use super::pass::Pass;
use super::plan::{self, Hold, Replacement};
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::SpecHash;
use crate::api::conditions::Reason;
use crate::crash::{self, Cp};
use crate::provider::{self, Instance, InstanceState};

/// Why an instance makes way that does not match its spec.
const DRIFT: &str = "spec or Secret changed, the old instance is being deleted";

/// S-07 and S-08: whether a deletion may begin.
enum Leave {
    Granted,
    /// The instance serves on.
    OutOfBudget,
    /// Leases still run.
    Draining(std::time::Duration),
}

impl ProxyReconciler {
    /// M7: an instance on record without a hash that could be compared.
    pub(super) async fn adopt(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        wanted: &SpecHash,
    ) -> Result<Next, Error> {
        let seen = match self.look(pass, owner.provider).await {
            Ok(seen) => seen,
            Err(error) => return self.look_failed(pass, owner, error, Some(wanted)),
        };
        let hash = seen
            .as_ref()
            .map_or(wanted, |instance| plan::hash_of(instance, wanted));
        pass.set_spec_hash(hash).await?;
        Ok(Next::Now)
    }

    /// M8: the instance was made from other inputs.
    pub(super) async fn replace(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        wanted: &SpecHash,
    ) -> Result<Next, Error> {
        let seen = match self.look(pass, owner.provider).await {
            Ok(seen) => seen,
            Err(error) => return self.look_failed(pass, owner, error, Some(wanted)),
        };
        if seen.is_none() && self.may_not_show_yet(pass, owner.provider) {
            return Ok(self.not_shown_yet(pass));
        }
        let hold = plan::replacement_hold_of(pass.proxy());
        match (
            plan::replacement(seen.as_ref(), pass.draft.get(), wanted, hold),
            seen,
        ) {
            (Replacement::TakeOver, Some(instance)) => {
                self.take_over(pass, owner, &instance, wanted).await
            }
            (Replacement::AlreadyDeleting, Some(_)) => {
                // What began the deletion has said why already, unless it died before it could.
                if pass.draft.provisioned_reason() != Some(Reason::Replacing) {
                    pass.draft.not_provisioned(Reason::Replacing, DRIFT);
                }
                pass.draft.drop_synced();
                Ok(Next::Deletion)
            }
            (Replacement::Delete, Some(instance)) => {
                self.retire(pass, owner, instance, DRIFT).await
            }
            (Replacement::Held(hold), Some(instance)) => {
                self.held(pass, owner, instance, hold).await
            }
            (Replacement::Gone, _) | (_, None) => {
                pass.set_spec_hash(wanted).await?;
                crash::point(Cp::Cp6);
                self.circuits.came_to_nothing(pass.key());
                pass.draft.clear_instance();
                pass.draft.replaced(Reason::Replacing);
                pass.draft
                    .not_provisioned(Reason::Replacing, "the old instance is gone");
                Ok(Next::Now)
            }
        }
    }

    /// A replacement that an annotation or `spec.paused` forbids: the instance serves on.
    pub(super) async fn held(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        instance: Instance,
        hold: Hold,
    ) -> Result<Next, Error> {
        let (reason, message) = match hold {
            Hold::Paused => (Reason::Paused, "spec.paused is true: nothing is replaced"),
            Hold::Skipped => (
                Reason::Skipped,
                "annotation skip-replacement: nothing is replaced",
            ),
        };
        pass.draft.block(reason, message);
        pass.draft.out_of_sync(Reason::ReplacementDeferred, message);
        self.observed(pass, owner, Some(instance)).await
    }

    /// Deletes an instance so that another takes its place: budget, drain, delete.
    pub(super) async fn retire(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        instance: Instance,
        cause: &'static str,
    ) -> Result<Next, Error> {
        match self.leave(pass, &instance) {
            Leave::OutOfBudget => {
                let message = "as many Proxies of this namespace, provider and zone as may be are \
                               being replaced; this one waits for its turn";
                pass.draft.block(Reason::BudgetExhausted, message);
                pass.draft.out_of_sync(Reason::ReplacementDeferred, message);
                let next = self.observed(pass, owner, Some(instance)).await?;
                return Ok(match next {
                    Next::Drift | Next::Within(_) => Next::Budget,
                    sooner => sooner,
                });
            }
            Leave::Draining(rest) => {
                let message = "to be replaced; leases on it may still end";
                pass.draft.not_provisioned(Reason::Draining, message);
                return Ok(Next::After(rest));
            }
            Leave::Granted => {}
        }
        if let Err(refused) = self.delete(pass, owner, &instance).await {
            return self.delete_failed(pass, owner, refused);
        }
        pass.draft.not_provisioned(Reason::Replacing, cause);
        pass.draft.drop_synced();
        Ok(Next::Deletion)
    }

    fn leave(&self, pass: &Pass<'_>, instance: &Instance) -> Leave {
        let proxy = pass.proxy();
        // What serves nobody takes nothing out of service.
        let serves = pass.was_running() && instance.state == InstanceState::Running;
        if serves && let Some(group) = Group::of(proxy) {
            let allowed = self
                .budget
                .allow(pass.key(), &group, |group| (self.census)(group));
            if !allowed {
                return Leave::OutOfBudget;
            }
        }
        let active = self.leases.drain(pass.uid());
        match drain(active, &proxy.spec, pass.draft.get(), pass.draft.now()) {
            Drain::Wait(rest) => Leave::Draining(rest),
            Drain::Done => Leave::Granted,
        }
    }

    /// S-12, S-11: deletes that incarnation, if the Proxy is what this pass takes it for.
    pub(super) async fn delete(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        instance: &Instance,
    ) -> Result<(), DeleteRefused> {
        self.confirm(pass)
            .await
            .map_err(DeleteRefused::Unconfirmed)?;
        let proxy_owner = pass.owner(&self.cluster_id);
        owner
            .provider
            .delete(&instance.id, &proxy_owner, &instance.incarnation)
            .await
            .map_err(DeleteRefused::Provider)?;
        crash::point(Cp::Cp7);
        Ok(())
    }

    fn delete_failed(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        refused: DeleteRefused,
    ) -> Result<Next, Error> {
        match refused {
            DeleteRefused::Unconfirmed(error) => Err(error),
            DeleteRefused::Provider(error) => {
                let verdict = failure::passing(pass.draft.is_provisioned());
                self.provider_failure(pass, owner.name, error, verdict, None)
            }
        }
    }

    /// The record was old: the instance that is there counts, with the hash it was made from.
    pub(super) async fn take_over(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        instance: &Instance,
        wanted: &SpecHash,
    ) -> Result<Next, Error> {
        pass.set_spec_hash(plan::hash_of(instance, wanted)).await?;
        pass.draft.record(owner.name, instance);
        Ok(Next::Now)
    }
}

/// Why an instance was not deleted.
pub(super) enum DeleteRefused {
    /// S-12: the Proxy could not be confirmed.
    Unconfirmed(Error),
    /// The provider refused.
    Provider(provider::Error),
}

impl DeleteRefused {
    /// The same as an error of the pass; `provider` is whom it asked.
    pub(super) fn into_error(self, provider: &str) -> Error {
        match self {
            Self::Unconfirmed(error) => error,
            Self::Provider(source) => Error::Provider {
                provider: provider.to_owned(),
                source,
            },
        }
    }
}
