//! Faults on demand: what a network, a proxy or a struggling API server does to its clients.
//!
//! A [`Rule`] says which requests it is about, when it strikes and what then happens. Rules work on
//! requests and answers alone, so the same ones serve the embedded cluster
//! ([`DevCluster::faults`](crate::DevCluster::faults)) and, through a [`FaultProxy`], any other API server.
//!
//! ```
//! # async fn example() -> Result<(), devcluster::Error> {
//! use devcluster::faults::{Action, Rule};
//!
//! let cluster = devcluster::DevCluster::builder().start().await?;
//! let throttled = cluster.faults().add(
//!     Rule::new(Action::status(429, "TooManyRequests").retry_after(1)).verb("list").resource("pods").at_most(2),
//! );
//! // … the first two lists of pods are refused …
//! assert_eq!(throttled.hits(), 0);
//! drop(throttled); // the rule is gone
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! - Of the rules that match a request the first one added strikes, alone.
//! - A rule with a [`WatchAction`] strikes watches that are open when it is added as well as new ones.
//! - Without rules nothing is touched: bytes pass as they come.
//! - No action changes the order of events or repeats one.

mod action;
mod engine;
mod proxy;
mod rule;
mod stream;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use tokio::{sync::watch, time::Instant};

pub use action::{Action, Cut, Failure, WatchAction};
pub use proxy::FaultProxy;
pub use rule::Rule;

pub(crate) use engine::Away;
pub(crate) use rule::Target;

/// The rules of one server. Cheap to clone; clones share the rules.
#[derive(Clone, Debug)]
pub struct Faults {
    rules: Arc<Mutex<Rules>>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Rules {
    entries: Vec<Arc<Entry>>,
    /// Rules that were ever added.
    added: u64,
}

/// A rule with what it has seen.
#[derive(Debug)]
struct Entry {
    /// Its place in the order of additions, from 1.
    number: u64,
    rule: Rule,
    added: Instant,
    seen: AtomicU64,
    hits: AtomicU64,
    dice: Mutex<SmallRng>,
}

/// One strike of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    entry: Arc<Entry>,
    /// How often the rule had struck before.
    before: u64,
}

