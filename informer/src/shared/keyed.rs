//! Changes gathered by object, to be taken together: the other order in which events can be had.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use kube_core::Resource;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::core::Core;
use super::progress::Progress;
use super::queue::{Buffer, Merged, combine};
use crate::store::Version;
use crate::synced::{Gate, Synced};
use crate::{Cause, Event, ObjectKey, Origin};

/// A change of one object, with why it is told.
#[derive(Debug)]
pub struct KeyedDelta<K> {
    /// The change.
    pub event: Event<K>,
    /// Why it is told.
    pub origin: Origin,
}

/// The queue is closed and empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is closed, since it was told so or its informer has stopped")]
pub struct QueueClosed;

/// What has happened to the objects of an informer, gathered by object.
///
/// Objects leave in the order in which each was first heard of, with all that has happened to them
/// since, oldest first. Nothing is left out but a deletion that follows a deletion; of the two the
/// one with the state that the server sent stays. After a list the deletions it found come last. A
/// deletion of an object that the cache never had is not told.
///
/// Handlers are told in the order of the server over all objects instead; what an informer without
/// such queues costs does not change. Mirrors client-go's `DeltaFIFO`.
///
/// A handle: clones are the same queue. Dropping the last one takes it from the informer. Two that
/// pop at once may hold two rounds of changes of one object at the same time.
pub struct KeyedQueue<K> {
    shared: Arc<Shared<K>>,
}

pub(crate) struct Shared<K> {
    name: String,
    informer: Arc<Progress>,
    core: Weak<Core<K>>,
    buffer: Buffer,
    state: Mutex<State<K>>,
    ready: Notify,
    synced: Gate,
}

struct State<K> {
    lists: HashMap<ObjectKey, List<K>>,
    /// Keys by their first change. One whose number is not that of its list is void.
    line: VecDeque<(ObjectKey, u64)>,
    next_number: u64,
    /// Changes in all lists.
    waiting: usize,
    /// Objects of the initial state that are not processed yet; `None` before it is there.
    initial: Option<usize>,
    closed: bool,
}

struct List<K> {
    number: u64,
    deltas: Vec<KeyedDelta<K>>,
    /// It belongs to the initial state.
    initial: bool,
}

impl<K> Clone for KeyedQueue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K> fmt::Debug for KeyedQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedQueue")
            .field("name", &self.shared.name)
            .field("objects", &self.len())
            .finish_non_exhaustive()
    }
}

impl<K> KeyedQueue<K> {
    /// The objects of which something waits.
    pub fn len(&self) -> usize {
        self.shared.state.lock().lists.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes that wait, of all objects.
    pub fn waiting(&self) -> usize {
        self.shared.waiting()
    }

    /// Takes in nothing more. What waits can still be taken, then [`KeyedQueue::pop`] fails.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Whether the initial state was there and all of its objects have been taken and processed,
    /// that is, what [`KeyedQueue::pop`] gave for them was dropped.
    pub fn has_synced(&self) -> bool {
        self.shared.synced.is_open()
    }
}

impl<K: Resource + Send + Sync + 'static> KeyedQueue<K> {
    /// A queue that begins with the objects of `version`.
    pub(super) fn new(name: String, core: &Arc<Core<K>>, buffer: Buffer) -> Self {
        Self {
            shared: Arc::new(Shared {
                name,
                informer: Arc::clone(&core.progress),
                core: Arc::downgrade(core),
                buffer,
                state: Mutex::new(State {
                    lists: HashMap::new(),
                    line: VecDeque::new(),
                    next_number: 0,
                    waiting: 0,
                    initial: None,
                    closed: false,
                }),
                ready: Notify::new(),
                synced: Gate::new(),
            }),
        }
    }

    pub(super) fn downgrade(&self) -> Weak<Shared<K>> {
        Arc::downgrade(&self.shared)
    }

    pub(super) fn shared(&self) -> &Arc<Shared<K>> {
        &self.shared
    }

    /// The object that was heard of first, with all its changes; waits for one. Cancel-safe.
    ///
    /// # Errors
    /// [`QueueClosed`] once nothing waits and nothing more can come.
    pub async fn pop(&self) -> Result<Deltas<K>, QueueClosed> {
        loop {
            let ready = self.shared.ready.notified();
            tokio::pin!(ready);
            // Entered before the look, so that no wake between look and wait is lost.
            ready.as_mut().enable();
            if let Some(deltas) = self.try_pop() {
                return Ok(deltas);
            }
            if self.shared.state.lock().closed {
                return Err(QueueClosed);
            }
            ready.await;
        }
    }

