//! A key in the hands of a worker.

use std::{fmt, ops::Deref, ptr::NonNull, time::Duration};

use crate::{
    KeyId,
    key::{KeyRef, QueueKey},
    options::AddOptions,
    order::{Fifo, Order},
    queue::Shared,
    shard::Taken,
    sync::Arc,
};

/// A key that is being worked on; dropping it ends the run.
///
/// However a run ends — return, `?`, panic, an aborted task — the drop tells the queue, and a key
/// that was added meanwhile gets ready again. Only [`std::mem::forget`] prevents that.
///
/// The methods that concern the queue do the same as those of [`WorkQueue`](crate::WorkQueue)
/// with this key, without hashing it again.
pub struct Item<K: QueueKey, O: Order<K> = Fifo> {
    shared: Arc<Shared<K, O>>,
    key: NonNull<K>,
    hash: u64,
    id: KeyId,
    shard: u32,
    priority: i32,
}

// SAFETY: `key` is used as a `&K` only, and `K` is `Sync`; the queue is `Send` and `Sync` itself.
#[expect(
    unsafe_code,
    reason = "a raw pointer is not `Send`; see the line above"
)]
unsafe impl<K: QueueKey, O: Order<K>> Send for Item<K, O> {}
// SAFETY: as above.
#[expect(
    unsafe_code,
    reason = "a raw pointer is not `Sync`; see the line above"
)]
unsafe impl<K: QueueKey, O: Order<K>> Sync for Item<K, O> {}

impl<K: QueueKey, O: Order<K>> Item<K, O> {
    pub(crate) fn new(shared: &Arc<Shared<K, O>>, shard: usize, taken: &Taken<K>) -> Self {
        Self {
            shared: Arc::clone(shared),
            key: taken.key,
            hash: taken.hash,
            id: taken.id,
            shard: u32::try_from(shard).expect("at most 256 shards"),
            priority: taken.priority,
        }
    }

    /// The key.
    pub fn key(&self) -> &K {
        // SAFETY: the queue keeps the entry of a running key where it is and does not write to its
        // key until `finish`, which only `drop` calls; `shared` keeps the queue's memory alive.
        #[expect(unsafe_code, reason = "lends the key without a clone; proof above")]
        unsafe {
            self.key.as_ref()
        }
    }

    /// The priority the key was handed out with. Pass it on when the key is added again, so that
    /// a retry keeps it.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    fn key_ref(&self) -> KeyRef<'_, K> {
        KeyRef::with_hash(self.key(), self.hash)
    }

    /// Lets the rate limiter forget the key's failures.
    pub fn forget(&self) {
        self.shared.limiter.forget(self.key_ref());
    }

    /// How often the limiter has delayed the key since it was last forgotten.
    pub fn num_requeues(&self) -> u32 {
        self.shared.limiter.num_requeues(self.key_ref())
    }

    /// Adds the key again, with the priority it had, when the rate limiter allows it.
    pub fn add_rate_limited(&self) {
        self.add_with(AddOptions {
            rate_limited: true,
            ..self.again()
        });
    }

    /// Adds the key again, with the priority it had, once `delay` has passed.
    pub fn add_after(&self, delay: Duration) {
        self.add_with(AddOptions {
            after: Some(delay),
            ..self.again()
        });
    }

    /// Adds the key again as the options say.
    pub fn add_with(&self, options: AddOptions) {
        self.shared.add_with(self.key(), self.hash, options);
    }

    fn again(&self) -> AddOptions {
        AddOptions {
            priority: Some(self.priority),
            ..AddOptions::default()
        }
    }
}

impl<K: QueueKey, O: Order<K>> Deref for Item<K, O> {
    type Target = K;

    fn deref(&self) -> &K {
        self.key()
    }
}

impl<K: QueueKey, O: Order<K>> Drop for Item<K, O> {
    fn drop(&mut self) {
        self.shared.finish(self.shard as usize, self.id);
    }
}

impl<K: QueueKey + fmt::Debug, O: Order<K>> fmt::Debug for Item<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", self.key())
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}
