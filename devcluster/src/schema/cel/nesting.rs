//! How deep an expression nests, told from its text.
//!
//! Parser, checks and evaluation descend once for each operator of a chain such as `1 + 1 + …`.
//! The parser's own limit counts brackets alone, and a stack that overflows ends the process.

/// The deepest expression that is compiled; the real server's parser has a limit of the same order.
pub(super) const LIMIT: usize = 150;

/// Text that is no part of the expression's structure.
#[derive(Clone, Copy)]
enum Opaque {
    Comment,
    Text {
        quote: u8,
        is_long: bool,
        is_raw: bool,
    },
}

/// An upper bound of the depth of the syntax tree of `source`.
///
/// Each bracket counts, and each operator of the chain that it stands in; `&&`, `||`, `?`, `:`
/// and `,` begin new chains, since the parser balances those or reads their parts side by side.
pub(super) fn depth(source: &str) -> usize {
    let bytes = source.as_bytes();
    let mut chains = vec![0_usize];
    let mut deepest = 0;
    let mut opaque = None;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if let Some(inside) = opaque {
            let (step, ended) = skip(inside, rest);
            at += step;
            if ended {
                opaque = None;
            }
            continue;
        }
        let mut step = 1;
        match rest {
            [b'/', b'/', ..] => opaque = Some(Opaque::Comment),
            [quote @ (b'"' | b'\''), ..] => {
                let is_long = rest.starts_with(&[*quote; 3]);
                let before = at.checked_sub(1).map(|before| bytes[before]);
                opaque = Some(Opaque::Text {
                    quote: *quote,
                    is_long,
                    is_raw: matches!(before, Some(b'r' | b'R')),
                });
                step = if is_long { 3 } else { 1 };
            }
            [b'(' | b'[' | b'{', ..] => {
                grow(&mut chains);
                chains.push(0);
            }
            [b')' | b']' | b'}', ..] if chains.len() > 1 => {
                chains.pop();
            }
            [b'&', b'&', ..] | [b'|', b'|', ..] | [b'?' | b':' | b',', ..] => {
                if let Some(chain) = chains.last_mut() {
                    *chain = 0;
                }
            }
            [
                b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'<' | b'>' | b'=' | b'!',
                ..,
            ] => grow(&mut chains),
            // The operator `in`; a name that begins so counts too, which does no harm.
            [b'i', b'n', ..] => grow(&mut chains),
            _ => {}
        }
        deepest = deepest.max(chains.iter().sum());
        at += step;
    }
    deepest
}

fn grow(chains: &mut [usize]) {
    if let Some(chain) = chains.last_mut() {
        *chain += 1;
    }
}

/// How many bytes to pass over, and whether the text ends with them.
fn skip(opaque: Opaque, rest: &[u8]) -> (usize, bool) {
    match opaque {
        Opaque::Comment => (1, rest[0] == b'\n'),
        Opaque::Text {
            quote,
            is_long,
            is_raw,
        } => match rest {
            [b'\\', _, ..] if !is_raw => (2, false),
            _ if is_long && rest.starts_with(&[quote; 3]) => (3, true),
            [end, ..] if !is_long && *end == quote => (1, true),
            _ => (1, false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_brackets_count_and_what_stands_side_by_side_does_not() {
        let cases = [
            ("true", 0),
            ("1 + 1 + 1 > 2", 3),
            ("self.a.b", 2),
            ("self.a && self.b || self.c", 1),
            ("[1, 2, 3]", 1),
            ("f(g(h(1)))", 3),
            ("self.l.all(x, x > 1 && x < 5)", 4),
            ("'a.b.c.d' + r'\\' + \"\"\"a\".b\"\"\"", 2),
            ("'\\'....' == 1 // a.b.c.d\n + 1", 3),
            ("a in b", 1),
            (")))", 0),
        ];
        for (source, expected) in cases {
            assert_eq!(depth(source), expected, "{source}");
        }
    }

    #[test]
    fn c6_the_deepest_expressions_that_are_compiled_leave_the_stack_whole() {
        let half = LIMIT / 2;
        let deepest = [
            format!("{} > 0", vec!["1"; LIMIT].join("+")),
            format!("self{}", ".a".repeat(LIMIT)),
            format!("self{}", "[0]".repeat(LIMIT)),
            format!("self{}", ".f()".repeat(half)),
            format!("{}1{}", "(1+".repeat(half), ")".repeat(half)),
            format!("{}1{}", "[self.".repeat(half), "]".repeat(half)),
            format!("{}true{}", "f(x, g.".repeat(half), ")".repeat(half)),
            format!("{}true", "self.l.all(x, ".repeat(half / 2)) + &")".repeat(half / 2),
            format!("{}true", "true ? true : ".repeat(2000)),
            format!("{}true", "!".repeat(LIMIT)),
        ];
        // A worker thread of the runtime has this much.
        let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
        let compiled = thread.spawn(move || {
            for source in deepest {
                drop(super::super::parse(&source));
            }
        });
        compiled
            .expect("a thread starts")
            .join()
            .expect("nothing overflows or panics");
    }
}
