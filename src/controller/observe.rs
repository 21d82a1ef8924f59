//! M9: the instance on record is the wanted one; how is it?

use std::time::Duration;

use super::brake;
use super::create::scope_of;
use super::error::Error;
use super::failure;
use super::managed::{Named, keep_block_while_held};
use super::pass::Pass;
use super::plan::{self, Observation};
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::SpecHash;
use crate::api::conditions::Reason;
use crate::api::defaults::managed_endpoint;
use crate::api::hash::Comparison;
use crate::provider::{self, Class, Instance, Provider};

impl ProxyReconciler {
    pub(super) async fn observe(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
    ) -> Result<Next, Error> {
        match self.look_for_drift(pass, owner.provider).await {
            Ok(None) if self.may_not_show_yet(pass, owner.provider) => Ok(self.not_shown_yet(pass)),
            // What is seen for drift may be a moment old, and a deletion never rests on that (P-28).
            Ok(Some(instance)) if self.judge(pass, Some(&instance)) == Observation::Expired => {
                match self.look(pass, owner.provider).await {
                    Ok(Some(instance))
                        if self.judge(pass, Some(&instance)) == Observation::Expired =>
                    {
                        self.expired(pass, owner, instance).await
                    }
                    Ok(seen) => self.observed(pass, owner, seen).await,
                    Err(error) => self.look_failed(pass, owner, error, None),
                }
            }
            Ok(seen) => self.observed(pass, owner, seen).await,
            Err(error) => self.look_failed(pass, owner, error, None),
        }
    }

    fn judge(&self, pass: &Pass<'_>, seen: Option<&Instance>) -> Observation {
        let timeout = self.timing.provisioning_timeout;
        let (status, now) = (pass.draft.get(), pass.draft.now());
        plan::observation(seen, &pass.proxy().spec, status, now, timeout)
    }

    /// What an instance is taken for that stays where it is, whatever its age.
    pub(super) async fn observed(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        seen: Option<Instance>,
    ) -> Result<Next, Error> {
        match (self.judge(pass, seen.as_ref()), seen) {
            (Observation::Lost, _) | (_, None) => Ok(self.lost(pass)),
            (Observation::TakeOver, Some(instance)) => {
                // Whether it is the wanted one is for its own hash to say, in the next pass.
                match instance.spec_hash.clone().or(made_from(pass)) {
                    Some(hash) => self.take_over(pass, owner, &instance, &hash).await,
                    None => {
                        pass.draft.record(owner.name, &instance);
                        Ok(Next::Now)
                    }
                }
            }
            (Observation::AlreadyDeleting, Some(instance)) => {
                let reason = plan::reason_to_go(pass.draft.provisioned_reason());
                pass.draft
                    .not_provisioned(reason.unwrap_or(Reason::InstanceLost), going(&instance));
                Ok(Next::Deletion)
            }
            (Observation::Provisioning, Some(instance)) => {
                pass.draft.operation(&instance);
                pass.draft
                    .not_provisioned(Reason::Provisioning, starting(&instance));
                Ok(Next::Provisioning)
            }
            (Observation::Running | Observation::Expired, Some(instance)) => {
                let reason = match pass.draft.provisioned_reason() {
                    Some(Reason::Adopted) => Reason::Adopted,
                    _ => Reason::Created,
                };
                self.running(pass, &instance, reason);
                Ok(self.next_look(pass, &instance))
            }
            (Observation::Stopped, Some(instance)) => {
                let cause = "the instance stopped".to_owned();
                self.discard(pass, owner, &instance, Reason::InstanceStopped, cause)
                    .await
            }
            (Observation::TimedOut, Some(instance)) => {
                let cause = format!("not running in {:?}", self.timing.provisioning_timeout);
                self.discard(pass, owner, &instance, Reason::ProvisioningTimeout, cause)
                    .await
            }
        }
    }

    /// The instance is gone: by the operator's own doing, or as a loss that counts (S-10).
    fn lost(&self, pass: &mut Pass<'_>) -> Next {
        self.circuits.came_to_nothing(pass.key());
        if let Some(reason) = plan::reason_to_go(pass.draft.provisioned_reason()) {
            pass.draft.clear_instance();
            pass.draft.replaced(reason);
            pass.draft
                .not_provisioned(reason, "the old instance is gone");
            return Next::Now;
        }
        tracing::warn!(instance = pass.draft.get().provider_id, "instance lost");
        self.count_loss(pass);
        pass.draft.clear_instance();
        pass.draft.replaced(Reason::InstanceLost);
        pass.draft
            .not_provisioned(Reason::InstanceLost, "the instance is gone");
        Next::Now
    }

    fn count_loss(&self, pass: &mut Pass<'_>) {
        self.circuits.came_to_nothing(pass.key());
        let streak = brake::one_more(pass.draft.get(), pass.draft.now());
        pass.draft.edit().failure_streak = streak;
    }

    /// `spec.rotation.maxAgeSeconds` is over.
    async fn expired(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        instance: Instance,
    ) -> Result<Next, Error> {
        match plan::replacement_hold_of(pass.proxy()) {
            Some(hold) => self.held(pass, owner, instance, hold).await,
            None => {
                let cause = "the instance reached spec.rotation.maxAgeSeconds and is being deleted";
                self.retire(pass, owner, instance, cause).await
            }
        }
    }

