//! S-09: a provider that refused for quota or stock is asked by one Proxy at a time.
//!
//! One circuit for each provider and zone:
//!
//! ```text
//!            refused                    wait over: one create tries
//!   closed ──────────▶ open ──────────────────────────────────────▶ trying
//!     ▲                 ▲ ▲───────────────── refused ─────────────────┘ │
//!     │                 └──── refused ────┐                             │ it worked
//!     └── 64 in a row worked ── slow start: 1, 2, 4, … creates ◀────────┘
//! ```
//!
//! A create that the provider only accepted has not worked yet: its operation may still fail for
//! quota or stock. In a circuit that is not closed it counts when its instance runs, or fails to. A try
//! or a slow start that hears nothing for a retry time lets one create go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller::ObjectKey;
use tokio::time::Instant;

/// What shares a quota: a provider and one of its zones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) provider: String,
    pub(crate) zone: Option<String>,
}

/// Wait of a Proxy that finds others at work in its circuit.
const TURN: Duration = Duration::from_secs(2);

/// The same while what those others began comes up.
const COMING_UP: Duration = Duration::from_secs(10);

/// A slow start is over once so many creates at a time worked.
const ENOUGH: u32 = 64;

/// The state of one circuit; closed ones are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Refused: nobody asks before `until`.
    Open { until: Instant },
    /// One create is on its way since then.
    Trying { since: Instant },
    /// So many creates may go at once; they are counted as they begin and as they work. The last
    /// that was let through began at `since`.
    SlowStart {
        window: u32,
        begun: u32,
        worked: u32,
        since: Instant,
    },
}

/// What is done at a provider and zone that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CircuitState {
    /// Nobody asks.
    Open,
    /// One Proxy tries.
    Trying,
    /// More and more Proxies go.
    SlowStart,
}

impl CircuitState {
    pub(crate) const ALL: [Self; 3] = [Self::Open, Self::Trying, Self::SlowStart];

    /// The state as metrics spell it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Trying => "trying",
            Self::SlowStart => "slow_start",
        }
    }
}

/// How a create that a circuit let through came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Worked,
    Refused,
    /// It says nothing about quota.
    Unknown,
}

impl State {
    /// The state after a create was let through, or how long to wait.
    fn admit(self, now: Instant, retry: Duration) -> Result<Self, Duration> {
        match self {
            Self::Open { until } if now < until => Err(until - now),
            Self::Open { .. } => Ok(Self::Trying { since: now }),
            // Whoever tried went away without a word, or its instance takes long to come up.
            Self::Trying { since } if now.duration_since(since) >= retry => {
                Ok(Self::Trying { since: now })
            }
            Self::Trying { .. } => Err(TURN),
            Self::SlowStart {
                window,
                begun,
                worked,
                ..
            } if begun < window => Ok(Self::SlowStart {
                window,
                begun: begun + 1,
                worked,
                since: now,
            }),
            // None of those tells how it ended: the start is made anew, with one.
            Self::SlowStart { since, .. } if now.duration_since(since) >= retry => {
                Ok(Self::SlowStart {
                    window: 1,
                    begun: 1,
                    worked: 0,
                    since: now,
                })
            }
            Self::SlowStart { .. } => Err(TURN),
        }
    }

    /// The state after a create came out; `None` closes the circuit.
    fn settle(
        state: Option<Self>,
        outcome: Outcome,
        now: Instant,
        retry: Duration,
    ) -> Option<Self> {
        let open = Some(Self::Open { until: now + retry });
        match (state, outcome) {
            (_, Outcome::Refused) => open,
            // The try said nothing, and only one is due per retry time.
            (Some(Self::Trying { .. }), Outcome::Unknown) => open,
            (Some(Self::Trying { .. }), Outcome::Worked) => Some(Self::SlowStart {
                window: 1,
                begun: 0,
                worked: 0,
                since: now,
            }),
            (
                Some(Self::SlowStart {
                    window,
                    begun,
                    worked,
                    since,
                }),
                Outcome::Worked,
            ) => match worked + 1 {
                worked if worked < window => Some(Self::SlowStart {
                    window,
                    begun,
                    worked,
                    since,
                }),
                _ if window >= ENOUGH => None,
                _ => Some(Self::SlowStart {
                    window: window * 2,
                    begun: 0,
                    worked: 0,
                    since: now,
                }),
            },
            (
                Some(Self::SlowStart {
                    window,
                    begun,
                    worked,
                    since,
                }),
                Outcome::Unknown,
            ) => Some(Self::SlowStart {
                window,
                begun: begun.saturating_sub(1),
                worked,
                since,
            }),
            // A create from before the refusal: it had its room, which says nothing of now.
            (state @ (None | Some(Self::Open { .. })), _) => state,
        }
    }
}

