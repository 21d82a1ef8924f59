//! Adds left for whoever next looks at a shard, so that a producer need not wait for its lock.
//!
//! Held at all times: an inbox that workers may wait behind is closed and empty. So what lies in
//! an open inbox is waited for by nobody, and may lie there until somebody looks at the shard. Who
//! takes the shard's lock carries the adds out first, in the order in which they came; nobody can
//! see the shard without them.
//!
//! Adds go straight to the shard while its lock is free, which is cheaper for a single thread.
//! Once the lock was found taken, a streak of adds goes to the inbox: two threads that take turns
//! at the shard would carry its memory back and forth between their processors.

use crate::{
    slab::Flags,
    sync::{AtomicBool, AtomicUsize, Ordering, TurnGuard, TurnLock},
};

/// Adds that an inbox holds at most; one more is carried out at once, with all of them. Models have
/// to come to the end of it.
const FULL: usize = if cfg!(loom) { 1 } else { 256 };
/// Adds that go to the inbox after the shard's lock was found taken.
const STREAK: usize = if cfg!(loom) { 2 } else { 2048 };

pub(crate) struct Inbox<K> {
    /// Adds that still go here without a look at the shard's lock. A guess.
    streak: AtomicUsize,
    /// Whether there are any; those who know that an add was made know it without the lock.
    filled: AtomicBool,
    content: TurnLock<Content<K>>,
}

struct Content<K> {
    adds: Vec<Add<K>>,
    open: bool,
}

/// An immediate add.
pub(crate) struct Add<K> {
    pub(crate) key: K,
    pub(crate) hash: u64,
    /// When it was made, if the shard asks for it.
    pub(crate) at: u64,
    pub(crate) priority: i32,
    /// `COUNTED` or nothing.
    pub(crate) counted: Flags,
}

/// Room for one add.
pub(crate) struct Room<'a, K> {
    inbox: &'a Inbox<K>,
    content: TurnGuard<'a, Content<K>>,
}

impl<K> Inbox<K> {
    pub(crate) fn new() -> Self {
        Self {
            streak: AtomicUsize::new(0),
            filled: AtomicBool::new(false),
            content: TurnLock::new(Content {
                adds: Vec::new(),
                open: true,
            }),
        }
    }

    /// Whether the shard's lock has been found taken of late.
    pub(crate) fn is_preferred(&self) -> bool {
        self.streak.load(Ordering::Relaxed) > 0
    }

    /// The shard's lock has been found taken.
    pub(crate) fn prefer(&self) {
        self.streak.store(STREAK, Ordering::Relaxed);
    }

    /// Room for an add, if the inbox is open and not full.
    pub(crate) fn room(&self) -> Option<Room<'_, K>> {
        let content = self.content.lock();
        (content.open && content.adds.len() < FULL).then_some(Room {
            inbox: self,
            content,
        })
    }

    /// Whether anything lies here. The shard's lock is held.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Exchanges what lies here for `batch`, which is empty. The shard's lock is held.
    pub(crate) fn take(&self, batch: &mut Vec<Add<K>>) {
        let mut content = self.content.lock();
        std::mem::swap(&mut content.adds, batch);
        self.filled.store(false, Ordering::Relaxed);
    }

    /// Lets nothing in any more, if it is empty; returns whether it is. The shard's lock is held.
    pub(crate) fn close(&self) -> bool {
        let mut content = self.content.lock();
        if content.adds.is_empty() {
            content.open = false;
        }
        !content.open
    }

    /// Lets nothing in any more, and returns what came too late for the end. The shard's lock is
    /// held.
    pub(crate) fn shut(&self) -> Vec<Add<K>> {
        let mut content = self.content.lock();
        content.open = false;
        self.filled.store(false, Ordering::Relaxed);
        std::mem::take(&mut content.adds)
    }

    /// Lets adds in again. The shard's lock is held.
    pub(crate) fn open(&self) {
        self.content.lock().open = true;
    }
}

impl<K> Room<'_, K> {
    pub(crate) fn put(mut self, add: Add<K>) {
        self.content.adds.push(add);
        self.inbox.filled.store(true, Ordering::Release);
        let streak = self.inbox.streak.load(Ordering::Relaxed);
        self.inbox
            .streak
            .store(streak.saturating_sub(1), Ordering::Relaxed);
    }
}
