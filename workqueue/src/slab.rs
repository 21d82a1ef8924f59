//! Storage of the keys that the queue knows: entries in chunks, at addresses that never move.
//!
//! An entry is found by a [`KeyId`], so the ready line and the delay wheel hold four bytes a key,
//! and a key's own bytes are touched when it comes and when it goes. Entries do not move while
//! they live, which lets an [`Item`](crate::Item) lend its key without a clone and without the
//! lock. A chunk without live entries gives its memory back.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    collections::BTreeSet,
    fmt,
    mem::MaybeUninit,
    ptr::NonNull,
};

use crate::{
    key::KeyRef,
    list::{LinkStore, Links},
};

/// Names a key inside its queue for as long as the queue knows the key.
///
/// Ids are reused: one that is kept longer may name another key later, never memory that is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u32);

impl KeyId {
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[cfg(test)]
    pub(crate) fn new(id: u32) -> Self {
        Self(id)
    }

    #[inline]
    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }

    /// A small number, unique among the keys that the queue knows now, to index a side table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.some() {
            Some(Self(id)) => write!(f, "KeyId({id})"),
            None => f.write_str("KeyId(-)"),
        }
    }
}

/// What the queue keeps with a key; `S` is the order policy's part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meta<S> {
    /// When the wait in the wheel is over, in nanoseconds since the queue was made.
    pub(crate) deadline: u64,
    pub(crate) hash: u64,
    /// Neighbours in the delay wheel; the next free entry while the entry is vacant.
    pub(crate) timer: Links,
    pub(crate) priority: i32,
    /// Which list of the delay wheel holds the key.
    pub(crate) place: u16,
    pub(crate) flags: Flags,
    occupied: bool,
    pub(crate) slot: S,
}

/// The states of a key, several at once. An entry lives while one of the first four is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags(u8);

impl Flags {
    /// Stands in the ready line.
    pub(crate) const READY: Self = Self(1);
    /// Handed to a worker.
    pub(crate) const RUNNING: Self = Self(1 << 1);
    /// Asked for during its run; never together with `READY`.
    pub(crate) const DIRTY: Self = Self(1 << 2);
    /// Waits in the delay wheel.
    pub(crate) const DELAYED: Self = Self(1 << 3);
    /// The deadline in the wheel is a reminder, which an immediate add must not drop.
    pub(crate) const REMINDER: Self = Self(1 << 4);
    /// The deadline in the wheel came from the rate limiter.
    pub(crate) const BACKOFF: Self = Self(1 << 5);
    /// The limiter has counted a failure since the last run began.
    pub(crate) const COUNTED: Self = Self(1 << 6);

    /// The states that keep an entry alive.
    pub(crate) const ALIVE: Self =
        Self(Self::READY.0 | Self::RUNNING.0 | Self::DIRTY.0 | Self::DELAYED.0);
    /// Asked for now or later: adds merge with what is there.
    pub(crate) const PENDING: Self = Self(Self::READY.0 | Self::DIRTY.0 | Self::DELAYED.0);
    /// Asked for and not yet handed out.
    pub(crate) const WANTED: Self = Self(Self::READY.0 | Self::DIRTY.0);
    /// Where the deadline in the wheel comes from.
    pub(crate) const ORIGIN: Self = Self(Self::REMINDER.0 | Self::BACKOFF.0);
    /// What goes with a deadline.
    pub(crate) const DEADLINE: Self = Self(Self::DELAYED.0 | Self::ORIGIN.0);

    #[inline]
    pub(crate) fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    #[inline]
    pub(crate) fn only(self, of: Self) -> Self {
        Self(self.0 & of.0)
    }

    #[inline]
    pub(crate) fn set(&mut self, flags: Self) {
        self.0 |= flags.0;
    }

    #[inline]
    pub(crate) fn clear(&mut self, flags: Self) {
        self.0 &= !flags.0;
    }
}

struct Entry<K, S> {
    meta: Meta<S>,
    key: MaybeUninit<K>,
}

/// Entries in one chunk. Small, so that a queue of a few keys is small too.
const CHUNK: u32 = 128;

