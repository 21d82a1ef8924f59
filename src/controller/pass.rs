//! One pass over one Proxy: the copy it began with, its own writes, its draft of the status.

use std::sync::Arc;

use controller::{Context, ObjectKey, finalizer};
use k8s_openapi::jiff::Timestamp;
use kube_client::Api;
use kube_core::ResourceExt;
use kube_core::params::{Patch, PatchParams};
use serde_json::{Value, json};

use super::error::Error;
use super::news::Deed;
use super::plan;
use super::status::{self, Draft};
use crate::api::conditions::{self, ConditionStatus, ConditionType, Reason};
use crate::api::hash::Comparison;
use crate::api::{FINALIZER, Proxy, ProxyStatus, SPEC_HASH_ANNOTATION, SpecHash};
use crate::crash::{self, Cp};
use crate::provider::{self, Hint, Incarnation, Owner, ProviderId};

/// What a pass holds of its Proxy.
pub(crate) struct Pass<'a> {
    key: &'a ObjectKey,
    api: Api<Proxy>,
    /// Takes note of own writes, so that later passes begin with a copy that has them.
    ctx: &'a Context,
    /// The copy that decisions rest on.
    base: Arc<Proxy>,
    /// The newest copy: `base`, or the answer to the latest metadata patch.
    newest: Arc<Proxy>,
    pub(crate) draft: Draft,
    /// An instance got on record in this pass.
    pub(crate) created: bool,
    /// What this pass did that its status does not tell.
    pub(crate) deed: Option<Deed>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        key: &'a ObjectKey,
        api: Api<Proxy>,
        ctx: &'a Context,
        base: Arc<Proxy>,
        now: Timestamp,
    ) -> Self {
        let deleting = base.metadata.deletion_timestamp.is_some();
        let draft = Draft::new(
            base.status.as_ref(),
            base.metadata.generation,
            deleting,
            now,
        );
        let newest = Arc::clone(&base);
        Self {
            key,
            api,
            ctx,
            base,
            newest,
            draft,
            created: false,
            deed: None,
        }
    }

    /// The copy that decisions rest on.
    pub(crate) fn proxy(&self) -> &Proxy {
        &self.base
    }

    pub(crate) fn key(&self) -> &ObjectKey {
        self.key
    }

    /// The same, to hold beside the pass.
    pub(crate) fn base(&self) -> &Arc<Proxy> {
        &self.base
    }

    pub(crate) fn uid(&self) -> &str {
        self.base.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn owner(&self, cluster_id: &Arc<str>) -> Owner {
        Owner {
            cluster_id: Arc::clone(cluster_id),
            uid: self.uid().to_owned(),
            namespace: self.base.namespace().unwrap_or_default(),
            proxy: self.base.name_any(),
        }
    }

    /// The instance on record.
    pub(crate) fn recorded(&self) -> Option<ProviderId> {
        self.draft.get().provider_id.as_deref().map(ProviderId::new)
    }

    /// Whether the status read says that the instance on record runs; an endpoint of an External
    /// Proxy is none.
    pub(crate) fn was_running(&self) -> bool {
        let conditions = self.base.status.as_ref().map(|status| &status.conditions);
        conditions.is_some_and(|conditions| {
            conditions::status(conditions, ConditionType::Provisioned)
                == Some(ConditionStatus::True)
                && conditions::reason(conditions, ConditionType::Provisioned)
                    != Some(Reason::ExternalEndpoint)
        })
    }

    pub(crate) fn hint(&self) -> Hint {
        Hint {
            incarnation: self
                .draft
                .get()
                .instance_uid
                .as_deref()
                .map(Incarnation::new),
            was_running: self.was_running(),
            operation: self.draft.get().operation.as_deref().map(Arc::from),
            drift: false,
        }
    }

    /// The hash annotation, as of the newest copy.
    pub(crate) fn annotation(&self) -> Option<&str> {
        plan::annotation_of(&self.newest)
    }

    /// M1: writes the finalizer.
    pub(crate) async fn add_finalizer(&mut self) -> Result<(), Error> {
        let patched = finalizer::add(&self.api, &*self.newest, FINALIZER).await?;
        if let Some(patched) = patched {
            self.wrote(patched);
        }
        Ok(())
    }

    /// Takes the finalizer away; the object may be gone afterwards.
    pub(crate) async fn remove_finalizer(&mut self) -> Result<(), Error> {
        if let Some(patched) = finalizer::remove(&self.api, &*self.newest, FINALIZER).await? {
            self.wrote(patched);
        }
        crash::point(Cp::Cp9);
        Ok(())
    }

    /// E-02: takes finalizer and annotation away in one write.
    pub(crate) async fn remove_marks(&mut self) -> Result<(), Error> {
        let finalizers = finalizer::plan_remove(&*self.newest, FINALIZER)?;
        let has_annotation = self.annotation().is_some();
        if finalizers.is_none() && !has_annotation {
            return Ok(());
        }
        let mut patch = finalizers.unwrap_or_else(|| self.guarded(json!({})));
        if has_annotation {
            patch["metadata"]["annotations"] = json!({ SPEC_HASH_ANNOTATION: null });
        }
        self.patch_metadata("finalizer and annotation", &patch)
            .await
    }

    /// Writes the hash annotation, unless it says the same already.
    pub(crate) async fn set_spec_hash(&mut self, hash: &SpecHash) -> Result<(), Error> {
        let written = self.annotation().map(|written| hash.compare(written));
        if written == Some(Comparison::Same) {
            return Ok(());
        }
        let annotations = json!({ "annotations": { SPEC_HASH_ANNOTATION: hash.annotation() } });
        let patch = self.guarded(annotations);
        self.patch_metadata("spec hash annotation", &patch).await
    }

    /// S-12: reads the Proxy live, before an effect that no later pass could take back.
    ///
    /// # Errors
    ///
    /// [`Error::Outdated`] with the live copy if it says anything that decisions rest on and the
    /// copy in hand does not say.
    pub(crate) async fn confirm(&mut self) -> Result<(), Error> {
        let live = self.api.get_opt(&self.base.name_any()).await;
        let live = live
            .map_err(|error| Error::Read(error.into()))?
            .map(Arc::new);
        match live {
            Some(live) if plan::is_same_view(&self.newest, &live) => {
                self.newest = live;
                Ok(())
            }
            live => Err(Error::Outdated(live)),
        }
    }

    /// Whether the API server has no such Proxy any more, be it that another took its name.
    pub(crate) async fn is_superseded(&self) -> Result<bool, Error> {
        let live = self.api.get_opt(&self.base.name_any()).await;
        let live = live.map_err(|error| Error::Read(error.into()))?;
        Ok(live.is_none_or(|live| live.metadata.uid != self.base.metadata.uid))
    }

    fn guarded(&self, mut metadata: Value) -> Value {
        metadata["resourceVersion"] = json!(self.newest.metadata.resource_version);
        json!({ "metadata": metadata })
    }

    async fn patch_metadata(&mut self, what: &'static str, patch: &Value) -> Result<(), Error> {
        let name = self.base.name_any();
        let patched = self
            .api
            .patch(&name, &params(), &Patch::Merge(patch))
            .await
            .map_err(|source| Error::Metadata {
                what,
                source: source.into(),
            })?;
        self.wrote(patched);
        Ok(())
    }

    /// the only status write of the program, at most one in a pass.
    ///
    /// Sends the fields that differ from the copy read, guarded by the version of the newest copy;
    /// nothing if none differs. Answers with the status that it wrote, if it wrote. A Proxy that is
    /// gone is no error.
    pub(crate) async fn patch_status_if_changed(self) -> Result<Option<ProxyStatus>, Error> {
        let wanted = self.draft.finish();
        let version = self.newest.metadata.resource_version.as_deref();
        let Some(patch) = status::patch(self.base.status.as_ref(), &wanted, version) else {
            return Ok(None);
        };
        let name = self.base.name_any();
        match self
            .api
            .patch_status(&name, &params(), &Patch::Merge(&patch))
            .await
        {
            Ok(patched) => {
                tracing::info!(
                    phase = wanted.phase.map(|phase| phase.as_str()),
                    reason = provisioned_reason(&wanted).map(Reason::as_str),
                    instance = wanted.provider_id.as_deref(),
                    ip = wanted.ip.as_deref(),
                    "status written"
                );
                self.ctx.wrote(&patched);
                Ok(Some(wanted))
            }
            Err(kube_client::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(Error::Status(error.into())),
        }
    }

    fn wrote(&mut self, patched: Proxy) {
        self.ctx.wrote(&patched);
        self.newest = Arc::new(patched);
    }
}

fn provisioned_reason(status: &ProxyStatus) -> Option<Reason> {
    conditions::reason(&status.conditions, ConditionType::Provisioned)
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(provider::MANAGED_BY.to_owned()),
        ..PatchParams::default()
    }
}
