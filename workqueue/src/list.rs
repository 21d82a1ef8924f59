//! Doubly linked lists of key ids whose links lie in the keys' own entries.
//!
//! A list costs two ids, a membership two ids in the entry; every operation is O(1) and allocates
//! nothing. The same code serves the delay wheel, the priority levels, the flows and the metrics.

use crate::KeyId;

/// The neighbours of one member of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links {
    prev: KeyId,
    next: KeyId,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            prev: KeyId::NONE,
            next: KeyId::NONE,
        }
    }
}

/// Where the links of a kind of list are found.
pub(crate) trait LinkStore {
    /// The links of `id`, which must be a live key.
    fn links(&mut self, id: KeyId) -> &mut Links;
}

/// First and last member of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    head: KeyId,
    tail: KeyId,
}

impl Default for List {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        head: KeyId::NONE,
        tail: KeyId::NONE,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.head == KeyId::NONE
    }

    pub(crate) fn head(&self) -> Option<KeyId> {
        self.head.some()
    }

    /// Whether the list has exactly one member.
    pub(crate) fn is_single(&self) -> bool {
        !self.is_empty() && self.head == self.tail
    }

    pub(crate) fn push_back(&mut self, store: &mut impl LinkStore, id: KeyId) {
        *store.links(id) = Links {
            prev: self.tail,
            next: KeyId::NONE,
        };
        match self.tail.some() {
            Some(tail) => store.links(tail).next = id,
            None => self.head = id,
        }
        self.tail = id;
    }

    pub(crate) fn pop_front(&mut self, store: &mut impl LinkStore) -> Option<KeyId> {
        let id = self.head.some()?;
        self.remove(store, id);
        Some(id)
    }

    /// The member after `id`, which must be one too.
    pub(crate) fn after(&self, store: &mut impl LinkStore, id: KeyId) -> Option<KeyId> {
        (id != self.tail).then(|| store.links(id).next)
    }

    /// Takes `id` out; it must be a member of this list.
    ///
    /// The first member's `prev` and the last one's `next` are never read, so that taking either
    /// of them out touches no other entry.
    pub(crate) fn remove(&mut self, store: &mut impl LinkStore, id: KeyId) {
        let Links { prev, next } = *store.links(id);
        match (id == self.head, id == self.tail) {
            (true, true) => *self = Self::EMPTY,
            (true, false) => self.head = next,
            (false, true) => self.tail = prev,
            (false, false) => {
                store.links(prev).next = next;
                store.links(next).prev = prev;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Store(Vec<Links>);

    impl LinkStore for Store {
        fn links(&mut self, id: KeyId) -> &mut Links {
            &mut self.0[id.index()]
        }
    }

    #[test]
    fn members_leave_in_the_order_of_arrival_whichever_is_removed_between() {
        for removed in 0..4u32 {
            let mut store = Store(vec![Links::default(); 4]);
            let mut list = List::default();
            for id in 0..4 {
                list.push_back(&mut store, KeyId::new(id));
            }
            list.remove(&mut store, KeyId::new(removed));
            let rest: Vec<_> = std::iter::from_fn(|| list.pop_front(&mut store)).collect();
            let expected: Vec<_> = (0..4).filter(|id| *id != removed).map(KeyId::new).collect();
            assert_eq!(rest, expected);
            assert!(list.is_empty());
        }
    }

    #[test]
    fn a_list_of_one_knows_it() {
        let mut store = Store(vec![Links::default(); 2]);
        let mut list = List::default();
        assert!(!list.is_single());
        list.push_back(&mut store, KeyId::new(0));
        assert!(list.is_single());
        list.push_back(&mut store, KeyId::new(1));
        assert!(!list.is_single());
        assert_eq!(list.head(), Some(KeyId::new(0)));
    }
}
