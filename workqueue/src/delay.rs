//! The delay wheel: pending deadlines in a hierarchy of slots, exact to the nanosecond.
//!
//! A deadline lies in the slot of the highest group of six bits in which it differs from the
//! wheel's time; slots of level 0 are one nanosecond wide, those of level 5 about a second. When
//! time enters a slot, its keys move to lower levels, so a key moves at most once a level, and
//! what is due leaves in the order of deadlines; equal deadlines keep the order of insertion, since
//! every move appends. A small slot that is due as a whole is sorted on the spot instead. Lists run
//! through the keys' entries: no key is ever in two of them, removal is O(1), and the wheel itself
//! has a fixed size.

use crate::{
    KeyId,
    list::List,
    slab::{Slab, TimerLinks},
};

const BITS: usize = 6;
const SLOTS: usize = 1 << BITS;
/// Enough for all of `u64`.
const LEVELS: usize = 11;
/// Keys of one slot that are sorted at once.
const BATCH: usize = 192;

#[derive(Debug, Clone, Copy)]
struct Slot {
    keys: List,
    /// No deadline in the slot is earlier. Not raised by removals, which costs one early wake-up.
    earliest: u64,
}

impl Slot {
    const EMPTY: Self = Self {
        keys: List::EMPTY,
        earliest: u64::MAX,
    };
}

/// Deadlines of keys in one slab, in nanoseconds since the queue was made.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// Time of the wheel: keys lie in slots that begin after it, or at level 0 in its own.
    elapsed: u64,
    /// Bit `i` of a level is set when its slot `i` has keys.
    occupied: [u64; LEVELS],
    /// As many levels as have been needed.
    levels: Vec<[Slot; SLOTS]>,
    /// The keys of a slot that time has entered, on their way to lower levels.
    spreading: List,
    /// The slot that `spreading` came from; empty as long as time is in it.
    spreading_from: usize,
    /// Last moment of that slot.
    spreading_end: u64,
    len: usize,
}

