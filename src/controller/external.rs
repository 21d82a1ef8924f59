//! `reconcile_external`: the branches E-01 and E-02.

use super::error::Error;
use super::finalize::{Released, released};
use super::pass::Pass;
use super::plan;
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::conditions::Reason;
use crate::api::defaults::external_endpoint;
use crate::api::validation;

impl ProxyReconciler {
    pub(super) async fn reconcile_external(&self, pass: &mut Pass<'_>) -> Result<Next, Error> {
        let fault = validation::summary(&validation::validate(pass.proxy()));
        // E-01
        match (external_endpoint(&pass.proxy().spec), fault) {
            (Some(endpoint), None) => {
                pass.draft.endpoint(endpoint);
                pass.draft.provisioned(Reason::ExternalEndpoint, "");
                pass.draft.in_sync();
                pass.draft.edit().latch = None;
            }
            // What an older definition let in.
            (_, fault) => {
                pass.draft.clear_endpoint();
                pass.draft.drop_synced();
                pass.draft.not_provisioned(
                    Reason::PermanentError,
                    fault.unwrap_or_else(|| "spec.endpoint is missing".to_owned()),
                );
            }
        }
        // E-02
        let found = self.unclaimed.take(pass.key(), pass.uid());
        if plan::has_managed_past(pass.proxy()) || found.is_some() {
            return self.release_managed_past(pass).await;
        }
        Ok(Next::Event)
    }

    async fn release_managed_past(&self, pass: &mut Pass<'_>) -> Result<Next, Error> {
        let owners = match plan::owners(pass.proxy(), self.providers.names()) {
            Ok(owners) => owners,
            Err(missing) => {
                let message = self.not_configured(&missing);
                pass.draft.out_of_sync(Reason::ReleasingInstance, message);
                return Ok(Next::Event);
            }
        };
        match self.release(pass, &owners).await {
            Ok(Released::Gone) => {
                self.confirm(pass).await?;
                pass.remove_marks().await?;
                pass.deed = released(pass);
                pass.draft.clear_ownership();
                Ok(Next::Event)
            }
            Ok(Released::Waiting(message)) => {
                pass.draft.out_of_sync(Reason::ReleasingInstance, message);
                Ok(Next::Deletion)
            }
            Ok(Released::Held) => {
                let message = "spec.paused is true: the instance is not deleted";
                pass.draft.out_of_sync(Reason::ReleasingInstance, message);
                // It may go by other hands meanwhile.
                Ok(Next::Drift)
            }
            Err(refused) => {
                if let Some(words) = refused.words() {
                    pass.deed = refused.deed();
                    pass.draft.out_of_sync(Reason::ReleasingInstance, words);
                }
                Err(refused.into())
            }
        }
    }
}
