//! A lock for what threads take again and again for less than a microsecond.
//!
//! Its release is a plain store: half the cost of a lock that may have to wake somebody. A thread
//! that finds it taken looks away for some turns of the holder. Were it to watch, the two would take
//! turns one by one, and the guarded memory would cross from processor to processor each time,
//! which costs more than the turns themselves. Whoever has waited long makes newcomers stay off, so
//! nobody starves; and if the holder has lost its processor, those who wait sleep between looks.

use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use parking_lot::lock_api::{GuardSend, Mutex, MutexGuard, RawMutex};

pub(crate) type TurnLock<T> = Mutex<Raw, T>;
pub(crate) type TurnGuard<'a, T> = MutexGuard<'a, Raw, T>;

/// Steps of the processor's spin hint between two looks: about a microsecond.
const PAUSE: usize = 50;
/// The same for a thread that newcomers stay off for.
const SHORT_PAUSE: usize = 10;
/// Looks before a thread counts as hungry.
const LOOKS: usize = 32;
/// Looks of a hungry thread before it sleeps.
const HUNGRY_LOOKS: usize = 64;
const SLEEP: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(crate) struct Raw {
    taken: AtomicBool,
    /// Somebody has waited long. A hint: no harm is done if it is lost.
    hungry: AtomicBool,
}

impl Raw {
    #[inline]
    fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Acquire)
    }

    /// Looks from time to time, with `pause` steps before each look.
    fn look(&self, looks: usize, pause: usize, may_take: impl Fn() -> bool) -> bool {
        (0..looks).any(|_| {
            (0..pause).for_each(|_| spin_loop());
            may_take() && !self.taken.load(Ordering::Relaxed) && self.take()
        })
    }

    #[cold]
    fn wait(&self) {
        if self.look(LOOKS, PAUSE, || !self.hungry.load(Ordering::Relaxed)) {
            return;
        }
        loop {
            self.hungry.store(true, Ordering::Relaxed);
            if self.look(HUNGRY_LOOKS, SHORT_PAUSE, || true) {
                return self.hungry.store(false, Ordering::Relaxed);
            }
            #[expect(clippy::disallowed_methods, reason = "the holder needs a processor")]
            thread::sleep(SLEEP);
        }
    }
}

// SAFETY: `take` succeeds for one thread at a time, the one that turns `false` into `true`, until
// `unlock` turns it back. Acquire there and release here order what the holders do.
#[expect(unsafe_code, reason = "the trait's contract is proved above")]
unsafe impl RawMutex for Raw {
    const INIT: Self = Self {
        taken: AtomicBool::new(false),
        hungry: AtomicBool::new(false),
    };
    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        !self.hungry.load(Ordering::Relaxed) && self.take()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_it_and_sees_what_the_one_before_did() {
        const THREADS: usize = 4;
        const TURNS: usize = 20_000;
        let (lock, start) = (TurnLock::new((0, 0)), Barrier::new(THREADS));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..TURNS {
                        let mut turns = lock.lock();
                        assert_eq!(turns.0, turns.1);
                        turns.0 += 1;
                        turns.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (THREADS * TURNS, THREADS * TURNS));
    }

    #[test]
    fn nobody_starves_while_another_thread_takes_one_turn_after_the_other() {
        let (lock, start, done) = (TurnLock::new(()), Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for turn in 0.. {
                    drop(lock.lock());
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    assert!(turn < 200_000_000, "the other thread has not had ten turns");
                }
            });
            start.wait();
            (0..10).for_each(|_| drop(lock.lock()));
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_lock_that_is_held_is_not_taken_twice() {
        let lock = TurnLock::new(());
        let held = lock.try_lock();
        assert!(held.is_some());
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
