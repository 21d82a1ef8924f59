//! The events that wait for one handler.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::vec;

use kube_core::Resource;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{Event, ObjectKey, Origin};

/// What a handler's queue does when its handler does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Every event waits, however many they are.
    Unbounded,
    /// Above this number of waiting events, those of one object are merged: updates into one from
    /// the first old to the last new state, an addition with its deletion into nothing. So no
    /// more than three events per object wait beyond the limit: an update, the deletion, and the
    /// addition of the next object of that name.
    Coalesce(usize),
}

impl Default for Buffer {
    /// Merging above 100,000 events.
    fn default() -> Self {
        Self::Coalesce(100_000)
    }
}

/// What a handler's task does next.
#[derive(Debug)]
pub(super) enum Step<K> {
    Deliver(Event<K>, Origin),
    /// All events of the initial state have been delivered.
    Synced,
    /// All events up to here have been delivered.
    Told,
}

#[derive(Debug)]
enum Slot<K> {
    Event(Event<K>, Origin),
    Synced,
    Told,
    /// An event that was merged away.
    Dead,
}

/// What became of an event that met a waiting one of its object.
#[derive(Debug)]
pub(super) enum Merged<K> {
    /// The waiting event becomes this one.
    Into(Event<K>),
    /// Both are void.
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Queue<K> {
    state: Mutex<State<K>>,
    ready: Notify,
    buffer: Buffer,
}

#[derive(Debug)]
struct State<K> {
    /// Objects that were there before a late handler, ahead of all slots.
    replay: vec::IntoIter<Arc<K>>,
    slots: VecDeque<Slot<K>>,
    /// Number of the first slot, counted from the queue's beginning.
    first: u64,
    /// Slots that hold an event.
    waiting: usize,
    dead: usize,
    /// While merging: the number of the last slot of each object.
    last_of: Option<HashMap<ObjectKey, u64>>,
}

impl<K: Resource> Queue<K> {
    pub(super) fn new(buffer: Buffer, replay: Vec<Arc<K>>) -> Self {
        Self {
            state: Mutex::new(State {
                replay: replay.into_iter(),
                slots: VecDeque::new(),
                first: 0,
                waiting: 0,
                dead: 0,
                last_of: None,
            }),
            ready: Notify::new(),
            buffer,
        }
    }

    /// Events that wait, those of a replay included.
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock();
        state.replay.len() + state.waiting
    }