/// All circuits; closed ones take no memory. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Circuits {
    retry: Duration,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Circuits that are not closed.
    states: HashMap<Scope, State>,
    /// Creates that circuits trying or in slow start let through and that were accepted, by their
    /// Proxies: at most as many as a slow start lets through.
    coming_up: HashMap<ObjectKey, Scope>,
}

impl Inner {
    fn is_coming_up(&self, scope: &Scope, key: &ObjectKey) -> bool {
        self.coming_up.get(key) == Some(scope)
    }

    /// The state after a create of that Proxy was let through, where the circuit is not closed; or
    /// how long it has to wait.
    fn admit(
        &self,
        scope: &Scope,
        key: &ObjectKey,
        retry: Duration,
    ) -> Result<Option<State>, Duration> {
        let Some(state) = self.states.get(scope).copied() else {
            return Ok(None);
        };
        if self.is_coming_up(scope, key) {
            return Ok(Some(state));
        }
        match state.admit(Instant::now(), retry) {
            Err(wait) if wait == TURN && self.coming_up.values().any(|of| of == scope) => {
                Err(COMING_UP)
            }
            answer => answer.map(Some),
        }
    }

    /// Settles the create of that Proxy that was accepted and has not come up, if there is one that
    /// `is` meant.
    fn settle_late(
        &mut self,
        key: &ObjectKey,
        outcome: Outcome,
        retry: Duration,
        is: impl FnOnce(&Scope) -> bool,
    ) {
        if !self.coming_up.get(key).is_some_and(is) {
            return;
        }
        let Some(scope) = self.coming_up.remove(key) else {
            return;
        };
        // A later try is on its way there, whose word counts.
        let is_old = outcome == Outcome::Unknown
            && matches!(self.states.get(&scope), Some(State::Trying { .. }))
            && self.coming_up.values().any(|of| *of == scope);
        if !is_old {
            self.settle(scope, outcome, retry);
        }
    }

    fn settle(&mut self, scope: Scope, outcome: Outcome, retry: Duration) {
        let state = self.states.get(&scope).copied();
        let next = State::settle(state, outcome, Instant::now(), retry);
        if next.is_none_or(|next| matches!(next, State::Open { .. })) {
            // What was accepted before that says nothing of what comes now.
            self.coming_up.retain(|_, of| *of != scope);
        }
        match next {
            Some(state) => self.states.insert(scope, state),
            None => self.states.remove(&scope),
        };
    }
}

