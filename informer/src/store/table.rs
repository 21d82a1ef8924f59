//! A flat table from hashes to numbers that grows by entries and never changes one.
//!
//! All versions of a store share it, the writer's next one as well. That is sound because nobody
//! takes it at its word: it gives the numbers that *may* be meant, and the reader asks its own
//! version what stands there. A number that is no longer that of a key in one version, or not yet,
//! costs a look; it cannot make an answer wrong. Since entries stay, a version finds every key that
//! it holds for as long as it lives. Entries that nobody needs any more go when a new table is made.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::slab::Id;

/// Places of the smallest table.
const LEAST: usize = 8;
/// Places for each value above which a table is made anew. A new one has three at most, so that
/// many values go before the next.
const SPARE: usize = 16;

/// A number that several threads see.
///
/// An entry is the whole of what it tells, and leads to no other memory: its order among other
/// accesses does not matter.
pub(super) trait Cell {
    fn new() -> Self;
    fn load(&self) -> u32;
    /// Puts `value` in the place of zero; otherwise says what is there.
    fn set(&self, value: u32) -> Result<(), u32>;
    /// Adds one, and tells what was before.
    fn count(&self) -> u32;
}

impl Cell for AtomicU32 {
    fn new() -> Self {
        Self::new(0)
    }

    fn load(&self) -> u32 {
        self.load(Relaxed)
    }

    fn set(&self, value: u32) -> Result<(), u32> {
        let set = self.compare_exchange(0, value, Relaxed, Relaxed);
        set.map(|_| ())
    }

    fn count(&self) -> u32 {
        self.fetch_add(1, Relaxed)
    }
}

/// Numbers by hash, in places that follow each other from where the hash says.
///
/// An entry is a number plus one in its lower bits, as many as the numbers need, and above them
/// as many bits of the hash: four bytes in all, so that the table is the one part of a big store
/// that stays in a processor's own memory.
#[derive(Debug)]
pub(super) struct Table<C = AtomicU32> {
    /// A power of two of them; zero is free.
    places: Box<[C]>,
    /// The bits of an entry that are the number.
    numbers: u32,
    /// Entries that were let in or refused for want of room.
    asked: C,
}

impl<C: Cell> Table<C> {
    /// A table that `entries` fill to two thirds at most, for numbers below `numbers`, or as many
    /// as it has room for.
    pub(super) fn new(entries: usize, numbers: Id) -> Self {
        let places = (entries + entries / 2).next_power_of_two().max(LEAST);
        let highest = u32::try_from(places).map_or(Id::MAX, |places| places.max(numbers));
        Self {
            places: (0..places).map(|_| C::new()).collect(),
            numbers: u32::MAX >> highest.leading_zeros(),
            asked: C::new(),
        }
    }

