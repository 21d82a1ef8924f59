//! List and watch a Kubernetes kind into an indexed cache, and hand its changes to handlers.
//!
//! ```no_run
//! use informer::{Event, Informer, InformerOptions, client};
//! use k8s_openapi::api::core::v1::Pod;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = client::load_config(&client::ConfigSource::default()).await?;
//! let client = client::connect(config, client::ClientOptions::default())?;
//! let pods: Informer<Pod> = Informer::new(client, InformerOptions::default())?;
//! pods.add_index("node", |pod| pod.spec.iter().filter_map(|spec| spec.node_name.clone()).collect())?;
//! pods.add_handler("log", |event: &Event<Pod>| println!("{}", event.key()))?;
//! let stop = CancellationToken::new();
//! pods.run(stop).await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! - The cache shows states that the server had, in the server's order, and never goes back to an
//!   older one unless the server itself lost state.
//! - A list replaces the cache in one visible step. What vanished while nobody looked is told as
//!   [`Event::Deleted`] with `final_state_known: false`; what did not change keeps its object and
//!   is not told.
//! - Every reader sees objects, indexes and version in agreement, without taking a lock that a
//!   writer holds. [`Lister::snapshot`] keeps one state for as long as it is held.
//! - Every handler is told of each object first as added, then of its changes in order, then of
//!   its end; one that joins late gets what is there first, without gap or repetition. A slow
//!   handler delays no other, and its queue is bounded ([`Buffer`]).
//! - An object re-created under its name while nobody looked is told as deleted, then added.
//! - A failure is classified ([`Cause`]), told, and met by a wait with jitter. Where a watch can
//!   go on from its version, no list is made.
//! - One object that cannot be read is reported without any of its values and left out; all
//!   others go on.
//! - An informer of [`MetadataOnly`] objects asks the server for metadata alone.
//! - After [`Informer::run`] returned, nothing more is stored or delivered.
//!
//! # Not guaranteed
//!
//! - That every state of an object is seen: changes while a watch is down appear as one, and a
//!   handler that is far behind gets several updates as one.
//! - An order between events of different objects, once a queue is above its limit.
//! - Freshness: a cache is behind the server by the network and whatever held up the watch.
//!
//! # Features
//!
//! - `testing`: a scripted source with a record of its calls, [`source`]`::scripted`.

pub mod client;
mod error;
mod event;
mod key;
mod lister;
mod meta;
mod reflector;
mod shared;
pub mod source;
mod store;
mod synced;
mod version;

pub use self::error::{BoxError, Cause, Error};
pub use self::event::{AsyncHandler, Event, Handler};
pub use self::key::{ObjectKey, ParseKeyError};
pub use self::lister::{Lister, NotFound, Snapshot};
pub use self::meta::MetadataOnly;
pub use self::reflector::{
    ErrorHandler, OnMalformed, OnMissingKind, ReflectorBackoff, ReflectorError, Transform,
};
pub use self::shared::{
    Buffer, HandlerOptions, Informer, InformerOptions, OnPanic, OnStop, Registration, Stats, Status,
};
pub use self::source::Cut;
pub use self::store::index::NAMESPACE_INDEX;
pub use self::synced::{NotSynced, Synced, Unsynced, wait_for_cache_sync};
pub use self::version::compare_versions;
