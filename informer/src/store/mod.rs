//! The indexed store: a sequence of immutable versions, one of them current.
//!
//! A write makes a new version that shares all but the changed nodes with the one before, and
//! publishes it in one step. Whoever reads takes the current version without a lock and sees
//! objects, indexes and resource version in agreement, for as long as it holds on to it.
//!
//! What changes often, the objects, stands in a tree of numbered places ([`slab`]). What leads to
//! the numbers from keys and index values changes only as those come and go, and is one flat
//! [`table`] for all versions.

pub(crate) mod index;
mod map;
mod slab;
mod sweep;
mod table;
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

use self::index::{Index, Indexer, Members, NAMESPACE_INDEX, Position};
use self::map::Map;
use self::slab::Id;
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
    fn key(&self, key: &ObjectKey) -> u64 {
        self.0.hash_one(key)
    }

    fn value(&self, value: &str) -> u64 {
        self.0.hash_one(value)
    }
}

/// Values of an object, each with the place of its index.
type Values = Arc<[(Position, Arc<str>)]>;

/// A stored object with what the store knows of it.
#[derive(Debug)]
pub(crate) struct Entry<K> {
    pub(crate) key: ObjectKey,
    pub(crate) object: Arc<K>,
    /// Which values stand for it in which index, so that taking it out needs no user code.
    /// Changes of the object that leave them as they are share them.
    values: Values,
}

