//! Secondary indexes: from a value to the keys of the objects that have it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Hasher;
use super::trie::Trie;
use crate::{BoxError, ObjectKey};

/// Name of the index from a namespace to its objects, which every store has.
pub const NAMESPACE_INDEX: &str = "namespace";

/// Place of an index in its store.
pub(crate) type Position = u16;

type Values = Result<Vec<String>, BoxError>;

/// How the values of one index come out of an object.
pub(super) struct Indexer<K> {
    pub(super) name: Arc<str>,
    function: Box<dyn Fn(&K) -> Values + Send + Sync>,
}

impl<K> fmt::Debug for Indexer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Indexer").field(&self.name).finish()
    }
}

impl<K> Indexer<K> {
    pub(super) fn new(name: &str, function: impl Fn(&K) -> Values + Send + Sync + 'static) -> Self {
        Self {
            name: Arc::from(name),
            function: Box::new(function),
        }
    }

    /// Values of `object`; a function that fails or panics gives none and a line in the log.
    pub(super) fn values(&self, key: &ObjectKey, object: &K) -> Vec<String> {
        let problem = match catch_unwind(AssertUnwindSafe(|| (self.function)(object))) {
            Ok(Ok(mut values)) => {
                values.sort_unstable();
                values.dedup();
                return values;
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panic: {}", crate::error::panic_text(&*panic)),
        };
        tracing::error!(index = %self.name, %key, problem, "object left out of an index");
        Vec::new()
    }
}

/// One index of one version of a store.
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) name: Arc<str>,
    sets: Trie<Arc<Set>>,
}

#[derive(Clone, Debug)]
struct Set {
    value: Arc<str>,
    keys: Trie<ObjectKey>,
}

impl Index {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            sets: Trie::default(),
        }
    }

    fn set(&self, hasher: &Hasher, value: &str) -> Option<&Arc<Set>> {
        self.sets
            .find(hasher.value(value), |set| *set.value == *value)
    }

    /// Hashes and keys of the objects with `value`.
    pub(super) fn keys(&self, hasher: &Hasher, value: &str) -> impl Iterator<Item = &ObjectKey> {
        self.set(hasher, value)
            .into_iter()
            .flat_map(|set| set.keys.iter())
    }

    /// How many objects have `value`.
    pub(super) fn count(&self, hasher: &Hasher, value: &str) -> usize {
        self.set(hasher, value).map_or(0, |set| set.keys.len())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<str>> {
        self.sets.iter().map(|set| &set.value)
    }

    /// The stored allocation of `value`, so that equal texts are kept once.
    pub(super) fn interned(&self, hasher: &Hasher, value: &str) -> Option<&Arc<str>> {
        self.set(hasher, value).map(|set| &set.value)
    }

    pub(super) fn insert(&mut self, hasher: &Hasher, value: &Arc<str>, key: &ObjectKey) {
        let hash = hasher.value(value);
        // The set leaves the index while it changes: held twice, it would be copied.
        let mut set = self
            .sets
            .remove(hash, |set| set.value == *value)
            .unwrap_or_else(|| {
                Arc::new(Set {
                    value: Arc::clone(value),
                    keys: Trie::default(),
                })
            });
        let keys = &mut Arc::make_mut(&mut set).keys;
        keys.insert(hasher.key(key), key.clone(), |other| other == key);
        self.sets.insert(hash, set, |other| other.value == *value);
    }

    pub(super) fn remove(&mut self, hasher: &Hasher, value: &Arc<str>, key: &ObjectKey) {
        let hash = hasher.value(value);
        let Some(mut set) = self.sets.remove(hash, |set| set.value == *value) else {
            return;
        };
        let keys = &mut Arc::make_mut(&mut set).keys;
        keys.remove(hasher.key(key), |other| other == key);
        if !keys.is_empty() {
            self.sets.insert(hash, set, |other| other.value == *value);
        }
    }
}
