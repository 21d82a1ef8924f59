//! Secondary indexes: from a value to the keys of the objects that have it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Hasher;
use super::map::Map;
use super::slab::Id;
use super::trie::Trie;
use crate::log_limit::{LOG_INTERVAL, LogLimit};
use crate::{BoxError, ObjectKey};

/// Name of the index from a namespace to its objects, which every store has.
pub const NAMESPACE_INDEX: &str = "namespace";

/// Place of an index in its store.
pub(crate) type Position = u16;

type Values = Result<Vec<String>, BoxError>;

/// How the values of one index come out of an object.
pub(super) struct Indexer<K> {
    pub(super) name: Arc<str>,
    function: Arc<dyn Fn(&K) -> Values + Send + Sync>,
    failures: Arc<Failures>,
}

/// Objects that an index left out.
#[derive(Debug)]
struct Failures {
    count: AtomicU64,
    log: LogLimit,
}

impl<K> Clone for Indexer<K> {
    fn clone(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            function: Arc::clone(&self.function),
            failures: Arc::clone(&self.failures),
        }
    }
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
            function: Arc::new(function),
            failures: Arc::new(Failures {
                count: AtomicU64::new(0),
                log: LogLimit::new(LOG_INTERVAL),
            }),
        }
    }

    /// How often the function failed or panicked.
    pub(super) fn failures(&self) -> u64 {
        self.failures.count.load(Ordering::Relaxed)
    }

    /// Values of `object`; a function that fails or panics gives none. That is counted, and the
    /// first of them in some minutes has a line in the log.
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
        self.failures.count.fetch_add(1, Ordering::Relaxed);
        if let Some(since) = self.failures.log.admit() {
            tracing::error!(index = %self.name, %key, problem, since, "object left out of an index");
        }
        Vec::new()
    }
}

/// One index of one version of a store.
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) name: Arc<str>,
    sets: Map<Set>,
}

#[derive(Clone, Debug)]
struct Set {
    value: Arc<str>,
    /// The bytes of a short value once more, where a look-up needs not go further for them.
    short: [u8; SHORT],
    members: Members,
}

const SHORT: usize = 40;

impl Set {
    fn new(value: &Arc<str>, first: Id) -> Self {
        let mut short = [0; SHORT];
        if let Some(front) = short.get_mut(..value.len()) {
            front.copy_from_slice(value.as_bytes());
        }
        Self {
            value: Arc::clone(value),
            short,
            members: Members::One(first),
        }
    }

    fn is(&self, value: &str) -> bool {
        // The length stands beside the reference, only the text itself does not.
        self.value.len() == value.len()
            && match self.short.get(..value.len()) {
                Some(short) => short == value.as_bytes(),
                None => *self.value == *value,
            }
    }
}

/// The objects of one value, by number.
#[derive(Clone, Debug)]
pub(crate) enum Members {
    One(Id),
    /// In the order of their numbers, up to [`FEW`].
    Few(Arc<[Id]>),
    Many(Trie<Id>),
}

/// Numbers that are copied to add one. More of them than this share what stays.
const FEW: usize = 256;

/// Distinct numbers are distinct, and spread over the lowest bits, which a trie looks at first.
fn spread(id: Id) -> u64 {
    u64::from(id)
}

impl Members {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(ids) => ids.len(),
            Self::Many(ids) => ids.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Id> {
        let (few, many) = match self {
            Self::One(id) => (std::slice::from_ref(id), None),
            Self::Few(ids) => (&ids[..], None),
            Self::Many(ids) => (&[][..], Some(ids)),
        };
        few.iter()
            .copied()
            .chain(many.into_iter().flat_map(|ids| ids.iter().copied()))
    }

    fn insert(&mut self, id: Id) {
        match self {
            Self::One(other) if *other == id => {}
            Self::One(other) => *self = Self::Few(Arc::new([id.min(*other), id.max(*other)])),
            Self::Few(ids) => {
                let Err(at) = ids.binary_search(&id) else {
                    return;
                };
                let grown = ids[..at].iter().chain([&id]).chain(&ids[at..]).copied();
                *self = if ids.len() < FEW {
                    Self::Few(grown.collect())
                } else {
                    let mut many = Trie::default();
                    for id in grown {
                        many.insert(spread(id), id, |other| *other == id);
                    }
                    Self::Many(many)
                };
            }
            Self::Many(ids) => {
                ids.insert(spread(id), id, |other| *other == id);
            }
        }
    }

    /// Whether none is left.
    fn remove(&mut self, id: Id) -> bool {
        match self {
            Self::One(other) => return *other == id,
            Self::Few(ids) => {
                if let Ok(at) = ids.binary_search(&id) {
                    let left = ids[..at].iter().chain(&ids[at + 1..]).copied();
                    *self = match ids.len() {
                        2 => Self::One(ids[1 - at]),
                        _ => Self::Few(left.collect()),
                    };
                }
            }
            Self::Many(ids) => {
                ids.remove(spread(id), |other| *other == id);
                if ids.len() <= FEW / 2 {
                    let mut few: Vec<_> = ids.iter().copied().collect();
                    few.sort_unstable();
                    *self = Self::Few(few.into());
                }
            }
        }
        false
    }
}

impl Index {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            sets: Map::default(),
        }
    }

    fn find(&self, hasher: &Hasher, value: &str) -> Option<(Id, &Set)> {
        self.sets.find(hasher.value(value), |set| set.is(value))
    }

    /// The objects with `value`, if there are any.
    pub(super) fn members(&self, hasher: &Hasher, value: &str) -> Option<&Members> {
        self.find(hasher, value).map(|(_, set)| &set.members)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<str>> {
        self.sets.iter().map(|set| &set.value)
    }

    /// The stored allocation of `value`, so that equal texts are kept once.
    pub(super) fn interned(&self, hasher: &Hasher, value: &str) -> Option<&Arc<str>> {
        self.find(hasher, value).map(|(_, set)| &set.value)
    }

    pub(super) fn insert(&mut self, hasher: &Hasher, value: &Arc<str>, id: Id) {
        if let Some((at, set)) = self.find(hasher, value) {
            let mut set = set.clone();
            set.members.insert(id);
            self.sets.replace(at, set);
            return;
        }
        let hash_of = |set: &Set| hasher.value(&set.value);
        self.sets.insert(Set::new(value, id), hash_of);
    }

    pub(super) fn remove(&mut self, hasher: &Hasher, value: &str, id: Id) {
        let Some((at, set)) = self.find(hasher, value) else {
            return;
        };
        let mut set = set.clone();
        if set.members.remove(id) {
            self.sets.remove(at, |set| hasher.value(&set.value));
        } else {
            self.sets.replace(at, set);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn members_are_a_set_in_each_of_its_forms(
            first in 0..2 * FEW,
            ops in proptest::collection::vec((0..1000_u32, any::<bool>()), 0..600),
        ) {
            let mut members: Option<Members> = None;
            let mut model = BTreeSet::new();
            let first = (0..first).map(|id| (u32::try_from(id).unwrap(), true));
            for (id, comes) in first.chain(ops) {
                match (&mut members, comes) {
                    (None, false) => {}
                    (None, true) => members = Some(Members::One(id)),
                    (Some(some), true) => some.insert(id),
                    (Some(some), false) => if some.remove(id) {
                        members = None;
                    },
                }
                if comes { model.insert(id); } else { model.remove(&id); }
                prop_assert_eq!(members.as_ref().map_or(0, Members::len), model.len());
            }
            let held: BTreeSet<_> = members.iter().flat_map(Members::iter).collect();
            prop_assert_eq!(held, model);
        }
    }
}
