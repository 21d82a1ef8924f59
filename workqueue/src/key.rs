//! Keys as the queue sees them: hashed once, borrowed where possible.

use std::hash::{BuildHasher, Hash};

use foldhash::{SharedSeed, fast::SeedableRandomState};

/// What a type needs to be a key of a queue. Implemented for every type that fits.
///
/// Comparing, cloning and dropping a key may happen under a lock of the queue: they must not use the
/// queue themselves.
pub trait QueueKey: Clone + Eq + Hash + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> QueueKey for K {}

/// A key handed to the queue, by value or by reference.
///
/// A reference is cloned when the queue does not know the key yet; adding a known key by reference
/// allocates nothing. Where a clone costs little (keys without drop glue, and all of a queue with
/// [`shared_keys`](crate::QueueOptions::shared_keys)) it may also be made to leave the add to
/// whoever holds the queue's lock.
pub trait IntoKey<K> {
    /// Whether [`into_key`](Self::into_key) costs next to nothing.
    const OWNED: bool;

    /// The key, to look it up.
    fn as_key(&self) -> &K;

    /// The key, to keep it.
    fn into_key(self) -> K;
}

impl<K> IntoKey<K> for K {
    const OWNED: bool = true;

    fn as_key(&self) -> &K {
        self
    }

    fn into_key(self) -> K {
        self
    }
}

impl<K: Clone> IntoKey<K> for &K {
    // A type without drop glue owns no heap memory, so its clone allocates nothing.
    const OWNED: bool = !std::mem::needs_drop::<K>();

    fn as_key(&self) -> &K {
        self
    }

    fn into_key(self) -> K {
        self.clone()
    }
}

/// A borrowed key together with its hash, so that one operation hashes a key once.
///
/// All queues and limiters of a process use one randomly seeded hash function: a limiter that two
/// queues share sees one hash for one key.
#[derive(Debug)]
pub struct KeyRef<'a, K> {
    key: &'a K,
    hash: u64,
}

impl<K> Clone for KeyRef<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for KeyRef<'_, K> {}

impl<'a, K: Hash> From<&'a K> for KeyRef<'a, K> {
    fn from(key: &'a K) -> Self {
        Self {
            key,
            hash: hash_of(key),
        }
    }
}

impl<'a, K> KeyRef<'a, K> {
    pub(crate) fn with_hash(key: &'a K, hash: u64) -> Self {
        Self { key, hash }
    }

    /// The key itself.
    pub fn key(&self) -> &'a K {
        self.key
    }

    /// The key's hash, the same in all queues and limiters of this process.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

#[inline]
pub(crate) fn hash_of<K: Hash>(key: &K) -> u64 {
    SeedableRandomState::with_seed(0, SharedSeed::global_random()).hash_one(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w15_one_key_has_one_hash_in_the_whole_process() {
        let key = "team/a".to_owned();
        assert_eq!(KeyRef::from(&key).hash(), hash_of(&"team/a".to_owned()));
        assert_ne!(hash_of(&key), hash_of(&"team/b".to_owned()));
    }

    #[test]
    fn a_reference_and_a_value_are_the_same_key() {
        let key = "team/a".to_owned();
        assert_eq!(
            IntoKey::<String>::as_key(&&key),
            IntoKey::<String>::as_key(&key)
        );
        assert_eq!(IntoKey::<String>::into_key(&key), key);
    }
}
