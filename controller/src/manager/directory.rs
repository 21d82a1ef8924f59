//! What a manager runs, to be looked at while it runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use informer::{Informer, ObjectKey, Status, Synced};
use kube_core::Resource;

use crate::ControllerHandle;
use crate::election::ElectionHandle;

/// Where a manager stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Phase {
    /// Not run yet, or groups are being started.
    #[default]
    Starting,
    /// Everything that needs no leadership has been started.
    Running,
    /// It was told to stop, or something failed.
    Stopping,
}

/// An informer, without its kind.
pub(crate) trait Watched: Send + Sync {
    fn name(&self) -> String;
    fn status(&self) -> Status;
    /// Events that wait, by handler.
    fn queue_lengths(&self) -> Vec<(String, usize)>;
}

impl<K: Resource + Send + Sync + 'static> Watched for Informer<K> {
    fn name(&self) -> String {
        Synced::name(self)
    }

    fn status(&self) -> Status {
        Informer::status(self)
    }

    fn queue_lengths(&self) -> Vec<(String, usize)> {
        Informer::queue_lengths(self)
    }
}

/// What a manager runs: its informers, controllers and election. A handle; clones are the same.
///
/// It is what readiness, metrics and diagnostics are read from; see [`server`](crate::server).
#[derive(Clone, Default)]
pub struct Directory(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    phase: Phase,
    informers: Vec<Arc<dyn Watched>>,
    /// In the order of their names, which several may share.
    controllers: Vec<(Place, ControllerHandle)>,
    places: u64,
    election: Option<ElectionHandle>,
}

/// Where a controller stands in a directory, whatever its name: the one of a later term takes it over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u64);

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries();
        let informers: Vec<_> = entries.informers.iter().map(|one| one.name()).collect();
        let controllers = entries.controllers.iter();
        let controllers: Vec<_> = controllers.map(|(_, handle)| handle.name()).collect();
        f.debug_struct("Directory")
            .field("phase", &entries.phase)
            .field("informers", &informers)
            .field("controllers", &controllers)
            .finish_non_exhaustive()
    }
}

impl Directory {
    /// Where the manager stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.entries().phase
    }

    /// Handles of the controllers, in the order of their names.
    #[must_use]
    pub fn controllers(&self) -> Vec<ControllerHandle> {
        let entries = self.entries();
        let handles = entries.controllers.iter().map(|(_, handle)| handle);
        handles.cloned().collect()
    }

    /// The election, if there is one.
    #[must_use]
    pub fn election(&self) -> Option<ElectionHandle> {
        self.entries().election.clone()
    }

    /// Whether this process may do what only a leader may: it leads, or there is no election.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.election().is_none_or(|election| election.is_leader())
    }

    pub(crate) fn informers(&self) -> Vec<Arc<dyn Watched>> {
        self.entries().informers.clone()
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.entries().phase = phase;
    }

    pub(super) fn note_informer(&self, informer: Arc<dyn Watched>) {
        self.entries().informers.push(informer);
    }

    /// A place for one controller at a time.
    pub(super) fn place(&self) -> Place {
        let mut entries = self.entries();
        entries.places += 1;
        Place(entries.places)
    }

    /// Puts a controller in its place, from which the one before has been taken.
    pub(super) fn note_controller(&self, place: Place, handle: ControllerHandle) {
        let controllers = &mut self.entries().controllers;
        let at = controllers.partition_point(|(_, other)| other.name() <= handle.name());
        controllers.insert(at, (place, handle));
    }

    /// Lets go of a controller's handle, and so of its name.
    pub(super) fn forget_controller(&self, place: Place) {
        let mut entries = self.entries();
        let at = entries.controllers.iter().position(|(at, _)| *at == place);
        let forgotten = at.map(|at| entries.controllers.remove(at));
        drop(entries);
        // Its queue ends here; not under the lock.
        drop(forgotten);
    }

    /// Keys that the controller at `place` reconciles now, the longest first.
    pub(super) fn running_at(&self, place: Place) -> Vec<ObjectKey> {
        let controllers = &self.entries().controllers;
        let handle = controllers.iter().find(|(at, _)| *at == place);
        let running = handle.map(|(_, handle)| handle.running());
        let running = running.unwrap_or_default().into_iter();
        running.map(|(key, _)| key).collect()
    }

    pub(super) fn note_election(&self, election: ElectionHandle) {
        self.entries().election = Some(election);
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // The entries are whole after each change, so a panic elsewhere leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
