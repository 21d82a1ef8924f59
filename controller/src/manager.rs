//! Starting everything in order, and stopping it in order.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use informer::{Informer, Synced, Unsynced};
use kube_core::Resource;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::Controller;
use crate::controller::{Wait, wait_until_synced};
use crate::error::{Chain, list};
use crate::reconcile::BoxError;

/// Times of a [`Manager`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManagerOptions {
    /// How long a stop may take in all. What still runs then is dropped at its next await and
    /// reported. Zero: nothing is waited for and nothing reported. [`Duration::MAX`]: for ever.
    /// Default 30 s.
    pub grace: Duration,
    /// How long the informers may take for their initial lists. Default 2 min.
    pub sync_timeout: Duration,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(30),
            sync_timeout: Duration::from_secs(120),
        }
    }
}

/// Why a manager ended otherwise than by a clean stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Informers without their initial list in time.
    #[error("informers not synced within {timeout:?}: {}", list(.unsynced))]
    SyncTimeout {
        /// How long the manager waited.
        timeout: Duration,
        /// The informers that are missing, each with its kind and what holds it up.
        unsynced: Vec<Unsynced>,
    },
    /// Something the manager ran ended with an error.
    #[error("{name} failed")]
    Failed {
        /// What it was.
        name: String,
        /// Its error.
        #[source]
        source: BoxError,
    },
    /// Something the manager ran ended by a panic.
    #[error("{name} panicked: {message}")]
    Panicked {
        /// What it was.
        name: String,
        /// What the panic said.
        message: String,
    },
    /// The grace time was over before everything had ended.
    #[error("still running after the grace time of {grace:?}: {}", .running.join(", "))]
    GraceExceeded {
        /// The grace time.
        grace: Duration,
        /// What was dropped.
        running: Vec<String>,
    },
    /// More than one of the above, in the order in which they happened.
    #[error("{}", chains(.errors))]
    Several {
        /// The errors.
        errors: Vec<Error>,
    },
}

fn chains(errors: &[Error]) -> String {
    errors
        .iter()
        .map(|error| Chain(error).to_string())
        .collect::<Vec<_>>()
        .join("; ")
}

/// Runs informers, tasks and controllers together, and stops them together.
///
/// Start: informers; when all have synced, tasks; then controllers. Stop: tasks, controllers,
/// informers, each group ended before the next is told to stop, so a reconcile that finishes still
/// reads a live cache.
///
/// ```no_run
/// # use controller::{Controller, Informer};
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # async fn example(configs: Informer<ConfigMap>, controller: Controller)
/// # -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use controller::{Manager, ManagerOptions, Signals};
///
/// let signals = Signals::install()?;
/// Manager::new(ManagerOptions::default())
///     .add_informer(&configs)
///     .add_controller(controller)
///     .run(signals.stop())
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "a manager does nothing until it is run"]
pub struct Manager {
    options: ManagerOptions,
    synced: Vec<Box<dyn Synced>>,
    informers: Vec<Runnable>,
    tasks: Vec<Runnable>,
    controllers: Vec<Runnable>,
}

type Start = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), BoxError>> + Send>;

struct Runnable {
    name: String,
    start: Start,
}

impl Runnable {
    fn new<F, Fut, E>(name: String, run: F) -> Self
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let start: Start =
            Box::new(move |stop| run(stop).map(|result| result.map_err(Into::into)).boxed());
        Self { name, start }
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |group: &[Runnable]| group.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
        f.debug_struct("Manager")
            .field("options", &self.options)
            .field("informers", &names(&self.informers))
            .field("tasks", &names(&self.tasks))
            .field("controllers", &names(&self.controllers))
            .finish_non_exhaustive()
    }
}

impl Default for Manager {
    fn default() -> Self {
        Self::new(ManagerOptions::default())
    }
}

impl Manager {
    /// A manager of nothing.
    pub fn new(options: ManagerOptions) -> Self {
        let (informers, tasks, controllers) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            options,
            synced: Vec::new(),
            informers,
            tasks,
            controllers,
        }
    }

    /// Runs `informer`. Each informer that a controller reads or gets events of must be added once.
    pub fn add_informer<K>(mut self, informer: &Informer<K>) -> Self
    where
        K: Resource + Send + Sync + 'static,
    {
        let run = informer.clone();
        let name = format!("informer of {}", informer.name());
        self.informers
            .push(Runnable::new(name, move |stop| async move {
                run.run(stop).await
            }));
        self.synced.push(Box::new(informer.clone()));
        self
    }

    /// Runs `controller` once all informers have synced.
    pub fn add_controller(mut self, controller: Controller) -> Self {
        let name = format!("controller {}", controller.name());
        self.controllers
            .push(Runnable::new(name, move |stop| controller.run(stop)));
        self
    }

    /// Runs a task beside the controllers, such as a server or a periodic sweep; it must end when
    /// its token is cancelled.
    ///
    /// A task that ends with `Ok` before that is done and ends nothing else; one that ends with an
    /// error stops the manager.
    pub fn add_task<F, Fut, E>(mut self, name: impl Into<String>, run: F) -> Self
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        self.tasks
            .push(Runnable::new(format!("task {}", name.into()), run));
        self
    }

    /// Runs everything until `stop`, or until something fails; returns when all of it has ended or
    /// the grace time is over.
    ///
    /// Cancellation safety: dropping the future drops everything at its next await, without grace.
    ///
    /// # Errors
    /// The failure that caused the stop and those of the stop itself, several as
    /// [`Error::Several`]. A stop by the token is no error, also while waiting for the informers.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let Self {
            options,
            synced,
            informers,
            tasks,
            controllers,
        } = self;
        let mut errors = Vec::new();
        let mut informers = Group::start(informers);
        let (mut tasks, mut controllers) = match sync(&synced, &mut informers, options, &stop).await
        {
            Ok(true) => (Group::start(tasks), Group::start(controllers)),
            Ok(false) => (Group::empty(), Group::empty()),
            Err(error) => {
                errors.push(error);
                (Group::empty(), Group::empty())
            }
        };
        if errors.is_empty() {
            errors
                .extend(first_failure(&stop, [&mut informers, &mut tasks, &mut controllers]).await);
        }
        for error in &errors {
            error!(error = %Chain(error), "stopping because of a failure");
        }

        info!(grace = ?options.grace, "stopping");
        // None: a moment so far off that it can't be expressed.
        let deadline = Instant::now().checked_add(options.grace);
        let least = LEAST_GRACE.min(options.grace);
        let mut running = Vec::new();
        for group in [tasks, controllers, informers] {
            let deadline = deadline.map(|deadline| deadline.max(Instant::now() + least));
            let ended = group.stop(deadline).await;
            errors.extend(ended.errors);
            running.extend(ended.running);
        }
        if !running.is_empty() && !options.grace.is_zero() {
            errors.push(Error::GraceExceeded {
                grace: options.grace,
                running,
            });
        }
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several { errors }),
        }
    }
}

