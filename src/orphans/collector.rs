//! The cycle of G-01: looks, lets [`decide`](super::decide) judge, and carries out what comes of it.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use controller::ObjectKey;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::decide::{
    Decision, Life, Look, Memory, Orphan, Rules, Sighting, Skip, Standing, Verdict, Why, decide,
    standing,
};
use super::survey::{Survey, survey};
use super::{Calm, Fleet, Guard, Metrics, Mode, Notices, PAUSE, Settings};
use crate::cluster::Store;
use crate::provider::{self, Hint, Registry};

/// Takes over an instance of a live Proxy that has none on record: the Proxy, its UID and the name
/// of the provider that has the instance.
pub(crate) type HandOver = Box<dyn Fn(ObjectKey, &str, &str) + Send + Sync>;

/// Finds orphans and deletes them, one cycle after the other.
pub(crate) struct Collector {
    pub(crate) settings: Settings,
    pub(crate) providers: Registry,
    pub(crate) cluster_id: Arc<str>,
    pub(crate) store: Store,
    pub(crate) fleet: Fleet,
    pub(crate) calm: Calm,
    /// Whether the caches of this process are filled.
    pub(crate) synced: Box<dyn Fn() -> bool + Send + Sync>,
    /// Whether this process leads, and can be sure of it until the call in hand has ended.
    pub(crate) leads: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) hand_over: HandOver,
    pub(crate) notices: Notices,
    pub(crate) metrics: Metrics,
    /// The time of day, for the ages of instances.
    pub(crate) clock: fn() -> Timestamp,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("settings", &self.settings)
            .field("providers", &self.providers)
            .field("cluster_id", &self.cluster_id)
            .finish_non_exhaustive()
    }
}

/// What one cycle knows from the ones before.
#[derive(Debug, Default)]
pub(crate) struct Past {
    memory: Memory,
    /// Cause of the guard that held the latest cycle.
    guarded: Option<&'static str>,
}

/// What a cycle came to.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) now: Timestamp,
    pub(crate) decision: Decision,
    /// Where not everything answered, as `provider` or `provider/scope`, with the cause if known.
    pub(crate) unknown: Vec<String>,
    pub(crate) outcome: Outcome,
}

/// What the deletions of a cycle came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) deleted: Vec<Sighting>,
    /// What providers said instead, by the instance that it is about.
    pub(crate) refusals: HashMap<Life, String>,
}

/// Why an orphan was not deleted after all.
enum Held {
    Skip(Skip),
    /// The provider did not do its part.
    Refused(provider::Error),
    /// The API server does not say what is live: nothing more is deleted.
    Unread(Guard),
}

