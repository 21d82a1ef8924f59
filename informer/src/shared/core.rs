//! Store and handlers behind one lock, so that a handler that joins misses and repeats nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kube_core::Resource;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::crash::Crash;
use super::keyed::{self, KeyedQueue};
use super::progress::Progress;
use super::queue::Buffer;
use super::subscriber::{Callback, Delivery, HandlerOptions, Home, Registration, Subscriber};
use crate::metrics::{self, HandlerSnapshot, InformerSnapshot};
use crate::store::{BuildUp, Change, Delta, Store, Version};
use crate::{Error, Event, ObjectKey, Origin};

/// Shortest resync period.
const MIN_RESYNC: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Core<K> {
    pub(crate) store: Arc<Store<K>>,
    pub(crate) progress: Arc<Progress>,
    fanout: Mutex<Fanout<K>>,
    resync_changed: Notify,
    pub(super) crash: Arc<Crash>,
    /// The informer shall end as if all of its objects were gone.
    pub(crate) leaving: CancellationToken,
}

#[derive(Debug)]
struct Fanout<K> {
    members: Vec<Member<K>>,
    keyed: Vec<Weak<keyed::Shared<K>>>,
    phase: Phase,
    /// The first list has been handed out.
    synced: bool,
    /// Least resync period at the start; later handlers cannot go below it.
    check_period: Option<Duration>,
}

#[derive(Debug)]
struct Member<K> {
    subscriber: Arc<Subscriber<K>>,
    resync: Option<Resync>,
}

#[derive(Debug)]
struct Resync {
    period: Duration,
    /// None before the start, and where it lies beyond what can be expressed.
    due: Option<Instant>,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Running {
        tasks: TaskTracker,
        stop: CancellationToken,
    },
    /// `ran` is false if it was given up before it started.
    Stopped {
        ran: bool,
    },
}

