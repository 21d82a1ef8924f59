//! The side that controllers hold: take a notice, never wait.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube_client::Client;
use kube_core::Resource;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::aggregate::{Aggregator, object_of};
use super::body::Reporter;
use super::ledger::{Key, Ledger, Now, Observed, Repeats};
use super::notice::Notice;
use super::sink::{ApiSink, EventSink};
use super::writer::EventWriter;

/// How repetitions are told apart, counted and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EventForm {
    /// `events.k8s.io/v1`: repetitions become a series.
    #[default]
    Series,
    /// `v1`: repetitions raise a count; similar events are combined and rationed.
    Count,
}

impl EventForm {
    pub(super) fn repeats(self) -> Repeats {
        match self {
            Self::Series => Repeats::Series,
            Self::Count => Repeats::Each,
        }
    }
}

/// Settings of a recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderOptions {
    /// Name under which events are reported, such as `example.dev/mirror`: a qualified name, that
    /// is, 1 to 63 characters of a-z, A-Z, 0-9, `-_.`, after an optional DNS name and a slash.
    pub controller: String,
    /// Which process reports, 1 to 128 bytes. None: the controller's name with the host's.
    pub instance: Option<String>,
    /// Default [`EventForm::Series`].
    pub form: EventForm,
    /// How many writes may wait. Default 1000.
    pub queue: usize,
    /// How many events are remembered, for each purpose. Default 4096.
    pub cache: usize,
}

impl RecorderOptions {
    /// The default settings for the controller named.
    pub fn new(controller: impl Into<String>) -> Self {
        Self {
            controller: controller.into(),
            instance: None,
            form: EventForm::default(),
            queue: 1000,
            cache: 4096,
        }
    }
}

/// Why there is no recorder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server would refuse each event.
    #[error(
        "reporting controller {name:?} must be a qualified name: 1 to 63 characters of a-z, A-Z, \
         0-9, '-', '_', '.', after an optional DNS name and '/'"
    )]
    InvalidController {
        /// The name asked for.
        name: Box<str>,
    },
    /// The server would refuse each event.
    #[error("reporting instance {name:?} must have 1 to 128 bytes")]
    InvalidInstance {
        /// The name asked for.
        name: Box<str>,
    },
    /// A size of zero would drop each event.
    #[error("recorder option {option} is 0, expected at least 1")]
    InvalidSize {
        /// Field of [`RecorderOptions`].
        option: &'static str,
    },
}

/// A recorder for the API server behind `client`, and the writer that must run beside it.
///
/// # Errors
/// [`Error`] names the option that is wrong, and what is allowed.
pub fn recorder(
    client: Client,
    options: RecorderOptions,
) -> Result<(EventRecorder, EventWriter), Error> {
    let form = options.form;
    recorder_to(ApiSink::new(client, form), options)
}

/// A recorder whose events go to `sink`, such as a test's.
///
/// Recorders know nothing of each other: each has its own counts and its own queue.
///
/// # Errors
/// Those of [`recorder`].
pub fn recorder_to(
    sink: impl EventSink,
    options: RecorderOptions,
) -> Result<(EventRecorder, EventWriter), Error> {
    if !is_qualified_name(&options.controller) {
        let name = options.controller.into();
        return Err(Error::InvalidController { name });
    }
    let instance = options
        .instance
        .unwrap_or_else(|| default_instance(&options.controller));
    if !(1..=128).contains(&instance.len()) {
        let name = instance.into();
        return Err(Error::InvalidInstance { name });
    }
    if options.queue == 0 {
        return Err(Error::InvalidSize { option: "queue" });
    }
    let cache = NonZeroUsize::new(options.cache).ok_or(Error::InvalidSize { option: "cache" })?;
    let repeats = options.form.repeats();
    let state = State {
        ledger: Ledger::new(repeats, options.queue, cache),
        aggregator: (repeats == Repeats::Each).then(|| Aggregator::new(cache)),
        closed: false,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
        wake: Notify::new(),
        counters: Counters::default(),
        repeats,
        reporter: Reporter {
            controller: options.controller,
            instance,
        },
    });
    {
        let mut all = recorders();
        all.retain(|shared| shared.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
    }
    let writer = EventWriter::new(Arc::clone(&shared), Box::new(sink));
    Ok((EventRecorder { shared }, writer))
}