impl Collector {
    /// Runs cycles until `stop`. The first one comes an interval after the start, so that a start
    /// costs nothing and an instance is never judged by what was before.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), Infallible> {
        let mut past = Past::default();
        self.metrics.began((self.clock)());
        loop {
            let wait = tokio::time::sleep(self.settings.interval);
            if stop.run_until_cancelled(wait).await.is_none() {
                return Ok(());
            }
            self.cycle(&mut past, None, &stop).await;
        }
    }

    /// One cycle; `None` if `stop` came before anything was decided.
    ///
    /// `approved` are the orphans that somebody counted. A deletion that was begun is let end.
    pub(crate) async fn cycle(
        &self,
        past: &mut Past,
        approved: Option<&HashSet<Life>>,
        stop: &CancellationToken,
    ) -> Option<Report> {
        let began = Instant::now();
        let (look, survey_faults) = stop.run_until_cancelled(self.look()).await?;
        let now = look.now;
        let mut unknown = survey_faults;
        for (provider, scopes) in &look.unreachable {
            unknown.extend(scopes.iter().map(|scope| format!("{provider}/{scope}")));
        }
        let rules = Rules {
            deletes: self.settings.mode == Mode::Delete,
            min_age: self.settings.min_age,
            approved,
        };
        let mut decision = decide(look, &past.memory, rules);
        self.tell(past, &decision);
        for sighting in &decision.unclaimed {
            self.hand(sighting);
        }
        let outcome = self.carry_out(&mut decision, stop).await;
        past.memory = std::mem::take(&mut decision.memory);
        self.metrics.cycle(&decision, began.elapsed(), now);
        Some(Report {
            now,
            decision,
            unknown,
            outcome,
        })
    }

    /// G-01: the instances first, then what claims them, so that nothing made in between looks like
    /// an orphan.
    async fn look(&self) -> (Look, Vec<String>) {
        let trouble = self.trouble().await;
        let Survey {
            mut sightings,
            unreachable,
            failed,
        } = survey(&self.providers, &self.cluster_id).await;
        sightings.retain(|one| self.fleet.covers(&one.owner.namespace));
        for (provider, error) in &failed {
            tracing::warn!(%provider, class = error.class().as_str(), %error,
                "instances cannot be listed; they count as unknown");
        }
        let claims = self.fleet.claims().await;
        if matches!(claims, Err(Guard::Unread(_) | Guard::DefinitionMissing)) {
            self.calm.broken();
        }
        let look = Look {
            sightings,
            unreachable,
            failed: failed.keys().cloned().collect(),
            trouble,
            claims,
            now: (self.clock)(),
        };
        let failed = failed.into_iter();
        (
            look,
            failed
                .map(|(name, error)| format!("{name}: {error}"))
                .collect(),
        )
    }

    /// G-03, as far as it does not count.
    async fn trouble(&self) -> Option<Guard> {
        match self.store.read().await {
            Ok(Some(stored)) if *stored == *self.cluster_id => {}
            Ok(stored) => {
                return Some(Guard::ClusterId {
                    store: self.store.name().into(),
                    stored: stored.map(Into::into),
                    own: Box::from(&*self.cluster_id),
                });
            }
            Err(error) => {
                self.calm.broken();
                return Some(Guard::Unread(
                    format!("{}: {error}", self.store.name()).into(),
                ));
            }
        }
        if !(self.synced)() {
            return Some(Guard::NotSynced);
        }
        let (calm, wanted) = (self.calm.lasted(), self.settings.calm);
        (calm < wanted).then_some(Guard::ServerUnreachable { calm, wanted })
    }

    /// Tells what is new: orphans not seen before, and a guard that holds or holds no more.
    fn tell(&self, past: &mut Past, decision: &Decision) {
        for orphan in decision.orphans.iter().filter(|orphan| orphan.cycles == 1) {
            let Sighting {
                provider,
                owner,
                instance,
            } = &orphan.sighting;
            tracing::warn!(
                %provider,
                instance = %instance.id,
                proxy = format!("{}/{}", owner.namespace, owner.proxy),
                uid = owner.uid,
                reason = orphan.why.as_str(),
                "orphan found"
            );
            self.notices
                .found(&orphan.sighting, orphan.why, self.settings.mode);
        }
        let guard = decision.guard.as_ref();
        let cause = guard.map(Guard::cause);
        if let Some(guard) = guard.filter(|_| cause != past.guarded) {
            tracing::warn!(cause, %guard, "orphan collection deletes nothing");
            self.notices.guarded(guard);
        }
        past.guarded = cause;
    }

    fn hand(&self, sighting: &Sighting) {
        let owner = &sighting.owner;
        if owner.namespace.is_empty() || owner.proxy.is_empty() {
            return;
        }
        let key = ObjectKey::namespaced(owner.namespace.as_str(), owner.proxy.as_str());
        (self.hand_over)(key, &owner.uid, &sighting.provider);
    }

    /// Deletes what is to go, one a second; what stays all the same gets its cause, and its next
    /// turn after the others.
    async fn carry_out(&self, decision: &mut Decision, stop: &CancellationToken) -> Outcome {
        let mut outcome = Outcome::default();
        let going = |orphan: &&mut Orphan| orphan.verdict == Verdict::Delete;
        let mut is_first = true;
        let mut unread = None;
        for orphan in decision.orphans.iter_mut().filter(going) {
            if unread.is_some() {
                orphan.verdict = Verdict::Keep(Skip::Guarded);
                continue;
            }
            let pause = if is_first { Duration::ZERO } else { PAUSE };
            is_first = false;
            let paused = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
            if paused.is_none() || stop.is_cancelled() {
                orphan.verdict = Verdict::Keep(Skip::Limit);
                continue;
            }
            let life = orphan.sighting.life();
            match self.delete(&orphan.sighting).await {
                Ok(()) => {
                    // What was accepted may fail all the same.
                    decision.memory.had_its_turn(&life, Skip::Going);
                    outcome.deleted.push(orphan.sighting.clone());
                }
                Err(Held::Skip(skip)) => {
                    orphan.verdict = Verdict::Keep(skip);
                    decision.memory.had_its_turn(&life, skip);
                }
                Err(Held::Refused(error)) => {
                    orphan.verdict = Verdict::Keep(Skip::Refused);
                    decision.memory.had_its_turn(&life, Skip::Refused);
                    let Sighting {
                        provider, instance, ..
                    } = &orphan.sighting;
                    tracing::warn!(%provider, instance = %instance.id,
                        class = error.class().as_str(), %error, "orphan not deleted");
                    outcome.refusals.insert(life, error.to_string());
                }
                Err(Held::Unread(guard)) => {
                    orphan.verdict = Verdict::Keep(Skip::Guarded);
                    unread = Some(guard);
                }
            }
        }
        if let Some(guard) = unread {
            self.calm.broken();
            tracing::warn!(cause = guard.cause(), %guard, "orphan collection deletes nothing");
            self.notices.guarded(&guard);
            decision.guard = Some(guard);
        }
        outcome
    }

    /// G-02: asks the API server whether its Proxy claims it by now.
    async fn still_an_orphan(&self, sighting: &Sighting) -> Result<Why, Held> {
        let owner = &sighting.owner;
        let live = self.fleet.claim(&owner.namespace, &owner.proxy).await;
        let live = live.map_err(Held::Unread)?;
        let is_paused = live
            .as_ref()
            .is_some_and(|claim| claim.paused && claim.uid == owner.uid);
        match standing(sighting, live.as_ref()) {
            Standing::Orphan(why) if !is_paused => Ok(why),
            _ => Err(Held::Skip(Skip::Claimed)),
        }
    }

    /// G-02: deletes that very instance, if it is an orphan still.
    async fn delete(&self, sighting: &Sighting) -> Result<(), Held> {
        let Sighting {
            provider: name,
            owner,
            instance,
        } = sighting;
        let why = self.still_an_orphan(sighting).await?;
        let provider = self.providers.get(name);
        let provider = provider.expect("only configured providers are asked for instances");
        let seen = match provider.get(&instance.id, owner, &Hint::default()).await {
            Ok(seen) => seen,
            Err(error) if error.is_not_found() => return Err(Held::Skip(Skip::Going)),
            Err(error) => return Err(Held::Refused(error)),
        };
        if seen.deleting {
            return Err(Held::Skip(Skip::Going));
        }
        if seen.incarnation != instance.incarnation || seen.tags != instance.tags {
            return Err(Held::Skip(Skip::Changed));
        }
        // A Proxy that lives takes over what bears its name when it loses what it has, maybe just now.
        if why == Why::NotTheOne {
            self.still_an_orphan(sighting).await?;
        }
        if !(self.leads)() {
            return Err(Held::Skip(Skip::NotLeading));
        }
        let deleted = provider.delete(&instance.id, owner, &instance.incarnation);
        deleted.await.map_err(Held::Refused)?;
        tracing::warn!(provider = %name, instance = %instance.id, uid = owner.uid, "orphan deleted");
        self.notices.deleted(sighting);
        self.metrics.deleted(name);
        Ok(())
    }
}

#[cfg(test)]
#[path = "collector_tests.rs"]
mod tests;
