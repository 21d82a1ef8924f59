//! What becomes of a call: the same for calls to the API server and to the providers.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is answered.
    Answered,
    /// It never arrives, and the caller learns of a fault.
    Lost,
    /// It has its effect, and the caller learns of a fault.
    Reset,
    /// It is refused for a while: too many requests, or quota.
    Refused,
    /// The process dies before it arrives.
    DeathBefore,
    /// The process dies after its effect.
    DeathAfter,
}

/// Deals out fates; clones share them.
#[derive(Clone)]
pub(super) struct Fates {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    rng: StdRng,
    is_kind: bool,
    /// Calls until the next death.
    to_death: Option<u32>,
    /// Deaths that follow one another without a pause.
    deaths_in_a_row: u32,
}

thread_local! {
    /// Sums up the calls of a run, to compare runs.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// A number that two runs share if they made the same calls with the same fates.
pub(super) fn calls_of_this_thread() -> u64 {
    CALLS.replace(0)
}

impl Fates {
    pub(super) fn new(seed: u64, has_faults: bool) -> Self {
        let inner = Inner {
            rng: StdRng::seed_from_u64(seed ^ 0xfa7e),
            is_kind: !has_faults,
            to_death: None,
            deaths_in_a_row: 0,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no run goes on after a panic")
    }

    /// From now on every call is answered.
    pub(super) fn be_kind(&self) {
        self.inner().is_kind = true;
    }

    pub(super) fn are_kind(&self) -> bool {
        self.inner().is_kind
    }

    /// Lets the process die at one of its next calls, up to three times in a row.
    pub(super) fn kill(&self) {
        let mut inner = self.inner();
        inner.to_death = Some(inner.rng.random_range(1..=12));
        inner.deaths_in_a_row = inner.rng.random_range(0..=2);
    }

    pub(super) fn next(&self, what: &str) -> Fate {
        let mut inner = self.inner();
        let fate = inner.next();
        let sum = what.bytes().fold(CALLS.get() ^ fate as u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        CALLS.set(sum);
        fate
    }
}

impl Inner {
    fn next(&mut self) -> Fate {
        if self.is_kind {
            return Fate::Answered;
        }
        if let Some(left) = &mut self.to_death {
            *left -= 1;
            if *left == 0 {
                self.to_death = match self.deaths_in_a_row {
                    0 => None,
                    _ => {
                        self.deaths_in_a_row -= 1;
                        Some(self.rng.random_range(1..=6))
                    }
                };
                return if self.rng.random_bool(0.5) {
                    Fate::DeathBefore
                } else {
                    Fate::DeathAfter
                };
            }
        }
        match self.rng.random_range(0..100) {
            0..=1 => Fate::Lost,
            2..=4 => Fate::Reset,
            5..=6 => Fate::Refused,
            _ => Fate::Answered,
        }
    }
}
