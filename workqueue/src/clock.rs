//! Where the queue takes its time from.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// A wait of a worker for the next deadline.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A monotonic clock with a timer.
///
/// A queue reads its clock when a delay is set, and for metrics and ageing; a queue that uses none
/// of them never reads it. Only a worker that waits while deadlines are pending sleeps on it, and
/// of the workers of one queue only one.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present moment; never goes back.
    fn now(&self) -> Instant;

    /// Completes at `deadline` or soon after it, never before. Dropping it leaves nothing behind.
    fn sleep_until(&self, deadline: Instant) -> Sleep;
}

/// tokio's clock: the default. Follows tokio's paused time in tests.
///
/// Waiting for a deadline needs tokio's time driver; adding does not and works from any thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        Box::pin(tokio::time::sleep_until(deadline))
    }
}

/// A clock that stands still until it is told to move: for tests without a runtime.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use workqueue::{QueueOptions, WorkQueue, clock::ManualClock};
///
/// let clock = ManualClock::new();
/// let queue: WorkQueue<String> = WorkQueue::new(QueueOptions {
///     clock: Arc::new(clock.clone()),
///     ..QueueOptions::default()
/// })?;
/// queue.add_after("a".to_owned(), Duration::from_secs(1));
/// clock.advance(Duration::from_millis(999));
/// assert_eq!(queue.len(), 0);
/// clock.advance(Duration::from_millis(1));
/// assert_eq!(queue.len(), 1);
/// # Ok::<_, workqueue::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock {
    start: Instant,
    state: Arc<Mutex<ManualState>>,
}

#[derive(Debug, Default)]
struct ManualState {
    elapsed: Duration,
    sleepers: BTreeMap<(Duration, u64), Waker>,
    next_sleeper: u64,
}

impl ManualClock {
    /// A clock at an arbitrary moment.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            state: Arc::default(),
        }
    }

    /// Moves time forward and wakes those whose deadline has come.
    pub fn advance(&self, by: Duration) {
        let woken = {
            let mut state = self.state.lock();
            state.elapsed += by;
            let first_later = (state.elapsed + Duration::from_nanos(1), 0);
            let later = state.sleepers.split_off(&first_later);
            std::mem::replace(&mut state.sleepers, later)
        };
        woken.into_values().for_each(Waker::wake);
    }

    /// How many waits are pending on this clock.
    pub fn sleepers(&self) -> usize {
        self.state.lock().sleepers.len()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.start + self.state.lock().elapsed
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        let mut state = self.state.lock();
        let id = state.next_sleeper;
        state.next_sleeper += 1;
        let until = deadline.saturating_duration_since(self.start);
        Box::pin(ManualSleep {
            clock: self.clone(),
            entry: (until, id),
        })
    }
}

struct ManualSleep {
    clock: ManualClock,
    entry: (Duration, u64),
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.state.lock();
        if state.elapsed >= self.entry.0 {
            return Poll::Ready(());
        }
        state.sleepers.insert(self.entry, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        self.clock.state.lock().sleepers.remove(&self.entry);
    }
}

/// Turns moments into nanoseconds since the queue was made, the form that is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    pub(crate) fn new(clock: &dyn Clock) -> Self {
        Self(clock.now())
    }

    pub(crate) fn nanos(self, at: Instant) -> u64 {
        saturating_nanos(at.saturating_duration_since(self.0))
    }

    /// The moment `nanos` after the start, or one some years ahead where the clock cannot tell.
    pub(crate) fn instant(self, nanos: u64) -> Instant {
        const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
        self.0
            .checked_add(Duration::from_nanos(nanos))
            .unwrap_or_else(|| self.0 + FAR)
    }
}

/// A duration in whole nanoseconds, at most 2^64 − 1 of them (584 years).
pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_on_the_manual_clock_ends_at_its_deadline_and_leaves_nothing() {
        let clock = ManualClock::new();
        let mut cx = Context::from_waker(Waker::noop());
        let mut sleep = clock.sleep_until(clock.now() + Duration::from_secs(1));
        let mut dropped = clock.sleep_until(clock.now() + Duration::from_secs(2));
        assert!(sleep.as_mut().poll(&mut cx).is_pending());
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        drop(dropped);
        assert_eq!(clock.sleepers(), 1);
        clock.advance(Duration::from_secs(1));
        assert!(sleep.as_mut().poll(&mut cx).is_ready());
        assert_eq!(clock.sleepers(), 0);
    }

    #[test]
    fn moments_beyond_the_clock_are_far_away_and_do_not_panic() {
        let epoch = Epoch::new(&ManualClock::new());
        assert!(epoch.instant(u64::MAX) > epoch.instant(1_000_000_000));
        assert_eq!(saturating_nanos(Duration::MAX), u64::MAX);
    }
}
