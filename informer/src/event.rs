//! What handlers are told.

use std::future::Future;
use std::sync::Arc;

use kube_core::Resource;

use crate::ObjectKey;

/// A change of the cache. Objects are shared with the store; cloning an event copies none.
#[derive(Debug)]
pub enum Event<K> {
    /// An object came into the cache.
    Added {
        /// The object.
        object: Arc<K>,
        /// It belongs to the state that this handler started with: the first list, or the
        /// replay for a handler that came later.
        is_in_initial_list: bool,
    },
    /// An object changed, or a resync was due: then both are the same object.
    Updated {
        /// The object before.
        old: Arc<K>,
        /// The object now.
        new: Arc<K>,
    },
    /// An object left the cache.
    Deleted {
        /// The last state known.
        object: Arc<K>,
        /// The state that the cache held until then, where the server sent a later one along with
        /// the deletion: with it whoever looks at a part of the objects knows whether this was one
        /// of them.
        last_cached: Option<Arc<K>>,
        /// The server sent this state along with the deletion. If not, the deletion was missed
        /// and found by a list, and the object may have changed before it went.
        final_state_known: bool,
    },
}

impl<K> Clone for Event<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Added {
                object,
                is_in_initial_list,
            } => Self::Added {
                object: Arc::clone(object),
                is_in_initial_list: *is_in_initial_list,
            },
            Self::Updated { old, new } => Self::Updated {
                old: Arc::clone(old),
                new: Arc::clone(new),
            },
            Self::Deleted {
                object,
                last_cached,
                final_state_known,
            } => Self::Deleted {
                object: Arc::clone(object),
                last_cached: last_cached.clone(),
                final_state_known: *final_state_known,
            },
        }
    }
}

impl<K> Event<K> {
    /// The object as it is now, or as it was last.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added { object, .. } | Self::Deleted { object, .. } => object,
            Self::Updated { new, .. } => new,
        }
    }
}

/// Why a handler is told of an event.
///
/// Together with [`Event::resource_version`] it lets an event be followed from the server to what
/// it led to: both stand in the span `informer.event` in which handlers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The state that the handler started with: the first list, or the replay for a late handler.
    Initial,
    /// A frame of a watch.
    Watch,
    /// A later list, which found a difference.
    Relist,
    /// A resync was due; nothing changed.
    Resync,
    /// The namespace is no longer looked at, or the server no longer knows it.
    Unfollowed,
}

impl Origin {
    /// The origin as a word for labels and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Watch => "watch",
            Self::Relist => "relist",
            Self::Resync => "resync",
            Self::Unfollowed => "unfollowed",
        }
    }
}

impl<K: Resource> Event<K> {
    /// Version of the object as it is now, or as it was last; empty where it has none. That of a
    /// deletion in a watch is the deletion's own.
    pub fn resource_version(&self) -> &str {
        let meta = self.object().meta();
        meta.resource_version.as_deref().unwrap_or_default()
    }

    /// Key of the object, the same for a live object and for a tombstone.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(&**self.object())
    }

    /// Whether this is an update to the same resource version, as a resync sends.
    pub fn is_resync(&self) -> bool {
        match self {
            Self::Updated { old, new } => {
                old.meta().resource_version == new.meta().resource_version
            }
            _ => false,
        }
    }
}

/// Receives the events of an informer, one at a time, in the order of the store.
///
/// Every handler has a queue and a task of its own, so a slow one delays no other. A handler runs
/// on the async runtime and must not block a thread for long; work belongs into a work queue, or
/// into an [`AsyncHandler`]. A panic is caught, counted and logged, and the next event follows
/// after a pause.
///
/// Closures `Fn(&Event<K>)` are handlers.
pub trait Handler<K>: Send + Sync + 'static {
    /// Called for each event.
    fn on_event(&self, event: &Event<K>);

    /// As [`Handler::on_event`], for handlers that want to know why they are told. Where it is
    /// implemented, it alone is called.
    fn on_event_from(&self, event: &Event<K>, origin: Origin) {
        let _: Origin = origin;
        self.on_event(event);
    }
}

