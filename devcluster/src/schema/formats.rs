//! Formats of strings that schemas may demand.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine as _;
use k8s_openapi::jiff::civil::Date;
use regex::Regex;

/// Whether a format is checked on values of a type; all others are taken as absent.
pub(super) fn is_checked(format: &str, type_name: &str) -> bool {
    match type_name {
        "" | "string" => STRING_FORMATS.contains(&normalize(format).as_str()),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Whether `text` has the format; formats that are not about strings hold for all.
pub(super) fn holds(format: &str, text: &str) -> bool {
    match normalize(format).as_str() {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_request_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => UUID.is_match(text),
        "uuid3" => UUID3.is_match(text),
        "uuid4" => UUID4.is_match(text),
        "uuid5" => UUID5.is_match(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => SSN.is_match(text),
        "hexcolor" => HEX_COLOR.is_match(text),
        "rgbcolor" => RGB_COLOR.is_match(text),
        "byte" => {
            !text.is_empty()
                && base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .is_ok()
        }
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => duration_nanos(text).is_some(),
        "k8sshortname" => super::names::dns_label_problems(text).is_empty(),
        "k8slongname" => super::names::dns_subdomain_problems(text).is_empty(),
        _ => true,
    }
}

/// Nanoseconds of a duration in Go's form (`1h2m0.5s`) or with spelt units (`2 days`).
pub(super) fn duration_nanos(text: &str) -> Option<i64> {
    go_duration_nanos(text).or_else(|| spelt_duration_nanos(text))
}

const STRING_FORMATS: [&str; 27] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "k8sshortname",
    "k8slongname",
    "",
];

fn normalize(format: &str) -> String {
    format.replace('-', "")
}

macro_rules! regex {
    ($name:ident, $source:expr) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($source).expect("a constant that compiles"));
    };
}

regex!(
    UUID,
    r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"
);
regex!(
    UUID3,
    r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"
);
regex!(
    UUID4,
    r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"
);
regex!(
    UUID5,
    r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"
);
regex!(SSN, r"^\d{3}[- ]?\d{2}[- ]?\d{4}$");
regex!(HEX_COLOR, r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$");
regex!(
    RGB_COLOR,
    r"^rgb\(\s*(\d{1,2}|1\d\d|2[0-4]\d|25[0-5])(\s*,\s*(\d{1,2}|1\d\d|2[0-4]\d|25[0-5])){2}\s*\)$"
);
regex!(
    CREDIT_CARD,
    r"^(4\d{12}(\d{3})?|5[1-5]\d{14}|6(011|5\d\d)\d{12}|3[47]\d{13}|3(0[0-5]|[68]\d)\d{11}|(2131|1800|35\d{3})\d{11})$"
);
regex!(
    TIME,
    r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$"
);
regex!(SPELT_DURATION, r"(\d+)\s*([A-Za-zµ]+)");

fn is_date(text: &str) -> bool {
    let shape = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    shape && text.parse::<Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let Some((date, rest)) = lower.split_once('t') else {
        return false;
    };
    let time = rest.split('t').next().unwrap_or_default();
    is_date(date)
        && TIME
            .captures(time)
            .is_some_and(|parts| &parts[1] <= "23" && &parts[2] <= "59" && &parts[3] <= "59")
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let Some(length) = length.parse::<u8>().ok().filter(|_| digits) else {
        return false;
    };
    (address.parse::<Ipv4Addr>().is_ok() && length <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && length <= 128)
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, n| part.len() == n && part.bytes().all(|b| b.is_ascii_hexdigit());
    let groups = |separator, digits, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len()) && parts.iter().all(|part| hex(part, digits))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

/// As a request line would carry it: absolute, or a path from the root.
fn is_request_uri(text: &str) -> bool {
    let clean = !text.is_empty() && !text.chars().any(|c| c.is_control() || c == ' ');
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.is_empty()
            && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    clean && (text.starts_with('/') || scheme)
}

fn is_email(text: &str) -> bool {
    let address = match (text.rfind('<'), text.strip_suffix('>')) {
        (Some(open), Some(_)) => &text[open + 1..text.len() - 1],
        _ => text.trim(),
    };
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        let plain = |part: &str, extra: &str| {
            !part.is_empty()
                && part.chars().all(|c| {
                    c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~.".contains(c) || extra.contains(c)
                })
                && !part.starts_with('.')
                && !part.ends_with('.')
                && !part.contains("..")
        };
        plain(local, "") && plain(domain, "[]:")
    })
}

