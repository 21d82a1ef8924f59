//! Processor time of both processes over a stretch of a run, and what it says about the bound.

use tokio::time::Instant;

use super::operator::Operator;
use super::report::Report;
use crate::{Error, measure};

/// Share of all processors from which on they count as the bound.
const BUSY: f64 = 0.9;
/// Hundredths of a second, as Linux gives them to programs.
const TICKS: f64 = 100.0;

/// A stretch that began.
pub(super) struct Stretch {
    began: Instant,
    own: f64,
    theirs: f64,
    machine: Machine,
}

impl Stretch {
    /// Begins with a running operator.
    pub(super) fn begin(operator: &Operator) -> Result<Self, Error> {
        let theirs = operator.cpu()?.as_secs_f64();
        Ok(Self {
            theirs,
            ..Self::before_operator()
        })
    }

    /// Begins with an operator that is about to start.
    pub(super) fn before_operator() -> Self {
        Self {
            began: Instant::now(),
            own: measure::cpu(),
            theirs: 0.0,
            machine: Machine::read(),
        }
    }

    pub(super) fn end(&self, operator: &Operator) -> Result<Spent, Error> {
        let machine = Machine::read();
        Ok(Spent {
            seconds: self.began.elapsed().as_secs_f64(),
            own: measure::cpu() - self.own,
            theirs: operator.cpu()?.as_secs_f64() - self.theirs,
            busy: machine.busy - self.machine.busy,
            all: machine.all - self.machine.all,
        })
    }
}

/// Seconds of all processors since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Machine {
    busy: f64,
    all: f64,
}

impl Machine {
    /// Zeros where the system does not tell.
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(&text).unwrap_or_default()
    }

    /// The line of all processors together: user, nice, system, idle, waiting for disks, interrupts of both
    /// kinds, stolen.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<f64> = line
            .split_whitespace()
            .take(8)
            .map_while(|ticks| ticks.parse().ok())
            .collect();
        let all: f64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self {
            busy: (all - idle) / TICKS,
            all: all / TICKS,
        })
    }
}

/// What a stretch took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) seconds: f64,
    /// CPU seconds of this process: the embedded cluster, its nodes, the apply and the watch of the fleet.
    pub(super) own: f64,
    /// CPU seconds of the operator.
    pub(super) theirs: f64,
    /// CPU seconds of the whole machine, and how many there were.
    busy: f64,
    all: f64,
}

impl Spent {
    /// Prints it; user and system time together.
    pub(super) fn report(self, report: &mut Report, scenario: &str, n: usize) {
        report.figure(scenario, n, "operator_cpu_seconds", self.theirs);
        report.figure(scenario, n, "cluster_and_apply_cpu_seconds", self.own);
        let per_proxy = |cpu: f64| cpu * 1000.0 / n as f64;
        report.figure(
            scenario,
            n,
            "operator_cpu_ms_per_proxy",
            per_proxy(self.theirs),
        );
        report.figure(
            scenario,
            n,
            "cluster_and_apply_cpu_ms_per_proxy",
            per_proxy(self.own),
        );
        report.text(scenario, n, "bound", &self.bound());
    }

    /// What kept the stretch from being shorter, as far as processor time tells.
    fn bound(self) -> String {
        let of_all = |seconds: f64| 100.0 * seconds / self.all.max(f64::MIN_POSITIVE);
        let others = (self.busy - self.own - self.theirs).max(0.0);
        let shares = format!(
            "cluster and apply {:.0} %, operator {:.0} %, other programs {:.0} %",
            of_all(self.own),
            of_all(self.theirs),
            of_all(others),
        );
        if self.all <= 0.0 {
            "not known: the machine does not tell what its processors did".to_owned()
        } else if self.busy >= BUSY * self.all {
            format!("the processors: {shares}")
        } else {
            format!("waits, not the processors: {shares}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processors_are_the_bound_where_they_have_no_rest() {
        let spent = |own, theirs, busy| Spent {
            seconds: 10.0,
            own,
            theirs,
            busy,
            all: 20.0,
        };
        for (spent, bound) in [
            (
                spent(12.0, 6.0, 19.0),
                "the processors: cluster and apply 60 %, operator 30 %, other programs 5 %",
            ),
            (
                spent(4.0, 2.0, 20.0),
                "the processors: cluster and apply 20 %, operator 10 %, other programs 70 %",
            ),
            (
                spent(2.0, 1.0, 2.9),
                "waits, not the processors: cluster and apply 10 %, operator 5 %, other programs 0 %",
            ),
        ] {
            assert_eq!(spent.bound(), bound);
        }
        let untold = Spent {
            all: 0.0,
            ..spent(2.0, 1.0, 0.0)
        };
        assert!(untold.bound().starts_with("not known"));
    }

    #[test]
    fn time_of_the_machine_is_busy_unless_idle_or_waiting_for_disks() {
        let text = "cpu  100 20 30 400 50 6 7 8 9 9\ncpu0 1 1 1 1 1\n";
        let machine = Machine::parse(text).expect("it can be read");
        assert_eq!(
            machine,
            Machine {
                busy: 1.71,
                all: 6.21
            }
        );
        assert_eq!(Machine::parse("cpu 1 2"), None);
        assert_eq!(Machine::parse(""), None);
    }
}
