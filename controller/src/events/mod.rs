//! Events: what a controller tells people about an object, as `kubectl describe` shows it.
//!
//! An [`EventRecorder`] takes a [`Notice`] about an object and never waits: repetitions are folded
//! into what is known already under a short lock, new events take a place in a bounded queue, and
//! one [`EventWriter`] brings them to the API server. Give the writer to the manager
//! ([`Manager::with_events`](crate::Manager::with_events)). Two forms, after client-go:
//!
//! - [`EventForm::Series`] (default, `events.k8s.io/v1`): one event for each object, type, reason
//!   and action. The second occurrence turns it into a series, whose count is written at once, then
//!   each 30 min, and when it ends, 6 min after the last occurrence.
//! - [`EventForm::Count`] (`v1`): one event for each message, whose count is patched at each
//!   repetition. The tenth message of one reason and all after it become one "combined" event, and
//!   an object gets 25 writes of one type at once, then one each 300 s.
//!
//! **No secret belongs in an event**: it is stored in plain text, and everybody who may read events
//! in the namespace reads it. Put no configuration value, token or answer of a foreign server into
//! a note.
//!
//! # Guarantees
//! - Recording does no IO and waits for nothing but a lock that is never held across a wait.
//! - A thousand writes wait at most, 4096 events are remembered at most; what finds no place is
//!   dropped and counted ([`EventMetrics`]).
//! - Counts are exact for all that was recorded while an event is remembered, also when the server
//!   could not be reached meanwhile: repetitions need no place in the queue.
//! - One future does everything; there is no task for an event, and none is left after a stop. A
//!   stop tries once to write what is still unwritten.
//!
//! # Not guaranteed
//! - That an event arrives: events are best effort. One write is tried 12 times, then given up; one
//!   that the server rejects is given up at once.
//!
//! ```no_run
//! # use controller::{BoxError, Manager};
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # fn example(client: kube_client::Client, config: ConfigMap) -> Result<(), BoxError> {
//! use controller::events::{Notice, RecorderOptions, recorder};
//!
//! let (events, writer) = recorder(client, RecorderOptions::new("example.dev/mirror"))?;
//! let manager = Manager::default().with_events(writer);
//! events.record(&config, Notice::normal("Mirrored", "Copy", "copied to a-mirror"));
//! # Ok(()) }
//! ```

mod aggregate;
mod body;
mod ledger;
mod notice;
mod recorder;
mod sink;
mod writer;

pub use self::notice::{EventType, Notice, UnknownType};
pub use self::recorder::{
    Error, EventForm, EventMetrics, EventRecorder, RecorderOptions, all_metrics, recorder,
    recorder_to,
};
pub use self::sink::EventSink;
pub use self::writer::EventWriter;
