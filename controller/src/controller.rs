//! A controller: sources, queue and workers, from the first list to the last reconcile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use informer::{ObjectKey, Registration, Synced, Unsynced, wait_for_cache_sync};
use kube_core::Resource;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};
use workqueue::metrics::QueueSnapshot;
use workqueue::{AddOptions, Origin};

use crate::builder::ControllerBuilder;
use crate::consistency::{Lag, OwnWrites};
use crate::enqueue::LOW_PRIORITY;
use crate::error::Error;
use crate::feed::Feed;
use crate::intake::Intake;
use crate::journal::{Journal, KeyHistory, StuckRun};
use crate::metrics::{ControllerMetrics, Recorder};
use crate::reconcile::Reconciler;
use crate::sharding::{self, Sharding};
use crate::source::{AllKeys, Source, StartSource};
use crate::worker::Workshop;

/// A reconciler with its sources, a queue and workers; built by [`Controller::builder`].
pub struct Controller {
    intake: Arc<Intake>,
    sources: Vec<Box<dyn StartSource>>,
    /// Caches that are read and give no events.
    read: Vec<Box<dyn Synced>>,
    workshop: Workshop,
    sharding: Option<Sharding>,
    synced: Arc<AtomicBool>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.intake.name.text)
            .field("options", &self.workshop.options)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Starts a controller named `name`: unique in the process, and a label of its metrics.
    ///
    /// ```no_run
    /// # use controller::{Controller, ControllerOptions, Informer, ObjectKey, Reconciler};
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
    /// # fn example(
    /// #     reconciler: impl Reconciler,
    /// #     configs: &Informer<ConfigMap>,
    /// #     pods: &Informer<Pod>,
    /// #     secrets: &Informer<Secret>,
    /// # ) -> Result<(), controller::Error> {
    /// let controller = Controller::builder("config", reconciler)
    ///     .for_object(configs)
    ///     .owns(pods)
    ///     .watches(secrets, |secret| vec![ObjectKey::of(secret)])
    ///     .options(ControllerOptions { workers: 4, ..ControllerOptions::default() })
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn builder<R: Reconciler>(name: impl Into<String>, reconciler: R) -> ControllerBuilder<R> {
        ControllerBuilder::new(name.into(), reconciler)
    }

    pub(crate) fn new(
        intake: Arc<Intake>,
        sources: Vec<Box<dyn StartSource>>,
        read: Vec<Box<dyn Synced>>,
        workshop: Workshop,
        sharding: Option<Sharding>,
    ) -> Self {
        Self {
            intake,
            sources,
            read,
            workshop,
            sharding,
            synced: Arc::default(),
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.intake.name.text
    }

    /// A handle to watch and trigger the controller; it stays valid while the controller runs and
    /// after its end.
    #[must_use]
    pub fn handle(&self) -> ControllerHandle {
        ControllerHandle {
            intake: Arc::clone(&self.intake),
            recorder: Arc::clone(&self.workshop.recorder),
            journal: Arc::clone(&self.workshop.journal),
            own_writes: self.workshop.own_writes.clone(),
            stuck_after: self.workshop.options.stuck_after,
            needs_leadership: self.needs_leadership(),
            synced: Arc::clone(&self.synced),
        }
    }

    /// Runs until `stop`: registers with the informers, waits until every handler has seen its
    /// initial list and every cache that is only read has one, then reconciles.
    ///
    /// On `stop` no further key is taken, the runs under way see [`Context::is_cancelled`] and are
    /// waited for; how long is the caller's matter (see [`Manager`]). Keys still in the queue are
    /// dropped: the next start lists everything again. The informers must run elsewhere.
    ///
    /// A second start is impossible, since this takes the controller.
    ///
    /// Cancellation safety: dropping the future drops the running reconciles at their next await
    /// and removes the handlers.
    ///
    /// # Errors
    /// [`Error::SyncTimeout`] names each handler and cache without its initial list, and why. A stop while
    /// waiting is no error. [`Error::Source`] if an informer refuses a handler, [`Error::Feed`],
    /// [`Error::Worker`].
    ///
    /// [`Context::is_cancelled`]: crate::Context::is_cancelled
    /// [`Manager`]: crate::Manager
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let elected = CancellationToken::new();
        elected.cancel();
        self.run_once_elected(stop, elected, TaskTracker::new())
            .await
    }

    /// Whether the sources start and sync before this process leads.
    pub(crate) fn warms_up(&self) -> bool {
        self.workshop.options.warm_up
    }

    /// Whether only the leader may run it.
    pub(crate) fn needs_leadership(&self) -> bool {
        self.workshop.options.needs_leadership
    }

    /// As [`run`](Self::run), but reconciles nothing before `elected`; the queue fills meanwhile.
    ///
    /// `tasks` counts the workers: dropping this future only asks them to end, and one whose
    /// reconcile blocks its thread goes on until that returns.
    pub(crate) async fn run_once_elected(
        self,
        stop: CancellationToken,
        elected: CancellationToken,
        tasks: TaskTracker,
    ) -> Result<(), Error> {
        let Self {
            intake,
            sources,
            read,
            workshop,
            sharding,
            synced,
        } = self;
        let _close = CloseOnDrop(&intake);
        // What goes wrong in a feed stops the workers in order, as a stop does.
        let stop = stop.child_token();
        let mut handlers = Vec::with_capacity(sources.len());
        let mut keys = AllKeysOf::new(&intake);
        for source in sources {
            keys.listers.extend(source.all_keys());
            handlers.push(intake.open(source)?);
        }
        // A member leaves the ring after its last run.
        let worked = CancellationToken::new();
        let workers = async {
            let handlers = handlers.iter().map(|one| one as &dyn Synced);
            let all: Vec<_> = handlers.chain(read.iter().map(|one| &**one)).collect();
            let started = sync(
                &intake,
                &all,
                workshop.options.sync_timeout,
                &synced,
                &stop,
                &elected,
            );
            let result = match started.await {
                Ok(true) => work(Arc::new(workshop), &stop, &tasks).await,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            stop.cancel();
            worked.cancel();
            result
        };
        let ring = async {
            if let Some(sharding) = sharding {
                sharding::keep(sharding, &keys, &worked).await;
            }
        };
        let (result, fed, ()) = tokio::join!(workers, intake.run_feeds(&stop), ring);
        result.and(fed)
    }
}