struct Chunk<K, S> {
    /// `CHUNK` entries, or none while the chunk holds no key.
    entries: Option<NonNull<Entry<K, S>>>,
    live: u32,
    /// Entries from here on have never been written.
    fresh: u32,
    /// First vacant entry below `fresh`, or `CHUNK`.
    vacant: u32,
}

impl<K, S> Chunk<K, S> {
    const EMPTY: Self = Self {
        entries: None,
        live: 0,
        fresh: 0,
        vacant: CHUNK,
    };
}

/// All keys that a shard of the queue knows.
pub(crate) struct Slab<K, S> {
    chunks: Vec<Chunk<K, S>>,
    /// Chunks that have room. The lowest is filled first, so that the end can be given up.
    open: BTreeSet<u32>,
    /// The chunk that is being filled; a guess, to ask `open` only once a chunk.
    current: u32,
    /// Memory of a chunk that went empty, so that a queue that hovers around nothing allocates
    /// nothing.
    spare: Option<NonNull<Entry<K, S>>>,
    live: usize,
}

// SAFETY: the slab owns its entries; the raw pointers are an owning `Box` in all but name.
#[expect(
    unsafe_code,
    reason = "raw pointers are not `Send`; see the line above"
)]
unsafe impl<K: Send, S: Send> Send for Slab<K, S> {}

