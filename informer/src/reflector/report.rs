//! Telling of failures: status, log, counters, the user's handler.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ErrorHandler, ReflectorError};
use crate::Cause;
use crate::error::chain;
use crate::log_limit::{LOG_INTERVAL, LogLimit};
use crate::shared::Progress;

pub(super) struct Reporter {
    progress: Arc<Progress>,
    handler: Option<ErrorHandler>,
    /// By class, and whether it is the ordinary course of things.
    logged: HashMap<(Cause, bool), LogLimit>,
}

impl Reporter {
    pub(super) fn new(progress: Arc<Progress>, handler: Option<ErrorHandler>) -> Self {
        Self {
            progress,
            handler,
            logged: HashMap::new(),
        }
    }

    /// A call failed.
    pub(super) fn failed(&mut self, error: &ReflectorError) {
        self.progress.stats.errors.fetch_add(1, Ordering::Relaxed);
        self.progress
            .set_last_error(Some((error.cause(), chain(error))));
        self.tell(error);
    }

    /// An object was left out; list or watch go on. Told once for each state of an object.
    pub(super) fn skipped(&mut self, error: &ReflectorError) {
        self.progress
            .stats
            .malformed
            .fetch_add(1, Ordering::Relaxed);
        if let ReflectorError::Malformed(malformed) = error
            && !self.progress.unreadable.insert(malformed)
        {
            return;
        }
        self.tell(error);
    }

    /// A list round succeeded.
    pub(super) fn listed(&self) {
        self.progress.set_last_error(None);
    }

    /// A watch is open.
    pub(super) fn watching(&self) {
        self.progress.set_last_error(None);
    }

    fn tell(&mut self, error: &ReflectorError) {
        let (cause, ordinary) = (error.cause(), is_ordinary(error));
        let logged = self.logged.entry((cause, ordinary));
        let logged = logged.or_insert_with(|| LogLimit::new(LOG_INTERVAL));
        if let Some(since) = logged.admit() {
            let informer = self.progress.name();
            let error = chain(error);
            if ordinary {
                tracing::info!(informer, %cause, error, since, "list or watch failed");
            } else {
                tracing::warn!(informer, %cause, error, since, "list or watch failed");
            }
        }
        if let Some(handler) = &self.handler
            && catch_unwind(AssertUnwindSafe(|| handler(error))).is_err()
        {
            tracing::error!(informer = self.progress.name(), "error handler panicked");
        }
    }
}

/// Whether a failure is the ordinary course of a watch: its version has grown too old, or its
/// connection broke. One that could not be made is none.
fn is_ordinary(error: &ReflectorError) -> bool {
    match error.cause() {
        Cause::Expired | Cause::ShortWatch => true,
        Cause::Transport => matches!(error, ReflectorError::Watch(_)),
        _ => false,
    }
}
