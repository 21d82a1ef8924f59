//! One kind's objects: version chains, commits, snapshots.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use parking_lot::RwLock;
use tokio::{sync::watch, time::Instant};

use super::{
    Revision,
    history::{Event, EventKind, History},
    object::{Draft, Key, StoredObject},
    watcher::Watcher,
};

/// Which objects of a collection a read covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    All,
    Namespace(&'a str),
    One(&'a Key),
}

impl Scope<'_> {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(namespace) => key.namespace() == Some(namespace),
            Self::One(one) => *one == key,
        }
    }
}

/// Why a commit changed nothing.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// The key is taken by this object.
    Exists(Arc<StoredObject>),
    /// The key is free.
    Missing,
    /// The object changed since it was read.
    Changed,
}

/// The asked revision is older than what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The oldest revision that can be asked for.
    pub(crate) oldest: u64,
}

#[derive(Debug)]
struct Version {
    revision: u64,
    /// `None`: removed at that revision.
    object: Option<Arc<StoredObject>>,
}

#[derive(Debug)]
struct State {
    /// Versions of each key, oldest first; never empty.
    chains: BTreeMap<Key, Vec<Version>>,
    live: usize,
    history: History,
    /// Snapshots of this revision and later are whole.
    compacted: u64,
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Collection {
    name: Arc<str>,
    revision: Arc<Revision>,
    state: RwLock<State>,
    /// Sequence number after the newest event; watchers sleep on it.
    published: watch::Sender<u64>,
}

impl Collection {
    pub(super) fn new(name: Arc<str>, revision: Arc<Revision>) -> Self {
        let floor = revision.current();
        Self {
            name,
            revision,
            state: RwLock::new(State {
                chains: BTreeMap::new(),
                live: 0,
                history: History::starting_at(floor),
                compacted: 0,
            }),
            published: watch::Sender::new(0),
        }
    }

    /// The number of objects that exist now.
    pub(crate) fn len(&self) -> usize {
        self.state.read().live
    }

    /// The newest version of an object.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<StoredObject>> {
        let state = self.state.read();
        let newest = state.chains.get(key)?.last()?;
        newest.object.clone()
    }

    /// Stores a new object.
    ///
    /// # Errors
    /// [`CommitError::Exists`] when the key is taken.
    pub(crate) fn create(&self, key: &Key, draft: Draft) -> Result<Arc<StoredObject>, CommitError> {
        let mut state = self.state.write();
        if let Some(Version {
            object: Some(object),
            ..
        }) = state.chains.get(key).and_then(|chain| chain.last())
        {
            return Err(CommitError::Exists(Arc::clone(object)));
        }
        let object = Arc::new(StoredObject::seal(draft, self.revision.next()));
        self.publish(
            &mut state,
            Event::new(EventKind::Put, key.clone(), Arc::clone(&object), None),
        );
        Ok(object)
    }

    /// Replaces the version `expected` of an object.
    ///
    /// # Errors
    /// [`CommitError::Missing`] or [`CommitError::Changed`].
    pub(crate) fn replace(
        &self,
        key: &Key,
        expected: u64,
        draft: Draft,
    ) -> Result<Arc<StoredObject>, CommitError> {
        let mut state = self.state.write();
        let previous = expect(&state, key, expected)?;
        let object = Arc::new(StoredObject::seal(draft, self.revision.next()));
        let event = Event::new(
            EventKind::Put,
            key.clone(),
            Arc::clone(&object),
            Some(previous),
        );
        self.publish(&mut state, event);
        Ok(object)
    }

    /// Removes the version `expected` of an object. `last` is the content that watchers of the removal get;
    /// without it, the stored one. Returns that content under the revision of the removal.
    ///
    /// # Errors
    /// [`CommitError::Missing`] or [`CommitError::Changed`].
    pub(crate) fn remove(
        &self,
        key: &Key,
        expected: u64,
        last: Option<Draft>,
    ) -> Result<Arc<StoredObject>, CommitError> {
        let mut state = self.state.write();
        let previous = expect(&state, key, expected)?;
        let revision = self.revision.next();
        let object = Arc::new(match last {
            Some(draft) => StoredObject::seal(draft, revision),
            None => previous.restamped(revision),
        });
        let event = Event::new(
            EventKind::Delete,
            key.clone(),
            Arc::clone(&object),
            Some(previous),
        );
        self.publish(&mut state, event);
        Ok(object)
    }

    fn publish(&self, state: &mut State, event: Event) {
        let version = Version {
            revision: event.revision,
            object: (event.kind == EventKind::Put).then(|| Arc::clone(&event.object)),
        };
        match (event.kind, &event.previous) {
            (EventKind::Put, None) => state.live += 1,
            (EventKind::Delete, _) => state.live -= 1,
            (EventKind::Put, Some(_)) => {}
        }
        state
            .chains
            .entry(event.key.clone())
            .or_default()
            .push(version);
        state.history.push(Arc::new(event));
        let now = Instant::now();
        while let Some(trimmed) = state.history.trim_one(now) {
            state.compacted = state.compacted.max(trimmed.revision);
            forget_before(&mut state.chains, &trimmed.key, trimmed.revision);
        }
        self.published.send_replace(state.history.end());
        self.revision.announce();
    }