fn is_hostname(text: &str) -> bool {
    let labels: Vec<&str> = text.split('.').collect();
    let label = |part: &str| {
        (1..=63).contains(&part.len())
            && part.chars().all(|c| c.is_alphanumeric() || c == '-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    let top = |part: &str| part.chars().count() >= 2 && part.chars().all(char::is_alphabetic);
    text.len() <= 255
        && labels.iter().all(|part| label(part))
        && (labels.len() == 1 || labels.last().is_some_and(|part| top(part)))
}

fn digits(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = digits(text);
    let values: Vec<u32> = text
        .chars()
        .enumerate()
        .filter_map(|(at, c)| {
            if at == 9 && c == 'X' {
                Some(10)
            } else {
                c.to_digit(10)
            }
        })
        .collect();
    let sum: u32 = values
        .iter()
        .zip(1u32..)
        .map(|(digit, weight)| digit * weight)
        .sum();
    text.len() == 10 && values.len() == 10 && sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let text = digits(text);
    let values: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let sum: u32 = values
        .iter()
        .zip([1, 3].iter().cycle())
        .map(|(d, w)| d * w)
        .sum();
    text.len() == 13 && values.len() == 13 && sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let number: String = text.chars().filter(char::is_ascii_digit).collect();
    let luhn: u32 = number
        .chars()
        .rev()
        .filter_map(|c| c.to_digit(10))
        .enumerate()
        .map(|(at, digit)| match (at % 2, digit * 2) {
            (0, _) => digit,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        })
        .sum();
    CREDIT_CARD.is_match(&number) && luhn.is_multiple_of(10)
}

fn go_duration_nanos(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total: i128 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let nanos: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total += scaled(number, nanos)?;
        rest = tail;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// A decimal number times `unit`, the fraction cut.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: i128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let fraction = &fraction[..fraction.len().min(18)];
    let part = if fraction.is_empty() {
        0
    } else {
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        fraction.parse::<i128>().ok()? * unit / scale
    };
    whole.checked_mul(unit)?.checked_add(part)
}

fn spelt_duration_nanos(text: &str) -> Option<i64> {
    let mut total: i64 = 0;
    let mut found = false;
    for parts in SPELT_DURATION.captures_iter(text) {
        let count: i64 = parts[1].parse().ok()?;
        let unit = parts[2].to_lowercase();
        let nanos = match unit.as_str() {
            "ns" | "nano" => 1,
            u if u.starts_with("nanosecond") => 1,
            "us" | "µs" | "micro" => 1_000,
            u if u.starts_with("microsecond") => 1_000,
            "ms" | "milli" => 1_000_000,
            u if u.starts_with("millisecond") => 1_000_000,
            "s" | "sec" => 1_000_000_000,
            u if u.starts_with("second") => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            u if u.starts_with("minute") => 60_000_000_000,
            "h" | "hr" => 3_600_000_000_000,
            u if u.starts_with("hour") => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            u if u.starts_with("day") => 86_400_000_000_000,
            "w" | "wk" => 604_800_000_000_000,
            u if u.starts_with("week") => 604_800_000_000_000,
            _ => continue,
        };
        found = true;
        total = total.wrapping_add(count.wrapping_mul(nanos));
    }
    found.then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_formats_accept_and_refuse() {
        let cases: [(&str, &[&str], &[&str]); 14] = [
            ("date", &["2024-02-29"], &["2023-02-29", "2024-2-9", ""]),
            (
                "date-time",
                &["2024-01-01T00:00:00Z", "2024-01-01t23:59:59.123+01:00"],
                &["2024-01-01", "2024-01-01T24:00:00Z", "2024-01-01T00:00:00"],
            ),
            (
                "duration",
                &["1h30m", "0", "-1.5s", "2 days", "22 ns"],
                &["", "x", "1"],
            ),
            ("ipv4", &["10.0.0.1"], &["10.0.0", "::1"]),
            ("ipv6", &["::1", "fe80::1"], &["10.0.0.1", "zz"]),
            (
                "cidr",
                &["10.0.0.0/8", "::/0"],
                &["10.0.0.0", "10.0.0.0/33", "x/1"],
            ),
            ("uuid", &["00000000-0000-0000-0000-000000000000"], &["x"]),
            ("uri", &["http://a.b/c?d", "/a"], &["a b", "", "a"]),
            ("byte", &["YQ=="], &["YQ=", "*"]),
            ("email", &["a@b.c"], &["a", "@b"]),
            (
                "hostname",
                &["a.example.com", "localhost"],
                &["-a", "a..b", "a.b1"],
            ),
            ("mac", &["00:11:22:33:44:55", "0011.2233.4455"], &["00:11"]),
            ("isbn", &["0321751043", "978-0321751041"], &["0321751044"]),
            ("k8s-short-name", &["a-b"], &["a.b", "A"]),
        ];
        for (format, good, bad) in cases {
            assert!(is_checked(format, "string"), "{format}");
            for text in good {
                assert!(holds(format, text), "{format}: {text}");
            }
            for text in bad {
                assert!(!holds(format, text), "{format}: {text}");
            }
        }
        assert!(!is_checked("made-up", "string"));
        assert!(!is_checked("date", "object"));
    }
}