/// What a running informer owns: its handlers' tasks and their stop.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl<K: Resource + Send + Sync + 'static> Core<K> {
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self {
            store: Arc::new(Store::new()),
            progress,
            fanout: Mutex::new(Fanout {
                members: Vec::new(),
                keyed: Vec::new(),
                phase: Phase::Idle,
                synced: false,
                check_period: None,
            }),
            resync_changed: Notify::new(),
            crash: Arc::default(),
            leaving: CancellationToken::new(),
        }
    }

    /// Adds a handler; where objects are stored already, it gets each of them first.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        name: String,
        callback: Callback<K>,
        options: HandlerOptions,
        default_resync: Duration,
    ) -> Result<Registration, Error> {
        self.with_fanout(|fanout| {
            if matches!(fanout.phase, Phase::Stopped { .. }) {
                return Err(self.stopped());
            }
            let objects = self.store.version();
            let objects = objects.iter().map(|entry| Arc::clone(&entry.object));
            let in_place = options.delivery == Delivery::InPlace && callback.is_plain();
            let (here, queued): (Vec<_>, Vec<_>) = match in_place {
                true => (objects.collect(), Vec::new()),
                false => (Vec::new(), objects.collect()),
            };
            let period = options.resync.unwrap_or(default_resync);
            let subscriber = Arc::new(Subscriber::new(
                name,
                Arc::clone(&self.progress),
                Arc::downgrade(self) as Weak<dyn Home>,
                Arc::clone(&self.crash),
                callback,
                options,
                queued,
            ));
            let initial = here.into_iter().map(|object| Event::Added {
                object,
                is_in_initial_list: true,
            });
            if in_place {
                subscriber.tell_all(initial, Origin::Initial);
            }
            if fanout.synced {
                subscriber.tell_synced();
            }
            let resync = (!period.is_zero()).then(|| {
                let period = period
                    .max(fanout.check_period.unwrap_or(MIN_RESYNC))
                    .max(MIN_RESYNC);
                let running = matches!(fanout.phase, Phase::Running { .. });
                Resync {
                    period,
                    due: Instant::now().checked_add(period).filter(|_| running),
                }
            });
            if let Phase::Running { tasks, stop } = &fanout.phase {
                subscriber.spawn(tasks, stop);
            }
            let registration = Registration(Arc::clone(&subscriber.shared));
            fanout.members.push(Member { subscriber, resync });
            self.resync_changed.notify_one();
            Ok(registration)
        })
    }

    /// Changes what is handed out, or hands out. Handlers that were removed until then are dropped,
    /// with what waits for them, and without the lock: code of users runs where they are dropped.
    fn with_fanout<T>(&self, change: impl FnOnce(&mut Fanout<K>) -> T) -> T {
        let mut fanout = self.fanout.lock();
        let outcome = change(&mut fanout);
        let gone = fanout.let_go();
        drop(fanout);
        drop(gone);
        outcome
    }

    fn stopped(&self) -> Error {
        Error::Stopped {
            informer: self.progress.name().to_owned(),
        }
    }

    /// Adds a queue that gathers changes by object.
    pub(super) fn subscribe_keyed(
        self: &Arc<Self>,
        name: String,
        buffer: Buffer,
    ) -> Result<KeyedQueue<K>, Error> {
        let mut fanout = self.fanout.lock();
        if matches!(fanout.phase, Phase::Stopped { .. }) {
            return Err(self.stopped());
        }
        let queue = KeyedQueue::new(name, self, buffer);
        queue.shared().replay(&self.store.version(), fanout.synced);
        fanout.keyed.push(queue.downgrade());
        Ok(queue)
    }

    /// Tells a queue each object of which nothing waits in it.
    pub(super) fn resync_keyed(&self, queue: &keyed::Shared<K>) {
        let _unchanging = self.fanout.lock();
        queue.resync(&self.store.version());
    }

    /// Waiting events by handler.
    pub(super) fn queue_lengths(&self) -> Vec<(String, usize)> {
        let fanout = self.fanout.lock();
        let named = |member: &Member<K>| {
            let registration = Registration(Arc::clone(&member.subscriber.shared));
            (
                registration.handler_name().to_owned(),
                member.subscriber.queue.len(),
            )
        };
        fanout
            .members
            .iter()
            .filter(|m| !m.subscriber.is_removed())
            .map(named)
            .collect()
    }

    /// What is known of each handler and of each queue by object, by name.
    fn handlers(&self) -> BTreeMap<String, HandlerSnapshot> {
        let fanout = self.fanout.lock();
        let mut handlers = BTreeMap::<_, HandlerSnapshot>::new();
        for member in &fanout.members {
            if member.subscriber.is_removed() {
                continue;
            }
            let shared = Arc::clone(&member.subscriber.shared);
            let name = Registration(shared).handler_name().to_owned();
            let handler = handlers.entry(name).or_default();
            handler.queued += member.subscriber.queue.len() as u64;
            if let Some(latency) = &member.subscriber.shared.latency {
                latency.add_to(&mut handler.latency);
            }
        }
        for queue in fanout.keyed.iter().filter_map(Weak::upgrade) {
            let handler = handlers.entry(queue.name().to_owned()).or_default();
            handler.queued += queue.waiting() as u64;
        }
        handlers
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.fanout.lock().phase, Phase::Idle)
    }

    /// Starts the handlers' tasks. Only the first call succeeds.
    pub(crate) fn start(&self) -> Result<Running, Error> {
        let mut fanout = self.fanout.lock();
        match fanout.phase {
            Phase::Idle => {}
            Phase::Stopped { ran: false } => return Err(self.stopped()),
            Phase::Running { .. } | Phase::Stopped { ran: true } => {
                return Err(Error::AlreadyRan {
                    informer: self.progress.name().to_owned(),
                });
            }
        }
        let running = Running {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let now = Instant::now();
        for member in &mut fanout.members {
            member.subscriber.spawn(&running.tasks, &running.stop);
            if let Some(resync) = &mut member.resync {
                resync.due = now.checked_add(resync.period);
            }
        }
        fanout.check_period = fanout
            .members
            .iter()
            .filter_map(|m| Some(m.resync.as_ref()?.period))
            .min();
        fanout.phase = Phase::Running {
            tasks: running.tasks.clone(),
            stop: running.stop.clone(),
        };
        Ok(running)
    }

    /// Ends deliveries; from here on nothing is added or handed out.
    pub(crate) fn stop(&self) {
        let mut fanout = self.fanout.lock();
        let ran = !matches!(fanout.phase, Phase::Idle | Phase::Stopped { ran: false });
        let before = std::mem::replace(&mut fanout.phase, Phase::Stopped { ran });
        if let Phase::Running { tasks, stop } = before {
            stop.cancel();
            tasks.close();
        }
        for queue in fanout.keyed.drain(..).filter_map(|queue| queue.upgrade()) {
            queue.close();
        }
    }

    /// Lets all handlers go, which are told nothing more: they may hold this informer.
    pub(crate) fn disband(&self) {
        let members = std::mem::take(&mut self.fanout.lock().members);
        drop(members);
    }

    /// Takes all objects out of the cache, tells so, and marks the end of what is told.
    pub(crate) fn clear(&self) {
        self.with_fanout(|fanout| {
            let version = self.store.version();
            let mut batches = fanout.batches(&version, true);
            let changes = self
                .store
                .replace(&self.store.build_up(), version.resource_version());
            fanout.hand_out(changes, Origin::Unfollowed, &mut batches);
            batches.into_iter().for_each(|batch| batch.commit(false));
            for member in &fanout.members {
                member.subscriber.tell_end();
            }
        });
    }

    /// Resolves when every handler was told all there is before [`Core::clear`] ended.
    pub(crate) async fn told(&self) {
        let members: Vec<_> = {
            let fanout = self.fanout.lock();
            let members = fanout.members.iter();
            members
                .map(|member| Arc::clone(&member.subscriber.shared))
                .collect()
        };
        for member in members {
            member.was_told().await;
        }
    }

    /// Applies the steps of a watch to store and handlers. Never waits for a handler.
    ///
    /// Returns the key of an object that was announced as new at a version already passed.
    pub(crate) fn apply(
        &self,
        deltas: Vec<Delta<K>>,
        resource_version: Option<&str>,
        strict_adds: bool,
    ) -> Option<ObjectKey> {
        self.with_fanout(|fanout| {
            let mut batches = match fanout.keyed.is_empty() {
                true => Vec::new(),
                false => fanout.batches(&self.store.version(), false),
            };
            let applied = self.store.apply(deltas, resource_version, strict_adds);
            fanout.hand_out(applied.changes, Origin::Watch, &mut batches);
            batches.into_iter().for_each(|batch| batch.commit(false));
            applied.began_anew
        })
    }

    /// Makes a list the content of the store, and of every handler's view.
    pub(crate) fn replace(&self, built: &BuildUp<K>, resource_version: &str) {
        self.with_fanout(|fanout| {
            let mut batches = fanout.batches(&self.store.version(), true);
            let changes = self.store.replace(built, resource_version);
            let first = !std::mem::replace(&mut fanout.synced, true);
            let origin = if first {
                Origin::Initial
            } else {
                Origin::Relist
            };
            fanout.hand_out(changes, origin, &mut batches);
            batches.into_iter().for_each(|batch| batch.commit(first));
            if first {
                for member in &fanout.members {
                    member.subscriber.tell_synced();
                }
            }
            self.progress.synced.open();
        });
    }

    /// Sends every object again to the handlers that are due, for as long as it is polled.
    pub(crate) async fn resync(&self) -> std::convert::Infallible {
        loop {
            match self.next_resync() {
                Some(due) => tokio::select! {
                    () = tokio::time::sleep_until(due) => self.resync_due(Instant::now()),
                    () = self.resync_changed.notified() => {}
                },
                None => self.resync_changed.notified().await,
            }
        }
    }

    fn next_resync(&self) -> Option<Instant> {
        self.fanout
            .lock()
            .members
            .iter()
            .filter_map(|m| m.resync.as_ref()?.due)
            .min()
    }

    fn resync_due(&self, now: Instant) {
        self.with_fanout(|fanout| {
            let synced = fanout.synced;
            let version = self.store.version();
            for member in &mut fanout.members {
                let Some(Resync {
                    period,
                    due: Some(due),
                }) = &mut member.resync
                else {
                    continue;
                };
                if *due > now {
                    continue;
                }
                while *due <= now {
                    *due += *period;
                }
                if !synced {
                    continue;
                }
                let events = version.iter().map(|entry| Event::Updated {
                    old: Arc::clone(&entry.object),
                    new: Arc::clone(&entry.object),
                });
                member.subscriber.tell_all(events, Origin::Resync);
            }
        });
    }
}

