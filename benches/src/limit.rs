//! The limit: a hash map and a ring, in one thread, without locks, wake-ups and guards.
//!
//! It does what a queue of distinct keys has to do at least, in the plain way: a map from each
//! known key to its state, and a ring of keys.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::key::Key;

#[derive(Clone, Copy)]
enum State {
    Ready,
    Running,
    Dirty,
}

pub(crate) struct Limit<K> {
    states: HashMap<K, State, foldhash::fast::RandomState>,
    ring: VecDeque<K>,
}

impl<K: Key> Limit<K> {
    pub(crate) fn new() -> Self {
        Self {
            states: HashMap::default(),
            ring: VecDeque::new(),
        }
    }

    pub(crate) fn add(&mut self, key: &K) {
        match self.states.get_mut(key) {
            None => {
                self.states.insert(key.clone(), State::Ready);
                self.ring.push_back(key.clone());
            }
            Some(state @ State::Running) => *state = State::Dirty,
            Some(State::Ready | State::Dirty) => {}
        }
    }

    pub(crate) fn get(&mut self) -> Option<K> {
        let key = self.ring.pop_front()?;
        if let Some(state) = self.states.get_mut(&key) {
            *state = State::Running;
        }
        Some(key)
    }

    pub(crate) fn done(&mut self, key: K) {
        match self.states.get_mut(&key) {
            Some(state @ State::Dirty) => {
                *state = State::Ready;
                self.ring.push_back(key);
            }
            _ => {
                self.states.remove(&key);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }
}
