//! One run of a manager: start, watch, stop.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use informer::Synced;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::group::{Ended, Group};
use super::inbox::Inbox;
use super::runnable::Runnable;
use super::{Directory, Dropped, Error, GroupName, ManagerOptions, Phase};
use crate::controller::{Wait, wait_until_synced};
use crate::election::{self, Elector};
use crate::error::Chain;

/// What a group gets at least, if an earlier one has used up the grace time: enough to end in order,
/// so that only what is really stuck is reported.
const LEAST_GRACE: Duration = Duration::from_millis(100);

/// What giving the Lease back gets at least, whatever the stop has taken until then.
const LEAST_RELEASE: Duration = Duration::from_secs(5);

/// Why the ordinary course of things ends.
enum Interrupt {
    Stop,
    Failed(Error),
    /// The Lease is lost: no grace.
    Lost(Error),
}

/// Resolves once an election may be told that the work of its term has ended.
type Done = oneshot::Sender<()>;

/// An election while it runs.
struct Election {
    stop: CancellationToken,
    rejoins: bool,
    running: JoinSet<Result<(), election::Error>>,
    /// Won terms. The work is told to have ended by dropping the sender that comes with it.
    terms: mpsc::Receiver<Done>,
    /// The term that lasts.
    term: Option<Done>,
}

