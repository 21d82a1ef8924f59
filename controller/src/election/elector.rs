//! Runs a contender against a lock, and the work of its terms.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube_client::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::contender::{Answer, Call, Contender, Loss, Next};
use super::handle::Shared;
use super::lock::{KubeLock, Lock, answer_to};
use super::record::Lease;
use super::{Candidate, Config, ElectionHandle, ElectionOptions, InvalidOptions, Record, Term};
use crate::error::Chain;

/// How long the record of a Lease that was given back lasts, for those who heed only the time.
const RELEASED_DURATION: Duration = Duration::from_secs(1);

/// How long dropped work may take to reach an await point before its end is reported as overdue.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// Why an election ended otherwise than by a stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options do not work.
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    /// The Lease could not be renewed in time.
    #[error("lost lease {name}: not renewed within {deadline:?}")]
    NotRenewed {
        /// Name of the Lease.
        name: String,
        /// The renew deadline.
        deadline: Duration,
    },
    /// The Lease is held by somebody else, or was emptied, while this process led.
    #[error("lost lease {name}: it is held by {}", .holder.as_deref().unwrap_or("nobody"))]
    Taken {
        /// Name of the Lease.
        name: String,
        /// Who holds it now.
        holder: Option<String>,
    },
    /// The leader's work panicked.
    #[error("the work of the leader by lease {name} panicked: {message}")]
    Panicked {
        /// Name of the Lease.
        name: String,
        /// What the panic said.
        message: String,
    },
}

/// Takes part in an election and does the work of the leader while it leads.
///
/// ```no_run
/// use controller::election::{ElectionOptions, Elector, Term};
/// # async fn example(client: kube_client::Client, stop: tokio_util::sync::CancellationToken)
/// # -> Result<(), controller::election::Error> {
/// let elector = Elector::new(client, ElectionOptions::new("default", "my-controller"))?;
/// let work = |term: Term| async move {
///     tracing::info!(term = term.number(), "leading");
///     term.cancelled().await;
/// };
/// elector.run(work, stop).await
/// # }
/// ```
pub struct Elector {
    lock: Box<dyn Lock>,
    config: Config,
    identity: Arc<str>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector")
            .field("config", &self.config)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// How the work of a term ended.
enum End {
    /// By itself, after a stop or not.
    Done,
    Panicked(String),
    Lost(Loss),
}

impl Elector {
    /// An elector for the Lease of `options`; makes no call.
    ///
    /// # Errors
    /// [`Error::Options`] names every fault.
    pub fn new(client: Client, options: ElectionOptions) -> Result<Self, Error> {
        let (config, identity) = Config::new(options)?;
        let lock = KubeLock::new(client, &config);
        Ok(Self::over(Box::new(lock), config, identity.into()))
    }

    fn over(lock: Box<dyn Lock>, config: Config, identity: Arc<str>) -> Self {
        let shared = Shared::new(&config, Arc::clone(&identity));
        Self {
            lock,
            config,
            identity,
            shared,
        }
    }

    /// A handle to look at the election.
    #[must_use]
    pub fn handle(&self) -> ElectionHandle {
        ElectionHandle(Arc::clone(&self.shared))
    }

    /// Whether a lost Lease is contended for again.
    pub(crate) fn rejoins(&self) -> bool {
        self.config.rejoin
    }

