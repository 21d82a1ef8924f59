//! Which instances are orphans and which of them go, from what was seen. Pure: no call, no clock.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{Guard, MOST_PER_CYCLE};
use crate::provider::{Incarnation, Instance, Owner, ProviderId};

/// Cycles in a row in which an orphan must have been seen before it goes (G-02).
const CYCLES: u32 = 2;

/// As many orphans are no reason to stop, however few instances there are (G-03).
const FEW: usize = 3;

/// One of this many instances may be an orphan (G-03).
const SHARE: usize = 5;

/// An instance that a provider listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    /// Name of the provider in the configuration.
    pub(crate) provider: Arc<str>,
    /// The Proxy that the tags name.
    pub(crate) owner: Owner,
    pub(crate) instance: Instance,
}

/// One life of one instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    provider: Arc<str>,
    id: ProviderId,
    incarnation: Incarnation,
}

impl Sighting {
    pub(crate) fn life(&self) -> Life {
        Life {
            provider: Arc::clone(&self.provider),
            id: self.instance.id.clone(),
            incarnation: self.instance.incarnation.clone(),
        }
    }
}

/// What a live Proxy says of its instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) uid: String,
    /// `status.providerID`
    pub(crate) provider_id: Option<String>,
    /// `status.instanceUID`
    pub(crate) instance_uid: Option<String>,
    /// `spec.paused`: no provider is asked to change anything.
    pub(crate) paused: bool,
}

/// Why an instance is an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// No Proxy has the UID that its tags name.
    NoProxy,
    /// Its Proxy lives, and names another instance.
    NotTheOne,
}

impl Why {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoProxy => "no Proxy has the UID of its tags",
            Self::NotTheOne => "its Proxy names another instance",
        }
    }
}

/// G-01: where an instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its Proxy names it.
    Claimed,
    /// Its Proxy lives and has not got it on record: the reconciler's.
    Unclaimed,
    Orphan(Why),
}

/// `claim` is that of the live Proxy with the UID of the tags, if there is one.
pub(crate) fn standing(sighting: &Sighting, claim: Option<&Claim>) -> Standing {
    let Some(claim) = claim.filter(|claim| claim.uid == sighting.owner.uid) else {
        return Standing::Orphan(Why::NoProxy);
    };
    let instance = &sighting.instance;
    match &claim.provider_id {
        None => Standing::Unclaimed,
        Some(id) if id != instance.id.as_str() => Standing::Orphan(Why::NotTheOne),
        Some(_) => match &claim.instance_uid {
            // Another life under the recorded name: the reconciler takes it over.
            Some(uid) if uid != instance.incarnation.as_str() => Standing::Unclaimed,
            _ => Standing::Claimed,
        },
    }
}

/// All that one cycle saw.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) sightings: Vec<Sighting>,
    /// Scopes that did not answer, by provider.
    pub(crate) unreachable: BTreeMap<Arc<str>, BTreeSet<String>>,
    /// Providers that told nothing of use.
    pub(crate) failed: BTreeSet<Arc<str>>,
    /// The live Proxies by UID, or why they are not known.
    pub(crate) claims: Result<HashMap<String, Claim>, Guard>,
    /// What else stands in the way, whatever the numbers say.
    pub(crate) trouble: Option<Guard>,
    pub(crate) now: Timestamp,
}

/// What is decided by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    /// Whether anything is deleted at all.
    pub(crate) deletes: bool,
    pub(crate) min_age: Duration,
    /// The orphans that somebody counted: they may go in any number, and no others may.
    pub(crate) approved: Option<&'a HashSet<Life>>,
}

/// What is known of each orphan from the cycles before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(HashMap<Life, Seen>);