impl Hit {
    fn action(&self) -> &Action {
        &self.entry.rule.action
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rules: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Faults {
    /// Adds a rule; it holds until the guard is dropped.
    pub fn add(&self, rule: Rule) -> FaultGuard {
        let dice = Mutex::new(SmallRng::seed_from_u64(rule.seed));
        let mut rules = self.rules.lock();
        rules.added += 1;
        let entry = Arc::new(Entry {
            number: rules.added,
            rule,
            added: Instant::now(),
            seen: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            dice,
        });
        rules.entries.push(Arc::clone(&entry));
        drop(rules);
        self.changed.send_modify(|version| *version += 1);
        FaultGuard {
            faults: self.clone(),
            entry,
        }
    }

    /// The first rule that strikes a request, and how many rules have been added so far.
    fn strike(&self, target: &Target) -> (Option<Hit>, u64) {
        let rules = self.rules.lock();
        (rules.strike(target, |_| true), rules.added)
    }

    /// The first rule added after the first `known` ones that strikes an open watch. `known` moves on, so that a
    /// rule counts every watch once.
    fn strike_open(&self, target: &Target, known: &mut u64) -> Option<Hit> {
        let rules = self.rules.lock();
        let before = std::mem::replace(known, rules.added);
        rules.strike(target, |entry| {
            entry.number > before && matches!(entry.rule.action, Action::Watch(_))
        })
    }

    fn holds(&self, hit: &Hit) -> bool {
        let rules = self.rules.lock();
        let mut entries = rules.entries.iter();
        entries.any(|entry| Arc::ptr_eq(entry, &hit.entry))
    }

    /// Waits until the rule of a strike is removed.
    async fn removed(&self, hit: &Hit) {
        let mut changed = self.changed.subscribe();
        while self.holds(hit) {
            // The sender lives in this handle.
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Rules {
    fn strike(&self, target: &Target, wanted: impl Fn(&Entry) -> bool) -> Option<Hit> {
        self.entries
            .iter()
            .filter(|entry| wanted(entry) && entry.rule.matches(target))
            .find_map(|entry| entry.strike())
    }
}

impl Entry {
    /// Counts a matching request; tells whether the rule strikes it.
    fn strike(self: &Arc<Self>) -> Option<Hit> {
        let rule = &self.rule;
        if !rule.window.contains(&self.added.elapsed()) {
            return None;
        }
        let number = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let due = rule.nth.is_none_or(|nth| nth == number)
            && rule.every.is_none_or(|every| number.is_multiple_of(every))
            && rule
                .probability
                .is_none_or(|probability| self.dice.lock().random::<f64>() < probability);
        if !due {
            return None;
        }
        let limit = rule.at_most.unwrap_or(u64::MAX);
        let counted = |hits: u64| (hits < limit).then_some(hits + 1);
        let before = self
            .hits
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted)
            .ok()?;
        Some(Hit {
            entry: Arc::clone(self),
            before,
        })
    }
}

/// Keeps a rule in force; dropping it removes the rule.
#[derive(Debug)]
#[must_use = "a dropped guard removes its rule"]
pub struct FaultGuard {
    faults: Faults,
    entry: Arc<Entry>,
}

impl FaultGuard {
    /// How often the rule has struck.
    pub fn hits(&self) -> u64 {
        self.entry.hits.load(Ordering::Relaxed)
    }

    /// How many requests and open watches the rule was about, whether it struck or not.
    pub fn seen(&self) -> u64 {
        self.entry.seen.load(Ordering::Relaxed)
    }

    /// Waits until the rule has struck that often. Cancel-safe.
    ///
    /// Real time passes meanwhile in steps of a millisecond.
    pub async fn struck(&self, times: u64) {
        while self.hits() < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        self.faults
            .rules
            .lock()
            .entries
            .retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        self.faults.changed.send_modify(|version| *version += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str) -> Target {
        let request = http::Request::get(uri)
            .header("user-agent", "test/1")
            .body(())
            .unwrap();
        Target::of(&request)
    }

    fn struck(rule: Rule, requests: usize) -> Vec<usize> {
        let faults = Faults::default();
        let _guard = faults.add(rule);
        let pods = target("/api/v1/namespaces/n/pods");
        (1..=requests)
            .filter(|_| faults.strike(&pods).0.is_some())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn rules_strike_by_number_limit_chance_and_time() {
        let rule = || Rule::new(Action::ResetBefore).verb("list");
        assert_eq!(struck(rule(), 3), [1, 2, 3]);
        assert_eq!(struck(rule().nth(2), 4), [2]);
        assert_eq!(struck(rule().every(2), 5), [2, 4]);
        assert_eq!(struck(rule().at_most(1), 3), [1]);
        assert_eq!(struck(rule().every(2).at_most(1), 5), [2]);
        assert_eq!(struck(rule().probability(0.0, 1), 20), [0; 0]);
        let some = struck(rule().probability(0.5, 7), 100);
        assert_eq!(
            some,
            struck(rule().probability(0.5, 7), 100),
            "a seed repeats"
        );
        assert!((30..70).contains(&some.len()), "{}", some.len());

        let faults = Faults::default();
        let from = Duration::from_secs(5);
        let guard = faults.add(rule().between(from, from * 2));
        let pods = target("/api/v1/pods");
        let mut strikes = Vec::new();
        for _ in 0..4 {
            strikes.push(faults.strike(&pods).0.is_some());
            tokio::time::advance(Duration::from_secs(4)).await;
        }
        assert_eq!(strikes, [false, false, true, false]);
        assert_eq!((guard.hits(), guard.seen()), (1, 1));
        drop(guard);
        assert!(faults.rules.lock().entries.is_empty());
    }

    #[test]
    fn the_first_rule_added_strikes_alone() {
        let faults = Faults::default();
        let first = faults.add(Rule::new(Action::ResetBefore).resource("pods").at_most(1));
        let second = faults.add(Rule::new(Action::ResetAfter));
        let pods = target("/api/v1/pods");
        let struck: Vec<_> = (0..2)
            .map(|_| faults.strike(&pods).0.unwrap().action().clone())
            .collect();
        assert!(matches!(
            struck[..],
            [Action::ResetBefore, Action::ResetAfter]
        ));
        assert_eq!((first.hits(), second.hits()), (1, 1));
    }
}
