//! Leader election on a Lease of the API server: of several processes one at a time leads.
//!
//! Guarantees, as long as monotonic clocks of different machines run at rates that differ by less
//! than `lease_duration` and `renew_deadline` do (15 : 10 unless set otherwise):
//!
//! - At most one process is leader at any moment by [`Term::is_valid`], whatever wall clocks say and
//!   however long calls or processes stand still. A leader counts its renew deadline from before it
//!   *sent* the last successful renewal, the others count the lease from after they *saw* it.
//! - A contender takes over no sooner than the duration in the record after it saw the last change,
//!   and at the latest one try after that.
//! - The work of a term is over before the Lease is given back, and before the same process leads
//!   again. A process that is stopping never becomes leader.
//! - Labels, annotations and fields that this crate does not know stay in the Lease.
//! - client-go's elector and this one contend for one Lease and honour each other.
//!
//! Not guaranteed: that work which does not look at its term ends with it. A process that was
//! suspended may go on with a write for a moment after somebody else leads, before it notices. Guard
//! writes by `resourceVersion`, and where an old write would do harm note [`Term::number`] beside the
//! data and refuse to write over a higher one. On Linux a monotonic clock does not count the time for
//! which the whole machine was suspended.

mod candidate;
mod contender;
mod decide;
mod elector;
#[cfg(test)]
mod fake;
mod handle;
mod lock;
mod options;
mod record;
#[cfg(test)]
mod simulation;

pub use self::candidate::{Candidate, Term};
pub use self::decide::{Now, Observation, Step, decide};
pub use self::elector::{Elector, Error};
pub use self::handle::{ElectionHandle, ElectionMetrics, Unhealthy};
pub(crate) use self::options::{Config, JITTER};
pub use self::options::{ElectionOptions, Fault, InvalidOptions, unique_identity};
pub use self::record::Record;
