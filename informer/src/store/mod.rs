//! The indexed store: a sequence of immutable versions, one of them current.
//!
//! A write makes a new version that shares all but the changed nodes with the one before, and
//! publishes it in one step. Whoever reads takes the current version without a lock and sees
//! objects, indexes and resource version in agreement, for as long as it holds on to it.

pub(crate) mod index;
mod slab;
mod sweep;
mod trie;

use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use kube_core::Resource;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::index::{Index, Indexer, NAMESPACE_INDEX, Position};
use self::slab::{Id, Slab};
use self::trie::Trie;
use crate::version::{compare_versions, reached};
use crate::{BoxError, Error, ObjectKey};

pub(crate) use self::sweep::BuildUp;

/// What a write did to one object.
#[derive(Debug)]
pub(crate) enum Change<K> {
    Added(Arc<K>),
    Updated {
        old: Arc<K>,
        new: Arc<K>,
    },
    Deleted {
        object: Arc<K>,
        /// What was stored, where `object` came with the deletion.
        last_cached: Option<Arc<K>>,
        final_state_known: bool,
    },
}

/// One step of a watch, in the order of arrival.
#[derive(Debug)]
pub(crate) enum Delta<K> {
    /// The server says that the object is new; see [`Store::apply`] on `strict_adds`.
    Added(K),
    Modified(K),
    Deleted(K),
    /// An object was deleted whose last state cannot be read.
    Vanished(ObjectKey),
    /// An object is there that cannot be read. What is stored under its key stays, unless its UID
    /// tells that it is another one, which is gone then.
    Unreadable {
        key: ObjectKey,
        uid: String,
    },
}

/// Outcome of [`Store::apply`].
#[derive(Debug)]
pub(crate) struct Applied<K> {
    pub(crate) changes: Vec<Change<K>>,
    /// Key of an object that was announced as new at a version that the store had passed.
    pub(crate) began_anew: Option<ObjectKey>,
}

/// Hashing that keys and values of one store share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hasher(RandomState);

impl Hasher {
    fn parts(&self, namespace: Option<&str>, name: &str) -> u64 {
        self.0.hash_one((namespace, name))
    }

    fn key(&self, key: &ObjectKey) -> u64 {
        self.parts(key.namespace(), key.name())
    }

    fn value(&self, value: &str) -> u64 {
        self.0.hash_one(value)
    }
}

/// A stored object with what the store knows of it.
#[derive(Debug)]
pub(crate) struct Entry<K> {
    pub(crate) key: ObjectKey,
    pub(crate) object: Arc<K>,
    /// Which values stand for it in which index, so that taking it out needs no user code.
    values: Box<[(Position, Arc<str>)]>,
}

impl<K> Entry<K> {
    /// Whether the index at `position` gives `value` for the object.
    pub(crate) fn has(&self, position: Position, value: &str) -> bool {
        self.values
            .iter()
            .any(|(at, of)| *at == position && **of == *value)
    }
}

/// An unchanging state of the whole store.
pub(crate) struct Version<K> {
    hasher: Hasher,
    /// Entries by number, which stays the same through all changes of an object.
    entries: Slab<Arc<Entry<K>>>,
    ids: Trie<Id>,
    indexes: Vec<Index>,
    /// What gives the values of `indexes`, at the same places.
    indexers: Arc<[Indexer<K>]>,
    resource_version: Arc<str>,
}

impl<K> fmt::Debug for Version<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Version")
            .field("objects", &self.entries.len())
            .field("resource_version", &self.resource_version)
            .finish_non_exhaustive()
    }
}

impl<K> Clone for Version<K> {
    fn clone(&self) -> Self {
        Self {
            hasher: self.hasher.clone(),
            entries: self.entries.clone(),
            ids: self.ids.clone(),
            indexes: self.indexes.clone(),
            indexers: Arc::clone(&self.indexers),
            resource_version: Arc::clone(&self.resource_version),
        }
    }
}

impl<K> Version<K> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn resource_version(&self) -> &Arc<str> {
        &self.resource_version
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Arc<Entry<K>>> {
        self.find(key.namespace(), key.name())
    }

    fn find(&self, namespace: Option<&str>, name: &str) -> Option<&Arc<Entry<K>>> {
        let hash = self.hasher.parts(namespace, name);
        self.ids.find(hash, |id| {
            self.entries
                .get(*id)
                .filter(|entry| entry.key.name() == name && entry.key.namespace() == namespace)
        })
    }

