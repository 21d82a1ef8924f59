//! The controller of Proxies: informers, index, reconciler, and how they hang together.
//!
//! | File | Holds |
//! |---|---|
//! | `reconcile` | R-04: key → pass → action |
//! | `managed`, `finalize`, `external` | the branches M, X and E, which carry decisions out |
//! | `plan`, `failure`, `timing` | the decisions, without effects |
//! | `inputs` | M4: live reads of Secrets |
//! | `pass`, `status` | one pass: copies, metadata writes, the one status write |
//!
//! Invariants: an instance is made only for a Proxy that carries the finalizer; a Proxy loses the
//! finalizer only after its provider said that no instance is left, or the user let it go; every
//! write carries the `resourceVersion` of the copy that it was decided on.

mod error;
mod external;
mod failure;
mod finalize;
mod inputs;
mod managed;
mod pass;
mod plan;
mod reconcile;
mod status;
#[cfg(test)]
mod testing;
mod timing;
mod wiring;

pub use error::Error as PassError;
pub use inputs::Error as InputError;
pub use timing::Timing;
pub(crate) use wiring::Parts;
pub use wiring::{Error, Operator, SECRET_INDEX};
