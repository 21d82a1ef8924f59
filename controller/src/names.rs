//! Kubernetes' rules for names, checked before a server is asked.

/// What [`is_label`] demands, for messages.
pub(crate) const LABEL: &str = "1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends";

/// What [`is_subdomain`] demands, for messages.
pub(crate) const SUBDOMAIN: &str = "1 to 253 of a-z, 0-9, '-' and '.', with a letter or digit at both \
                                    ends of each part between dots";

/// Whether it can be the name of a namespace (an RFC 1123 label).
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

/// Whether it can be the name of most kinds of objects (an RFC 1123 subdomain).
pub(crate) fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

fn is_part(name: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().last()];
    name.bytes().all(|b| alphanumeric(b) || b == b'-')
        && ends.into_iter().all(|end| end.is_some_and(alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_label_a_subdomain_or_neither() {
        let (most, more) = ("a".repeat(63), "a".repeat(64));
        let long = "a.".repeat(126) + "a";
        let longer = "a.".repeat(126) + "ab";
        for (name, label, subdomain) in [
            ("a", true, true),
            ("0-b", true, true),
            ("a--b", true, true),
            ("a.b", false, true),
            ("a..b", false, false),
            (".a", false, false),
            ("a.", false, false),
            ("a.-b", false, false),
            ("a-.b", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("a/b", false, false),
            ("ä", false, false),
            ("", false, false),
            (&most, true, true),
            (&more, false, true),
            (&long, false, true),
            (&longer, false, false),
        ] {
            assert_eq!(
                (is_label(name), is_subdomain(name)),
                (label, subdomain),
                "{name:?}"
            );
        }
    }
}
