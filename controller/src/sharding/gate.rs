//! Between a worker and a key: whether this member may run it now, and what still runs.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use informer::ObjectKey;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ShardBy;
use super::handover::{Handover, Observed, Published};
use super::ring::{View, token_of};

/// Shared by the workers of a controller and the task that keeps the member's Lease.
pub(crate) struct Gate {
    by: ShardBy,
    state: Mutex<State>,
    /// Told when a run has ended that kept this member from having drained.
    changed: Notify,
}

struct State {
    handover: Handover,
    /// Number of runs of each token.
    running: HashMap<u64, usize>,
    /// Keys of this member that were asked for before they may run.
    parked: HashSet<ObjectKey>,
    /// What each object stood for when it was last seen, to place it after it is gone. Empty where
    /// the key alone places it.
    known: HashMap<ObjectKey, u64>,
    /// Until when others cannot take this member for gone; none before its first renewal.
    valid_until: Option<Instant>,
    /// Ends the runs of the time until the next fencing.
    fence: CancellationToken,
}

impl State {
    fn fence(&mut self) {
        self.handover.fence();
        self.valid_until = None;
        std::mem::take(&mut self.fence).cancel();
    }
}

/// What becomes of a key that a worker has taken.
pub(crate) enum Entry {
    /// It may run, while the pass is held and its token is not cancelled.
    Run(Pass),
    /// Another member runs it, or this one will when it may.
    NotNow,
}

/// A run that the gate has let in.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    token: u64,
    /// Cancelled when others may take this member for gone: the run must end at once.
    pub(crate) fence: CancellationToken,
}

impl Pass {
    /// The key needs no further run: what an object that is gone stood for is forgotten.
    pub(crate) fn settled(&self, key: &ObjectKey) {
        if self.gate.by.text(key).is_none() {
            self.gate.state().known.remove(key);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        if let Some(runs) = state.running.get_mut(&self.token) {
            *runs -= 1;
            if *runs == 0 {
                state.running.remove(&self.token);
            }
        }
        if !state.handover.may_run(self.token) {
            self.gate.changed.notify_one();
        }
    }
}

impl Gate {
    pub(crate) fn new(me: String, by: ShardBy) -> Arc<Self> {
        Arc::new(Self {
            by,
            state: Mutex::new(State {
                handover: Handover::new(me),
                running: HashMap::new(),
                parked: HashSet::new(),
                known: HashMap::new(),
                valid_until: None,
                fence: CancellationToken::new(),
            }),
            changed: Notify::new(),
        })
    }

    /// Every change is whole, so a panic elsewhere leaves the state usable.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a run of `key` now.
    pub(crate) fn enter(self: &Arc<Self>, key: &ObjectKey) -> Entry {
        // Not under the lock: it may read a cache.
        let text = self.by.text(key);
        let mut state = self.state();
        let token = match text {
            Some(text) => {
                let token = token_of(&text);
                if self.by.reads_objects() {
                    state.known.insert(key.clone(), token);
                }
                Some(token)
            }
            // An object that is gone stays where it was.
            None => state.known.get(key).copied(),
        };
        let Some(token) = token else {
            return Entry::NotNow;
        };
        if !state.handover.owns(token) {
            state.known.remove(key);
            return Entry::NotNow;
        }
        let valid = state
            .valid_until
            .is_some_and(|until| Instant::now() < until);
        if !valid || !state.handover.may_run(token) {
            state.parked.insert(key.clone());
            return Entry::NotNow;
        }
        *state.running.entry(token).or_default() += 1;
        Entry::Run(Pass {
            gate: Arc::clone(self),
            token,
            fence: state.fence.clone(),
        })
    }

    /// What this member has to publish, if anything new can be said.
    pub(super) fn drained_to(&self) -> Option<View> {
        let mut state = self.state();
        let lost = |token: &u64| !state.handover.may_run(*token);
        if !state.running.keys().any(lost) {
            state.handover.drained();
        }
        state.handover.drained_to().cloned()
    }

    /// Takes in what the live members have published; gives the keys that waited and may run now.
    pub(super) fn observe(&self, live: &Published) -> (Observed, Vec<ObjectKey>) {
        let mut state = self.state();
        let observed = state.handover.observe(live);
        let released = match observed {
            Observed::Agreed => state.parked.drain().collect(),
            Observed::Same | Observed::Changed => Vec::new(),
        };
        (observed, released)
    }

    /// A renewal that began early enough to be good until `until`.
    pub(super) fn renewed(&self, until: Instant) {
        let mut state = self.state();
        // Late news: meanwhile it may have been taken for gone.
        let lapsed = state
            .valid_until
            .is_some_and(|until| Instant::now() >= until);
        if lapsed {
            state.fence();
        }
        state.valid_until = Some(until);
    }

    /// When the member is fenced unless it is renewed before.
    pub(super) fn valid_until(&self) -> Option<Instant> {
        self.state().valid_until
    }

