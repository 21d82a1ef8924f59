//! Keys and random numbers as the scenarios prescribe them.

use std::{hash::Hash, sync::Arc};

/// The generator of the scenarios.
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("below a usize")
    }
}

/// Key number `i` of a scenario.
pub(crate) trait Key: Hash + Eq + Clone + Send + Sync + 'static {
    /// The name of the form in the figures.
    const NAME: &'static str;

    fn make(i: usize) -> Self;

    fn index(&self) -> usize;
}

fn tail_number(text: &str) -> usize {
    let tail = &text.as_bytes()[text.len() - 7..];
    tail.iter()
        .fold(0, |n, digit| n * 10 + usize::from(digit - b'0'))
}

impl Key for Arc<str> {
    const NAME: &'static str = "string";

    fn make(i: usize) -> Self {
        format!("ns-{:04}/name-{i:07}", i % 1000).into()
    }

    fn index(&self) -> usize {
        tail_number(self)
    }
}

/// Namespace and name, each shared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NamespacedName {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl Key for NamespacedName {
    const NAME: &'static str = "struct";

    fn make(i: usize) -> Self {
        Self {
            namespace: format!("ns-{:04}", i % 1000).into(),
            name: format!("name-{i:07}").into(),
        }
    }

    fn index(&self) -> usize {
        tail_number(&self.name)
    }
}

pub(crate) fn keys<K: Key>(n: usize) -> Vec<K> {
    (0..n).map(K::make).collect()
}
