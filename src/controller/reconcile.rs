//! from a key to a pass, and from the end of a pass to what happens next.

use std::sync::Arc;

use controller::{Action, Context, ObjectKey, ReconcileError, Reconciler};
use dashmap::DashMap;
use k8s_openapi::jiff::Timestamp;
use kube_client::Api;
use kube_core::Resource as _;
use tracing::Instrument as _;

use super::budget::{Budget, Census, Group};
use super::circuit::Circuits;
use super::drain::Leases;
use super::error::Error;
use super::metrics::{Metrics, Patched};
use super::news::{self, Deed, Outcome};
use super::pass::Pass;
use super::plan::{self, Branch};
use super::recent::Recent;
use super::timing::{Next, Timing};
use super::unclaimed::Unclaimed;
use crate::api::{Proxy, ProxyStatus};
use crate::crash::{self, Cp};
use crate::events::Events;
use crate::provider::{self, Hint, Instance, Provider, Registry};

/// Steps in a row that a Proxy may take without a pause before it is slowed down.
const MAX_STEPS_IN_A_ROW: u32 = 5;

/// The cache of Proxies, as far as a pass needs it.
pub(crate) type Cache = Box<dyn Fn(&ObjectKey) -> Option<Arc<Proxy>> + Send + Sync>;

/// Tells the time of day.
pub(crate) type Clock = fn() -> Timestamp;

/// Counts a group of Proxies.
pub(crate) type TakeCensus = Box<dyn Fn(&Group) -> Census + Send + Sync>;

/// Tells whether this process leads.
pub(crate) type Leads = Arc<dyn Fn() -> bool + Send + Sync>;

/// Live copies in a row that a pass may turn to before it makes a pause.
const MAX_TURNS: u32 = 3;

/// Reconciles one Proxy at a time with its instance.
pub(crate) struct ProxyReconciler {
    pub(crate) client: kube_client::Client,
    pub(crate) proxies: Cache,
    pub(crate) providers: Registry,
    pub(crate) cluster_id: Arc<str>,
    pub(crate) timing: Timing,
    /// Whether this process leads, and can be sure of it until the call in hand has ended.
    pub(crate) leads: Leads,
    /// Proxies that stand in for each other, as the cache shows them.
    pub(crate) census: TakeCensus,
    pub(crate) budget: Budget,
    pub(crate) circuits: Circuits,
    pub(crate) leases: Arc<dyn Leases>,
    pub(crate) recent: Recent,
    ///
    pub(crate) events: Arc<Events>,
    /// O-05
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) unclaimed: Unclaimed,
    /// The time of day; decides what ages by the API's times, never a wait.
    pub(crate) clock: Clock,
    /// A number in [-1, 1], to spread waits that would end together.
    pub(crate) spread: fn() -> f64,
    /// Steps taken in a row; has an entry for Proxies in the middle of some work alone.
    pub(crate) steps: DashMap<ObjectKey, u32>,
}

impl Reconciler for ProxyReconciler {
    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Result<Action, ReconcileError> {
        let Some(mut copy) = self.read(key, ctx).await? else {
            return Ok(Action::Done);
        };
        for _ in 0..MAX_TURNS {
            match self.pass(key, ctx, copy).await? {
                Turn::Over(action) => return Ok(action),
                Turn::Live(live) => copy = live,
            }
        }
        Ok(self.action(key, Next::AtOnce))
    }
}

/// How a pass ended.
enum Turn {
    Over(Action),
    /// S-12: before it changed anything the pass found that this is the Proxy.
    Live(Arc<Proxy>),
}

impl ProxyReconciler {
    /// One pass over this copy of the Proxy.
    async fn pass(
        &self,
        key: &ObjectKey,
        ctx: &Context,
        proxy: Arc<Proxy>,
    ) -> Result<Turn, ReconcileError> {
        let namespace = key.namespace().unwrap_or_default();
        let api = Api::namespaced(self.client.clone(), namespace);
        let span = tracing::info_span!(
            "proxy.pass",
            proxy = %key,
            uid = proxy.metadata.uid,
            generation = proxy.metadata.generation,
            provider = proxy.spec.provider,
            instance = proxy.status.as_ref().and_then(|status| status.provider_id.as_deref()),
            outcome = tracing::field::Empty,
        );
        let mut pass = Pass::new(key, api, ctx, proxy, (self.clock)());
        async {
            let branch = plan::dispatch(pass.proxy());
            if branch != Branch::Managed {
                // It stands in for no other any more.
                self.budget.give_back(key);
                self.circuits.came_to_nothing(key);
            }
            let outcome = match branch {
                Branch::Delete => self.reconcile_delete(&mut pass).await,
                Branch::External => self.reconcile_external(&mut pass).await,
                Branch::Managed => self.reconcile_managed(&mut pass).await,
            };
            tracing::Span::current().record("outcome", word_of(&outcome));
            tracing::debug!(?branch, ?outcome, attempt = ctx.attempt(), "pass");
            match outcome {
                Err(Error::Outdated(Some(live))) => Ok(Turn::Live(live)),
                Err(Error::Outdated(None)) => {
                    self.forget(key);
                    Ok(Turn::Over(Action::Done))
                }
                outcome => self
                    .finish(key, pass, branch, outcome)
                    .await
                    .map(Turn::Over),
            }
        }
        .instrument(span)
        .await
    }