impl Circuits {
    /// Circuits that try again after `retry`.
    pub(crate) fn new(retry: Duration) -> Self {
        Self {
            retry,
            inner: Arc::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each change is of one map at a time: a panic in between leaves at most an entry too many.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a create of that Proxy in this scope would have to wait now; `None` if it may go.
    pub(crate) fn wait(&self, scope: &Scope, key: &ObjectKey) -> Option<Duration> {
        let inner = self.inner();
        inner.admit(scope, key, self.retry).err()
    }

    /// Lets a create of that Proxy through, or says how long it has to wait.
    ///
    /// One whose create was accepted already, and which could not note it down, goes on with it; one
    /// that was accepted elsewhere has left there.
    pub(crate) fn admit(&self, scope: Scope, key: &ObjectKey) -> Result<Permit, Duration> {
        let mut inner = self.inner();
        inner.settle_late(key, Outcome::Unknown, self.retry, |of| *of != scope);
        let goes_on = inner.is_coming_up(&scope, key);
        if let Some(state) = inner.admit(&scope, key, self.retry)? {
            inner.states.insert(scope.clone(), state);
        }
        Ok(Permit {
            circuits: self.clone(),
            scope,
            key: key.clone(),
            outcome: (!goes_on).then_some(Outcome::Unknown),
        })
    }

    /// The instance of that Proxy runs, which settles its create if that is still open.
    pub(crate) fn came_up(&self, key: &ObjectKey) {
        self.settle_late(key, Outcome::Worked);
    }

    /// Nothing becomes of the create of that Proxy, or nobody looks any more.
    pub(crate) fn came_to_nothing(&self, key: &ObjectKey) {
        self.settle_late(key, Outcome::Unknown);
    }

    fn settle_late(&self, key: &ObjectKey, outcome: Outcome) {
        self.inner().settle_late(key, outcome, self.retry, |_| true);
    }

    fn accepted(&self, scope: Scope, key: &ObjectKey) {
        let mut inner = self.inner();
        // Else nobody waits for it, or it was let through before the refusal.
        if let Some(State::Trying { .. } | State::SlowStart { .. }) = inner.states.get(&scope) {
            inner.coming_up.insert(key.clone(), scope);
        }
    }

    /// Says that the provider refused for quota or stock in another way than by a create's answer.
    pub(crate) fn refused(&self, scope: Scope) {
        self.inner().settle(scope, Outcome::Refused, self.retry);
    }

    /// The circuits that are not closed: whose they are, and what is done there now.
    pub(crate) fn all(&self) -> Vec<(String, CircuitState)> {
        let inner = self.inner();
        let state = |(scope, state): (&Scope, &State)| {
            let state = match state {
                State::Open { .. } => CircuitState::Open,
                State::Trying { .. } => CircuitState::Trying,
                State::SlowStart { .. } => CircuitState::SlowStart,
            };
            (scope.provider.clone(), state)
        };
        inner.states.iter().map(state).collect()
    }

    /// Number of circuits that are not closed.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.inner().states.len()
    }
}

/// A create on its way; dropped without a word it says nothing about quota.
#[derive(Debug)]
pub(crate) struct Permit {
    circuits: Circuits,
    scope: Scope,
    key: ObjectKey,
    /// `None` if it is settled elsewhere.
    outcome: Option<Outcome>,
}

impl Permit {
    /// The provider made the instance.
    pub(crate) fn worked(mut self) {
        self.outcome = Some(Outcome::Worked);
    }

    /// The provider accepted the create, and how it ends is not known yet.
    pub(crate) fn accepted(mut self) {
        self.outcome = None;
        self.circuits.accepted(self.scope.clone(), &self.key);
    }

    /// The provider refused, for good and not for quota or stock: no instance comes of it, nor of
    /// what it accepted before.
    pub(crate) fn came_to_nothing(mut self) {
        self.outcome = Some(Outcome::Unknown);
    }

