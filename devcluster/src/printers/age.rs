//! Ages in the short form that people read.

use k8s_openapi::jiff::Timestamp;

/// Time since `then` (RFC 3339), or `<unknown>` if there is none.
pub(super) fn since(then: &str, now: Timestamp) -> String {
    match then.parse::<Timestamp>() {
        Ok(then) => human(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Seconds as two figures at most: `2m`, `3h5m`, `47h`, `6d3h`.
fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{small}{small_unit}")
        }
    };
    match seconds {
        // A clock that is a little behind is no reason for alarm.
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n10_ages_have_the_limits_of_the_real_printer() {
        let (minute, hour, day) = (60, 3_600, 86_400);
        let cases = [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * minute - 1, "9m59s"),
            (10 * minute, "10m"),
            (3 * hour - 1, "179m"),
            (3 * hour, "3h"),
            (3 * hour + 5 * minute, "3h5m"),
            (8 * hour, "8h"),
            (48 * hour - 1, "47h"),
            (2 * day, "2d"),
            (2 * day + 3 * hour, "2d3h"),
            (8 * day, "8d"),
            (2 * 365 * day - 1, "729d"),
            (2 * 365 * day, "2y"),
            (2 * 365 * day + 3 * day, "2y3d"),
            (9 * 365 * day, "9y"),
        ];
        for (seconds, text) in cases {
            assert_eq!(human(seconds), text, "{seconds}");
        }
        let now = "2024-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(since("2024-01-01T00:00:30.5Z", now), "30s");
        assert_eq!(since("", now), "<unknown>");
    }
}