/// The keys of the main objects, for a member of a ring that may run more than before.
struct AllKeysOf<'a> {
    intake: &'a Intake,
    listers: Vec<AllKeys>,
}

impl<'a> AllKeysOf<'a> {
    fn new(intake: &'a Intake) -> Self {
        let listers = Vec::new();
        Self { intake, listers }
    }
}

impl sharding::Keys for AllKeysOf<'_> {
    fn resume(&self, parked: Vec<ObjectKey>) {
        for key in parked {
            self.intake.queue.add(key);
        }
        let priority = Some(LOW_PRIORITY);
        for key in self.listers.iter().flat_map(|all| all()) {
            let options = AddOptions {
                priority,
                ..AddOptions::default()
            };
            self.intake.queue.add_with(key, options);
        }
    }
}

/// Waits for the initial lists and for the leadership; false if `stop` came first.
async fn sync(
    intake: &Intake,
    all: &[&dyn Synced],
    timeout: Duration,
    synced: &AtomicBool,
    stop: &CancellationToken,
    elected: &CancellationToken,
) -> Result<bool, Error> {
    match wait_until_synced(all, timeout, stop).await {
        Wait::Synced => synced.store(true, Ordering::Release),
        Wait::Stopped => return Ok(false),
        Wait::TimedOut(unsynced) => {
            let (name, unsynced) = (intake.name.boxed(), unsynced.into());
            return Err(Error::SyncTimeout {
                name,
                timeout,
                unsynced,
            });
        }
    }
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(false),
        () = elected.cancelled() => Ok(true),
    }
}

