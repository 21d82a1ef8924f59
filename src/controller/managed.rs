//! `reconcile_managed`: the branches M1 to M10, in this order.

use std::sync::Arc;

use kube_client::Api;
use kube_core::ResourceExt;

use super::error::Error;
use super::failure::{self, Then};
use super::inputs::{self, Inputs, Limit};
use super::pass::Pass;
use super::plan::{self, Gate, Hold, Observation, Replacement, Step};
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::conditions::Reason;
use crate::api::defaults::{managed_endpoint, resolved_machine, resolved_port};
use crate::api::{Latch, RETRY_ANNOTATION, SpecHash, validation};
use crate::crash::{self, Cp};
use crate::provider::{self, CreateRequest, Creation, Instance, InstanceState, Provider};

/// A configured provider and the name it is configured under.
#[derive(Clone, Copy)]
struct Named<'a> {
    name: &'a str,
    provider: &'a dyn Provider,
}

impl ProxyReconciler {
    pub(super) async fn reconcile_managed(&self, pass: &mut Pass<'_>) -> Result<Next, Error> {
        //
        if plan::has_external_past(pass.draft.get()) {
            pass.draft.clear_endpoint();
            pass.draft
                .not_provisioned(Reason::Provisioning, "was External before");
        }
        let proxy = Arc::clone(pass.base());
        match plan::gate(&proxy, |name| self.providers.get(name).is_some()) {
            // M1
            Gate::AddFinalizer => {
                pass.add_finalizer().await?;
                crash::point(Cp::Cp10);
                return Ok(Next::Event);
            }
            // M2
            Gate::Latched => return Ok(Next::Event),
            // M3
            Gate::NotConfigured(name) => {
                // What an older definition let in without any name breaks a rule with a text.
                let fault = validation::summary(&validation::validate(&proxy));
                let message = fault
                    .filter(|_| name.is_empty())
                    .unwrap_or_else(|| self.not_configured(&name));
                pass.draft
                    .not_provisioned(Reason::ProviderNotConfigured, message);
                return Ok(Next::Event);
            }
            Gate::Open => pass.draft.edit().latch = None,
        }
        let wanted_name = proxy.spec.provider.as_deref().unwrap_or_default();
        let wanted = self.named(wanted_name)?;
        // S-06: an instance is looked after by the provider that made it.
        let owner_name = pass.draft.get().provider.clone();
        let owner = match owner_name.as_deref().filter(|_| pass.recorded().is_some()) {
            Some(name) => self.named(name)?,
            None => wanted,
        };
        // What an older definition let in is reported; a machine that serves goes on serving.
        if let Some(fault) = validation::summary(&validation::validate(&proxy)) {
            if pass.recorded().is_none() {
                pass.draft.not_provisioned(Reason::PermanentError, fault);
                self.latch(pass, None);
                return Ok(Next::Event);
            }
            pass.draft.out_of_sync(Reason::ReplacementDeferred, fault);
            return self.observe(pass, owner).await;
        }
        // M4
        let inputs = match self.resolve_inputs(pass, wanted).await {
            Ok(inputs) => inputs,
            Err(fault) if pass.recorded().is_none() => {
                pass.draft
                    .not_provisioned(fault.reason(), fault.to_string());
                return Err(fault.into());
            }
            // S-05: the instance serves on; what it should be is not known for now.
            Err(fault) => {
                if !fault.is_transient() {
                    pass.draft.out_of_sync(fault.reason(), fault.to_string());
                }
                keep_block_while_held(pass);
                self.observe(pass, owner).await?;
                return Err(fault.into());
            }
        };
        // M5
        let hash = inputs.spec_hash(&proxy.spec);
        let step = plan::step(
            pass.draft.get(),
            pass.annotation(),
            wanted.name,
            Some(&hash),
        );
        match step {
            Step::Create => self.create(pass, wanted, inputs, &hash).await, // M6
            Step::Adopt => self.adopt(pass, owner, &hash).await,            // M7
            Step::Replace => self.replace(pass, owner, &hash).await,        // M8
            Step::Observe => {
                // M9
                pass.draft.in_sync();
                self.observe(pass, owner).await
            }
        }
    }

