#![doc = include_str!("../README.md")]

pub mod client;
mod error;
mod event;
mod factory;
mod key;
mod lister;
mod log_limit;
mod meta;
pub mod metrics;
mod mutation;
mod namespaces;
mod query;
mod reflector;
mod shared;
pub mod source;
mod store;
mod synced;
mod version;

pub use self::error::{BoxError, Cause, Error};
pub use self::event::{AsyncHandler, Event, Filtered, Handler, Origin};
pub use self::factory::{Factory, FactoryOptions, MetadataTransform, OnMissingInformer};
pub use self::key::{ObjectKey, ParseKeyError};
pub use self::lister::{Lister, NotFound, Snapshot, View};
pub use self::meta::MetadataOnly;
pub use self::mutation::{MutationCache, MutationCacheOptions};
pub use self::namespaces::{NamespaceLister, NamespaceRegistration, Namespaces, Part};
pub use self::query::{Page, Query};
pub use self::reflector::{
    ErrorHandler, OnMalformed, OnMissingKind, ReflectorBackoff, ReflectorError, Transform,
};
pub use self::shared::{
    Buffer, Delivery, Deltas, HandlerOptions, Informer, InformerOptions, KeyedDelta, KeyedQueue,
    OnPanic, OnStop, QueueClosed, Registration, Stats, Status, kind_name,
};
pub use self::source::{Cut, Scope};
pub use self::store::index::NAMESPACE_INDEX;
pub use self::synced::{NotSynced, Synced, Unsynced, wait_for_cache_sync};
pub use self::version::compare_versions;