/// What one step of [`Wheel::advance`] has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advance {
    /// Everything due has left.
    Done,
    /// The step's budget is spent; there is more to do now.
    More,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            elapsed: 0,
            occupied: [0; LEVELS],
            levels: Vec::new(),
            spreading: List::EMPTY,
            spreading_from: 0,
            spreading_end: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Starts the wait of `id`, which must not be in the wheel. O(1).
    pub(crate) fn insert<K, S: Copy + Default>(
        &mut self,
        slab: &mut Slab<K, S>,
        id: KeyId,
        now: u64,
        deadline: u64,
    ) {
        if self.len == 0 {
            self.elapsed = self.elapsed.max(now);
        }
        slab.meta_mut(id).deadline = deadline;
        self.len += 1;
        if !self.spreading.is_empty() && deadline <= self.spreading_end {
            // Its equals are still in that list, and they came first.
            self.spreading.push_back(&mut TimerLinks(slab), id);
            slab.meta_mut(id).place = place_of(self.spreading_from);
        } else {
            self.settle(slab, id, deadline);
        }
    }

    /// Puts a key into the slot of its deadline; one that is due already goes to the present slot.
    fn settle<K, S: Copy + Default>(&mut self, slab: &mut Slab<K, S>, id: KeyId, deadline: u64) {
        let at = deadline.max(self.elapsed);
        let highest = 63_usize.saturating_sub((at ^ self.elapsed).leading_zeros() as usize);
        let level = highest / BITS;
        let index = usize::try_from((at >> (BITS * level)) % SLOTS as u64).expect("below 64");
        while self.levels.len() <= level {
            self.levels.push([Slot::EMPTY; SLOTS]);
        }
        let slot = &mut self.levels[level][index];
        slot.earliest = slot.earliest.min(deadline);
        slot.keys.push_back(&mut TimerLinks(slab), id);
        self.occupied[level] |= 1 << index;
        slab.meta_mut(id).place = place_of(level * SLOTS + index);
    }

    /// Ends the wait of `id`, which must be in the wheel. O(1).
    pub(crate) fn remove<K, S: Copy + Default>(&mut self, slab: &mut Slab<K, S>, id: KeyId) {
        self.len -= 1;
        let place = usize::from(slab.meta(id).place);
        if !self.spreading.is_empty() && place == self.spreading_from {
            self.spreading.remove(&mut TimerLinks(slab), id);
            return;
        }
        let (level, index) = (place / SLOTS, place % SLOTS);
        self.levels[level][index]
            .keys
            .remove(&mut TimerLinks(slab), id);
        if self.levels[level][index].keys.is_empty() {
            self.clear(level, index);
        }
    }

    fn clear(&mut self, level: usize, index: usize) {
        self.levels[level][index] = Slot::EMPTY;
        self.occupied[level] &= !(1 << index);
    }

    /// The occupied slot with the earliest keys.
    fn first(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// The first moment of a slot.
    fn start_of(&self, level: usize, index: usize) -> u64 {
        let shift = BITS * level;
        let above = if level + 1 < LEVELS {
            u64::MAX << (shift + BITS)
        } else {
            0
        };
        (self.elapsed & above) | ((index as u64) << shift)
    }

    /// A moment no later than the earliest deadline: when to look again. O(levels).
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        if !self.spreading.is_empty() {
            return Some(self.elapsed);
        }
        self.first()
            .map(|(level, index)| self.levels[level][index].earliest)
    }

    /// Moves time to `now` and calls `due` with each key whose deadline has come, in order.
    ///
    /// Does at most about `budget` steps, so that a caller holds its lock for a bounded time;
    /// all calls together do at most one step a key and level.
    pub(crate) fn advance<K, S: Copy + Default>(
        &mut self,
        slab: &mut Slab<K, S>,
        now: u64,
        mut budget: usize,
        mut due: impl FnMut(&mut Slab<K, S>, KeyId),
    ) -> Advance {
        loop {
            while !self.spreading.is_empty() {
                if budget == 0 {
                    return Advance::More;
                }
                budget -= 1;
                let id = self.spreading.head().expect("the list is not empty");
                self.spreading.remove(&mut TimerLinks(slab), id);
                let deadline = slab.meta(id).deadline;
                self.settle(slab, id, deadline);
            }
            let Some((level, index)) = self.first() else {
                self.elapsed = self.elapsed.max(now);
                return Advance::Done;
            };
            let slot = self.levels[level][index];
            let start = self.start_of(level, index);
            if slot.earliest > now {
                if start > now {
                    self.elapsed = self.elapsed.max(now);
                }
                return Advance::Done;
            }
            if budget == 0 {
                return Advance::More;
            }
            if level == 0 || slot.keys.is_single() {
                let id = slot.keys.head().expect("an occupied slot has keys");
                let deadline = slab.meta(id).deadline;
                if deadline > now {
                    // `earliest` was that of a key which has been removed.
                    self.levels[level][index].earliest = deadline;
                    continue;
                }
                budget -= 1;
                self.elapsed = self.elapsed.max(deadline);
                self.remove(slab, id);
                due(slab, id);
                continue;
            }
            let end = start | ((1 << (BITS * level)) - 1);
            if end <= now
                && let Some(n) = self.release(slab, (level, index), budget, &mut due)
            {
                budget -= n;
                self.elapsed = end;
                continue;
            }
            self.elapsed = self.elapsed.max(start);
            self.spreading = slot.keys;
            self.spreading_from = level * SLOTS + index;
            self.spreading_end = end;
            self.clear(level, index);
        }
    }

    /// Calls `due` with all keys of a slot that is due as a whole, sorted instead of moved through
    /// the levels below. Does nothing if they are more than `most`, or than are worth it.
    fn release<K, S: Copy + Default>(
        &mut self,
        slab: &mut Slab<K, S>,
        (level, index): (usize, usize),
        most: usize,
        due: &mut impl FnMut(&mut Slab<K, S>, KeyId),
    ) -> Option<usize> {
        let keys = self.levels[level][index].keys;
        let mut batch = [(0, 0, KeyId::NONE); BATCH];
        let mut n = 0;
        let mut next = keys.head();
        while let Some(id) = next {
            if n == most.min(BATCH) {
                return None;
            }
            // The number keeps equals in order: a sort that does so by itself would allocate.
            batch[n] = (slab.meta(id).deadline, n, id);
            n += 1;
            next = keys.after(&mut TimerLinks(slab), id);
        }
        self.clear(level, index);
        self.len -= n;
        batch[..n].sort_unstable();
        for (_, _, id) in &batch[..n] {
            due(slab, *id);
        }
        Some(n)
    }
}

