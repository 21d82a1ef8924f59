//! Whose turn it is: the decision of an election, without clock and without calls.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::Record;

/// A record and the moment, by this process's monotonic clock, at which it was first seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What was seen.
    pub record: Record,
    /// Since when it has been the same.
    pub at: Instant,
}

/// One moment on both clocks. The wall clock is only written down, never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For every decision.
    pub monotonic: Instant,
    /// For the timestamps of a Lease.
    pub wall: Timestamp,
}

/// What to do about a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// There is none: create it with this record.
    Create(Record),
    /// It is free, or its holder let it expire: put this record in.
    Take(Record),
    /// It is ours: put this record in.
    Renew(Record),
    /// Somebody else holds it; it may be taken after `until`, unless it changes before that.
    /// `None`: it is held for longer than a clock can tell.
    Wait {
        /// The last moment at which it is not expired yet.
        until: Option<Instant>,
    },
}

/// The highest count that a Lease can hold.
const MAX_TRANSITIONS: u32 = i32::MAX.unsigned_abs();

/// Decides about a Lease for the contender named `identity`, who would hold it for `duration`.
///
/// `seen` is what is known of it, none if it does not exist. The expiry of somebody else's hold
/// rests on the time since *we* saw the last change and on the duration that the *record* names
/// (on `duration` if it names none), so clocks that differ between machines do no harm.
///
/// ```
/// use std::time::Duration;
/// use controller::election::{Now, Step, decide};
/// # use k8s_openapi::jiff::Timestamp;
/// # use tokio::time::Instant;
/// let now = Now { monotonic: Instant::now(), wall: Timestamp::UNIX_EPOCH };
/// let step = decide(None, now, "me", Duration::from_secs(15));
/// assert!(matches!(step, Step::Create(record) if record.holder == "me"));
/// ```
#[must_use]
pub fn decide(seen: Option<&Observation>, now: Now, identity: &str, duration: Duration) -> Step {
    let ours = Record {
        holder: identity.to_owned(),
        lease_duration: Some(duration),
        acquire_time: Some(now.wall),
        renew_time: Some(now.wall),
        transitions: 0,
    };
    let Some(Observation { record, at }) = seen else {
        return Step::Create(ours);
    };
    if record.holder == identity {
        return Step::Renew(Record {
            acquire_time: record.acquire_time.or(ours.acquire_time),
            transitions: record.transitions,
            ..ours
        });
    }
    let until = at.checked_add(record.lease_duration.unwrap_or(duration));
    let expired = until.is_some_and(|until| now.monotonic > until);
    if record.holder.is_empty() || expired {
        return Step::Take(Record {
            transitions: record.transitions.saturating_add(1).min(MAX_TRANSITIONS),
            ..ours
        });
    }
    Step::Wait { until }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);
    const MILLI: Duration = Duration::from_millis(1);

    fn wall(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn held_by(holder: &str, duration: Option<u64>) -> Record {
        Record {
            holder: holder.to_owned(),
            lease_duration: duration.map(Duration::from_secs),
            acquire_time: Some(wall(10)),
            renew_time: Some(wall(20)),
            transitions: 4,
        }
    }

    fn mine(acquired: i64, transitions: u32) -> Record {
        Record {
            holder: "me".to_owned(),
            lease_duration: Some(LEASE),
            acquire_time: Some(wall(acquired)),
            renew_time: Some(wall(1000)),
            transitions,
        }
    }

    #[test]
    fn l1_every_state_of_a_lease_leads_to_the_step_of_the_table() {
        let start = Instant::now();
        let wait = |seconds| Step::Wait {
            until: Some(start + Duration::from_secs(seconds)),
        };
        let second = Duration::from_secs(1);
        // What is there, how long after it was first seen, what follows.
        let table = [
            (None, Duration::ZERO, Step::Create(mine(1000, 0))),
            (Some(held_by("other", Some(15))), Duration::ZERO, wait(15)),
            // Strictly more than the duration must have passed.
            (Some(held_by("other", Some(15))), 15 * second, wait(15)),
            (
                Some(held_by("other", Some(15))),
                15 * second + MILLI,
                Step::Take(mine(1000, 5)),
            ),
            // The record's own duration counts, longer or shorter than ours.
            (Some(held_by("other", Some(60))), 40 * second, wait(60)),
            (
                Some(held_by("other", Some(1))),
                2 * second,
                Step::Take(mine(1000, 5)),
            ),
            // One that names none is given ours.
            (Some(held_by("other", None)), 15 * second, wait(15)),
            (
                Some(held_by("other", None)),
                16 * second,
                Step::Take(mine(1000, 5)),
            ),
            (
                Some(held_by("me", Some(15))),
                Duration::ZERO,
                Step::Renew(mine(10, 4)),
            ),
            (
                Some(held_by("me", Some(15))),
                100 * second,
                Step::Renew(mine(10, 4)),
            ),
            (
                Some(held_by("", Some(1))),
                Duration::ZERO,
                Step::Take(mine(1000, 5)),
            ),
        ];
        for (record, age, expected) in table {
            let seen = record.map(|record| Observation { record, at: start });
            let now = Now {
                monotonic: start + age,
                wall: wall(1000),
            };
            let step = decide(seen.as_ref(), now, "me", LEASE);
            assert_eq!(step, expected, "{seen:?} after {age:?}");
        }
    }

    #[test]
    fn c41_timestamps_in_the_record_decide_nothing() {
        let at = Instant::now();
        for renewed in [i64::from(i32::MIN), 0, 4_000_000_000] {
            let record = Record {
                renew_time: Some(wall(renewed)),
                acquire_time: None,
                ..held_by("other", Some(15))
            };
            let seen = Observation { record, at };
            let now = Now {
                monotonic: at + LEASE,
                wall: wall(1000),
            };
            let step = decide(Some(&seen), now, "me", LEASE);
            assert!(matches!(step, Step::Wait { .. }), "{renewed}: {step:?}");
        }
    }

    #[test]
    fn a_duration_beyond_all_clocks_is_waited_for() {
        let record = Record {
            lease_duration: Some(Duration::MAX),
            ..held_by("other", None)
        };
        let at = Instant::now();
        let now = Now {
            monotonic: at,
            wall: wall(0),
        };
        let seen = Observation { record, at };
        assert_eq!(
            decide(Some(&seen), now, "me", LEASE),
            Step::Wait { until: None }
        );
    }

    #[test]
    fn a_count_of_transitions_at_its_end_stays_there() {
        let record = Record {
            transitions: MAX_TRANSITIONS,
            ..held_by("", Some(1))
        };
        let at = Instant::now();
        let seen = Observation { record, at };
        let now = Now {
            monotonic: at,
            wall: wall(1000),
        };
        assert_eq!(
            decide(Some(&seen), now, "me", LEASE),
            Step::Take(mine(1000, MAX_TRANSITIONS))
        );
    }
}
