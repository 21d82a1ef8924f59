//! Regular expressions in the syntax of the real server's language (RE2).
//!
//! The `regex` crate differs in that its Perl classes and word boundaries know all of Unicode,
//! and that `[`, `&` and `~` mean something within a class.

use regex::Regex;

/// Compiles an RE2 expression.
///
/// # Errors
/// What is wrong with it, in the words of the engine.
pub(super) fn compile(source: &str) -> Result<Regex, String> {
    Regex::new(&translate(source)).map_err(|error| error.to_string())
}

/// The same expression in the engine's syntax.
fn translate(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut chars = source.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('Q') if !in_class => quoted(&mut chars, &mut out),
                Some(escaped) => push_escape(escaped, in_class, &mut out),
                None => out.push('\\'),
            },
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // A bracket that closes nothing stands for itself.
                if chars.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '[' if chars.peek() == Some(&':') => {
                // A named class such as [:alpha:] ends with its own bracket.
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// Takes characters up to `\E` as they are.
fn quoted(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) {
    let mut literal = String::new();
    while let Some(c) = chars.next() {
        if c == '\\' && chars.next_if_eq(&'E').is_some() {
            break;
        }
        literal.push(c);
    }
    out.push_str(&regex::escape(&literal));
}

fn push_escape(escaped: char, in_class: bool, out: &mut String) {
    match escaped {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str("[\\t\\n\\f\\r ]"),
        'S' => out.push_str("[^\\t\\n\\f\\r ]"),
        'b' if !in_class => out.push_str("(?-u:\\b)"),
        other => {
            out.push('\\');
            out.push(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_patterns_mean_what_they_mean_in_re2() {
        let cases: [(&str, &[&str], &[&str]); 11] = [
            (r"^\d+$", &["12"], &["٣", "a"]),
            (r"^\w+$", &["a_1"], &["é", "a-b"]),
            (r"^\s$", &[" ", "\t"], &["\u{a0}", "\u{b}"]),
            (r"^[\w-]+$", &["a-b"], &["é"]),
            (r"^[^\d]$", &["a", "٣"], &["1"]),
            (r"[/\s\[\]]", &["a/b", "a b", "[::1]"], &["a.b"]),
            ("^[[]$", &["["], &["]"]),
            ("^[]a]$", &["]", "a"], &["["]),
            ("^[a&&b]$", &["a", "&", "b"], &["c"]),
            ("^[[:alpha:]]+$", &["ab"], &["1"]),
            (r"^\Qa.b\E$", &["a.b"], &["axb"]),
        ];
        for (source, matching, other) in cases {
            let regex = compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
            for text in matching {
                assert!(regex.is_match(text), "{source}: {text}");
            }
            for text in other {
                assert!(!regex.is_match(text), "{source}: {text}");
            }
        }
        for bad in ["(", "a{2,1}", "[z-a]", r"(?=a)", "\\"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
    }
}
