//! Quantities: amounts such as `100m` or `2Gi`, in the form that the real server stores them.

/// Why a text is no quantity; the sentences are the real server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuantityError {
    /// The text does not have the form of a quantity.
    #[error(
        "quantities must match the regular expression \
         '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Form,
    /// The suffix is not one of those that there are.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// A power by which a suffix multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Of ten, written as a letter.
    Decimal(i32),
    /// Of ten, written as an exponent.
    Exponent(i32),
    /// Of two.
    Binary(u32),
}

const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [(&str, u32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];

/// The canonical form of a quantity: the largest suffix that needs no fraction.
///
/// # Errors
/// What is wrong with the text.
pub(super) fn canonical(text: &str) -> Result<String, QuantityError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(QuantityError::Form);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let digits = letters.strip_prefix(['+', '-']).unwrap_or(letters);
    if fraction.contains('.') || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError::Form);
    }
    let scale = scale(suffix).ok_or(QuantityError::Suffix)?;
    let whole = whole.trim_start_matches('0');
    if is_canonical(whole, fraction, scale) {
        return Ok(text.to_owned());
    }
    let is_negative = text.starts_with('-');
    // An amount too large to compute with is left as it is.
    Ok(rewritten(whole, fraction, scale, is_negative).unwrap_or_else(|| text.to_owned()))
}

/// The amount in billionths, rounded towards zero; none for what is no quantity or exceeds 128 bits.
pub(crate) fn billionths(text: &str) -> Option<i128> {
    let text = text.trim();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut amount: i128 = format!("{whole}{fraction}").parse().ok()?;
    let mut power = 9 - i32::try_from(fraction.len()).ok()?;
    match scale(suffix)? {
        Scale::Decimal(more) | Scale::Exponent(more) => power = power.checked_add(more)?,
        Scale::Binary(bits) => amount = amount.checked_mul(1_i128.checked_shl(bits)?)?,
    }
    let amount = if power >= 0 {
        amount.checked_mul(power_of_ten(power)?)?
    } else {
        power_of_ten(power.checked_neg()?).map_or(0, |divisor| amount / divisor)
    };
    Some(if text.starts_with('-') {
        -amount
    } else {
        amount
    })
}

