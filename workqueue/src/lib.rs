#![doc = include_str!("../README.md")]

mod core;
mod deadlines;
mod delay;
mod drain;
mod error;
mod get;
mod inbox;
mod item;
mod key;
mod list;
mod options;
mod parallelize;
mod part;
mod queue;
mod shard;
mod slab;
mod sync;
#[cfg(not(loom))]
mod turn_lock;
mod wait;

pub mod clock;
pub mod limiter;
pub mod metrics;
pub mod order;

pub use crate::{
    drain::DrainOptions,
    error::Error,
    get::Get,
    item::Item,
    key::{IntoKey, KeyRef, QueueKey},
    options::{AddOptions, OnAdd, Origin, QueueOptions},
    parallelize::{PiecePanicked, parallelize_until},
    queue::WorkQueue,
    slab::KeyId,
};

/// A queue whose keys leave by priority.
pub type PriorityQueue<K> = WorkQueue<K, order::Priority>;

/// A queue whose keys leave by priority, flows taking turns within one.
pub type FairQueue<K, F> = WorkQueue<K, order::Fair<K, F>>;