impl Memory {
    /// Notes that the turn of this orphan came in the latest cycle, and what keeps it if it is still
    /// there in the next.
    pub(crate) fn had_its_turn(&mut self, life: &Life, by: Skip) {
        if let Some(seen) = self.0.get_mut(life) {
            seen.stay = Some(Stay { by, cycles: 0 });
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Cycles in a row that saw it.
    cycles: u32,
    stay: Option<Stay>,
}

impl Seen {
    fn again(self) -> Self {
        let later = |stay: Stay| Stay {
            cycles: stay.cycles.saturating_add(1),
            ..stay
        };
        Self {
            cycles: self.cycles.saturating_add(1),
            stay: self.stay.map(later),
        }
    }
}

/// The latest turn of an orphan that is there still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    /// What kept it.
    by: Skip,
    /// Cycles since then.
    cycles: u32,
}

/// Why an orphan stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Skip {
    /// `spec.paused` of its Proxy.
    Paused,
    /// Younger than orphans must be, or of unknown age.
    Young,
    /// Not seen in the cycle before.
    FirstSeen,
    /// A guard holds the whole cycle.
    Guarded,
    /// Not among those that somebody counted.
    NotApproved,
    /// Nothing is deleted in this mode.
    DryRun,
    /// Others go first, and it has not had a turn yet.
    Limit,
    /// Its tags name no Proxy that could be looked for.
    Nameless,
    /// A live look found that it is no orphan, or not any more.
    Claimed,
    /// It is not the instance that was listed, or its tags changed.
    Changed,
    /// It went, or is going, by another hand or since its turn.
    Going,
    /// The provider did not do its part.
    Refused,
    /// This process does not lead, or cannot be sure of it.
    NotLeading,
}

impl Skip {
    /// A short lower-case word, for metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Young => "young",
            Self::FirstSeen => "first-seen",
            Self::Guarded => "guarded",
            Self::NotApproved => "not-approved",
            Self::DryRun => "dry-run",
            Self::Limit => "limit",
            Self::Nameless => "nameless",
            Self::Claimed => "claimed",
            Self::Changed => "changed",
            Self::Going => "going",
            Self::Refused => "refused",
            Self::NotLeading => "not-leading",
        }
    }
}

/// What happens to an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Delete,
    Keep(Skip),
}

/// An instance that nobody claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) sighting: Sighting,
    pub(crate) why: Why,
    /// Cycles in a row in which it was one, this one included.
    pub(crate) cycles: u32,
    pub(crate) age: Option<Duration>,
    /// Its latest turn, if it had one.
    pub(crate) stay: Option<Stay>,
    pub(crate) verdict: Verdict,
}

impl Orphan {
    /// Whether it can be deleted in any cycle; somebody has to see to the others.
    pub(crate) fn may_go(&self) -> bool {
        !matches!(self.verdict, Verdict::Keep(Skip::Paused | Skip::Nameless))
    }

    /// Whether time alone brings its turn: it grows old enough, is seen again, or comes next.
    pub(crate) fn waits(&self) -> bool {
        match self.verdict {
            // An age that nobody tells does not grow.
            Verdict::Keep(Skip::Young) => self.sighting.instance.created.is_some(),
            Verdict::Keep(Skip::FirstSeen | Skip::Limit) => true,
            Verdict::Delete | Verdict::Keep(_) => false,
        }
    }
}

/// Of which providers a cycle found out how many orphans they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Of none, since the Proxies were not read.
    Nothing,
    /// Of all but these, which did not tell everything.
    AllBut(BTreeSet<Arc<str>>),
}

impl Default for Known {
    fn default() -> Self {
        Self::AllBut(BTreeSet::new())
    }
}

/// What a cycle comes to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decision {
    pub(crate) known: Known,
    /// Why nothing is deleted.
    pub(crate) guard: Option<Guard>,
    /// In the order of their turns, and at most [`MOST_PER_CYCLE`] to delete.
    pub(crate) orphans: Vec<Orphan>,
    /// For the reconciler.
    pub(crate) unclaimed: Vec<Sighting>,
    /// Instances listed, those that are being deleted included.
    pub(crate) listed: usize,
    /// Of these, how many are being deleted.
    pub(crate) deleting: usize,
    /// Of these, how many lie where not everything answered.
    pub(crate) unknown: usize,
    /// For the next cycle.
    pub(crate) memory: Memory,
}

