//! Texts of errors without the values that they quote.

use std::iter::Peekable;
use std::str::Chars;

/// How much of a text is looked at, in bytes: what is shown of it is far less.
const LOOKED_AT: usize = 4096;

/// What stands in place of a value.
const GONE: char = '…';

/// Markers after which an API server prints a value as it is.
const VALUE: &str = "value: ";

/// `text` without what may be the content of an object: quoted texts, whatever stands in braces or
/// brackets, and the values in an API server's `Invalid value: 7: must be …`. Class, reason and field
/// paths stay. No longer than 4 KiB.
pub(crate) fn redact(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(LOOKED_AT)];
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '"' => {
                skip_quoted(&mut rest);
                clean.extend(['"', GONE, '"']);
            }
            '`' => {
                rest.by_ref().find(|one| *one == '`');
                clean.extend(['`', GONE, '`']);
            }
            '{' => {
                skip_group(&mut rest);
                clean.extend(['{', GONE, '}']);
            }
            // A path has its index in brackets, right behind a name: `spec.ports[0].name`.
            '[' if !clean.ends_with(|before: char| before.is_alphanumeric() || before == ']') => {
                skip_group(&mut rest);
                clean.extend(['[', GONE, ']']);
            }
            other => {
                clean.push(other);
                let quotes = |first: &char| matches!(first, '"' | '`' | '{' | '[');
                if clean.ends_with(VALUE) && rest.peek().is_some_and(|first| !quotes(first)) {
                    while rest.next_if(|one| *one != ':' && *one != ',').is_some() {}
                    clean.push(GONE);
                }
            }
        }
    }
    clean
}

/// Goes past the end of a quoted text.
fn skip_quoted(rest: &mut Peekable<Chars<'_>>) {
    while let Some(next) = rest.next() {
        match next {
            '"' => return,
            '\\' => drop(rest.next()),
            _ => {}
        }
    }
}

/// Goes past the end of a group in braces or brackets, with those in it.
fn skip_group(rest: &mut Peekable<Chars<'_>>) {
    let mut depth = 1_u32;
    while let Some(next) = rest.next() {
        match next {
            '"' => skip_quoted(rest),
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn class_and_path_stay_and_values_go() {
        for (text, expected) in [
            ("connection refused", "connection refused"),
            (
                "the server answered 422 Invalid: Proxy \"a\" is invalid: spec.port: Invalid value: 70000: must be less than 65536",
                "the server answered 422 Invalid: Proxy \"…\" is invalid: spec.port: Invalid value: …: must be less than 65536",
            ),
            (
                "spec.ports[0].name: Invalid value: \"hunter2\": no",
                "spec.ports[0].name: Invalid value: \"…\": no",
            ),
            (
                "Invalid value: {\"password\":\"hun]ter2\",\"x\":[1,{}]}: no",
                "Invalid value: {…}: no",
            ),
            ("one of [hunter2, other]", "one of […]"),
            (
                "invalid type: string \"hun\\\"ter2\", expected u32 at line 1",
                "invalid type: string \"…\", expected u32 at line 1",
            ),
            ("unknown variant `hunter2`", "unknown variant `…`"),
            ("broken off: \"hunter2", "broken off: \"…\""),
            ("Duplicate value: hunter2", "Duplicate value: …"),
            ("can't, won't", "can't, won't"),
            ("", ""),
        ] {
            assert_eq!(redact(text), expected);
        }
        assert!(redact(&"ä".repeat(5_000)).len() <= LOOKED_AT);
    }

    proptest! {
        #[test]
        fn what_is_quoted_is_never_shown(value in "[a-z\"\\\\{}:, \\[\\]]{0,20}", path in "[a-z]{1,8}") {
            let quoted = serde_json::to_string(&format!("hunter2{value}hunter2")).unwrap();
            let text = format!("{path}: Invalid value: {quoted}: no; {{\"a\": {quoted}}}");
            let clean = redact(&text);
            prop_assert!(!clean.contains("hunter2"), "{}", clean);
            prop_assert!(clean.starts_with(&path));
        }
    }
}
