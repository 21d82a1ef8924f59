//! What a limiter keeps about each key, bounded by forgetting keys that have been idle for long.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::HashTable;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    clock::saturating_nanos,
    key::{KeyRef, QueueKey},
    sync::Padded,
};

/// Parts with a lock of their own, so that two keys seldom contend.
const PARTS: usize = 16;
/// Parts with fewer keys are not looked through for idle ones.
const SMALL: usize = 64;

/// A table of `S` by key.
///
/// A key is forgotten once `idle` has passed since its last update: not on the dot, but as updates
/// of other keys in its part of the table pay for the search. That keeps the table within twice
/// the number of keys that are not idle, at O(1) an update.
pub(super) struct Memory<K, S> {
    parts: Box<[Padded<Part<K, S>>]>,
    idle: u64,
    /// Where time begins: the first moment the limiter was told.
    start: OnceLock<Instant>,
    evicted: AtomicU64,
}

struct Part<K, S> {
    /// The table's length, so that a key is known to be absent from an empty one without the lock.
    len: AtomicUsize,
    table: Mutex<Table<K, S>>,
}

struct Table<K, S> {
    records: HashTable<Record<K, S>>,
    /// Updates until idle keys may be looked for again: as many as keys were left the last time.
    unpaid: usize,
    swept_at: u64,
}

struct Record<K, S> {
    hash: u64,
    key: K,
    used_at: u64,
    state: S,
}

impl<K: QueueKey, S: Copy + Default + Send> Memory<K, S> {
    pub(super) fn new(idle: Duration) -> Self {
        let part = || {
            Padded(Part {
                len: AtomicUsize::new(0),
                table: Mutex::new(Table {
                    records: HashTable::new(),
                    unpaid: SMALL,
                    swept_at: 0,
                }),
            })
        };
        Self {
            parts: (0..PARTS).map(|_| part()).collect(),
            idle: saturating_nanos(idle),
            start: OnceLock::new(),
            evicted: AtomicU64::new(0),
        }
    }

    fn part(&self, hash: u64) -> &Part<K, S> {
        // Not the bits that a sharded queue or the tables select by.
        &self.parts[(hash >> 40) as usize % PARTS].0
    }

    /// Nanoseconds since the first moment the limiter was told.
    pub(super) fn nanos(&self, now: Instant) -> u64 {
        let start = *self.start.get_or_init(|| now);
        saturating_nanos(now.saturating_duration_since(start))
    }

    /// Changes what is kept about a key, starting from the default.
    pub(super) fn update<R>(
        &self,
        key: KeyRef<'_, K>,
        now: Instant,
        change: impl FnOnce(&mut S) -> R,
    ) -> R {
        let at = self.nanos(now);
        let part = self.part(key.hash());
        let mut table = part.table.lock();
        let evicted = table.sweep(at, self.idle);
        self.evicted.fetch_add(evicted as u64, Ordering::Relaxed);
        let same = |record: &Record<K, S>| record.hash == key.hash() && record.key == *key.key();
        let record = match table.records.find_entry(key.hash(), same) {
            Ok(entry) => entry.into_mut(),
            Err(absent) => {
                let record = Record {
                    hash: key.hash(),
                    key: key.key().clone(),
                    used_at: at,
                    state: S::default(),
                };
                let table = absent.into_table();
                table
                    .insert_unique(key.hash(), record, |record| record.hash)
                    .into_mut()
            }
        };
        record.used_at = at;
        let result = change(&mut record.state);
        part.len.store(table.records.len(), Ordering::Relaxed);
        result
    }

    /// What is kept about a key.
    pub(super) fn read(&self, key: KeyRef<'_, K>) -> Option<S> {
        let part = self.part(key.hash());
        if part.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let same = |record: &Record<K, S>| record.hash == key.hash() && record.key == *key.key();
        part.table
            .lock()
            .records
            .find(key.hash(), same)
            .map(|record| record.state)
    }

    pub(super) fn forget(&self, key: KeyRef<'_, K>) {
        let part = self.part(key.hash());
        if part.len.load(Ordering::Relaxed) == 0 {
            return;
        }
        let same = |record: &Record<K, S>| record.hash == key.hash() && record.key == *key.key();
        let mut table = part.table.lock();
        let Ok(entry) = table.records.find_entry(key.hash(), same) else {
            return;
        };
        let (record, _) = entry.remove();
        table.shrink();
        part.len.store(table.records.len(), Ordering::Relaxed);
        drop(table);
        drop(record);
    }

    pub(super) fn len(&self) -> usize {
        self.parts
            .iter()
            .map(|part| part.0.len.load(Ordering::Relaxed))
            .sum()
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }
}

impl<K, S> Table<K, S> {
    /// Drops idle keys if it is time to look for them; returns how many.
    fn sweep(&mut self, now: u64, idle: u64) -> usize {
        self.unpaid = self.unpaid.saturating_sub(1);
        if self.unpaid > 0 || now.saturating_sub(self.swept_at) < idle {
            return 0;
        }
        let before = self.records.len();
        self.records
            .retain(|record| now.saturating_sub(record.used_at) <= idle);
        self.shrink();
        self.unpaid = self.records.len().max(SMALL);
        self.swept_at = now;
        before - self.records.len()
    }

    /// Gives memory back once an eighth is in use; so the copying stays within O(1) a key.
    fn shrink(&mut self) {
        if self.records.capacity() > SMALL && self.records.len() < self.records.capacity() / 8 {
            self.records
                .shrink_to(self.records.len() * 2, |record| record.hash);
        }
    }
}

impl<K, S> fmt::Debug for Memory<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w50_idle_keys_are_evicted_and_counted_and_busy_ones_stay() {
        let memory: Memory<u32, u32> = Memory::new(Duration::from_secs(10));
        let start = Instant::now();
        let touch = |key: u32, at| {
            let at = start + Duration::from_secs(at);
            memory.update(KeyRef::from(&key), at, |count| *count += 1);
        };
        for key in 0..10_000 {
            touch(key, 0);
        }
        assert_eq!(memory.len(), 10_000);
        (0..2000).for_each(|key| touch(key, 9));
        for _ in 0..9 {
            (0..2000).for_each(|key| touch(key, 11));
        }
        assert_eq!(memory.len(), 2_000);
        assert_eq!(memory.evicted(), 8_000);
        assert_eq!(memory.read(KeyRef::from(&7)), Some(11));
        assert_eq!(memory.read(KeyRef::from(&7_000)), None);
    }

    #[test]
    fn w50_memory_stays_bounded_when_nobody_forgets() {
        let memory: Memory<u32, u32> = Memory::new(Duration::from_millis(1));
        let start = Instant::now();
        for key in 0..100_000 {
            let at = start + Duration::from_micros(u64::from(key));
            memory.update(KeyRef::from(&key), at, |count| *count += 1);
        }
        // 1,000 keys are used within a millisecond, which is 62 a part.
        assert!(memory.len() < 4_000, "{} keys", memory.len());
    }
}