/// What recorder and writer share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Told when there is something to write.
    pub(super) wake: Notify,
    pub(super) counters: Counters,
    pub(super) repeats: Repeats,
    pub(super) reporter: Reporter,
}

pub(super) struct State {
    pub(super) ledger: Ledger,
    aggregator: Option<Aggregator>,
    /// The writer has ended.
    pub(super) closed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    observed: AtomicU64,
    counted: AtomicU64,
    filtered: AtomicU64,
    dropped: AtomicU64,
    invalid: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) undelivered: AtomicU64,
}

/// Adds one; returns the new value.
pub(super) fn add(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}

/// What became of events, since the recorder was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventMetrics {
    /// The reporting controller.
    pub controller: String,
    /// Notices taken.
    pub observed: u64,
    /// Of these: folded into an event known already, without a write of their own.
    pub counted: u64,
    /// Of these: counted, but not written since the object has too many (form `v1`).
    pub filtered: u64,
    /// Of these: lost, since the queue was full or the writer had ended.
    pub dropped: u64,
    /// Of these: lost, since reason or action are no words the server takes.
    pub invalid: u64,
    /// Writes the server took.
    pub written: u64,
    /// Writes the server refused.
    pub rejected: u64,
    /// Writes given up after 12 tries, or at a stop.
    pub undelivered: u64,
    /// Writes that wait now.
    pub queued: usize,
    /// Events remembered now.
    pub remembered: usize,
}

impl Shared {
    /// The state; it is whole after each call, so a panic elsewhere leaves it usable.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn metrics(&self) -> EventMetrics {
        let counters = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (queued, remembered) = {
            let state = self.state();
            (state.ledger.queued(), state.ledger.remembered())
        };
        EventMetrics {
            controller: self.reporter.controller.clone(),
            observed: read(&counters.observed),
            counted: read(&counters.counted),
            filtered: read(&counters.filtered),
            dropped: read(&counters.dropped),
            invalid: read(&counters.invalid),
            written: read(&counters.written),
            rejected: read(&counters.rejected),
            undelivered: read(&counters.undelivered),
            queued,
            remembered,
        }
    }
}

impl Now {
    /// Both clocks now.
    pub(super) fn read() -> Self {
        Self {
            at: Instant::now(),
            wall: Timestamp::now(),
        }
    }
}

impl State {
    fn observe(&mut self, regarding: &ObjectReference, notice: Notice, now: Now) -> Observed {
        let Some(aggregator) = &mut self.aggregator else {
            let key = series_key(regarding, &notice);
            return self.ledger.observe(key, regarding, notice, true, now);
        };
        let (key, notice) = aggregator.fold(regarding, notice, now.at);
        let permitted = aggregator.permits(regarding, &notice, now.at);
        self.ledger.observe(key, regarding, notice, permitted, now)
    }
}

/// What makes occurrences one series. The note is no part of it.
fn series_key(regarding: &ObjectReference, notice: &Notice) -> Key {
    let related = notice.related.as_ref();
    Key::of(&[
        &object_of(regarding),
        regarding.field_path.as_deref().unwrap_or_default(),
        notice.type_.as_str(),
        &notice.reason,
        &notice.action,
        &related.map(object_of).unwrap_or_default(),
        related
            .and_then(|related| related.field_path.as_deref())
            .unwrap_or_default(),
    ])
}

/// Records events; cheap to clone, made by [`recorder`].
#[derive(Clone)]
pub struct EventRecorder {
    shared: Arc<Shared>,
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventRecorder")
            .field("reporter", &self.shared.reporter)
            .finish_non_exhaustive()
    }
}

impl EventRecorder {
    /// Records that `notice` happened to `object`. Never waits, never fails: see [`EventMetrics`]
    /// for what becomes of it.
    pub fn record<K: Resource<DynamicType = ()>>(&self, object: &K, notice: Notice) {
        self.record_about(&object.object_ref(&()), notice);
    }

