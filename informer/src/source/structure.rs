//! Strings and brackets of JSON text, 64 bytes at a time.
//!
//! Finding where a value ends is on the way of every byte of a list, and a loop over single bytes
//! is slow mostly for its branches. Here a block of text becomes one bit per byte for each kind of
//! character, and strings are masked out of all of them at once.

use wide::u8x16;

const BLOCK: usize = 64;
const LANES: usize = 16;

/// What one block leaves for the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Carry {
    in_string: bool,
    /// The next byte follows a backslash.
    escaped: bool,
}

/// One bit per byte of `block` that equals `byte` once the bits of `fold` are set in both.
fn equal(block: &[u8; BLOCK], fold: u8, byte: u8) -> u64 {
    let (fold, byte) = (u8x16::splat(fold), u8x16::splat(byte));
    let (lanes, _) = block.as_chunks::<LANES>();
    lanes.iter().zip(0..).fold(0, |bits, (lane, at)| {
        let same = (u8x16::new(*lane) | fold).simd_eq(byte);
        bits | u64::from(same.to_bitmask()) << (at * LANES)
    })
}

/// For each bit: whether the number of bits up to and including it is odd.
fn parity_so_far(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

/// Brackets, both sorts alike: the two pairs differ in one bit alone.
fn opening(block: &[u8; BLOCK]) -> u64 {
    equal(block, b'{' ^ b'[', b'{')
}

fn closing(block: &[u8; BLOCK]) -> u64 {
    equal(block, b'}' ^ b']', b'}')
}

impl Carry {
    /// Which bytes stand in strings, of the first `length` of `block`; those behind must be spaces.
    fn in_strings(&mut self, block: &[u8; BLOCK], length: usize) -> u64 {
        let escaped = self.escaped_bytes(equal(block, 0, b'\\'), length);
        let quotes = equal(block, 0, b'"') & !escaped;
        let inside = parity_so_far(quotes) ^ u64::from(self.in_string).wrapping_neg();
        self.in_string = inside >> (BLOCK - 1) == 1;
        inside
    }

    fn escaped_bytes(&mut self, backslashes: u64, length: usize) -> u64 {
        let mut escaped = u64::from(std::mem::take(&mut self.escaped));
        let mut left = backslashes & !escaped;
        while left != 0 {
            let at = left.trailing_zeros();
            if at as usize + 1 == length {
                self.escaped = true;
                break;
            }
            escaped |= 2 << at;
            left &= !(3 << at);
        }
        escaped
    }
}

/// Calls `visit` with the place of each bracket and comma that stands in no string, until it says
/// that it has seen enough.
pub(super) fn for_each_mark(text: &[u8], mut visit: impl FnMut(usize) -> bool) {
    let mut carry = Carry::default();
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let mut last = [b' '; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    let whole = blocks.iter().map(|block| (block, BLOCK));
    for (number, (block, length)) in whole.chain([(&last, rest.len())]).enumerate() {
        let outside = !carry.in_strings(block, length);
        let mut left = (opening(block) | closing(block) | equal(block, 0, b',')) & outside;
        while left != 0 {
            if !visit(number * BLOCK + left.trailing_zeros() as usize) {
                return;
            }
            left &= left - 1;
        }
    }
}

/// Looks for the bracket that closes an open one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    /// Brackets that are open.
    depth: u32,
    carry: Carry,
}

impl Nesting {
    /// Behind an opening bracket.
    pub(super) fn opened() -> Self {
        Self {
            depth: 1,
            carry: Carry::default(),
        }
    }

    /// How many of the next bytes belong to the value, if it ends among them. Otherwise all of
    /// them do, and the search goes on with those that follow.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        for (number, block) in blocks.iter().enumerate() {
            if let Some(at) = self.end_in(block, BLOCK) {
                return Some(number * BLOCK + at);
            }
        }
        if rest.is_empty() {
            return None;
        }
        let mut block = [b' '; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        let at = self.end_in(&block, rest.len())?;
        Some(bytes.len() - rest.len() + at)
    }

    fn end_in(&mut self, block: &[u8; BLOCK], length: usize) -> Option<usize> {
        let outside = !self.carry.in_strings(block, length);
        let (open, close) = (opening(block) & outside, closing(block) & outside);
        if close.count_ones() < self.depth {
            self.depth = self.depth + open.count_ones() - close.count_ones();
            return None;
        }
        let mut left = open | close;
        while left != 0 {
            let at = left.trailing_zeros();
            if open >> at & 1 == 1 {
                self.depth += 1;
            } else {
                self.depth -= 1;
                if self.depth == 0 {
                    return Some(at as usize + 1);
                }
            }
            left &= left - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same, byte by byte.
    fn end_by_bytes(bytes: &[u8]) -> Option<usize> {
        let (mut depth, mut in_string, mut escaped) = (1, false, false);
        for (at, byte) in bytes.iter().enumerate() {
            let after_backslash = std::mem::take(&mut escaped);
            match byte {
                b'\\' => escaped = !after_backslash,
                b'"' if !after_backslash => in_string = !in_string,
                b'{' | b'[' if !in_string => depth += 1,
                b'}' | b']' if !in_string => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(at + 1);
            }
        }
        None
    }

    proptest! {
        #[test]
        fn the_end_is_found_however_the_bytes_are_cut(
            bytes in proptest::collection::vec(
                prop_oneof![
                    6 => prop::sample::select(br#"{[}]"\\,:a"#.to_vec()),
                    3 => Just(b'x'),
                    1 => any::<u8>(),
                ],
                0..300,
            ),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut nesting = Nesting::opened();
            let found = cuts
                .windows(2)
                .find_map(|cut| Some(cut[0] + nesting.end(&bytes[cut[0]..cut[1]])?));
            prop_assert_eq!(found, end_by_bytes(&bytes));
        }
    }
}
