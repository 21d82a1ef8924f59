//! Which member of a ring owns a key: the decision, the same in every process.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The members at one moment, as one of them sees it.
///
/// The epoch tells apart two times at which the same members were there: it grows with each change
/// that a member sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    pub(crate) epoch: u64,
    pub(crate) members: BTreeSet<String>,
}

impl View {
    /// The member that owns what `token` stands for; none in an empty ring.
    ///
    /// The highest of all members' weights wins, so a member that joins takes keys over from all
    /// others evenly, and the keys of one that leaves fall to all others evenly; no other key moves.
    pub(crate) fn owner(&self, token: u64) -> Option<&str> {
        let weight = |member: &String| mix(token ^ token_of(member));
        self.members
            .iter()
            .max_by_key(|member| weight(member))
            .map(String::as_str)
    }
}

/// The number that stands for a text in every process and version: FNV-1a, since the standard
/// library's hashers may change between releases, and two releases share a ring during a roll-out.
pub(crate) fn token_of(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(hash)
}

/// Spreads the bits of a number evenly (the finalizer of SplitMix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(members: &[&str]) -> View {
        View {
            epoch: 1,
            members: members.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn w74_keys_are_spread_evenly_and_only_those_of_a_changed_member_move() {
        let tokens: Vec<_> = (0..30_000).map(|n| token_of(&format!("ns/{n}"))).collect();
        let three = view(&["a", "b", "c"]);
        let four = view(&["a", "b", "c", "d"]);
        let mut moved = 0;
        for member in ["a", "b", "c"] {
            let owned = tokens.iter().filter(|t| three.owner(**t) == Some(member));
            let owned = owned.count();
            assert!((9_500..10_500).contains(&owned), "{member} owns {owned}");
        }
        for token in tokens {
            let (before, after) = (three.owner(token), four.owner(token));
            if before != after {
                assert_eq!(after, Some("d"), "only the new member takes over");
                moved += 1;
            }
        }
        assert!((7_000..8_000).contains(&moved), "{moved} of 30000 moved");
        assert_eq!(view(&[]).owner(1), None);
    }

    #[test]
    fn w74_a_token_is_the_same_in_every_release() {
        assert_eq!(token_of(""), mix(0xcbf2_9ce4_8422_2325));
        assert_eq!(token_of("a"), mix(0xaf63_dc4c_8601_ec8c));
    }
}
