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

/// The record of replacements, after one that begins at `now`.
pub(crate) fn replaced(
    before: Option<&Replacements>,
    reason: Reason,
    now: Timestamp,
) -> Replacements {
    let recent = before.filter(|before| {
        before
            .last_time
            .as_ref()
            .is_some_and(|last| now.duration_since(last.0) < DAY)
    });
    Replacements {
        count_24h: recent
            .map_or(0, |recent| recent.count_24h)
            .saturating_add(1),
        last_time: Some(Time(conditions::whole_seconds(now))),
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
    fn replacements_are_counted_as_long_as_the_latest_is_less_than_a_day_old() {
        let first = replaced(None, Reason::Replacing, at(0));
        assert_eq!(first.count_24h, 1);
        let second = replaced(Some(&first), Reason::InstanceLost, at(86_399));
        assert_eq!(second.count_24h, 2);
        assert_eq!(second.last_reason.as_deref(), Some("InstanceLost"));
        let third = replaced(Some(&second), Reason::InstanceLost, at(86_399 + 86_400));
        assert_eq!(third.count_24h, 1);
    }
}