    /// The places from where `hash` leads, all of them once.
    fn from(&self, hash: u64) -> impl Iterator<Item = &C> {
        let mask = self.places.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "the mask leaves what fits")]
        let first = hash as usize & mask;
        (0..=mask).map(move |step| &self.places[(first + step) & mask])
    }

    /// The part of `hash` that stands in an entry.
    fn tag(&self, hash: u64) -> u32 {
        let upper = (hash >> u32::BITS) as u32;
        upper & !self.numbers
    }

    /// What `matches` makes of the first number under `hash` that it accepts.
    pub(super) fn find<T>(&self, hash: u64, mut matches: impl FnMut(Id) -> Option<T>) -> Option<T> {
        let tag = self.tag(hash);
        for place in self.from(hash) {
            let entry = place.load();
            if entry == 0 {
                return None;
            }
            if entry & !self.numbers == tag
                && let Some(id) = (entry & self.numbers).checked_sub(1)
                && let Some(found) = matches(id)
            {
                return Some(found);
            }
        }
        None
    }

    /// Enters `id` under `hash`, unless it stands there. `false` if the table is full, which it
    /// is with an eighth of its places free, or if the number is too high for it.
    #[must_use]
    pub(super) fn enter(&self, hash: u64, id: Id) -> bool {
        if id >= self.numbers {
            return false;
        }
        let wanted = self.tag(hash) | (id + 1);
        let mut counted = false;
        for place in self.from(hash) {
            let mut entry = place.load();
            if entry == 0 {
                if !counted && self.asked.count() as usize >= self.limit() {
                    return false;
                }
                counted = true;
                match place.set(wanted) {
                    Ok(()) => return true,
                    Err(other) => entry = other,
                }
            }
            if entry == wanted {
                return true;
            }
        }
        false
    }

    /// Whether a table that was made for `entries` would have a fifth of its places or fewer.
    pub(super) fn is_far_too_large(&self, entries: usize) -> bool {
        self.places.len() > SPARE * entries.max(LEAST)
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    fn limit(&self) -> usize {
        let places = self.places.len();
        places - places / 8
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn under<C: Cell>(table: &Table<C>, hash: u64) -> BTreeSet<Id> {
        let mut found = BTreeSet::new();
        table.find(hash, |id| {
            found.insert(id);
            None::<()>
        });
        found
    }

    proptest! {
        /// Hashes of few places and few tags, so that entries push each other on.
        #[test]
        fn every_number_is_found_under_its_hash_until_the_table_is_full(
            room in 0..40_usize,
            entries in proptest::collection::vec((0..16_u64, 0..3_u64, 0..8_u32), 0..100),
        ) {
            let table = Table::<AtomicU32>::new(room, 0);
            let mut model = BTreeSet::new();
            for (place, tag, id) in entries {
                let hash = tag << 62 | place;
                if table.enter(hash, id) {
                    model.insert((hash, id));
                } else {
                    prop_assert!(model.len() >= room);
                    break;
                }
                // Tags are all that is compared, so other places of the tag may answer as well.
                for (hash, id) in &model {
                    prop_assert!(under(&table, *hash).contains(id));
                }
                for id in under(&table, hash) {
                    prop_assert!(model.iter().any(|(h, i)| h >> 62 == tag && *i == id));
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_too_high_is_refused_and_the_highest_is_not() {
        for (entries, numbers) in [(0, 0), (0, 8), (0, 1000), (100, 7), (5, Id::MAX)] {
            let table = Table::<AtomicU32>::new(entries, numbers);
            let highest = table.numbers - 1;
            assert!(highest >= numbers.saturating_sub(1), "{numbers}");
            assert!(table.enter(u64::MAX, highest) && table.enter(u64::MAX - 1, 0));
            assert!(!table.enter(5, highest + 1));
            assert!(under(&table, u64::MAX).contains(&highest), "{numbers}");
        }
    }

    #[test]
    fn an_entry_that_is_there_takes_no_second_place() {
        let table = Table::<AtomicU32>::new(1, 0);
        for _ in 0..100 {
            assert!(table.enter(7, 3));
        }
        let taken = table.places.iter().filter(|place| place.load(Relaxed) > 0);
        assert_eq!(taken.count(), 1);
    }

    impl Cell for loom::sync::atomic::AtomicU32 {
        fn new() -> Self {
            Self::new(0)
        }

        fn load(&self) -> u32 {
            self.load(Relaxed)
        }

        fn set(&self, value: u32) -> Result<(), u32> {
            let set = self.compare_exchange(0, value, Relaxed, Relaxed);
            set.map(|_| ())
        }

        fn count(&self) -> u32 {
            self.fetch_add(1, Relaxed)
        }
    }

    /// Two versions that both go on from one table, and a reader: each finds what it entered or
    /// was shown, in every order of their steps, and no number that nobody entered.
    #[test]
    fn writers_and_readers_of_one_table_lose_nothing_in_any_order() {
        loom::model(|| {
            let table = loom::sync::Arc::new(Table::<loom::sync::atomic::AtomicU32>::new(2, 20));
            assert!(table.enter(1, 10));
            let writer = |id| {
                let table = loom::sync::Arc::clone(&table);
                loom::thread::spawn(move || {
                    assert!(table.enter(1, id));
                    let found = under(&table, 1);
                    assert!(found.contains(&10) && found.contains(&id));
                })
            };
            let writers = [writer(11), writer(12)];
            let found = under(&table, 1);
            assert!(found.contains(&10) && found.is_subset(&[10, 11, 12].into()));
            for writer in writers {
                writer.join().unwrap();
            }
            assert_eq!(under(&table, 1), [10, 11, 12].into());
        });
    }
}
