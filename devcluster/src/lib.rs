//! An embedded development cluster: an in-process Kubernetes API server with simulated nodes.

pub mod echo;
pub mod kubelet;
pub mod proxy;

mod clock;
mod openapi;
mod patch;
mod printers;
mod schema;
mod selector;
mod types;