fn place_of(slot: usize) -> u16 {
    u16::try_from(slot).expect("a wheel has 704 slots")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inserts keys with the given deadlines at time 0; the wheel and the slab.
    fn wheel(deadlines: &[u64]) -> (Wheel, Slab<usize, ()>) {
        let (mut wheel, mut slab) = (Wheel::new(), Slab::new());
        for (key, deadline) in deadlines.iter().enumerate() {
            let id = slab.insert(key, 0);
            wheel.insert(&mut slab, id, 0, *deadline);
        }
        (wheel, slab)
    }

    fn fire(wheel: &mut Wheel, slab: &mut Slab<usize, ()>, now: u64, budget: usize) -> Vec<usize> {
        let mut fired = Vec::new();
        while wheel.advance(slab, now, budget, |slab, id| fired.push(*slab.key(id)))
            == Advance::More
        {}
        fired
    }

    #[test]
    fn w29_no_step_makes_more_moves_than_its_budget() {
        let deadlines: Vec<u64> = (0..10_000).map(|i| 2_000_000 + i % 7).collect();
        let (mut wheel, mut slab) = wheel(&deadlines);
        let mut steps = 0;
        loop {
            let mut fired = 0;
            let advance = wheel.advance(&mut slab, 1 << 40, 100, |_, _| fired += 1);
            assert!(fired <= 100);
            steps += 1;
            if advance == Advance::Done {
                break;
            }
        }
        assert!((100..=100 * LEVELS).contains(&steps), "{steps} steps");
        assert!(wheel.is_empty());
    }

    #[test]
    fn w22_the_order_is_the_same_whatever_the_steps_of_time_and_budget() {
        let deadlines: Vec<u64> = (0..3000_u64)
            .map(|i| 1 + i * i * 7919 % 5_000_000)
            .collect();
        let mut expected: Vec<usize> = (0..deadlines.len()).collect();
        expected.sort_by_key(|key| deadlines[*key]);
        for (step, budget) in [
            (1 << 40, 1),
            (1 << 40, 256),
            (3_000_000, 7),
            (70_000, 50),
            (1000, 3),
        ] {
            let (mut wheel, mut slab) = wheel(&deadlines);
            let mut fired = Vec::new();
            let mut now = 0;
            while !wheel.is_empty() {
                now += step;
                fired.extend(fire(&mut wheel, &mut slab, now, budget));
            }
            assert_eq!(fired, expected, "steps of {step} ns, budget {budget}");
        }
    }

    #[test]
    fn a_key_inserted_while_its_slot_is_being_spread_stands_behind_its_equals() {
        let (mut wheel, mut slab) = wheel(&[1_000_000; 10]);
        let next = wheel.next();
        assert_eq!(next, Some(1_000_000));
        let mut fired = Vec::new();
        let half = wheel.advance(&mut slab, 1_000_000, 5, |slab, id| {
            fired.push(*slab.key(id))
        });
        assert_eq!((half, fired.len()), (Advance::More, 0));
        let late = slab.insert(10, 0);
        wheel.insert(&mut slab, late, 999_999, 1_000_000);
        fired.extend(fire(&mut wheel, &mut slab, 1_000_000, 5));
        assert_eq!(fired, (0..=10).collect::<Vec<_>>());
    }

    #[test]
    fn a_removed_key_leaves_an_early_wake_up_at_most() {
        let (mut wheel, mut slab) = wheel(&[1_000, 2_000_000_000]);
        let ids: Vec<_> = {
            let mut ids = Vec::new();
            slab.for_each(|id, _| ids.push(id));
            ids
        };
        wheel.remove(&mut slab, ids[0]);
        assert_eq!(fire(&mut wheel, &mut slab, 1_999_999_999, 9), [0_usize; 0]);
        assert_eq!(wheel.next(), Some(2_000_000_000));
        wheel.remove(&mut slab, ids[1]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn w29_deadlines_at_the_ends_of_the_range_are_kept() {
        let (mut wheel, mut slab) = wheel(&[u64::MAX - 1, 1, 1 << 63]);
        assert_eq!(fire(&mut wheel, &mut slab, 1, 9), [1]);
        assert_eq!(fire(&mut wheel, &mut slab, u64::MAX - 2, 9), [2]);
        assert_eq!(fire(&mut wheel, &mut slab, u64::MAX - 1, 9), [0]);
    }
}