impl<K, F> Handler<K> for F
where
    F: Fn(&Event<K>) + Send + Sync + 'static,
{
    fn on_event(&self, event: &Event<K>) {
        self(event);
    }
}

/// A handler that awaits. The next event waits until the future of the one before ended.
///
/// Closures `Fn(Event<K>) -> impl Future` are async handlers.
pub trait AsyncHandler<K>: Send + Sync + 'static {
    /// Called for each event. The future is dropped when its handler is removed, and when the
    /// informer stops unless [`OnStop::Deliver`](crate::OnStop::Deliver) was chosen.
    fn on_event(&self, event: Event<K>) -> impl Future<Output = ()> + Send;

    /// As [`AsyncHandler::on_event`], for handlers that want to know why they are told. Where it
    /// is implemented, it alone is called.
    fn on_event_from(&self, event: Event<K>, origin: Origin) -> impl Future<Output = ()> + Send {
        let _: Origin = origin;
        self.on_event(event)
    }
}

impl<K, F, Fut> AsyncHandler<K> for F
where
    F: Fn(Event<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    fn on_event(&self, event: Event<K>) -> impl Future<Output = ()> + Send {
        self(event)
    }
}

/// A handler that is told of the objects that pass a filter, as if there were no others.
///
/// An update by which an object begins to pass is told as an addition, one by which it ceases to
/// pass as a deletion of its last state that passed, and so is the end of an object whose final
/// state does not pass any more. The filter must give the same answer for the
/// same object. Mirrors client-go's `FilteringResourceEventHandler`.
#[derive(Debug)]
pub struct Filtered<F, H> {
    filter: F,
    handler: H,
}

impl<F, H> Filtered<F, H> {
    /// Tells `handler` of the objects for which `filter` holds.
    pub fn new<K>(filter: F, handler: H) -> Self
    where
        F: Fn(&K) -> bool + Send + Sync + 'static,
        H: Handler<K>,
    {
        Self { filter, handler }
    }

    /// The event as it looks through the filter.
    fn passed<K>(&self, event: &Event<K>) -> Option<Event<K>>
    where
        F: Fn(&K) -> bool,
    {
        match event {
            Event::Added { object, .. } => (self.filter)(object).then(|| event.clone()),
            Event::Updated { old, new } => match ((self.filter)(old), (self.filter)(new)) {
                (true, true) => Some(event.clone()),
                (false, true) => Some(Event::Added {
                    object: Arc::clone(new),
                    is_in_initial_list: false,
                }),
                (true, false) => Some(gone(old)),
                (false, false) => None,
            },
            Event::Deleted {
                object,
                last_cached,
                ..
            } => {
                let passes = (self.filter)(object);
                match last_cached {
                    None => passes.then(|| event.clone()),
                    // Its last state says nothing of whether the handler knows it.
                    Some(cached) if !(self.filter)(cached) => None,
                    Some(_) if passes => Some(event.clone()),
                    Some(cached) => Some(gone(cached)),
                }
            }
        }
    }
}

/// The end of an object that has ceased to pass, in its last state that did.
fn gone<K>(object: &Arc<K>) -> Event<K> {
    Event::Deleted {
        object: Arc::clone(object),
        last_cached: None,
        final_state_known: true,
    }
}

impl<K, F, H> Handler<K> for Filtered<F, H>
where
    F: Fn(&K) -> bool + Send + Sync + 'static,
    H: Handler<K>,
{
    fn on_event(&self, event: &Event<K>) {
        if let Some(event) = self.passed(event) {
            self.handler.on_event(&event);
        }
    }

    fn on_event_from(&self, event: &Event<K>, origin: Origin) {
        if let Some(event) = self.passed(event) {
            self.handler.on_event_from(&event, origin);
        }
    }
}