/// Judges all that was seen.
pub(crate) fn decide(look: Look, memory: &Memory, rules: Rules<'_>) -> Decision {
    let silent = look.unreachable.keys().chain(&look.failed);
    let mut decision = Decision {
        known: Known::AllBut(silent.cloned().collect()),
        listed: look.sightings.len(),
        ..Decision::default()
    };
    let claims = match look.claims {
        Ok(claims) => claims,
        // Nothing is known of any instance, so none was seen as an orphan.
        Err(guard) => {
            decision.known = Known::Nothing;
            decision.unknown = decision.listed;
            decision.guard = Some(look.trouble.unwrap_or(guard));
            return decision;
        }
    };
    for sighting in look.sightings {
        let instance = &sighting.instance;
        let silent = look.unreachable.get(&sighting.provider);
        let zone = instance.zone.as_deref();
        if silent.is_some_and(|scopes| zone.is_some_and(|zone| scopes.contains(zone))) {
            decision.unknown += 1;
            continue;
        }
        if instance.deleting {
            decision.deleting += 1;
            continue;
        }
        let claim = claims.get(&sighting.owner.uid);
        match standing(&sighting, claim) {
            Standing::Claimed => {}
            Standing::Unclaimed => decision.unclaimed.push(sighting),
            Standing::Orphan(why) => {
                let life = sighting.life();
                let seen = memory.0.get(&life).copied().unwrap_or_default().again();
                let verdict = match never(&sighting.owner, claim) {
                    Some(skip) => Verdict::Keep(skip),
                    None => Verdict::Delete,
                };
                decision.memory.0.insert(life, seen);
                let age = instance
                    .created
                    .and_then(|created| Duration::try_from(look.now.duration_since(created)).ok());
                decision.orphans.push(Orphan {
                    sighting,
                    why,
                    cycles: seen.cycles,
                    age,
                    stay: seen.stay,
                    verdict,
                });
            }
        }
    }
    decision.guard = look
        .trouble
        .or_else(|| by_numbers(&decision, claims.len()))
        .filter(|guard| rules.approved.is_none() || !guard.yields_to_a_count());
    decision.orphans.sort_by(by_turn);
    let is_guarded = decision.guard.is_some();
    let mut room = MOST_PER_CYCLE;
    for orphan in decision.orphans.iter_mut().filter(|orphan| orphan.may_go()) {
        orphan.verdict = match skip(orphan, is_guarded, rules) {
            Some(skip) => Verdict::Keep(skip),
            None if room == 0 => Verdict::Keep(orphan.stay.map_or(Skip::Limit, |stay| stay.by)),
            None => {
                room -= 1;
                Verdict::Delete
            }
        };
    }
    decision
}

/// The oldest first. Who had a turn and stayed comes behind all others, and the one whose turn was
/// longest ago first of these: what cannot be deleted must not keep the younger ones.
fn by_turn(a: &Orphan, b: &Orphan) -> Ordering {
    let since = |orphan: &Orphan| orphan.stay.map_or(u32::MAX, |stay| stay.cycles);
    let by_age = || b.age.cmp(&a.age);
    let (a_id, b_id) = (&a.sighting.instance.id, &b.sighting.instance.id);
    let by_id = || a_id.as_str().cmp(b_id.as_str());
    let by_stay = since(b).cmp(&since(a));
    by_stay.then_with(by_age).then_with(by_id)
}

/// G-03, as far as it counts.
///
/// What is never deleted is no candidate: orphans that stay for ever must not keep all others.
fn by_numbers(decision: &Decision, proxies: usize) -> Option<Guard> {
    let candidates = decision.orphans.iter().filter(|orphan| orphan.may_go());
    let orphans = candidates.count();
    if proxies == 0 && decision.listed > 0 {
        return Some(Guard::NoProxies {
            instances: decision.listed,
        });
    }
    let limit = FEW.max(decision.listed / SHARE);
    (orphans > limit).then_some(Guard::TooMany { orphans, limit })
}

/// Why an orphan stays whatever the cycle, if it does; `claim` is that of its Proxy.
fn never(owner: &Owner, claim: Option<&Claim>) -> Option<Skip> {
    if claim.is_some_and(|claim| claim.paused) {
        return Some(Skip::Paused);
    }
    (owner.namespace.is_empty() || owner.proxy.is_empty()).then_some(Skip::Nameless)
}

fn skip(orphan: &Orphan, is_guarded: bool, rules: Rules<'_>) -> Option<Skip> {
    let is_approved = |approved: &HashSet<Life>| approved.contains(&orphan.sighting.life());
    let reasons = [
        (
            orphan.age.is_none_or(|age| age < rules.min_age),
            Skip::Young,
        ),
        (orphan.cycles < CYCLES, Skip::FirstSeen),
        (is_guarded, Skip::Guarded),
        (!rules.approved.is_none_or(is_approved), Skip::NotApproved),
        (!rules.deletes, Skip::DryRun),
    ];
    let holds = reasons.into_iter().find(|(holds, _)| *holds);
    holds.map(|(_, skip)| skip)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
