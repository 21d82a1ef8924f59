//! Who waits for the queue, and who of them watches the clock.

use std::{collections::BTreeMap, task::Waker};

use crate::sync::Mutex;

/// No deadline is known.
pub(crate) const NEVER: u64 = u64::MAX;

/// The workers that wait for a key, in the order in which they came.
///
/// While anybody waits, one of them leads: it sleeps until the next deadline of the delay wheel,
/// so that one timer serves all keys and no task is needed. The list knows a deadline that the
/// leader has to meet (`armed`) even while the leader is still on its way to arm it; whoever
/// succeeds a leader that knew one, or had not finished its look, is woken to look for itself.
///
/// The lock of this list nests inside that of a shard.
#[derive(Debug)]
pub(crate) struct WaitList(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    next_ticket: u64,
    waiting: BTreeMap<u64, Waker>,
    /// Is in `waiting`; none only if nobody is.
    leader: Option<u64>,
    armed: u64,
    /// The leader has said which deadline it found since it began to look.
    settled: bool,
}

/// Why a worker leaves the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// With a key for which somebody may have been called, or because of shutdown.
    Served,
    /// With a key that it made ready itself and for which nobody has been called.
    SelfServed,
    /// Its `get` was dropped.
    Cancelled,
}

impl WaitList {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Inner {
            next_ticket: 0,
            waiting: BTreeMap::new(),
            leader: None,
            armed: NEVER,
            settled: true,
        }))
    }

    /// Joins the list, or stays in it at the old place. Returns the place, and whether the worker
    /// had been called since it was there: a call that it has to make up for should it be called
    /// once more before it finds out whether the first was in vain.
    pub(crate) fn enter(&self, ticket: Option<u64>, waker: &Waker) -> (u64, bool) {
        let mut inner = self.0.lock();
        let was_here = ticket.is_some();
        let ticket = ticket.unwrap_or_else(|| {
            inner.next_ticket += 1;
            inner.next_ticket
        });
        let called = match inner.waiting.entry(ticket) {
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                entry.get_mut().clone_from(waker);
                false
            }
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(waker.clone());
                was_here
            }
        };
        if *inner.leader.get_or_insert(ticket) == ticket {
            // It is about to look at all shards. What is set after its look comes by `hasten`.
            inner.armed = NEVER;
            inner.settled = false;
        }
        (ticket, called)
    }

    /// Says which deadline a worker that has entered found pending; returns the one it has to
    /// sleep to, if it is the leader and there is one.
    pub(crate) fn settle(&self, ticket: u64, next: u64) -> Option<u64> {
        let mut inner = self.0.lock();
        if inner.leader != Some(ticket) {
            return None;
        }
        inner.armed = inner.armed.min(next);
        inner.settled = true;
        (inner.armed != NEVER).then_some(inner.armed)
    }

    /// Takes up to `n` workers out to be woken, the leader last. Returns whether nobody is left.
    pub(crate) fn call(&self, n: usize, wakers: &mut Wakers) -> bool {
        let mut inner = self.0.lock();
        for _ in 0..n {
            let Some(ticket) = inner.first_follower().or(inner.leader) else {
                break;
            };
            if inner.leader == Some(ticket) {
                inner.leader = None;
                inner.armed = NEVER;
            }
            wakers.extend(inner.waiting.remove(&ticket));
        }
        inner.waiting.is_empty()
    }

    /// A deadline has been set: makes sure that the leader meets it.
    pub(crate) fn hasten(&self, deadline: u64, wakers: &mut Wakers) {
        let mut inner = self.0.lock();
        if let Some(leader) = inner.leader
            && deadline < inner.armed
        {
            inner.armed = deadline;
            wakers.extend(inner.waiting.get(&leader).cloned());
        }
    }

    /// Takes a worker off the list and sees to its duties. Every call is for one key: those that
    /// the worker was given and does not need, it passes on.
    ///
    /// `called_before`: what `enter` said, unless a look in between was in vain.
    pub(crate) fn leave(&self, ticket: u64, why: Leave, called_before: bool, wakers: &mut Wakers) {
        let mut inner = self.0.lock();
        let called = inner.waiting.remove(&ticket).is_none();
        if inner.leader == Some(ticket) {
            inner.leader = inner.waiting.keys().next().copied();
            let successor = inner.leader.and_then(|leader| inner.waiting.get(&leader));
            // A leader that leaves in the middle of its look has found no deadline for others.
            if inner.armed != NEVER || !inner.settled {
                wakers.extend(successor.cloned());
            }
        }
        drop(inner);
        let calls = usize::from(called) + usize::from(called_before);
        let needed = usize::from(why == Leave::Served);
        if calls > needed {
            self.call(calls - needed, wakers);
        }
    }

    /// Takes everybody out to be woken.
    pub(crate) fn call_all(&self, wakers: &mut Wakers) {
        self.call(usize::MAX, wakers);
    }
}

impl Inner {
    fn first_follower(&self) -> Option<u64> {
        self.waiting
            .keys()
            .copied()
            .find(|ticket| Some(*ticket) != self.leader)
    }
}

/// Wakers to call once no lock is held.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    first: Option<Waker>,
    rest: Vec<Waker>,
}

impl Wakers {
    fn extend(&mut self, waker: Option<Waker>) {
        match (waker, &self.first) {
            (None, _) => {}
            (waker, None) => self.first = waker,
            (Some(waker), Some(_)) => self.rest.push(waker),
        }
    }

    pub(crate) fn wake(self) {
        self.first
            .into_iter()
            .chain(self.rest)
            .for_each(Waker::wake);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waiter() -> (Waker, Arc<Count>) {
        let count = Arc::new(Count::default());
        (Waker::from(Arc::clone(&count)), count)
    }

    /// A leader that is polled again just before a deadline may take that deadline's key on its
    /// second look at the clock, and then says nothing of the deadlines behind it.
    #[test]
    fn w28_whoever_succeeds_a_leader_in_the_middle_of_its_look_looks_for_itself() {
        let list = WaitList::new();
        let ((first, _), (second, woken)) = (waiter(), waiter());
        let (leader, _) = list.enter(None, &first);
        assert_eq!(list.settle(leader, 10), Some(10));
        let (follower, _) = list.enter(None, &second);
        assert_eq!(list.settle(follower, 10), None, "the leader watches it");
        let (leader, called) = list.enter(Some(leader), &first);
        let mut wakers = Wakers::default();
        list.leave(leader, Leave::SelfServed, called, &mut wakers);
        wakers.wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        list.enter(Some(follower), &second);
        assert_eq!(list.settle(follower, 20), Some(20), "it leads now");
    }

    #[test]
    fn w28_whoever_succeeds_a_leader_that_found_no_deadline_sleeps_on() {
        let list = WaitList::new();
        let ((first, _), (second, woken)) = (waiter(), waiter());
        let (leader, called) = list.enter(None, &first);
        list.settle(leader, NEVER);
        list.enter(None, &second);
        let mut wakers = Wakers::default();
        list.leave(leader, Leave::Cancelled, called, &mut wakers);
        wakers.wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    }
}
