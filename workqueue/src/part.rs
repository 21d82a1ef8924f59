//! A shard behind its lock, with its inbox before it.

use crate::{
    inbox::{Add, Inbox, Room},
    order::Order,
    shard::Shard,
    sync::{Padded, TurnGuard, TurnLock},
    wait::{WaitList, Wakers},
};

/// The keys of one part of all hashes.
pub(crate) struct Part<K, O: Order<K>> {
    inbox: Padded<Inbox<K>>,
    shard: Padded<TurnLock<Shard<K, O>>>,
}

/// Where an add goes.
pub(crate) enum Entrance<'a, K, O: Order<K>> {
    Shard(TurnGuard<'a, Shard<K, O>>),
    Inbox(Room<'a, K>),
}

impl<K: Eq, O: Order<K>> Part<K, O> {
    pub(crate) fn new(shard: Shard<K, O>) -> Self {
        Self {
            inbox: Padded(Inbox::new()),
            shard: Padded(TurnLock::new(shard)),
        }
    }

    /// Locks the shard and carries out what lies in the inbox.
    ///
    /// That makes keys ready of which nobody has to be told: while workers may wait, the inbox is
    /// empty.
    #[inline]
    pub(crate) fn lock(&self, now: impl Fn() -> u64) -> TurnGuard<'_, Shard<K, O>> {
        let mut shard = self.shard.0.lock();
        self.carry_out(&mut shard, now);
        shard
    }

    #[inline]
    fn carry_out(&self, shard: &mut Shard<K, O>, now: impl Fn() -> u64) {
        if self.inbox.0.is_filled() {
            self.inbox.0.take(&mut shard.batch);
            shard.carry_out(now);
        }
    }

    /// The shard itself, or room in the inbox if somebody else is at the shard.
    #[inline]
    pub(crate) fn enter(&self, now: impl Fn() -> u64) -> Entrance<'_, K, O> {
        let inbox = &self.inbox.0;
        if !inbox.is_preferred() {
            if let Some(mut shard) = self.shard.0.try_lock() {
                self.carry_out(&mut shard, now);
                return Entrance::Shard(shard);
            }
            inbox.prefer();
        }
        match inbox.room() {
            Some(room) => Entrance::Inbox(room),
            None => Entrance::Shard(self.lock(now)),
        }
    }

    /// Sees to it that whoever adds something to the shard tells the workers that wait. `false` if
    /// something has come meanwhile, so that the shard has to be looked at again.
    pub(crate) fn watch(&self, shard: &mut Shard<K, O>) -> bool {
        if !shard.watched {
            shard.watched = self.inbox.0.close();
        }
        shard.watched
    }

    /// Shuts the shard down. Returns keys and adds that are to be dropped without the lock.
    pub(crate) fn shut_down(
        &self,
        shard: &mut Shard<K, O>,
        keep_until: Option<u64>,
    ) -> (Vec<K>, Vec<Add<K>>) {
        // What has come since the shard was locked is no earlier than the shutdown.
        (shard.shut_down(keep_until), self.inbox.0.shut())
    }

    /// Takes up to `n` of the workers that wait out to be woken.
    pub(crate) fn call(
        &self,
        shard: &mut Shard<K, O>,
        n: usize,
        waiters: &WaitList,
        wakers: &mut Wakers,
    ) {
        // With the shard locked nobody can look at it and miss this, so an empty list is news.
        if shard.watched && n > 0 && waiters.call(n, wakers) {
            shard.watched = false;
            if !shard.is_shut() {
                self.inbox.0.open();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{OnAdd, key::hash_of, order::Fifo, shard::Rules, slab::Flags};

    fn part() -> Part<u32, Fifo> {
        let rules = Rules {
            on_add: OnAdd::Keep,
            drop_if_waiting: false,
        };
        Part::new(Shard::new(Fifo::default(), rules, None))
    }

    fn add(key: u32) -> Add<u32> {
        Add {
            key,
            hash: hash_of(&key),
            at: 0,
            priority: 0,
            counted: Flags::default(),
        }
    }

    /// Leaves keys in the inbox, as a producer does while another thread is at the shard; returns
    /// how many there was room for.
    fn leave(part: &Part<u32, Fifo>, keys: impl IntoIterator<Item = u32>) -> usize {
        let _busy = part.shard.0.lock();
        let rooms = keys.into_iter().map_while(|key| {
            part.inbox.0.prefer();
            part.inbox.0.room().map(|room| room.put(add(key)))
        });
        rooms.count()
    }

    fn ready(shard: &mut Shard<u32, Fifo>) -> Vec<u32> {
        let taken = std::iter::from_fn(|| shard.core.take());
        let ids: Vec<_> = taken.collect();
        ids.iter().map(|id| *shard.core.slab.key(*id)).collect()
    }

    #[test]
    fn w02_adds_left_in_the_inbox_are_seen_by_whoever_looks_next_in_order_and_folded() {
        let part = part();
        assert_eq!(leave(&part, [3, 1, 3, 2, 1]), 5);
        assert_eq!(ready(&mut part.lock(|| 0)), [3, 1, 2]);
    }

    #[test]
    fn an_add_finds_the_shard_again_with_earlier_ones_carried_out() {
        let part = part();
        leave(&part, [1, 2]);
        part.inbox.0.prefer();
        assert!(matches!(part.enter(|| 0), Entrance::Inbox(_)));
        let full = leave(&part, 3..);
        assert!((1..10_000).contains(&full), "the inbox is bounded: {full}");
        let Entrance::Shard(mut shard) = part.enter(|| 0) else {
            panic!("there is no room in the inbox");
        };
        assert_eq!(ready(&mut shard).len(), full + 2);
    }

    #[test]
    fn w09_q09_a_shut_shard_keeps_nothing_in_its_inbox() {
        let part = part();
        leave(&part, [1]);
        let mut shard = part.lock(|| 0);
        part.inbox.0.room().unwrap().put(add(2));
        let (delayed, late) = part.shut_down(&mut shard, None);
        assert_eq!((delayed.len(), late.len()), (0, 1));
        shard.watched = true;
        let (waiters, mut wakers) = (WaitList::new(), Wakers::default());
        part.call(&mut shard, 1, &waiters, &mut wakers);
        drop(shard);
        assert_eq!(leave(&part, [3]), 0, "it does not open again");
        assert_eq!(ready(&mut part.lock(|| 0)), [1]);
    }

    #[test]
    fn w04_nobody_waits_behind_an_inbox_that_is_open_or_filled() {
        let part = part();
        let mut shard = part.lock(|| 0);
        part.inbox.0.room().unwrap().put(add(1));
        assert!(!part.watch(&mut shard), "an add has come since the look");
        drop(shard);
        let mut shard = part.lock(|| 0);
        assert_eq!(ready(&mut shard), [1]);
        assert!(part.watch(&mut shard));
        drop(shard);
        part.inbox.0.prefer();
        assert!(matches!(part.enter(|| 0), Entrance::Shard(_)));
    }
}
