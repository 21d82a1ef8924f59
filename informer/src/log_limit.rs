//! Lines of a log that shall not come as often as what they tell of.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often a line of one class is written.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(300);

/// Lets one line in an interval through.
#[derive(Debug)]
pub(crate) struct LogLimit {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl LogLimit {
    /// A limit of one line in `interval`, of which the first may come at once.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::default(),
        }
    }

    /// Whether a line may be written now: then how many were held back since the last one.
    pub(crate) fn admit(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let last = state.last;
        if last.is_some_and(|last| now.duration_since(last) < self.interval) {
            state.held_back += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_in_an_interval_is_admitted_and_tells_how_many_were_held_back() {
        let limit = LogLimit::new(Duration::from_secs(5));
        let admitted: Vec<_> = (0..4).map(|_| limit.admit()).collect();
        assert_eq!(admitted, [Some(0), None, None, None]);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((limit.admit(), limit.admit()), (Some(3), None));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(limit.admit(), Some(1));
    }
}
