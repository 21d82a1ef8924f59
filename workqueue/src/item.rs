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
///
/// An item borrows the queue handle that it was taken from. [`into_owned`](Self::into_owned) makes
/// one that stands alone, for a task of its own.
pub struct Item<'q, K: QueueKey, O: Order<K> = Fifo> {
    shared: Handle<'q, K, O>,
    key: NonNull<K>,
    hash: u64,
    /// `NONE` once the run is another item's to end.
    id: KeyId,
    shard: u32,
    priority: i32,
}

/// A reference count of the queue is shared by all its workers; most items do without.
enum Handle<'q, K: QueueKey, O: Order<K>> {
    Borrowed(&'q Arc<Shared<K, O>>),
    Owned(Arc<Shared<K, O>>),
}

impl<K: QueueKey, O: Order<K>> Deref for Handle<'_, K, O> {
    type Target = Arc<Shared<K, O>>;

    fn deref(&self) -> &Arc<Shared<K, O>> {
        match self {
            Self::Borrowed(shared) => shared,
            Self::Owned(shared) => shared,
        }
    }
}

// SAFETY: `key` is used as a `&K` only, and `K` is `Sync`; the queue is `Send` and `Sync` itself.
#[expect(
    unsafe_code,
    reason = "a raw pointer is not `Send`; see the line above"
)]
unsafe impl<K: QueueKey, O: Order<K>> Send for Item<'_, K, O> {}
// SAFETY: as above.
#[expect(
    unsafe_code,
    reason = "a raw pointer is not `Sync`; see the line above"
)]
unsafe impl<K: QueueKey, O: Order<K>> Sync for Item<'_, K, O> {}

impl<'q, K: QueueKey, O: Order<K>> Item<'q, K, O> {
    pub(crate) fn new(shared: &'q Arc<Shared<K, O>>, shard: usize, taken: &Taken<K>) -> Self {
        Self {
            shared: Handle::Borrowed(shared),
            key: taken.key,
            hash: taken.hash,
            id: taken.id,
            shard: u32::try_from(shard).expect("at most 256 shards"),
            priority: taken.priority,
        }
    }

    /// The same item, with a handle of the queue of its own. The run goes on.
    ///
    /// ```
    /// use workqueue::{QueueOptions, WorkQueue};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), workqueue::Error> {
    /// let queue = WorkQueue::new(QueueOptions::default())?;
    /// queue.add("a");
    /// let mut tasks = tokio::task::JoinSet::new();
    /// if let Some(item) = queue.get().await {
    ///     let item = item.into_owned();
    ///     tasks.spawn(async move { item.len() });
    /// }
    /// assert_eq!(tasks.join_all().await, [1]);
    /// assert_eq!(queue.running(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_owned(mut self) -> Item<'static, K, O> {
        Item {
            shared: Handle::Owned(Arc::clone(&self.shared)),
            key: self.key,
            hash: self.hash,
            id: std::mem::replace(&mut self.id, KeyId::NONE),
            shard: self.shard,
            priority: self.priority,
        }
    }

    /// The key.
    pub fn key(&self) -> &K {
        // SAFETY: the queue keeps the entry of a running key where it is and does not write to its
        // key until `finish`, which only `drop` calls; `shared` keeps the queue's memory alive. An item that has
        // become an owned one is gone.
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

impl<K: QueueKey, O: Order<K>> Deref for Item<'_, K, O> {
    type Target = K;

    fn deref(&self) -> &K {
        self.key()
    }
}

impl<K: QueueKey, O: Order<K>> Drop for Item<'_, K, O> {
    fn drop(&mut self) {
        if let Some(id) = self.id.some() {
            self.shared.finish(self.shard as usize, id);
        }
    }
}

impl<K: QueueKey + fmt::Debug, O: Order<K>> fmt::Debug for Item<'_, K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", self.key())
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}
