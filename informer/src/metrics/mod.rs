//! What informers tell about themselves, in the Prometheus text format, computed when read.
//!
//! An informer with a [`name`](crate::InformerOptions::name) registers in a [`Registry`];
//! [`Registry::render`] gives all of them as text, [`Registry::snapshots`] as values. Names are
//! client-go's where it has one. No task keeps anything fresh, and the series of an informer vanish
//! when its run has ended, or with its last handle. All series have the labels `name` and
//! `resource`, and `version` where the informer knows that of its kind.
//!
//! | metric | type | meaning |
//! |---|---|---|
//! | `reflector_lists_total` | counter | lists begun, streamed ones too |
//! | `reflector_list_duration_seconds` | summary | from the request of a list to its state in the cache |
//! | `reflector_items_per_list` | summary | objects in a list |
//! | `reflector_relists_total` | counter | lists made again, by the `cause` that led to them |
//! | `reflector_watches_total` | counter | watches opened |
//! | `reflector_watch_duration_seconds` | summary | from the request of a watch to its end |
//! | `reflector_items_per_watch` | summary | events that named an object, in a watch |
//! | `reflector_short_watches_total` | counter | watches that ended at once with nothing new |
//! | `reflector_errors_total` | counter | failures of lists and watches |
//! | `reflector_late_bookmarks_total` | counter | warnings that a streamed list was not complete |
//! | `reflector_last_resource_version` | gauge | version that lists and watches have come to, its last 15 digits |
//! | `informer_unreadable_objects_total` | counter | objects that could not be read |
//! | `informer_store_objects` | gauge | objects in the cache |
//! | `informer_store_resource_version` | gauge | version of the cache, its last 15 digits |
//! | `informer_queued_items` | gauge | events that wait for a `handler` |
//! | `informer_processing_latency_seconds` | histogram | calls of a `handler` |
//! | `informer_index_failures_total` | counter | times that an index left an object out |
//! | `informer_handler_panics_total` | counter | panics of handlers |

mod meter;
mod registry;
mod render;

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use self::meter::{Latency, Meters};
pub use self::registry::Registry;
pub(crate) use self::registry::{Identity, Registration, Source};
use crate::{Cause, Stats};

/// Upper bounds of the buckets of a [`Histogram`]: 10 ns·10ᵏ, in nanoseconds.
pub const BUCKETS: [u64; 10] = [
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// Durations sorted into [`BUCKETS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many durations fell into each bucket alone, not into those below.
    pub buckets: [u64; BUCKETS.len()],
    /// How many there were, those above the last bucket included.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
}

/// How many values there were, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of values.
    pub count: u64,
    /// Their sum; of durations in nanoseconds.
    pub sum: u64,
}

/// What is known of one handler, or of several of one name together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerSnapshot {
    /// Events that wait.
    pub queued: u64,
    /// How long calls took. A call that is dropped before its end is not counted.
    pub latency: Histogram,
}

/// An informer's metrics at one moment; see the [module documentation](self) for their meanings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InformerSnapshot {
    /// Label `name`.
    pub name: String,
    /// Label `resource`: the kind, with its group where it has one.
    pub resource: String,
    /// Label `version`: that of the kind; empty where the informer was not told it.
    pub version: String,
    /// Counters.
    pub stats: Stats,
    /// From the request of a list to its state in the cache, in nanoseconds.
    pub list_duration: Summary,
    /// Objects in a list.
    pub items_per_list: Summary,
    /// From the request of a watch to its end, in nanoseconds.
    pub watch_duration: Summary,
    /// Events that named an object, in a watch.
    pub items_per_watch: Summary,
    /// Lists made again, by what led to them.
    pub relists: BTreeMap<Cause, u64>,
    /// Version of the cache.
    pub resource_version: String,
    /// Objects in the cache.
    pub objects: u64,
    /// Handlers by name.
    pub handlers: BTreeMap<String, HandlerSnapshot>,
}