    /// M4: reads Secrets live.
    async fn resolve_inputs(
        &self,
        pass: &Pass<'_>,
        wanted: Named<'_>,
    ) -> Result<Inputs, inputs::Error> {
        let namespace = pass.proxy().namespace().unwrap_or_default();
        let secrets = Api::namespaced(self.client.clone(), &namespace);
        let limit = Limit {
            provider: wanted.name,
            cloud_init_bytes: wanted.provider.capabilities().max_cloud_init_bytes,
        };
        inputs::resolve(&secrets, &pass.proxy().spec, limit).await
    }

    /// M6: nothing on record, so make it, or find what a crash left (S-01).
    async fn create(
        &self,
        pass: &mut Pass<'_>,
        wanted: Named<'_>,
        inputs: Inputs,
        hash: &SpecHash,
    ) -> Result<Next, Error> {
        if plan::hold_of(pass.proxy()).is_some() {
            pass.draft.block(
                Reason::Paused,
                "spec.paused is true: no instance is created",
            );
            return Ok(Next::Event);
        }
        let spec = &pass.proxy().spec;
        let request = CreateRequest {
            owner: pass.owner(&self.cluster_id),
            spec_hash: hash.clone(),
            attempt: pass.draft.get().create_attempts.saturating_add(1),
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
            Err(error) => return self.provider_failure(pass, wanted.name, error, Some(hash)),
        };
        crash::point(Cp::Cp3);
        let instance = creation.instance();
        if let Err(error) = pass.set_spec_hash(plan::hash_of(instance, hash)).await {
            self.take_back(pass, wanted, instance, &error).await?;
            return Err(error);
        }
        crash::point(Cp::Cp4);
        pass.draft.record(wanted.name, instance);
        pass.draft.edit().create_attempts = request.attempt;
        pass.draft.in_sync();
        pass.created = true;
        if let Creation::Adopted(instance) = &creation {
            if !plan::is_made_for(instance, hash) {
                let drift = "made from an older spec, will be replaced";
                pass.draft.out_of_sync(Reason::ReplacementDeferred, drift);
                pass.draft
                    .not_provisioned(Reason::Provisioning, adopted(instance));
                return Ok(Next::Now);
            }
            if instance.state == InstanceState::Running {
                self.running(pass, instance, Reason::Adopted);
                return Ok(Next::Drift);
            }
            pass.draft
                .not_provisioned(Reason::Provisioning, adopted(instance));
        } else {
            pass.draft
                .not_provisioned(Reason::Provisioning, starting(instance));
        }
        Ok(Next::Provisioning)
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

    /// M7: an instance on record without a hash that could be compared.
    async fn adopt(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        wanted: &SpecHash,
    ) -> Result<Next, Error> {
        let seen = match self.look(pass, owner.provider).await {
            Ok(seen) => seen,
            Err(error) => return self.provider_failure(pass, owner.name, error, Some(wanted)),
        };
        let hash = seen
            .as_ref()
            .map_or(wanted, |instance| plan::hash_of(instance, wanted));
        pass.set_spec_hash(hash).await?;
        Ok(Next::Now)
    }

    /// M8: the instance was made from other inputs.
    async fn replace(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        wanted: &SpecHash,
    ) -> Result<Next, Error> {
        let seen = match self.look(pass, owner.provider).await {
            Ok(seen) => seen,
            Err(error) => return self.provider_failure(pass, owner.name, error, Some(wanted)),
        };
        let hold = plan::replacement_hold_of(pass.proxy());
        match (
            plan::replacement(seen.as_ref(), pass.draft.get(), wanted, hold),
            seen,
        ) {
            (Replacement::TakeOver, Some(instance)) => {
                self.take_over(pass, owner, &instance, wanted).await
            }
            (Replacement::AlreadyDeleting, Some(instance)) => {
                pass.draft
                    .not_provisioned(Reason::Replacing, going(&instance));
                pass.draft.drop_synced();
                Ok(Next::Deletion)
            }
            (Replacement::Delete, Some(instance)) => {
                if let Err(error) = self.delete(pass, owner, &instance).await {
                    return self.provider_failure(pass, owner.name, error, Some(wanted));
                }
                let cause = "spec or Secret changed, the old instance is being deleted";
                pass.draft.not_provisioned(Reason::Replacing, cause);
                pass.draft.drop_synced();
                Ok(Next::Deletion)
            }
            (Replacement::Held(hold), Some(instance)) => {
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
            (Replacement::Gone, _) | (_, None) => {
                pass.set_spec_hash(wanted).await?;
                crash::point(Cp::Cp6);
                pass.draft.clear_instance();
                pass.draft
                    .not_provisioned(Reason::Replacing, "the old instance is gone");
                Ok(Next::Now)
            }
        }
    }

    /// M9: the instance is the wanted one; how is it?
    async fn observe(&self, pass: &mut Pass<'_>, owner: Named<'_>) -> Result<Next, Error> {
        match self.look(pass, owner.provider).await {
            Ok(seen) => self.observed(pass, owner, seen).await,
            Err(error) => self.provider_failure(pass, owner.name, error, None),
        }
    }

    async fn observed(
        &self,
        pass: &mut Pass<'_>,
        owner: Named<'_>,
        seen: Option<Instance>,
    ) -> Result<Next, Error> {
        let timeout = self.timing.provisioning_timeout;
        let observation =
            plan::observation(seen.as_ref(), pass.draft.get(), pass.draft.now(), timeout);
        match (observation, seen) {
            (Observation::Lost, _) | (_, None) => {
                tracing::warn!(instance = pass.draft.get().provider_id, "instance lost");
                pass.draft.clear_instance();
                pass.draft
                    .not_provisioned(Reason::InstanceLost, "the instance is gone");
                Ok(Next::Now)
            }
            (Observation::TakeOver, Some(instance)) => {
                // Whether it is the wanted one is for its own hash to say, in the next pass.
                let annotation = pass
                    .annotation()
                    .and_then(|text| text.parse::<SpecHash>().ok());
                match instance.spec_hash.clone().or(annotation) {
                    Some(hash) => self.take_over(pass, owner, &instance, &hash).await,
                    None => {
                        pass.draft.record(owner.name, &instance);
                        Ok(Next::Now)
                    }
                }
            }
            (Observation::AlreadyDeleting, Some(instance)) => {
                let reason = match pass.draft.provisioned_reason() {
                    Some(
                        reason @ (Reason::Replacing
                        | Reason::InstanceStopped
                        | Reason::ProvisioningTimeout),
                    ) => reason,
                    _ => Reason::InstanceLost,
                };
                pass.draft.not_provisioned(reason, going(&instance));
                Ok(Next::Deletion)
            }
            (Observation::Provisioning, Some(instance)) => {
                pass.draft
                    .not_provisioned(Reason::Provisioning, starting(&instance));
                Ok(Next::Provisioning)
            }
            (Observation::Running, Some(instance)) => {
                let reason = match pass.draft.provisioned_reason() {
                    Some(Reason::Adopted) => Reason::Adopted,
                    _ => Reason::Created,
                };
                self.running(pass, &instance, reason);
                Ok(Next::Drift)
            }
            (Observation::Stopped, Some(instance)) => {
                let cause = "the instance stopped".to_owned();
                self.discard(pass, owner, &instance, Reason::InstanceStopped, cause)
                    .await
            }
            (Observation::TimedOut, Some(instance)) => {
                let cause = format!("not running in {timeout:?}");
                self.discard(pass, owner, &instance, Reason::ProvisioningTimeout, cause)
                    .await
            }
        }
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
        pass.draft
            .not_provisioned(reason, format!("{cause}; {}", going(instance)));
        if let Err(error) = self.delete(pass, owner, instance).await {
            return self.provider_failure(pass, owner.name, error, None);
        }
        Ok(Next::Deletion)
    }

    async fn delete(
        &self,
        pass: &Pass<'_>,
        owner: Named<'_>,
        instance: &Instance,
    ) -> Result<(), provider::Error> {
        let proxy_owner = pass.owner(&self.cluster_id);
        owner
            .provider
            .delete(&instance.id, &proxy_owner, &instance.incarnation)
            .await?;
        crash::point(Cp::Cp7);
        Ok(())
    }

    /// The record was old: the instance that is there counts, with the hash it was made from.
    async fn take_over(
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

    fn running(&self, pass: &mut Pass<'_>, instance: &Instance, reason: Reason) {
        let endpoint = instance
            .ip()
            .map(|ip| managed_endpoint(&pass.proxy().spec, ip));
        if let Some(endpoint) = endpoint {
            pass.draft.endpoint(endpoint);
        }
        pass.draft.provisioned(reason, "");
    }

    /// M10
    fn provider_failure(
        &self,
        pass: &mut Pass<'_>,
        provider: &str,
        error: provider::Error,
        wanted: Option<&SpecHash>,
    ) -> Result<Next, Error> {
        let verdict = failure::verdict(&error, pass.draft.is_provisioned());
        if let Some(reason) = verdict.reason {
            pass.draft
                .not_provisioned(reason, format!("provider {provider}: {error}"));
        }
        if verdict.latch {
            self.latch(pass, wanted);
        }
        keep_block_while_held(pass);
        match verdict.then {
            Then::Wait(next) => {
                tracing::warn!(provider, class = error.class().as_str(), %error, "provider refused");
                Ok(next)
            }
            Then::Backoff => Err(Error::Provider {
                provider: provider.to_owned(),
                source: error,
            }),
        }
    }

    fn latch(&self, pass: &mut Pass<'_>, wanted: Option<&SpecHash>) {
        let proxy = pass.proxy();
        let latch = Latch {
            generation: proxy.metadata.generation.unwrap_or_default(),
            input_hash: wanted.map(SpecHash::annotation),
            retry_nonce: proxy.annotations().get(RETRY_ANNOTATION).cloned(),
        };
        pass.draft.edit().latch = Some(latch);
    }

    fn named<'a>(&'a self, name: &'a str) -> Result<Named<'a>, Error> {
        let provider = self.providers.get(name).ok_or_else(|| Error::Provider {
            provider: name.to_owned(),
            source: provider::Error::new(
                provider::Reason::NotConfigured,
                self.not_configured(name),
            ),
        })?;
        Ok(Named {
            name,
            provider: &**provider,
        })
    }

    /// B08: what to write instead.
    pub(super) fn not_configured(&self, name: &str) -> String {
        let known: Vec<_> = self.providers.names().collect();
        format!(
            "provider {name:?} is not configured; configured are: {}",
            known.join(", ")
        )
    }
}

fn starting(instance: &Instance) -> String {
    if instance.message.is_empty() {
        format!("{} is starting", instance.id)
    } else {
        format!("{} is starting: {}", instance.id, instance.message)
    }
}

fn adopted(instance: &Instance) -> String {
    format!("{} was there already and is this Proxy's", instance.id)
}

fn going(instance: &Instance) -> String {
    format!("{} is being deleted", instance.id)
}

/// A pass that failed half-way lifts no block: what holds it still does.
fn keep_block_while_held(pass: &mut Pass<'_>) {
    if plan::replacement_hold_of(pass.proxy()).is_some() {
        pass.draft.keep_block();
    }
}
