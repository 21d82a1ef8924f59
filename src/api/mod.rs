//! The Proxy resource: types, schema, admission rules, conditions, spec hash. No IO.
//!
//! - [`v1alpha1`] has the types, [`defaults`] their defaults and what is resolved in code.
//! - [`rules`] is the table of admission rules; [`crd`] hangs them on the schema, and
//!   [`validation`] applies the same rules to an object that an older definition let through,
//!   [`limits`] the whole schema to a manifest.
//! - [`conditions`] has types and reasons of the conditions, [`phase`] what follows from them.
//! - [`hash`] tells whether a running machine is still what the spec asks for.

pub mod conditions;
pub mod defaults;
pub mod hash;
pub mod limits;
pub mod phase;
pub mod rules;
pub mod v1alpha1;
pub mod validation;

mod crd;
mod schema;

pub use crd::{Error as CrdError, crd, crd_yaml};
pub use hash::{Credentials, SpecHash, spec_hash};
pub use phase::{compute_phase, compute_ready};
pub use v1alpha1::*;

/// API group of the Proxy resource.
pub const GROUP: &str = "crawl.proxyoperator.dev";
/// Finalizer of a Managed proxy: holds the object until its machine is gone.
pub const FINALIZER: &str = "crawl.proxyoperator.dev/instance-cleanup";
/// Annotation with the spec hash of the machine that runs; written by the operator alone.
pub const SPEC_HASH_ANNOTATION: &str = "crawl.proxyoperator.dev/spec-hash";
/// Annotation of the user: any new value makes the operator try again after a permanent error.
pub const RETRY_ANNOTATION: &str = "crawl.proxyoperator.dev/retry";
/// Annotation of the user: no replacement while it is there.
pub const SKIP_REPLACEMENT_ANNOTATION: &str = "crawl.proxyoperator.dev/skip-replacement";
/// Annotation of the user: `"true"` lets the object go and leaves its machine where it is.
pub const ABANDON_INSTANCE_ANNOTATION: &str = "crawl.proxyoperator.dev/abandon-instance";
