//! The controller of Proxies: informers, index, reconciler, and how they hang together.
//!
//! | File | Holds |
//! |---|---|
//! | `reconcile` | R-04: key → pass → action |
//! | `managed`, `finalize`, `external` | the branches M, X and E, which carry decisions out |
//! | `create`, `replace`, `observe` | M6, M7 and M8, M9 |
//! | `plan`, `failure`, `timing`, `drain`, `brake` | the decisions, without effects |
//! | `budget`, `circuit` | what Proxies share: places out of service (S-07), a provider's quota (S-09) |
//! | `inputs` | M4: live reads of Secrets |
//! | `caches` | O-03: the informers, of the cluster or of namespaces |
//! | `recent` | what this process made of late |
//! | `metrics` | O-05: what is counted |
//! | `news` | R-13: which Events a pass tells |
//! | `unclaimed` | G-01: instances that the orphan collection found for Proxies without one on record |
//! | `pass`, `status` | one pass: copies, metadata writes, the one status write |
//!
//! Invariants: an instance is made only for a Proxy that carries the finalizer; a Proxy loses the
//! finalizer only after its provider said that no instance is left, or the user let it go; every
//! write carries the `resourceVersion` of the copy that it was decided on.

mod brake;
mod budget;
mod caches;
mod circuit;
mod create;
pub mod drain;
mod error;
mod external;
mod failure;
mod finalize;
#[cfg(test)]
mod fleet_tests;
mod inputs;
mod managed;
mod metrics;
mod news;
mod observe;
mod pass;
mod plan;
mod recent;
mod reconcile;
mod replace;
#[cfg(test)]
mod restart_tests;
#[cfg(test)]
mod simulation;
mod status;
#[cfg(test)]
pub(crate) mod testing;
mod timing;
mod unclaimed;
mod wiring;

pub use caches::Proxies;
pub use error::Error as PassError;
pub use inputs::Error as InputError;
pub use timing::Timing;
pub(crate) use wiring::Parts;
pub use wiring::{Error, Operator, SECRET_INDEX};
