//! A reader of one collection's events.

use std::sync::Arc;

use tokio::sync::watch;

use super::{collection::Collection, history::Event};

/// Events that one read takes at most; bounds what a slow watcher holds beside the shared ring.
const BATCH: usize = 256;

/// The watcher fell so far behind that events were trimmed before it read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lagged;

/// A cursor into the history of one collection.
///
/// A watcher holds no events of its own: its cost does not grow with the rate of writes.
#[derive(Debug)]
pub(crate) struct Watcher {
    collection: Arc<Collection>,
    next: u64,
    published: watch::Receiver<u64>,
    /// Events up to here are not shown: a watch may start in the future.
    after: u64,
    progress: u64,
    caught_up: bool,
}

impl Watcher {
    pub(super) fn new(
        collection: Arc<Collection>,
        next: u64,
        after: u64,
        published: watch::Receiver<u64>,
    ) -> Self {
        Self {
            collection,
            next,
            published,
            after,
            progress: 0,
            caught_up: false,
        }
    }

    /// The events that follow, without waiting; empty when there are none yet.
    ///
    /// # Errors
    /// [`Lagged`] when the next event is gone.
    pub(crate) fn read(&mut self) -> Result<Vec<Arc<Event>>, Lagged> {
        let (mut events, drained_at) = self
            .collection
            .events_from(self.next, BATCH)
            .ok_or(Lagged)?;
        self.next += events.len() as u64;
        self.caught_up = drained_at.is_some();
        if let Some(revision) = drained_at.or_else(|| events.last().map(|event| event.revision)) {
            self.progress = self.progress.max(revision);
        }
        events.retain(|event| event.revision > self.after);
        Ok(events)
    }

    /// The newest revision up to which everything was read: a bookmark may carry it.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.max(self.after)
    }

    /// Whether the last read left nothing unread.
    pub(crate) fn caught_up(&self) -> bool {
        self.caught_up
    }

    /// Waits until there is something to read. Cancel-safe.
    pub(crate) async fn ready(&mut self) {
        let next = self.next;
        // The sender lives in the collection that this watcher holds.
        let _closed = self.published.wait_for(|end| *end > next).await.is_err();
    }
}