    /// Contends for the Lease, works while it is held, and ends after `stop`.
    ///
    /// A stop ends a contender at once, without another try. A leader's work is told by
    /// [`Term::cancelled`]; the Lease is renewed until the work has ended, and then given back. The
    /// work runs on a task of its own, which this future owns.
    ///
    /// Cancellation safety: dropping the future drops the work at its next await and leaves the
    /// Lease to expire.
    ///
    /// # Errors
    /// [`Error::NotRenewed`] and [`Error::Taken`] unless the options say `rejoin`;
    /// [`Error::Panicked`]. A stop is no error.
    pub async fn run<C: Candidate>(
        self,
        candidate: C,
        stop: CancellationToken,
    ) -> Result<(), Error> {
        let candidate = Arc::new(candidate);
        let identity = Arc::clone(&self.identity);
        let contender = Contender::new(identity, self.config.clone(), Instant::now());
        let mut round = Round {
            elector: &self,
            contender,
            reported: None,
            failures: 0,
        };
        info!(
            lease = self.config.name,
            identity = &*self.identity,
            "contending"
        );
        loop {
            if !round.campaign(&*candidate, &stop).await {
                break;
            }
            match round.lead(&candidate, &stop).await {
                End::Done => break,
                End::Panicked(message) => {
                    round.release().await;
                    let name = self.config.name.clone();
                    return Err(Error::Panicked { name, message });
                }
                End::Lost(loss) => {
                    let error = round.loss(loss);
                    self.shared.retire(round.contender.leader());
                    if !self.config.rejoin {
                        return Err(error);
                    }
                    warn!(error = %error, "contending again");
                }
            }
        }
        round.release().await;
        Ok(())
    }
}

/// One run of an elector.
struct Round<'a> {
    elector: &'a Elector,
    contender: Contender,
    /// The leader that was told last.
    reported: Option<String>,
    /// Failed calls in a row.
    failures: u64,
}

