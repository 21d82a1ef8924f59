//! How far an informer has come, for whoever asks.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::Cause;
use crate::metrics::Meters;
use crate::reflector::Unreadable;
use crate::synced::Gate;

/// State of an informer at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The kind, with group where it has one, such as `Pod` or `Proxy.crawl.example.dev`.
    pub kind: String,
    /// The first list is in the cache.
    pub synced: bool,
    /// Version of the last event, bookmark or list applied; empty before the first.
    pub resource_version: String,
    /// Number of objects in the cache.
    pub objects: usize,
    /// Class and text of the failure that the reflector has not got over yet.
    pub last_error: Option<(Cause, String)>,
}

/// Counters of an informer since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// List rounds begun (a list of several pages counts once, a streamed one too).
    pub lists: u64,
    /// Watches opened.
    pub watches: u64,
    /// Watch frames that named an object.
    pub events: u64,
    /// Watches that ended at once without an event.
    pub short_watches: u64,
    /// Failures of lists and watches.
    pub errors: u64,
    /// Objects that could not be read.
    pub malformed: u64,
    /// Warnings that a streamed initial state was not complete yet.
    pub late_bookmarks: u64,
    /// Panics of handlers.
    pub handler_panics: u64,
    /// Times that an index left an object out, since its function failed or panicked.
    pub index_failures: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lists: AtomicU64,
    pub(crate) watches: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) short_watches: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) late_bookmarks: AtomicU64,
    pub(crate) handler_panics: AtomicU64,
}

impl Counters {
    /// The counters, with one that is kept elsewhere.
    pub(crate) fn read(&self, index_failures: u64) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            lists: read(&self.lists),
            watches: read(&self.watches),
            events: read(&self.events),
            short_watches: read(&self.short_watches),
            errors: read(&self.errors),
            malformed: read(&self.malformed),
            late_bookmarks: read(&self.late_bookmarks),
            handler_panics: read(&self.handler_panics),
            index_failures,
        }
    }
}

/// What reflector, handlers and status share.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    pub(crate) kind: String,
    pub(crate) synced: Gate,
    pub(crate) stopped: Gate,
    pub(crate) stats: Counters,
    pub(crate) meters: Meters,
    /// Whether the calls of handlers are timed.
    pub(crate) timed: bool,
    pub(crate) unreadable: Unreadable,
    last_error: Mutex<Option<(Cause, String)>>,
}

impl Progress {
    pub(crate) fn new(name: String, kind: String, timed: bool) -> Self {
        Self {
            name,
            kind,
            timed,
            meters: Meters::default(),
            synced: Gate::new(),
            stopped: Gate::new(),
            stats: Counters::default(),
            unreadable: Unreadable::default(),
            last_error: Mutex::new(None),
        }
    }

    /// Kind and scope, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn last_error(&self) -> Option<(Cause, String)> {
        self.last_error.lock().clone()
    }

    pub(crate) fn set_last_error(&self, error: Option<(Cause, String)>) {
        *self.last_error.lock() = error;
    }
}
