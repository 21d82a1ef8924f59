//! What the queue promises, case by case. Names carry the ids of the specification's rows.

mod core;
mod delayed;
mod drain;
mod fair;
mod limited;
mod metrics;
mod model;
mod priority;
mod shards;
mod support;
