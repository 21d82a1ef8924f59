//! Numbered places whose clones share their nodes.
//!
//! A value keeps its number for as long as it is stored, through all changes of it. So what leads
//! to it, keys and index values, holds the number and changes only when the value comes or goes.
//! Numbers are given out densely, so that a walk over all values goes through memory in the order
//! in which they came.

use std::sync::Arc;

const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
/// A leaf holds the values themselves and is copied with each change of one: so few of them.
const LEAF_BITS: u32 = 2;
const LEAF: usize = 1 << LEAF_BITS;

/// Number of a place.
pub(crate) type Id = u32;

/// Values by number. A value that comes gets the lowest number that is free.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    root: Option<Arc<Node<V>>>,
    /// Levels of branches above the leaves.
    height: u32,
    len: usize,
}

/// A node is there only while a value is below it.
#[derive(Debug)]
enum Node<V> {
    Leaf([Option<V>; LEAF]),
    Branch {
        children: [Option<Arc<Node<V>>>; WIDTH],
        /// By bits, the children below which no number is free.
        full: u16,
    },
}

const ALL_FULL: u16 = u16::MAX;

impl<V> Clone for Slab<V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            height: self.height,
            len: self.len,
        }
    }
}

impl<V> Default for Slab<V> {
    fn default() -> Self {
        Self {
            root: None,
            height: 0,
            len: 0,
        }
    }
}

impl<V: Clone> Clone for Node<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(places) => Self::Leaf(places.clone()),
            Self::Branch { children, full } => Self::Branch {
                children: children.clone(),
                full: *full,
            },
        }
    }
}

/// Bits of a number that say where it stands below a branch with `below` levels of branches
/// under it.
fn bits_below(below: u32) -> u32 {
    LEAF_BITS + BITS * below
}

/// Place among the children of a branch that has `below` levels of branches below it.
fn slot(id: Id, below: u32) -> usize {
    (id >> bits_below(below)) as usize & (WIDTH - 1)
}

fn place(id: Id) -> usize {
    id as usize & (LEAF - 1)
}

impl<V> Slab<V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All numbers in use are below this one, which is as low as it can be.
    pub(crate) fn numbers(&self) -> Id {
        let Some(mut node) = self.root.as_deref() else {
            return 0;
        };
        let mut below = self.height;
        let mut highest = 0;
        loop {
            match node {
                Node::Leaf(places) => {
                    let taken = (1..).zip(places).filter(|(_, value)| value.is_some());
                    return highest + taken.last().map_or(0, |(number, _)| number);
                }
                Node::Branch { children, .. } => {
                    below -= 1;
                    let known = (0..).zip(children);
                    let known = known.filter_map(|(at, child)| Some((at, child.as_deref()?)));
                    let Some((at, child)) = known.last() else {
                        return highest;
                    };
                    highest |= at << bits_below(below);
                    node = child;
                }
            }
        }
    }

    pub(crate) fn get(&self, id: Id) -> Option<&V> {
        let mut node = self.root.as_deref()?;
        let mut below = self.height;
        // A number that the tree is too low for would be taken for another one.
        if u64::from(id) >> bits_below(below) > 0 {
            return None;
        }
        loop {
            match node {
                Node::Leaf(places) => return places[place(id)].as_ref(),
                Node::Branch { children, .. } => {
                    below -= 1;
                    node = children[slot(id, below)].as_deref()?;
                }
            }
        }
    }

    /// All values in the order of their numbers.
    pub(crate) fn iter(&self) -> Iter<'_, V> {
        Iter {
            pending: vec![std::slice::from_ref(&self.root).iter()],
            leaf: [].iter(),
        }
    }

    /// Shows `visit` all values with their numbers, in their order. Costs what is there, not what
    /// was there once.
    pub(crate) fn each<'a>(&'a self, mut visit: impl FnMut(Id, &'a V)) {
        if let Some(root) = &self.root {
            root.each(0, self.height, &mut visit);
        }
    }
}

