//! Sets of fields: a tree of path elements, each of which may itself be a member.
//!
//! A parent and its child are members independently: owning `.spec.labels` says nothing about
//! `.spec.labels.a`. All operations walk both trees once.

use std::cmp::Ordering;

use super::path::PathElement;

/// A set of paths. No branch of the tree is without a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet {
    /// Sorted by element.
    nodes: Vec<Node>,
}

/// A path element of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) element: PathElement,
    /// Whether the path that ends here is in the set.
    pub(super) member: bool,
    /// What lies below.
    pub(super) children: FieldSet,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl FieldSet {
    /// The set of these paths of field names.
    pub(super) fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let path: Vec<PathElement> = path
                .iter()
                .map(|name| PathElement::Field((*name).to_owned()))
                .collect();
            set.insert(&path);
        }
        set
    }

    /// A set of nodes in any order; later ones of the same element win nothing, they are merged.
    pub(super) fn of_nodes(nodes: impl IntoIterator<Item = Node>) -> Self {
        let mut set = Self::default();
        for node in nodes {
            if !node.is_empty() {
                let kept = set.entry(&node.element);
                kept.member |= node.member;
                kept.children = kept.children.union(&node.children);
            }
        }
        set
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The elements at the top, in order.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn find(&self, element: &PathElement) -> Result<usize, usize> {
        // Paths come mostly in order.
        match self.nodes.last() {
            Some(last) if last.element < *element => Err(self.nodes.len()),
            _ => self
                .nodes
                .binary_search_by(|node| node.element.cmp(element)),
        }
    }

    fn entry(&mut self, element: &PathElement) -> &mut Node {
        let at = self.find(element).unwrap_or_else(|at| {
            let node = Node {
                element: element.clone(),
                member: false,
                children: Self::default(),
            };
            self.nodes.insert(at, node);
            at
        });
        &mut self.nodes[at]
    }

    /// The node of an element, if anything at or below it is in the set.
    pub(super) fn node(&self, element: &PathElement) -> Option<&Node> {
        self.find(element).ok().map(|at| &self.nodes[at])
    }

    /// Adds a path. The empty path stands for the whole object, which nobody owns.
    pub(super) fn insert(&mut self, path: &[PathElement]) {
        let Some((last, parents)) = path.split_last() else {
            return;
        };
        let mut at = self;
        for element in parents {
            at = &mut at.entry(element).children;
        }
        at.entry(last).member = true;
    }

    /// Whether a path is in the set.
    pub(super) fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|node| node.member),
            [first, rest @ ..] => self.node(first).is_some_and(|node| node.children.has(rest)),
        }
    }

    /// Paths of either set.
    pub(super) fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some((a.member || b.member, a.children.union(&b.children))),
            (Some(one), None) | (None, Some(one)) => Some((one.member, one.children.clone())),
            (None, None) => None,
        })
    }

    /// Paths of both sets.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => {
                Some((a.member && b.member, a.children.intersection(&b.children)))
            }
            _ => None,
        })
    }

    /// Paths of this set that are not in the other; paths below those of the other stay.
    pub(super) fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some((a.member && !b.member, a.children.difference(&b.children))),
            (Some(a), None) => Some((a.member, a.children.clone())),
            (None, _) => None,
        })
    }

    /// Paths of this set that are neither in the other nor below one of its paths.
    pub(super) fn without_subtrees(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(_), Some(b)) if b.member => None,
            (Some(a), Some(b)) => Some((a.member, a.children.without_subtrees(&b.children))),
            (Some(a), None) => Some((a.member, a.children.clone())),
            (None, _) => None,
        })
    }

    /// Merges both lists of nodes by element; `choose` says what becomes of each.
    fn zip(
        &self,
        other: &Self,
        choose: impl Fn(Option<&Node>, Option<&Node>) -> Option<(bool, Self)>,
    ) -> Self {
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        let (mut left, mut right) = (self.nodes.iter().peekable(), other.nodes.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let a = if order.is_le() { left.next() } else { None };
            let b = if order.is_ge() { right.next() } else { None };
            let Some(element) = a.or(b).map(|node| &node.element) else {
                break;
            };
            if let Some((member, children)) = choose(a, b) {
                let node = Node {
                    element: element.clone(),
                    member,
                    children,
                };
                if !node.is_empty() {
                    nodes.push(node);
                }
            }
        }
        Self { nodes }
    }

    /// All paths: those that end at a level before those that go on below it.
    pub(super) fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut found = Vec::new();
        self.collect(&mut Vec::new(), &mut found);
        found
    }

    fn collect(&self, at: &mut Vec<PathElement>, found: &mut Vec<Vec<PathElement>>) {
        for node in self.nodes.iter().filter(|node| node.member) {
            let mut path = at.clone();
            path.push(node.element.clone());
            found.push(path);
        }
        for node in &self.nodes {
            at.push(node.element.clone());
            node.children.collect(at, found);
            at.pop();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::apply::path::Scalar;

    /// Sets of few names, so that they overlap.
    pub(in crate::apply) fn any_set() -> impl Strategy<Value = FieldSet> {
        let element = prop_oneof![
            "[ab]".prop_map(PathElement::Field),
            (0..2_i64).prop_map(|n| PathElement::Key(vec![("k".to_owned(), Scalar(json!(n)))])),
            "[xy]".prop_map(|text| PathElement::Value(Scalar(json!(text)))),
        ];
        let path = prop::collection::vec(element, 1..4);
        prop::collection::vec(path, 0..8).prop_map(|paths| {
            let mut set = FieldSet::default();
            for path in &paths {
                set.insert(path);
            }
            set
        })
    }

    proptest! {
        #[test]
        fn sets_obey_the_laws_of_sets(a in any_set(), b in any_set(), c in any_set()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
            prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
            prop_assert_eq!(a.union(&a.intersection(&b)), a.clone());
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
            prop_assert!(a.difference(&a).is_empty());
            prop_assert!(a.without_subtrees(&b).difference(&a.difference(&b)).is_empty());
        }

        #[test]
        fn membership_follows_the_operations(a in any_set(), b in any_set()) {
            for path in a.union(&b).paths() {
                let (in_a, in_b) = (a.has(&path), b.has(&path));
                prop_assert!(in_a || in_b);
                prop_assert_eq!(a.intersection(&b).has(&path), in_a && in_b);
                prop_assert_eq!(a.difference(&b).has(&path), in_a && !in_b);
                let below_b = (1..=path.len()).any(|end| b.has(&path[..end]));
                prop_assert_eq!(a.without_subtrees(&b).has(&path), in_a && !below_b);
            }
            let mut again = FieldSet::default();
            for path in a.paths() {
                again.insert(&path);
            }
            prop_assert_eq!(again, a);
        }
    }

    #[test]
    fn a_parent_and_its_children_are_members_apart() {
        let child = FieldSet::of_fields(&[&["a", "b"]]);
        let parent = FieldSet::of_fields(&[&["a"]]);
        assert_eq!(child.difference(&parent), child);
        assert!(child.without_subtrees(&parent).is_empty());
        assert_eq!(parent.difference(&child), parent);
        assert!(!child.has(&[PathElement::Field("a".into())]));
    }
}
