//! Settings of an election, and what is wrong with them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::names;

/// By how much a contender's waits are spread: up to this many retry periods more.
pub(crate) const JITTER: f64 = 1.2;

/// The shortest own timeout of a call, unless the renew deadline is shorter still.
const LEAST_ATTEMPT: Duration = Duration::from_secs(1);

/// How a process takes part in an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionOptions {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease, and label `name` of the metrics.
    pub name: String,
    /// What tells this process from all others; default is [`unique_identity`]. Two processes of
    /// one identity would both lead.
    pub identity: String,
    /// How long the others wait after the last renewal that they saw; whole seconds. Default 15 s.
    pub lease_duration: Duration,
    /// How long the leader goes on without a renewal that succeeds; less than `lease_duration`.
    /// Default 10 s.
    pub renew_deadline: Duration,
    /// Wait between two renewals, and between two tries of the others, who add up to 1.2 times as
    /// much again at random. Default 2 s.
    pub retry_period: Duration,
    /// Whether the Lease is given back at a stop, so that others need not wait. Default true.
    pub release_on_stop: bool,
    /// Whether a process that has lost the Lease contends again instead of ending with an error.
    /// Default false.
    pub rejoin: bool,
    /// Labels that the Lease shall have; others that it has stay.
    pub labels: BTreeMap<String, String>,
}

impl ElectionOptions {
    /// Options for the Lease `namespace`/`name`, the rest by default.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: unique_identity(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            release_on_stop: true,
            rejoin: false,
            labels: BTreeMap::new(),
        }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`InvalidOptions`] with every fault that there is.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, option, value: String, expected: &str| {
            if !holds {
                let expected = expected.to_owned();
                faults.push(Fault {
                    option,
                    value,
                    expected,
                });
            }
        };
        check(
            names::is_label(&self.namespace),
            "namespace",
            format!("{:?}", self.namespace),
            names::LABEL,
        );
        check(
            names::is_subdomain(&self.name),
            "name",
            format!("{:?}", self.name),
            names::SUBDOMAIN,
        );
        check(
            !self.identity.is_empty(),
            "identity",
            format!("{:?}", self.identity),
            "a text that no other process has",
        );
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        let whole = lease.subsec_nanos() == 0 && (1..=i32::MAX as u64).contains(&lease.as_secs());
        check(
            whole,
            "lease_duration",
            format!("{lease:?}"),
            "whole seconds, at least 1",
        );
        check(
            lease > renew,
            "lease_duration",
            format!("{lease:?}"),
            &format!("more than renew_deadline, which is {renew:?}"),
        );
        check(
            renew > retry.saturating_mul(12) / 10,
            "renew_deadline",
            format!("{renew:?}"),
            &format!("more than {JITTER} times retry_period, which is {retry:?}"),
        );
        for (option, value) in [("renew_deadline", renew), ("retry_period", retry)] {
            check(
                !value.is_zero(),
                option,
                format!("{value:?}"),
                "more than 0",
            );
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(InvalidOptions { faults })
        }
    }
}

/// One thing that is wrong with [`ElectionOptions`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Field of the options.
    pub option: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub expected: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            option,
            value,
            expected,
        } = self;
        write!(f, "{option} is {value}, expected {expected}")
    }
}

/// The options of an election do not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("election option {}", join(.faults))]
pub struct InvalidOptions {
    /// All that is wrong, in the order of the checks.
    pub faults: Vec<Fault>,
}

