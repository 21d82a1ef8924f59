//! The heart of the queue: which keys are wanted, ready and running.
//!
//! A key that the core knows is in one or more of these states:
//!
//! | state | set by | left by |
//! |---|---|---|
//! | ready: stands in the order policy's line | `want` of a key that is not running | `take` |
//! | running: handed to a worker | `take` | `finish` |
//! | dirty: wanted again during its run | `want` of a running key | `finish`, which makes it ready |
//! | delayed: waits in the wheel | [`Shard`](crate::shard::Shard) | there too |
//!
//! Held at all times: a key is in the line once or not at all, and never while it is running; so
//! no key runs twice at once, and any number of adds during a run yields one more run. The core
//! forgets a key that is in none of the states.

use hashbrown::HashTable;

use crate::{
    KeyId,
    key::{IntoKey, KeyRef},
    order::{Keys, Order},
    slab::{Flags, Slab},
};

pub(crate) struct Core<K, O: Order<K>> {
    /// Finds the id of a key. Half of the hash lies beside it, so that a growing table does not
    /// touch the entries.
    table: HashTable<(u32, KeyId)>,
    pub(crate) slab: Slab<K, O::Slot>,
    order: O,
    running: usize,
}

/// What wanting a key has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It joined the line: somebody can take it.
    Ready,
    /// It will join the line when its run ends.
    Dirty,
    /// Nothing: it was wanted already.
    Already,
}

/// How a run has ended.
#[derive(Debug)]
pub(crate) struct Finished<K> {
    /// The key was dirty and is ready again.
    pub(crate) requeued: bool,
    /// Another key, held back by the order policy, may run now.
    pub(crate) released: bool,
    /// The key, if the core has forgotten it: to be dropped without the lock.
    pub(crate) key: Option<K>,
}

/// Below this many keys the table keeps its memory.
const SMALL: usize = 128;

impl<K: Eq, O: Order<K>> Core<K, O> {
    pub(crate) fn new(order: O) -> Self {
        Self {
            table: HashTable::new(),
            slab: Slab::new(),
            order,
            running: 0,
        }
    }

    /// Keys in the line.
    pub(crate) fn ready(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    #[cfg(test)]
    pub(crate) fn order(&self) -> &O {
        &self.order
    }

    pub(crate) fn timed(&self) -> bool {
        self.order.timed()
    }

    #[inline]
    pub(crate) fn flags(&self, id: KeyId) -> Flags {
        self.slab.meta(id).flags
    }

    pub(crate) fn flags_mut(&mut self, id: KeyId) -> &mut Flags {
        &mut self.slab.meta_mut(id).flags
    }

    /// The id of a known key.
    #[inline(always)]
    pub(crate) fn find(&self, key: KeyRef<'_, K>) -> Option<KeyId> {
        let half = half(key.hash());
        let same = |slot: &(u32, KeyId)| slot.0 == half && self.slab.is(slot.1, key);
        self.table.find(spread(half), same).map(|slot| slot.1)
    }

    /// Makes a key known. It has to get into a state before the lock is released.
    pub(crate) fn learn(&mut self, key: K, hash: u64) -> KeyId {
        let id = self.slab.insert(key, hash);
        let half = half(hash);
        self.table
            .insert_unique(spread(half), (half, id), |slot| spread(slot.0));
        id
    }

    /// Finds a key or makes it known; tells whether it was known.
    #[inline]
    pub(crate) fn intern(&mut self, key: impl IntoKey<K>, hash: u64) -> (KeyId, bool) {
        match self.find(KeyRef::with_hash(key.as_key(), hash)) {
            Some(id) => (id, true),
            None => (self.learn(key.into_key(), hash), false),
        }
    }

    /// A ready key has been added again.
    pub(crate) fn touch(&mut self, id: KeyId, at: u64) {
        self.order.touch(&mut Keys(&mut self.slab), id, at);
    }

    /// Asks for a run of the key.
    pub(crate) fn want(&mut self, id: KeyId, at: u64) -> Wanted {
        let flags = self.flags_mut(id);
        if flags.any(Flags::READY) {
            self.touch(id, at);
            Wanted::Already
        } else if flags.any(Flags::DIRTY) {
            Wanted::Already
        } else if flags.any(Flags::RUNNING) {
            flags.set(Flags::DIRTY);
            Wanted::Dirty
        } else {
            flags.set(Flags::READY);
            self.order.push(&mut Keys(&mut self.slab), id, at);
            Wanted::Ready
        }
    }

    /// Hands out the next key.
    pub(crate) fn take(&mut self) -> Option<KeyId> {
        let id = self.order.pop(&mut Keys(&mut self.slab))?;
        let flags = self.flags_mut(id);
        flags.clear(Flags::READY);
        flags.clear(Flags::COUNTED);
        flags.set(Flags::RUNNING);
        self.running += 1;
        Some(id)
    }

    /// Ends the run of a key.
    pub(crate) fn finish(&mut self, id: KeyId, at: u64) -> Finished<K> {
        self.running -= 1;
        let released = self.order.finished(&mut Keys(&mut self.slab), id);
        let flags = self.flags_mut(id);
        flags.clear(Flags::RUNNING);
        let requeued = flags.any(Flags::DIRTY);
        if requeued {
            flags.clear(Flags::DIRTY);
            flags.set(Flags::READY);
            self.order.push(&mut Keys(&mut self.slab), id, at);
        }
        Finished {
            requeued,
            released,
            key: self.forget_idle(id),
        }
    }

    /// Empties the line without any run and returns its keys.
    pub(crate) fn abandon(&mut self) -> Vec<K>
    where
        K: Clone,
    {
        self.order.clear(&mut Keys(&mut self.slab));
        let mut ready = Vec::new();
        self.slab
            .for_each(|id, meta| ready.extend(meta.flags.any(Flags::READY).then_some(id)));
        ready
            .into_iter()
            .map(|id| {
                self.flags_mut(id).clear(Flags::READY);
                self.forget_idle(id)
                    .unwrap_or_else(|| self.slab.key(id).clone())
            })
            .collect()
    }

    /// Forgets a key that is in no state; gives it back to be dropped without the lock.
    pub(crate) fn forget_idle(&mut self, id: KeyId) -> Option<K> {
        let meta = self.slab.meta(id);
        if meta.flags.any(Flags::ALIVE) {
            return None;
        }
        if let Ok(entry) = self
            .table
            .find_entry(spread(half(meta.hash)), |slot| slot.1 == id)
        {
            entry.remove();
        }
        let key = self.slab.remove(id);
        // An eighth, so that the copying stays within O(1) a key.
        if self.table.capacity() > SMALL && self.table.len() < self.table.capacity() / 8 {
            self.table
                .shrink_to(self.table.len() * 2, |slot| spread(slot.0));
        }
        Some(key)
    }
}

/// The half of a hash that the table keeps.
fn half(hash: u64) -> u32 {
    u32::try_from(hash >> 32).expect("the upper half of 64 bits")
}

/// A hash for the table made from half a hash: the table takes its lowest and its highest bits.
fn spread(half: u32) -> u64 {
    u64::from(half) << 32 | u64::from(half)
}