    /// Ends all runs and lets nothing in until all members agree again.
    pub(super) fn fence(&self) {
        self.state().fence();
    }

    /// Resolves when there may be something new to publish. Cancel-safe.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether nothing runs here.
    pub(super) fn is_idle(&self) -> bool {
        self.state().running.is_empty()
    }

    /// Whether everything this member owns may run.
    pub(super) fn is_agreed(&self) -> bool {
        self.state().handover.is_agreed()
    }

    /// The members of the ring as this one sees them.
    pub(super) fn members(&self) -> Vec<String> {
        self.state()
            .handover
            .view()
            .members
            .iter()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::By;
    use super::*;

    /// A gate for objects that exist while their keys are in the set.
    fn gate() -> (Arc<Gate>, Arc<Mutex<HashSet<ObjectKey>>>) {
        let objects = Arc::<Mutex<HashSet<ObjectKey>>>::default();
        let seen = Arc::clone(&objects);
        let text = move |key: &ObjectKey| {
            let seen = seen.lock().unwrap();
            seen.contains(key).then(|| format!("uid of {key}"))
        };
        let by = ShardBy(By::Object(Arc::new(text)));
        (Gate::new("a".to_owned(), by), objects)
    }

    /// The member is alone, renewed for 10 s, and has drained; gives what was released.
    fn agree(gate: &Gate) -> Vec<ObjectKey> {
        gate.renewed(Instant::now() + Duration::from_secs(10));
        let alone = |view| Published::from([("a".to_owned(), view)]);
        gate.observe(&alone(None));
        let drained = gate.drained_to();
        assert!(drained.is_some(), "nothing of others runs here");
        gate.observe(&alone(drained)).1
    }

    fn runs(gate: &Arc<Gate>, key: &ObjectKey) -> Option<Pass> {
        match gate.enter(key) {
            Entry::Run(pass) => Some(pass),
            Entry::NotNow => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn w74_a_key_asked_for_too_early_is_kept_until_it_may_run() {
        let (gate, objects) = gate();
        let key = ObjectKey::namespaced("ns", "x");
        objects.lock().unwrap().insert(key.clone());
        assert!(runs(&gate, &key).is_none(), "no ring yet");
        // The ring is seen, but not agreed upon.
        gate.renewed(Instant::now() + Duration::from_secs(10));
        gate.observe(&Published::from([("a".to_owned(), None)]));
        assert!(runs(&gate, &key).is_none());
        assert_eq!(agree(&gate), std::slice::from_ref(&key));
        assert!(runs(&gate, &key).is_some());
        assert!(gate.is_idle(), "its pass is dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn w74_keys_that_place_themselves_leave_nothing_behind() {
        for by in [ShardBy::key(), ShardBy::namespace()] {
            let gate = Gate::new("a".to_owned(), by);
            // Renewed, and not agreed: everything owned is parked.
            gate.renewed(Instant::now() + Duration::from_secs(10));
            gate.observe(&Published::from([("a".to_owned(), None)]));
            let keys: Vec<_> = (0..100)
                .map(|n| ObjectKey::namespaced("ns", n.to_string()))
                .collect();
            for key in &keys {
                assert!(runs(&gate, key).is_none());
            }
            assert_eq!(gate.state().parked.len(), 100);
            assert_eq!(agree(&gate).len(), 100);
            for key in &keys {
                let pass = runs(&gate, key).expect("agreed");
                pass.settled(key);
            }
            let state = gate.state();
            assert!(state.known.is_empty() && state.parked.is_empty() && state.running.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn w74_an_object_that_is_gone_keeps_its_place_until_its_last_run_is_done() {
        let (gate, objects) = gate();
        let key = ObjectKey::namespaced("ns", "x");
        objects.lock().unwrap().insert(key.clone());
        agree(&gate);
        drop(runs(&gate, &key).unwrap());
        objects.lock().unwrap().clear();
        drop(runs(&gate, &key).expect("the deletion"));
        let retried = runs(&gate, &key).expect("the deletion once more, if it failed");
        retried.settled(&key);
        drop(retried);
        assert!(
            runs(&gate, &key).is_none(),
            "nothing is known of it any more"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn w74_a_renewal_that_comes_too_late_ends_what_runs() {
        let (gate, objects) = gate();
        let key = ObjectKey::namespaced("ns", "x");
        objects.lock().unwrap().insert(key.clone());
        agree(&gate);
        let pass = runs(&gate, &key).unwrap();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(runs(&gate, &key).is_none(), "others may take it for gone");
        assert!(!pass.fence.is_cancelled());
        gate.renewed(Instant::now() + Duration::from_secs(10));
        assert!(pass.fence.is_cancelled());
        assert!(!gate.is_agreed());
        drop(pass);
        assert_eq!(agree(&gate), std::slice::from_ref(&key));
        assert!(runs(&gate, &key).is_some());
    }
}
