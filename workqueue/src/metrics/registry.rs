//! Which queues there are.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::Mutex;

use super::{QueueSnapshot, render};
use crate::error::Error;

/// Something that metrics can be read from.
pub(crate) trait Source: Send + Sync {
    fn snapshot(&self) -> QueueSnapshot;
}

/// A set of named queues whose metrics are read together.
///
/// A handle: clones are the same set.
///
/// ```
/// use workqueue::{QueueOptions, WorkQueue, metrics::Registry};
///
/// let registry = Registry::new();
/// let queue: WorkQueue<u32> = WorkQueue::new(QueueOptions {
///     name: "proxy".to_owned(),
///     registry: registry.clone(),
///     ..QueueOptions::default()
/// })?;
/// queue.add(1);
/// assert!(registry.render().contains("workqueue_depth{name=\"proxy\"} 1\n"));
/// drop(queue);
/// assert_eq!(registry.render(), "");
/// # Ok::<_, workqueue::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    queues: Arc<Mutex<BTreeMap<String, Weak<dyn Source>>>>,
}

impl Registry {
    /// A set without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set that queues join unless their options say otherwise.
    pub fn global() -> Self {
        static GLOBAL: OnceLock<Registry> = OnceLock::new();
        GLOBAL.get_or_init(Self::new).clone()
    }

    /// The metrics of all queues now, in the order of names.
    pub fn snapshots(&self) -> Vec<QueueSnapshot> {
        // Read without the lock: the last handle of a queue may be dropped here.
        let queues: Vec<_> = self
            .queues
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        queues.iter().map(|queue| queue.snapshot()).collect()
    }

    /// The metrics of all queues now, in the Prometheus text format; empty without queues.
    pub fn render(&self) -> String {
        render::render(&self.snapshots())
    }

    pub(crate) fn register(
        &self,
        name: &str,
        queue: Weak<dyn Source>,
    ) -> Result<Registration, Error> {
        let mut queues = self.queues.lock();
        if queues
            .get(name)
            .is_some_and(|queue| queue.strong_count() > 0)
        {
            return Err(Error::NameTaken {
                name: name.to_owned(),
            });
        }
        queues.insert(name.to_owned(), Weak::clone(&queue));
        Ok(Registration {
            registry: self.clone(),
            name: name.to_owned(),
            queue,
        })
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.queues.lock().keys()).finish()
    }
}

/// A queue's place in a registry; dropped with the queue.
pub(crate) struct Registration {
    registry: Registry,
    name: String,
    queue: Weak<dyn Source>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut queues = self.registry.queues.lock();
        // A new queue may have taken the name between the end of ours and this moment.
        if queues
            .get(&self.name)
            .is_some_and(|queue| queue.ptr_eq(&self.queue))
        {
            queues.remove(&self.name);
        }
    }
}