fn scale(suffix: &str) -> Option<Scale> {
    if let Some((_, power)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some(Scale::Decimal(*power));
    }
    if let Some((_, power)) = BINARY.iter().find(|(known, _)| *known == suffix) {
        return Some(Scale::Binary(*power));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    exponent.parse().ok().map(Scale::Exponent)
}

/// Whether the digits are kept as they were written, be it with a sign or zeros in front.
fn is_canonical(whole: &str, fraction: &str, scale: Scale) -> bool {
    let (Scale::Decimal(power) | Scale::Exponent(power)) = scale else {
        return false;
    };
    let digits = format!("{whole}{fraction}");
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let power = power.saturating_sub(places);
    digits.len() <= 18
        && power >= -9
        && power % 3 == 0
        && !digits.ends_with("000")
        && !digits.is_empty()
        && !digits.starts_with('0')
}

/// The largest power of ten that 128 bits hold.
const MOST_DIGITS: i32 = 38;

fn power_of_ten(power: i32) -> Option<i128> {
    u32::try_from(power)
        .ok()
        .and_then(|power| 10_i128.checked_pow(power))
}

fn rewritten(whole: &str, fraction: &str, scale: Scale, is_negative: bool) -> Option<String> {
    let digits = format!("0{whole}{fraction}");
    let mut amount: i128 = digits.parse().ok()?;
    let mut power = -i32::try_from(fraction.len()).ok()?;
    let is_exponent = matches!(scale, Scale::Exponent(_));
    let mut is_binary = false;
    match scale {
        Scale::Decimal(more) | Scale::Exponent(more) => power = power.checked_add(more)?,
        Scale::Binary(bits) => {
            amount = amount.checked_mul(1_i128.checked_shl(bits)?)?;
            is_binary = true;
        }
    }
    if amount == 0 {
        return Some("0".to_owned());
    }
    while amount % 10 == 0 {
        amount /= 10;
        power += 1;
    }
    // Nothing finer than a billionth is kept; what is finer counts as one more.
    if power < -9 {
        let divisor = power_of_ten((-9 - power).min(MOST_DIGITS))?;
        amount = (amount / divisor) + i128::from(amount % divisor != 0);
        power = -9;
        while amount % 10 == 0 {
            amount /= 10;
            power += 1;
        }
    }
    let sign = if is_negative { "-" } else { "" };
    if is_binary && power >= 0 {
        let bytes = amount.checked_mul(power_of_ten(power)?)?;
        if bytes >= 1024 {
            let (mut count, mut suffix) = (bytes, "");
            for (larger, _) in BINARY {
                if count % 1024 != 0 {
                    break;
                }
                count /= 1024;
                suffix = larger;
            }
            return Some(format!("{sign}{count}{suffix}"));
        }
    }
    let excess = power.rem_euclid(3);
    let amount = amount.checked_mul(power_of_ten(excess)?)?;
    let power = power - excess;
    if is_exponent {
        let exponent = if power == 0 {
            String::new()
        } else {
            format!("e{power}")
        };
        return Some(format!("{sign}{amount}{exponent}"));
    }
    let (suffix, left) = match DECIMAL.iter().find(|(_, known)| *known == power) {
        Some((suffix, _)) => (*suffix, 0),
        None => ("E", power - 18),
    };
    let amount = amount.checked_mul(power_of_ten(left)?)?;
    Some(format!("{sign}{amount}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from a kube-apiserver 1.37.2.
    const RECORDED: [(&str, &str); 54] = [
        ("0", "0"),
        ("1", "1"),
        ("1000", "1k"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.1", "100m"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("1.0", "1"),
        ("100", "100"),
        ("1024", "1024"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("1536", "1536"),
        ("1.5Ki", "1536"),
        ("0.5Ki", "512"),
        ("2048Mi", "2Gi"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1.5e3", "1500"),
        ("12e6", "12e6"),
        ("1000k", "1M"),
        ("1000000", "1M"),
        ("1M", "1M"),
        ("999M", "999M"),
        ("0.001", "1m"),
        ("0.0001", "100u"),
        ("1n", "1n"),
        ("1u", "1u"),
        ("1000u", "1m"),
        ("123456789", "123456789"),
        ("1.23456789123", "1234567892n"),
        ("10Mi", "10Mi"),
        ("1000Mi", "1000Mi"),
        ("1023Mi", "1023Mi"),
        ("1Ti", "1Ti"),
        ("1024Gi", "1Ti"),
        ("0.3Gi", "322122547200m"),
        ("5.", "5."),
        ("+5", "+5"),
        (".5", "500m"),
        ("1e0", "1e0"),
        ("1e1", "10"),
        ("100e-1", "10"),
        ("1Ei", "1Ei"),
        ("9223372036854775807", "9223372036854775807"),
        ("1P", "1P"),
        ("1000P", "1E"),
        ("1500Pi", "1500Pi"),
        ("00012", "00012"),
        ("1.10Gi", "1181116006400m"),
        ("1e-3", "1e-3"),
    ];

    #[test]
    fn quantities_are_stored_as_the_real_server_stores_them() {
        for (text, stored) in RECORDED {
            assert_eq!(canonical(text).as_deref(), Ok(stored), "{text}");
        }
    }

    #[test]
    fn what_is_stored_is_canonical() {
        for (_, stored) in RECORDED {
            assert_eq!(canonical(stored).as_deref(), Ok(stored));
        }
    }

    #[test]
    fn w9_bad_quantities_are_refused_in_the_words_of_the_real_server() {
        for text in ["", "x", "1x", "1.2.3", "1 Gi", "1KI", "1e3.5"] {
            assert_eq!(canonical(text), Err(QuantityError::Form), "{text}");
        }
        for text in ["1e", "--1", "1mi", "1K"] {
            assert_eq!(canonical(text), Err(QuantityError::Suffix), "{text}");
        }
    }

    #[test]
    fn amounts_of_different_suffixes_compare() {
        for (text, billionths) in [
            ("1", Some(1_000_000_000)),
            ("1500m", Some(1_500_000_000)),
            ("0.5", Some(500_000_000)),
            ("1Ki", Some(1_024_000_000_000)),
            ("1e3", Some(1_000_000_000_000)),
            ("-2", Some(-2_000_000_000)),
            ("1n", Some(1)),
            ("0.1n", Some(0)),
            ("1Qi", None),
            ("", None),
        ] {
            assert_eq!(super::billionths(text), billionths, "{text}");
        }
    }
}
