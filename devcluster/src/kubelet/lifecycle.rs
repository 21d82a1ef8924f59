//! The life of one pod on its node, as a state machine without IO.
//!
//! [`Life::next`] says what is to be done now; the agent does it and tells the outcome by one of
//! `reported`, `prepared`, `probed`, `drained`, `removed`. Time comes in with each call.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use tokio::time::Instant;

use super::{
    probe::ProbePlan,
    status::{ContainerState, Exit, PodPhase, Report, gates_open},
};

/// First pause before a container is started for the third time; doubled up to [`BACKOFF_MAX`].
const BACKOFF_BASE: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// First pause before a pod that lacks something is tried again; doubled up to [`BLOCKED_MAX`].
const BLOCKED_BASE: Duration = Duration::from_millis(250);
const BLOCKED_MAX: Duration = Duration::from_secs(5);
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// One instant on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) wall: Timestamp,
}

/// When a container that ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// What a pod's spec and annotations ask of its node.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) start_delay: Duration,
    pub(super) stop_delay: Duration,
    /// Containers end by themselves after that time.
    pub(super) run_for: Option<Duration>,
    pub(super) exit_code: i32,
    pub(super) restart: RestartPolicy,
    /// The readiness probe of each container.
    pub(super) probes: Vec<Option<ProbePlan>>,
}

/// Why containers cannot be started yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blocked {
    /// Waiting reason as the real kubelet gives it.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether the pod has its sandbox and address already.
    pub(super) sandbox: bool,
}

/// What is to be done for a pod now.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing until the pod changes.
    Idle,
    /// Nothing until that time.
    Wait(Instant),
    /// Write the status.
    Report(Report),
    /// Get what the containers need, and start what really serves.
    Prepare,
    /// Run the readiness probe of a container.
    Probe(usize),
    /// Let what really serves finish within that time.
    Drain(Duration),
    /// Take the pod out of the API.
    Remove,
}

#[derive(Debug)]
enum State {
    Creating {
        ready_at: Instant,
        tries: u32,
        blocked: Option<Blocked>,
    },
    Running {
        since: Timestamp,
        ends_at: Option<Instant>,
        checks: Vec<Check>,
        serving: bool,
    },
    Stopping {
        since: Timestamp,
        stop_at: Instant,
        grace: Duration,
        drained: bool,
    },
    BackOff {
        until: Instant,
    },
    Ended,
    /// Over before this kubelet came: its status stays as it is.
    Finished,
}

/// Readiness of one running container.
#[derive(Debug)]
struct Check {
    ready: bool,
    /// None: nothing more to find out.
    next_at: Option<Instant>,
    successes: u32,
    failures: u32,
}

/// A pod on its node.
#[derive(Debug)]
pub(super) struct Life {
    plan: Plan,
    host_ip: IpAddr,
    pod_ip: IpAddr,
    claimed_at: Timestamp,
    state: State,
    restarts: i32,
    last_exit: Option<Exit>,
    reported: Option<Report>,
    removed: bool,
}

impl Life {
    /// A pod that has just been seen on its node.
    ///
    /// A pod whose containers were running under an earlier kubelet starts again: `claimed_at` and
    /// the number of restarts go on from what its status says.
    pub(super) fn claim(pod: &Pod, plan: Plan, host_ip: IpAddr, pod_ip: IpAddr, now: Now) -> Self {
        let status = pod.status.as_ref();
        let earlier = status.and_then(|status| {
            status
                .container_statuses
                .as_ref()?
                .iter()
                .max_by_key(|c| c.restart_count)
        });
        let ran = earlier.is_some_and(|c| c.container_id.as_ref().is_some_and(|id| !id.is_empty()));
        let claimed_at = status
            .and_then(|status| status.start_time.as_ref())
            .map_or(now.wall, |t| t.0);
        let ready_at = now.instant + plan.start_delay;
        Self {
            plan,
            host_ip,
            pod_ip,
            claimed_at,
            state: State::Creating {
                ready_at,
                tries: 0,
                blocked: None,
            },
            restarts: earlier.map_or(0, |c| c.restart_count) + i32::from(ran),
            last_exit: None,
            reported: None,
            removed: false,
        }
    }

    /// A pod that was over when this kubelet first saw it; only its removal is left to do.
    pub(super) fn finished(plan: Plan, host_ip: IpAddr, now: Now) -> Self {
        Self {
            plan,
            host_ip,
            pod_ip: host_ip,
            claimed_at: now.wall,
            state: State::Finished,
            restarts: 0,
            last_exit: None,
            reported: None,
            removed: false,
        }
    }

