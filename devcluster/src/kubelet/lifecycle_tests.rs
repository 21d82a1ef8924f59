use serde_json::{Value, json};

use super::*;
use crate::kubelet::probe::ProbeAction;

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 64, 0, 1));
const POD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 64, 0, 2));

/// A pod, its life and a clock that the test moves.
struct Stage {
    life: Life,
    pod: Pod,
    begin: Instant,
    now: Instant,
}

fn plan() -> Plan {
    Plan {
        start_delay: Duration::from_secs(2),
        stop_delay: Duration::from_secs(3),
        run_for: None,
        exit_code: 0,
        restart: RestartPolicy::Always,
        probes: vec![None],
    }
}

fn probe() -> ProbePlan {
    ProbePlan {
        action: ProbeAction::Assumed,
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        success_threshold: 1,
        failure_threshold: 2,
    }
}

impl Stage {
    fn new(plan: Plan) -> Self {
        Self::of(json!({ "metadata": { "uid": "u", "generation": 1 } }), plan)
    }

    fn of(pod: Value, plan: Plan) -> Self {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let begin = Instant::now();
        let now = Now {
            instant: begin,
            wall: Timestamp::UNIX_EPOCH,
        };
        let life = Life::claim(&pod, plan, HOST, POD, now);
        Self {
            life,
            pod,
            begin,
            now: begin,
        }
    }

