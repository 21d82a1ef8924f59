//! How long the arrays of a text are, found before it is read.

use std::cell::Cell;

use super::structure::for_each_mark;

/// Depth below which nobody reads either.
const MAX_DEPTH: usize = 128;

/// The arrays of one text in the order of their beginnings, and how far a reader has come.
#[derive(Debug, Default)]
pub(super) struct Arrays {
    arrays: Vec<Array>,
    next: Cell<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Array {
    length: usize,
    /// Number of arrays in it, itself included.
    inside: usize,
}

/// A bracket that is open, as seen from what stands in it.
#[derive(Clone, Copy)]
enum Open {
    Object,
    Array {
        /// Its number.
        number: usize,
        begin: usize,
    },
}

impl Arrays {
    /// The arrays of `text`, as far as its brackets fit together.
    pub(super) fn of(text: &[u8]) -> Self {
        let mut arrays: Vec<Array> = Vec::with_capacity(32);
        let mut open: Vec<Open> = Vec::with_capacity(16);
        for_each_mark(text, |at| {
            match (text[at], open.last()) {
                (b'{', _) if open.len() < MAX_DEPTH => open.push(Open::Object),
                (b'[', _) if open.len() < MAX_DEPTH => {
                    open.push(Open::Array {
                        number: arrays.len(),
                        begin: at,
                    });
                    arrays.push(Array {
                        length: 0,
                        inside: 1,
                    });
                }
                (b',', Some(Open::Object)) => {}
                (b',', Some(Open::Array { number, .. })) => arrays[*number].length += 1,
                (b'}', Some(Open::Object)) => drop(open.pop()),
                (b']', Some(&Open::Array { number, begin })) => {
                    let inside = arrays.len() - number;
                    let array = &mut arrays[number];
                    array.inside = inside;
                    // One more element than commas, if there is any.
                    array.length += usize::from(at > begin + 1);
                    open.pop();
                }
                _ => return false,
            }
            true
        });
        Self {
            arrays,
            next: Cell::new(0),
        }
    }

    /// Length of the array that a reader comes to now.
    pub(super) fn next_length(&self) -> Option<usize> {
        let array = self.arrays.get(self.next.get())?;
        self.next.set(self.next.get() + 1);
        Some(array.length)
    }

    /// A reader passes over `value` with all that is in it.
    pub(super) fn pass_over(&self, value: &[u8]) {
        let inside = match value.first() {
            Some(b'[') => self
                .arrays
                .get(self.next.get())
                .map_or(0, |array| array.inside),
            Some(b'{') => {
                let mut inside = 0;
                for_each_mark(value, |at| {
                    inside += usize::from(value[at] == b'[');
                    true
                });
                inside
            }
            _ => 0,
        };
        self.next.set(self.next.get() + inside);
    }

    /// Whether no array is left.
    pub(super) fn is_spent(&self) -> bool {
        self.next.get() >= self.arrays.len()
    }

    /// A reader has lost its place.
    pub(super) fn lose(&self) {
        self.next.set(self.arrays.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// The same out of a parsed text.
    fn lengths(value: &Value, found: &mut Vec<Array>) {
        match value {
            Value::Array(elements) => {
                let number = found.len();
                found.push(Array {
                    length: elements.len(),
                    inside: 0,
                });
                elements.iter().for_each(|element| lengths(element, found));
                found[number].inside = found.len() - number;
            }
            Value::Object(fields) => fields.values().for_each(|value| lengths(value, found)),
            _ => {}
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            r#"[a"\\\[\]{},: é]{0,40}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 60, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map("[a\"\\\\,]{0,6}", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_outline_knows_the_length_of_each_array(value in any_value()) {
            let mut expected = Vec::new();
            lengths(&value, &mut expected);
            prop_assert_eq!(Arrays::of(value.to_string().as_bytes()).arrays, expected);
        }

        #[test]
        fn any_bytes_have_an_outline(bytes in proptest::collection::vec(
            prop_oneof![6 => prop::sample::select(br#"{[}]"\,:a"#.to_vec()), 1 => any::<u8>()],
            0..300,
        )) {
            let arrays = Arrays::of(&bytes);
            while !arrays.is_spent() {
                arrays.pass_over(b"[");
            }
        }
    }

    #[test]
    fn what_nests_too_deep_has_an_outline_down_to_where_it_does() {
        let arrays = Arrays::of("[".repeat(100_000).as_bytes());
        assert_eq!(arrays.arrays.len(), MAX_DEPTH);
    }
}
