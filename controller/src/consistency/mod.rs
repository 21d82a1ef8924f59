//! Read-your-writes: know when the caches have caught up with one's own writes.
//!
//! A cache lags behind the API server, so a reconcile right after an own write may see the state
//! before it and, say, create a second pod. A controller therefore notes what a run has written, and
//! does not run its key again before its caches show that, or until a cap is over
//! ([`ControllerOptions::read_your_writes`], 10 s unless said otherwise). Other keys go on. A run
//! after the cap is told by [`Context::stale`] that its caches are behind. Mirrors Kubernetes'
//! `controller/util/consistency`, and does by itself what has to be called there.
//!
//! # What is noticed
//! - what this crate's functions write: [`apply`], [`upsert`], [`finalizer`], when they are called in
//!   the task of the reconcile;
//! - what is told by [`Context::wrote`], with the object that the server has answered with: for
//!   calls of an `Api` of one's own. In tasks of one's own [`Context::noticing`] lets this crate's
//!   functions be noticed too.
//!
//! # What is waited for
//! The caches that the controller has as a source, or is told of by
//! [`ControllerBuilder::reads`]. A write counts for each that caches its kind and will show it. One
//! with a selector is taken to do so if it shows the object now, or if its label selector takes the
//! written labels in; one with a field selector, or with a comparison of numbers (`a>1`) among its
//! labels, only if it shows the object now. Versions are compared within one kind only. A write that the cache shows already is not noted, so nothing is
//! kept of a controller that lags by less than a run.
//!
//! A record ends when the caches have reached it, when the object of the key is gone, or when it has
//! another UID.
//!
//! # By hand
//! [`ConsistencyStore`] is the part that knows versions and keys alone, for those who work without a
//! [`Controller`]:
//!
//! ```
//! use std::time::Duration;
//! use controller::consistency::{Consistency, ConsistencyStore};
//! use controller::{Action, ObjectKey};
//!
//! let store = ConsistencyStore::new(Duration::from_secs(5));
//! // An `Informer` in real life; here a cache that stands at version 7.
//! let proxies = store.track("Proxy", || Some("7".into()));
//!
//! let (key, uid) = (ObjectKey::namespaced("ns", "a"), "u-1");
//! store.wrote(&key, uid, proxies, "9"); // the server answered our patch with version 9
//! match store.check(&key, uid) {
//!     Consistency::Level => unreachable!("7 is older than 9"),
//!     // The event of our write comes earlier and wakes the key.
//!     Consistency::Behind(lag) => assert!(lag.remaining <= Duration::from_secs(5)),
//!     Consistency::Overdue(_) => { /* read the object live */ }
//! }
//! ```
//!
//! [`ControllerOptions::read_your_writes`]: crate::ControllerOptions::read_your_writes
//! [`Context::stale`]: crate::Context::stale
//! [`Context::wrote`]: crate::Context::wrote
//! [`Context::noticing`]: crate::Context::noticing
//! [`ControllerBuilder::reads`]: crate::ControllerBuilder::reads
//! [`Controller`]: crate::Controller
//! [`apply`]: crate::apply
//! [`upsert`]: crate::upsert
//! [`finalizer`]: crate::finalizer

mod cache;
mod own_writes;
mod selector;
mod store;

pub use self::cache::Cache;
pub use self::own_writes::OwnWrites;
pub(crate) use self::own_writes::{Run, notice};
pub use self::store::{Consistency, ConsistencyStore, Lag, ObservedVersion, Tracked};