    /// Drops versions that were replaced at or before `revision`. Cost: one pass over the collection.
    pub(super) fn compact(&self, revision: u64) {
        let mut state = self.state.write();
        state.compacted = state.compacted.max(revision);
        let keys: Vec<Key> = state.chains.keys().cloned().collect();
        for key in keys {
            forget_before(&mut state.chains, &key, revision);
        }
    }

    /// Forgets the history of events. Watches that start before it, or have not read all of it, end.
    pub(super) fn trim_history(&self) {
        self.state.write().history.trim_all();
    }

    /// Forgets the history of events, and that nothing happened between the last of them and now.
    pub(super) fn forget_history(&self) {
        let mut state = self.state.write();
        // With the lock held no event of this collection up to the counter is still to come.
        let now = self.revision.current();
        state.history.begin_at(now);
    }

    /// Visits objects in key order, as they were at revision `at` (`None`: now), from key `start` on, until the
    /// visitor breaks. Returns the revision that was read.
    ///
    /// The collection is locked for writers meanwhile: a visitor should only collect.
    ///
    /// # Errors
    /// [`Compacted`] when `at` is no longer kept.
    pub(crate) fn scan(
        &self,
        scope: Scope<'_>,
        start: Option<&str>,
        at: Option<u64>,
        visit: impl FnMut(&Key, &Arc<StoredObject>) -> ControlFlow<()>,
    ) -> Result<u64, Compacted> {
        let state = self.state.read();
        // Every revision of this collection up to the counter is visible while its lock is held.
        let now = self.revision.current();
        if let Some(at) = at.filter(|at| *at < state.compacted) {
            tracing::debug!(collection = %self.name, at, oldest = state.compacted, "snapshot is gone");
            return Err(Compacted {
                oldest: state.compacted,
            });
        }
        visit_versions(&state, scope, start, at, visit);
        Ok(at.unwrap_or(now))
    }

    /// Visits the current objects and returns a watcher that continues exactly there, with the revision.
    pub(crate) fn scan_and_watch(
        self: &Arc<Self>,
        scope: Scope<'_>,
        visit: impl FnMut(&Key, &Arc<StoredObject>) -> ControlFlow<()>,
    ) -> (u64, Watcher) {
        let state = self.state.read();
        let revision = self.revision.current();
        visit_versions(&state, scope, None, None, visit);
        let watcher = Watcher::new(
            Arc::clone(self),
            state.history.end(),
            revision,
            self.published.subscribe(),
        );
        (revision, watcher)
    }

    /// A watcher of the events after `revision`, which may lie in the future.
    ///
    /// # Errors
    /// [`Compacted`] when events after that revision were trimmed.
    pub(crate) fn watch_after(self: &Arc<Self>, revision: u64) -> Result<Watcher, Compacted> {
        let state = self.state.read();
        match state.history.position_after(revision) {
            Some(from) => Ok(Watcher::new(
                Arc::clone(self),
                from,
                revision,
                self.published.subscribe(),
            )),
            None => Err(Compacted {
                oldest: state.history.floor(),
            }),
        }
    }

    /// Up to `max` events from sequence number `from` on and the newest revision that they complete.
    pub(super) fn events_from(
        &self,
        from: u64,
        max: usize,
    ) -> Option<(Vec<Arc<Event>>, Option<u64>)> {
        let state = self.state.read();
        let events = state.history.read(from, max)?;
        let drained = from + events.len() as u64 == state.history.end();
        // With the lock held no event of this collection up to the counter is still to come.
        Some((events, drained.then(|| self.revision.current())))
    }
}

fn expect(state: &State, key: &Key, expected: u64) -> Result<Arc<StoredObject>, CommitError> {
    match state.chains.get(key).and_then(|chain| chain.last()) {
        Some(Version {
            object: Some(object),
            ..
        }) if object.revision == expected => Ok(Arc::clone(object)),
        Some(Version {
            object: Some(_), ..
        }) => Err(CommitError::Changed),
        _ => Err(CommitError::Missing),
    }
}

/// Drops the versions of a key that no snapshot at or after `revision` shows.
fn forget_before(chains: &mut BTreeMap<Key, Vec<Version>>, key: &Key, revision: u64) {
    let Some(chain) = chains.get_mut(key) else {
        return;
    };
    let replaced = chain
        .partition_point(|version| version.revision <= revision)
        .saturating_sub(1);
    chain.drain(..replaced);
    let gone =
        matches!(&chain[..], [Version { object: None, revision: removed }] if *removed <= revision);
    if gone {
        chains.remove(key);
    }
}

fn visit_versions(
    state: &State,
    scope: Scope<'_>,
    start: Option<&str>,
    at: Option<u64>,
    mut visit: impl FnMut(&Key, &Arc<StoredObject>) -> ControlFlow<()>,
) {
    let first = match scope {
        Scope::All => String::new(),
        Scope::Namespace(namespace) => format!("{namespace}/"),
        Scope::One(key) => key.as_str().to_owned(),
    };
    let from = start
        .filter(|start| *start > first.as_str())
        .unwrap_or(&first);
    let range = state
        .chains
        .range::<str, _>((Bound::Included(from), Bound::Unbounded));
    for (key, chain) in range.take_while(|(key, _)| scope.contains(key)) {
        let shown = match at {
            None => chain.last(),
            Some(at) => chain[..chain.partition_point(|version| version.revision <= at)].last(),
        };
        if let Some(Version {
            object: Some(object),
            ..
        }) = shown
            && visit(key, object).is_break()
        {
            return;
        }
    }
}
