//! Replacing the whole store by a list, in one visible step.

use std::sync::Arc;

use kube_core::Resource;

use super::index::Indexer;
use super::trie::Trie;
use super::{Change, Entry, Store, Version, changes_by, same_state};
use crate::ObjectKey;

/// The state that a list builds beside the stored one.
///
/// An object whose UID and resource version are those of the stored one keeps its stored copy, so
/// a list that repeats the store costs a table of references.
#[derive(Debug)]
pub(crate) struct BuildUp<K> {
    /// The state that the list is compared with.
    base: Arc<Version<K>>,
    entries: Trie<Arc<Entry<K>>>,
    /// Entries that differ from the stored ones, in list order. One that a later object of its
    /// key replaced, or that was removed, is no longer the one in `entries`.
    fresh: Vec<Arc<Entry<K>>>,
}

impl<K: Resource + Send + Sync + 'static> BuildUp<K> {
    /// Takes `object` into the new state. Of two objects of one key the later counts.
    ///
    /// Returns whether the object has a name; without one it cannot be stored.
    #[must_use]
    pub(crate) fn put(&mut self, object: K) -> bool {
        let Some(key) = self.base.shared_key(&object) else {
            return false;
        };
        let stored = self.base.get(&key);
        let entry = match stored {
            Some(stored) if same_state(&*stored.object, &object) => Arc::clone(stored),
            // Index values come at the commit, when no index can be added any more.
            _ => Arc::new(Entry {
                key,
                object: Arc::new(object),
                values: Box::default(),
            }),
        };
        let unchanged = stored.is_some_and(|stored| Arc::ptr_eq(stored, &entry));
        let hash = self.base.hasher.key(&entry.key);
        self.entries
            .insert(hash, Arc::clone(&entry), |other| other.key == entry.key);
        if !unchanged {
            self.fresh.push(entry);
        }
        true
    }

    /// Takes the stored copy of an object over, if there is one.
    pub(crate) fn keep(&mut self, key: &ObjectKey) {
        if let Some(stored) = self.base.get(key) {
            let hash = self.base.hasher.key(key);
            self.entries
                .insert(hash, Arc::clone(stored), |entry| entry.key == *key);
        }
    }

    /// Takes the object of `key` out of the new state.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        let hash = self.base.hasher.key(key);
        self.entries.remove(hash, |entry| entry.key == *key);
    }
}

impl<K: Resource + Send + Sync + 'static> Store<K> {
    /// Begins a new state, to be finished by [`Store::replace`].
    pub(crate) fn build_up(&self) -> BuildUp<K> {
        BuildUp {
            base: self.version(),
            entries: Trie::default(),
            fresh: Vec::new(),
        }
    }

    /// Publishes the built state and tells the differences: deletions first, then the rest in
    /// list order. A deletion carries the last state known, which need not be the final one.
    pub(crate) fn replace(&self, built: &BuildUp<K>, resource_version: &str) -> Vec<Change<K>> {
        let indexers = self.indexers.lock();
        let mut version = Version::clone(&self.current.load());
        let gone: Vec<ObjectKey> = version
            .iter()
            .filter(|entry| built.find(&entry.key).is_none())
            .map(|entry| entry.key.clone())
            .collect();
        let mut changes = Vec::with_capacity(gone.len() + built.fresh.len());
        for key in gone {
            if let Some(entry) = version.take(&key) {
                let object = Arc::clone(&entry.object);
                changes.push(Change::Deleted {
                    object,
                    final_state_known: false,
                });
            }
        }
        let mut born = Vec::with_capacity(built.fresh.len());
        for entry in &built.fresh {
            if !built
                .find(&entry.key)
                .is_some_and(|current| Arc::ptr_eq(current, entry))
            {
                continue;
            }
            let new = Arc::clone(&entry.object);
            let (gone, change) = changes_by(version.put_indexed(&indexers, entry), new);
            changes.extend(gone);
            born.push(change);
        }
        changes.append(&mut born);
        version.resource_version = Arc::from(resource_version);
        self.publish(version);
        changes
    }
}

impl<K: Resource> BuildUp<K> {
    fn find(&self, key: &ObjectKey) -> Option<&Arc<Entry<K>>> {
        self.entries
            .find(self.base.hasher.key(key), |entry| entry.key == *key)
    }
}

impl<K: Resource> Version<K> {
    fn put_indexed(
        &mut self,
        indexers: &[Indexer<K>],
        entry: &Arc<Entry<K>>,
    ) -> Option<Arc<Entry<K>>> {
        let entry = self.entry(indexers, entry.key.clone(), Arc::clone(&entry.object));
        self.put(&entry)
    }
}