    /// The provider refused for quota or stock.
    pub(crate) fn refused(mut self) {
        self.outcome = Some(Outcome::Refused);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome {
            let mut inner = self.circuits.inner();
            if inner.is_coming_up(&self.scope, &self.key) {
                inner.coming_up.remove(&self.key);
            }
            inner.settle(self.scope.clone(), outcome, self.circuits.retry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_secs(600);

    fn scope() -> Scope {
        Scope {
            provider: "gce".to_owned(),
            zone: Some("z".to_owned()),
        }
    }

    fn key(n: u32) -> ObjectKey {
        ObjectKey::namespaced("crawl", format!("p{n}"))
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn s09_after_a_refusal_one_create_per_retry_time_tests_the_water() {
        let circuits = Circuits::new(RETRY);
        for round in 0..3 {
            circuits
                .admit(scope(), &key(9))
                .expect("one may try")
                .refused();
            assert_eq!(
                circuits.wait(&scope(), &key(9)),
                Some(RETRY),
                "round {round}"
            );
            pass(599).await;
            assert!(circuits.admit(scope(), &key(9)).is_err());
            pass(1).await;
        }
        let one = circuits.admit(scope(), &key(9)).expect("its time has come");
        assert_eq!(
            circuits.admit(scope(), &key(9)).expect_err("one at a time"),
            TURN
        );
        drop(one);
        assert_eq!(
            circuits.wait(&scope(), &key(9)),
            Some(RETRY),
            "an answer without meaning is a try all the same"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn s09_the_first_success_reopens_with_one_two_four_creates() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        pass(600).await;
        circuits.admit(scope(), &key(9)).expect("due").worked();
        for window in [1, 2, 4, 8, 16, 32, 64] {
            let begun: Vec<_> = (0..window)
                .map(|_| circuits.admit(scope(), &key(9)).expect("within the window"))
                .collect();
            assert_eq!(
                circuits.wait(&scope(), &key(9)),
                Some(TURN),
                "window {window}"
            );
            begun.into_iter().for_each(Permit::worked);
        }
        assert_eq!(circuits.open(), 0, "closed again, and forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn s09_a_refusal_in_the_slow_start_opens_again() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        pass(600).await;
        circuits.admit(scope(), &key(9)).expect("due").worked();
        let early = circuits.admit(scope(), &key(9)).expect("one");
        circuits.refused(scope());
        early.worked();
        assert_eq!(
            circuits.wait(&scope(), &key(9)),
            Some(RETRY),
            "an old success counts no more"
        );
    }

    /// Circuits that let one create through after a refusal, which was accepted.
    async fn one_coming_up() -> Circuits {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        pass(600).await;
        circuits.admit(scope(), &key(0)).expect("due").accepted();
        circuits
    }

    #[tokio::test(start_paused = true)]
    async fn s09_a_create_that_was_only_accepted_keeps_the_others_waiting_until_it_runs() {
        let circuits = one_coming_up().await;
        circuits.came_up(&key(1));
        assert_eq!(
            circuits.wait(&scope(), &key(9)),
            Some(COMING_UP),
            "another's"
        );
        assert_eq!(circuits.wait(&scope(), &key(0)), None, "its own");
        drop(circuits.admit(scope(), &key(0)).expect("its own"));
        assert_eq!(circuits.wait(&scope(), &key(9)), Some(COMING_UP), "no news");
        circuits.came_up(&key(0));
        for window in [1, 2, 4] {
            for n in 0..window {
                let permit = circuits.admit(scope(), &key(n));
                permit.expect("within the window").accepted();
            }
            assert_eq!(
                circuits.wait(&scope(), &key(9)),
                Some(COMING_UP),
                "window {window}"
            );
            (0..window).for_each(|n| circuits.came_up(&key(n)));
        }
        circuits.came_up(&key(0));
        assert_eq!(circuits.wait(&scope(), &key(9)), None, "each counts once");
    }

    #[tokio::test(start_paused = true)]
    async fn s09_an_accepted_create_that_fails_opens_again_and_what_came_before_counts_no_more() {
        let circuits = one_coming_up().await;
        circuits.refused(scope());
        assert_eq!(circuits.wait(&scope(), &key(9)), Some(RETRY));
        pass(600).await;
        circuits.admit(scope(), &key(1)).expect("due").accepted();
        circuits.came_up(&key(0));
        assert_eq!(
            circuits.wait(&scope(), &key(9)),
            Some(COMING_UP),
            "an old one"
        );
        circuits.came_to_nothing(&key(1));
        assert_eq!(
            circuits.wait(&scope(), &key(9)),
            Some(RETRY),
            "its try is over"
        );
        assert!(circuits.inner().coming_up.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn s09_an_accepted_create_that_nobody_settles_holds_nobody_up_for_ever() {
        let circuits = one_coming_up().await;
        pass(600).await;
        assert_eq!(circuits.wait(&scope(), &key(9)), None, "another may try");
        circuits.came_up(&key(0));
        circuits.admit(scope(), &key(1)).expect("one").accepted();
        assert_eq!(circuits.wait(&scope(), &key(9)), Some(COMING_UP));
        circuits.came_to_nothing(&key(1));
        assert_eq!(
            circuits.wait(&scope(), &key(9)),
            None,
            "its place is free again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn s09_a_slow_start_of_which_nobody_tells_begins_anew() {
        let circuits = one_coming_up().await;
        circuits.came_up(&key(0));
        circuits.admit(scope(), &key(1)).expect("one").accepted();
        pass(599).await;
        assert_eq!(circuits.wait(&scope(), &key(9)), Some(COMING_UP));
        pass(1).await;
        circuits.admit(scope(), &key(2)).expect("anew").accepted();
        assert_eq!(
            circuits.wait(&scope(), &key(9)),
            Some(COMING_UP),
            "one at a time"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn s09_a_proxy_that_goes_elsewhere_gives_its_place_back() {
        let other = || Scope {
            zone: Some("y".to_owned()),
            ..scope()
        };
        // What becomes of the create elsewhere, where nothing or a try or a slow start may be on.
        for elsewhere in ["closed", "trying", "slow start"] {
            for outcome in ["accepted", "worked", "refused", "unknown"] {
                let circuits = one_coming_up().await;
                circuits.came_up(&key(0));
                circuits.admit(scope(), &key(1)).expect("one").accepted();
                if elsewhere != "closed" {
                    circuits.refused(other());
                    let State::Open { until } = circuits.inner().states[&other()] else {
                        unreachable!("refused just now");
                    };
                    let due = State::Open {
                        until: until.checked_sub(RETRY).expect("of just now"),
                    };
                    circuits.inner().states.insert(other(), due);
                }
                if elsewhere == "slow start" {
                    circuits.admit(other(), &key(8)).expect("due").worked();
                }
                let permit = circuits.admit(other(), &key(1)).expect("may go");
                match outcome {
                    "accepted" => permit.accepted(),
                    "worked" => permit.worked(),
                    "refused" => permit.refused(),
                    _ => drop(permit),
                }
                assert_eq!(
                    circuits.wait(&scope(), &key(9)),
                    None,
                    "{outcome} elsewhere, {elsewhere} there"
                );
                circuits.admit(scope(), &key(2)).expect("one").accepted();
                circuits.came_up(&key(1));
                assert_eq!(
                    circuits.wait(&scope(), &key(9)),
                    Some(COMING_UP),
                    "it runs elsewhere, {outcome}, {elsewhere}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn s09_what_was_accepted_and_is_refused_for_good_at_the_next_try_gives_its_place_back() {
        let circuits = one_coming_up().await;
        circuits.came_up(&key(0));
        circuits.admit(scope(), &key(1)).expect("one").accepted();
        let again = circuits.admit(scope(), &key(1)).expect("its own");
        again.came_to_nothing();
        assert_eq!(circuits.wait(&scope(), &key(9)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn s09_an_old_try_that_comes_to_nothing_leaves_the_newer_one_alone() {
        let circuits = one_coming_up().await;
        pass(600).await;
        circuits.admit(scope(), &key(1)).expect("due").accepted();
        circuits.came_to_nothing(&key(0));
        assert_eq!(circuits.wait(&scope(), &key(9)), Some(COMING_UP));
        circuits.came_up(&key(1));
        assert_eq!(circuits.wait(&scope(), &key(9)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn s09_scopes_do_not_touch_each_other() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        let other = Scope {
            zone: Some("y".to_owned()),
            ..scope()
        };
        assert_eq!(circuits.wait(&other, &key(9)), None);
        circuits.admit(other, &key(9)).expect("free").worked();
        assert_eq!(circuits.open(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_transient_error_in_the_slow_start_gives_its_place_back() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        pass(600).await;
        circuits.admit(scope(), &key(9)).expect("due").worked();
        drop(circuits.admit(scope(), &key(9)).expect("one"));
        assert_eq!(circuits.wait(&scope(), &key(9)), None);
    }
}