/// Waits for the informers' initial lists: `false` if stopped before that.
async fn sync(
    synced: &[Box<dyn Synced>],
    informers: &mut Group,
    options: ManagerOptions,
    stop: &CancellationToken,
) -> Result<bool, Error> {
    let synced: Vec<_> = synced.iter().map(|one| &**one).collect();
    let wait = tokio::select! {
        wait = wait_until_synced(&synced, options.sync_timeout, stop) => wait,
        error = informers.failure() => return Err(error),
    };
    match wait {
        Wait::Synced => {
            debug!(informers = synced.len(), "all informers synced");
            Ok(true)
        }
        Wait::Stopped => Ok(false),
        Wait::TimedOut(unsynced) => Err(Error::SyncTimeout {
            timeout: options.sync_timeout,
            unsynced,
        }),
    }
}

/// Waits for `stop` (none) or for the first failure in any group. Cancel-safe.
async fn first_failure(stop: &CancellationToken, [a, b, c]: [&mut Group; 3]) -> Option<Error> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        error = a.failure() => Some(error),
        error = b.failure() => Some(error),
        error = c.failure() => Some(error),
    }
}

/// Things that are started and stopped together.
struct Group {
    stop: CancellationToken,
    running: JoinSet<Result<(), BoxError>>,
    names: HashMap<Id, String>,
}

/// What was left of a group after its stop.
struct Ended {
    errors: Vec<Error>,
    running: Vec<String>,
}

/// What a group gets at least, if an earlier one has used up the grace time: enough to end in order,
/// so that only what is really stuck is reported.
const LEAST_GRACE: Duration = Duration::from_millis(100);

/// How long dropped tasks may take to reach an await point. Only what blocks its thread takes
/// longer, and that can't be waited for.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

impl Group {
    fn empty() -> Self {
        Self::start(Vec::new())
    }

    fn start(runnables: Vec<Runnable>) -> Self {
        let stop = CancellationToken::new();
        let (mut running, mut names) = (JoinSet::new(), HashMap::new());
        for Runnable { name, start } in runnables {
            debug!(name, "starting");
            let task = running.spawn(start(stop.clone()));
            names.insert(task.id(), name);
        }
        Self {
            stop,
            running,
            names,
        }
    }

    /// Waits for the first failure, for ever if nothing fails. Cancel-safe.
    async fn failure(&mut self) -> Error {
        while let Some(ended) = self.running.join_next_with_id().await {
            if let Some(error) = self.failure_of(ended) {
                return error;
            }
        }
        std::future::pending().await
    }

    /// The failure of a task that has ended, if it is one, with the task's name.
    fn failure_of(
        &mut self,
        ended: Result<(Id, Result<(), BoxError>), JoinError>,
    ) -> Option<Error> {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let name = self
            .names
            .remove(&id)
            .expect("every task was named at its start");
        match ended {
            Ok((_, Ok(()))) => {
                debug!(name, "ended");
                None
            }
            Ok((_, Err(source))) => Some(Error::Failed { name, source }),
            Err(error) if error.is_cancelled() => None,
            Err(error) => Some(Error::Panicked {
                name,
                message: error.to_string(),
            }),
        }
    }

    /// Tells everything to stop and waits until `deadline`, without one for ever; the rest is
    /// dropped.
    async fn stop(mut self, deadline: Option<Instant>) -> Ended {
        self.stop.cancel();
        let mut errors = Vec::new();
        let all_ended = async {
            while let Some(ended) = self.running.join_next_with_id().await {
                errors.extend(self.failure_of(ended));
            }
        };
        match deadline {
            None => all_ended.await,
            // What is left is found in `names`.
            Some(deadline) => tokio::time::timeout_at(deadline, all_ended)
                .await
                .unwrap_or(()),
        }
        let mut running: Vec<_> = self.names.into_values().collect();
        running.sort_unstable();
        if !running.is_empty() {
            warn!(
                running = running.join(", "),
                "grace time over; dropping what still runs"
            );
            let dropped = self.running.shutdown();
            if tokio::time::timeout(ABORT_LIMIT, dropped).await.is_err() {
                error!(
                    running = running.join(", "),
                    "blocked outside of any await point"
                );
            }
        }
        Ended { errors, running }
    }
}
