//! Cutting the objects out of a list answer while it arrives.

use bytes::{Buf as _, BytesMut};

/// Largest single value that is collected; the storage of real servers ends far below.
pub(crate) const MAX_VALUE: usize = 16 << 20;

/// A complete piece of the answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// An element of `items`.
    Item(&'a [u8]),
    /// Another field of the answer, with its key's quotes taken off.
    Field { key: &'a str, value: &'a [u8] },
}

/// Why an answer is no list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScanError {
    #[error("{found:?} at byte {at}, where {expected} must stand")]
    Unexpected {
        at: usize,
        found: char,
        expected: &'static str,
    },
    #[error("a value of more than {MAX_VALUE} bytes")]
    TooLong,
    #[error("the answer ends after {at} bytes, in the middle of the list")]
    Truncated { at: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    Key,
    Colon,
    Value,
    /// Between elements of `items`.
    Items,
    End,
}

/// Scanner of one JSON object; knows strings and brackets, and nothing else of JSON.
///
/// What it cuts out is checked by the decoder that reads it.
#[derive(Debug)]
pub(crate) struct ListScanner {
    buffer: BytesMut,
    /// Bytes of the buffer that were given out and go with the next call.
    spent: usize,
    /// Next byte to look at.
    position: usize,
    /// Bytes before the buffer.
    before: usize,
    at: At,
    /// Inside a value: its first byte, and what is open.
    open: Option<Open>,
    key: String,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    start: usize,
    depth: u32,
    text: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    /// In no string.
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
    /// A number or literal, which ends before the next delimiter.
    Bare,
}

