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

/// What is on record of a state of an object that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// It came before.
    Before,
    /// It comes for the first time.
    Now,
    /// Nothing can be: it has no name or no version, or there are too many.
    No,
}

/// Record of unreadable objects by key.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    records: Mutex<BTreeMap<ObjectKey, Malformed>>,
    /// Whether there are records, so that ordinary events need no lock.
    any: AtomicBool,
}

impl Unreadable {
    /// Records an object. An end needs no record: it comes once.
    pub(crate) fn insert(&self, malformed: &Malformed) -> Recorded {
        let Some(key) = &malformed.key else {
            return Recorded::No;
        };
        let mut records = self.records.lock();
        let versioned = malformed.resource_version.is_some();
        let known = records.get(key).is_some_and(|known| {
            (&known.uid, &known.resource_version) == (&malformed.uid, &malformed.resource_version)
        });
        let room = records.len() < MAX_RECORDS || records.contains_key(key);
        if malformed.deleted {
            records.remove(key);
        } else if room {
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
        match (versioned && (room || malformed.deleted), known) {
            (true, true) => Recorded::Before,
            (true, false) => Recorded::Now,
            (false, _) => Recorded::No,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn state(name: usize, uid: &str, version: Option<&str>) -> Malformed {
        Malformed {
            kind: "Pod".to_owned(),
            key: Some(ObjectKey::cluster(name.to_string())),
            uid: Some(uid.to_owned()),
            resource_version: version.map(str::to_owned),
            path: String::new(),
            problem: String::new(),
            deleted: false,
            foreign: false,
            raw: None,
        }
    }

    #[test]
    fn a_state_is_recorded_once_by_uid_and_version() {
        let unreadable = Unreadable::default();
        let nameless = Malformed {
            key: None,
            ..state(0, "u", Some("1"))
        };
        let gone = Malformed {
            deleted: true,
            ..state(0, "w", Some("9"))
        };
        let cases = [
            (state(0, "u", Some("1")), Recorded::Now),
            (state(0, "u", Some("1")), Recorded::Before),
            (state(0, "u", Some("2")), Recorded::Now),
            (state(0, "v", Some("2")), Recorded::Now),
            (state(1, "v", Some("2")), Recorded::Now),
            (state(1, "v", None), Recorded::No),
            (state(1, "v", None), Recorded::No),
            (nameless, Recorded::No),
            (gone, Recorded::Now),
        ];
        for (at, (state, want)) in cases.iter().enumerate() {
            assert_eq!(unreadable.insert(state), *want, "{at}");
        }
        assert_eq!(unreadable.list().len(), 1, "one is gone");
    }

    #[test]
    fn beyond_the_records_a_state_is_not_known_again() {
        let unreadable = Unreadable::default();
        for name in 0..MAX_RECORDS {
            assert_eq!(
                unreadable.insert(&state(name, "u", Some("1"))),
                Recorded::Now
            );
        }
        let one_more = state(MAX_RECORDS, "u", Some("1"));
        assert_eq!(unreadable.insert(&one_more), Recorded::No);
        assert_eq!(
            unreadable.insert(&state(7, "u", Some("1"))),
            Recorded::Before
        );
        assert_eq!(unreadable.insert(&state(7, "u", Some("2"))), Recorded::Now);
    }
}