fn join(faults: &[Fault]) -> String {
    let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// A name for this process that no other has: host name, underscore, a random UUID.
#[must_use]
pub fn unique_identity() -> String {
    let host = rustix::system::uname();
    format!("{}_{}", host.nodename().to_string_lossy(), Uuid::new_v4())
}

/// Options that were checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) lease_duration: Duration,
    pub(crate) renew_deadline: Duration,
    pub(crate) retry_period: Duration,
    pub(crate) release_on_stop: bool,
    pub(crate) rejoin: bool,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Config {
    pub(crate) fn new(options: ElectionOptions) -> Result<(Self, String), InvalidOptions> {
        options.validate()?;
        let config = Self {
            namespace: options.namespace,
            name: options.name,
            lease_duration: options.lease_duration,
            renew_deadline: options.renew_deadline,
            retry_period: options.retry_period,
            release_on_stop: options.release_on_stop,
            rejoin: options.rejoin,
            labels: options.labels,
        };
        Ok((config, options.identity))
    }

    /// How long one call may take: always less than the renew deadline, so that one that hangs
    /// leaves time for another.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        let half = self.renew_deadline / 2;
        if LEAST_ATTEMPT < self.renew_deadline {
            half.max(LEAST_ATTEMPT)
        } else {
            half
        }
    }

    #[cfg(test)]
    pub(crate) fn for_tests(identity: &str) -> Self {
        let mut options = ElectionOptions::new("ns", "name");
        identity.clone_into(&mut options.identity);
        Self::new(options).expect("the defaults").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut ElectionOptions);

    #[test]
    fn l4_every_fault_names_option_value_and_what_is_allowed() {
        let cases: [(Change, &str); 12] = [
            (|o| o.name.clear(), "name is \"\", expected 1 to 253"),
            (
                |o| o.namespace = "a/b".to_owned(),
                "namespace is \"a/b\", expected 1 to 63",
            ),
            (
                |o| o.namespace = "a.b".to_owned(),
                "namespace is \"a.b\", expected 1 to 63",
            ),
            (
                |o| o.name = "a..b".to_owned(),
                "name is \"a..b\", expected 1 to 253",
            ),
            (
                |o| o.identity.clear(),
                "identity is \"\", expected a text that no other process has",
            ),
            (
                |o| o.lease_duration = Duration::from_millis(15_500),
                "lease_duration is 15.5s, expected whole seconds, at least 1",
            ),
            (
                |o| {
                    o.lease_duration = Duration::ZERO;
                    o.renew_deadline = Duration::from_nanos(3);
                    o.retry_period = Duration::from_nanos(2);
                },
                "lease_duration is 0ns, expected whole seconds, at least 1; \
                 lease_duration is 0ns, expected more than renew_deadline, which is 3ns",
            ),
            (
                |o| o.lease_duration = o.renew_deadline,
                "lease_duration is 10s, expected more than renew_deadline, which is 10s",
            ),
            (
                |o| o.retry_period = Duration::from_secs(9),
                "renew_deadline is 10s, expected more than 1.2 times retry_period, which is 9s",
            ),
            (
                |o| o.renew_deadline = Duration::from_millis(2_400),
                "renew_deadline is 2.4s, expected more than 1.2 times retry_period, which is 2s",
            ),
            (
                |o| o.retry_period = Duration::ZERO,
                "retry_period is 0ns, expected more than 0",
            ),
            (
                |o| {
                    o.renew_deadline = Duration::ZERO;
                    o.retry_period = Duration::MAX;
                },
                "renew_deadline is 0ns, expected more than 1.2 times retry_period",
            ),
        ];
        for (change, text) in cases {
            let mut options = ElectionOptions::new("ns", "name");
            change(&mut options);
            let error = options.validate().unwrap_err().to_string();
            assert!(error.contains(text), "{text:?} in {error:?}");
        }
        assert_eq!(ElectionOptions::new("ns", "name").validate(), Ok(()));
    }

    #[test]
    fn c40_defaults_are_15_10_and_2_seconds() {
        let options = ElectionOptions::new("ns", "name");
        let times = [
            options.lease_duration,
            options.renew_deadline,
            options.retry_period,
        ];
        assert_eq!(times.map(|time| time.as_secs()), [15, 10, 2]);
    }

    #[test]
    fn c44_the_timeout_of_a_call_is_less_than_the_renew_deadline() {
        for (renew, timeout) in [(10_000, 5_000), (1_500, 1_000), (1_000, 500), (400, 200)] {
            let mut options = ElectionOptions::new("ns", "name");
            options.renew_deadline = Duration::from_millis(renew);
            options.retry_period = Duration::from_millis(renew / 2);
            let (config, _) = Config::new(options).unwrap();
            assert_eq!(config.attempt_timeout(), Duration::from_millis(timeout));
        }
    }

    #[test]
    fn c50_an_identity_is_the_host_and_something_unique() {
        let (one, two) = (unique_identity(), unique_identity());
        assert_ne!(one, two);
        let (host, id) = one.rsplit_once('_').unwrap();
        assert!(!host.is_empty());
        assert!(Uuid::parse_str(id).is_ok(), "{id}");
    }
}