    /// As [`record`](Self::record), for an object of which only the reference is known, or for one
    /// part of an object (`fieldPath`).
    ///
    /// The event lies in the namespace of the object; in `default` if it has none.
    pub fn record_about(&self, regarding: &ObjectReference, notice: Notice) {
        let counters = &self.shared.counters;
        add(&counters.observed);
        let object = ObjectName(regarding);
        if let Some(fault) = notice.fault() {
            if add(&counters.invalid).is_power_of_two() {
                warn!(%object, reason = %notice.reason, action = %notice.action, fault, "event not recorded");
            }
            return;
        }
        debug!(%object, event_type = %notice.type_, reason = %notice.reason, action = %notice.action, note = notice.note, "event");
        let observed = {
            let mut state = self.shared.state();
            if state.closed {
                Observed::Dropped
            } else {
                state.observe(regarding, notice, Now::read())
            }
        };
        match observed {
            Observed::Queued => self.shared.wake.notify_one(),
            Observed::Counted => drop(add(&counters.counted)),
            Observed::Filtered => drop(add(&counters.filtered)),
            Observed::Dropped => {
                let dropped = add(&counters.dropped);
                if dropped.is_power_of_two() {
                    warn!(%object, dropped, "event dropped: too many wait, or the writer has ended");
                }
            }
        }
    }

    /// The counters now.
    #[must_use]
    pub fn metrics(&self) -> EventMetrics {
        self.shared.metrics()
    }
}

/// The counters of every recorder of this process, by the name of its controller.
#[must_use]
pub fn all_metrics() -> Vec<EventMetrics> {
    let mut all: Vec<_> = {
        let mut live = recorders();
        live.retain(|shared| shared.strong_count() > 0);
        live.iter().filter_map(Weak::upgrade).collect()
    };
    all.sort_by(|a, b| a.reporter.controller.cmp(&b.reporter.controller));
    all.iter().map(|shared| shared.metrics()).collect()
}

/// The recorders that were made; those that are gone are taken off now and then.
fn recorders() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    static ALL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
    // The list is whole after each call.
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints kind, namespace and name.
pub(super) struct ObjectName<'a>(pub(super) &'a ObjectReference);

impl fmt::Display for ObjectName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |part: &'_ Option<String>| part.clone().unwrap_or_default();
        write!(f, "{} ", text(&self.0.kind))?;
        if let Some(namespace) = &self.0.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&text(&self.0.name))
    }
}

/// The controller's name with the host's, in the length the server takes.
fn default_instance(controller: &str) -> String {
    // A pod's host name is its name.
    let host = rustix::system::uname();
    let mut instance = format!("{controller}-{}", host.nodename().to_string_lossy());
    instance.truncate(instance.floor_char_boundary(128));
    instance
}

/// The rule of Kubernetes for qualified names.
fn is_qualified_name(text: &str) -> bool {
    let part = |part: &str, inner: &[u8], case: bool| {
        let ends = |b: &u8| {
            b.is_ascii_digit() || b.is_ascii_lowercase() || (case && b.is_ascii_uppercase())
        };
        let bytes = part.as_bytes();
        bytes.first().is_some_and(ends)
            && bytes.last().is_some_and(ends)
            && bytes.iter().all(|b| ends(b) || inner.contains(b))
    };
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    name.len() <= 63
        && part(name, b"-_.", true)
        && prefix.is_none_or(|prefix| {
            prefix.len() <= 253 && prefix.split('.').all(|label| part(label, b"-", false))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reporting_controller_is_a_qualified_name() {
        let long = "a".repeat(64);
        for (name, valid) in [
            ("proxy-operator", true),
            ("example.dev/Mirror_1.x", true),
            ("a", true),
            ("", false),
            ("/a", false),
            ("a/", false),
            ("a/b/c", false),
            ("-a", false),
            ("Example.dev/a", false),
            ("example..dev/a", false),
            ("a b", false),
            (&long[1..], true),
            (&long, false),
        ] {
            assert_eq!(is_qualified_name(name), valid, "{name:?}");
        }
    }

    #[test]
    fn the_default_instance_fits_the_server() {
        let controller = format!("{}/{}", "a".repeat(63), "b".repeat(63));
        for name in ["mirror", &controller] {
            let instance = default_instance(name);
            assert!(
                instance.starts_with(name) && instance.len() <= 128,
                "{instance}"
            );
        }
    }
}
