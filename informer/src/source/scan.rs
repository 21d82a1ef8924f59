//! Cutting the objects out of a list answer while it arrives.

use bytes::{Bytes, BytesMut};

use super::structure::Nesting;

/// Largest single value that is collected; the storage of real servers ends far below.
pub(crate) const MAX_VALUE: usize = 16 << 20;

/// How much of a value is kept that is longer; in it stands whose it is.
pub(crate) const KEPT: usize = 64 << 10;

/// A value that was cut out of an answer: whole, or the beginning of one that is too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) bytes: Bytes,
    /// Length of the whole value.
    pub(crate) length: usize,
}

impl Text {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        let length = bytes.len();
        Self { bytes, length }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.length == self.bytes.len()
    }
}

/// A complete piece of the answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// An element of `items`.
    Item(Text),
    /// Another field of the answer, with its key's quotes taken off.
    Field { key: String, value: Bytes },
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
/// What it cuts out is checked by the decoder that reads it. A value that arrived in one chunk is
/// a part of that chunk, not a copy.
#[derive(Debug)]
pub(crate) struct ListScanner {
    chunk: Bytes,
    /// Next byte of the chunk to look at.
    position: usize,
    /// Bytes before the chunk.
    before: usize,
    at: At,
    /// Inside a value.
    open: Option<Open>,
    /// The open value's first byte in this chunk.
    start: usize,
    /// What stood of the open value in the chunks before.
    held: BytesMut,
    /// How much of the open value was left out behind what is held, as it is too long.
    left_out: usize,
    key: String,
    has_items: bool,
}

/// How the end of an open value is found.
#[derive(Clone, Copy, Debug)]
enum Open {
    Brackets(Nesting),
    Text {
        /// After a backslash.
        escaped: bool,
    },
    /// A number or literal, which ends before the next delimiter.
    Bare,
}

impl Open {
    /// How many of the next bytes belong to the value, if it ends among them.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Brackets(nesting) => nesting.end(bytes),
            Self::Text { escaped } => {
                let end = bytes.iter().position(|byte| {
                    let ends = *byte == b'"' && !*escaped;
                    *escaped = *byte == b'\\' && !*escaped;
                    ends
                })?;
                Some(end + 1)
            }
            Self::Bare => bytes
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r')),
        }
    }
}

impl ListScanner {
    pub(crate) fn new() -> Self {
        Self {
            chunk: Bytes::new(),
            position: 0,
            before: 0,
            at: At::Begin,
            open: None,
            start: 0,
            held: BytesMut::new(),
            left_out: 0,
            key: String::new(),
            has_items: false,
        }
    }

    /// Whether an array of items has begun.
    pub(crate) fn has_items(&self) -> bool {
        self.has_items
    }

