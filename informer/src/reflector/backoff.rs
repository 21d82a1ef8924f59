//! How long the reflector waits after a failure.

use std::time::Duration;

use tokio::time::Instant;

/// Exponential waits with full jitter upward, starting over after a calm spell.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    options: BackoffOptions,
    next: Duration,
    last_step: Option<Instant>,
}

/// Waits after failures of list and watch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffOptions {
    /// First wait, before jitter.
    pub base: Duration,
    /// Longest wait, before jitter; at most a day.
    pub max: Duration,
    /// A wait of d lasts between d and d·(1 + jitter).
    pub jitter: f64,
    /// Time without any failure after which waits begin at `base` again.
    pub reset_after: Duration,
}

impl Default for BackoffOptions {
    /// 0.8 s doubling up to 30 s, each up to twice as long, over after 2 minutes of calm.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(800),
            max: Duration::from_secs(30),
            jitter: 1.0,
            reset_after: Duration::from_secs(120),
        }
    }
}

impl Backoff {
    pub(crate) fn new(options: BackoffOptions) -> Self {
        Self {
            options,
            next: options.base,
            last_step: None,
        }
    }

    /// The wait of a failure at `now`; `dice` in [0, 1) chooses inside the jitter.
    pub(crate) fn step(&mut self, now: Instant, dice: f64) -> Duration {
        let calm = self.last_step.map(|last| now.duration_since(last));
        if calm.is_some_and(|calm| calm >= self.options.reset_after) {
            self.next = self.options.base;
        }
        self.last_step = Some(now);
        let wait = self.next;
        self.next = (self.next * 2).min(self.options.max);
        wait.mul_f64(1.0 + self.options.jitter * dice)
    }
}

/// Time in which server failures inside a watch are met by watching again.
#[derive(Clone, Debug)]
pub(crate) struct RetryWindow {
    length: Duration,
    began: Option<Instant>,
    last: Option<Instant>,
}

impl RetryWindow {
    /// Calm after which a window starts anew.
    const CALM: Duration = Duration::from_secs(60);

    pub(crate) fn new(length: Duration) -> Self {
        Self {
            length,
            began: None,
            last: None,
        }
    }

    /// Whether a failure at `now` lies inside the window; the first one begins it.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.length.is_zero() {
            return false;
        }
        let calm = self
            .last
            .is_none_or(|last| now.duration_since(last) > Self::CALM);
        self.last = Some(now);
        let began = match self.began {
            Some(began) if !calm => began,
            _ => *self.began.insert(now),
        };
        now.duration_since(began) < self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn r8_waits_double_to_the_cap_and_start_over_after_two_calm_minutes() {
        let mut backoff = Backoff::new(BackoffOptions::default());
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(backoff.step(Instant::now(), 0.0).as_millis());
        }
        assert_eq!(
            waits,
            [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]
        );
        let longest = backoff.step(Instant::now(), 0.999_999);
        assert!(longest > Duration::from_secs(59) && longest < Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(119)).await;
        assert_eq!(backoff.step(Instant::now(), 0.0).as_secs(), 30);
        tokio::time::advance(Duration::from_secs(120)).await;
        assert_eq!(backoff.step(Instant::now(), 0.0).as_millis(), 800);
    }

    #[tokio::test(start_paused = true)]
    async fn r10_a_window_admits_failures_until_it_is_over_and_begins_anew_after_calm() {
        assert!(!RetryWindow::new(Duration::ZERO).admits(Instant::now()));
        let mut window = RetryWindow::new(Duration::from_secs(30));
        for (pause, admitted) in [
            (0, true),
            (20, true),
            (9, true),
            (1, false),
            (60, false),
            (61, true),
        ] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            assert_eq!(window.admits(Instant::now()), admitted, "after {pause} s");
        }
    }
}
