//! Queues on a clock that stands still, and futures that are polled by hand.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use workqueue::{
    AddOptions, QueueKey, QueueOptions, WorkQueue, clock::ManualClock, limiter::ItemExponential,
    order::Order,
};

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Options on a manual clock, with delays of 1 ms to 1 s, and that clock.
pub(crate) fn options<K: QueueKey>() -> (QueueOptions<K>, ManualClock) {
    let clock = ManualClock::new();
    let options = QueueOptions {
        clock: Arc::new(clock.clone()),
        limiter: Arc::new(ItemExponential::new(ms(1), ms(1000))),
        ..QueueOptions::default()
    };
    (options, clock)
}

pub(crate) fn queue<K: QueueKey>() -> (WorkQueue<K>, ManualClock) {
    let (options, clock) = options();
    (WorkQueue::new(options).unwrap(), clock)
}

pub(crate) fn after(after: Duration) -> AddOptions {
    AddOptions {
        after: Some(after),
        ..AddOptions::default()
    }
}

pub(crate) fn at_priority(priority: i32) -> AddOptions {
    AddOptions {
        priority: Some(priority),
        ..AddOptions::default()
    }
}

/// Takes all ready keys and ends their runs at once.
pub(crate) fn take_all<K: QueueKey, O: Order<K>>(queue: &WorkQueue<K, O>) -> Vec<K> {
    std::iter::from_fn(|| queue.try_get().map(|item| item.key().clone())).collect()
}

/// A future and how often it has been woken.
pub(crate) struct Task<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl<F: Future> Task<F> {
    pub(crate) fn new(future: F) -> Self {
        Self {
            future: Box::pin(future),
            wakes: Arc::default(),
        }
    }

    /// A task that has been polled once and is waiting.
    pub(crate) fn waiting(future: F) -> Self {
        let mut task = Self::new(future);
        assert!(task.poll().is_pending(), "the future is ready at once");
        task
    }

    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Wake-ups since the task was made.
    pub(crate) fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }

    pub(crate) fn output(&mut self) -> F::Output {
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the future is not ready"),
        }
    }
}
