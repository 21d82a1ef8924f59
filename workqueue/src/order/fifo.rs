//! By arrival: a ring of ids.

use std::collections::VecDeque;

use super::{Keys, Order};
use crate::KeyId;

/// Ready keys leave in the order in which they got ready; priorities have no effect.
#[derive(Debug, Default)]
pub struct Fifo {
    ring: VecDeque<KeyId>,
}

/// Below this many entries a ring keeps its memory.
const SMALL: usize = 128;

impl<K: 'static> Order<K> for Fifo {
    type Slot = ();

    fn push(&mut self, _: &mut Keys<'_, K, ()>, id: KeyId, _: u64) {
        self.ring.push_back(id);
    }

    fn pop(&mut self, _: &mut Keys<'_, K, ()>) -> Option<KeyId> {
        let id = self.ring.pop_front()?;
        // Halving only when an eighth is in use keeps the copying within O(1) a key.
        if self.ring.capacity() > SMALL && self.ring.len() < self.ring.capacity() / 8 {
            self.ring.shrink_to(self.ring.len() * 2);
        }
        Some(id)
    }

    fn clear(&mut self, _: &mut Keys<'_, K, ()>) {
        self.ring = VecDeque::new();
    }

    fn len(&self) -> usize {
        self.ring.len()
    }
}
