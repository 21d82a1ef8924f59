//! Telling of failures: status, log, counters, the user's handler.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{ErrorHandler, ReflectorError};
use crate::Cause;
use crate::error::chain;
use crate::shared::Progress;

/// Failures of one class are logged once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
struct Logged {
    at: Option<Instant>,
    since: u64,
}

pub(super) struct Reporter {
    progress: Arc<Progress>,
    handler: Option<ErrorHandler>,
    logged: HashMap<Cause, Logged>,
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
        let cause = error.cause();
        let logged = self.logged.entry(cause).or_default();
        let now = Instant::now();
        if logged
            .at
            .is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL)
        {
            let informer = self.progress.name();
            let since = logged.since;
            let error = chain(error);
            match cause {
                // These are the ordinary course of a watch.
                Cause::Expired | Cause::ShortWatch | Cause::Transport => {
                    tracing::info!(informer, %cause, error, since, "list or watch failed");
                }
                _ => tracing::warn!(informer, %cause, error, since, "list or watch failed"),
            }
            *logged = Logged {
                at: Some(now),
                since: 0,
            };
        } else {
            logged.since += 1;
        }
        if let Some(handler) = &self.handler
            && catch_unwind(AssertUnwindSafe(|| handler(error))).is_err()
        {
            tracing::error!(informer = self.progress.name(), "error handler panicked");
        }
    }
}