    pub(super) fn pod_ip(&self) -> IpAddr {
        self.pod_ip
    }

    pub(super) fn probe(&self, container: usize) -> Option<&ProbePlan> {
        self.plan.probes.get(container)?.as_ref()
    }

    /// Whether the containers are up, so that what serves for them must be too.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Running { .. } | State::Stopping { .. })
    }

    /// What is to be done now.
    pub(super) fn next(&mut self, pod: &Pod, now: Now) -> Step {
        if self.removed {
            return Step::Idle;
        }
        let deleting = pod.metadata.deletion_timestamp.is_some();
        self.settle(pod, deleting, now);
        let report = self.report(pod);
        let news = self.reported.as_ref() != Some(&report);
        match &self.state {
            State::Creating { ready_at, .. } => match (*ready_at > now.instant, news) {
                (true, true) => Step::Report(report),
                (true, false) => Step::Wait(*ready_at),
                // Without a delay the report of creation would be outdated before it is sent.
                (false, _) => Step::Prepare,
            },
            State::Running {
                ends_at, checks, ..
            } => {
                // A due probe goes first: its result then travels with the report of the start.
                let due = |check: &Check| check.next_at.is_some_and(|at| at <= now.instant);
                if let Some(container) = checks.iter().position(due) {
                    return Step::Probe(container);
                }
                if news {
                    return Step::Report(report);
                }
                let probes = checks.iter().filter_map(|check| check.next_at);
                probes.chain(*ends_at).min().map_or(Step::Idle, Step::Wait)
            }
            State::Stopping {
                drained: false,
                grace,
                ..
            } => Step::Drain(*grace),
            State::Stopping { stop_at, .. } => Step::Wait(*stop_at),
            State::BackOff { .. } if news => Step::Report(report),
            State::BackOff { until } => Step::Wait(*until),
            State::Ended if news => Step::Report(report),
            State::Ended | State::Finished if deleting => Step::Remove,
            State::Ended | State::Finished => Step::Idle,
        }
    }

    /// The status was written.
    pub(super) fn reported(&mut self, report: Report) {
        self.reported = Some(report);
    }

    /// Containers are started (`serving`: something real serves), or they cannot be yet.
    pub(super) fn prepared(&mut self, outcome: Result<bool, Blocked>, now: Now) {
        let State::Creating { tries, .. } = self.state else {
            return;
        };
        self.state = match outcome {
            Ok(serving) => State::Running {
                since: now.wall,
                ends_at: self.plan.run_for.map(|time| now.instant + time),
                checks: self
                    .plan
                    .probes
                    .iter()
                    .map(|plan| Check::new(plan.as_ref(), now))
                    .collect(),
                serving,
            },
            Err(blocked) => State::Creating {
                ready_at: now.instant + doubled(BLOCKED_BASE, tries, BLOCKED_MAX),
                tries: tries.saturating_add(1),
                blocked: Some(blocked),
            },
        };
    }

    /// A readiness probe was run.
    pub(super) fn probed(&mut self, container: usize, success: bool, now: Now) {
        let Some(plan) = self.plan.probes.get(container).and_then(Option::as_ref) else {
            return;
        };
        if let State::Running { checks, .. } = &mut self.state
            && let Some(check) = checks.get_mut(container)
        {
            check.record(plan, success, now);
        }
    }

    /// What really served has ended.
    pub(super) fn drained(&mut self) {
        if let State::Stopping { drained, .. } = &mut self.state {
            *drained = true;
        }
    }

    /// The API has accepted the removal.
    pub(super) fn removed(&mut self) {
        self.removed = true;
    }

    /// Makes the transitions that need nothing but time or the deletion mark.
    fn settle(&mut self, pod: &Pod, deleting: bool, now: Now) {
        loop {
            let next = match &mut self.state {
                State::Creating { .. } | State::BackOff { .. } if deleting => State::Ended,
                State::Running { since, serving, .. } if deleting => {
                    let grace = grace(pod);
                    State::Stopping {
                        since: *since,
                        stop_at: now.instant + self.plan.stop_delay.min(grace),
                        grace,
                        drained: !*serving,
                    }
                }
                State::Stopping {
                    since,
                    stop_at,
                    drained: true,
                    ..
                } if *stop_at <= now.instant => {
                    // A container that is asked to stop ends in good order.
                    self.last_exit = Some(Exit {
                        code: 0,
                        started: *since,
                        finished: now.wall,
                    });
                    State::Ended
                }
                State::Running {
                    since,
                    ends_at: Some(at),
                    ..
                } if *at <= now.instant => {
                    let code = self.plan.exit_code;
                    self.last_exit = Some(Exit {
                        code,
                        started: *since,
                        finished: now.wall,
                    });
                    self.after_exit(code, now)
                }
                State::Running {
                    checks,
                    serving: false,
                    ..
                } => {
                    // Nothing real to ask: the probe counts as passed once its first run is due.
                    for check in checks {
                        if check.next_at.is_some_and(|at| at <= now.instant) {
                            check.ready = true;
                            check.next_at = None;
                        }
                    }
                    return;
                }
                State::BackOff { until } if *until <= now.instant => State::Creating {
                    ready_at: now.instant,
                    tries: 0,
                    blocked: None,
                },
                _ => return,
            };
            self.state = next;
        }
    }

    fn after_exit(&mut self, code: i32, now: Now) -> State {
        let again = match self.plan.restart {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => code != 0,
            RestartPolicy::Never => false,
        };
        if !again {
            return State::Ended;
        }
        let restarts = u32::try_from(self.restarts).unwrap_or(0);
        self.restarts = self.restarts.saturating_add(1);
        let pause = match restarts.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => doubled(BACKOFF_BASE, doublings, BACKOFF_MAX),
        };
        State::BackOff {
            until: now.instant + pause,
        }
    }

    fn report(&self, pod: &Pod) -> Report {
        let not_ready = || vec![false; self.plan.probes.len()];
        let (phase, sandbox, containers, ready) = match &self.state {
            State::Creating { blocked, .. } => {
                let containers = match blocked {
                    None => ContainerState::waiting("ContainerCreating", ""),
                    Some(blocked) => ContainerState::waiting(blocked.reason, &blocked.message),
                };
                let sandbox = blocked.as_ref().is_some_and(|blocked| blocked.sandbox);
                (PodPhase::Pending, sandbox, containers, not_ready())
            }
            State::Running { since, checks, .. } => (
                PodPhase::Running,
                true,
                ContainerState::Running { since: *since },
                checks.iter().map(|check| check.ready).collect(),
            ),
            State::Stopping { since, .. } => (
                PodPhase::Running,
                true,
                ContainerState::Running { since: *since },
                self.reported
                    .as_ref()
                    .map_or_else(not_ready, |report| report.ready.clone()),
            ),
            State::BackOff { .. } => (
                PodPhase::Running,
                true,
                ContainerState::waiting("CrashLoopBackOff", "back-off restarting failed container"),
                not_ready(),
            ),
            State::Ended | State::Finished => {
                let code = self.last_exit.as_ref().map_or(137, |exit| exit.code);
                let phase = if code == 0 {
                    PodPhase::Succeeded
                } else {
                    PodPhase::Failed
                };
                (phase, false, ContainerState::Ended, not_ready())
            }
        };
        let up = phase == PodPhase::Running;
        Report {
            phase,
            generation: pod.metadata.generation,
            claimed_at: self.claimed_at,
            host_ip: self.host_ip,
            pod_ip: (sandbox || up || self.last_exit.is_some()).then_some(self.pod_ip),
            sandbox,
            gates_open: gates_open(pod),
            containers,
            ready,
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
        }
    }
}

impl Check {
    fn new(plan: Option<&ProbePlan>, now: Now) -> Self {
        Self {
            ready: plan.is_none(),
            next_at: plan.map(|plan| now.instant + plan.initial_delay),
            successes: 0,
            failures: 0,
        }
    }

    fn record(&mut self, plan: &ProbePlan, success: bool, now: Now) {
        if success {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            self.ready |= self.successes >= plan.success_threshold;
        } else {
            self.successes = 0;
            self.failures = self.failures.saturating_add(1);
            self.ready &= self.failures < plan.failure_threshold;
        }
        self.next_at = Some(now.instant + plan.period);
    }
}

fn grace(pod: &Pod) -> Duration {
    pod.metadata
        .deletion_grace_period_seconds
        .map_or(DEFAULT_GRACE, |seconds| {
            Duration::from_secs(seconds.max(0).unsigned_abs())
        })
}

fn doubled(base: Duration, times: u32, max: Duration) -> Duration {
    base.saturating_mul(2_u32.saturating_pow(times)).min(max)
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
