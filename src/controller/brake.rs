//! S-10: an instance that keeps getting lost is made again ever more slowly. Pure.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::conditions::{self, ConditionStatus, ConditionType, Reason};
use crate::api::{ProxyStatus, Replacements};

/// Least time between two creates of one Proxy after its first loss.
const FIRST_GAP: Duration = Duration::from_secs(5);

/// The gap grows no further than this.
const LONGEST_GAP: Duration = Duration::from_secs(10 * 60);

/// An instance that ran this long ends the row of losses before it.
const CALM: SignedDuration = SignedDuration::from_mins(30);

/// Time over which replacements are counted.
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Least time between two creates after so many losses in a row; zero without one.
pub(crate) fn gap(failure_streak: i32) -> Duration {
    match u32::try_from(failure_streak.saturating_sub(1)) {
        Ok(doublings) if failure_streak > 0 => {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            FIRST_GAP.saturating_mul(factor).min(LONGEST_GAP)
        }
        _ => Duration::ZERO,
    }
}

/// The losses in a row, after one more at `now`.
///
/// A row ends with an instance that ran for half an hour. The status is not written for that
/// (C-08), so the end of a row shows with the next loss.
pub(crate) fn one_more(status: &ProxyStatus, now: Timestamp) -> i32 {
    let calm = conditions::find(&status.conditions, ConditionType::Provisioned).is_some_and(
        |provisioned| {
            provisioned.status == ConditionStatus::True.as_str()
                && now.duration_since(provisioned.last_transition_time.0) >= CALM
        },
    );
    if calm {
        1
    } else {
        status.failure_streak.saturating_add(1)
    }
}

/// Whether the latest instance was given up because it never came up.
pub(crate) fn timed_out(status: &ProxyStatus) -> bool {
    let last = status.replacements.as_ref();
    last.and_then(|last| last.last_reason.as_deref()) == Some(Reason::ProvisioningTimeout.as_str())
}

/// The record of replacements, after one that begins at `now`.
///
/// The count begins anew with the first one that comes a day or more after its window began, so
/// that what is counted always lies within a day.
pub(crate) fn replaced(
    before: Option<&Replacements>,
    reason: Reason,
    now: Timestamp,
) -> Replacements {
    let now = Time(conditions::whole_seconds(now));
    // A count without a window is of an operator that kept none.
    let window = before.and_then(|before| {
        let start = before.window_start.as_ref().or(before.last_time.as_ref())?;
        (now.0.duration_since(start.0) < DAY).then_some((start.clone(), before.count_24h))
    });
    let (start, counted) = window.unwrap_or_else(|| (now.clone(), 0));
    Replacements {
        count_24h: counted.saturating_add(1),
        window_start: Some(start),
        last_time: Some(now),
        last_reason: Some(reason.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::Update;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn s10_the_gap_doubles_from_five_seconds_to_ten_minutes() {
        for (streak, seconds) in [
            (-1, 0),
            (0, 0),
            (1, 5),
            (2, 10),
            (3, 20),
            (7, 320),
            (8, 600),
            (40, 600),
            (i32::MAX, 600),
        ] {
            assert_eq!(gap(streak), Duration::from_secs(seconds), "{streak}");
        }
    }

    #[test]
    fn s10_half_an_hour_of_service_ends_a_row_of_losses() {
        let running_since = |second| {
            let mut status = ProxyStatus {
                failure_streak: 4,
                ..ProxyStatus::default()
            };
            let update = Update {
                kind: ConditionType::Provisioned,
                status: ConditionStatus::True,
                reason: Reason::Created,
                message: String::new(),
                observed_generation: None,
            };
            conditions::set(&mut status.conditions, &update, at(second));
            status
        };
        assert_eq!(one_more(&running_since(0), at(1799)), 5);
        assert_eq!(one_more(&running_since(0), at(1800)), 1);
        assert_eq!(one_more(&ProxyStatus::default(), at(0)), 1, "never ran");
    }

    #[test]
    fn replacements_are_counted_from_the_first_of_a_window_of_a_day() {
        const HOUR: i64 = 3600;
        let mut record = None;
        for (hour, want) in [
            (0, 1),
            (23, 2),
            (24, 1),
            (40, 2),
            (47, 3),
            (48, 1),
            (71, 2),
            (200, 1),
        ] {
            let next = replaced(record.as_ref(), Reason::InstanceLost, at(hour * HOUR));
            assert_eq!(next.count_24h, want, "hour {hour}");
            assert_eq!(next.last_time, Some(Time(at(hour * HOUR))));
            assert_eq!(next.last_reason.as_deref(), Some("InstanceLost"));
            record = Some(next);
        }
    }

    #[test]
    fn one_replacement_in_each_23_hours_never_counts_more_than_two() {
        let mut record = None;
        for n in 0..30 {
            let next = replaced(record.as_ref(), Reason::Replacing, at(n * 23 * 3600));
            assert!(next.count_24h <= 2, "number {n}: {}", next.count_24h);
            record = Some(next);
        }
    }

    #[test]
    fn a_count_without_a_window_goes_on_from_its_latest() {
        let before = Replacements {
            count_24h: 7,
            last_time: Some(Time(at(100))),
            ..Replacements::default()
        };
        let next = replaced(Some(&before), Reason::Replacing, at(200));
        assert_eq!(next.count_24h, 8);
        assert_eq!(next.window_start, Some(Time(at(100))));
        let later = replaced(Some(&before), Reason::Replacing, at(100 + 86_400));
        assert_eq!(later.count_24h, 1);
    }
}