impl ListScanner {
    pub(crate) fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            spent: 0,
            position: 0,
            before: 0,
            at: At::Begin,
            open: None,
            key: String::new(),
        }
    }

    /// Takes the next bytes of the answer.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next complete part of what arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Part<'_>>, ScanError> {
        self.drop_spent();
        loop {
            if self.open.is_some() {
                let Some(range) = self.end_of_value()? else {
                    return Ok(None);
                };
                match self.at {
                    At::Items => {
                        self.spent = range.end;
                        return Ok(Some(Part::Item(&self.buffer[range])));
                    }
                    At::Key => {
                        let quoted = &self.buffer[range.start..range.end];
                        self.key = String::from_utf8_lossy(quoted).trim_matches('"').to_owned();
                        self.at = At::Colon;
                    }
                    _ => {
                        self.at = At::Key;
                        self.spent = range.end;
                        return Ok(Some(Part::Field {
                            key: &self.key,
                            value: &self.buffer[range],
                        }));
                    }
                }
                continue;
            }
            let Some(&byte) = self.buffer.get(self.position) else {
                return Ok(None);
            };
            match (self.at, byte) {
                (_, b' ' | b'\t' | b'\n' | b'\r') => self.position += 1,
                (At::Begin, b'{') => self.step_to(At::Key),
                (At::Key, b'}') => self.step_to(At::End),
                (At::Key | At::Items, b',') => self.position += 1,
                (At::Key, b'"') => self.open_value(byte),
                (At::Colon, b':') => self.step_to(At::Value),
                (At::Value, b'[') if self.key == "items" => self.step_to(At::Items),
                (At::Items, b']') => self.step_to(At::Key),
                (At::Value, b'}' | b']' | b',' | b':') | (At::Items, b'}' | b':') => {
                    return Err(self.unexpected(byte, "a value"));
                }
                (At::Value | At::Items, _) => self.open_value(byte),
                (At::Begin, _) => return Err(self.unexpected(byte, "{ of a list")),
                (At::Key, _) => return Err(self.unexpected(byte, "a key")),
                (At::Colon, _) => return Err(self.unexpected(byte, "a colon")),
                (At::End, _) => return Err(self.unexpected(byte, "nothing")),
            }
        }
    }

    /// Tells whether the answer was complete.
    pub(crate) fn finish(&self) -> Result<(), ScanError> {
        if self.at == At::End {
            return Ok(());
        }
        Err(ScanError::Truncated {
            at: self.before + self.buffer.len(),
        })
    }

    fn step_to(&mut self, at: At) {
        self.at = at;
        self.position += 1;
    }

    fn unexpected(&self, byte: u8, expected: &'static str) -> ScanError {
        let at = self.before + self.position;
        ScanError::Unexpected {
            at,
            found: char::from(byte),
            expected,
        }
    }

    /// Forgets what was given out. Between values nothing before the position is needed.
    fn drop_spent(&mut self) {
        let spent = match self.open {
            None => self.position,
            Some(open) => open.start.min(self.position),
        };
        debug_assert!(self.spent <= spent);
        self.buffer.advance(spent);
        self.before += spent;
        self.position -= spent;
        self.spent = 0;
        if let Some(open) = &mut self.open {
            open.start -= spent;
        }
    }

    fn open_value(&mut self, first: u8) {
        let (depth, text) = match first {
            b'{' | b'[' => (1, Text::Outside),
            b'"' => (0, Text::Inside),
            _ => (0, Text::Bare),
        };
        self.open = Some(Open {
            start: self.position,
            depth,
            text,
        });
        self.position += 1;
    }

    /// Looks for the end of the open value; keeps its place if more bytes are needed.
    fn end_of_value(&mut self) -> Result<Option<std::ops::Range<usize>>, ScanError> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        let mut end = None;
        while let Some(&byte) = self.buffer.get(self.position) {
            if open.text == Text::Bare {
                if matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r') {
                    end = Some(self.position);
                    break;
                }
                self.position += 1;
                continue;
            }
            self.position += 1;
            match (open.text, byte) {
                (Text::Escaped, _) | (Text::Outside, b'"') => open.text = Text::Inside,
                (Text::Inside, b'\\') => open.text = Text::Escaped,
                (Text::Inside, b'"') => open.text = Text::Outside,
                (Text::Outside, b'{' | b'[') => open.depth += 1,
                (Text::Outside, b'}' | b']') => open.depth -= 1,
                _ => continue,
            }
            if open.depth == 0 && open.text == Text::Outside {
                end = Some(self.position);
                break;
            }
        }
        let start = open.start;
        if end.unwrap_or(self.position) - start > MAX_VALUE {
            return Err(ScanError::TooLong);
        }
        let Some(end) = end else { return Ok(None) };
        self.open = None;
        Ok(Some(start..end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Cut {
        items: Vec<String>,
        fields: Vec<(String, String)>,
    }

    fn scan(pieces: &[&[u8]]) -> Result<Cut, ScanError> {
        let mut scanner = ListScanner::new();
        let mut cut = Cut::default();
        for piece in pieces {
            scanner.push(piece);
            while let Some(part) = scanner.next()? {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                match part {
                    Part::Item(item) => cut.items.push(text(item)),
                    Part::Field { key, value } => cut.fields.push((key.to_owned(), text(value))),
                }
            }
        }
        scanner.finish().map(|()| cut)
    }

    const LIST: &str = r#" {"kind" : "PodList","metadata":{"resourceVersion":"7","items":[1]},
        "items": [ {"a":"}]\"\\"}, {"b":[{},[]]},3 , "x,]", null ] , "n": 12}
    "#;

    fn expected() -> Cut {
        let text = |text: &str| text.to_owned();
        Cut {
            items: vec![
                text(r#"{"a":"}]\"\\"}"#),
                text(r#"{"b":[{},[]]}"#),
                text("3"),
                text(r#""x,]""#),
                text("null"),
            ],
            fields: vec![
                (text("kind"), text(r#""PodList""#)),
                (
                    text("metadata"),
                    text(r#"{"resourceVersion":"7","items":[1]}"#),
                ),
                (text("n"), text("12")),
            ],
        }
    }

    #[test]
    fn a_list_may_be_cut_at_every_byte() {
        let bytes = LIST.as_bytes();
        for at in 0..=bytes.len() {
            assert_eq!(
                scan(&[&bytes[..at], &bytes[at..]]),
                Ok(expected()),
                "cut at {at}"
            );
        }
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(scan(&single), Ok(expected()));
    }

    #[test]
    fn a_list_that_breaks_off_is_an_error_at_every_byte() {
        let bytes = LIST.trim_end().as_bytes();
        for at in 0..bytes.len() {
            assert!(
                matches!(scan(&[&bytes[..at]]), Err(ScanError::Truncated { .. })),
                "at {at}"
            );
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_place() {
        let unexpected = |at, found, expected| {
            Err(ScanError::Unexpected {
                at,
                found,
                expected,
            })
        };
        assert_eq!(scan(&[b"[1]"]), unexpected(0, '[', "{ of a list"));
        assert_eq!(scan(&[b"{1"]), unexpected(1, '1', "a key"));
        assert_eq!(scan(&[b"{\"a\" 1"]), unexpected(5, '1', "a colon"));
        assert_eq!(scan(&[b"{\"a\":}"]), unexpected(5, '}', "a value"));
        assert_eq!(scan(&[b"{}x"]), unexpected(2, 'x', "nothing"));
        assert_eq!(
            scan(&[b"404 page not found"]),
            unexpected(0, '4', "{ of a list")
        );
    }

    #[test]
    fn memory_is_bounded_by_the_longest_value() {
        let mut scanner = ListScanner::new();
        scanner.push(b"{\"items\":[\"");
        assert_eq!(scanner.next(), Ok(None));
        let chunk = vec![b'x'; 1 << 20];
        let outcome = (0..17).try_for_each(|_| {
            scanner.push(&chunk);
            scanner.next().map(|_| ())
        });
        assert_eq!(outcome, Err(ScanError::TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_cuts_end_the_same_way(
            bytes in proptest::collection::vec(
                prop_oneof![
                    8 => prop::sample::select(br#"{}[]":,\ e1items"#.to_vec()),
                    1 => any::<u8>(),
                ],
                0..80,
            ),
            cuts in proptest::collection::vec(0..80_usize, 0..6),
        ) {
            let whole = scan(&[&bytes]);
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            pieces.push(&bytes[from..]);
            prop_assert_eq!(scan(&pieces), whole);
        }
    }
}
