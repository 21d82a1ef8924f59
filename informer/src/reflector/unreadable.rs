//! The objects that the server has and that cannot be read.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::ObjectKey;
use crate::source::{Malformed, RawObject};

/// Objects that are kept on record; beyond them an object is told of each time it comes.
const MAX_RECORDS: usize = 1000;

/// Bytes of raw objects that are kept; beyond them records are kept without.
const MAX_RAW: usize = 32 << 20;

/// Record of unreadable objects by key.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    records: Mutex<BTreeMap<ObjectKey, Malformed>>,
    /// Whether there are records, so that ordinary events need no lock.
    any: AtomicBool,
}

impl Unreadable {
    /// Records an object; tells whether this state of it was unknown.
    pub(crate) fn insert(&self, malformed: &Malformed) -> bool {
        let Some(key) = &malformed.key else {
            return true;
        };
        let mut records = self.records.lock();
        let known = records.get(key).is_some_and(|known| {
            known.resource_version.is_some()
                && (&known.uid, &known.resource_version)
                    == (&malformed.uid, &malformed.resource_version)
        });
        if malformed.deleted {
            records.remove(key);
        } else if records.len() < MAX_RECORDS || records.contains_key(key) {
            records.insert(key.clone(), malformed.clone());
            let size = |record: &Malformed| record.raw.as_ref().map_or(0, RawObject::len);
            if malformed.raw.is_some()
                && records.values().map(size).sum::<usize>() > MAX_RAW
                && let Some(record) = records.get_mut(key)
            {
                record.raw = None;
            }
        }
        self.any.store(!records.is_empty(), Ordering::Relaxed);
        !known
    }

    /// An object of this key was read, or is gone.
    pub(crate) fn remove(&self, key: impl FnOnce() -> Option<ObjectKey>) {
        if self.any.load(Ordering::Relaxed)
            && let Some(key) = key()
        {
            let mut records = self.records.lock();
            records.remove(&key);
            self.any.store(!records.is_empty(), Ordering::Relaxed);
        }
    }

    /// A list is complete in which just these could not be read.
    pub(crate) fn retain(&self, keys: &HashSet<ObjectKey>) {
        let mut records = self.records.lock();
        records.retain(|key, _| keys.contains(key));
        self.any.store(!records.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn list(&self) -> Vec<Malformed> {
        self.records.lock().values().cloned().collect()
    }
}
