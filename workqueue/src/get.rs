//! Waiting for a key.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use crate::{
    clock::Sleep,
    item::Item,
    key::QueueKey,
    order::{Fifo, Order},
    queue::{Found, Shared},
    sync::Arc,
    wait::{Leave, Wakers},
};

/// The future of [`WorkQueue::get`](crate::WorkQueue::get).
#[must_use = "futures do nothing unless polled"]
pub struct Get<'a, K: QueueKey, O: Order<K> = Fifo> {
    shared: &'a Arc<Shared<K, O>>,
    /// Our place among those who wait.
    ticket: Option<u64>,
    /// The timer of the leader, and the deadline that it is set to.
    sleep: Option<(u64, Sleep)>,
}

impl<'a, K: QueueKey, O: Order<K>> Get<'a, K, O> {
    pub(crate) fn new(shared: &'a Arc<Shared<K, O>>) -> Self {
        Self {
            shared,
            ticket: None,
            sleep: None,
        }
    }

    /// Looks for a key, and in vain leaves word that we wait for one.
    fn find_or_wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item<'a, K, O>>> {
        loop {
            // Most of the time a key is there, and nobody need know that we looked.
            let mut found = self.shared.find(false);
            let mut called = false;
            if let Found::Nothing { .. } = found {
                // Whatever comes after the second look finds us on the list.
                let (ticket, called_before) = self.shared.waiters.0.enter(self.ticket, cx.waker());
                (self.ticket, called) = (Some(ticket), called_before);
                found = self.shared.find(true);
            }
            match found {
                Found::Key {
                    shard,
                    taken,
                    fired,
                } => {
                    let why = if fired > 0 {
                        Leave::SelfServed
                    } else {
                        Leave::Served
                    };
                    self.leave(why, called);
                    return Poll::Ready(Some(Item::new(self.shared, shard, &taken)));
                }
                Found::Ended => {
                    self.leave(Leave::Served, called);
                    return Poll::Ready(None);
                }
                Found::Nothing { next } => ready!(self.poll_sleep(next, cx)),
            }
        }
    }

    /// Sleeps to the next deadline if that is our part; ready when it has come.
    fn poll_sleep(&mut self, next: u64, cx: &mut Context<'_>) -> Poll<()> {
        let ticket = self.ticket.expect("one enters the list before one waits");
        let Some(deadline) = self.shared.waiters.0.settle(ticket, next) else {
            self.sleep = None;
            return Poll::Pending;
        };
        let sleep = match &mut self.sleep {
            Some((set_to, sleep)) if *set_to == deadline => sleep,
            stale => {
                let at = self.shared.epoch.instant(deadline);
                &mut stale
                    .insert((deadline, self.shared.clock.sleep_until(at)))
                    .1
            }
        };
        ready!(sleep.as_mut().poll(cx));
        self.sleep = None;
        Poll::Ready(())
    }

    /// Gives up our place.
    fn leave(&mut self, why: Leave, called_before: bool) {
        self.sleep = None;
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let mut wakers = Wakers::default();
        self.shared
            .waiters
            .0
            .leave(ticket, why, called_before, &mut wakers);
        wakers.wake();
    }
}

impl<'a, K: QueueKey, O: Order<K>> Future for Get<'a, K, O> {
    type Output = Option<Item<'a, K, O>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let item = ready!(self.find_or_wait(cx));
        budget.made_progress();
        Poll::Ready(item)
    }
}

impl<K: QueueKey, O: Order<K>> Drop for Get<'_, K, O> {
    fn drop(&mut self) {
        self.leave(Leave::Cancelled, false);
    }
}

impl<K: QueueKey, O: Order<K>> fmt::Debug for Get<'_, K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Get")
            .field("waiting", &self.ticket.is_some())
            .finish_non_exhaustive()
    }
}
