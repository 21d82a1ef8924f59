//! Replacing the whole store by a list, in one visible step.

use std::sync::Arc;

use kube_core::Resource;

use super::index::{Index, Indexer};
use super::map::Map;
use super::{Change, Entry, Store, Version, changes_by, is_of, same_state};
use crate::ObjectKey;

/// The state that a list builds beside the stored one.
///
/// An object whose UID and resource version are those of the stored one keeps its stored copy, so
/// a list that repeats the store costs a table of references.
#[derive(Debug)]
pub(crate) struct BuildUp<K> {
    /// The state that the list is compared with.
    base: Arc<Version<K>>,
    next: Version<K>,
    /// Objects that differ from the stored ones, in list order. One that a later object of its
    /// key replaced, or that was removed, is no longer the one in `next`.
    fresh: Vec<Arc<K>>,
}

impl<K: Resource + Send + Sync + 'static> BuildUp<K> {
    /// Takes `object` into the new state. Of two objects of one key the later counts.
    ///
    /// Returns whether the object has a name; without one it cannot be stored.
    #[must_use]
    pub(crate) fn put(&mut self, object: K) -> bool {
        let Some(key) = ObjectKey::try_of(&object) else {
            return false;
        };
        let stored = self.base.get(&key);
        if let Some(stored) = stored.filter(|stored| same_state(&*stored.object, &object)) {
            self.next.put(stored.clone());
            return true;
        }
        let object = Arc::new(object);
        self.fresh.push(Arc::clone(&object));
        let entry = self.next.entry(key, object, stored);
        self.next.put(entry);
        true
    }

    /// An object is there that cannot be read. The copy that is known of it stays, the newest one
    /// if there are two. A copy of another `uid` is of another object, which is gone.
    pub(crate) fn keep(&mut self, key: &ObjectKey, uid: Option<&str>) {
        let is_copy = |entry: &Entry<K>| is_of(&*entry.object, uid);
        if let Some(newest) = self.next.get(key) {
            if !is_copy(newest) {
                self.next.take(key);
            }
        } else if let Some(stored) = self.base.get(key)
            && is_copy(stored)
        {
            self.next.put(stored.clone());
        }
    }

    /// Takes the object of `key` out of the new state.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        self.next.take(key);
    }

    /// The new state with the values of all `indexers`, of which some came during the build-up.
    fn indexed(&self, indexers: &Arc<[Indexer<K>]>) -> Version<K> {
        if Arc::ptr_eq(indexers, &self.next.indexers) {
            return self.next.clone();
        }
        let mut next = self.next.emptied(indexers);
        for entry in self.next.iter() {
            let object = Arc::clone(&entry.object);
            let entry = next.entry(entry.key.clone(), object, Some(entry));
            next.put(entry);
        }
        next
    }
}

impl<K: Resource + Send + Sync + 'static> Store<K> {
    /// Begins a new state, to be finished by [`Store::replace`].
    pub(crate) fn build_up(&self) -> BuildUp<K> {
        let base = self.version();
        BuildUp {
            next: base.emptied(&base.indexers),
            base,
            fresh: Vec::new(),
        }
    }

    /// Publishes the built state and tells the differences: deletions first, then the rest in
    /// list order. A deletion carries the last state known, which need not be the final one.
    pub(crate) fn replace(&self, built: &BuildUp<K>, resource_version: &str) -> Vec<Change<K>> {
        let _writing = self.writing.lock();
        let before = self.current.load_full();
        let mut version = built.indexed(&before.indexers);
        let mut changes = Vec::with_capacity(built.fresh.len());
        for entry in before.iter() {
            if version.get(&entry.key).is_none() {
                changes.push(Change::Deleted {
                    object: Arc::clone(&entry.object),
                    last_cached: None,
                    final_state_known: false,
                });
            }
        }
        let mut born = Vec::with_capacity(built.fresh.len());
        for object in &built.fresh {
            let key = ObjectKey::of(&**object);
            let current = version.get(&key);
            if !current.is_some_and(|current| Arc::ptr_eq(&current.object, object)) {
                continue;
            }
            let old = before.get(&key).map(|old| Arc::clone(&old.object));
            let (gone, change) = changes_by(old, Arc::clone(object));
            changes.extend(gone);
            born.push(change);
        }
        changes.append(&mut born);
        version.resource_version = Arc::from(resource_version);
        self.publish(version);
        changes
    }
}

impl<K: Resource> Version<K> {
    /// A version without objects, with the indexes of `indexers`.
    fn emptied(&self, indexers: &Arc<[Indexer<K>]>) -> Self {
        let indexes = indexers.iter();
        Self {
            hasher: self.hasher.clone(),
            entries: Map::default(),
            indexes: indexes
                .map(|indexer| Index::new(Arc::clone(&indexer.name)))
                .collect(),
            indexers: Arc::clone(indexers),
            resource_version: Arc::clone(&self.resource_version),
        }
    }
}