    pub(super) fn push_all(&self, events: impl IntoIterator<Item = Event<K>>, origin: Origin) {
        let mut state = self.state.lock();
        for event in events {
            state.push(event, origin, self.buffer);
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Marks the end of the initial state behind everything that waits now.
    pub(super) fn push_synced(&self) {
        self.state.lock().slots.push_back(Slot::Synced);
        self.ready.notify_one();
    }

    /// Marks a place behind everything that waits now.
    pub(super) fn push_told(&self) {
        self.state.lock().slots.push_back(Slot::Told);
        self.ready.notify_one();
    }

    /// The next step if there is one.
    pub(super) fn try_next(&self) -> Option<Step<K>> {
        self.state.lock().pop(self.buffer)
    }

    /// The next step, once there is one. Cancel-safe.
    pub(super) async fn next(&self) -> Step<K> {
        loop {
            if let Some(step) = self.try_next() {
                return step;
            }
            self.ready.notified().await;
        }
    }
}

impl<K: Resource> State<K> {
    fn push(&mut self, event: Event<K>, origin: Origin, buffer: Buffer) {
        if let Buffer::Coalesce(limit) = buffer
            && self.waiting >= limit
        {
            self.merge(event, origin);
            return;
        }
        if let Some(last_of) = &mut self.last_of {
            last_of.insert(event.key(), self.first + self.slots.len() as u64);
        }
        self.append(event, origin);
    }

    fn append(&mut self, event: Event<K>, origin: Origin) {
        self.slots.push_back(Slot::Event(event, origin));
        self.waiting += 1;
    }

    fn merge(&mut self, event: Event<K>, origin: Origin) {
        if self.last_of.is_none() {
            self.last_of = Some(self.index());
        }
        let key = event.key();
        let next = self.first + self.slots.len() as u64;
        let last_of = self.last_of.as_mut().expect("made above");
        let waiting = last_of.get(&key).and_then(|number| {
            let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
            self.slots.get_mut(at)
        });
        let Some(slot @ Slot::Event(..)) = waiting else {
            last_of.insert(key, next);
            self.append(event, origin);
            return;
        };
        let Slot::Event(before, first) = std::mem::replace(slot, Slot::Dead) else {
            unreachable!("matched as an event above")
        };
        match combine(&before, event) {
            Ok(Merged::Into(merged)) => {
                // An addition stays what it was, however often it was updated since; a change that
                // waits makes a resync void.
                let kept = matches!(merged, Event::Added { .. }) || origin == Origin::Resync;
                *slot = Slot::Event(merged, if kept { first } else { origin });
            }
            Ok(Merged::Cancelled) => {
                self.waiting -= 1;
                self.dead += 1;
                // An earlier deletion of the same key may wait before the slot that died; it
                // must not be merged with what follows, which is another object's life.
                last_of.remove(&key);
                if self.dead > self.slots.len() / 2 {
                    self.compact();
                }
            }
            Err(event) => {
                *slot = Slot::Event(before, first);
                last_of.insert(key, next);
                self.append(event, origin);
            }
        }
    }

    fn compact(&mut self) {
        self.slots.retain(|slot| !matches!(slot, Slot::Dead));
        self.dead = 0;
        self.first = 0;
        self.last_of = Some(self.index());
    }

    fn index(&self) -> HashMap<ObjectKey, u64> {
        (self.first..)
            .zip(&self.slots)
            .filter_map(|(number, slot)| match slot {
                Slot::Event(event, _) => Some((event.key(), number)),
                Slot::Synced | Slot::Told | Slot::Dead => None,
            })
            .collect()
    }

    fn pop(&mut self, buffer: Buffer) -> Option<Step<K>> {
        if let Some(object) = self.replay.next() {
            if self.replay.len() == 0 {
                self.replay = Vec::new().into_iter();
            }
            let event = Event::Added {
                object,
                is_in_initial_list: true,
            };
            return Some(Step::Deliver(event, Origin::Initial));
        }
        loop {
            let slot = self.slots.pop_front()?;
            self.first += 1;
            match slot {
                Slot::Dead => self.dead -= 1,
                Slot::Synced => return Some(Step::Synced),
                Slot::Told => return Some(Step::Told),
                Slot::Event(event, origin) => {
                    self.waiting -= 1;
                    self.forget(&event);
                    self.calm_down(buffer);
                    return Some(Step::Deliver(event, origin));
                }
            }
        }
    }

    /// Drops the place of an event that has left, so that only waiting objects are known.
    fn forget(&mut self, event: &Event<K>) {
        if let Some(last_of) = &mut self.last_of
            && let Entry::Occupied(place) = last_of.entry(event.key())
            && *place.get() < self.first
        {
            place.remove();
        }
    }

    /// Gives memory back once the handler has caught up.
    fn calm_down(&mut self, buffer: Buffer) {
        if let Buffer::Coalesce(limit) = buffer
            && self.last_of.is_some()
            && self.waiting <= limit / 2
        {
            self.last_of = None;
        }
        if self.slots.is_empty() && self.slots.capacity() > 1024 {
            self.slots = VecDeque::new();
        }
    }
}

/// What `event` makes of the one of the same object that waits `before` it; the event itself
/// comes back as the error where both must stay.
pub(super) fn combine<K: Resource>(
    before: &Event<K>,
    event: Event<K>,
) -> Result<Merged<K>, Event<K>> {
    use Event::{Added, Deleted, Updated};

    Ok(match (before, event) {
        (
            Added {
                is_in_initial_list, ..
            },
            Updated { new, .. },
        ) => Merged::Into(Added {
            object: new,
            is_in_initial_list: *is_in_initial_list,
        }),
        (Added { .. }, Deleted { .. }) => Merged::Cancelled,
        (Updated { old, .. }, Updated { new, .. }) => Merged::Into(Updated {
            old: Arc::clone(old),
            new,
        }),
        // A deletion does not take the place of an update: only that tells a filter or a map what
        // the object was when its handler last heard of it.
        (_, event) => return Err(event),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::ConfigMap;
    use proptest::prelude::*;

    use super::*;
    use crate::{Filtered, Handler as _};

    const KEYS: u8 = 5;

    fn push(queue: &Queue<ConfigMap>, event: Event<ConfigMap>, origin: Origin) {
        queue.push_all([event], origin);
    }

    fn object(at: u8, version: u64) -> Arc<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(at.to_string());
        object.metadata.resource_version = Some(version.to_string());
        Arc::new(object)
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// Change or delete the object of this number.
        Change(u8, bool),
        Resync(u8),
        Take(usize),
        EndOfInitial,
    }

    /// Follows the events a handler is given, and refuses what does not fit.
    #[derive(Default)]
    struct View(BTreeMap<u8, Arc<ConfigMap>>);

    impl View {
        fn take(&mut self, event: &Event<ConfigMap>) {
            let at: u8 = event.key().name().parse().unwrap();
            match event {
                Event::Added { object, .. } => {
                    assert!(
                        self.0.insert(at, Arc::clone(object)).is_none(),
                        "added twice"
                    );
                }
                Event::Updated { old, new } => {
                    let before = self
                        .0
                        .insert(at, Arc::clone(new))
                        .expect("updated before added");
                    assert!(Arc::ptr_eq(&before, old), "a state was left out");
                }
                Event::Deleted { .. } => {
                    assert!(self.0.remove(&at).is_some(), "deleted before added");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn h14_whatever_is_merged_the_view_stays_whole_and_the_queue_bounded(
            limit in 0..12_usize,
            ops in proptest::collection::vec(
                prop_oneof![
                    12 => (0..KEYS, prop::bool::weighted(0.4)).prop_map(|(at, gone)| Op::Change(at, gone)),
                    2 => (0..KEYS).prop_map(Op::Resync),
                    2 => (0..8_usize).prop_map(Op::Take),
                    1 => Just(Op::EndOfInitial),
                ],
                0..200,
            ),
        ) {
            let replayed = vec![object(0, 1), object(1, 2)];
            let mut truth: BTreeMap<u8, Arc<ConfigMap>> =
                (0..).zip(replayed.iter().map(Arc::clone)).collect();
            let queue = Queue::new(Buffer::Coalesce(limit), replayed);
            let mut view = View::default();
            // What a handler behind a filter knows.
            let even = |object: &ConfigMap| {
                let version = object.metadata.resource_version.as_deref().unwrap_or_default();
                version.ends_with(['0', '2', '4', '6', '8'])
            };
            let filtered_view = Arc::new(Mutex::new(View::default()));
            let told = Arc::clone(&filtered_view);
            let filtered = Filtered::new(even, move |event: &Event<ConfigMap>| {
                told.lock().take(event);
            });
            let (mut marks, mut passed) = (0, 0);
            let mut version = 2;
            for op in ops {
                version += 1;
                match op {
                    Op::Change(at, true) => {
                        if let Some(object) = truth.remove(&at) {
                            push(&queue, Event::Deleted { object, last_cached: None, final_state_known: true }, Origin::Watch);
                        }
                    }
                    Op::Change(at, false) => {
                        let new = object(at, version);
                        let event = match truth.insert(at, Arc::clone(&new)) {
                            None => Event::Added { object: new, is_in_initial_list: false },
                            Some(old) => Event::Updated { old, new },
                        };
                        push(&queue, event, Origin::Watch);
                    }
                    Op::Resync(at) => {
                        if let Some(object) = truth.get(&at) {
                            let (old, new) = (Arc::clone(object), Arc::clone(object));
                            push(&queue, Event::Updated { old, new }, Origin::Resync);
                        }
                    }
                    Op::EndOfInitial => {
                        queue.push_synced();
                        marks += 1;
                    }
                    Op::Take(n) => {
                        for step in (0..n).map_while(|_| queue.try_next()) {
                            match step {
                                Step::Deliver(event, _) => {
                                    view.take(&event);
                                    filtered.on_event(&event);
                                }
                                Step::Synced => passed += 1,
                                Step::Told => {}
                            }
                        }
                    }
                }
                prop_assert!(queue.state.lock().waiting <= limit + 3 * usize::from(KEYS));
            }
            while let Some(step) = queue.try_next() {
                match step {
                    Step::Deliver(event, _) => {
                        view.take(&event);
                        filtered.on_event(&event);
                    }
                    Step::Synced => passed += 1,
                    Step::Told => {}
                }
            }
            prop_assert_eq!(&view.0, &truth);
            truth.retain(|_, object| even(object));
            prop_assert_eq!(&filtered_view.lock().0, &truth);
            prop_assert_eq!(passed, marks);
            let state = queue.state.lock();
            prop_assert_eq!((state.waiting, state.dead, state.slots.len()), (0, 0, 0));
        }
    }

    #[test]
    fn endless_churn_behind_a_stuck_handler_holds_no_memory() {
        let queue = Queue::new(Buffer::Coalesce(0), Vec::new());
        let added = |object| Event::Added {
            object,
            is_in_initial_list: false,
        };
        push(&queue, added(object(0, 1)), Origin::Watch);
        for version in 0..10_000 {
            let object = object(1, version);
            push(&queue, added(Arc::clone(&object)), Origin::Watch);
            let deleted = Event::Deleted {
                object,
                last_cached: None,
                final_state_known: true,
            };
            push(&queue, deleted, Origin::Watch);
        }
        let state = queue.state.lock();
        assert_eq!(state.waiting, 1);
        assert!(state.slots.len() < 8, "{} slots", state.slots.len());
    }

    #[test]
    fn i94_a_merged_event_tells_where_its_news_came_from() {
        let queue = Queue::new(Buffer::Coalesce(0), Vec::new());
        let (first, second, third) = (object(0, 1), object(0, 2), object(0, 3));
        let updated = |old: &Arc<ConfigMap>, new: &Arc<ConfigMap>| Event::Updated {
            old: Arc::clone(old),
            new: Arc::clone(new),
        };
        let next = || match queue.try_next() {
            Some(Step::Deliver(event, origin)) => {
                (event.resource_version().to_owned(), origin.as_str())
            }
            other => panic!("{other:?}"),
        };
        push(&queue, updated(&first, &second), Origin::Watch);
        push(&queue, updated(&second, &second), Origin::Resync);
        assert_eq!(next(), ("2".to_owned(), "watch"), "a pending change wins");
        push(&queue, updated(&first, &second), Origin::Watch);
        push(&queue, updated(&second, &third), Origin::Relist);
        assert_eq!(next(), ("3".to_owned(), "relist"));
        let added = Event::Added {
            object: first,
            is_in_initial_list: true,
        };
        push(&queue, added, Origin::Initial);
        push(&queue, updated(&second, &third), Origin::Watch);
        assert_eq!(next(), ("3".to_owned(), "initial"));
    }
}