impl<K, S: Copy + Default> Slab<K, S> {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            open: BTreeSet::new(),
            current: 0,
            spare: None,
            live: 0,
        }
    }

    /// Ids of live keys are below this.
    pub(crate) fn bound(&self) -> usize {
        self.chunks.len() * CHUNK as usize
    }

    /// Stores a key. O(1); allocates when all chunks are full.
    pub(crate) fn insert(&mut self, key: K, hash: u64) -> KeyId {
        let index = self.chunk_with_room();
        let spare = &mut self.spare;
        let chunk = &mut self.chunks[index as usize];
        let entries = *chunk
            .entries
            .get_or_insert_with(|| spare.take().unwrap_or_else(allocate::<K, S>));
        let offset = if chunk.vacant < CHUNK {
            chunk.vacant
        } else {
            chunk.fresh
        };
        // SAFETY: `offset` is below `CHUNK`, since an open chunk has a vacant or a fresh entry,
        // and `entries` points at `CHUNK` entries. The entry is vacant, so no key is overwritten
        // and nobody holds a reference into it.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        unsafe {
            let entry = entries.as_ptr().add(offset as usize);
            if offset == chunk.fresh {
                chunk.fresh += 1;
            } else {
                chunk.vacant = (*entry).meta.place.into();
            }
            (&raw mut (*entry).meta).write(Meta {
                deadline: 0,
                hash,
                timer: Links::default(),
                priority: 0,
                place: 0,
                flags: Flags::default(),
                occupied: true,
                slot: S::default(),
            });
            (&raw mut (*entry).key).write(MaybeUninit::new(key));
        }
        chunk.live += 1;
        if chunk.live == CHUNK {
            self.open.remove(&index);
        }
        self.live += 1;
        KeyId(index * CHUNK + offset)
    }

    fn chunk_with_room(&mut self) -> u32 {
        if self
            .chunks
            .get(self.current as usize)
            .is_none_or(|chunk| chunk.live == CHUNK)
        {
            self.current = self.open.first().copied().unwrap_or_else(|| {
                let index = u32::try_from(self.chunks.len()).expect("fewer than 2^32 chunks");
                assert!(
                    index < u32::MAX / CHUNK,
                    "a queue shard holds fewer than 2^32 keys"
                );
                self.chunks.push(Chunk::EMPTY);
                self.open.insert(index);
                index
            });
        }
        self.current
    }

    /// Takes a key out. O(1), amortised.
    pub(crate) fn remove(&mut self, id: KeyId) -> K {
        let entry = self.entry(id);
        // SAFETY: `entry` checked that the entry is occupied, so its key is initialised, and
        // clearing `occupied` makes this the only read that moves it out.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        let key = unsafe {
            (*entry).meta.occupied = false;
            (*entry).key.assume_init_read()
        };
        let (index, offset) = (id.0 / CHUNK, id.0 % CHUNK);
        let chunk = &mut self.chunks[index as usize];
        // SAFETY: as above; `place` has no other use in a vacant entry.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        unsafe {
            (*entry).meta.place = u16::try_from(chunk.vacant).expect("at most CHUNK");
        }
        chunk.vacant = offset;
        if chunk.live == CHUNK {
            self.open.insert(index);
        }
        chunk.live -= 1;
        self.live -= 1;
        if chunk.live == 0 {
            let entries = chunk
                .entries
                .take()
                .expect("a chunk that held a key has memory");
            *chunk = Chunk::EMPTY;
            match self.spare {
                None => self.spare = Some(entries),
                Some(_) => release(entries),
            }
            self.trim();
        }
        key
    }

    /// Gives up empty chunks at the end of the directory.
    fn trim(&mut self) {
        while self.chunks.pop_if(|chunk| chunk.live == 0).is_some() {
            let index = u32::try_from(self.chunks.len()).expect("as when it was pushed");
            self.open.remove(&index);
        }
        if self.chunks.capacity() > 64 && self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }

    #[inline]
    pub(crate) fn meta(&self, id: KeyId) -> &Meta<S> {
        let entry = self.entry(id);
        // SAFETY: the entry is live memory with an initialised `meta`; `&self` excludes writers,
        // and the reference covers `meta` alone.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        unsafe {
            &(*entry).meta
        }
    }

    #[inline]
    pub(crate) fn meta_mut(&mut self, id: KeyId) -> &mut Meta<S> {
        let entry = self.entry(id);
        // SAFETY: as in `meta`, and `&mut self` excludes other readers of `meta`. Keys that are
        // lent out lie beside `meta`, not inside it.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        unsafe {
            &mut (*entry).meta
        }
    }

    /// Whether `id` is this key.
    #[inline]
    pub(crate) fn is(&self, id: KeyId, key: KeyRef<'_, K>) -> bool
    where
        K: Eq,
    {
        let entry = self.entry(id);
        // SAFETY: as in `meta` and in `key`.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        unsafe {
            (*entry).meta.hash == key.hash() && (*entry).key.assume_init_ref() == key.key()
        }
    }

    pub(crate) fn key(&self, id: KeyId) -> &K {
        let entry = self.entry(id);
        // SAFETY: an occupied entry's key is initialised, and nobody writes to a key in place.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        unsafe {
            (*entry).key.assume_init_ref()
        }
    }

    /// The key's address, valid until `remove(id)` or the end of the slab.
    pub(crate) fn key_address(&self, id: KeyId) -> NonNull<K> {
        NonNull::from(self.key(id))
    }

    /// The occupied entry `id`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    fn entry(&self, id: KeyId) -> *mut Entry<K, S> {
        let chunk = &self.chunks[(id.0 / CHUNK) as usize];
        let offset = id.0 % CHUNK;
        let entries = chunk.entries.expect("an id of a live key");
        // SAFETY: `offset` is below `CHUNK`, and `occupied` is initialised in every entry.
        #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
        unsafe {
            let entry = entries.as_ptr().add(offset as usize);
            assert!((*entry).meta.occupied, "an id of a live key");
            entry
        }
    }

    /// Calls `f` with every live key, in the order of ids. O(keys ever live at once).
    pub(crate) fn for_each(&self, mut f: impl FnMut(KeyId, &Meta<S>)) {
        for (index, chunk) in (0u32..).zip(&self.chunks) {
            let Some(entries) = chunk.entries else {
                continue;
            };
            for offset in 0..chunk.fresh {
                // SAFETY: entries below `fresh` have been written.
                #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
                let meta = unsafe { &(*entries.as_ptr().add(offset as usize)).meta };
                if meta.occupied {
                    f(KeyId(index * CHUNK + offset), meta);
                }
            }
        }
    }
}

fn layout<K, S>() -> Layout {
    Layout::array::<Entry<K, S>>(CHUNK as usize).expect("128 entries fit into the address space")
}