    /// All entries, in the order in which their keys came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Entry<K>>> {
        self.entries.iter()
    }

    fn index(&self, name: &str) -> Result<&Index, Error> {
        self.indexes
            .iter()
            .find(|index| *index.name == *name)
            .ok_or_else(|| Error::UnknownIndex {
                name: name.to_owned(),
            })
    }

    /// Place of an index, by which [`Entry::has`] knows it.
    pub(crate) fn position(&self, index: &str) -> Result<Position, Error> {
        let same = |one: &Index| *one.name == *index;
        let position = self.indexes.iter().position(same);
        position
            .and_then(|position| Position::try_from(position).ok())
            .ok_or_else(|| Error::UnknownIndex {
                name: index.to_owned(),
            })
    }

    pub(crate) fn by_index(
        &self,
        index: &str,
        value: &str,
    ) -> Result<impl Iterator<Item = &Arc<Entry<K>>>, Error> {
        let ids = self.index(index)?.ids(&self.hasher, value);
        Ok(ids.filter_map(|id| self.entries.get(id)))
    }

    pub(crate) fn count_by_index(&self, index: &str, value: &str) -> Result<usize, Error> {
        Ok(self.index(index)?.count(&self.hasher, value))
    }

    pub(crate) fn index_values(
        &self,
        index: &str,
    ) -> Result<impl Iterator<Item = &Arc<str>>, Error> {
        Ok(self.index(index)?.values())
    }

    /// Key of `object`, with namespace and, if it is stored, name in the store's allocations.
    fn shared_key(&self, object: &K) -> Option<ObjectKey>
    where
        K: Resource,
    {
        let (namespace, name) = names(object)?;
        if let Some(entry) = self.find(namespace, name) {
            return Some(entry.key.clone());
        }
        let key = ObjectKey::from_parts(namespace, name);
        let interned = namespace
            .and_then(|ns| self.indexes.first()?.interned(&self.hasher, ns))
            .map(Arc::clone);
        Some(match interned {
            Some(namespace) => key.with_shared_namespace(namespace),
            None => key,
        })
    }

    /// What is stored under the key of `object`.
    fn stored(&self, object: &K) -> Option<&Arc<Entry<K>>>
    where
        K: Resource,
    {
        let (namespace, name) = names(object)?;
        self.find(namespace, name)
    }

    fn id(&self, key: &ObjectKey) -> Option<Id> {
        self.ids.find(self.hasher.key(key), |id| {
            let entry = self.entries.get(*id)?;
            (entry.key == *key).then_some(*id)
        })
    }

    /// Puts `new` in the place of what was stored under its key, in all indexes.
    fn put(&mut self, new: &Arc<Entry<K>>) -> Option<Arc<Entry<K>>> {
        self.put_at(self.id(&new.key), new)
    }

    /// As [`Version::put`], where the key's number is known.
    fn put_at(&mut self, id: Option<Id>, new: &Arc<Entry<K>>) -> Option<Arc<Entry<K>>> {
        if let Some(id) = id {
            let old = self.entries.replace(id, Arc::clone(new));
            self.reindex(id, old.as_deref(), Some(new));
            return old;
        }
        let hash = self.hasher.key(&new.key);
        let id = self.entries.insert(Arc::clone(new));
        self.ids.insert(hash, id, |other| *other == id);
        self.reindex(id, None, Some(new));
        None
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Arc<Entry<K>>> {
        let id = self.id(key)?;
        self.ids.remove(self.hasher.key(key), |other| *other == id);
        let old = self.entries.remove(id)?;
        self.reindex(id, Some(&old), None);
        Some(old)
    }

    /// Moves the index entries of one object; a value that stays costs no set operation.
    fn reindex(&mut self, id: Id, old: Option<&Entry<K>>, new: Option<&Entry<K>>) {
        let (before, after) = (
            old.map_or(&[][..], |e| &e.values),
            new.map_or(&[][..], |e| &e.values),
        );
        for (position, value) in before.iter().filter(|pair| !after.contains(pair)) {
            self.indexes[usize::from(*position)].remove(&self.hasher, value, id);
        }
        for (position, value) in after.iter().filter(|pair| !before.contains(pair)) {
            self.indexes[usize::from(*position)].insert(&self.hasher, value, id);
        }
    }
}

/// Namespace, if there is one, and name.
fn names<K: Resource>(object: &K) -> Option<(Option<&str>, &str)> {
    let meta = object.meta();
    let name = meta.name.as_deref().filter(|name| !name.is_empty())?;
    let namespace = meta.namespace.as_deref();
    Some((namespace.filter(|namespace| !namespace.is_empty()), name))
}

/// The store of one informer.
#[derive(Debug)]
pub(crate) struct Store<K> {
    current: ArcSwap<Version<K>>,
    /// Held through every write.
    writing: Mutex<()>,
    resource_version: watch::Sender<Arc<str>>,
}

