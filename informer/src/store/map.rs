//! Values that are found by hash and by number, whose clones share what they have in common.

use std::sync::Arc;

use super::slab::{Id, Slab};
use super::table::Table;

/// Values with a number each, which stays the same through all changes of a value.
///
/// A clone is a few reference counts, and never changes by what happens to another one.
#[derive(Debug)]
pub(super) struct Map<V> {
    values: Slab<V>,
    /// Where each value of this map is found, and maybe others; see [`Table`].
    table: Arc<Table>,
}

impl<V> Clone for Map<V> {
    fn clone(&self) -> Self {
        Self {
            values: self.values.clone(),
            table: Arc::clone(&self.table),
        }
    }
}

impl<V> Default for Map<V> {
    fn default() -> Self {
        Self {
            values: Slab::default(),
            table: Arc::new(Table::new(0, 0)),
        }
    }
}

impl<V> Map<V> {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get(&self, id: Id) -> Option<&V> {
        self.values.get(id)
    }

    /// The value of this hash for which `is` holds, with its number.
    pub(super) fn find(&self, hash: u64, is: impl Fn(&V) -> bool) -> Option<(Id, &V)> {
        self.table.find(hash, |id| {
            let value = self.values.get(id)?;
            is(value).then_some((id, value))
        })
    }

    /// All values, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &V> {
        self.values.iter()
    }
}

impl<V: Clone> Map<V> {
    /// Puts in a value that is not there yet; `hash_of` gives the hash of any value.
    pub(super) fn insert(&mut self, value: V, hash_of: impl Fn(&V) -> u64) -> Id {
        let hash = hash_of(&value);
        let id = self.values.insert(value);
        if !self.table.enter(hash, id) {
            self.table = Arc::new(self.table_anew(hash_of));
        }
        id
    }

    /// Puts `value` in the place of one of the same hash; that one comes back.
    pub(super) fn replace(&mut self, id: Id, value: V) -> Option<V> {
        self.values.replace(id, value)
    }

    /// Takes a value out; its number may be given out again. `hash_of` as for an insertion.
    pub(super) fn remove(&mut self, id: Id, hash_of: impl Fn(&V) -> u64) -> Option<V> {
        let removed = self.values.remove(id)?;
        if self.table.is_far_too_large(self.values.len()) {
            self.table = Arc::new(self.table_anew(hash_of));
        }
        Some(removed)
    }

    /// A table of the values that are there, with room for more.
    fn table_anew(&self, hash_of: impl Fn(&V) -> u64) -> Table {
        let table = Table::new(self.values.len(), self.values.numbers());
        self.values.each(|id, value| {
            let entered = table.enter(hash_of(value), id);
            debug_assert!(entered, "made for this many");
        });
        table
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Pair = (u16, u8);

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u16, u8),
        Remove(u16),
        Keep,
        /// Goes on from a clone that was kept, so that two of them share a table and differ.
        Return(usize),
    }

    /// Few distinct hashes, so that numbers of others are met and refused.
    fn hash(key: u16, spread: u32) -> u64 {
        match spread {
            0 => 7,
            1 => u64::from(key & 3) << 60,
            _ => u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }

    fn contents(map: &Map<Pair>) -> BTreeMap<u16, u8> {
        map.iter().copied().collect()
    }

    proptest! {
        #[test]
        fn a_map_is_a_map_and_its_clones_never_change(
            spread in 0..3u32,
            ops in proptest::collection::vec(
                prop_oneof![
                    8 => (0..100u16, any::<u8>()).prop_map(|(k, v)| Op::Insert(k, v)),
                    6 => (0..100u16).prop_map(Op::Remove),
                    1 => Just(Op::Keep),
                    1 => any::<usize>().prop_map(Op::Return),
                ],
                0..400,
            ),
        ) {
            let find = |map: &Map<Pair>, key: u16| {
                let found = map.find(hash(key, spread), |(k, _)| *k == key);
                found.map(|(id, (_, value))| (id, *value))
            };
            let mut map = Map::default();
            let mut model = BTreeMap::new();
            let mut kept: Vec<(Map<Pair>, BTreeMap<u16, u8>)> = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(key, value) => {
                        let known = model.insert(key, value);
                        prop_assert_eq!(find(&map, key).map(|(_, v)| v), known);
                        match find(&map, key) {
                            Some((id, old)) => {
                                prop_assert_eq!(map.replace(id, (key, value)), Some((key, old)));
                            }
                            None => {
                                map.insert((key, value), |(k, _)| hash(*k, spread));
                            }
                        }
                    }
                    Op::Remove(key) => {
                        let known = model.remove(&key).map(|value| (key, value));
                        let hash_of = |(k, _): &Pair| hash(*k, spread);
                        let removed = find(&map, key).and_then(|(id, _)| map.remove(id, hash_of));
                        prop_assert_eq!(removed, known);
                    }
                    Op::Keep => kept.push((map.clone(), model.clone())),
                    Op::Return(at) => if !kept.is_empty() {
                        (map, model) = kept[at % kept.len()].clone();
                    },
                }
                prop_assert_eq!(map.len(), model.len());
            }
            kept.push((map, model));
            for (map, model) in kept {
                prop_assert_eq!(contents(&map), model.clone());
                for key in 0..100 {
                    let found = find(&map, key).map(|(_, value)| value);
                    prop_assert_eq!(found, model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn a_table_keeps_its_size_while_values_come_and_go() {
        let mut map = Map::default();
        let hash_of = |value: &u64| value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut ids: std::collections::VecDeque<_> =
            (0..100).map(|value| map.insert(value, hash_of)).collect();
        for value in 100..100_000 {
            let oldest = ids.pop_front().unwrap();
            assert_eq!(map.remove(oldest, hash_of), Some(value - 100));
            ids.push_back(map.insert(value, hash_of));
        }
        assert!(map.table.places() <= 512, "{} places", map.table.places());
    }
    #[test]
    fn a_table_shrinks_with_what_it_leads_to_and_leads_to_the_rest() {
        let mut map = Map::default();
        let hash_of = |value: &u64| value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let ids: Vec<_> = (0..100_000)
            .map(|value| map.insert(value, hash_of))
            .collect();
        let (kept, gone) = ids.split_at(10);
        for id in gone {
            map.remove(*id, hash_of);
        }
        assert!(map.table.places() <= 512, "{} places", map.table.places());
        for (value, id) in (0..).zip(kept) {
            let found = map.find(hash_of(&value), |other| *other == value);
            assert_eq!(found, Some((*id, &value)));
        }
    }
}
