//! Looking at an election from outside.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Config;
use super::contender::{Contender, Term};

/// What an elector tells while it runs.
#[derive(Debug)]
pub(super) struct Shared {
    name: String,
    identity: Arc<str>,
    lease_duration: Duration,
    renew_deadline: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Default)]
struct State {
    term: Option<Term>,
    leader: Option<String>,
    slow_paths: u64,
}

impl Shared {
    pub(super) fn new(config: &Config, identity: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            name: config.name.clone(),
            identity,
            lease_duration: config.lease_duration,
            renew_deadline: config.renew_deadline,
            state: Mutex::default(),
        })
    }

    /// Takes over what the contender has become.
    pub(super) fn publish(&self, contender: &Contender) {
        self.set(State {
            term: contender.term(),
            leader: contender.leader(),
            slow_paths: contender.slow_paths(),
        });
    }

    /// The term is over and the Lease given back, or left to itself.
    pub(super) fn retire(&self, leader: Option<String>) {
        let state = State {
            term: None,
            leader,
            ..self.state()
        };
        self.set(state);
    }

    fn set(&self, state: State) {
        // The state is whole after each assignment, so a panic elsewhere leaves it usable.
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn state(&self) -> State {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    fn term(&self) -> Option<Term> {
        self.state()
            .term
            .filter(|term| Instant::now() < term.deadline)
    }

    /// Whether the term of this [serial](Term::serial) lasts.
    pub(super) fn leads_in(&self, serial: u64) -> bool {
        self.term().is_some_and(|term| term.serial == serial)
    }
}

/// An election seen from outside; cheap to clone, valid before, during and after the run.
#[derive(Clone)]
pub struct ElectionHandle(pub(super) Arc<Shared>);

impl fmt::Debug for ElectionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElectionHandle")
            .field("name", &self.0.name)
            .field("identity", &self.0.identity)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}

/// The leader did not renew its Lease for so long that its process should be restarted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("lease {name} was renewed {age:?} ago, which is more than {limit:?}")]
pub struct Unhealthy {
    /// Name of the Lease.
    pub name: String,
    /// Time since the last renewal.
    pub age: Duration,
    /// What was tolerated.
    pub limit: Duration,
}

/// Metrics of an election at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionMetrics {
    /// Name of the Lease: label `name`.
    pub name: String,
    /// `leader_election_master_status`: whether this process leads.
    pub is_leader: bool,
    /// `leader_election_slowpath_total`: renewals that needed a look at the Lease first.
    pub slow_paths: u64,
}

impl ElectionHandle {
    /// How much later than the lease duration a renewal may be before the health check fails.
    pub const DEFAULT_TOLERANCE: Duration = Duration::from_secs(20);

    /// Name of the Lease.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The identity of this process.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Whether this process leads at this moment; false from the renew deadline on, noticed or not.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0.term().is_some()
    }

    /// How long this process leads without another renewal; zero if it does not lead. What must not
    /// outlast the leadership is begun only if enough is left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = Instant::now();
        let term = self.0.term();
        term.map_or(Duration::ZERO, |term| {
            term.deadline.saturating_duration_since(now)
        })
    }

    /// Number of the present term, if this process leads.
    #[must_use]
    pub fn term(&self) -> Option<u32> {
        self.0.term().map(|term| term.number)
    }

    /// Who held the Lease when it was last looked at.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        self.0.state().leader
    }

    /// Fails if this process took itself for the leader and the last renewal is older than the lease
    /// duration and `tolerance`: its election does not run any more, which only a restart mends.
    /// Others are always well.
    ///
    /// # Errors
    /// [`Unhealthy`] with the age of the last renewal.
    pub fn check(&self, tolerance: Duration) -> Result<(), Unhealthy> {
        let Some(term) = self.0.state().term else {
            return Ok(());
        };
        let renewed = term.deadline - self.0.renew_deadline;
        let age = Instant::now().saturating_duration_since(renewed);
        let limit = self.0.lease_duration.saturating_add(tolerance);
        if age <= limit {
            return Ok(());
        }
        let name = self.0.name.clone();
        Err(Unhealthy { name, age, limit })
    }

    /// The election's metrics now.
    #[must_use]
    pub fn metrics(&self) -> ElectionMetrics {
        ElectionMetrics {
            name: self.0.name.clone(),
            is_leader: self.is_leader(),
            slow_paths: self.0.state().slow_paths,
        }
    }
}