impl<K: Resource + Send + Sync + 'static> Store<K> {
    pub(crate) fn new() -> Self {
        let by_namespace = Indexer::new(NAMESPACE_INDEX, |object: &K| {
            Ok(object
                .meta()
                .namespace
                .iter()
                .filter(|ns| !ns.is_empty())
                .cloned()
                .collect())
        });
        let nothing = Arc::<str>::from("");
        let version = Version {
            hasher: Hasher::default(),
            entries: Slab::default(),
            ids: Trie::default(),
            indexes: vec![Index::new(Arc::clone(&by_namespace.name))],
            indexers: Arc::new([by_namespace]),
            resource_version: Arc::clone(&nothing),
        };
        Self {
            current: ArcSwap::from_pointee(version),
            writing: Mutex::new(()),
            resource_version: watch::Sender::new(nothing),
        }
    }

    /// The current version. Wait-free.
    pub(crate) fn version(&self) -> Arc<Version<K>> {
        self.current.load_full()
    }

    /// Looks at the current version without holding on to it. Wait-free, and of readers and
    /// writer none touches what another one writes.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Version<K>) -> T) -> T {
        look(&self.current.load())
    }

    fn publish(&self, version: Version<K>) {
        let resource_version = Arc::clone(&version.resource_version);
        self.current.store(Arc::new(version));
        self.resource_version.send_if_modified(|known| {
            let moved = **known != *resource_version;
            *known = resource_version;
            moved
        });
    }

    /// Adds an index over the stored objects and all later ones.
    ///
    /// # Errors
    /// [`Error::IndexExists`] if the name is taken; [`Error::TooManyIndexes`] above 65,535.
    pub(crate) fn add_index(
        &self,
        name: &str,
        function: impl Fn(&K) -> Result<Vec<String>, BoxError> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let _writing = self.writing.lock();
        let mut version = Version::clone(&self.current.load());
        if version.index(name).is_ok() {
            return Err(Error::IndexExists {
                name: name.to_owned(),
            });
        }
        let indexers = &version.indexers;
        let position = Position::try_from(indexers.len()).map_err(|_| Error::TooManyIndexes)?;
        let indexer = Indexer::new(name, function);
        version.indexes.push(Index::new(Arc::clone(&indexer.name)));
        let entries: Vec<_> = version.iter().map(Arc::clone).collect();
        for entry in entries {
            let added = indexer.values(&entry.key, &entry.object);
            if added.is_empty() {
                continue;
            }
            let mut values = entry.values.to_vec();
            values.extend(added.into_iter().map(|value| (position, Arc::from(value))));
            version.put(&Arc::new(Entry {
                key: entry.key.clone(),
                object: Arc::clone(&entry.object),
                values: values.into(),
            }));
        }
        let indexers = version.indexers.iter().cloned();
        version.indexers = indexers.chain([indexer]).collect();
        self.publish(version);
        Ok(())
    }

    /// Applies the steps of a watch in order and publishes them at once with `resource_version`.
    ///
    /// With `strict_adds`, an object announced as new at a version not above its stored one ends
    /// the batch before it: such a server began anew, and only a list can tell what holds.
    /// Objects without a name are passed over; telling of them is the caller's part.
    pub(crate) fn apply(
        &self,
        deltas: impl IntoIterator<Item = Delta<K>>,
        resource_version: Option<&str>,
        strict_adds: bool,
    ) -> Applied<K> {
        let _writing = self.writing.lock();
        let mut version = Version::clone(&self.current.load());
        let mut applied = Applied {
            changes: Vec::new(),
            began_anew: None,
        };
        for delta in deltas {
            match delta {
                Delta::Added(object) => {
                    if strict_adds && let Some(key) = version.not_above_stored(&object) {
                        applied.began_anew = Some(key);
                        break;
                    }
                    version.upsert(object, &mut applied.changes);
                }
                Delta::Modified(object) => version.upsert(object, &mut applied.changes),
                Delta::Deleted(object) => {
                    let Some(key) = version.shared_key(&object) else {
                        continue;
                    };
                    let stored = version.take(&key);
                    let object = Arc::new(object);
                    applied.changes.push(Change::Deleted {
                        object,
                        last_cached: stored.map(|entry| Arc::clone(&entry.object)),
                        final_state_known: true,
                    });
                }
                Delta::Vanished(key) => version.lose(&key, &mut applied.changes),
                Delta::Unreadable { key, uid } => {
                    let stored = version.get(&key);
                    if stored.is_some_and(|stored| !is_of(&*stored.object, Some(&uid))) {
                        version.lose(&key, &mut applied.changes);
                    }
                }
            }
        }
        if let Some(resource_version) = resource_version
            && applied.began_anew.is_none()
        {
            version.resource_version = Arc::from(resource_version);
        }
        self.publish(version);
        applied
    }

    /// Resolves when the store has reached `resource_version`, or with `false` after `timeout`.
    ///
    /// Versions that cannot be compared must be equal. Cancel-safe.
    pub(crate) async fn wait_for_version(&self, wanted: &str, timeout: Duration) -> bool {
        let mut versions = self.resource_version.subscribe();
        let arrived = versions.wait_for(|have| reached(have, wanted));
        tokio::time::timeout(timeout, arrived)
            .await
            .is_ok_and(|seen| seen.is_ok())
    }
}