    /// A drift poll, or the end of the instance's time where that comes earlier.
    fn next_look(&self, pass: &Pass<'_>, instance: &Instance) -> Next {
        let left = plan::expires(&pass.proxy().spec, instance)
            .map(|end| end.duration_since(pass.draft.now()))
            .and_then(|left| Duration::try_from(left).ok())
            .filter(|left| !left.is_zero());
        left.map_or(Next::Drift, Next::Within)
    }

    /// An instance that is of no use: deleted, so that the next passes make another.
    async fn discard(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        instance: &Instance,
        reason: Reason,
        cause: String,
    ) -> Result<Next, Error> {
        self.circuits.came_to_nothing(pass.key());
        let cause = match &*instance.message {
            "" => cause,
            words => format!("{cause} ({words})"),
        };
        if plan::hold_of(pass.proxy()).is_some() {
            let held = "spec.paused is true: the instance is not deleted";
            pass.draft
                .not_provisioned(reason, format!("{cause}; {held}"));
            pass.draft.block(Reason::Paused, held);
            return Ok(Next::Drift);
        }
        if pass.draft.provisioned_reason() != Some(reason) {
            self.count_loss(pass);
        }
        // The reason stays also where the deletion is refused: it says why the instance is to go,
        // and that its loss was counted.
        match self.delete(pass, owner, instance).await {
            Ok(()) => {
                pass.draft
                    .not_provisioned(reason, format!("{cause}; {}", going(instance)));
                Ok(Next::Deletion)
            }
            Err(refused) => {
                let message = format!("{cause}; {} is not deleted yet", instance.id);
                pass.draft.not_provisioned(reason, message);
                keep_block_while_held(pass);
                Err(refused.into_error(owner.name))
            }
        }
    }

    pub(super) fn running(&self, pass: &mut Pass<'_>, instance: &Instance, reason: Reason) {
        let endpoint = instance
            .ip()
            .map(|ip| managed_endpoint(&pass.proxy().spec, ip));
        if let Some(endpoint) = endpoint {
            pass.draft.endpoint(endpoint);
        }
        pass.draft.operation(instance);
        pass.draft.provisioned(reason, "");
        self.circuits.came_up(pass.key());
        self.budget.give_back(pass.key());
    }

    /// A read that failed. What a create refused only after it was accepted shows here, and then
    /// there is no instance. `wanted` is the hash of the inputs, where they are known.
    pub(super) fn look_failed(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        error: provider::Error,
        wanted: Option<&SpecHash>,
    ) -> Result<Next, Error> {
        let is_running = pass.draft.is_provisioned();
        let made_from = made_from(pass).or_else(|| wanted.cloned());
        if !(error.has_ended() && pass.draft.get().operation.is_some()) {
            let verdict = failure::verdict_of_read(&error, is_running);
            return self.provider_failure(pass, owner.name, error, verdict, made_from.as_ref());
        }
        let is_of_old_inputs = wanted
            .zip(made_from.as_ref())
            .is_some_and(|(wanted, made)| {
                wanted.compare(&made.annotation()) == Comparison::Differs
            });
        let is_quota = error.class() == Class::QuotaExceeded;
        // What an older spec asked for may have been in another zone.
        if is_quota && !is_of_old_inputs {
            let scope = scope_of(owner.name, &pass.proxy().spec);
            self.circuits.refused(scope);
        }
        // A create that ends so counts as a loss, or it would be made again at once for ever (S-10).
        self.count_loss(pass);
        pass.draft.clear_instance();
        let verdict = failure::verdict(&error, false);
        if (verdict.latch || is_quota) && is_of_old_inputs {
            let message = format!(
                "provider {}: {error}; the spec has changed since",
                owner.name
            );
            pass.draft.not_provisioned(Reason::ProviderError, message);
            return Ok(Next::Now);
        }
        self.provider_failure(pass, owner.name, error, verdict, made_from.as_ref())
    }

    /// Whether "not there" may mean "not shown yet", at providers that say so of themselves.
    pub(super) fn may_not_show_yet(&self, pass: &Pass<'_>, provider: &dyn Provider) -> bool {
        let status = pass.draft.get();
        let was_asked = status.create_attempts > 0 || status.provider_id.is_some();
        // The operation that makes an instance is on record until the provider shows it.
        let was_shown = status.provider_id.is_some() && status.operation.is_none();
        was_asked
            && !was_shown
            && !pass.was_running()
            && provider.capabilities().eventually_consistent
            && self.recent.may_not_show(
                pass.key(),
                status.attempt_open.then_some(status.create_attempts),
            )
    }

    pub(super) fn not_shown_yet(&self, pass: &mut Pass<'_>) -> Next {
        pass.draft.not_provisioned(
            Reason::Provisioning,
            "made, and not shown by the provider yet",
        );
        Next::Provisioning
    }
}

/// The inputs that the instance on record was made from, as written down.
fn made_from(pass: &Pass<'_>) -> Option<SpecHash> {
    pass.annotation()?.parse().ok()
}

pub(super) fn starting(instance: &Instance) -> String {
    if instance.message.is_empty() {
        format!("{} is starting", instance.id)
    } else {
        format!("{} is starting: {}", instance.id, instance.message)
    }
}

pub(super) fn going(instance: &Instance) -> String {
    format!("{} is being deleted", instance.id)
}
