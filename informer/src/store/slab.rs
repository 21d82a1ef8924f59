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

/// Values by number.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    root: Option<Arc<Node<V>>>,
    /// Levels of branches above the leaves.
    height: u32,
    len: usize,
    /// The lowest number that was never given out.
    next: Id,
    /// Numbers whose values are gone.
    free: Option<Arc<Free>>,
}

#[derive(Debug)]
enum Node<V> {
    Leaf([Option<V>; LEAF]),
    Branch([Option<Arc<Node<V>>>; WIDTH]),
}

#[derive(Debug)]
struct Free {
    id: Id,
    rest: Option<Arc<Free>>,
}

impl Drop for Free {
    /// One after the other: a long list must not be a deep recursion.
    fn drop(&mut self) {
        let mut rest = self.rest.take();
        while let Some(mut free) = rest.and_then(Arc::into_inner) {
            rest = free.rest.take();
        }
    }
}

impl<V> Clone for Slab<V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            height: self.height,
            len: self.len,
            next: self.next,
            free: self.free.clone(),
        }
    }
}

impl<V> Default for Slab<V> {
    fn default() -> Self {
        Self {
            root: None,
            height: 0,
            len: 0,
            next: 0,
            free: None,
        }
    }
}

impl<V: Clone> Clone for Node<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(places) => Self::Leaf(places.clone()),
            Self::Branch(children) => Self::Branch(children.clone()),
        }
    }
}

/// Place among the children of a branch that has `below` levels of branches below it.
fn slot(id: Id, below: u32) -> usize {
    (id >> (LEAF_BITS + BITS * below)) as usize & (WIDTH - 1)
}

fn place(id: Id) -> usize {
    id as usize & (LEAF - 1)
}

impl<V> Slab<V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All numbers in use are below this one.
    pub(crate) fn numbers(&self) -> Id {
        self.next
    }

    pub(crate) fn get(&self, id: Id) -> Option<&V> {
        if id >= self.next {
            return None;
        }
        let mut node = self.root.as_deref()?;
        let mut below = self.height;
        loop {
            match node {
                Node::Leaf(places) => return places[place(id)].as_ref(),
                Node::Branch(children) => {
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

    /// All values with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (Id, &V)> {
        (0..self.next).filter_map(|id| Some((id, self.get(id)?)))
    }
}

impl<V: Clone> Slab<V> {
    /// Puts `value` into a place of its own.
    ///
    /// # Panics
    /// When four thousand million places are taken.
    pub(crate) fn insert(&mut self, value: V) -> Id {
        let id = match self.free.take() {
            Some(free) => {
                self.free.clone_from(&free.rest);
                free.id
            }
            None => {
                let id = self.next;
                self.next = id.checked_add(1).expect("memory ends before the numbers");
                id
            }
        };
        *self.place(id) = Some(value);
        self.len += 1;
        id
    }

    /// Puts `value` into a place that is taken; the value before comes back.
    pub(crate) fn replace(&mut self, id: Id, value: V) -> Option<V> {
        self.get(id)?;
        self.place(id).replace(value)
    }

    /// Takes a value out; its number may be given out again.
    pub(crate) fn remove(&mut self, id: Id) -> Option<V> {
        self.get(id)?;
        let removed = self.place(id).take();
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        } else {
            let rest = self.free.take();
            self.free = Some(Arc::new(Free { id, rest }));
        }
        removed
    }

    /// The place of a number that was given out.
    fn place(&mut self, id: Id) -> &mut Option<V> {
        while u64::from(id) >> LEAF_BITS >> (BITS * self.height) > 0 {
            let lower = self.root.take();
            let mut children = [const { None }; WIDTH];
            children[0] = lower;
            self.root = Some(Arc::new(Node::Branch(children)));
            self.height += 1;
        }
        let mut below = self.height;
        let mut node = self.root.get_or_insert_with(|| Node::new(below));
        loop {
            match Arc::make_mut(node) {
                Node::Leaf(places) => return &mut places[place(id)],
                Node::Branch(children) => {
                    below -= 1;
                    node = children[slot(id, below)].get_or_insert_with(|| Node::new(below));
                }
            }
        }
    }
}

impl<V> Node<V> {
    /// An empty node with this many levels of branches from it down.
    fn new(height: u32) -> Arc<Self> {
        Arc::new(match height {
            0 => Self::Leaf([const { None }; LEAF]),
            _ => Self::Branch([const { None }; WIDTH]),
        })
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
                    Node::Branch(children) => self.pending.push(children.iter()),
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
                        let id = slab.insert(value);
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
                for (id, value) in &model {
                    prop_assert_eq!(slab.get(*id), Some(value));
                }
            }
        }
    }

    #[test]
    fn an_emptied_slab_holds_no_node_and_gives_numbers_from_the_beginning() {
        let mut slab = Slab::default();
        let ids: Vec<_> = (0..100_000).map(|value| slab.insert(value)).collect();
        for id in ids {
            assert_eq!(slab.remove(id), Some(id));
        }
        assert!(slab.root.is_none() && slab.free.is_none());
        assert_eq!(slab.insert(7), 0);
    }
}
