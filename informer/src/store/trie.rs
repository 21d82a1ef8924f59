//! A hash trie whose clones share their nodes.
//!
//! A version of the store is a handful of these. Cloning one is a reference count; a change copies
//! the nodes on the path to it, unless no other clone holds them. So a reader keeps an unchanging
//! version for as long as it likes, and the writer never waits for it.

use std::sync::Arc;

const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
const LEAF_MAX: usize = 16;
/// Levels after which a hash has no more bits; leaves there hold true collisions and never split.
const MAX_DEPTH: u32 = u64::BITS / BITS;

/// Map from hashes to values; the caller tells values of one hash apart.
#[derive(Debug)]
pub(crate) struct Trie<V> {
    root: Option<Arc<Node<V>>>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Node<V> {
    Leaf(Vec<(u64, V)>),
    Branch([Option<Arc<Node<V>>>; WIDTH]),
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
        Self { root: None, len: 0 }
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

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of this hash for which `same` holds.
    pub(crate) fn find(&self, hash: u64, mut same: impl FnMut(&V) -> bool) -> Option<&V> {
        let mut node = self.root.as_deref()?;
        let mut depth = 0;
        loop {
            match node {
                Node::Leaf(entries) => {
                    return entries
                        .iter()
                        .find(|(other, value)| *other == hash && same(value))
                        .map(|(_, value)| value);
                }
                Node::Branch(children) => {
                    node = children[slot(hash, depth)].as_deref()?;
                    depth += 1;
                }
            }
        }
    }

    /// All values, in no particular order.
    pub(crate) fn iter(&self) -> Iter<'_, V> {
        Iter {
            pending: self.root.as_deref().into_iter().collect(),
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
        let root = self
            .root
            .get_or_insert_with(|| Arc::new(Node::Leaf(Vec::new())));
        let old = Self::insert_below(root, 0, hash, value, same);
        self.len += usize::from(old.is_none());
        old
    }

    fn insert_below(
        node: &mut Arc<Node<V>>,
        depth: u32,
        hash: u64,
        value: V,
        mut same: impl FnMut(&V) -> bool,
    ) -> Option<V> {
        let node = Arc::make_mut(node);
        match node {
            Node::Branch(children) => {
                let child = children[slot(hash, depth)]
                    .get_or_insert_with(|| Arc::new(Node::Leaf(Vec::new())));
                Self::insert_below(child, depth + 1, hash, value, same)
            }
            Node::Leaf(entries) => {
                let found = entries
                    .iter_mut()
                    .find(|(other, value)| *other == hash && same(value));
                if let Some((_, place)) = found {
                    return Some(std::mem::replace(place, value));
                }
                entries.push((hash, value));
                if entries.len() > LEAF_MAX && depth < MAX_DEPTH {
                    *node = Node::split(std::mem::take(entries), depth);
                }
                None
            }
        }
    }

    /// Takes out the value for which `same` holds.
    pub(crate) fn remove(&mut self, hash: u64, same: impl FnMut(&V) -> bool) -> Option<V> {
        let root = self.root.as_mut()?;
        let (removed, empty) = Self::remove_below(root, 0, hash, same);
        if empty {
            self.root = None;
        }
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Also tells whether the node holds nothing any more.
    fn remove_below(
        node: &mut Arc<Node<V>>,
        depth: u32,
        hash: u64,
        mut same: impl FnMut(&V) -> bool,
    ) -> (Option<V>, bool) {
        // An absent value must not cost a copy of the path.
        if depth == 0 && !Self::contains(node, hash, &mut same) {
            return (None, false);
        }
        let node = Arc::make_mut(node);
        match node {
            Node::Leaf(entries) => {
                let at = entries
                    .iter()
                    .position(|(other, value)| *other == hash && same(value));
                let removed = at.map(|at| entries.swap_remove(at).1);
                (removed, entries.is_empty())
            }
            Node::Branch(children) => {
                let place = &mut children[slot(hash, depth)];
                let Some(child) = place else {
                    return (None, false);
                };
                let (removed, empty) = Self::remove_below(child, depth + 1, hash, same);
                if empty {
                    *place = None;
                }
                let mut present = children.iter().flatten();
                let (first, second) = (present.next(), present.next());
                match (first, second) {
                    (None, _) => (removed, true),
                    // A branch over a single leaf is that leaf.
                    (Some(only), None) if matches!(**only, Node::Leaf(_)) => {
                        let only = Arc::clone(only);
                        *node = Arc::unwrap_or_clone(only);
                        (removed, false)
                    }
                    _ => (removed, false),
                }
            }
        }
    }

    fn contains(root: &Arc<Node<V>>, hash: u64, same: impl FnMut(&V) -> bool) -> bool {
        Self {
            root: Some(Arc::clone(root)),
            len: 0,
        }
        .find(hash, same)
        .is_some()
    }
}

impl<V> Node<V> {
    fn split(entries: Vec<(u64, V)>, depth: u32) -> Self {
        let mut parts: [Vec<(u64, V)>; WIDTH] = Default::default();
        for (hash, value) in entries {
            parts[slot(hash, depth)].push((hash, value));
        }
        // A part can hold all entries; it splits when the next one comes.
        Self::Branch(parts.map(|part| (!part.is_empty()).then(|| Arc::new(Self::Leaf(part)))))
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
                Node::Leaf(entries) => self.leaf = entries.iter(),
                Node::Branch(children) => {
                    self.pending
                        .extend(children.iter().flatten().map(Arc::as_ref));
                }
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
                    let found = trie.find(hash(key, spread), |(k, _)| *k == key);
                    prop_assert_eq!(found, Some(&(key, value)));
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
        assert!(trie.is_empty() && trie.root.is_none());
    }
}
