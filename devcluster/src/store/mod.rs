//! Multi-version object store with watch history.
//!
//! One [`Store`] holds a [`Collection`] for each kind of object. All collections share one revision counter,
//! so a revision names a point in the history of the whole store. A collection keeps, for each key, the
//! versions that are still readable, and a ring of events that watchers read by cursor.
//!
//! The store knows JSON objects and their metadata; it knows nothing of verbs, admission or kinds.

mod collection;
mod history;
mod object;
mod watcher;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use tokio::sync::watch;

pub(crate) use collection::{Collection, CommitError, Compacted, Scope};
pub(crate) use history::{Event, EventKind};
pub(crate) use object::{Draft, Key, StoredObject, field_text, object_bytes};
pub(crate) use watcher::Watcher;

/// The revision counter that all collections of a store share.
#[derive(Debug)]
struct Revision {
    newest: AtomicU64,
    /// For those who wait for a revision.
    announced: watch::Sender<u64>,
}

impl Revision {
    /// The newest revision that was handed out.
    fn current(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Takes the next revision. A collection calls this with its write lock held, so that inside a
    /// collection revisions become visible in order.
    fn next(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Wakes those who wait for a revision.
    fn announce(&self) {
        self.announced.send_replace(self.current());
    }
}

/// All objects of a cluster.
///
/// Cheap to clone; clones share the objects.
#[derive(Clone, Debug)]
pub struct Store {
    revision: Arc<Revision>,
    collections: Arc<RwLock<BTreeMap<Arc<str>, Arc<Collection>>>>,
}

impl Store {
    /// An empty store. Its first revision is 1, as etcd's.
    pub(crate) fn new() -> Self {
        let revision = Revision {
            newest: AtomicU64::new(1),
            announced: watch::Sender::new(1),
        };
        Self {
            revision: Arc::new(revision),
            collections: Arc::default(),
        }
    }

    /// The newest revision of the whole store.
    pub fn revision(&self) -> u64 {
        self.revision.current()
    }

    /// Waits until the store has reached a revision. Cancel-safe.
    pub(crate) async fn reached(&self, revision: u64) {
        let mut announced = self.revision.announced.subscribe();
        // The sender lives in the store.
        let _closed = announced
            .wait_for(|newest| *newest >= revision)
            .await
            .is_err();
    }

    /// The number of objects that exist now, over all collections. Cost: one lock per collection.
    pub fn object_count(&self) -> usize {
        self.collections
            .read()
            .values()
            .map(|collection| collection.len())
            .sum()
    }

    /// The collection of that name (`group/plural`), made when it does not exist.
    ///
    /// The history of a new collection starts at the current revision.
    pub(crate) fn collection(&self, name: &str) -> Arc<Collection> {
        if let Some(found) = self.collections.read().get(name) {
            return Arc::clone(found);
        }
        let mut collections = self.collections.write();
        let name: Arc<str> = Arc::from(name);
        Arc::clone(
            collections
                .entry(Arc::clone(&name))
                .or_insert_with(|| Arc::new(Collection::new(name, Arc::clone(&self.revision)))),
        )
    }

    /// Forgets a collection, with all its objects and history.
    pub(crate) fn drop_collection(&self, name: &str) {
        self.collections.write().remove(name);
    }

    /// Forgets the watch history of every collection: watches from an older revision answer 410, and watches
    /// that lag behind are ended.
    pub fn trim_history(&self) {
        for collection in self.collections.read().values() {
            collection.trim_history();
        }
    }

    /// Forgets the watch history of one collection (`apps/deployments`, `/configmaps`), as
    /// [`Store::trim_history`] does. Nothing happens where there is no such collection.
    pub fn trim_history_of(&self, collection: &str) {
        if let Some(collection) = self.collections.read().get(collection) {
            collection.trim_history();
        }
    }

    /// Begins the watch history of every collection anew at the current revision, as a server does that starts.
    pub(crate) fn forget_history(&self) {
        for collection in self.collections.read().values() {
            collection.forget_history();
        }
    }

    /// Makes all versions that were replaced before `revision` unreadable, in every collection: exact reads
    /// and continue tokens of older revisions answer 410. Watch history stays.
    pub fn compact(&self, revision: u64) {
        for collection in self.collections.read().values() {
            collection.compact(revision.min(self.revision.current()));
        }
    }
}

#[cfg(test)]
mod tests;
