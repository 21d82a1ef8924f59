//! Starting everything in order, and stopping it in order.

mod directory;
mod error;
mod group;
mod inbox;
mod run;
mod runnable;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use informer::Informer;
use kube_core::Resource;
use tokio_util::sync::CancellationToken;

use self::directory::Place;
pub(crate) use self::directory::Watched;
use self::inbox::{Added, Inbox};
pub(crate) use self::runnable::Tokens;
use crate::Controller;
use crate::election::Elector;
use crate::events::EventWriter;
use crate::reconcile::BoxError;
use crate::server::HttpServer;

pub use self::directory::{Directory, Phase};
pub use self::error::{Dropped, Error, Stopping};
pub use self::runnable::Runnable;

/// Times of a [`Manager`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManagerOptions {
    /// How long a stop may take in all. What still runs then is dropped at its next await and
    /// reported. Zero: nothing is waited for and nothing reported. [`Duration::MAX`]: for ever.
    /// Default 30 s. Giving the Lease back may take up to 5 s more.
    pub grace: Duration,
    /// How long the informers may take for their initial lists, and other groups to get ready.
    /// Default 2 min.
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

/// The groups of a manager, in the order in which they start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GroupName {
    /// HTTP servers: first to start, last to stop.
    Servers,
    /// Webhooks: what caches may depend on through the API server.
    Webhooks,
    /// Informers.
    Caches,
    /// What needs the caches and no leadership: tasks, and controllers that
    /// [say so](crate::ControllerOptions::needs_leadership).
    Others,
    /// What only the leader may do: all other controllers, and leader tasks.
    LeaderElected,
}

/// Runs informers, tasks and controllers together, and stops them together.
///
/// Start, each group ready before the next: servers, webhooks, informers (synced), others,
/// controllers that warm up, and then, with an election once the Lease is won, what needs the
/// leadership. Stop: others, leader-elected, informers, webhooks, servers, each group ended before
/// the next is told, so a reconcile that finishes still reads a live cache; at the very last the
/// Lease is given back.
///
/// If the Lease is lost, everything is dropped without grace and the run ends with
/// [`Error::Election`], or, with [`rejoin`], what needs the leadership is dropped and started anew in
/// the next term.
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
///
/// [`rejoin`]: crate::election::ElectionOptions::rejoin
#[must_use = "a manager does nothing until it is run"]
pub struct Manager {
    options: ManagerOptions,
    inbox: Inbox,
    directory: Directory,
    elector: Option<Elector>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("options", &self.options)
            .field("directory", &self.directory)
            .field("elector", &self.elector)
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
        Self {
            options,
            inbox: Inbox::new(),
            directory: Directory::default(),
            elector: None,
        }
    }

    /// Runs `informer`. Each informer that a controller reads or gets events of must be added once.
    pub fn add_informer<K>(self, informer: &Informer<K>) -> Self
    where
        K: Resource + Send + Sync + 'static,
    {
        self.with(|handle| handle.add_informer(informer))
    }

    /// Runs `controller` once all informers have synced and, unless it
    /// [needs no leadership](crate::ControllerOptions::needs_leadership), this process leads.
    pub fn add_controller(self, controller: Controller) -> Self {
        self.with(|handle| handle.add_controller(controller))
    }

    /// As [`add_controller`](Self::add_controller), with a controller that `make` makes anew for each
    /// term, so that a process may lead again after it has lost the Lease.
    ///
    /// The first one is made at once, and its options say whether all of them warm up and need the
    /// leadership: one that [warms up](crate::ControllerOptions::warm_up) is made before the term, right
    /// after the one before has ended. `name` stands in messages; the controllers may be called
    /// otherwise. An error of `make` ends the run of the manager.
    pub fn add_controller_from<F>(self, name: impl Into<String>, make: F) -> Self
    where
        F: FnMut() -> Result<Controller, crate::Error> + Send + 'static,
    {
        self.with(|handle| handle.add_controller_from(name, make))
    }

    /// Runs a task beside the controllers, such as a periodic sweep, on every process, leader or
    /// not; it must end when its token is cancelled.
    ///
    /// A task that ends with `Ok` before that is done and ends nothing else; one that ends with an
    /// error stops the manager.
    pub fn add_task<F, Fut, E>(self, name: impl Into<String>, run: F) -> Self
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        self.with(|handle| handle.add_task(name, run))
    }

    /// As [`add_task`](Self::add_task), but only while this process leads; anew in each term.
    pub fn add_leader_task<F, Fut, E>(self, name: impl Into<String>, run: F) -> Self
    where
        F: FnMut(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let runnable = Runnable::anew(format!("task {}", name.into()), run);
        self.add(GroupName::LeaderElected, runnable)
    }

    /// Runs `server` from the very beginning to the very end.
    pub fn add_server(self, server: HttpServer) -> Self {
        let name = format!("server on {}", server.address());
        self.add(
            GroupName::Servers,
            Runnable::new(name, |stop| server.run(stop)),
        )
    }

    /// Runs anything in any group.
    pub fn add(self, group: GroupName, runnable: Runnable) -> Self {
        self.with(|handle| handle.add(group, runnable))
    }

    /// Lets only the leader of `elector`'s Lease run what needs the leadership.
    pub fn with_election(mut self, elector: Elector) -> Self {
        self.directory.note_election(elector.handle());
        self.elector = Some(elector);
        self
    }

    /// Writes the events of a recorder. It is stopped last, so that what a run that ends during the stop
    /// has to tell is still written.
    pub fn with_events(self, writer: EventWriter) -> Self {
        let events = Runnable::new("events", |stop| writer.run(stop));
        self.add(GroupName::Servers, events)
    }

    /// What is run, to be looked at: for readiness, metrics and diagnostics.
    #[must_use]
    pub fn directory(&self) -> Directory {
        self.directory.clone()
    }

    /// A handle by which more can be added while the manager runs.
    #[must_use]
    pub fn handle(&self) -> ManagerHandle {
        ManagerHandle {
            inbox: self.inbox.clone(),
            directory: self.directory.clone(),
        }
    }

    /// Runs everything until `stop`, or until something fails; returns when all of it has ended or
    /// the grace time is over.
    ///
    /// Cancellation safety: dropping the future drops everything at its next await, without grace,
    /// and leaves a Lease to expire.
    ///
    /// # Errors
    /// The failure that caused the stop and those of the stop itself, several as
    /// [`Error::Several`]. A stop by the token is no error, also while waiting for the informers.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let Self {
            options,
            inbox,
            directory,
            elector,
        } = self;
        run::Running::new(options, inbox, directory, elector)
            .run(stop)
            .await
    }

    fn with(self, add: impl FnOnce(&ManagerHandle) -> Result<(), Stopping>) -> Self {
        add(&self.handle()).expect("a manager that does not run is not stopping");
        self
    }
}