    /// As [`KeyedQueue::pop`], if something waits.
    pub fn try_pop(&self) -> Option<Deltas<K>> {
        let mut state = self.shared.state.lock();
        let (key, list) = state.pop()?;
        Some(Deltas {
            key,
            deltas: list.deltas,
            processed: list.initial.then(|| Processed(Arc::clone(&self.shared))),
        })
    }

    /// Tells each object of the cache again, but for those of which something waits.
    pub fn resync(&self) {
        if let Some(core) = self.shared.core.upgrade() {
            core.resync_keyed(&self.shared);
        }
    }
}

impl<K: Resource + Send + Sync + 'static> Synced for KeyedQueue<K> {
    fn name(&self) -> String {
        let shared = &self.shared;
        format!("queue {} of {}", shared.name, shared.informer.name())
    }

    fn has_synced(&self) -> bool {
        KeyedQueue::has_synced(self)
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.synced.wait())
    }

    fn blocked_by(&self) -> Option<(Cause, String)> {
        if self.shared.informer.synced.is_open() {
            None
        } else {
            self.shared.informer.last_error()
        }
    }
}

/// One object's changes, oldest first. They count as processed when this is dropped.
pub struct Deltas<K> {
    key: ObjectKey,
    deltas: Vec<KeyedDelta<K>>,
    processed: Option<Processed<K>>,
}

impl<K> fmt::Debug for Deltas<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deltas")
            .field("key", &self.key)
            .field("number", &self.deltas.len())
            .field("initial", &self.processed.is_some())
            .finish()
    }
}

impl<K> Deltas<K> {
    /// Key of the object.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }
}

impl<K> std::ops::Deref for Deltas<K> {
    type Target = [KeyedDelta<K>];

    /// The changes. There is at least one.
    fn deref(&self) -> &[KeyedDelta<K>] {
        &self.deltas
    }
}

struct Processed<K>(Arc<Shared<K>>);

impl<K> Drop for Processed<K> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.processed_initial();
        self.0.open_if_synced(&state);
    }
}

impl<K> fmt::Debug for Shared<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<K> Shared<K> {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Changes that wait, of all objects.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_waiters();
    }

    fn open_if_synced(&self, state: &State<K>) {
        if state.initial == Some(0) {
            self.synced.open();
        }
    }
}

impl<K: Resource + Send + Sync + 'static> Shared<K> {
    /// Begins with the objects that are stored already.
    pub(super) fn replay(&self, version: &Version<K>, synced: bool) {
        let mut state = self.state.lock();
        for entry in version.iter() {
            let event = Event::Added {
                object: Arc::clone(&entry.object),
                is_in_initial_list: true,
            };
            state.push(event, Origin::Initial, self.buffer);
        }
        if synced {
            state.initial = Some(state.lists.len());
        }
        self.open_if_synced(&state);
    }

    /// Tells each object of `version` of which nothing waits.
    pub(super) fn resync(&self, version: &Version<K>) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        for entry in version.iter() {
            if state.lists.contains_key(&entry.key) {
                continue;
            }
            let event = Event::Updated {
                old: Arc::clone(&entry.object),
                new: Arc::clone(&entry.object),
            };
            state.push(event, Origin::Resync, self.buffer);
        }
        drop(state);
        self.ready.notify_waiters();
    }
}

impl<K> State<K> {
    fn pop(&mut self) -> Option<(ObjectKey, List<K>)> {
        loop {
            let (key, number) = self.line.pop_front()?;
            if self
                .lists
                .get(&key)
                .is_some_and(|list| list.number == number)
            {
                let list = self.lists.remove(&key)?;
                self.waiting -= list.deltas.len();
                if self.lists.is_empty() && self.lists.capacity() > 1024 {
                    self.lists = HashMap::new();
                    self.line = VecDeque::new();
                }
                return Some((key, list));
            }
        }
    }

    fn processed_initial(&mut self) {
        if let Some(initial) = &mut self.initial {
            *initial = initial.saturating_sub(1);
        }
    }
}