/// Memory of a chunk, filled with zeros: `occupied` is false in all entries.
fn allocate<K, S>() -> NonNull<Entry<K, S>> {
    let layout = layout::<K, S>();
    // SAFETY: the layout is not empty, since an entry has a deadline.
    #[expect(unsafe_code, reason = "a chunk is allocated without naming each field")]
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory.cast()).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Gives the memory of a chunk without keys back.
fn release<K, S>(entries: NonNull<Entry<K, S>>) {
    // SAFETY: `entries` came from `allocate` with the same layout and is owned by the caller.
    #[expect(unsafe_code, reason = "the counterpart of `allocate`")]
    unsafe {
        dealloc(entries.as_ptr().cast(), layout::<K, S>());
    }
}

impl<K, S> Drop for Slab<K, S> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let Some(entries) = chunk.entries else {
                continue;
            };
            for offset in 0..chunk.fresh {
                // SAFETY: entries below `fresh` have been written; occupied ones hold a key, which
                // nobody can reach any more.
                #[expect(unsafe_code, reason = "entries have stable addresses; proof above")]
                unsafe {
                    let entry = entries.as_ptr().add(offset as usize);
                    if (*entry).meta.occupied {
                        (*entry).key.assume_init_drop();
                    }
                }
            }
            release(entries);
        }
        if let Some(entries) = self.spare {
            release(entries);
        }
    }
}

impl<K, S> fmt::Debug for Slab<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

/// The links of the delay wheel.
pub(crate) struct TimerLinks<'a, K, S>(pub(crate) &'a mut Slab<K, S>);

impl<K, S: Copy + Default> LinkStore for TimerLinks<'_, K, S> {
    fn links(&mut self, id: KeyId) -> &mut Links {
        &mut self.0.meta_mut(id).timer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn keys_keep_their_address_while_others_come_and_go() {
        let mut slab: Slab<String, ()> = Slab::new();
        let id = slab.insert("kept".to_owned(), 1);
        let address = slab.key_address(id);
        let others: Vec<_> = (0..1000).map(|i| slab.insert(i.to_string(), 0)).collect();
        for id in others {
            slab.remove(id);
        }
        assert_eq!(slab.key_address(id), address);
        assert_eq!(slab.key(id), "kept");
    }

    #[test]
    fn vacant_ids_are_used_again_before_new_ones() {
        let mut slab: Slab<u32, ()> = Slab::new();
        let ids: Vec<_> = (0..300).map(|i| slab.insert(i, 0)).collect();
        let bound = slab.bound();
        for id in ids.iter().step_by(2) {
            slab.remove(*id);
        }
        for i in 0..150 {
            slab.insert(i, 0);
        }
        assert_eq!(slab.bound(), bound);
    }

    #[test]
    fn q07_every_key_is_dropped_once() {
        let key = Arc::new(());
        let mut slab: Slab<Arc<()>, ()> = Slab::new();
        let ids: Vec<_> = (0..500).map(|_| slab.insert(Arc::clone(&key), 0)).collect();
        for id in &ids[..300] {
            drop(slab.remove(*id));
        }
        assert_eq!(Arc::strong_count(&key), 201);
        drop(slab);
        assert_eq!(Arc::strong_count(&key), 1);
    }

    #[test]
    fn the_directory_shrinks_with_the_keys() {
        let mut slab: Slab<u32, ()> = Slab::new();
        let kept = slab.insert(0, 0);
        let ids: Vec<_> = (0..100_000).map(|i| slab.insert(i, 0)).collect();
        assert!(slab.chunks.len() > 700);
        for id in ids {
            slab.remove(id);
        }
        assert!(slab.chunks.len() <= 2, "{} chunks", slab.chunks.len());
        assert_eq!(*slab.key(kept), 0);
    }

    #[test]
    #[should_panic(expected = "an id of a live key")]
    fn a_stale_id_is_noticed() {
        let mut slab: Slab<u32, ()> = Slab::new();
        let (id, _other) = (slab.insert(0, 0), slab.insert(1, 0));
        slab.remove(id);
        slab.key(id);
    }
}
