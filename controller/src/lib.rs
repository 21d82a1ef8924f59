#![doc = include_str!("../README.md")]

pub mod apply;
mod builder;
pub mod consistency;
mod controller;
mod enqueue;
mod error;
pub mod events;
pub mod expectations;
pub mod finalizer;
mod intake;
pub mod manager;
pub mod metrics;
mod options;
pub mod owners;
mod panic;
pub mod patch;
pub mod predicate;
mod reconcile;
pub mod retry;
mod settle;
pub mod signals;
pub mod slow_start;
mod source;
pub mod upsert;
mod worker;

pub use informer::{Event, Informer, InformerOptions, Lister, MetadataOnly, ObjectKey};
pub use uuid::Uuid;
#[doc(no_inline)]
pub use {informer, workqueue};

pub use crate::builder::{ControllerBuilder, NoObject};
pub use crate::controller::{Controller, ControllerHandle};
pub use crate::enqueue::LOW_PRIORITY;
pub use crate::error::Error;
pub use crate::manager::{Manager, ManagerOptions};
pub use crate::options::ControllerOptions;
pub use crate::reconcile::{Action, BoxError, Cancelled, Context, ReconcileError, Reconciler};
pub use crate::retry::{MaybeConflict, retry_on_conflict};
pub use crate::signals::Signals;
pub use crate::source::Source;

/// The queue of every controller.
type Queue = workqueue::PriorityQueue<ObjectKey>;

/// A key on its way through a worker.
type Item = workqueue::Item<ObjectKey, workqueue::order::Priority>;
