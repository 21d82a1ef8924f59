//! An embedded development cluster: an in-process Kubernetes API server with simulated nodes.
//!
//! ```text
//!   kubectl, kube-client, ...          in-process client
//!        | HTTPS (h1, h2)                    | tower service
//!        v                                   v
//!   http: TLS, paths, negotiation ------> frontend: identity, limits, counters
//!                                            |
//!                                            v
//!   schema, patch, types, printers <--- handlers: verbs, discovery ---> apply: owners of fields
//!                                            |
//!                     controllers ------> registry: strategy table, definitions
//!                                            |
//!                                            v
//!                                          store: versions, history, watchers
//! ```
//!
//! # Guarantees
//! - Real clients work unchanged: `kubectl`, kube-client, client-go's JSON clients.
//! - One revision counter over all kinds; a revision is never used twice. Watches see every event of their
//!   kind once and in order, or are told that they cannot.
//! - A list and all of its pages show one moment.
//! - Every write moves the ownership of fields as in a real server, and server-side apply goes by it, unless
//!   [`Builder::field_tracking`] says otherwise.
//! - A write either happens wholly or leaves no trace; a write that changes nothing costs no revision.
//! - A watcher holds no events of its own: one that reads slowly is ended, others are not delayed.
//! - Dropping the handle stops every task and frees the port. Many clusters run in one process.
//! - Timestamps, timeouts and tokens follow tokio's clock, paused or not.
//!
//! # Not guaranteed
//! - Nothing is kept when the cluster ends.
//! - Everybody who has a token may do everything, unless [`Builder::authorization`] asks for roles.
//! - No protobuf answers (clients that ask for them take JSON as well), no admission webhooks, no conversion
//!   webhooks.
//! - No garbage collector: owner references are stored, dependents stay, and a deletion in the foreground
//!   waits until somebody takes its finalizer away, as with an API server that runs alone.
//! - Tokens of service accounts are bound to no other object; asking for that is refused.
//! - What CEL rules cost is told before they run, from the sizes of the object. A rule that would stop early
//!   on a very large object may be refused where the real server lets it run.
//! - It serves its own machine, for development and tests; it is not hardened against its clients.

mod apply;
mod auth;
mod authorization;
mod clock;
mod cluster;
mod controllers;
mod counters;
pub mod echo;
mod error;
pub mod faults;
mod frontend;
mod handlers;
mod http;
pub mod kubelet;
mod openapi;
mod patch;
mod printers;
mod protobuf;
pub mod proxy;
mod registry;
mod schema;
mod selector;
mod store;
mod types;

pub use apply::FieldTracking;
pub use auth::KeyError;
pub use authorization::Authorization;
pub use clock::Clock;
pub use cluster::{Builder, DevCluster, Error};
pub use counters::{CounterKey, Counters, LogEntry, RevisionClass, WatchCounters};
pub use http::tls::Error as TlsError;
pub use store::Store;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