    fn now(&self) -> Now {
        let elapsed = i64::try_from((self.now - self.begin).as_secs()).unwrap();
        Now {
            instant: self.now,
            wall: Timestamp::from_second(elapsed).unwrap(),
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn next(&mut self) -> Step {
        let now = self.now();
        self.life.next(&self.pod, now)
    }

    /// Takes the report that must come next.
    fn report(&mut self) -> Report {
        match self.next() {
            Step::Report(report) => {
                self.life.reported(report.clone());
                report
            }
            step => panic!("expected a report, got {step:?}"),
        }
    }

    fn expect(&mut self, step: &Step) {
        assert_eq!(&self.next(), step);
    }

    fn wait(&self, seconds: u64) -> Step {
        Step::Wait(self.now + Duration::from_secs(seconds))
    }

    fn prepared(&mut self, outcome: Result<bool, Blocked>) {
        let now = self.now();
        self.life.prepared(outcome, now);
    }

    fn probed(&mut self, success: bool) {
        let now = self.now();
        self.life.probed(0, success, now);
    }

    fn delete(&mut self, grace: i64) {
        self.pod.metadata.deletion_timestamp = Some(Timestamp::UNIX_EPOCH.into());
        self.pod.metadata.deletion_grace_period_seconds = Some(grace);
    }

    /// Brings a pod without start delay to Running.
    fn start(&mut self, serving: bool) {
        if matches!(self.next(), Step::Report(_)) {
            self.report();
        }
        self.pass(2);
        self.expect(&Step::Prepare);
        self.prepared(Ok(serving));
    }
}

#[test]
fn a_pod_is_created_then_runs_then_rests() {
    let mut stage = Stage::new(plan());
    let creating = stage.report();
    assert_eq!(creating.phase, PodPhase::Pending);
    assert_eq!(
        creating.containers,
        ContainerState::waiting("ContainerCreating", "")
    );
    assert_eq!((creating.pod_ip, creating.sandbox), (None, false));
    stage.expect(&stage.wait(2));
    stage.pass(2);
    stage.expect(&Step::Prepare);
    stage.prepared(Ok(false));
    let running = stage.report();
    assert_eq!(running.phase, PodPhase::Running);
    assert_eq!(
        (running.pod_ip, running.ready.as_slice()),
        (Some(POD), &[true][..])
    );
    stage.expect(&Step::Idle);
}

#[test]
fn without_a_start_delay_creation_is_not_reported() {
    let mut stage = Stage::new(Plan {
        start_delay: Duration::ZERO,
        ..plan()
    });
    stage.expect(&Step::Prepare);
    stage.prepared(Ok(false));
    assert_eq!(stage.report().phase, PodPhase::Running);
}

#[test]
fn a_pod_that_lacks_something_says_so_once_and_tries_again_ever_later() {
    let mut stage = Stage::new(Plan {
        start_delay: Duration::ZERO,
        ..plan()
    });
    let blocked = Blocked {
        reason: "CreateContainerConfigError",
        message: "m".to_owned(),
        sandbox: true,
    };
    let mut pauses = Vec::new();
    for round in 0..7 {
        stage.expect(&Step::Prepare);
        stage.prepared(Err(blocked.clone()));
        if round == 0 {
            let report = stage.report();
            assert_eq!(report.phase, PodPhase::Pending);
            assert_eq!(
                report.containers,
                ContainerState::waiting("CreateContainerConfigError", "m")
            );
            assert_eq!(report.pod_ip, Some(POD), "the sandbox has its address");
        }
        let Step::Wait(at) = stage.next() else {
            panic!("must wait")
        };
        pauses.push((at - stage.now).as_millis());
        stage.now = at;
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 5000, 5000]);
    stage.expect(&Step::Prepare);
    stage.prepared(Ok(false));
    assert_eq!(stage.report().phase, PodPhase::Running);
}

#[test]
fn readiness_follows_a_real_probe_with_its_thresholds() {
    let mut stage = Stage::new(Plan {
        probes: vec![Some(probe())],
        ..plan()
    });
    stage.start(true);
    stage.expect(&Step::Probe(0));
    stage.probed(false);
    assert_eq!(stage.report().ready, [false]);
    stage.expect(&stage.wait(5));
    stage.pass(5);
    stage.expect(&Step::Probe(0));
    stage.probed(true);
    assert_eq!(stage.report().ready, [true]);
    for (success, news) in [
        (false, None),
        (true, None),
        (false, None),
        (false, Some(false)),
    ] {
        stage.pass(5);
        stage.expect(&Step::Probe(0));
        stage.probed(success);
        match news {
            Some(ready) => assert_eq!(stage.report().ready, [ready]),
            None => stage.expect(&stage.wait(5)),
        }
    }
}

#[test]
fn a_probe_of_nothing_real_passes_when_it_would_first_run() {
    let plan_with_delay = ProbePlan {
        initial_delay: Duration::from_secs(7),
        ..probe()
    };
    let mut stage = Stage::new(Plan {
        probes: vec![Some(plan_with_delay)],
        ..plan()
    });
    stage.start(false);
    assert_eq!(stage.report().ready, [false]);
    stage.expect(&stage.wait(7));
    stage.pass(7);
    assert_eq!(stage.report().ready, [true]);
    stage.expect(&Step::Idle);
}

#[test]
fn a_deleted_pod_drains_stops_is_reported_terminated_and_removed() {
    let mut stage = Stage::new(plan());
    stage.start(true);
    stage.report();
    stage.delete(30);
    stage.expect(&Step::Drain(Duration::from_secs(30)));
    stage.life.drained();
    stage.expect(&stage.wait(3));
    assert!(
        stage.life.is_up(),
        "what serves stays until the containers have stopped"
    );
    stage.pass(3);
    let ended = stage.report();
    assert!(!stage.life.is_up());
    assert_eq!(
        (ended.phase, ended.containers),
        (PodPhase::Succeeded, ContainerState::Ended)
    );
    assert_eq!(ended.last_exit.unwrap().code, 0);
    stage.expect(&Step::Remove);
    stage.life.removed();
    stage.expect(&Step::Idle);
}

#[test]
fn a_short_grace_cuts_the_stop_delay() {
    let mut stage = Stage::new(plan());
    stage.start(false);
    stage.report();
    stage.delete(1);
    stage.expect(&stage.wait(1));
    stage.pass(1);
    assert_eq!(stage.report().phase, PodPhase::Succeeded);
    stage.expect(&Step::Remove);
}

#[test]
fn a_pod_deleted_before_its_start_fails_and_is_removed() {
    let mut stage = Stage::new(plan());
    stage.report();
    stage.delete(30);
    let ended = stage.report();
    assert_eq!((ended.phase, ended.last_exit), (PodPhase::Failed, None));
    stage.expect(&Step::Remove);
}

#[test]
fn containers_that_end_follow_the_restart_policy() {
    let cases = [
        (RestartPolicy::Never, 0, Some(PodPhase::Succeeded)),
        (RestartPolicy::Never, 1, Some(PodPhase::Failed)),
        (RestartPolicy::OnFailure, 0, Some(PodPhase::Succeeded)),
        (RestartPolicy::OnFailure, 1, None),
        (RestartPolicy::Always, 0, None),
    ];
    for (restart, exit_code, end) in cases {
        let run_for = Some(Duration::from_secs(4));
        let mut stage = Stage::new(Plan {
            restart,
            exit_code,
            run_for,
            ..plan()
        });
        stage.start(false);
        stage.report();
        stage.expect(&stage.wait(4));
        stage.pass(4);
        match end {
            Some(phase) => {
                let report = stage.report();
                assert_eq!((report.phase, report.ready), (phase, vec![false]));
                stage.expect(&Step::Idle);
            }
            None => {
                stage.expect(&Step::Prepare);
                assert!(!stage.life.is_up());
                stage.prepared(Ok(false));
                let again = stage.report();
                assert_eq!((again.phase, again.restarts), (PodPhase::Running, 1));
                assert_eq!(again.last_exit.unwrap().code, exit_code);
            }
        }
    }
}

#[test]
fn a_crash_loop_pauses_ever_longer() {
    let run_for = Some(Duration::ZERO);
    let mut stage = Stage::new(Plan {
        run_for,
        exit_code: 1,
        ..plan()
    });
    stage.start(false);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        match stage.next() {
            Step::Report(report) => {
                assert_eq!(
                    report.containers,
                    ContainerState::waiting(
                        "CrashLoopBackOff",
                        "back-off restarting failed container"
                    )
                );
                stage.life.reported(report);
                let Step::Wait(at) = stage.next() else {
                    panic!("must wait")
                };
                pauses.push((at - stage.now).as_secs());
                stage.now = at;
            }
            Step::Prepare => {}
            step => panic!("{step:?}"),
        }
        stage.expect(&Step::Prepare);
        stage.prepared(Ok(false));
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_pod_that_ran_under_an_earlier_kubelet_starts_again() {
    let pod = json!({
        "metadata": { "uid": "u" },
        "status": {
            "phase": "Running",
            "startTime": "1969-12-31T23:00:00Z",
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 2,
                "containerID": "devcluster://u/c/2", "state": { "running": {} },
            }],
        },
    });
    let mut stage = Stage::of(
        pod,
        Plan {
            start_delay: Duration::ZERO,
            ..plan()
        },
    );
    stage.expect(&Step::Prepare);
    stage.prepared(Ok(false));
    let report = stage.report();
    assert_eq!(report.restarts, 3);
    assert_eq!(report.claimed_at, Timestamp::from_second(-3600).unwrap());
}

#[test]
fn a_pod_that_is_over_is_left_alone_until_it_is_deleted() {
    let mut stage = Stage::new(plan());
    stage.life = Life::finished(plan(), HOST, stage.now());
    stage.expect(&Step::Idle);
    stage.delete(30);
    stage.expect(&Step::Remove);
}

#[test]
fn a_change_of_generation_is_acknowledged() {
    let mut stage = Stage::new(plan());
    stage.start(false);
    stage.report();
    stage.expect(&Step::Idle);
    stage.pod.metadata.generation = Some(2);
    assert_eq!(stage.report().generation, Some(2));
}
