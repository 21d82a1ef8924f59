//! A hash trie whose clones share their nodes.
//!
//! The members of an index value that has many of them are one of these. Cloning it is a reference
//! count; a change copies the nodes on the path to it, unless no other clone holds them. So a reader
//! keeps an unchanging version for as long as it likes, and the writer never waits for it.

use std::sync::Arc;

const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
const LEAF_MAX: usize = 32;
/// Levels after which a hash has no more bits; leaves there hold true collisions and never split.
const MAX_DEPTH: u32 = u64::BITS / BITS;

/// Map from hashes to values; the caller tells values of one hash apart.
#[derive(Debug)]
pub(crate) struct Trie<V> {
    root: Node<V>,
    len: usize,
}

/// A leaf stands in one allocation with its length, so that a look-up goes to memory once for it.
#[derive(Debug)]
enum Node<V> {
    Empty,
    Leaf(Arc<[(u64, V)]>),
    Branch(Arc<[Node<V>; WIDTH]>),
}

impl<V> Clone for Node<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Leaf(entries) => Self::Leaf(Arc::clone(entries)),
            Self::Branch(children) => Self::Branch(Arc::clone(children)),
        }
    }
}

impl<V> Clone for Trie<V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            len: self.len,
        }
    }
}

impl<V> Default for Trie<V> {
    fn default() -> Self {
        Self {
            root: Node::Empty,
            len: 0,
        }
    }
}

fn slot(hash: u64, depth: u32) -> usize {
    // The mask leaves 4 bits, which every usize holds.
    #[expect(clippy::cast_possible_truncation, reason = "masked to 4 bits")]
    let slot = (hash >> (depth * BITS)) as usize & (WIDTH - 1);
    slot
}

impl<V> Trie<V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What `matches` makes of the first value of this hash that it accepts.
    pub(crate) fn find<'a, T>(
        &'a self,
        hash: u64,
        mut matches: impl FnMut(&'a V) -> Option<T>,
    ) -> Option<T> {
        let mut node = &self.root;
        let mut depth = 0;
        loop {
            match node {
                Node::Empty => return None,
                Node::Leaf(entries) => {
                    return entries
                        .iter()
                        .filter(|(other, _)| *other == hash)
                        .find_map(|(_, value)| matches(value));
                }
                Node::Branch(children) => {
                    node = &children[slot(hash, depth)];
                    depth += 1;
                }
            }
        }
    }

    /// All values, in no particular order.
    pub(crate) fn iter(&self) -> Iter<'_, V> {
        Iter {
            pending: vec![&self.root],
            leaf: [].iter(),
        }
    }
}

impl<V: Clone> Trie<V> {
    /// Puts `value` in the place of the one for which `same` holds, which is returned.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        value: V,
        same: impl FnMut(&V) -> bool,
    ) -> Option<V> {
        let old = self.root.insert(0, hash, value, same);
        self.len += usize::from(old.is_none());
        old
    }

    /// Takes out the value for which `same` holds.
    pub(crate) fn remove(&mut self, hash: u64, mut same: impl FnMut(&V) -> bool) -> Option<V> {
        // An absent value must not cost a copy of the path.
        self.find(hash, |value| same(value).then_some(()))?;
        let removed = self.root.remove(0, hash, same);
        self.len -= usize::from(removed.is_some());
        removed
    }
}

impl<V: Clone> Node<V> {
    fn insert(
        &mut self,
        depth: u32,
        hash: u64,
        value: V,
        mut same: impl FnMut(&V) -> bool,
    ) -> Option<V> {
        match self {
            Self::Branch(children) => {
                let child = &mut Arc::make_mut(children)[slot(hash, depth)];
                child.insert(depth + 1, hash, value, same)
            }
            Self::Leaf(entries) => {
                let place = entries
                    .iter()
                    .position(|(other, value)| *other == hash && same(value));
                if let Some(at) = place {
                    let entry = &mut Arc::make_mut(entries)[at];
                    return Some(std::mem::replace(&mut entry.1, value));
                }
                let grown = entries.iter().cloned().chain([(hash, value)]);
                *self = if entries.len() >= LEAF_MAX && depth < MAX_DEPTH {
                    Self::split(grown, depth)
                } else {
                    Self::Leaf(grown.collect())
                };
                None
            }
            Self::Empty => {
                *self = Self::Leaf(Arc::new([(hash, value)]));
                None
            }
        }
    }

