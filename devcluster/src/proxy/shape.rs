//! The client's socket, metered and slowed, and faults made on purpose.

use std::{
    io,
    num::NonZeroU64,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::counters::Counters;

/// Latency, errors and bandwidth that a proxy makes on purpose.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Impairment {
    /// Waited before each proxy request is handled.
    pub latency: Duration,
    /// Part of the proxy requests answered with 502, from 0.0 to 1.0.
    pub error_ratio: f64,
    /// Bandwidth of each client connection and direction; none is unlimited.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Seed of the choice which requests fail.
    pub seed: u64,
}

impl Impairment {
    pub(super) fn problem(&self) -> Option<String> {
        (!(0.0..=1.0).contains(&self.error_ratio)).then(|| {
            format!(
                "error_ratio {} is not between 0.0 and 1.0",
                self.error_ratio
            )
        })
    }
}

/// The impairment of one proxy with its random state.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) latency: Duration,
    pub(super) bytes_per_second: Option<NonZeroU64>,
    error_ratio: f64,
    random: Mutex<SmallRng>,
}

impl Faults {
    pub(super) fn new(impairment: &Impairment) -> Self {
        Self {
            latency: impairment.latency,
            bytes_per_second: impairment.bytes_per_second,
            error_ratio: impairment.error_ratio,
            random: Mutex::new(SmallRng::seed_from_u64(impairment.seed)),
        }
    }

    /// Whether this request is one of those that fail.
    pub(super) fn strike(&self) -> bool {
        self.error_ratio > 0.0 && self.random.lock().random_bool(self.error_ratio)
    }
}

/// When bytes last passed a connection.
#[derive(Debug)]
pub(super) struct Activity {
    origin: Instant,
    last_millis: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            origin: Instant::now(),
            last_millis: AtomicU64::new(0),
        }
    }

    pub(super) fn last(&self) -> Instant {
        self.origin + Duration::from_millis(self.last_millis.load(Relaxed))
    }

    fn touch(&self) {
        let millis = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.fetch_max(millis, Relaxed);
    }
}

/// Spreads transfers so that a rate holds on average.
#[derive(Debug)]
struct Pace {
    rate: NonZeroU64,
    free_at: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Pace {
    fn new(rate: NonZeroU64) -> Self {
        let now = Instant::now();
        Self {
            rate,
            free_at: now,
            sleep: Box::pin(sleep_until(now)),
        }
    }

    /// Ready when the next transfer may begin.
    fn poll_free(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.free_at {
            return Poll::Ready(());
        }
        if self.sleep.deadline() != self.free_at {
            self.sleep.as_mut().reset(self.free_at);
        }
        self.sleep.as_mut().poll(cx)
    }

    /// Largest transfer at once: a tenth of a second, so that the pace is smooth.
    fn chunk(&self) -> usize {
        usize::try_from(self.rate.get() / 10)
            .unwrap_or(usize::MAX)
            .max(1)
    }

    fn spend(&mut self, bytes: usize) {
        let seconds = bytes as f64 / self.rate.get() as f64;
        self.free_at = self.free_at.max(Instant::now()) + Duration::from_secs_f64(seconds);
    }
}

/// A stream that counts its bytes and holds a rate in each direction.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    counters: Arc<Counters>,
    activity: Arc<Activity>,
    reading: Option<Pace>,
    writing: Option<Pace>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, counters: Arc<Counters>, rate: Option<NonZeroU64>) -> Self {
        Self {
            stream,
            counters,
            activity: Arc::new(Activity::new()),
            reading: rate.map(Pace::new),
            writing: rate.map(Pace::new),
        }
    }

    pub(super) fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = match &mut this.reading {
            None => {
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                buf.filled().len() - before
            }
            Some(pace) => {
                ready!(pace.poll_free(cx));
                let room = buf.remaining().min(pace.chunk());
                let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
                ready!(Pin::new(&mut this.stream).poll_read(cx, &mut part))?;
                let read = part.filled().len();
                buf.advance(read);
                pace.spend(read);
                read
            }
        };
        if read > 0 {
            this.counters.bytes_in.fetch_add(read as u64, Relaxed);
            this.activity.touch();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.writing {
            None => ready!(Pin::new(&mut this.stream).poll_write(cx, buf))?,
            Some(pace) => {
                ready!(pace.poll_free(cx));
                let part = &buf[..buf.len().min(pace.chunk())];
                let written = ready!(Pin::new(&mut this.stream).poll_write(cx, part))?;
                pace.spend(written);
                written
            }
        };
        this.counters.bytes_out.fetch_add(written as u64, Relaxed);
        this.activity.touch();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rate_holds_in_both_directions() {
        let (near, mut far) = duplex(1 << 20);
        let counters = Arc::new(Counters::default());
        let mut near = Metered::new(near, Arc::clone(&counters), NonZeroU64::new(1000));
        let begin = Instant::now();
        near.write_all(&[7; 2000]).await.unwrap();
        let wrote = begin.elapsed();
        assert!((1.8..=2.0).contains(&wrote.as_secs_f64()), "{wrote:?}");

        far.write_all(&[7; 1000]).await.unwrap();
        let begin = Instant::now();
        near.read_exact(&mut [0; 1000]).await.unwrap();
        let read = begin.elapsed();
        assert!((0.8..=1.0).contains(&read.as_secs_f64()), "{read:?}");
        let seen = counters.snapshot();
        assert_eq!((seen.bytes_in, seen.bytes_out), (1000, 2000));
    }

    #[test]
    fn the_seed_decides_which_requests_fail() {
        let impairment = Impairment {
            error_ratio: 0.3,
            seed: 5,
            ..Impairment::default()
        };
        let strikes = |impairment: &Impairment| -> Vec<bool> {
            let faults = Faults::new(impairment);
            (0..1000).map(|_| faults.strike()).collect()
        };
        let first = strikes(&impairment);
        assert_eq!(first, strikes(&impairment));
        let failed = first.iter().filter(|failed| **failed).count();
        assert!((200..400).contains(&failed), "{failed}");
        assert!(strikes(&Impairment::default()).iter().all(|failed| !failed));
    }
}
