//! A brake for keys that ask to come again at once, over and over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use informer::ObjectKey;

/// Runs in a row that may ask for the next one at once.
pub(crate) const AT_ONCE_IN_A_ROW: u32 = 16;

/// How often keys have asked in a row; has an entry for those in the middle of it alone.
#[derive(Debug, Default)]
pub(crate) struct Brake {
    streaks: Mutex<HashMap<ObjectKey, u32>>,
    /// Whether there is an entry, so that runs meet at the lock only while some key asks; written under
    /// the lock.
    used: AtomicBool,
}

impl Brake {
    /// Takes in how a run of `key` ended; by how much its streak is too long by now, if it is.
    pub(crate) fn ended(&self, key: &ObjectKey, at_once: bool) -> Option<u32> {
        if !at_once {
            self.forget(key);
            return None;
        }
        let mut streaks = self.streaks();
        self.used.store(true, Ordering::Release);
        let streak = streaks.entry(key.clone()).or_insert(0);
        *streak = streak.saturating_add(1);
        streak
            .checked_sub(AT_ONCE_IN_A_ROW)
            .filter(|more| *more > 0)
    }

    /// The key ends its streak, or is none of this process any more.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        // An entry of this key is seen here: whoever made it ran the key before.
        if self.used.load(Ordering::Acquire) {
            let mut streaks = self.streaks();
            streaks.remove(key);
            self.used.store(!streaks.is_empty(), Ordering::Release);
        }
    }

    fn streaks(&self) -> MutexGuard<'_, HashMap<ObjectKey, u32>> {
        // Each change is whole, so a panic elsewhere leaves it usable.
        self.streaks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_is_of_one_key_and_ends_with_any_other_answer() {
        let (brake, [a, b]) = (Brake::default(), ["a", "b"].map(ObjectKey::cluster));
        for _ in 0..AT_ONCE_IN_A_ROW {
            assert_eq!(brake.ended(&a, true), None);
        }
        assert_eq!(brake.ended(&a, true), Some(1));
        assert_eq!(brake.ended(&a, true), Some(2));
        assert_eq!(brake.ended(&b, true), None);
        assert_eq!(brake.ended(&a, false), None);
        assert_eq!(brake.ended(&a, true), None, "it begins anew");
        brake.forget(&a);
        assert!(
            brake.used.load(Ordering::Relaxed),
            "b is in the middle of one"
        );
        brake.forget(&b);
        assert!(brake.streaks().is_empty());
        assert!(!brake.used.load(Ordering::Relaxed), "nobody needs the lock");
        assert_eq!(brake.ended(&a, true), None);
        assert!(brake.used.load(Ordering::Relaxed));
    }
}
