//! Telling of failures: status, log, counters, the user's handler.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::unreadable::Recorded;
use super::{ErrorHandler, ReflectorError};
use crate::Cause;
use crate::error::chain;
use crate::log_limit::{LOG_INTERVAL, LogLimit};
use crate::shared::Progress;
use crate::source::Malformed;

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
        self.log_at_times(error);
        self.tell_handler(error);
    }

    /// An object was left out; list or watch go on.
    ///
    /// Each state of an object is told and logged once. Where no record can say whether it was
    /// told before it is told each time, and logged as seldom as failures of its class.
    pub(super) fn skipped(&mut self, malformed: Box<Malformed>) {
        self.progress
            .stats
            .malformed
            .fetch_add(1, Ordering::Relaxed);
        let recorded = match malformed.foreign {
            // Its name is that of another object.
            true => Recorded::No,
            false => self.progress.unreadable.insert(&malformed),
        };
        let error = ReflectorError::Malformed(malformed);
        match recorded {
            Recorded::Before => return,
            Recorded::Now => self.log(&error, 0),
            Recorded::No => self.log_at_times(&error),
        }
        self.tell_handler(&error);
    }

    /// A list round succeeded.
    pub(super) fn listed(&self) {
        self.progress.set_last_error(None);
    }

    /// A watch is open.
    pub(super) fn watching(&self) {
        self.progress.set_last_error(None);
    }

    /// Logs `error` unless one of its class was logged lately.
    fn log_at_times(&mut self, error: &ReflectorError) {
        let class = (error.cause(), is_ordinary(error));
        let logged = self.logged.entry(class);
        let logged = logged.or_insert_with(|| LogLimit::new(LOG_INTERVAL));
        if let Some(since) = logged.admit() {
            self.log(error, since);
        }
    }

    /// Logs `error`, and that `since` others of its class were not logged before it.
    fn log(&self, error: &ReflectorError, since: u64) {
        let (informer, cause) = (self.progress.name(), error.cause());
        let ordinary = is_ordinary(error);
        let error = chain(error);
        if ordinary {
            tracing::info!(informer, %cause, error, since, "list or watch failed");
        } else {
            tracing::warn!(informer, %cause, error, since, "list or watch failed");
        }
    }

    fn tell_handler(&self, error: &ReflectorError) {
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
