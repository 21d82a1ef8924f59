//! Orphan collection (G-01 to G-07): instances that no Proxy stands behind any more.
//!
//! Such an instance is left when a Proxy is deleted by force, when an API server comes back from an
//! old backup, or when a process dies between two providers. It costs money and nobody looks at it.
//! Deleting one too many costs a machine that serves, so everything here errs on the side of an
//! instance that stays.
//!
//! A collector runs one cycle after the other: it lists the instances by cluster tag, then the
//! Proxies live, decides by both, and carries out what comes of it.
//!
//! ```text
//! survey ──▶ fleet ──▶ decide (pure) ──▶ for each: Proxy live, instance again ──▶ delete
//!  (instances) (Proxies)   │                                                       ≤ 5, 1/s
//!                          └──▶ unclaimed: the reconciler adopts it
//! ```
//!
//! Guarantees:
//!
//! - An instance is deleted only if it was an orphan in two cycles in a row, is old enough, no live
//!   Proxy claims it at that moment, and it is the very one that was listed.
//! - An instance of a live Proxy whose status names none is handed to the reconciler, never deleted.
//! - What a provider, a zone or the API server does not tell is unknown: neither orphan nor gone.
//!
//! Not guaranteed: that an orphan goes soon, or at all while a [`Guard`] holds.

use std::time::Duration;

mod collector;
pub mod command;
pub(crate) mod decide;
mod fleet;
mod guard;
mod metrics;
mod notices;
mod survey;
#[cfg(test)]
mod testing;

pub(crate) use collector::{Collector, HandOver};
pub(crate) use fleet::{Calm, Fleet};
pub use guard::Guard;
pub(crate) use metrics::Metrics;
pub(crate) use notices::Notices;

/// Most deletions of one cycle (G-05).
pub const MOST_PER_CYCLE: usize = 5;

/// Time between two deletions of one cycle (G-05).
const PAUSE: Duration = Duration::from_secs(1);

/// What becomes of orphans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Nobody looks for them.
    Off,
    /// They are reported.
    #[default]
    DryRun,
    /// They are reported and deleted.
    Delete,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::DryRun => "dry-run",
            Self::Delete => "delete",
        })
    }
}

/// How orphans are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What becomes of them. Default [`Mode::DryRun`].
    pub mode: Mode,
    /// From one cycle to the next; the first comes that long after the start. Default 10 min.
    pub interval: Duration,
    /// Age below which an instance is left alone. Default 15 min.
    pub min_age: Duration,
    /// How long the API server must have answered without a break before anything is deleted.
    /// Default 5 min.
    pub calm: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        Self {
            mode: Mode::default(),
            interval: minutes(10),
            min_age: minutes(15),
            calm: minutes(5),
        }
    }
}