/// What a manager must know of a controller before it runs.
#[derive(Debug, Clone, Copy)]
struct Traits {
    warms_up: bool,
    needs_leadership: bool,
}

impl Traits {
    /// Starts as soon as may be.
    const EARLY: Self = Self {
        warms_up: true,
        needs_leadership: true,
    };

    fn of(controller: &Controller) -> Self {
        Self {
            warms_up: controller.warms_up(),
            needs_leadership: controller.needs_leadership(),
        }
    }
}

/// Adds to a manager that may run already; cheap to clone.
///
/// What is added starts at once if its group has been started, else with its group.
#[derive(Clone)]
pub struct ManagerHandle {
    inbox: Inbox,
    directory: Directory,
}

impl fmt::Debug for ManagerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerHandle")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl ManagerHandle {
    /// As [`Manager::add_informer`]. What was started before does not wait for it.
    ///
    /// # Errors
    /// [`Stopping`] from the stop on.
    pub fn add_informer<K>(&self, informer: &Informer<K>) -> Result<(), Stopping>
    where
        K: Resource + Send + Sync + 'static,
    {
        let run = informer.clone();
        let name = format!("informer of {}", informer.name());
        self.inbox.add(Added {
            group: GroupName::Caches,
            runnable: Runnable::new(name, move |stop| async move { run.run(stop).await }),
            synced: Some(Box::new(informer.clone())),
        })?;
        self.directory.note_informer(Arc::new(informer.clone()));
        Ok(())
    }

    /// As [`Manager::add_controller`].
    ///
    /// # Errors
    /// [`Stopping`] from the stop on.
    pub fn add_controller(&self, controller: Controller) -> Result<(), Stopping> {
        let name = format!("controller {}", controller.name());
        let (place, traits) = (self.directory.place(), Traits::of(&controller));
        self.directory.note_controller(place, controller.handle());
        let run = move |tokens: Tokens| {
            controller.run_once_elected(tokens.stop, tokens.elected, tokens.tasks)
        };
        self.add_at(place, traits, Runnable::once(name, run))
    }

    /// As [`Manager::add_controller_from`].
    ///
    /// # Errors
    /// [`Stopping`] from the stop on.
    pub fn add_controller_from<F>(
        &self,
        name: impl Into<String>,
        mut make: F,
    ) -> Result<(), Stopping>
    where
        F: FnMut() -> Result<Controller, crate::Error> + Send + 'static,
    {
        let (directory, place) = (self.directory.clone(), self.directory.place());
        let mut make = move || {
            // The one of the term before holds its name as long as its handle is on record.
            directory.forget_controller(place);
            let made = make();
            if let Ok(controller) = &made {
                directory.note_controller(place, controller.handle());
            }
            made
        };
        let first = make();
        // One that cannot be made is told at the start, not only once this process leads.
        let traits = first.as_ref().map_or(Traits::EARLY, Traits::of);
        let mut first = Some(first);
        let name = format!("controller {}", name.into());
        let runnable = Runnable::each(name, move |tokens: Tokens| {
            let made = first.take().unwrap_or_else(&mut make);
            async move {
                let Tokens {
                    stop,
                    elected,
                    tasks,
                } = tokens;
                made?.run_once_elected(stop, elected, tasks).await
            }
        });
        self.add_at(place, traits, runnable)
    }

    /// Adds what runs the controllers of `place`, the first of which is noted there already.
    fn add_at(&self, place: Place, traits: Traits, runnable: Runnable) -> Result<(), Stopping> {
        let group = if traits.needs_leadership {
            GroupName::LeaderElected
        } else {
            GroupName::Others
        };
        let directory = self.directory.clone();
        let runnable = runnable
            .warm(traits.warms_up)
            .working_on(move || directory.running_at(place));
        let added = self.add(group, runnable);
        added.inspect_err(|_| self.directory.forget_controller(place))
    }

    /// As [`Manager::add_task`].
    ///
    /// # Errors
    /// [`Stopping`] from the stop on.
    pub fn add_task<F, Fut, E>(&self, name: impl Into<String>, run: F) -> Result<(), Stopping>
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let runnable = Runnable::new(format!("task {}", name.into()), run);
        self.add(GroupName::Others, runnable)
    }

    /// As [`Manager::add`].
    ///
    /// # Errors
    /// [`Stopping`] from the stop on.
    pub fn add(&self, group: GroupName, runnable: Runnable) -> Result<(), Stopping> {
        self.inbox.add(Added {
            group,
            runnable,
            synced: None,
        })
    }
}
