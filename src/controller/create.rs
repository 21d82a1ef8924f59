//! M6: an instance for a Proxy that has none, or the one that a crash kept off the record (S-01).
//!
//! What may hold a create back, in this order: an instance at another provider (S-06), `spec.paused`, the brake after losses (S-10), the
//! quota circuit (S-09), the attempt that is written down first (S-13), a newer copy of the Proxy
//! (S-12).

use std::time::Duration;

use super::brake;
use super::circuit::Scope;
use super::error::Error;
use super::failure;
use super::inputs::Inputs;
use super::managed::Named;
use super::news::Deed;
use super::pass::Pass;
use super::plan::{self, Attempt, Place};
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::conditions::Reason;
use crate::api::defaults::{resolved_machine, resolved_port};
use crate::api::{ProxySpec, SpecHash};
use crate::crash::{self, Cp};
use crate::provider::{self, CreateRequest, Creation, Instance, InstanceState};

/// The way to a create: what holds it back, or the number that it goes under.
enum Clearance {
    Hold(Next),
    Go(i64),
}

impl ProxyReconciler {
    /// M6
    pub(super) async fn create(
        &self,
        pass: &mut Pass<'_>,
        wanted: Named<'_>,
        inputs: Inputs,
        hash: &SpecHash,
    ) -> Result<Next, Error> {
        match plan::place(pass.proxy(), wanted.name) {
            Place::Settled => {}
            Place::Open => {
                pass.draft.place(Some(wanted.name));
                return Ok(Next::Now);
            }
            Place::Elsewhere(other) => return self.look_elsewhere(pass, wanted, &other).await,
        }
        let scope = scope_of(wanted.name, &pass.proxy().spec);
        let attempt = match self.clearance(pass, wanted, &scope) {
            Clearance::Hold(next) => return Ok(next),
            Clearance::Go(attempt) => attempt,
        };
        self.confirm(pass).await?;
        // Not before: a try that is not sent would keep all others waiting for the next one.
        let permit = match self.circuits.admit(scope.clone(), pass.key()) {
            Ok(permit) => permit,
            Err(wait) => return Ok(self.held_by_circuit(pass, &scope, wait)),
        };
        let is_first = self.recent.asked(pass.key(), attempt);
        let spec = &pass.proxy().spec;
        let request = CreateRequest {
            owner: pass.owner(&self.cluster_id),
            spec_hash: hash.clone(),
            attempt,
            resent: wanted.provider.capabilities().write_ahead && !is_first,
            machine: resolved_machine(spec).into_owned(),
            protocol: spec.protocol,
            port: resolved_port(spec),
            cloud_init: inputs.cloud_init,
            credentials: inputs.credentials,
            tags: spec.tags.clone(),
        };
        crash::point(Cp::Cp1);
        let creation = match wanted.provider.create(&request).await {
            Ok(creation) => creation,
            Err(error) => {
                if error.class() == provider::Class::QuotaExceeded {
                    permit.refused();
                } else if error.is_definite() {
                    permit.came_to_nothing();
                }
                if error.is_definite() {
                    pass.draft.edit().attempt_open = false;
                }
                let verdict = failure::verdict(&error, false);
                return self.provider_failure(pass, wanted.name, error, verdict, Some(hash));
            }
        };
        let instance = creation.instance();
        // What was only accepted may still fail for quota or stock (P-25).
        match instance.operation {
            Some(_) => permit.accepted(),
            None => permit.worked(),
        }
        self.recent.made(pass.key());
        crash::point(Cp::Cp3);
        if let Err(error) = pass.set_spec_hash(plan::hash_of(instance, hash)).await {
            self.take_back(pass, wanted, instance, &error).await?;
            return Err(error);
        }
        crash::point(Cp::Cp4);
        pass.draft.record(wanted.name, instance);
        let status = pass.draft.edit();
        status.create_attempts = attempt;
        status.attempt_open = false;
        pass.draft.in_sync();
        pass.created = true;
        Ok(self.created(pass, &creation, hash))
    }

