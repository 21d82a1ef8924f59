//! What comes into a controller: its queue, and the handlers and feeds that fill it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use informer::Registration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Queue;
use crate::builder::Name;
use crate::error::Error;
use crate::feed::Feed;
use crate::reconcile::BoxError;
use crate::source::StartSource;

/// Shared by a controller and its handles. Handlers hold it weakly, so name and queue are free
/// again once those are gone, and the handlers are removed then at the latest.
pub(crate) struct Intake {
    pub(crate) name: Name,
    pub(crate) queue: Queue,
    /// None once closed.
    inflow: Mutex<Option<Inflow>>,
    feeds_changed: Notify,
}

#[derive(Default)]
struct Inflow {
    handlers: Vec<Registration>,
    /// Not started yet.
    feeds: Vec<Feed>,
}

impl Intake {
    pub(crate) fn new(name: Name, queue: Queue) -> Arc<Self> {
        Arc::new(Self {
            name,
            queue,
            inflow: Mutex::new(Some(Inflow::default())),
            feeds_changed: Notify::new(),
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
        let noted = self.change(|inflow| inflow.handlers.push(handler.clone()));
        noted.inspect_err(|_| remove(&handler))?;
        Ok(handler)
    }

    /// Takes a feed in; it runs as soon as [`run_feeds`](Self::run_feeds) does.
    pub(crate) fn feed(&self, feed: Feed) -> Result<(), Error> {
        self.change(|inflow| inflow.feeds.push(feed))?;
        self.feeds_changed.notify_one();
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Inflow)) -> Result<(), Error> {
        // The lists are whole after each call, so a panic elsewhere leaves them usable.
        let mut inflow = self.inflow.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *inflow {
            Some(inflow) => {
                change(inflow);
                Ok(())
            }
            None => Err(Error::Stopped {
                name: self.name.boxed(),
            }),
        }
    }

    /// Runs the feeds, also those that come later, until `stop`, and waits for their end. If one
    /// fails, `stop` is cancelled, and the others are waited for as well.
    pub(crate) async fn run_feeds(self: &Arc<Self>, stop: &CancellationToken) -> Result<(), Error> {
        let mut running = JoinSet::new();
        let mut names = HashMap::new();
        let mut result = Ok(());
        while !(stop.is_cancelled() && running.is_empty()) {
            let mut feeds = Vec::new();
            if !stop.is_cancelled() {
                // Once closed there are no more.
                drop(self.change(|inflow| feeds.append(&mut inflow.feeds)));
            }
            for feed in feeds {
                let name = feed.name.clone();
                let task = running.spawn(feed.start(self, stop.child_token()));
                names.insert(task.id(), name);
            }
            let ended = tokio::select! {
                biased;
                ended = running.join_next_with_id(), if !running.is_empty() => ended,
                () = stop.cancelled(), if !stop.is_cancelled() => None,
                () = self.feeds_changed.notified(), if !stop.is_cancelled() => None,
            };
            let (id, failure): (_, Option<BoxError>) = match ended {
                None => continue,
                Some(Ok((id, ended))) => (id, ended.err()),
                Some(Err(panic)) => (panic.id(), Some(panic.into())),
            };
            let feed = names.remove(&id).unwrap_or_default();
            if let Some(source) = failure {
                stop.cancel();
                result = result.and(Err(Error::Feed {
                    name: self.name.boxed(),
                    feed: feed.into(),
                    source,
                }));
            }
        }
        result
    }

    /// Removes all handlers; from here on the queue takes no more keys. Idempotent.
    pub(crate) fn close(&self) {
        self.queue.shut_down();
        let inflow = self
            .inflow
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        for handler in inflow.iter().flat_map(|inflow| &inflow.handlers) {
            remove(handler);
        }
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
