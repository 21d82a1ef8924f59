//! Readings of this process, and the lines that carry them.

use std::time::Instant;

use serde_json::{Map, Value, json};

/// The present moment of real time: what a benchmark measures.
pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    Instant::now()
}

/// User plus system time of this process so far, in seconds.
pub(crate) fn cpu() -> f64 {
    // SAFETY: an all-zero `rusage` is valid, and `getrusage` fills it in.
    #[expect(unsafe_code, reason = "the standard library has no CPU clock")]
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage),
            0,
            "getrusage"
        );
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A field of a `/proc/PID/status` that is in kB, in bytes.
pub(crate) fn field(status: &str, name: &str) -> Option<f64> {
    status.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        let kb: f64 = value.split_whitespace().next()?.parse().ok()?;
        Some(kb * 1024.0)
    })
}

/// A field of this process's status.
fn status(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&text, name).unwrap_or(0.0)
}

/// Hands free memory back to the system.
pub(crate) fn settle() {
    // SAFETY: there are no arguments that could be wrong.
    #[cfg(feature = "mimalloc")]
    #[expect(unsafe_code, reason = "the allocator keeps what was freed")]
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
    // SAFETY: there are no arguments that could be wrong.
    #[cfg(all(not(feature = "mimalloc"), target_env = "gnu"))]
    #[expect(
        unsafe_code,
        reason = "glibc keeps what was freed unless told otherwise"
    )]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory of this process that is resident, in bytes.
pub(crate) fn resident() -> f64 {
    status("VmRSS")
}

/// The state before the measured part.
pub(crate) struct Baseline {
    rss: f64,
    cpu: f64,
    begun: Instant,
}

impl Baseline {
    /// Hands free memory back, resets the peak and starts the clocks.
    pub(crate) fn take() -> Self {
        settle();
        // Without it the peak is that of the whole process, which is reported as it is.
        std::fs::write("/proc/self/clear_refs", "5").ok();
        Self {
            rss: status("VmRSS"),
            cpu: cpu(),
            begun: now(),
        }
    }

    /// Nanoseconds since the baseline was taken.
    pub(crate) fn nanos(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).expect("less than 584 years")
    }

    /// The figures at the end of the measured part.
    pub(crate) fn end(&self) -> End {
        let seconds = self.begun.elapsed().as_secs_f64();
        let peak = status("VmHWM");
        End {
            seconds,
            cpu: cpu() - self.cpu,
            peak,
            grown: (peak - self.rss).max(0.0),
        }
    }
}

/// Time, CPU time and memory of the measured part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    pub(crate) peak: f64,
    /// Bytes by which the peak lies above the baseline.
    pub(crate) grown: f64,
}

/// The figures of one scenario.
pub(crate) struct Series {
    pub(crate) peer: String,
    pub(crate) bench: String,
    pub(crate) params: Map<String, Value>,
}

impl Series {
    #[expect(clippy::print_stdout, reason = "figures go to standard output")]
    pub(crate) fn emit(&self, end: &End, metric: &str, value: f64) {
        let line = json!({
            "peer": self.peer, "bench": self.bench, "params": self.params,
            "metric": metric, "value": value, "cpu_s": end.cpu, "peak_rss_bytes": end.peak,
        });
        println!("{line}");
    }
}

/// A number without a fraction prints as an integer, as the peers print it.
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole")]
pub(crate) fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

/// p50, p99, maximum and minimum.
pub(crate) fn quantiles(mut values: Vec<i64>) -> [f64; 4] {
    values.sort_unstable();
    let at = |numerator: usize| {
        let index = (values.len() * numerator / 100).min(values.len().saturating_sub(1));
        values.get(index).copied().unwrap_or_default() as f64
    };
    [at(50), at(99), at(100), at(0)]
}