    /// S-06: the Proxy was at another provider before, by way of External; what may still lie there
    /// goes first.
    async fn look_elsewhere(
        &self,
        pass: &mut Pass<'_>,
        wanted: Named<'_>,
        other: &str,
    ) -> Result<Next, Error> {
        let move_on = |pass: &mut Pass<'_>| {
            pass.draft.edit().provider = Some(wanted.name.to_owned());
            Next::Now
        };
        let Some(provider) = self.providers.get(other) else {
            // nobody can look, and no create was ever sent.
            if plan::was_never_provisioned(pass.proxy()) {
                return Ok(move_on(pass));
            }
            let missing = self.not_configured(other);
            pass.draft
                .not_provisioned(Reason::ProviderNotConfigured, missing);
            return Ok(Next::Event);
        };
        match provider.find(&pass.owner(&self.cluster_id)).await {
            Ok(Some(instance)) => {
                pass.draft.record(other, &instance);
                Ok(Next::Now)
            }
            Ok(None) if self.may_not_show_yet(pass, &**provider) => Ok(self.not_shown_yet(pass)),
            Ok(None) => Ok(move_on(pass)),
            Err(error) => {
                let verdict = failure::verdict_of_read(&error, false);
                self.provider_failure(pass, other, error, verdict, None)
            }
        }
    }

    /// What the status says of an instance that was just made or found.
    fn created(&self, pass: &mut Pass<'_>, creation: &Creation, hash: &SpecHash) -> Next {
        let instance = match creation {
            Creation::Created(instance) => {
                pass.deed = Some(Deed::Created);
                pass.draft
                    .not_provisioned(Reason::Provisioning, super::observe::starting(instance));
                return Next::Provisioning;
            }
            Creation::Adopted(instance) => instance,
        };
        let adopted = format!("{} was there already and is this Proxy's", instance.id);
        if !plan::is_made_for(instance, hash) {
            let drift = "made from an older spec, will be replaced";
            pass.draft.out_of_sync(Reason::ReplacementDeferred, drift);
            pass.draft.not_provisioned(Reason::Provisioning, adopted);
            return Next::Now;
        }
        if instance.state == InstanceState::Running {
            self.running(pass, instance, Reason::Adopted);
            return Next::Drift;
        }
        pass.draft.not_provisioned(Reason::Provisioning, adopted);
        Next::Provisioning
    }

    fn clearance(&self, pass: &mut Pass<'_>, wanted: Named<'_>, scope: &Scope) -> Clearance {
        if plan::hold_of(pass.proxy()).is_some() {
            pass.draft.block(
                Reason::Paused,
                "spec.paused is true: no instance is created",
            );
            return Clearance::Hold(Next::Event);
        }
        if let Some(wait) = self.brake(pass) {
            return Clearance::Hold(Next::After(wait));
        }
        if let Some(wait) = self.circuits.wait(scope, pass.key()) {
            return Clearance::Hold(self.held_by_circuit(pass, scope, wait));
        }
        let write_ahead = wanted.provider.capabilities().write_ahead;
        match plan::attempt(pass.draft.get(), write_ahead) {
            Attempt::Go(attempt) => Clearance::Go(attempt),
            Attempt::Announce(attempt) => {
                self.recent.announced(pass.key(), attempt);
                let status = pass.draft.edit();
                status.create_attempts = attempt;
                status.attempt_open = true;
                Clearance::Hold(Next::Now)
            }
        }
    }

    /// S-10: how long the next create has to wait, if it has to.
    fn brake(&self, pass: &Pass<'_>) -> Option<Duration> {
        let status = pass.draft.get();
        let gap = brake::gap(status.failure_streak);
        let since_loss = || {
            let lost = status.replacements.as_ref()?.last_time.as_ref()?;
            let since = pass.draft.now().duration_since(lost.0);
            Some(Duration::try_from(since).unwrap_or_default())
        };
        let since = match self.recent.since_made(pass.key()) {
            // One that never came up took longer than any gap: what counts is when it was given up.
            Some(since) if brake::timed_out(status) => since.min(since_loss()?),
            Some(since) => since,
            // Made by an earlier process: the loss is the latest that the status tells.
            None => since_loss()?,
        };
        gap.checked_sub(since).filter(|wait| !wait.is_zero())
    }

    /// S-09
    fn held_by_circuit(&self, pass: &mut Pass<'_>, scope: &Scope, wait: Duration) -> Next {
        let was_refused = matches!(
            pass.draft.provisioned_reason(),
            Some(Reason::QuotaExceeded | Reason::CapacityExhausted)
        );
        if !was_refused {
            let place = scope.zone.as_deref().unwrap_or("its default zone");
            pass.draft.not_provisioned(
                Reason::QuotaExceeded,
                format!(
                    "provider {} refused others in {place} for quota or stock; one Proxy at a time \
                     tries again",
                    scope.provider
                ),
            );
        }
        Next::Turn(wait)
    }

    /// Deletes an instance whose Proxy went while it was being made, for nobody would look for it.
    ///
    /// An API server that has begun to delete an object without finalizers does not heed one that
    /// is added meanwhile, so the finalizer of M1 is no proof that the Proxy is still there.
    async fn take_back(
        &self,
        pass: &Pass<'_>,
        wanted: Named<'_>,
        instance: &Instance,
        error: &Error,
    ) -> Result<(), Error> {
        let went = error.is_gone() || (error.is_conflict() && pass.is_superseded().await?);
        if !went {
            return Ok(());
        }
        let owner = pass.owner(&self.cluster_id);
        let deleted = wanted
            .provider
            .delete(&instance.id, &owner, &instance.incarnation);
        deleted.await.map_err(|source| Error::Provider {
            provider: wanted.name.to_owned(),
            source,
        })
    }
}

/// Whom a Proxy shares its quota with.
pub(super) fn scope_of(provider: &str, spec: &ProxySpec) -> Scope {
    let machine = spec.machine.as_ref();
    Scope {
        provider: provider.to_owned(),
        zone: machine.and_then(|machine| machine.zone.clone().or_else(|| machine.region.clone())),
    }
}
