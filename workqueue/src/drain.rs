//! Waiting for the end of all work after shutdown.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    clock::saturating_nanos,
    key::QueueKey,
    order::Order,
    queue::Shared,
    sync::{Arc, Mutex},
    wait::NEVER,
};

/// How long a drain goes on, and what it includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrainOptions {
    /// Give up this long after the call. Default: never.
    pub deadline: Option<Duration>,
    /// Wait for delayed keys too that are due before the deadline, and run them; without a
    /// deadline, for all of them. Default: delayed keys are dropped.
    pub include_delayed: bool,
}

/// The drains that wait.
#[derive(Debug)]
pub(crate) struct Drains(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    next_ticket: u64,
    waiting: BTreeMap<u64, Waker>,
    /// How often a plain shutdown has ended all drains.
    forced: u64,
}

impl Drains {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Inner {
            next_ticket: 0,
            waiting: BTreeMap::new(),
            forced: 0,
        }))
    }

    /// Lets all drains look again whether anything is left.
    pub(crate) fn wake(&self) {
        let woken = std::mem::take(&mut self.0.lock().waiting);
        woken.into_values().for_each(Waker::wake);
    }

    /// Ends all drains.
    pub(crate) fn force(&self) {
        self.0.lock().forced += 1;
        self.wake();
    }

    fn enter(&self, ticket: Option<u64>, waker: &Waker) -> (u64, u64) {
        let mut inner = self.0.lock();
        let ticket = ticket.unwrap_or_else(|| {
            inner.next_ticket += 1;
            inner.next_ticket
        });
        inner.waiting.insert(ticket, waker.clone());
        (ticket, inner.forced)
    }

    fn leave(&self, ticket: u64) {
        let waker = self.0.lock().waiting.remove(&ticket);
        drop(waker);
    }
}

/// Ready when nothing is left to do, or when a plain shutdown has ended all drains; the output
/// tells whether the former holds.
pub(crate) struct Drain<K: QueueKey, O: Order<K>> {
    shared: Arc<Shared<K, O>>,
    keep_until: Option<u64>,
    /// Our ticket, and the count of forced ends when we began.
    begun: Option<(u64, u64)>,
}

impl<K: QueueKey, O: Order<K>> Drain<K, O> {
    pub(crate) fn new(shared: Arc<Shared<K, O>>, keep_until: Option<u64>) -> Self {
        Self {
            shared,
            keep_until,
            begun: None,
        }
    }
}

impl<K: QueueKey, O: Order<K>> Future for Drain<K, O> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        if self.begun.is_none() {
            self.shared.shut_down(self.keep_until);
        }
        let ticket = self.begun.map(|(ticket, _)| ticket);
        let (ticket, forced) = self.shared.drains.enter(ticket, cx.waker());
        let (_, forced_before) = *self.begun.get_or_insert((ticket, forced));
        if self.shared.is_idle() {
            Poll::Ready(true)
        } else if forced != forced_before {
            Poll::Ready(false)
        } else {
            Poll::Pending
        }
    }
}

impl<K: QueueKey, O: Order<K>> Drop for Drain<K, O> {
    fn drop(&mut self) {
        if let Some((ticket, _)) = self.begun {
            self.shared.drains.leave(ticket);
        }
    }
}

impl<K: QueueKey, O: Order<K>> fmt::Debug for Drain<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain")
            .field("begun", &self.begun)
            .finish_non_exhaustive()
    }
}

/// Drains the queue as the options say; returns the keys that were left.
pub(crate) async fn drain<K: QueueKey, O: Order<K>>(
    shared: &Arc<Shared<K, O>>,
    options: DrainOptions,
) -> Vec<K> {
    let until = options.deadline.map(|deadline| {
        shared
            .now()
            .saturating_add(saturating_nanos(deadline))
            .min(NEVER - 1)
    });
    let keep_until = options.include_delayed.then_some(until.unwrap_or(NEVER));
    let drain = Drain::new(Arc::clone(shared), keep_until);
    let drained = match until {
        None => drain.await,
        Some(until) => tokio::select! {
            biased;
            drained = drain => drained,
            () = shared.clock.sleep_until(shared.epoch.instant(until)) => return shared.abandon(),
        },
    };
    if drained { Vec::new() } else { shared.left() }
}
