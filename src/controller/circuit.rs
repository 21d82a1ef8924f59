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

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What shares a quota: a provider and one of its zones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) provider: String,
    pub(crate) zone: Option<String>,
}

/// Wait of a Proxy that finds others at work in its circuit.
const TURN: Duration = Duration::from_secs(2);

/// A slow start is over once so many creates at a time worked.
const ENOUGH: u32 = 64;

/// The state of one circuit; closed ones are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Refused: nobody asks before `until`.
    Open { until: Instant },
    /// One create is on its way since then.
    Trying { since: Instant },
    /// So many creates may go at once; they are counted as they begin and as they work.
    SlowStart {
        window: u32,
        begun: u32,
        worked: u32,
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
            // Whoever tried went away without a word; provider calls end long before this.
            Self::Trying { since } if now.duration_since(since) >= retry => {
                Ok(Self::Trying { since: now })
            }
            Self::Trying { .. } => Err(TURN),
            Self::SlowStart { window, begun, .. } if begun >= window => Err(TURN),
            Self::SlowStart {
                window,
                begun,
                worked,
            } => Ok(Self::SlowStart {
                window,
                begun: begun + 1,
                worked,
            }),
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
            }),
            (
                Some(Self::SlowStart {
                    window,
                    begun,
                    worked,
                }),
                Outcome::Worked,
            ) => match worked + 1 {
                worked if worked < window => Some(Self::SlowStart {
                    window,
                    begun,
                    worked,
                }),
                _ if window >= ENOUGH => None,
                _ => Some(Self::SlowStart {
                    window: window * 2,
                    begun: 0,
                    worked: 0,
                }),
            },
            (
                Some(Self::SlowStart {
                    window,
                    begun,
                    worked,
                }),
                Outcome::Unknown,
            ) => Some(Self::SlowStart {
                window,
                begun: begun.saturating_sub(1),
                worked,
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
    states: Arc<Mutex<HashMap<Scope, State>>>,
}

impl Circuits {
    /// Circuits that try again after `retry`.
    pub(crate) fn new(retry: Duration) -> Self {
        Self {
            retry,
            states: Arc::default(),
        }
    }

    fn states(&self) -> MutexGuard<'_, HashMap<Scope, State>> {
        // Each change is one insert or remove: a panic in between leaves nothing half done.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a create in this scope would have to wait now; `None` if it may go.
    pub(crate) fn wait(&self, scope: &Scope) -> Option<Duration> {
        let now = Instant::now();
        let state = self.states().get(scope).copied()?;
        state.admit(now, self.retry).err()
    }

    /// Lets a create through, or says how long it has to wait.
    pub(crate) fn admit(&self, scope: Scope) -> Result<Permit, Duration> {
        let now = Instant::now();
        {
            let mut states = self.states();
            if let Some(state) = states.get_mut(&scope) {
                *state = state.admit(now, self.retry)?;
            }
        }
        Ok(Permit {
            circuits: self.clone(),
            scope,
            outcome: Outcome::Unknown,
        })
    }

    /// Says that the provider refused for quota or stock in another way than by a create's answer.
    pub(crate) fn refused(&self, scope: Scope) {
        self.settle(scope, Outcome::Refused);
    }

    fn settle(&self, scope: Scope, outcome: Outcome) {
        let now = Instant::now();
        let mut states = self.states();
        match State::settle(states.get(&scope).copied(), outcome, now, self.retry) {
            Some(state) => {
                states.insert(scope, state);
            }
            None => {
                states.remove(&scope);
            }
        }
    }

    /// The circuits that are not closed: whose they are, and what is done there now.
    pub(crate) fn all(&self) -> Vec<(String, CircuitState)> {
        let states = self.states();
        let state = |(scope, state): (&Scope, &State)| {
            let state = match state {
                State::Open { .. } => CircuitState::Open,
                State::Trying { .. } => CircuitState::Trying,
                State::SlowStart { .. } => CircuitState::SlowStart,
            };
            (scope.provider.clone(), state)
        };
        states.iter().map(state).collect()
    }

    /// Number of circuits that are not closed.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.states().len()
    }
}

/// A create on its way; dropped without a word it says nothing about quota.
#[derive(Debug)]
pub(crate) struct Permit {
    circuits: Circuits,
    scope: Scope,
    outcome: Outcome,
}

impl Permit {
    /// The provider made the instance.
    pub(crate) fn worked(mut self) {
        self.outcome = Outcome::Worked;
    }

    /// The provider refused for quota or stock.
    pub(crate) fn refused(mut self) {
        self.outcome = Outcome::Refused;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.circuits.settle(self.scope.clone(), self.outcome);
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

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn s09_after_a_refusal_one_create_per_retry_time_tests_the_water() {
        let circuits = Circuits::new(RETRY);
        for round in 0..3 {
            circuits.admit(scope()).expect("one may try").refused();
            assert_eq!(circuits.wait(&scope()), Some(RETRY), "round {round}");
            pass(599).await;
            assert!(circuits.admit(scope()).is_err());
            pass(1).await;
        }
        let one = circuits.admit(scope()).expect("its time has come");
        assert_eq!(circuits.admit(scope()).expect_err("one at a time"), TURN);
        drop(one);
        assert_eq!(
            circuits.wait(&scope()),
            Some(RETRY),
            "an answer without meaning is a try all the same"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn s09_the_first_success_reopens_with_one_two_four_creates() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        pass(600).await;
        circuits.admit(scope()).expect("due").worked();
        for window in [1, 2, 4, 8, 16, 32, 64] {
            let begun: Vec<_> = (0..window)
                .map(|_| circuits.admit(scope()).expect("within the window"))
                .collect();
            assert_eq!(circuits.wait(&scope()), Some(TURN), "window {window}");
            begun.into_iter().for_each(Permit::worked);
        }
        assert_eq!(circuits.open(), 0, "closed again, and forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn s09_a_refusal_in_the_slow_start_opens_again() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        pass(600).await;
        circuits.admit(scope()).expect("due").worked();
        let early = circuits.admit(scope()).expect("one");
        circuits.refused(scope());
        early.worked();
        assert_eq!(
            circuits.wait(&scope()),
            Some(RETRY),
            "an old success counts no more"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn s09_scopes_do_not_touch_each_other() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        let other = Scope {
            zone: Some("y".to_owned()),
            ..scope()
        };
        assert_eq!(circuits.wait(&other), None);
        circuits.admit(other).expect("free").worked();
        assert_eq!(circuits.open(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_transient_error_in_the_slow_start_gives_its_place_back() {
        let circuits = Circuits::new(RETRY);
        circuits.refused(scope());
        pass(600).await;
        circuits.admit(scope()).expect("due").worked();
        drop(circuits.admit(scope()).expect("one"));
        assert_eq!(circuits.wait(&scope()), None);
    }
}
