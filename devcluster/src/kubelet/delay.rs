//! Delay distributions that a seed makes repeatable.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use sha2::{Digest as _, Sha256};

/// How long a step of a pod takes.
///
/// One pod (namespace and name) gets the same delay whenever the seed is the same, whatever the
/// order in which pods arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delay {
    /// Always that long.
    Fixed(Duration),
    /// Uniformly between two bounds, both included; bounds in the wrong order are swapped.
    Uniform(Duration, Duration),
    /// Exponentially distributed around a mean, cut at ten times the mean.
    Exponential(Duration),
}

impl From<Duration> for Delay {
    fn from(delay: Duration) -> Self {
        Self::Fixed(delay)
    }
}

/// Which step a delay is drawn for, so that the steps of one pod differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Start,
    Stop,
}

impl Delay {
    /// The delay of a draw from [0, 1).
    pub(crate) fn at(self, fraction: f64) -> Duration {
        match self {
            Self::Fixed(delay) => delay,
            Self::Uniform(a, b) => {
                let (low, high) = (a.min(b), a.max(b));
                low + (high - low).mul_f64(fraction)
            }
            Self::Exponential(mean) => {
                let factor = -(1.0 - fraction).ln();
                mean.mul_f64(factor.clamp(0.0, 10.0))
            }
        }
    }

    pub(super) fn draw(self, seed: u64, pod: &str, purpose: Purpose) -> Duration {
        self.at(fraction(seed, pod, purpose))
    }
}

fn fraction(seed: u64, pod: &str, purpose: Purpose) -> f64 {
    let digest = Sha256::new()
        .chain_update(seed.to_be_bytes())
        .chain_update([purpose as u8])
        .chain_update(pod)
        .finalize();
    let mut word = [0; 8];
    word.copy_from_slice(&digest[..8]);
    SmallRng::seed_from_u64(u64::from_be_bytes(word)).random()
}

/// Reads `250ms`, `5s`, `2m` or `1h`.
///
/// # Errors
///
/// The problem in words, with the accepted forms.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => {
            return Err(format!(
                "{text:?} is no duration: write for example 250ms, 5s, 2m"
            ));
        }
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(scale))
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is no duration: write for example 250ms, 5s, 2m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_seed_repeats_the_delay_of_a_pod_and_steps_differ() {
        let delay = Delay::Uniform(3 * SECOND, SECOND);
        let draw = |seed, pod, purpose| delay.draw(seed, pod, purpose);
        assert_eq!(
            draw(1, "a/b", Purpose::Start),
            draw(1, "a/b", Purpose::Start)
        );
        assert_ne!(
            draw(1, "a/b", Purpose::Start),
            draw(2, "a/b", Purpose::Start)
        );
        assert_ne!(
            draw(1, "a/b", Purpose::Start),
            draw(1, "a/c", Purpose::Start)
        );
        assert_ne!(
            draw(1, "a/b", Purpose::Start),
            draw(1, "a/b", Purpose::Stop)
        );
    }

    #[test]
    fn draws_stay_in_range_and_spread() {
        let n = 2000;
        let draws = |delay: Delay| -> Vec<f64> {
            (0..n)
                .map(|i| delay.draw(7, &i.to_string(), Purpose::Start).as_secs_f64())
                .collect()
        };
        let uniform = draws(Delay::Uniform(SECOND, 3 * SECOND));
        assert!(uniform.iter().all(|d| (1.0..=3.0).contains(d)));
        let mean = uniform.iter().sum::<f64>() / f64::from(n);
        assert!((1.9..2.1).contains(&mean), "{mean}");
        let exponential = draws(Delay::Exponential(SECOND));
        assert!(exponential.iter().all(|d| (0.0..=10.0).contains(d)));
        let mean = exponential.iter().sum::<f64>() / f64::from(n);
        assert!((0.9..1.1).contains(&mean), "{mean}");
    }

    #[test]
    fn durations_are_read_or_refused_with_the_accepted_forms() {
        for (text, millis) in [("250ms", 250), ("5s", 5000), ("2m", 120_000), ("0s", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
        }
        for text in ["", "5", "s", "-1s", "1.5s", "5 s", "99999999999999999999s"] {
            assert!(
                parse_duration(text)
                    .unwrap_err()
                    .contains("write for example"),
                "{text}"
            );
        }
    }
}