/// What has been started, and what is yet to be.
pub(super) struct Running {
    options: ManagerOptions,
    inbox: Inbox,
    directory: Directory,
    elector: Option<Elector>,
    election: Option<Election>,
    stop: CancellationToken,
    /// The last group that was started.
    started: Option<GroupName>,
    /// Of groups not started yet, and what a leader starts in each term.
    waiting: Vec<(GroupName, Runnable)>,
    synced: Vec<Box<dyn Synced>>,
    ready: Vec<(String, BoxFuture<'static, ()>)>,
    servers: Group,
    webhooks: Group,
    caches: Group,
    others: Group,
    leader: Group,
}

impl Running {
    pub(super) fn new(
        options: ManagerOptions,
        inbox: Inbox,
        directory: Directory,
        elector: Option<Elector>,
    ) -> Self {
        let others = Group::new();
        // Controllers that need no leadership are among them.
        others.elect();
        Self {
            options,
            inbox,
            directory,
            elector,
            election: None,
            stop: CancellationToken::new(),
            started: None,
            waiting: Vec::new(),
            synced: Vec::new(),
            ready: Vec::new(),
            servers: Group::new(),
            webhooks: Group::new(),
            caches: Group::new(),
            others,
            leader: Group::new(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        self.stop = stop;
        // What is refused has been told so from here on, whatever becomes of this future.
        let _close = CloseOnDrop(self.inbox.clone(), self.directory.clone());
        let interrupt = match self.start().await {
            Ok(()) => loop {
                if let Some(interrupt) = self.event().await {
                    break interrupt;
                }
            },
            Err(interrupt) => interrupt,
        };
        self.shut_down(interrupt).await
    }

    /// Starts one group after the other, each when the one before is ready.
    async fn start(&mut self) -> Result<(), Interrupt> {
        use GroupName::{Caches, LeaderElected, Others, Servers, Webhooks};
        self.accept();
        self.can_rejoin().map_err(Interrupt::Failed)?;
        for group in [Servers, Webhooks, Caches, Others, LeaderElected] {
            self.accept();
            self.started = Some(group);
            self.start_waiting(group);
            self.until_ready().await?;
            if group == Caches {
                self.until_synced().await?;
            }
        }
        self.directory.enter(Phase::Running);
        match self.elector.take() {
            Some(elector) => self.election = Some(Election::start(elector)),
            None => self.elected(),
        }
        Ok(())
    }

    /// Takes in what was added: starts it if its group has been, keeps it for later if not.
    fn accept(&mut self) {
        for added in self.inbox.take() {
            if self.started < Some(GroupName::Caches) {
                self.synced.extend(added.synced);
            }
            let once = added.group == GroupName::LeaderElected && !added.runnable.starts_anew();
            if once && self.started.is_some() && self.rejoins() {
                let name = added.runnable.name.as_str();
                warn!(name, "runs in one term only: added for a single start");
            }
            self.waiting.push((added.group, added.runnable));
            if self.started >= Some(added.group) {
                self.start_waiting(added.group);
            }
        }
    }

    /// An election that begins anew needs work that does.
    fn can_rejoin(&self) -> Result<(), Error> {
        let rejoins = self.elector.as_ref().is_some_and(Elector::rejoins);
        let names: Vec<_> = self
            .waiting
            .iter()
            .filter(|(group, runnable)| {
                *group == GroupName::LeaderElected && !runnable.starts_anew()
            })
            .map(|(_, runnable)| runnable.name.clone())
            .collect();
        if !rejoins || names.is_empty() {
            return Ok(());
        }
        Err(Error::StartsOnce { names })
    }

    /// Starts what waits in `group`. Of the leader's it is what warms up, and the rest once elected.
    fn start_waiting(&mut self, group: GroupName) {
        let keep = group == GroupName::LeaderElected && self.rejoins();
        let mut waiting = Vec::with_capacity(self.waiting.len());
        for (of, mut runnable) in std::mem::take(&mut self.waiting) {
            let elected = self.leader.is_elected();
            let starts =
                of == group && (group != GroupName::LeaderElected || elected || runnable.warm);
            if !starts || runnable.has_started() {
                waiting.push((of, runnable));
                continue;
            }
            // After the last group nobody waits any more.
            let ready = runnable.ready.take();
            if let Some(ready) = ready.filter(|_| self.started < Some(GroupName::LeaderElected)) {
                self.ready.push((runnable.name.clone(), ready));
            }
            self.group(group).start(&mut runnable);
            if keep {
                waiting.push((of, runnable));
            }
        }
        self.waiting = waiting;
    }

    fn group(&mut self, group: GroupName) -> &mut Group {
        match group {
            GroupName::Servers => &mut self.servers,
            GroupName::Webhooks => &mut self.webhooks,
            GroupName::Caches => &mut self.caches,
            GroupName::Others => &mut self.others,
            GroupName::LeaderElected => &mut self.leader,
        }
    }

    fn rejoins(&self) -> bool {
        let elector = self.elector.as_ref().is_some_and(Elector::rejoins);
        elector || self.election.as_ref().is_some_and(|one| one.rejoins)
    }

    /// This process leads: what waited for that starts.
    fn elected(&mut self) {
        self.leader.elect();
        self.start_waiting(GroupName::LeaderElected);
    }

    /// The term is over: what needed it is dropped, and ended when this returns. Cancel-safe: what
    /// still runs then is ended by the stop.
    async fn deposed(&mut self) {
        self.leader.cut().await;
        self.leader = Group::new();
        for (_, runnable) in &mut self.waiting {
            runnable.rearm();
        }
    }

    /// Waits for what was started to be ready.
    async fn until_ready(&mut self) -> Result<(), Interrupt> {
        let ready = std::mem::take(&mut self.ready);
        if ready.is_empty() {
            return Ok(());
        }
        let (mut names, waits): (Vec<_>, Vec<_>) = ready
            .into_iter()
            .map(|(name, ready)| {
                let of = name.clone();
                let wait = ready.map(|()| of);
                (name, wait)
            })
            .unzip();
        let mut waits: FuturesUnordered<_> = waits.into_iter().collect();
        let timeout = self.options.sync_timeout;
        let deadline = tokio::time::sleep(timeout);
        tokio::pin!(deadline);
        while !names.is_empty() {
            let ready = async {
                tokio::select! {
                    ready = waits.next() => ready,
                    () = deadline.as_mut() => None,
                }
            };
            match self.unless_interrupted(ready).await? {
                // One of that name: several may have it.
                Some(ready) => {
                    let at = names.iter().position(|name| *name == ready);
                    at.map(|at| names.swap_remove(at));
                }
                None => return Err(Interrupt::Failed(Error::NotReady { timeout, names })),
            }
        }
        Ok(())
    }

    /// Waits for the informers' initial lists.
    async fn until_synced(&mut self) -> Result<(), Interrupt> {
        let synced = std::mem::take(&mut self.synced);
        let (timeout, stop) = (self.options.sync_timeout, self.stop.clone());
        let wait = async {
            let synced: Vec<_> = synced.iter().map(|one| &**one).collect();
            wait_until_synced(&synced, timeout, &stop).await
        };
        match self.unless_interrupted(wait).await? {
            Wait::Synced => {
                debug!(informers = synced.len(), "all informers synced");
                Ok(())
            }
            Wait::Stopped => Err(Interrupt::Stop),
            Wait::TimedOut(unsynced) => {
                Err(Interrupt::Failed(Error::SyncTimeout { timeout, unsynced }))
            }
        }
    }

    /// Waits for `future` while watching over all that runs.
    async fn unless_interrupted<F: Future>(&mut self, future: F) -> Result<F::Output, Interrupt> {
        tokio::pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                interrupt = self.event() => if let Some(interrupt) = interrupt {
                    return Err(interrupt);
                },
            }
        }
    }

