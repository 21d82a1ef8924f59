//! `reconcile_managed`: the branches M1 to M10, in this order.

use std::sync::Arc;

use kube_client::Api;
use kube_core::ResourceExt;

use super::error::Error;
use super::failure::{Then, Verdict};
use super::inputs::{self, Inputs, Limit};
use super::pass::Pass;
use super::plan::{self, Gate, Step};
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::conditions::Reason;
use crate::api::hash::Comparison;
use crate::api::{Latch, RETRY_ANNOTATION, SpecHash, validation};
use crate::crash::{self, Cp};
use crate::provider::{self, Provider};

/// A configured provider and the name it is configured under.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) provider: &'a dyn Provider,
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
        let mut inputs = None;
        let gate = plan::gate(&proxy, |name| self.providers.get(name).is_some());
        if gate != Gate::AddFinalizer
            && let Some(next) = self.claim(pass).await?
        {
            return Ok(next);
        }
        match gate {
            // M1
            Gate::AddFinalizer => {
                pass.add_finalizer().await?;
                crash::point(Cp::Cp10);
                pass.draft.place(proxy.spec.provider.as_deref());
                return Ok(Next::Event);
            }
            // M2
            Gate::Latched => return Ok(Next::Event),
            Gate::LatchedOn(hash) => match self.unlatch(pass, &hash).await? {
                None => return Ok(Next::Event),
                Some(fresh) => inputs = Some(fresh),
            },
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
            Gate::Open => {}
        }
        pass.draft.edit().latch = None;
        // Alone it would shut the Proxy again, should this pass have to wait with its create.
        if pass.draft.provisioned_reason() == Some(Reason::PermanentError) {
            pass.draft
                .not_provisioned(Reason::Provisioning, "tried again");
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
        let inputs = match inputs {
            Some(read) => read,
            None => self.resolve_inputs(pass, wanted).await,
        };
        let inputs = match inputs {
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

    /// S-03: reads the Secrets behind a latch; answers with what it found if that is news.
    async fn unlatch(
        &self,
        pass: &Pass<'_>,
        latched: &str,
    ) -> Result<Option<Result<Inputs, inputs::Error>>, Error> {
        let spec = &pass.proxy().spec;
        let wanted = self.named(spec.provider.as_deref().unwrap_or_default())?;
        match self.resolve_inputs(pass, wanted).await {
            Ok(inputs) if inputs.spec_hash(spec).compare(latched) == Comparison::Same => Ok(None),
            // It says nothing about the inputs.
            Err(fault) if fault.is_transient() => Err(fault.into()),
            found => Ok(Some(found)),
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

    /// M10; `made_from` are the inputs that an error without a remedy speaks of.
    pub(super) fn provider_failure(
        &self,
        pass: &mut Pass<'_>,
        provider: &str,
        error: provider::Error,
        verdict: Verdict,
        made_from: Option<&SpecHash>,
    ) -> Result<Next, Error> {
        if let Some(reason) = verdict.reason {
            pass.draft
                .not_provisioned(reason, format!("provider {provider}: {error}"));
        }
        if verdict.latch {
            self.latch(pass, made_from);
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

/// A pass that failed half-way lifts no block: what holds it still does.
pub(super) fn keep_block_while_held(pass: &mut Pass<'_>) {
    if plan::replacement_hold_of(pass.proxy()).is_some() {
        pass.draft.keep_block();
    }
}
