//! In which order ready keys leave: a policy that a queue is made with.
//!
//! | policy | order |
//! |---|---|
//! | [`Fifo`] | by arrival |
//! | [`Priority`] | highest priority first, by arrival within one; optional ageing |
//! | [`Fair`] | as `Priority`, and within one priority the flows take turns |
//!
//! A policy sees keys only while they are ready: never running ones, never delayed ones, and each
//! at most once. So it need not know about duplicates, and a key that is added during its run
//! costs it nothing until the run has ended.

mod fair;
mod fifo;
mod priority;

pub use self::{
    fair::{Fair, FlowPlace},
    fifo::Fifo,
    priority::{Place, Priority},
};

use crate::{KeyId, OnAdd, slab::Slab};

/// An order of ready keys.
///
/// Called under the queue's lock: keep it short, and never call the queue from it. A panic in it
/// leaves the queue in an unspecified, though memory-safe, state.
pub trait Order<K>: Send + 'static {
    /// What the policy keeps with each key that the queue knows; starts as the default.
    type Slot: Copy + Default + Send + 'static;

    /// What an immediate add does with a pending deadline, where the options do not say.
    const ON_ADD: OnAdd = OnAdd::Keep;

    /// Whether metrics tell the depth of each priority.
    const PRIORITIES: bool = false;

    /// Whether [`push`](Order::push) and [`touch`](Order::touch) need to know the time; if not,
    /// they are told 0 and no clock is read.
    fn timed(&self) -> bool {
        false
    }

    /// Whether a queue may spread its keys over several instances of the policy.
    fn shardable(&self) -> bool {
        true
    }

    /// A key gets ready; it is in nobody's line. `at` is in nanoseconds since the queue was made.
    fn push(&mut self, keys: &mut Keys<'_, K, Self::Slot>, id: KeyId, at: u64);

    /// A ready key has been added again; its priority may have risen.
    fn touch(&mut self, keys: &mut Keys<'_, K, Self::Slot>, id: KeyId, at: u64) {
        let _ = (keys, id, at);
    }

    /// Takes the key that is to run next, or none if no ready key may run now.
    fn pop(&mut self, keys: &mut Keys<'_, K, Self::Slot>) -> Option<KeyId>;

    /// A run of a key that `pop` gave has ended. Returns whether a ready key that could not run
    /// can run now.
    fn finished(&mut self, keys: &mut Keys<'_, K, Self::Slot>, id: KeyId) -> bool {
        let _ = (keys, id);
        false
    }

    /// Forgets all ready keys; runs go on and are still reported to `finished`.
    fn clear(&mut self, keys: &mut Keys<'_, K, Self::Slot>);

    /// How many keys are ready, those included that may not run now.
    fn len(&self) -> usize;

    /// Whether no key is ready.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The keys of a queue as an order policy sees them.
///
/// The methods panic when an id names no key of this queue.
#[derive(Debug)]
pub struct Keys<'a, K, S>(pub(crate) &'a mut Slab<K, S>);

impl<K, S: Copy + Default> Keys<'_, K, S> {
    /// The key.
    pub fn key(&self, id: KeyId) -> &K {
        self.0.key(id)
    }

    /// The priority that all adds since the key was last handed out have merged to.
    pub fn priority(&self, id: KeyId) -> i32 {
        self.0.meta(id).priority
    }

    /// The policy's own data about the key.
    pub fn slot(&self, id: KeyId) -> &S {
        &self.0.meta(id).slot
    }

    /// The policy's own data about the key, to change.
    pub fn slot_mut(&mut self, id: KeyId) -> &mut S {
        &mut self.0.meta_mut(id).slot
    }
}
