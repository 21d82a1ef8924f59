#![doc = include_str!("../README.md")]

pub mod apply;
mod brake;
mod builder;
pub mod consistency;
mod controller;
pub mod election;
mod enqueue;
mod error;
pub mod events;
pub mod expectations;
mod failure;
mod feed;
pub mod finalizer;
mod intake;
mod journal;
pub mod manager;
pub mod metrics;
mod names;
mod options;
pub mod owners;
mod panic;
pub mod patch;
pub mod predicate;
pub mod prelude;
mod reconcile;
mod redact;
pub mod retry;
pub mod server;
mod settle;
pub mod sharding;
pub mod signals;
pub mod slow_start;
mod source;
#[cfg(feature = "testing")]
pub mod testing;
pub mod upsert;
mod worker;

/// The guide, so that its code is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/write-a-controller.md")]
mod guide {}

pub use informer::{Event, Informer, InformerOptions, Lister, MetadataOnly, ObjectKey};
pub use uuid::Uuid;
#[doc(no_inline)]
pub use {informer, workqueue};

pub use crate::builder::{ControllerBuilder, NoObject};
pub use crate::controller::{Controller, ControllerHandle};
pub use crate::enqueue::LOW_PRIORITY;
pub use crate::error::Error;
pub use crate::feed::{CHANNEL_CAPACITY, Enqueuer, Feed, FeedSender, SendError};
pub use crate::journal::{KeyHistory, Outcome, PastRun, RUNS_KEPT, StuckRun, Trigger};
pub use crate::manager::{Manager, ManagerHandle, ManagerOptions};
pub use crate::options::ControllerOptions;
pub use crate::reconcile::{Action, BoxError, Cancelled, Context, ReconcileError, Reconciler};
pub use crate::retry::{MaybeConflict, retry_on_conflict};
pub use crate::signals::Signals;
pub use crate::source::Source;

/// The queue of every controller.
type Queue = workqueue::PriorityQueue<ObjectKey>;

/// A key on its way through a worker.
type Item<'q> = workqueue::Item<'q, ObjectKey, workqueue::order::Priority>;