impl<V: Clone> Slab<V> {
    /// Puts `value` into a place of its own.
    ///
    /// # Panics
    /// When four thousand million places are taken.
    pub(crate) fn insert(&mut self, value: V) -> Id {
        assert!(
            self.len < Id::MAX as usize,
            "memory ends before the numbers"
        );
        if self.len as u64 == 1 << bits_below(self.height) {
            let mut children = [const { None }; WIDTH];
            children[0] = self.root.take();
            self.root = Some(Arc::new(Node::Branch { children, full: 1 }));
            self.height += 1;
        }
        let (id, _) = Node::insert(&mut self.root, self.height, value);
        self.len += 1;
        id
    }

    /// Puts `value` into a place that is taken; the value before comes back.
    pub(crate) fn replace(&mut self, id: Id, value: V) -> Option<V> {
        // A look first: what is shared must not be copied for nothing.
        self.get(id)?;
        let mut below = self.height;
        let mut node = self.root.as_mut()?;
        loop {
            match Arc::make_mut(node) {
                Node::Leaf(places) => return places[place(id)].replace(value),
                Node::Branch { children, .. } => {
                    below -= 1;
                    node = children[slot(id, below)].as_mut()?;
                }
            }
        }
    }

    /// Takes a value out; its number may be given out again.
    pub(crate) fn remove(&mut self, id: Id) -> Option<V> {
        self.get(id)?;
        let removed = Node::remove(&mut self.root, self.height, id);
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        }
        removed
    }
}

impl<V> Node<V> {
    /// An empty node with this many levels of branches from it down.
    fn new(height: u32) -> Arc<Self> {
        Arc::new(match height {
            0 => Self::Leaf([const { None }; LEAF]),
            _ => Self::Branch {
                children: [const { None }; WIDTH],
                full: 0,
            },
        })
    }

    /// The values below a node of this `height`, of which `first` is the lowest number.
    fn each<'a>(&'a self, first: Id, height: u32, visit: &mut impl FnMut(Id, &'a V)) {
        match self {
            Self::Leaf(places) => {
                for (id, value) in (first..).zip(places) {
                    if let Some(value) = value {
                        visit(id, value);
                    }
                }
            }
            Self::Branch { children, .. } => {
                let below = height - 1;
                for (at, child) in (0..).zip(children) {
                    if let Some(child) = child {
                        child.each(first | at << bits_below(below), below, visit);
                    }
                }
            }
        }
    }
}

impl<V: Clone> Node<V> {
    /// Puts `value` into the lowest free place below a node of this `height`, which is not full.
    /// The number within it, and whether it is full now.
    fn insert(node: &mut Option<Arc<Self>>, height: u32, value: V) -> (Id, bool) {
        match Arc::make_mut(node.get_or_insert_with(|| Self::new(height))) {
            Self::Leaf(places) => {
                let mut free = (0..).zip(&mut *places).filter(|(_, place)| place.is_none());
                let (at, free) = free.next().expect("only full leaves have no free place");
                *free = Some(value);
                (at, places.iter().all(Option::is_some))
            }
            Self::Branch { children, full } => {
                let below = height - 1;
                let at = full.trailing_ones();
                let (id, filled) = Self::insert(&mut children[at as usize], below, value);
                *full |= u16::from(filled) << at;
                (id | at << bits_below(below), *full == ALL_FULL)
            }
        }
    }

    /// Takes out the value of a number that is in use, and the nodes that hold nothing then.
    fn remove(node: &mut Option<Arc<Self>>, height: u32, id: Id) -> Option<V> {
        let (removed, empty) = match Arc::make_mut(node.as_mut()?) {
            Self::Leaf(places) => {
                let removed = places[place(id)].take();
                (removed, places.iter().all(Option::is_none))
            }
            Self::Branch { children, full } => {
                let below = height - 1;
                let at = slot(id, below);
                let removed = Self::remove(&mut children[at], below, id);
                *full &= !(1 << at);
                let empty = children[at].is_none() && children.iter().all(Option::is_none);
                (removed, empty)
            }
        };
        if empty {
            *node = None;
        }
        removed
    }
}