impl Round<'_> {
    /// Tries for the Lease until it is won (true) or `stop` (false).
    async fn campaign(&mut self, candidate: &impl Candidate, stop: &CancellationToken) -> bool {
        while !stop.is_cancelled() {
            self.step(candidate, stop).await;
            if self.contender.term().is_some() {
                // A stop that came meanwhile wins: nothing of the term has begun.
                return !stop.is_cancelled();
            }
        }
        false
    }

    /// Does the work of the present term while renewing the Lease.
    async fn lead<C: Candidate>(&mut self, candidate: &Arc<C>, stop: &CancellationToken) -> End {
        let Some(term) = self.contender.term() else {
            return End::Lost(Loss::Deadline);
        };
        info!(
            lease = self.elector.config.name,
            term = term.number,
            "leading"
        );
        let cancel = stop.child_token();
        let shared = Arc::clone(&self.elector.shared);
        let term = Term::new(term, cancel.clone(), shared);
        let mut work = JoinSet::new();
        let leader = Arc::clone(candidate);
        work.spawn(async move { leader.lead(term).await });
        let over = CancellationToken::new();
        let end = loop {
            let mut step = std::pin::pin!(self.step(&**candidate, &over));
            let ended = tokio::select! {
                biased;
                loss = step.as_mut() => match loss {
                    Some(loss) => break End::Lost(loss),
                    None => continue,
                },
                ended = work.join_next() => ended,
            };
            // A write goes on to its answer, for the reason that a step gives.
            over.cancel();
            step.await;
            break match ended {
                Some(Err(error)) if error.is_panic() => End::Panicked(error.to_string()),
                _ => End::Done,
            };
        };
        cancel.cancel();
        if matches!(end, End::Lost(_)) {
            self.drop_work(work).await;
        }
        candidate.stopped();
        end
    }

    /// Drops the work of a lost term. It must have ended before this process may lead again.
    async fn drop_work(&self, mut work: JoinSet<()>) {
        let name = &self.elector.config.name;
        let mut ended = std::pin::pin!(work.shutdown());
        if tokio::time::timeout(ABORT_LIMIT, ended.as_mut())
            .await
            .is_ok()
        {
            return;
        }
        error!(
            lease = name,
            "the work of a lost term is blocked outside of any await point"
        );
        if self.elector.config.rejoin {
            ended.await;
        }
    }

    /// Carries out one step: a call or a wait. Some: the term is lost.
    ///
    /// `stop` cuts a wait and a look short. A write goes on to its answer, or to the end of its time: one that
    /// is given up could arrive after the release, and leave the Lease with a process that has ended.
    async fn step(&mut self, candidate: &impl Candidate, stop: &CancellationToken) -> Option<Loss> {
        match self.contender.next(now()) {
            Next::Lost(loss) => return Some(loss),
            Next::Sleep(until) => {
                let wait = tokio::time::sleep_until(until);
                let _ = stop.run_until_cancelled(wait).await;
            }
            Next::Call(call, limit) => {
                let is_a_look = call == Call::Get;
                let answer = self.call(call, limit);
                let answer = if is_a_look {
                    stop.run_until_cancelled(answer).await?
                } else {
                    answer.await
                };
                self.contender.answered(answer, now(), rand::random());
                self.elector.shared.publish(&self.contender);
                if !stop.is_cancelled() {
                    self.report(candidate);
                }
            }
        }
        None
    }

    async fn call(&mut self, call: Call, limit: Instant) -> Answer {
        let lock = &self.elector.lock;
        let cause = match tokio::time::timeout_at(limit, lock.call(call)).await {
            Ok(Ok(lease)) => {
                self.failures = 0;
                return Answer::Lease(lease);
            }
            Ok(Err(error)) => match answer_to(&error) {
                Answer::Failed => Chain(&*error).to_string(),
                answer => {
                    self.failures = 0;
                    return answer;
                }
            },
            Err(_) => "no answer in time".to_owned(),
        };
        self.failures += 1;
        if self.failures.is_power_of_two() {
            let (lease, failures) = (&self.elector.config.name, self.failures);
            warn!(lease, error = cause, failures, "call for the lease failed");
        }
        Answer::Failed
    }

    /// Tells of a change of the leader, once.
    fn report(&mut self, candidate: &impl Candidate) {
        let leader = self.contender.leader();
        if leader == self.reported {
            return;
        }
        self.reported = leader;
        if let Some(leader) = &self.reported {
            debug!(lease = self.elector.config.name, leader, "leader seen");
            candidate.new_leader(leader);
        }
    }

    /// Why the term was lost, as the caller of the elector gets it.
    fn loss(&self, loss: Loss) -> Error {
        let Config {
            name,
            renew_deadline,
            ..
        } = &self.elector.config;
        let name = name.clone();
        match loss {
            Loss::Deadline => Error::NotRenewed {
                name,
                deadline: *renew_deadline,
            },
            Loss::Taken => Error::Taken {
                name,
                holder: self.contender.leader(),
            },
        }
    }

    /// Gives the Lease back if it may be ours: looks, and empties it only if it is.
    async fn release(&self) {
        let Config {
            name,
            renew_deadline,
            release_on_stop,
            ..
        } = &self.elector.config;
        if *release_on_stop && self.contender.may_hold() {
            let released = tokio::time::timeout(*renew_deadline, self.try_release()).await;
            match released {
                Ok(Ok(true)) => info!(lease = name, "lease given back"),
                Ok(Ok(false)) => debug!(lease = name, "the lease is not ours to give back"),
                Ok(Err(error)) => {
                    warn!(lease = name, error = %Chain(&*error), "lease not given back");
                }
                Err(_) => warn!(lease = name, "lease not given back: no answer in time"),
            }
        }
        self.elector.shared.retire(None);
    }

    /// Whether the Lease was ours and is free now.
    async fn try_release(&self) -> Result<bool, crate::reconcile::BoxError> {
        loop {
            let lease = match self.bounded(Call::Get).await {
                Ok(lease) => lease,
                Err(error) if answer_to(&error) == Answer::NotFound => return Ok(false),
                Err(error) => return Err(error),
            };
            let record = lease.record();
            if record.holder != *self.elector.identity {
                return Ok(false);
            }
            let free = Record {
                holder: String::new(),
                lease_duration: Some(RELEASED_DURATION),
                renew_time: Some(Timestamp::now()),
                ..record
            };
            let free = lease.with(&free, &self.elector.config.labels);
            match self.bounded(Call::Update(free)).await {
                Ok(_) => return Ok(true),
                // A renewal under way at the stop has arrived meanwhile.
                Err(error) if answer_to(&error) == Answer::Conflict => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn bounded(&self, call: Call) -> Result<Lease, crate::reconcile::BoxError> {
        let limit = self.elector.config.attempt_timeout();
        tokio::time::timeout(limit, self.elector.lock.call(call)).await?
    }
}

fn now() -> super::Now {
    super::Now {
        monotonic: Instant::now(),
        wall: Timestamp::now(),
    }
}

#[cfg(test)]
#[path = "elector_tests.rs"]
mod tests;
