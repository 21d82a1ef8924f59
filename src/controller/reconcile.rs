//! from a key to a pass, and from the end of a pass to what happens next.

use std::sync::Arc;
use std::time::Duration;

use controller::consistency::Consistency;
use controller::{Action, Context, ObjectKey, ReconcileError, Reconciler};
use dashmap::DashMap;
use k8s_openapi::jiff::Timestamp;
use kube_client::Api;
use tracing::Instrument as _;

use super::error::Error;
use super::pass::{OwnWrites, Pass};
use super::plan::{self, Branch};
use super::timing::{Next, Timing};
use crate::api::Proxy;
use crate::crash::{self, Cp};
use crate::provider::{self, Instance, Provider, Registry};

/// Steps in a row that a Proxy may take without a pause before it is slowed down.
const MAX_STEPS_IN_A_ROW: u32 = 5;

/// The cache of Proxies, as far as a pass needs it.
pub(crate) type Cache = Box<dyn Fn(&ObjectKey) -> Option<Arc<Proxy>> + Send + Sync>;

/// Reconciles one Proxy at a time with its instance.
pub(crate) struct ProxyReconciler {
    pub(crate) client: kube_client::Client,
    pub(crate) proxies: Cache,
    pub(crate) providers: Registry,
    pub(crate) cluster_id: Arc<str>,
    pub(crate) timing: Timing,
    pub(crate) own_writes: Arc<OwnWrites>,
    /// Steps taken in a row; has an entry for Proxies in the middle of some work alone.
    pub(crate) steps: DashMap<ObjectKey, u32>,
}

/// The copy that a pass may act on.
enum Copy {
    Good(Arc<Proxy>),
    /// The cache does not show an own write yet.
    Wait(Duration),
    Gone,
}

impl Reconciler for ProxyReconciler {
    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Result<Action, ReconcileError> {
        let proxy = match self.read(key).await? {
            Copy::Good(proxy) => proxy,
            Copy::Wait(wait) => return Ok(Action::RequeueAfter(wait)),
            Copy::Gone => return Ok(Action::Done),
        };
        let namespace = key.namespace().unwrap_or_default();
        let api = Api::namespaced(self.client.clone(), namespace);
        let span = tracing::info_span!(
            "proxy.pass",
            proxy = %key,
            uid = proxy.metadata.uid,
            generation = proxy.metadata.generation,
            provider = proxy.spec.provider,
        );
        let mut pass = Pass::new(key, api, &self.own_writes, proxy, now());
        async {
            let branch = plan::dispatch(pass.proxy());
            let outcome = match branch {
                Branch::Delete => self.reconcile_delete(&mut pass).await,
                Branch::External => self.reconcile_external(&mut pass).await,
                Branch::Managed => self.reconcile_managed(&mut pass).await,
            };
            tracing::debug!(?branch, ?outcome, attempt = ctx.attempt(), "pass");
            self.finish(key, pass, outcome).await
        }
        .instrument(span)
        .await
    }
}

impl ProxyReconciler {
    async fn read(&self, key: &ObjectKey) -> Result<Copy, Error> {
        let Some(cached) = (self.proxies)(key) else {
            self.own_writes.store.clear(key);
            self.steps.remove(key);
            return Ok(Copy::Gone);
        };
        let uid = cached.metadata.uid.as_deref().unwrap_or_default();
        match self.own_writes.store.check(key, uid) {
            Consistency::Level => Ok(Copy::Good(cached)),
            Consistency::Behind(lag) => {
                tracing::debug!(%lag, "own write not seen yet");
                Ok(Copy::Wait(lag.remaining.min(self.timing.requeue_now)))
            }
            Consistency::Overdue(lag) => {
                tracing::warn!(%lag, "own write not seen in time, reading live");
                let api: Api<Proxy> =
                    Api::namespaced(self.client.clone(), key.namespace().unwrap_or_default());
                match api.get_opt(key.name()).await {
                    Ok(Some(live)) => Ok(Copy::Good(Arc::new(live))),
                    Ok(None) => Ok(Copy::Gone),
                    Err(error) => Err(Error::Read(error.into())),
                }
            }
        }
    }

    /// Writes the status, whatever the pass came to, and turns the outcome into an action.
    async fn finish(
        &self,
        key: &ObjectKey,
        pass: Pass<'_>,
        outcome: Result<Next, Error>,
    ) -> Result<Action, ReconcileError> {
        // A write was refused because the copy is old: another one on the same copy would be too.
        if outcome.as_ref().is_err_and(Error::is_conflict) {
            return Ok(self.action(key, Next::AtOnce));
        }
        if outcome.as_ref().is_err_and(Error::is_gone) {
            self.steps.remove(key);
            return Ok(Action::Done);
        }
        let created = pass.created;
        match pass.patch_status_if_changed().await {
            Ok(_) => {}
            Err(error) if error.is_conflict() => return Ok(self.action(key, Next::AtOnce)),
            Err(error) => {
                self.steps.remove(key);
                // The status is the lesser news of the two.
                return Err(failed(outcome.err().unwrap_or(error)));
            }
        }
        if created {
            crash::point(Cp::Cp5);
        }
        match outcome {
            Ok(next) => Ok(self.action(key, next)),
            Err(error) => {
                self.steps.remove(key);
                Err(failed(error))
            }
        }
    }

    fn action(&self, key: &ObjectKey, next: Next) -> Action {
        if next.is_a_step() {
            let mut steps = self.steps.entry(key.clone()).or_insert(0);
            *steps += 1;
            if *steps > MAX_STEPS_IN_A_ROW {
                return Action::Requeue;
            }
        } else {
            self.steps.remove(key);
        }
        let wait = self.timing.wait(next, rand::random_range(-1.0..=1.0));
        wait.map_or(Action::Done, Action::RequeueAfter)
    }

    /// Asks `provider` for the instance on record; `None` if there is none or it is gone.
    pub(super) async fn look(
        &self,
        pass: &Pass<'_>,
        provider: &dyn Provider,
    ) -> Result<Option<Instance>, provider::Error> {
        let Some(id) = pass.recorded() else {
            return Ok(None);
        };
        match provider
            .get(&id, &pass.owner(&self.cluster_id), &pass.hint())
            .await
        {
            Ok(instance) => Ok(Some(instance)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn failed(error: Error) -> ReconcileError {
    match error.retry_after() {
        Some(wait) => ReconcileError::retry_after(error, wait),
        None => ReconcileError::retry(error),
    }
}

fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
