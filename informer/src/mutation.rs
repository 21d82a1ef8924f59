//! Own writes, seen before the watch brings them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube_core::Resource;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lister::Lister;
use crate::version::{compare_versions, reached};
use crate::{Error, ObjectKey};

/// How long and how many own writes are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MutationCacheOptions {
    /// Writes that are remembered; beyond them the one that was longest not asked for goes. At
    /// least 1.
    pub capacity: usize,
    /// How long a write is remembered.
    pub ttl: Duration,
}

impl Default for MutationCacheOptions {
    /// 100 writes for 5 minutes, as in client-go.
    fn default() -> Self {
        Self {
            capacity: 100,
            ttl: Duration::from_secs(300),
        }
    }
}

/// A lister over which lie the writes that its program has made itself.
///
/// A write is shown until the cache has its version or a later one. Where versions cannot be
/// compared, that is until the cache has its version, or another one than at the time of the write.
/// A deletion hides the object of
/// that UID, also if a late event brings it again; an object re-created under another UID is
/// shown at once. What is forgotten by age or number shows the cache as it is.
///
/// Mirrors client-go's `cache.MutationCache`.
pub struct MutationCache<K> {
    lister: Lister<K>,
    writes: Mutex<Expiring<Write<K>>>,
}

#[derive(Debug)]
enum Write<K> {
    Stored {
        object: Arc<K>,
        /// Version of what the cache had of its key then.
        over: Option<String>,
    },
    Deleted {
        uid: Option<String>,
    },
}

impl<K> Clone for Write<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Stored { object, over } => Self::Stored {
                object: Arc::clone(object),
                over: over.clone(),
            },
            Self::Deleted { uid } => Self::Deleted { uid: uid.clone() },
        }
    }
}

/// What a write and the cache together show.
enum Shown<K> {
    Write(Arc<K>),
    Nothing,
    /// The cache has come past the write, which may be forgotten.
    Cache,
}

impl<K> fmt::Debug for MutationCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutationCache")
            .field("over", &self.lister)
            .field("writes", &self.writes.lock().entries.len())
            .finish()
    }
}

impl<K: Resource + Send + Sync + 'static> MutationCache<K> {
    /// A cache of own writes over `lister`; a capacity of 0 counts as 1.
    pub fn new(lister: Lister<K>, options: MutationCacheOptions) -> Self {
        Self {
            lister,
            writes: Mutex::new(Expiring::new(options)),
        }
    }

    /// Remembers the server's answer to a create, an update or a patch. One that is older than
    /// what is known already, or that has no name, changes nothing.
    pub fn wrote(&self, object: Arc<K>) {
        let Some(key) = ObjectKey::try_of(&*object) else {
            return;
        };
        let cached = self.lister.get(&key);
        let over = cached.and_then(|cached| cached.meta().resource_version.clone());
        let mut writes = self.writes.lock();
        let outdated = match writes.get(&key) {
            Some(Write::Stored { object: known, .. }) => !is_newer(&*object, known),
            Some(Write::Deleted { uid }) => *uid == object.meta().uid,
            None => false,
        };
        if !outdated {
            writes.insert(key, Write::Stored { object, over });
        }
    }

    /// Remembers that `object` was deleted by a call that succeeded. Not for an object that has
    /// finalizers, which goes on to live.
    pub fn deleted(&self, object: &K) {
        if let Some(key) = ObjectKey::try_of(object) {
            let uid = object.meta().uid.clone();
            self.writes.lock().insert(key, Write::Deleted { uid });
        }
    }

    /// The object of `key`, as the cache or a later own write shows it.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let snapshot = self.lister.snapshot();
        let stored = snapshot.get(key);
        let mut writes = self.writes.lock();
        let Some(write) = writes.get(key) else {
            return stored;
        };
        match shown(write, stored.as_deref(), &snapshot.resource_version()) {
            Shown::Write(object) => Some(object),
            Shown::Nothing => None,
            Shown::Cache => {
                writes.remove(key);
                stored
            }
        }
    }

    /// The objects for which the index gives `value`, as the cache or later own writes show them.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Arc<K>>, Error> {
        let snapshot = self.lister.snapshot();
        let mut found = snapshot.by_index(index, value)?;
        let written = self.writes.lock().live();
        let version = snapshot.resource_version();
        for (key, write) in written {
            let stored = snapshot.get(&key);
            let object = match shown(&write, stored.as_deref(), &version) {
                Shown::Cache => continue,
                Shown::Nothing => None,
                Shown::Write(object) => Some(object),
            };
            found.retain(|other| ObjectKey::of(&**other) != key);
            if let Some(object) = object
                && self
                    .lister
                    .index_of(index, &object)?
                    .iter()
                    .any(|of| of == value)
            {
                found.push(object);
            }
        }
        Ok(found)
    }
}