    /// Drops all that is remembered of a Proxy that is gone.
    fn forget(&self, key: &ObjectKey) {
        self.steps.remove(key);
        self.recent.forget(key);
        self.unclaimed.forget(key);
        self.budget.give_back(key);
        self.circuits.came_to_nothing(key);
    }

    /// S-12: what no later pass could take back is done by a leader on a live copy alone.
    pub(super) async fn confirm(&self, pass: &mut Pass<'_>) -> Result<(), Error> {
        pass.confirm().await?;
        if (self.leads)() {
            Ok(())
        } else {
            Err(Error::NotLeading)
        }
    }

    /// The cached copy, or the live one if the cache has not shown an own write in time.
    async fn read(&self, key: &ObjectKey, ctx: &Context) -> Result<Option<Arc<Proxy>>, Error> {
        let Some(cached) = (self.proxies)(key) else {
            self.forget(key);
            return Ok(None);
        };
        if ctx.stale().is_none() {
            return Ok(Some(cached));
        }
        let namespace = key.namespace().unwrap_or_default();
        let api: Api<Proxy> = Api::namespaced(self.client.clone(), namespace);
        let live = api.get_opt(key.name()).await;
        let live = live.map_err(|error| Error::Read(error.into()))?;
        Ok(live.map(Arc::new))
    }

    /// Writes the status, whatever the pass came to, and turns the outcome into an action.
    async fn finish(
        &self,
        key: &ObjectKey,
        mut pass: Pass<'_>,
        branch: Branch,
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
        let (base, deed) = (Arc::clone(pass.base()), pass.deed.take());
        match pass.patch_status_if_changed().await {
            Ok(written) => {
                if written.is_some() {
                    self.metrics.patched(Patched::Written);
                }
                self.tell(&base, branch, written.as_ref(), deed.as_ref());
            }
            Err(error) if error.is_conflict() => {
                self.metrics.patched(Patched::Conflict);
                return Ok(self.action(key, Next::AtOnce));
            }
            Err(error) => {
                self.metrics.patched(Patched::Failed);
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

    /// tells of what changed from `base` to the status written, if one was.
    fn tell(
        &self,
        base: &Proxy,
        branch: Branch,
        written: Option<&ProxyStatus>,
        deed: Option<&Deed>,
    ) {
        if written.is_none() && deed.is_none() {
            return;
        }
        let before = base.status.clone().unwrap_or_default();
        let outcome = Outcome {
            branch,
            before: &before,
            after: written.unwrap_or(&before),
            deed,
        };
        let about = base.object_ref(&());
        for (word, note) in news::news(&outcome) {
            self.events.tell(&about, word, &note);
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
        let wait = self.timing.wait(next, (self.spread)());
        wait.map_or(Action::Done, Action::RequeueAfter)
    }

    /// Asks `provider` for the instance on record; `None` if there is none or it is gone.
    pub(super) async fn look(
        &self,
        pass: &Pass<'_>,
        provider: &dyn Provider,
    ) -> Result<Option<Instance>, provider::Error> {
        self.look_with(pass, provider, &pass.hint()).await
    }

    /// The same, where nothing is decided but whether an instance that ran still runs (P-28).
    pub(super) async fn look_for_drift(
        &self,
        pass: &Pass<'_>,
        provider: &dyn Provider,
    ) -> Result<Option<Instance>, provider::Error> {
        let hint = Hint {
            drift: pass.was_running(),
            ..pass.hint()
        };
        self.look_with(pass, provider, &hint).await
    }

    async fn look_with(
        &self,
        pass: &Pass<'_>,
        provider: &dyn Provider,
        hint: &Hint,
    ) -> Result<Option<Instance>, provider::Error> {
        let Some(id) = pass.recorded() else {
            return Ok(None);
        };
        match provider.get(&id, &pass.owner(&self.cluster_id), hint).await {
            Ok(instance) => {
                self.recent.shown(pass.key());
                Ok(Some(instance))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// O-06: how a pass came out, as its log lines say it.
fn word_of(outcome: &Result<Next, Error>) -> &'static str {
    match outcome {
        Ok(next) if next.is_a_step() => "next step",
        Ok(Next::Event) => "done",
        Ok(_) => "waits",
        Err(error) if error.is_conflict() => "conflict",
        Err(Error::Outdated(_)) => "outdated",
        Err(_) => "failed",
    }
}

fn failed(error: Error) -> ReconcileError {
    match error.retry_after() {
        Some(wait) => ReconcileError::retry_after(error, wait),
        None => ReconcileError::retry(error),
    }
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
