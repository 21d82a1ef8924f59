//! Syntax of names, label keys and label values; each check lists what is wrong.

/// Problems of a DNS label of at most 63 bytes (RFC 1123).
pub(crate) fn dns_label_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63));
    }
    if !is_dns_label(text) {
        if is_dns_subdomain(text) {
            problems.push("must not contain dots".to_owned());
        } else {
            problems.push(format!(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
                 or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  \
                 or '123-abc', regex used for validation is '{DNS_LABEL}')"
            ));
        }
    }
    problems
}

/// Problems of a DNS label that starts with a letter, of at most 63 bytes (RFC 1035).
pub(crate) fn dns_1035_label_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63));
    }
    if !(is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())) {
        problems.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start \
             with an alphabetic character, and end with an alphanumeric character (e.g. \
             'my-name',  or 'abc-123', regex used for validation is \
             '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

/// Problems of a DNS subdomain of at most 253 bytes (RFC 1123).
pub(crate) fn dns_subdomain_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push(too_long(253));
    }
    if !is_dns_subdomain(text) {
        problems.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is '{DNS_LABEL}(\\.{DNS_LABEL})*')"
        ));
    }
    problems
}

/// Problems of a label or annotation key: `[DNS subdomain/]name`.
pub(crate) fn label_key_problems(key: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                problems.extend(
                    dns_subdomain_problems(prefix)
                        .into_iter()
                        .map(|p| format!("prefix part {p}")),
                );
            }
            *name
        }
        _ => {
            problems.push(format!(
                "a valid label key {QUALIFIED_NAME_RULE} with an optional DNS subdomain prefix \
                 and '/' (e.g. 'example.com/MyName')"
            ));
            return problems;
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push(format!("name part {}", too_long(63)));
    }
    if !is_label_text(name) {
        problems.push(format!("name part {QUALIFIED_NAME_RULE}"));
    }
    problems
}

/// Problems of a label value: at most 63 bytes, may be empty.
pub(crate) fn label_value_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > 63 {
        problems.push(too_long(63));
    }
    if !value.is_empty() && !is_label_text(value) {
        problems.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  \
             or 'my_value',  or '12345', regex used for validation is \
             '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

const QUALIFIED_NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and \
     must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
     '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    spans(text, alphanumeric, |b| alphanumeric(b) || b == b'-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn is_label_text(text: &str) -> bool {
    spans(
        text,
        |b| b.is_ascii_alphanumeric(),
        |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'),
    )
}

/// Not empty, `edge` at both ends, `inner` throughout.
fn spans(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, middle @ .., last] => {
            edge(*first) && edge(*last) && middle.iter().all(|b| inner(*b))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_m5_names_and_labels_are_checked() {
        let label = ["a", "a-b", "0a", &"a".repeat(63)];
        let bad_label = ["", "-a", "a-", "A", "a_b", &"a".repeat(64)];
        for text in label {
            assert!(dns_label_problems(text).is_empty(), "{text}");
        }
        for text in bad_label {
            assert!(!dns_label_problems(text).is_empty(), "{text}");
        }
        assert_eq!(dns_label_problems("a.b"), ["must not contain dots"]);
        assert!(dns_1035_label_problems("a0").is_empty());
        assert!(!dns_1035_label_problems("0a").is_empty());
        assert!(dns_subdomain_problems("a.b-c.d").is_empty());
        for text in ["a..b", ".a", "Bad_Name"] {
            assert!(!dns_subdomain_problems(text).is_empty(), "{text}");
        }
        for key in ["a", "A.b_c", "x.io/a", "app.kubernetes.io/name"] {
            assert!(label_key_problems(key).is_empty(), "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "UP.io/a", "a b"] {
            assert!(!label_key_problems(key).is_empty(), "{key}");
        }
        for value in ["", "a", "A_b.c"] {
            assert!(label_value_problems(value).is_empty(), "{value}");
        }
        for value in ["-a", "a b", &"a".repeat(64)] {
            assert!(!label_value_problems(value).is_empty(), "{value}");
        }
    }
}