    fn split(entries: impl Iterator<Item = (u64, V)>, depth: u32) -> Self {
        let mut parts: [Vec<(u64, V)>; WIDTH] = Default::default();
        for (hash, value) in entries {
            parts[slot(hash, depth)].push((hash, value));
        }
        // A part can hold all entries; it splits when the next one comes.
        Self::Branch(Arc::new(parts.map(|part| match part.is_empty() {
            true => Self::Empty,
            false => Self::Leaf(part.into()),
        })))
    }

    fn remove(&mut self, depth: u32, hash: u64, mut same: impl FnMut(&V) -> bool) -> Option<V> {
        match self {
            Self::Empty => None,
            Self::Leaf(entries) => {
                let at = entries
                    .iter()
                    .position(|(other, value)| *other == hash && same(value))?;
                let removed = entries[at].1.clone();
                let before = entries[..at].iter();
                let left = before.chain(&entries[at + 1..]).cloned();
                *self = match entries.len() {
                    1 => Self::Empty,
                    _ => Self::Leaf(left.collect()),
                };
                Some(removed)
            }
            Self::Branch(children) => {
                let children = Arc::make_mut(children);
                let removed = children[slot(hash, depth)].remove(depth + 1, hash, same);
                let mut present = children
                    .iter()
                    .filter(|child| !matches!(child, Self::Empty));
                match (present.next(), present.next()) {
                    (None, _) => *self = Self::Empty,
                    // A branch over a single leaf is that leaf.
                    (Some(only @ Self::Leaf(_)), None) => *self = only.clone(),
                    _ => {}
                }
                removed
            }
        }
    }
}

/// Iterator over the values of a [`Trie`].
#[derive(Debug)]
pub(crate) struct Iter<'a, V> {
    pending: Vec<&'a Node<V>>,
    leaf: std::slice::Iter<'a, (u64, V)>,
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        loop {
            if let Some((_, value)) = self.leaf.next() {
                return Some(value);
            }
            match self.pending.pop()? {
                Node::Empty => {}
                Node::Leaf(entries) => self.leaf = entries.iter(),
                Node::Branch(children) => self.pending.extend(children.iter()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u16, u8),
        Remove(u16),
        Keep,
    }

    /// Few distinct hashes, so that collisions, deep branches and collapses all occur.
    fn hash(key: u16, spread: u32) -> u64 {
        match spread {
            0 => 7,
            1 => u64::from(key & 3) << 60,
            _ => u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }

    fn contents(trie: &Trie<(u16, u8)>) -> BTreeMap<u16, u8> {
        trie.iter().copied().collect()
    }

    proptest! {
        #[test]
        fn a_trie_is_a_map_and_its_clones_never_change(
            spread in 0..3u32,
            ops in proptest::collection::vec(
                prop_oneof![
                    5 => (0..200u16, any::<u8>()).prop_map(|(k, v)| Op::Insert(k, v)),
                    3 => (0..200u16).prop_map(Op::Remove),
                    1 => Just(Op::Keep),
                ],
                0..400,
            ),
        ) {
            let mut trie = Trie::default();
            let mut model = BTreeMap::new();
            let mut kept = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(key, value) => {
                        let old = trie.insert(hash(key, spread), (key, value), |(k, _)| *k == key);
                        prop_assert_eq!(old.map(|(_, v)| v), model.insert(key, value));
                    }
                    Op::Remove(key) => {
                        let old = trie.remove(hash(key, spread), |(k, _)| *k == key);
                        prop_assert_eq!(old.map(|(_, v)| v), model.remove(&key));
                    }
                    Op::Keep => kept.push((trie.clone(), model.clone())),
                }
                prop_assert_eq!(trie.len(), model.len());
            }
            kept.push((trie, model));
            for (trie, model) in kept {
                prop_assert_eq!(contents(&trie), model.clone());
                for (key, value) in model {
                    let found = trie.find(hash(key, spread), |(k, v)| (*k == key).then_some(*v));
                    prop_assert_eq!(found, Some(value));
                }
            }
        }
    }

    #[test]
    fn an_emptied_trie_holds_no_node() {
        let mut trie = Trie::default();
        for key in 0..1000_u16 {
            trie.insert(hash(key, 2), (key, 0), |(k, _)| *k == key);
        }
        for key in 0..1000_u16 {
            assert!(trie.remove(hash(key, 2), |(k, _)| *k == key).is_some());
        }
        assert!(trie.len() == 0 && matches!(trie.root, Node::Empty));
    }
}