impl<K: Resource> State<K> {
    fn push(&mut self, event: Event<K>, origin: Origin, buffer: Buffer) {
        let key = event.key();
        let initial = origin == Origin::Initial;
        let over = matches!(buffer, Buffer::Coalesce(limit) if self.waiting >= limit);
        let Some(list) = self.lists.get_mut(&key) else {
            let number = self.next_number;
            self.next_number += 1;
            self.line.push_back((key.clone(), number));
            let deltas = vec![KeyedDelta { event, origin }];
            let list = List {
                number,
                deltas,
                initial,
            };
            self.lists.insert(key, list);
            self.waiting += 1;
            return;
        };
        let last = list.deltas.last_mut().expect("a list has a change");
        if let (
            Event::Deleted { .. },
            Event::Deleted {
                final_state_known, ..
            },
        ) = (&last.event, &event)
        {
            if *final_state_known {
                *last = KeyedDelta { event, origin };
            }
            return;
        }
        if !over {
            list.deltas.push(KeyedDelta { event, origin });
            self.waiting += 1;
            return;
        }
        match combine(&last.event, event) {
            Ok(Merged::Into(event)) => last.event = event,
            Ok(Merged::Cancelled) => {
                list.deltas.pop();
                self.waiting -= 1;
                if list.deltas.is_empty() {
                    let was_initial = list.initial;
                    self.lists.remove(&key);
                    if was_initial {
                        self.processed_initial();
                    }
                    self.sweep();
                }
            }
            Err(event) => {
                list.deltas.push(KeyedDelta { event, origin });
                self.waiting += 1;
            }
        }
    }

    /// Forgets void places once they are the most.
    fn sweep(&mut self) {
        if self.line.len() > 2 * self.lists.len() + 16 {
            let lists = &self.lists;
            self.line
                .retain(|(key, number)| lists.get(key).is_some_and(|list| list.number == *number));
        }
    }
}

/// Changes that enter one queue together: those of one list, or of what a watch brought at once.
pub(super) struct Batch<K> {
    queue: Arc<Shared<K>>,
    /// The store before these changes.
    before: Arc<Version<K>>,
    /// What they have changed of it so far.
    known: HashMap<ObjectKey, bool>,
    /// They come out of a list, so deletions are last.
    listed: bool,
    events: Vec<(Event<K>, Origin)>,
    deletions: Vec<(Event<K>, Origin)>,
}

impl<K: Resource + Send + Sync + 'static> Batch<K> {
    pub(super) fn new(queue: Arc<Shared<K>>, before: Arc<Version<K>>, listed: bool) -> Self {
        Self {
            queue,
            before,
            known: HashMap::new(),
            listed,
            events: Vec::new(),
            deletions: Vec::new(),
        }
    }

    /// Takes a change in. In a list the end of an object that another took the place of stays
    /// before that other.
    pub(super) fn take(&mut self, event: &Event<K>, origin: Origin) {
        let key = event.key();
        let deleted = matches!(event, Event::Deleted { .. });
        let was_known = match self.known.get(&key) {
            Some(known) => *known,
            None => self.before.get(&key).is_some(),
        };
        self.known.insert(key, !deleted);
        if deleted && !was_known {
            let state = self.queue.state.lock();
            // The queue may hold an end without the last state, which this one has.
            if !state.lists.contains_key(&event.key()) {
                return;
            }
        }
        if deleted && self.listed {
            self.deletions.push((event.clone(), origin));
        } else {
            self.events.push((event.clone(), origin));
        }
    }

    /// Lets the changes into the queue in one step; `first` says that they are its initial state.
    pub(super) fn commit(self, first: bool) {
        let mut state = self.queue.state.lock();
        if state.closed {
            return;
        }
        let mut deletions = self.deletions;
        if !deletions.is_empty() {
            let anew: std::collections::HashSet<_> =
                self.events.iter().map(|(event, _)| event.key()).collect();
            // An object that took another's place comes behind that one's end.
            let (replaced, gone) = deletions
                .into_iter()
                .partition::<Vec<_>, _>(|(event, _)| anew.contains(&event.key()));
            for (event, origin) in replaced {
                state.push(event, origin, self.queue.buffer);
            }
            deletions = gone;
        }
        for (event, origin) in self.events.into_iter().chain(deletions) {
            state.push(event, origin, self.queue.buffer);
        }
        if first {
            state.initial = Some(state.lists.values().filter(|list| list.initial).count());
        }
        self.queue.open_if_synced(&state);
        drop(state);
        self.queue.ready.notify_waiters();
    }
}
