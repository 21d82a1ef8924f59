//! What a user of an election writes, and what one term is.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::contender;
use super::handle::Shared;

/// The work that only the leader may do.
///
/// Any `Fn(Term) -> impl Future<Output = ()>` is one, without the further callbacks.
pub trait Candidate: Send + Sync + 'static {
    /// Works for one term; called once each time the Lease was won, on a task of its own.
    ///
    /// It should end soon after [`Term::cancelled`]: when the process stops, the Lease is renewed
    /// until then and given back after. When the Lease is lost, the future is dropped at its next
    /// await point. If it ends before either, the Lease is given back and the election is over.
    fn lead(&self, term: Term) -> impl Future<Output = ()> + Send;

    /// A term is over: [`lead`](Self::lead) has ended or was dropped. Called once for each term and
    /// never without one; before the Lease is given back. Must not block.
    fn stopped(&self) {}

    /// The Lease is held by `identity`, who may be this process; called once for each change that
    /// was seen. Must not block.
    fn new_leader(&self, identity: &str) {
        let _ = identity;
    }
}

impl<F, Fut> Candidate for F
where
    F: Fn(Term) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    fn lead(&self, term: Term) -> impl Future<Output = ()> + Send {
        self(term)
    }
}

/// A time for which this process leads; cheap to clone.
#[derive(Clone)]
pub struct Term {
    number: u32,
    serial: u64,
    cancel: CancellationToken,
    shared: Arc<Shared>,
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("number", &self.number)
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl Term {
    pub(super) fn new(
        term: contender::Term,
        cancel: CancellationToken,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            number: term.number,
            serial: term.serial,
            cancel,
            shared,
        }
    }

    /// Number of the term: the Lease's count of changes of its holder. Higher than that of every
    /// earlier term of another process, as long as nobody deletes the Lease; equal to that of the term
    /// before if this process has regained the Lease that nobody took meanwhile.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether this process leads in this term at this moment, by the clock and not by what was
    /// noticed: false from the renew deadline on, also in a process that stood still until now, and
    /// for ever once the term is over, also while the process leads in a later one.
    /// Stays true while a stop is under way, until the work has ended.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.shared.leads_in(self.serial)
    }

    /// Resolves when the work should end: at a stop, or because the Lease is lost. Cancel-safe.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.cancel.cancelled()
    }

    /// Whether the work should end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// A token that is cancelled when the work should end.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.cancel.child_token()
    }
}