/// Closes the intake whichever way a run ends.
struct CloseOnDrop<'a>(&'a Intake);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Runs the workers until all have ended after `stop`, or one has died.
async fn work(
    workshop: Arc<Workshop>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), Error> {
    let name = &*workshop.controller;
    info!(
        controller = name,
        workers = workshop.options.workers,
        "workers start"
    );
    let mut workers = JoinSet::new();
    for worker in 0..workshop.options.workers {
        let workshop = Arc::clone(&workshop);
        // A child token of its own: workers don't meet at the lock of one token.
        let stop = stop.child_token();
        let work = async move { workshop.work(worker, stop).await };
        workers.spawn(tasks.track_future(work));
    }
    while let Some(ended) = workers.join_next().await {
        let reason = match ended {
            Err(error) => error.to_string(),
            Ok(()) if !stop.is_cancelled() => "it ended before the stop".to_owned(),
            Ok(()) => continue,
        };
        // Dropping the set aborts the others.
        return Err(Error::Worker {
            name: name.into(),
            reason: reason.into(),
        });
    }
    debug!(controller = name, "workers ended");
    Ok(())
}

pub(crate) enum Wait {
    Synced,
    Stopped,
    TimedOut(Vec<Unsynced>),
}

/// Waits until everything has synced, for at most `timeout`, or until `stop`.
pub(crate) async fn wait_until_synced(
    all: &[&dyn Synced],
    timeout: Duration,
    stop: &CancellationToken,
) -> Wait {
    let give_up = stop.child_token();
    let wait = wait_for_cache_sync(&give_up, all);
    let timer = async {
        tokio::time::sleep(timeout).await;
        give_up.cancel();
        std::future::pending().await
    };
    let result = tokio::select! {
        result = wait => result,
        () = timer => unreachable!("the timer never ends"),
    };
    match result {
        Ok(()) => Wait::Synced,
        Err(_) if stop.is_cancelled() => Wait::Stopped,
        Err(not_synced) => Wait::TimedOut(not_synced.unsynced),
    }
}

/// Watches and triggers a [`Controller`] from outside; cheap to clone. The controller's name stays
/// taken while it lives.
#[derive(Clone)]
pub struct ControllerHandle {
    intake: Arc<Intake>,
    recorder: Arc<Recorder>,
    journal: Arc<Journal>,
    own_writes: Option<Arc<OwnWrites>>,
    stuck_after: Option<Duration>,
    needs_leadership: bool,
    synced: Arc<AtomicBool>,
}

impl fmt::Debug for ControllerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerHandle")
            .field("name", &self.intake.name.text)
            .finish_non_exhaustive()
    }
}

