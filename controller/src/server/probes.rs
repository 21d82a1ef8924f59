//! Readiness and liveness of what a manager runs.

use super::Health;
use crate::election::ElectionHandle;
use crate::manager::{Directory, Phase};
use crate::reconcile::BoxError;

/// Whether this process can do its part: caches are filled, and controllers, if it is theirs to run,
/// have begun. False again from the stop on. A standby of an election is ready without the
/// controllers that need the leadership, so that a rollout can go on.
#[must_use]
pub fn readiness(directory: &Directory) -> Health {
    let (phase, informers, controllers) = (directory.clone(), directory.clone(), directory.clone());
    Health::new()
        .check("running", move || match phase.phase() {
            Phase::Running => Ok(()),
            Phase::Starting => Err("still starting".into()),
            Phase::Stopping => Err("stopping".into()),
        })
        .check("informers", move || {
            let unsynced: Vec<_> = informers
                .informers()
                .iter()
                .filter(|informer| !informer.status().synced)
                .map(|informer| informer.name())
                .collect();
            all(&unsynced, "not synced")
        })
        .check("controllers", move || {
            let leads = controllers.is_leader();
            let unsynced: Vec<_> = controllers
                .controllers()
                .iter()
                .filter(|controller| leads || !controller.needs_leadership())
                .filter(|controller| !controller.has_synced())
                .map(|controller| controller.name().to_owned())
                .collect();
            all(&unsynced, "not synced")
        })
}

/// Whether this process should go on: false if it takes itself for the leader and its election does
/// not run any more ([`ElectionHandle::check`] with the default tolerance), or if a reconcile has run
/// for longer than its controller allows ([`ControllerOptions::stuck_after`]).
///
/// [`ControllerOptions::stuck_after`]: crate::ControllerOptions::stuck_after
#[must_use]
pub fn liveness(directory: &Directory) -> Health {
    let (election, runs) = (directory.clone(), directory.clone());
    Health::new()
        .check("leader-election", move || match election.election() {
            Some(election) => Ok(election.check(ElectionHandle::DEFAULT_TOLERANCE)?),
            None => Ok(()),
        })
        .check("runs", move || {
            for controller in runs.controllers() {
                controller.check_alive()?;
            }
            Ok(())
        })
}

fn all(bad: &[String], what: &str) -> Result<(), BoxError> {
    if bad.is_empty() {
        Ok(())
    } else {
        Err(format!("{what}: {}", bad.join(", ")).into())
    }
}
