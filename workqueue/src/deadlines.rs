//! The two deadlines that a key may have: of a result, and of a reminder.
//!
//! One wait, one kind: of several deadlines of a kind the earliest holds. A reminder stands for a
//! result that is not due before it, since any run makes a result pointless; a result never stands
//! for a reminder. So if a key has both, the result is due first. The wheel holds the first, and
//! [`Later`] the reminder behind it, which few keys have at any time.

use hashbrown::HashTable;

use crate::{KeyId, slab::Flags};

/// When a key is due, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// In nanoseconds since the queue was made.
    pub(crate) at: u64,
    /// `REMINDER` and `BACKOFF` as they apply.
    pub(crate) flags: Flags,
}

impl Deadline {
    fn is_reminder(self) -> bool {
        self.flags.any(Flags::REMINDER)
    }
}

/// What a key waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadlines {
    pub(crate) first: Deadline,
    /// A reminder behind a result.
    pub(crate) later: Option<Deadline>,
}

impl Deadlines {
    /// With one more deadline; `replace` lets it be later than the one of its kind.
    pub(crate) fn with(self, new: Deadline, replace: bool) -> Self {
        let (mut result, mut reminder) = match self.first.is_reminder() {
            true => (None, Some(self.first)),
            false => (Some(self.first), self.later),
        };
        let kind = if new.is_reminder() {
            &mut reminder
        } else {
            &mut result
        };
        if kind.is_none_or(|old| new.at < old.at || replace && new.at > old.at) {
            *kind = Some(new);
        }
        match (result, reminder) {
            (Some(first), later) if later.is_none_or(|later| first.at < later.at) => {
                Self { first, later }
            }
            (_, Some(first)) => Self { first, later: None },
            // There was a deadline and none has gone.
            (_, None) => self,
        }
    }
}

/// The reminders of keys whose deadline in the wheel is a result's.
#[derive(Debug)]
pub(crate) struct Later(HashTable<(KeyId, Deadline)>);

/// Below this many keys the table keeps its memory.
const SMALL: usize = 128;

impl Later {
    pub(crate) fn new() -> Self {
        Self(HashTable::new())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(&self, id: KeyId) -> Option<Deadline> {
        let found = self.0.find(hash(id), |(other, _)| *other == id);
        found.map(|(_, reminder)| *reminder)
    }

    /// Notes the reminder of a key in place of the one that is there.
    pub(crate) fn set(&mut self, id: KeyId, reminder: Option<Deadline>) {
        let Some(reminder) = reminder else {
            self.take(id);
            return;
        };
        let (same, rehash) = (|(other, _): &_| *other == id, |(id, _): &_| hash(*id));
        let entry = self.0.entry(hash(id), same, rehash);
        entry.insert((id, reminder));
    }

    pub(crate) fn take(&mut self, id: KeyId) -> Option<Deadline> {
        let entry = self.0.find_entry(hash(id), |(other, _)| *other == id);
        let ((_, reminder), _) = entry.ok()?.remove();
        if self.0.capacity() > SMALL && self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(self.0.len() * 2, |(id, _)| hash(*id));
        }
        Some(reminder)
    }

    /// Forgets all reminders but those due by `keep_until`.
    pub(crate) fn cut(&mut self, keep_until: Option<u64>) {
        match keep_until {
            Some(until) => self.0.retain(|(_, reminder)| reminder.at <= until),
            None => self.0 = HashTable::new(),
        }
    }
}

/// Ids count up; the table takes the lowest and the highest bits.
fn hash(id: KeyId) -> u64 {
    (id.index() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(at: u64) -> Deadline {
        let flags = Flags::BACKOFF;
        Deadline { at, flags }
    }

    fn reminder(at: u64) -> Deadline {
        let flags = Flags::REMINDER;
        Deadline { at, flags }
    }

    #[test]
    fn w21_w24_the_earliest_of_a_kind_holds_and_a_reminder_stands_for_later_results_alone() {
        let one = |first| Deadlines { first, later: None };
        let both = |first, later| Deadlines {
            first: result(first),
            later: Some(reminder(later)),
        };
        for (pending, new, replace, expected) in [
            (one(result(10)), result(9), false, one(result(9))),
            (one(result(10)), result(11), false, one(result(10))),
            (one(result(10)), result(11), true, one(result(11))),
            (one(result(10)), reminder(9), false, one(reminder(9))),
            (one(result(10)), reminder(10), false, one(reminder(10))),
            (one(result(10)), reminder(11), false, both(10, 11)),
            (one(reminder(10)), reminder(9), false, one(reminder(9))),
            (one(reminder(10)), reminder(11), false, one(reminder(10))),
            (one(reminder(10)), reminder(11), true, one(reminder(11))),
            (one(reminder(10)), result(9), false, both(9, 10)),
            (one(reminder(10)), result(10), false, one(reminder(10))),
            (one(reminder(10)), result(11), true, one(reminder(10))),
            (both(10, 20), result(9), false, both(9, 20)),
            (both(10, 20), result(11), false, both(10, 20)),
            (both(10, 20), result(19), true, both(19, 20)),
            (both(10, 20), result(20), true, one(reminder(20))),
            (both(10, 20), reminder(21), false, both(10, 20)),
            (both(10, 20), reminder(21), true, both(10, 21)),
            (both(10, 20), reminder(11), false, both(10, 11)),
            (both(10, 20), reminder(10), false, one(reminder(10))),
        ] {
            let merged = pending.with(new, replace);
            assert_eq!(merged, expected, "{pending:?} with {new:?}, {replace}");
        }
    }

    #[test]
    fn w14_the_table_of_reminders_shrinks_with_them() {
        let mut later = Later::new();
        let ids: Vec<_> = (0..10_000).map(KeyId::new).collect();
        for id in &ids {
            later.set(*id, Some(reminder(id.index() as u64)));
        }
        for id in &ids[1..] {
            assert_eq!(later.take(*id).map(|r| r.at), Some(id.index() as u64));
        }
        assert!(later.0.capacity() <= 2 * SMALL, "{}", later.0.capacity());
        assert_eq!(later.of(ids[0]), Some(reminder(0)));
        later.cut(Some(0));
        assert!(later.of(ids[0]).is_some());
        later.cut(None);
        assert!(later.take(ids[0]).is_none());
    }
}
