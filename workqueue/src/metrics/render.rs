//! Snapshots in the Prometheus text format.

use std::{fmt::Write, time::Duration};

use super::{BUCKETS, Histogram, PriorityLabel, QueueSnapshot};

/// A simple metric: name, type, help, value.
type Simple = (
    &'static str,
    &'static str,
    &'static str,
    fn(&QueueSnapshot) -> f64,
);

const SIMPLE: [Simple; 9] = [
    (
        "adds_total",
        "counter",
        "Adds that changed something",
        |q| q.adds as f64,
    ),
    ("retries_total", "counter", "Delayed adds", |q| {
        q.retries as f64
    }),
    (
        "unfinished_work_seconds",
        "gauge",
        "Sum of the ages of all runs",
        |q| q.unfinished_work.as_secs_f64(),
    ),
    (
        "longest_running_processor_seconds",
        "gauge",
        "Age of the oldest run",
        |q| q.longest_running.as_secs_f64(),
    ),
    ("delayed", "gauge", "Keys that wait for a deadline", |q| {
        q.delayed as f64
    }),
    ("running", "gauge", "Keys handed out", |q| q.running as f64),
    (
        "failing_keys",
        "gauge",
        "Keys the rate limiter remembers",
        |q| q.failing as f64,
    ),
    (
        "limiter_evicted_total",
        "counter",
        "Keys the rate limiter forgot on its own",
        |q| q.evicted as f64,
    ),
    (
        "oldest_ready_age_seconds",
        "gauge",
        "How long the first key in the line has stood",
        |q| q.oldest_ready_age.as_secs_f64(),
    ),
];

/// A histogram: name, help, value.
type Durations = (&'static str, &'static str, fn(&QueueSnapshot) -> &Histogram);

const DURATIONS: [Durations; 2] = [
    (
        "queue_duration_seconds",
        "From being ready to being handed out",
        |q| &q.queue_duration,
    ),
    (
        "work_duration_seconds",
        "From being handed out to the end of the run",
        |q| &q.work_duration,
    ),
];

pub(super) fn render(queues: &[QueueSnapshot]) -> String {
    let mut out = String::new();
    if queues.is_empty() {
        return out;
    }
    head(&mut out, "depth", "gauge", "Keys wanted and not handed out");
    for queue in queues {
        if queue.depth_by_priority.is_empty() {
            sample(&mut out, queue, "depth", None, queue.depth as f64);
        }
        for (priority, depth) in &queue.depth_by_priority {
            let value = match priority {
                PriorityLabel::Value(priority) => priority.to_string(),
                PriorityLabel::Other => "exceeded_cardinality_limit".to_owned(),
            };
            sample(
                &mut out,
                queue,
                "depth",
                Some(("priority", &value)),
                *depth as f64,
            );
        }
    }
    for (name, kind, help, value) in SIMPLE {
        head(&mut out, name, kind, help);
        for queue in queues {
            sample(&mut out, queue, name, None, value(queue));
        }
    }
    for (name, help, histogram) in DURATIONS {
        head(&mut out, name, "histogram", help);
        for queue in queues {
            durations(&mut out, queue, name, histogram(queue));
        }
    }
    out
}

fn durations(out: &mut String, queue: &QueueSnapshot, name: &str, histogram: &Histogram) {
    let bucket_name = format!("{name}_bucket");
    let mut cumulative = 0;
    for (bound, n) in BUCKETS.iter().zip(histogram.buckets) {
        cumulative += n;
        let bound = Duration::from_nanos(*bound).as_secs_f64().to_string();
        sample(
            out,
            queue,
            &bucket_name,
            Some(("le", &bound)),
            cumulative as f64,
        );
    }
    sample(
        out,
        queue,
        &bucket_name,
        Some(("le", "+Inf")),
        histogram.count as f64,
    );
    sample(
        out,
        queue,
        &format!("{name}_sum"),
        None,
        histogram.sum.as_secs_f64(),
    );
    sample(
        out,
        queue,
        &format!("{name}_count"),
        None,
        histogram.count as f64,
    );
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    put(
        out,
        format_args!("# HELP workqueue_{name} {help}.\n# TYPE workqueue_{name} {kind}\n"),
    );
}

fn sample(
    out: &mut String,
    queue: &QueueSnapshot,
    name: &str,
    label: Option<(&str, &str)>,
    value: f64,
) {
    put(
        out,
        format_args!("workqueue_{name}{{name=\"{}\"", escaped(&queue.name)),
    );
    let labels = queue
        .labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in labels.chain(label) {
        put(out, format_args!(",{name}=\"{}\"", escaped(value)));
    }
    put(out, format_args!("}} {value}\n"));
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n")
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes everything");
}