    /// Waits for the next thing that happens and deals with it; gives what ends the course.
    ///
    /// Cancel-safe as long as there is no election.
    async fn event(&mut self) -> Option<Interrupt> {
        let Self {
            stop,
            inbox,
            election,
            servers,
            webhooks,
            caches,
            others,
            leader,
            ..
        } = self;
        let failed = |error| Some(Interrupt::Failed(error));
        let won = tokio::select! {
            biased;
            () = stop.cancelled() => return Some(Interrupt::Stop),
            change = next_change(election) => change,
            error = servers.failure() => return failed(error),
            error = webhooks.failure() => return failed(error),
            error = caches.failure() => return failed(error),
            error = others.failure() => return failed(error),
            error = leader.failure() => return failed(error),
            () = inbox.news() => {
                self.accept();
                return None;
            }
        };
        match won {
            Change::Won(done) => {
                if let Some(election) = &mut self.election {
                    election.term = Some(done);
                }
                self.elected();
                None
            }
            Change::TermOver => {
                let stop = self.stop.clone();
                tokio::select! {
                    biased;
                    // What blocks its thread may never end; the stop has a limit for that.
                    () = stop.cancelled() => return Some(Interrupt::Stop),
                    () = self.deposed() => {}
                }
                self.start_waiting(GroupName::LeaderElected);
                None
            }
            Change::Ended(Ok(())) => None,
            Change::Ended(Err(error)) => Some(Interrupt::Lost(Error::Election(Box::new(error)))),
        }
    }

    async fn shut_down(mut self, interrupt: Interrupt) -> Result<(), Error> {
        self.inbox.close();
        self.directory.enter(Phase::Stopping);
        let mut errors = Vec::new();
        let mut grace = self.options.grace;
        let is_lost = matches!(interrupt, Interrupt::Lost(_));
        match interrupt {
            Interrupt::Stop => {}
            Interrupt::Failed(error) => errors.push(error),
            Interrupt::Lost(error) => {
                grace = Duration::ZERO;
                errors.push(error);
            }
        }
        for error in &errors {
            error!(error = %Chain(error), "stopping because of a failure");
        }
        info!(?grace, "stopping");
        // One that does not lead will not any more; one that does holds on until its work has ended.
        if let Some(election) = &self.election {
            election.stop.cancel();
        }

        // None: a moment so far off that it can't be expressed.
        let deadline = Instant::now().checked_add(grace);
        let left = self
            .stop_groups(is_lost, deadline, LEAST_GRACE.min(grace))
            .await;
        errors.extend(left.errors);
        let (dropped, leader_blocked) = (left.dropped, left.leader_blocked);
        if !dropped.is_empty() && !grace.is_zero() {
            errors.push(Error::GraceExceeded {
                grace,
                running: dropped,
            });
        }
        if let Some(election) = self.election.take() {
            if leader_blocked {
                warn!("the lease is left to expire: work of the leader still runs");
            } else if !grace.is_zero() {
                let least = Instant::now() + LEAST_RELEASE;
                errors.extend(
                    election
                        .end(deadline.map(|deadline| deadline.max(least)))
                        .await,
                );
            }
        }
        Error::of(errors)
    }

