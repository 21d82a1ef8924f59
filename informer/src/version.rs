//! Comparison of resource versions.

use std::cmp::Ordering;

/// Orders two resource versions of one resource, or `None` where they are not comparable.
///
/// Comparable are decimal numbers of any length without a leading zero: the longer one is newer,
/// then the digits decide. Anything else (empty, `"0"`, letters) is not comparable and never
/// guessed at. Mirrors apimachinery's `resourceversion.CompareResourceVersion`.
///
/// ```
/// use std::cmp::Ordering;
///
/// assert_eq!(informer::compare_versions("99", "100"), Some(Ordering::Less));
/// assert_eq!(informer::compare_versions("0", "100"), None);
/// ```
pub fn compare_versions(left: &str, right: &str) -> Option<Ordering> {
    let comparable = |version: &str| {
        version.bytes().next().is_some_and(|first| first != b'0')
            && version.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !comparable(left) || !comparable(right) {
        return None;
    }
    Some(left.len().cmp(&right.len()).then_with(|| left.cmp(right)))
}

/// Whether a cache at `have` has reached `wanted`; versions that cannot be compared must be equal.
pub(crate) fn reached(have: &str, wanted: &str) -> bool {
    match compare_versions(have, wanted) {
        Some(order) => order.is_ge(),
        None => have == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i43_only_plain_decimal_numbers_compare() {
        let cases = [
            ("1", "2", Some(Ordering::Less)),
            ("10", "9", Some(Ordering::Greater)),
            ("123", "123", Some(Ordering::Equal)),
            (
                "99999999999999999999998",
                "99999999999999999999999",
                Some(Ordering::Less),
            ),
            ("0", "1", None),
            ("", "1", None),
            ("01", "1", None),
            ("1a", "2", None),
            ("-1", "2", None),
            ("1", "٢", None),
        ];
        for (left, right, want) in cases {
            assert_eq!(compare_versions(left, right), want, "{left:?} {right:?}");
            assert_eq!(compare_versions(right, left), want.map(Ordering::reverse));
        }
    }
}