/// Whether `object` may be the one that has this UID, as far as UIDs tell.
fn is_of<K: Resource>(object: &K, uid: Option<&str>) -> bool {
    let own = object.meta().uid.as_deref();
    uid.is_none_or(|uid| own.is_none_or(|own| own == uid))
}

fn same_object<K: Resource>(left: &K, right: &K) -> bool {
    left.meta().uid == right.meta().uid
}

fn same_state<K: Resource>(left: &K, right: &K) -> bool {
    let version = &left.meta().resource_version;
    version.is_some() && *version == right.meta().resource_version && same_object(left, right)
}

impl<K: Resource> Version<K> {
    /// The values that an index gives for an object, stored or not.
    pub(crate) fn index_of(&self, index: &str, object: &K) -> Result<Vec<String>, Error> {
        let indexer = &self.indexers[usize::from(self.position(index)?)];
        Ok(indexer.values(&ObjectKey::of(object), object))
    }

    /// How often functions of indexes failed.
    pub(crate) fn index_failures(&self) -> u64 {
        self.indexers.iter().map(Indexer::failures).sum()
    }

    /// An entry of `object`; index values that stay as they were `before` need no look into the
    /// indexes.
    fn entry(&self, key: ObjectKey, object: Arc<K>, before: Option<&Entry<K>>) -> Arc<Entry<K>> {
        let known = before.map_or(&[][..], |entry| &entry.values);
        let mut values = Vec::with_capacity(self.indexers.len());
        for ((position, indexer), index) in (0..).zip(&*self.indexers).zip(&self.indexes) {
            for value in indexer.values(&key, &object) {
                let same = |(at, of): &&(Position, Arc<str>)| *at == position && **of == *value;
                let interned = match known.iter().find(same) {
                    Some((_, interned)) => Some(interned),
                    None => index.interned(&self.hasher, &value),
                };
                let value = match interned {
                    Some(interned) => Arc::clone(interned),
                    None if position == 0 => key
                        .shared_namespace()
                        .map_or_else(|| Arc::from(value), Arc::clone),
                    None => Arc::from(value),
                };
                values.push((position, value));
            }
        }
        Arc::new(Entry {
            key,
            object,
            values: values.into(),
        })
    }

    fn not_above_stored(&self, object: &K) -> Option<ObjectKey> {
        let key = self.shared_key(object)?;
        let stored = &self.get(&key)?.object;
        let (new, old) = (object.meta(), stored.meta());
        let (new, old) = (
            new.resource_version.as_deref()?,
            old.resource_version.as_deref()?,
        );
        compare_versions(new, old)
            .is_some_and(|order| order.is_le())
            .then_some(key)
    }

    /// Stores `object`. An object of another UID under the same key is another object: it came
    /// after a deletion that nobody saw.
    fn upsert(&mut self, object: K, changes: &mut Vec<Change<K>>) {
        let Some(key) = self.shared_key(&object) else {
            return;
        };
        let id = self.id(&key);
        let before = id.and_then(|id| self.entries.get(id));
        if before.is_some_and(|before| same_state(&*before.object, &object)) {
            return;
        }
        let new = Arc::new(object);
        let before = before.map(|before| &**before);
        let entry = self.entry(key, Arc::clone(&new), before);
        let (gone, change) = changes_by(self.put_at(id, &entry), new);
        changes.extend(gone);
        changes.push(change);
    }
}

impl<K> Version<K> {
    /// Takes an object out whose end nobody saw.
    fn lose(&mut self, key: &ObjectKey, changes: &mut Vec<Change<K>>) {
        if let Some(entry) = self.take(key) {
            changes.push(Change::Deleted {
                object: Arc::clone(&entry.object),
                last_cached: None,
                final_state_known: false,
            });
        }
    }
}

/// What it means that `new` took the place of `old`: an object that is gone, if that was another
/// one, and what became of the new one.
fn changes_by<K: Resource>(
    old: Option<Arc<Entry<K>>>,
    new: Arc<K>,
) -> (Option<Change<K>>, Change<K>) {
    let Some(old) = old else {
        return (None, Change::Added(new));
    };
    let old = Arc::clone(&old.object);
    if same_object(&*old, &*new) {
        return (None, Change::Updated { old, new });
    }
    let gone = Change::Deleted {
        object: old,
        last_cached: None,
        final_state_known: false,
    };
    (Some(gone), Change::Added(new))
}

#[cfg(test)]
mod tests;
