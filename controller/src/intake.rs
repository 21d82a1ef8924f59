//! What comes into a controller: its queue, and the handlers that fill it.

use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use informer::Registration;

use crate::Queue;
use crate::builder::Name;
use crate::error::Error;
use crate::source::StartSource;

/// Shared by a controller and its handles. Handlers hold it weakly, so name and queue are free
/// again once those are gone, and the handlers are removed then at the latest.
pub(crate) struct Intake {
    pub(crate) name: Name,
    pub(crate) queue: Queue,
    /// None once closed.
    handlers: Mutex<Option<Vec<Registration>>>,
}

impl Intake {
    pub(crate) fn new(name: Name, queue: Queue) -> Arc<Self> {
        Arc::new(Self {
            name,
            queue,
            handlers: Mutex::new(Some(Vec::new())),
        })
    }

    /// Registers with the informer of `source`; from here on its events reach the queue.
    pub(crate) fn open(
        self: &Arc<Self>,
        source: Box<dyn StartSource>,
    ) -> Result<Registration, Error> {
        let informer = source.name();
        let handler = source.start(self).map_err(|source| Error::Source {
            name: self.name.boxed(),
            informer: informer.into(),
            source: Box::new(source),
        })?;
        // The list is whole after each call, so a panic elsewhere leaves it usable.
        let mut handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handlers) = &mut *handlers {
            handlers.push(handler.clone());
            return Ok(handler);
        }
        remove(&handler);
        Err(Error::Stopped {
            name: self.name.boxed(),
        })
    }

    /// Removes all handlers; from here on the queue takes no more keys. Idempotent.
    pub(crate) fn close(&self) {
        self.queue.shut_down();
        let handlers = self
            .handlers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        handlers.iter().flatten().for_each(remove);
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.close();
    }
}

/// Removes a handler without waiting for a call that runs now: it finds the queue shut.
fn remove(handler: &Registration) {
    // The first poll does it; inside the handler itself, which must not wait, it fails only after.
    drop(handler.shutdown().now_or_never());
}
