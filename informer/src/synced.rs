//! Waiting for caches and handlers to have seen their initial state.

use std::fmt;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A latch that opens once and stays open.
#[derive(Debug)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn open(&self) {
        self.0
            .send_if_modified(|open| !std::mem::replace(open, true));
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the gate is open. Cancel-safe.
    pub(crate) async fn wait(&self) {
        let mut state = self.0.subscribe();
        // The sender outlives this borrow of `self`, so the wait cannot fail.
        drop(state.wait_for(|open| *open).await);
    }
}

/// Something that has an initial state to go through: an informer, or a handler of one.
pub trait Synced: Send + Sync {
    /// What it is, for messages: kind and scope, and the handler's name.
    fn name(&self) -> String;

    /// Whether the initial state is complete here.
    fn has_synced(&self) -> bool;

    /// Resolves once the initial state is complete. Never before, and never on failure.
    fn synced(&self) -> BoxFuture<'_, ()>;

    /// What holds it up, where that is known: the class of the last failure and its text.
    fn blocked_by(&self) -> Option<(crate::Cause, String)>;
}

/// What had not synced when the wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsynced {
    /// Name of the informer or handler.
    pub name: String,
    /// Class and text of the failure that holds it up; `None` if it is merely not done yet.
    pub cause: Option<(crate::Cause, String)>,
}

impl fmt::Display for Unsynced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some((cause, text)) => write!(f, "{} ({cause}: {text})", self.name),
            None => write!(f, "{} (still in progress)", self.name),
        }
    }
}

/// The wait for caches was stopped before all of them had synced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped before these had synced: {}", join(.unsynced))]
pub struct NotSynced {
    /// Those that were missing, in the order of the call.
    pub unsynced: Vec<Unsynced>,
}

fn join(unsynced: &[Unsynced]) -> String {
    unsynced
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Waits until everything in `synced` has synced, or `stop` is cancelled.
///
/// Driven by events, without polling. Cancel-safe. If all have synced and `stop` is cancelled as
/// well, the answer is success.
///
/// # Errors
/// [`NotSynced`] names those still missing at the stop, each with what held it up.
pub async fn wait_for_cache_sync(
    stop: &CancellationToken,
    synced: &[&dyn Synced],
) -> Result<(), NotSynced> {
    let all = futures::future::join_all(synced.iter().map(|one| one.synced()));
    tokio::select! {
        biased;
        _ = all => Ok(()),
        () = stop.cancelled() => {
            let unsynced: Vec<_> = synced
                .iter()
                .filter(|one| !one.has_synced())
                .map(|one| Unsynced { name: one.name(), cause: one.blocked_by() })
                .collect();
            if unsynced.is_empty() { Ok(()) } else { Err(NotSynced { unsynced }) }
        }
    }
}