impl<K: Resource + Send + Sync + 'static> Home for Core<K> {
    fn let_go(&self) {
        self.with_fanout(|_| ());
    }
}

impl<K: Resource + Send + Sync + 'static> metrics::Source for Core<K> {
    fn snapshot(&self, of: metrics::Identity) -> InformerSnapshot {
        let (progress, version) = (&self.progress, self.store.version());
        InformerSnapshot {
            name: of.name,
            resource: of.resource,
            version: of.version,
            stats: progress.stats.read(version.index_failures()),
            list_duration: progress.meters.list_duration.read(),
            items_per_list: progress.meters.items_per_list.read(),
            watch_duration: progress.meters.watch_duration.read(),
            items_per_watch: progress.meters.items_per_watch.read(),
            relists: progress.meters.relists(),
            resource_version: version.resource_version().to_string(),
            objects: version.len() as u64,
            handlers: self.handlers(),
        }
    }
}

impl<K: Resource + Send + Sync + 'static> Fanout<K> {
    /// Takes out the handlers that were removed.
    fn let_go(&mut self) -> Vec<Member<K>> {
        let is_removed = |member: &Member<K>| member.subscriber.is_removed();
        if !self.members.iter().any(is_removed) {
            return Vec::new();
        }
        let members = std::mem::take(&mut self.members);
        let (gone, stay) = members.into_iter().partition(is_removed);
        self.members = stay;
        gone
    }

    /// What the queues by object shall get of the next changes.
    fn batches(&mut self, before: &Arc<Version<K>>, listed: bool) -> Vec<keyed::Batch<K>> {
        self.keyed.retain(|queue| queue.strong_count() > 0);
        self.keyed
            .iter()
            .filter_map(Weak::upgrade)
            .map(|queue| keyed::Batch::new(queue, Arc::clone(before), listed))
            .collect()
    }

    fn hand_out(
        &mut self,
        changes: Vec<Change<K>>,
        origin: Origin,
        batches: &mut [keyed::Batch<K>],
    ) {
        let event = |change| match change {
            Change::Added(object) => Event::Added {
                object,
                is_in_initial_list: origin == Origin::Initial,
            },
            Change::Updated { old, new } => Event::Updated { old, new },
            Change::Deleted {
                object,
                last_cached,
                final_state_known,
            } => Event::Deleted {
                object,
                last_cached,
                final_state_known,
            },
        };
        let events: Vec<_> = changes.into_iter().map(event).collect();
        for batch in batches.iter_mut() {
            for event in &events {
                batch.take(event, origin);
            }
        }
        if let Some((last, others)) = self.members.split_last() {
            for member in others {
                member.subscriber.tell_all(events.iter().cloned(), origin);
            }
            last.subscriber.tell_all(events, origin);
        }
    }
}
