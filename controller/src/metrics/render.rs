//! Snapshots of controllers and elections as text.

use super::text::Text;
use super::{ControllerMetrics, Histogram, RECONCILE_TIME_BUCKETS};
use crate::election::ElectionMetrics;

type Value = fn(&ControllerMetrics) -> f64;

/// Metrics of one value for each controller: name, type, help, value.
const SIMPLE: [(&str, &str, &str, Value); 6] = [
    (
        "reconcile_errors_total",
        "counter",
        "Runs that ended with an error",
        |c| c.errors as f64,
    ),
    (
        "terminal_reconcile_errors_total",
        "counter",
        "Runs that ended with an error that is not retried",
        |c| c.terminal_errors as f64,
    ),
    (
        "reconcile_panics_total",
        "counter",
        "Runs that panicked",
        |c| c.panics as f64,
    ),
    (
        "reconcile_timeouts_total",
        "counter",
        "Runs that failed after their deadline",
        |c| c.timeouts as f64,
    ),
    (
        "max_concurrent_reconciles",
        "gauge",
        "Number of workers",
        |c| c.max_concurrent_reconciles as f64,
    ),
    ("active_workers", "gauge", "Reconciles running now", |c| {
        c.active_workers as f64
    }),
];

/// What upstream has no names for: name, help, value.
const STALE: [(&str, &str, Value); 2] = [
    (
        "controller_stale_cache_skips_total",
        "Times that a key was held back because a cache did not show its own last write",
        |c| c.stale_skips as f64,
    ),
    (
        "controller_stale_cache_reconciles_total",
        "Runs begun with a cache that did not show the own last write in time",
        |c| c.stale_reconciles as f64,
    ),
];

/// The metrics of controllers by upstream's names, in the Prometheus text format; empty without any.
/// Those of controllers that share a name are added up.
#[must_use]
pub fn render(controllers: &[ControllerMetrics]) -> String {
    let mut text = Text::default();
    let controllers = &ControllerMetrics::by_name(controllers);
    if controllers.is_empty() {
        return text.finish();
    }
    let total = "controller_runtime_reconcile_total";
    text.family(total, "counter", "Runs by their result");
    for one in controllers {
        for (result, value) in [
            ("success", one.success),
            ("error", one.error),
            ("requeue", one.requeue),
            ("requeue_after", one.requeue_after),
        ] {
            let labels = [("controller", &*one.controller), ("result", result)];
            text.sample(total, &labels, value as f64);
        }
    }
    for (name, kind, help, value) in SIMPLE {
        let name = format!("controller_runtime_{name}");
        text.family(&name, kind, help);
        for one in controllers {
            text.sample(&name, &[("controller", &*one.controller)], value(one));
        }
    }
    for (name, help, value) in STALE {
        text.family(name, "counter", help);
        for one in controllers {
            text.sample(name, &[("controller", &*one.controller)], value(one));
        }
    }
    let time = "controller_runtime_reconcile_time_seconds";
    text.family(time, "histogram", "Lengths of runs");
    for one in controllers {
        durations(&mut text, time, &one.controller, &one.reconcile_time);
    }
    text.finish()
}

fn durations(text: &mut Text, name: &str, controller: &str, histogram: &Histogram) {
    let bucket = format!("{name}_bucket");
    let mut cumulative = 0;
    let bounds = RECONCILE_TIME_BUCKETS.iter().map(ToString::to_string);
    for (bound, n) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.buckets) {
        cumulative += n;
        let labels = [("controller", controller), ("le", bound.as_str())];
        text.sample(&bucket, &labels, cumulative as f64);
    }
    let labels = [("controller", controller)];
    let sum = histogram.sum.as_secs_f64();
    text.sample(&format!("{name}_sum"), &labels, sum);
    text.sample(&format!("{name}_count"), &labels, cumulative as f64);
}

/// The metrics of elections by upstream's names, in the Prometheus text format; empty without any.
#[must_use]
pub fn render_elections(elections: &[ElectionMetrics]) -> String {
    let mut text = Text::default();
    if elections.is_empty() {
        return text.finish();
    }
    let status = "leader_election_master_status";
    text.family(status, "gauge", "Whether this process leads");
    for one in elections {
        let value = if one.is_leader { 1.0 } else { 0.0 };
        text.sample(status, &[("name", &one.name)], value);
    }
    let slow = "leader_election_slowpath_total";
    text.family(slow, "counter", "Renewals that needed a look first");
    for one in elections {
        text.sample(slow, &[("name", &one.name)], one.slow_paths as f64);
    }
    text.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Recorder, ResultLabel, Run};
    use super::*;

    #[test]
    fn c06_all_series_of_a_controller_are_there_by_upstreams_names() {
        let recorder = Recorder::new("proxy".into(), 3);
        recorder.finish_run(Run {
            label: ResultLabel::Error,
            terminal: true,
            panicked: false,
            timed_out: true,
            took: Duration::from_millis(30),
        });
        recorder.skip_stale();
        let text = render(&[recorder.snapshot()]);
        for line in [
            "# TYPE controller_runtime_reconcile_total counter",
            "controller_runtime_reconcile_total{controller=\"proxy\",result=\"success\"} 0",
            "controller_runtime_reconcile_total{controller=\"proxy\",result=\"error\"} 1",
            "controller_runtime_reconcile_total{controller=\"proxy\",result=\"requeue\"} 0",
            "controller_runtime_reconcile_total{controller=\"proxy\",result=\"requeue_after\"} 0",
            "controller_runtime_reconcile_errors_total{controller=\"proxy\"} 1",
            "controller_runtime_terminal_reconcile_errors_total{controller=\"proxy\"} 1",
            "controller_runtime_reconcile_panics_total{controller=\"proxy\"} 0",
            "controller_runtime_reconcile_timeouts_total{controller=\"proxy\"} 1",
            "controller_runtime_max_concurrent_reconciles{controller=\"proxy\"} 3",
            "controller_runtime_active_workers{controller=\"proxy\"} 0",
            "controller_stale_cache_skips_total{controller=\"proxy\"} 1",
            "controller_stale_cache_reconciles_total{controller=\"proxy\"} 0",
            "# TYPE controller_runtime_reconcile_time_seconds histogram",
            "controller_runtime_reconcile_time_seconds_bucket{controller=\"proxy\",le=\"0.025\"} 0",
            "controller_runtime_reconcile_time_seconds_bucket{controller=\"proxy\",le=\"0.05\"} 1",
            "controller_runtime_reconcile_time_seconds_bucket{controller=\"proxy\",le=\"60\"} 1",
            "controller_runtime_reconcile_time_seconds_bucket{controller=\"proxy\",le=\"+Inf\"} 1",
            "controller_runtime_reconcile_time_seconds_sum{controller=\"proxy\"} 0.03",
            "controller_runtime_reconcile_time_seconds_count{controller=\"proxy\"} 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert_eq!(render(&[]), "");
    }

    #[test]
    fn c48_an_election_tells_whether_it_leads_and_its_slow_paths() {
        let election = ElectionMetrics {
            name: "lease".to_owned(),
            is_leader: true,
            slow_paths: 2,
        };
        let text = render_elections(&[election]);
        for line in [
            "leader_election_master_status{name=\"lease\"} 1",
            "leader_election_slowpath_total{name=\"lease\"} 2",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert_eq!(render_elections(&[]), "");
    }
}