    /// Takes the next bytes of the answer, after [`ListScanner::next`] said that it needs them.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert_eq!(self.position, self.chunk.len());
        if self.open.is_some() {
            self.held.extend_from_slice(&self.chunk[self.start..]);
        }
        self.before += self.chunk.len();
        self.chunk = chunk;
        self.position = 0;
        self.start = 0;
    }

    /// The next complete part of what arrived; `None` when more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Part>, ScanError> {
        loop {
            if self.open.is_some() {
                let Some(value) = self.end_of_value()? else {
                    return Ok(None);
                };
                match self.at {
                    At::Items => return Ok(Some(Part::Item(value))),
                    At::Key => {
                        self.key = String::from_utf8_lossy(&value.bytes)
                            .trim_matches('"')
                            .to_owned();
                        self.at = At::Colon;
                    }
                    _ => {
                        self.at = At::Key;
                        let key = std::mem::take(&mut self.key);
                        let value = value.bytes;
                        return Ok(Some(Part::Field { key, value }));
                    }
                }
                continue;
            }
            let Some(&byte) = self.chunk.get(self.position) else {
                return Ok(None);
            };
            match (self.at, byte) {
                (_, b' ' | b'\t' | b'\n' | b'\r') => self.position += 1,
                (At::Begin, b'{') => self.step_to(At::Key),
                (At::Key, b'}') => self.step_to(At::End),
                (At::Key | At::Items, b',') => self.position += 1,
                (At::Key, b'"') => self.open_value(byte),
                (At::Colon, b':') => self.step_to(At::Value),
                (At::Value, b'[') if self.key == "items" => {
                    self.has_items = true;
                    self.step_to(At::Items);
                }
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
            at: self.before + self.chunk.len(),
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

    fn open_value(&mut self, first: u8) {
        self.open = Some(match first {
            b'{' | b'[' => Open::Brackets(Nesting::opened()),
            b'"' => Open::Text { escaped: false },
            _ => Open::Bare,
        });
        self.start = self.position;
        self.position += 1;
    }

    /// The open value, if its end has arrived. Of an item that is too long only the beginning is
    /// kept, and the rest passed over.
    fn end_of_value(&mut self) -> Result<Option<Text>, ScanError> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        let found = open.end(&self.chunk[self.position..]);
        self.position = found.map_or(self.chunk.len(), |length| self.position + length);
        let here = self.start..self.position;
        let length = self.held.len() + self.left_out + here.len();
        if length > MAX_VALUE {
            if self.at != At::Items {
                return Err(ScanError::TooLong);
            }
            let room = KEPT.saturating_sub(self.held.len()).min(here.len());
            let kept = self.held.len().min(KEPT);
            let mut head = BytesMut::with_capacity(KEPT);
            head.extend_from_slice(&self.held[..kept]);
            head.extend_from_slice(&self.chunk[here.start..here.start + room]);
            self.left_out = length - head.len();
            self.held = head;
            self.start = self.position;
        }
        if found.is_none() {
            return Ok(None);
        }
        self.open = None;
        self.left_out = 0;
        let here = self.start..self.position;
        let bytes = if self.held.is_empty() {
            self.chunk.slice(here)
        } else {
            self.held.extend_from_slice(&self.chunk[here]);
            self.held.split().freeze()
        };
        Ok(Some(Text { bytes, length }))
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
            scanner.push(Bytes::copy_from_slice(piece));
            while let Some(part) = scanner.next()? {
                let text = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned();
                match part {
                    Part::Item(item) => cut.items.push(text(item.bytes)),
                    Part::Field { key, value } => cut.fields.push((key, text(value))),
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
    fn i6_an_item_that_is_too_long_is_passed_over_but_for_its_beginning() {
        for (begin, end, length) in [("\"", "\"", 2), ("{\"k\":\"", "\"}", 8)] {
            let mut scanner = ListScanner::new();
            let mut items = Vec::new();
            let chunk = Bytes::from(vec![b'x'; 1 << 20]);
            let head = format!("{{\"items\":[1,{begin}");
            let pieces = [Bytes::from(head)]
                .into_iter()
                .chain(std::iter::repeat_n(chunk, 40))
                .chain([Bytes::from(format!("{end},2]}}"))]);
            for piece in pieces {
                scanner.push(piece);
                while let Some(part) = scanner.next().unwrap() {
                    let Part::Item(item) = part else {
                        panic!("a field among items")
                    };
                    items.push(item);
                }
                assert!(scanner.held.len() <= MAX_VALUE, "memory is bounded");
            }
            scanner.finish().unwrap();
            assert_eq!(items.len(), 3);
            assert_eq!(
                (&items[0].bytes[..], &items[2].bytes[..]),
                (&b"1"[..], &b"2"[..])
            );
            assert!(items[0].is_whole() && items[2].is_whole() && !items[1].is_whole());
            assert_eq!(items[1].length, (40 << 20) + length);
            assert_eq!(items[1].bytes.len(), KEPT);
            assert!(items[1].bytes.starts_with(begin.as_bytes()));
        }
    }

    #[test]
    fn another_field_that_is_too_long_ends_the_list() {
        let mut scanner = ListScanner::new();
        scanner.push(Bytes::from_static(b"{\"metadata\":\""));
        assert_eq!(scanner.next(), Ok(None));
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        let outcome = (0..17).try_for_each(|_| {
            scanner.push(chunk.clone());
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