/// Iterator over the values of a [`Slab`].
#[derive(Debug)]
pub(crate) struct Iter<'a, V> {
    /// What is left of each branch from the root down to where the walk is.
    pending: Vec<std::slice::Iter<'a, Option<Arc<Node<V>>>>>,
    leaf: std::slice::Iter<'a, Option<V>>,
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        loop {
            if let Some(value) = self.leaf.by_ref().flatten().next() {
                return Some(value);
            }
            match self.pending.last_mut()?.next() {
                None => drop(self.pending.pop()),
                Some(None) => {}
                Some(Some(node)) => match &**node {
                    Node::Leaf(places) => self.leaf = places.iter(),
                    Node::Branch { children, .. } => self.pending.push(children.iter()),
                },
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
        Insert(u8),
        /// Of the stored value that stands at this place among them.
        Replace(usize, u8),
        Remove(usize),
        Keep,
    }

    proptest! {
        #[test]
        fn a_slab_is_a_map_and_its_clones_never_change(
            first in 0..3000_usize,
            ops in proptest::collection::vec(
                prop_oneof![
                    6 => any::<u8>().prop_map(Op::Insert),
                    3 => (any::<usize>(), any::<u8>()).prop_map(|(at, v)| Op::Replace(at, v)),
                    5 => any::<usize>().prop_map(Op::Remove),
                    1 => Just(Op::Keep),
                ],
                0..300,
            ),
        ) {
            let lowest = |model: &BTreeMap<Id, u8>| (0..).find(|id| !model.contains_key(id));
            let mut slab = Slab::default();
            let mut model: BTreeMap<Id, u8> = (0..first).map(|_| (slab.insert(0), 0)).collect();
            prop_assert_eq!(model.len(), first);
            let mut kept = Vec::new();
            for op in ops {
                let nth = |model: &BTreeMap<Id, u8>, at: usize| {
                    model.keys().nth(at % model.len().max(1)).copied()
                };
                match op {
                    Op::Insert(value) => {
                        let free = lowest(&model);
                        let id = slab.insert(value);
                        prop_assert_eq!(Some(id), free);
                        prop_assert_eq!(model.insert(id, value), None);
                    }
                    Op::Replace(at, value) => if let Some(id) = nth(&model, at) {
                        prop_assert_eq!(slab.replace(id, value), model.insert(id, value));
                    },
                    Op::Remove(at) => if let Some(id) = nth(&model, at) {
                        prop_assert_eq!(slab.remove(id), model.remove(&id));
                        prop_assert_eq!(slab.remove(id), None);
                        prop_assert_eq!(slab.replace(id, 1), None);
                    },
                    Op::Keep => kept.push((slab.clone(), model.clone())),
                }
            }
            kept.push((slab, model));
            for (slab, model) in kept {
                prop_assert_eq!(slab.len(), model.len());
                prop_assert!(slab.iter().eq(model.values()));
                let mut numbered = BTreeMap::new();
                slab.each(|id, value| numbered.extend([(id, *value)]));
                prop_assert_eq!(&numbered, &model);
                let numbers = model.keys().last().map_or(0, |last| last + 1);
                prop_assert_eq!(slab.numbers(), numbers);
                for beyond in [numbers, numbers + 4, numbers * 16 + 64, Id::MAX] {
                    prop_assert_eq!(slab.get(beyond), None);
                }
                for (id, value) in &model {
                    prop_assert_eq!(slab.get(*id), Some(value));
                }
            }
        }
    }

    fn nodes<V>(node: &Option<Arc<Node<V>>>) -> usize {
        match node.as_deref() {
            None => 0,
            Some(Node::Leaf(_)) => 1,
            Some(Node::Branch { children, .. }) => 1 + children.iter().map(nodes).sum::<usize>(),
        }
    }

    #[test]
    fn an_emptied_slab_holds_no_node_and_gives_numbers_from_the_beginning() {
        let mut slab = Slab::default();
        let ids: Vec<_> = (0..100_000).map(|value| slab.insert(value)).collect();
        for id in ids {
            assert_eq!(slab.remove(id), Some(id));
        }
        assert!(slab.root.is_none());
        assert_eq!(slab.insert(7), 0);
    }

    #[test]
    fn a_slab_holds_the_nodes_of_what_is_there_and_not_of_what_was() {
        let mut slab = Slab::default();
        for value in 0..100_000 {
            slab.insert(value);
        }
        let left = [3, 50_000, 99_999];
        for id in (0..100_000).filter(|id| !left.contains(id)) {
            slab.remove(id);
        }
        assert!(nodes(&slab.root) <= 1 + 3 * slab.height as usize);
        assert_eq!(slab.iter().copied().collect::<Vec<_>>(), left);
    }
}