/// Whether `new` is a later state than `known`; what cannot be compared is.
fn is_newer<K: Resource>(new: &K, known: &K) -> bool {
    let version = |object: &K| object.meta().resource_version.clone().unwrap_or_default();
    compare_versions(&version(new), &version(known)).is_none_or(|order| order.is_gt())
}

/// What is to be shown of a key whose object is `stored` in a cache of `version`.
fn shown<K: Resource>(write: &Write<K>, stored: Option<&K>, version: &str) -> Shown<K> {
    match (write, stored) {
        (Write::Deleted { .. }, None) => Shown::Nothing,
        (Write::Deleted { uid }, Some(stored)) if *uid == stored.meta().uid => Shown::Nothing,
        (Write::Deleted { .. }, Some(_)) => Shown::Cache,
        (Write::Stored { object, .. }, None) => {
            let written = object.meta().resource_version.as_deref();
            // A cache that has come past the write without showing it saw the deletion since.
            if reached(version, written.unwrap_or_default()) {
                Shown::Cache
            } else {
                Shown::Write(Arc::clone(object))
            }
        }
        (Write::Stored { object, over }, Some(stored)) => {
            let written = object
                .meta()
                .resource_version
                .as_deref()
                .unwrap_or_default();
            let cached = stored
                .meta()
                .resource_version
                .as_deref()
                .unwrap_or_default();
            let is_ahead = match compare_versions(written, cached) {
                Some(order) => order.is_gt(),
                None => written != cached && over.as_deref() == Some(cached),
            };
            if is_ahead {
                Shown::Write(Arc::clone(object))
            } else {
                Shown::Cache
            }
        }
    }
}

/// Values by key, of which the old and the unused go.
#[derive(Debug)]
struct Expiring<V> {
    ttl: Duration,
    /// At least 1.
    capacity: usize,
    /// Without a limit of its own, for which it would make room at once.
    entries: LruCache<ObjectKey, Held<V>>,
}

#[derive(Debug)]
struct Held<V> {
    value: V,
    since: Instant,
}

impl<V: Clone> Expiring<V> {
    fn new(options: MutationCacheOptions) -> Self {
        Self {
            ttl: options.ttl,
            capacity: options.capacity.max(1),
            entries: LruCache::unbounded(),
        }
    }

    fn get(&mut self, key: &ObjectKey) -> Option<&V> {
        if self.entries.peek(key)?.since.elapsed() >= self.ttl {
            self.entries.pop(key);
        }
        self.entries.get(key).map(|held| &held.value)
    }

    /// Puts a value in, which lives from now on.
    fn insert(&mut self, key: ObjectKey, value: V) {
        let since = Instant::now();
        self.entries.put(key, Held { value, since });
        if self.entries.len() > self.capacity {
            self.entries.pop_lru();
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.entries.pop(key);
    }

    fn live(&self) -> Vec<(ObjectKey, V)> {
        self.entries
            .iter()
            .filter(|(_, held)| held.since.elapsed() < self.ttl)
            .map(|(key, held)| (key.clone(), held.value.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::cluster(name)
    }

    #[tokio::test(start_paused = true)]
    async fn s5_an_entry_is_gone_after_its_time_and_putting_it_in_again_begins_it_anew() {
        let mut held = Expiring::new(MutationCacheOptions::default());
        held.insert(key("a"), 1);
        tokio::time::advance(Duration::from_secs(200)).await;
        held.insert(key("b"), 2);
        held.insert(key("a"), 3);
        tokio::time::advance(Duration::from_secs(299)).await;
        assert_eq!(held.get(&key("a")), Some(&3));
        assert_eq!(held.live().len(), 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(held.get(&key("a")), None);
        assert_eq!(held.live(), []);
        held.insert(key("a"), 4);
        assert_eq!(held.get(&key("a")), Some(&4));
    }

    #[tokio::test(start_paused = true)]
    async fn i71_any_capacity_is_one_and_makes_room_only_for_what_comes() {
        for (capacity, left) in [(0, 1), (1, 1), (2, 2), (usize::MAX, 3)] {
            let mut held = Expiring::new(MutationCacheOptions {
                capacity,
                ..MutationCacheOptions::default()
            });
            for at in 0..3 {
                held.insert(key(&at.to_string()), at);
            }
            assert_eq!(held.entries.len(), left, "{capacity}");
            assert_eq!(held.get(&key("2")), Some(&2));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i71_the_hundred_and_first_entry_drives_out_the_longest_unused() {
        let mut held = Expiring::new(MutationCacheOptions::default());
        for at in 0..100 {
            held.insert(key(&at.to_string()), at);
        }
        assert_eq!(held.get(&key("0")), Some(&0));
        held.insert(key("100"), 100);
        assert_eq!(held.entries.len(), 100);
        assert_eq!(held.get(&key("0")), Some(&0));
        assert_eq!(held.get(&key("1")), None);
    }
}