    /// Stops one group after the other until `deadline`, each with `least` at least. What needs the
    /// Lease is cut off as soon as that is lost, whichever group is being waited for.
    async fn stop_groups(
        &mut self,
        is_lost: bool,
        deadline: Option<Instant>,
        least: Duration,
    ) -> Left {
        let Self {
            election,
            servers,
            webhooks,
            caches,
            others,
            leader,
            ..
        } = self;
        let until = || deadline.map(|deadline| deadline.max(Instant::now() + least));
        let mut left = Left::default();
        let mut leader_ended = None;
        if is_lost {
            leader_ended = Some(cut_off(leader).await);
        }
        let ended = tokio::select! {
            biased;
            ended = others.stop(until()) => ended,
            error = lease_lost(election) => {
                left.errors.extend(error);
                leader_ended = Some(cut_off(leader).await);
                others.stop(until()).await
            }
        };
        left.take(ended);
        let ended = match leader_ended {
            Some(ended) => ended,
            None => tokio::select! {
                biased;
                ended = leader.stop(until()) => ended,
                error = lease_lost(election) => {
                    left.errors.extend(error);
                    cut_off(leader).await
                }
            },
        };
        left.leader_blocked = ended.blocked;
        left.take(ended);
        for group in [caches, webhooks, servers] {
            left.take(group.stop(until()).await);
        }
        left
    }
}

/// What the stop of all groups has left behind.
#[derive(Default)]
struct Left {
    errors: Vec<Error>,
    dropped: Vec<Dropped>,
    leader_blocked: bool,
}

impl Left {
    fn take(&mut self, ended: Ended) {
        self.errors.extend(ended.errors);
        self.dropped.extend(ended.dropped);
    }
}

/// Stops what needs the Lease after that is lost: there is no grace, and so none to exceed.
async fn cut_off(leader: &mut Group) -> Ended {
    let ended = leader.stop(Some(Instant::now())).await;
    Ended {
        dropped: Vec::new(),
        ..ended
    }
}

/// Closes an inbox, so that whoever adds to a manager that is gone is told so.
struct CloseOnDrop(Inbox, Directory);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
        self.1.enter(Phase::Stopping);
    }
}

/// What an election comes up with.
enum Change {
    /// The Lease is won.
    Won(Done),
    /// The term is over and the election goes on.
    TermOver,
    /// The election is over.
    Ended(Result<(), election::Error>),
}

/// The next change; never without an election. Cancel-safe.
async fn next_change(election: &mut Option<Election>) -> Change {
    let Some(election) = election else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        () = over(&mut election.term) => {
            election.term = None;
            if election.rejoins {
                return Change::TermOver;
            }
            // The end of the election tells why, and ends all.
            Change::Ended(ended(&mut election.running).await)
        }
        Some(done) = election.terms.recv() => Change::Won(done),
        ended = ended(&mut election.running) => Change::Ended(ended),
    }
}

/// Resolves when the election has dropped its side of a term, never without one. Cancel-safe.
async fn over(term: &mut Option<Done>) {
    match term {
        Some(done) => done.closed().await,
        None => std::future::pending().await,
    }
}

/// During a stop: resolves when the Lease is lost, with the error of the election if it has ended.
async fn lease_lost(election: &mut Option<Election>) -> Option<Error> {
    let Some(election) = election else {
        return std::future::pending().await;
    };
    over(&mut election.term).await;
    election.term = None;
    if election.rejoins {
        return None;
    }
    let ended = ended(&mut election.running).await;
    ended.err().map(|error| Error::Election(Box::new(error)))
}

/// Waits for the end of an election; never once it has been told. Cancel-safe.
async fn ended(running: &mut JoinSet<Result<(), election::Error>>) -> Result<(), election::Error> {
    match running.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Some(Err(_)) | None => std::future::pending().await,
    }
}

impl Election {
    fn start(elector: Elector) -> Self {
        let stop = CancellationToken::new();
        let rejoins = elector.rejoins();
        let (sender, terms) = mpsc::channel(1);
        let lead = move |_| {
            let sender = sender.clone();
            async move {
                let (done, ended) = oneshot::channel();
                // Who takes no more terms has nothing to do in one.
                if sender.send(done).await.is_ok() {
                    ended.await.unwrap_or(());
                }
            }
        };
        let mut running = JoinSet::new();
        running.spawn(elector.run(lead, stop.clone()).boxed());
        Self {
            stop,
            rejoins,
            running,
            terms,
            term: None,
        }
    }

    /// The work of the leader has ended: gives the Lease back, until `deadline`.
    async fn end(mut self, deadline: Option<Instant>) -> Option<Error> {
        self.stop.cancel();
        drop(self.term.take());
        self.terms.close();
        while self.terms.try_recv().is_ok() {}
        let ended = async {
            match self.running.join_next().await {
                Some(Ok(Err(error))) => Some(Error::Election(Box::new(error))),
                _ => None,
            }
        };
        match deadline {
            None => ended.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, ended).await {
                Ok(error) => error,
                Err(_) => {
                    warn!("the lease could not be given back in time; it is left to expire");
                    None
                }
            },
        }
    }
}