impl<K> Clone for Entry<K> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            object: Arc::clone(&self.object),
            values: Arc::clone(&self.values),
        }
    }
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
    /// Entries by key, and by number, which stays the same through all changes of an object.
    entries: Map<Entry<K>>,
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

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Entry<K>> {
        self.find(key).map(|(_, entry)| entry)
    }

    fn find(&self, key: &ObjectKey) -> Option<(Id, &Entry<K>)> {
        let is = |entry: &Entry<K>| entry.key == *key;
        self.entries.find(self.hasher.key(key), is)
    }

    /// All entries, in the order in which their keys came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry<K>> {
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

    /// The objects for which the index gives `value`, if there are any.
    pub(crate) fn members(&self, index: &str, value: &str) -> Result<Option<&Members>, Error> {
        Ok(self.index(index)?.members(&self.hasher, value))
    }

    /// The entries of `members` of this version.
    pub(crate) fn entries_of(&self, members: &Members) -> impl Iterator<Item = &Entry<K>> {
        members.iter().filter_map(|id| self.entries.get(id))
    }

    pub(crate) fn by_index(
        &self,
        index: &str,
        value: &str,
    ) -> Result<impl Iterator<Item = &Entry<K>>, Error> {
        let members = self.members(index, value)?.into_iter();
        Ok(members.flat_map(|members| self.entries_of(members)))
    }

    pub(crate) fn count_by_index(&self, index: &str, value: &str) -> Result<usize, Error> {
        Ok(self.members(index, value)?.map_or(0, Members::len))
    }

    pub(crate) fn index_values(
        &self,
        index: &str,
    ) -> Result<impl Iterator<Item = &Arc<str>>, Error> {
        Ok(self.index(index)?.values())
    }

    /// Puts `new` in the place of what was stored under its key, in all indexes.
    fn put(&mut self, new: Entry<K>) -> Option<Entry<K>> {
        let id = self.find(&new.key).map(|(id, _)| id);
        self.put_at(id, new)
    }

    /// As [`Version::put`], where the key's number is known.
    fn put_at(&mut self, id: Option<Id>, new: Entry<K>) -> Option<Entry<K>> {
        let values = Arc::clone(&new.values);
        let (id, old) = match id {
            Some(id) => (id, self.entries.replace(id, new)),
            None => {
                let hash_of = |entry: &Entry<K>| self.hasher.key(&entry.key);
                (self.entries.insert(new, hash_of), None)
            }
        };
        self.reindex(id, old.as_ref().map(|old| &old.values), Some(&values));
        old
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Entry<K>> {
        let (id, _) = self.find(key)?;
        let hash_of = |entry: &Entry<K>| self.hasher.key(&entry.key);
        let old = self.entries.remove(id, hash_of)?;
        self.reindex(id, Some(&old.values), None);
        Some(old)
    }

    /// Moves the index entries of one object; a value that stays costs no set operation.
    fn reindex(&mut self, id: Id, old: Option<&Values>, new: Option<&Values>) {
        if let (Some(old), Some(new)) = (old, new)
            && Arc::ptr_eq(old, new)
        {
            return;
        }
        let (before, after) = (
            old.map_or(&[][..], |values| &**values),
            new.map_or(&[][..], |values| &**values),
        );
        for (position, value) in before.iter().filter(|pair| !after.contains(pair)) {
            self.indexes[usize::from(*position)].remove(&self.hasher, value, id);
        }
        for (position, value) in after.iter().filter(|pair| !before.contains(pair)) {
            self.indexes[usize::from(*position)].insert(&self.hasher, value, id);
        }
    }
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
            entries: Map::default(),
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
        let entries: Vec<_> = version.iter().cloned().collect();
        for entry in entries {
            let added = indexer.values(&entry.key, &entry.object);
            if added.is_empty() {
                continue;
            }
            let mut values = entry.values.to_vec();
            values.extend(added.into_iter().map(|value| (position, Arc::from(value))));
            version.put(Entry {
                values: values.into(),
                ..entry
            });
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
                    let Some(key) = ObjectKey::try_of(&object) else {
                        continue;
                    };
                    let stored = version.take(&key);
                    let object = Arc::new(object);
                    applied.changes.push(Change::Deleted {
                        object,
                        last_cached: stored.map(|entry| entry.object),
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
    /// indexes, and are shared if all of them stay.
    fn entry(&self, key: ObjectKey, object: Arc<K>, before: Option<&Entry<K>>) -> Entry<K> {
        let mut found = Vec::with_capacity(self.indexers.len());
        for (position, indexer) in (0..).zip(&*self.indexers) {
            let values = indexer.values(&key, &object).into_iter();
            found.extend(values.map(|value| (position, value)));
        }
        let same = |(known, new): (&(Position, Arc<str>), &(Position, String))| {
            known.0 == new.0 && *known.1 == *new.1
        };
        let known = before.map_or(&[][..], |entry| &*entry.values);
        let values = match before {
            Some(before) if known.len() == found.len() && known.iter().zip(&found).all(same) => {
                Arc::clone(&before.values)
            }
            _ => {
                let shared = |new: (Position, String)| {
                    let index = &self.indexes[usize::from(new.0)];
                    let interned = match known.iter().find(|known| same((known, &new))) {
                        Some((_, interned)) => Some(interned),
                        None => index.interned(&self.hasher, &new.1),
                    };
                    (new.0, interned.map_or_else(|| Arc::from(new.1), Arc::clone))
                };
                found.into_iter().map(shared).collect()
            }
        };
        Entry {
            key,
            object,
            values,
        }
    }

    fn not_above_stored(&self, object: &K) -> Option<ObjectKey> {
        let key = ObjectKey::try_of(object)?;
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
        let Some(key) = ObjectKey::try_of(&object) else {
            return;
        };
        let (id, before) = self.find(&key).unzip();
        if before.is_some_and(|before| same_state(&*before.object, &object)) {
            return;
        }
        let new = Arc::new(object);
        let entry = self.entry(key, Arc::clone(&new), before);
        let (gone, change) = changes_by(self.put_at(id, entry).map(|old| old.object), new);
        changes.extend(gone);
        changes.push(change);
    }
}

impl<K> Version<K> {
    /// Takes an object out whose end nobody saw.
    fn lose(&mut self, key: &ObjectKey, changes: &mut Vec<Change<K>>) {
        if let Some(entry) = self.take(key) {
            changes.push(Change::Deleted {
                object: entry.object,
                last_cached: None,
                final_state_known: false,
            });
        }
    }
}

/// What it means that `new` took the place of `old`: an object that is gone, if that was another
/// one, and what became of the new one.
fn changes_by<K: Resource>(old: Option<Arc<K>>, new: Arc<K>) -> (Option<Change<K>>, Change<K>) {
    let Some(old) = old else {
        return (None, Change::Added(new));
    };
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