impl ControllerHandle {
    /// Name of the controller.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.intake.name.text
    }

    /// Reports whether all initial lists have been handled, that is, whether workers were started:
    /// the readiness of the controller. Stays true after the end.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Whether a manager with an election runs it only while this process leads
    /// ([`needs_leadership`](crate::ControllerOptions::needs_leadership)).
    #[must_use]
    pub fn needs_leadership(&self) -> bool {
        self.needs_leadership
    }

    /// The controller's counters now.
    #[must_use]
    pub fn metrics(&self) -> ControllerMetrics {
        self.recorder.snapshot()
    }

    /// The queue now: keys in each state, ages, counters. `longest_running` is the age of the oldest
    /// reconcile, for a liveness check.
    ///
    /// Of controllers that share a name ([`ControllerOptions::unique_name`]) only the first has
    /// ages and counters.
    ///
    /// [`ControllerOptions::unique_name`]: crate::ControllerOptions::unique_name
    #[must_use]
    pub fn queue(&self) -> QueueSnapshot {
        self.intake.queue.metrics()
    }

    /// Keys under way with the time their reconciles have taken so far, the longest first.
    #[must_use]
    pub fn running(&self) -> Vec<(ObjectKey, Duration)> {
        self.journal.running()
    }

    /// The last runs of `key` and when it comes again by itself; `None` if it never ran, or if
    /// [`history_keys`](crate::ControllerOptions::history_keys) others took its place: keys that ran
    /// since, and keys that fail.
    #[must_use]
    pub fn history(&self, key: &ObjectKey) -> Option<KeyHistory> {
        self.journal.of(key)
    }

    /// All histories that are kept, the key that ran last first. Copies them: for eyes, not for
    /// every second.
    #[must_use]
    pub fn histories(&self) -> Vec<KeyHistory> {
        self.journal.all()
    }

    /// Checks that no reconcile runs for longer than
    /// [`stuck_after`](crate::ControllerOptions::stuck_after), as a liveness probe does.
    ///
    /// ```
    /// # use controller::ControllerHandle;
    /// # use controller::server::Health;
    /// # fn example(handle: ControllerHandle) -> Health {
    /// Health::new().check("config", move || handle.check_alive().map_err(Into::into))
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StuckRun`] names the key that has run longest.
    pub fn check_alive(&self) -> Result<(), Box<StuckRun>> {
        let Some(limit) = self.stuck_after else {
            return Ok(());
        };
        let oldest = self.journal.running().into_iter().next();
        match oldest.filter(|(_, age)| *age > limit) {
            None => Ok(()),
            Some((key, age)) => Err(Box::new(StuckRun {
                controller: self.intake.name.boxed(),
                key,
                age,
                limit,
            })),
        }
    }

    /// Adds a feed to a controller that may run already.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the end.
    pub fn add_feed(&self, feed: Feed) -> Result<(), Error> {
        self.intake.feed(feed)
    }

    /// Adds a source to a controller that may run already; returns its registration, by which the
    /// caller can wait for its initial list.
    ///
    /// Workers that run don't wait for that list; before the start, the start does not either. What runs
    /// write from the return on is compared with its cache too.
    ///
    /// # Errors
    /// [`Error::Source`] if the informer refuses the handler, [`Error::Stopped`] after the end.
    pub fn add_source<K>(&self, source: Source<K>) -> Result<Registration, Error>
    where
        K: Resource + Send + Sync + 'static,
    {
        let source: Box<dyn StartSource> = Box::new(source);
        let track = source.track();
        let registration = self.intake.open(source)?;
        // Not before: a cache that is refused may never show anything again.
        if let Some(own_writes) = &self.own_writes {
            track(own_writes);
        }
        Ok(registration)
    }

    /// Number of keys with own writes that the caches are not known to show; 0 where nothing is held
    /// back for them ([`read_your_writes`](crate::ControllerOptions::read_your_writes)).
    #[must_use]
    pub fn unseen_writes(&self) -> usize {
        self.own_writes
            .as_ref()
            .map_or(0, |own_writes| own_writes.len())
    }

    /// Keys that a worker would put back now, because a cache is not known to show what their last run
    /// wrote, with that cache; the one that has waited longest comes first. Looks at all such writes.
    #[must_use]
    pub fn held_back(&self) -> Vec<(ObjectKey, Lag)> {
        self.own_writes
            .as_ref()
            .map_or_else(Vec::new, |own_writes| own_writes.held_back())
    }

    /// Asks for a reconcile of `key`, as an event does. Never blocks; without effect after the end.
    pub fn trigger(&self, key: ObjectKey) {
        self.intake.queue.add(key);
    }

    /// Asks for a reconcile of `key` in `after`, whatever events, retries and waits of its own results
    /// come until then. Of several such reminders of a key the earliest holds.
    pub fn trigger_after(&self, key: ObjectKey, after: Duration) {
        let after = Some(after);
        let origin = Origin::Reminder;
        self.intake.queue.add_with(
            key,
            AddOptions {
                after,
                origin,
                ..AddOptions::default()
            },
        );
    }
}
