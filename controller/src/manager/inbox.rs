//! What is added to a manager, before it runs and while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use informer::Synced;
use tokio::sync::Notify;

use super::GroupName;
use super::error::Stopping;
use super::runnable::Runnable;

/// Something to be run.
pub(super) struct Added {
    pub(super) group: GroupName,
    pub(super) runnable: Runnable,
    /// For a cache: tells when it has synced.
    pub(super) synced: Option<Box<dyn Synced>>,
}

/// Takes in what is added, until it is closed. Bounded by what a program adds to its manager.
#[derive(Clone)]
pub(super) struct Inbox(Arc<Inner>);

struct Inner {
    /// None once closed.
    added: Mutex<Option<Vec<Added>>>,
    news: Notify,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            added: Mutex::new(Some(Vec::new())),
            news: Notify::new(),
        }))
    }

    pub(super) fn add(&self, added: Added) -> Result<(), Stopping> {
        // The list is whole after each change, so a panic elsewhere leaves it usable.
        let mut list = self.0.added.lock().unwrap_or_else(PoisonError::into_inner);
        list.as_mut().ok_or(Stopping)?.push(added);
        drop(list);
        self.0.news.notify_one();
        Ok(())
    }

    /// What has been added since the last call.
    pub(super) fn take(&self) -> Vec<Added> {
        let mut list = self.0.added.lock().unwrap_or_else(PoisonError::into_inner);
        list.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// From here on everything is refused; what was not taken is dropped.
    pub(super) fn close(&self) {
        let mut list = self.0.added.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = list.take();
        drop(list);
        drop(rest);
    }

    /// Resolves when something was added since the last [`take`](Self::take). Cancel-safe.
    pub(super) async fn news(&self) {
        self.0.news.notified().await;
    }
}
