//! Snapshots as text.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use super::{BUCKETS, InformerSnapshot, Summary};

/// A sample of one informer: further label, suffix of the metric's name, value.
struct Sample<'a> {
    label: Option<(&'static str, &'a str)>,
    bucket: Option<&'a str>,
    suffix: &'static str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn plain(value: f64) -> Self {
        Self {
            label: None,
            bucket: None,
            suffix: "",
            value,
        }
    }

    fn labelled(name: &'static str, label: &'a str, value: f64) -> Self {
        Self {
            label: Some((name, label)),
            ..Self::plain(value)
        }
    }
}

type Samples = fn(&InformerSnapshot, &mut dyn FnMut(Sample<'_>));

/// Name, type, help and samples of each metric.
const METRICS: [(&str, &str, &str, Samples); 18] = [
    (
        "reflector_lists_total",
        "counter",
        "Lists begun, streamed ones too",
        |i, put| put(Sample::plain(i.stats.lists as f64)),
    ),
    (
        "reflector_list_duration_seconds",
        "summary",
        "From the request of a list to its state in the cache",
        |i, put| durations(i.list_duration, put),
    ),
    (
        "reflector_items_per_list",
        "summary",
        "Objects in a list",
        |i, put| summary(i.items_per_list, put),
    ),
    (
        "reflector_relists_total",
        "counter",
        "Lists made again, by what led to them",
        |i, put| {
            for (cause, n) in &i.relists {
                put(Sample::labelled("cause", cause.as_str(), *n as f64));
            }
        },
    ),
    (
        "reflector_watches_total",
        "counter",
        "Watches opened",
        |i, put| put(Sample::plain(i.stats.watches as f64)),
    ),
    (
        "reflector_watch_duration_seconds",
        "summary",
        "From the request of a watch to its end",
        |i, put| durations(i.watch_duration, put),
    ),
    (
        "reflector_items_per_watch",
        "summary",
        "Events that named an object, in a watch",
        |i, put| summary(i.items_per_watch, put),
    ),
    (
        "reflector_short_watches_total",
        "counter",
        "Watches that ended at once with nothing new",
        |i, put| put(Sample::plain(i.stats.short_watches as f64)),
    ),
    (
        "reflector_errors_total",
        "counter",
        "Failures of lists and watches",
        |i, put| put(Sample::plain(i.stats.errors as f64)),
    ),
    (
        "reflector_late_bookmarks_total",
        "counter",
        "Warnings that a streamed list was not complete",
        |i, put| put(Sample::plain(i.stats.late_bookmarks as f64)),
    ),
    (
        "reflector_last_resource_version",
        "gauge",
        "Version that lists and watches have come to, its last 15 digits",
        |i, put| version(i, put),
    ),
    (
        "informer_unreadable_objects_total",
        "counter",
        "Objects that could not be read",
        |i, put| put(Sample::plain(i.stats.malformed as f64)),
    ),
    (
        "informer_store_objects",
        "gauge",
        "Objects in the cache",
        |i, put| put(Sample::plain(i.objects as f64)),
    ),
    (
        "informer_store_resource_version",
        "gauge",
        "Version of the cache, its last 15 digits",
        |i, put| version(i, put),
    ),
    (
        "informer_queued_items",
        "gauge",
        "Events that wait for a handler",
        |i, put| {
            for (name, handler) in &i.handlers {
                put(Sample::labelled("handler", name, handler.queued as f64));
            }
        },
    ),
    (
        "informer_processing_latency_seconds",
        "histogram",
        "Calls of a handler",
        latencies,
    ),
    (
        "informer_index_failures_total",
        "counter",
        "Times that an index left an object out",
        |i, put| put(Sample::plain(i.stats.index_failures as f64)),
    ),
    (
        "informer_handler_panics_total",
        "counter",
        "Panics of handlers",
        |i, put| put(Sample::plain(i.stats.handler_panics as f64)),
    ),
];

fn summary(summary: Summary, put: &mut dyn FnMut(Sample<'_>)) {
    for (suffix, value) in [("_sum", summary.sum), ("_count", summary.count)] {
        put(Sample {
            suffix,
            ..Sample::plain(value as f64)
        });
    }
}

fn durations(durations: Summary, put: &mut dyn FnMut(Sample<'_>)) {
    let seconds = Duration::from_nanos(durations.sum).as_secs_f64();
    for (suffix, value) in [("_sum", seconds), ("_count", durations.count as f64)] {
        put(Sample {
            suffix,
            ..Sample::plain(value)
        });
    }
}

/// A version without a number, such as that of an empty cache, has no sample.
fn version(informer: &InformerSnapshot, put: &mut dyn FnMut(Sample<'_>)) {
    if let Some(value) = last_digits(&informer.resource_version) {
        put(Sample::plain(value as f64));
    }
}

/// The last 15 digits: a gauge holds no more of them exactly.
fn last_digits(version: &str) -> Option<u64> {
    let digits = version.bytes().all(|byte| byte.is_ascii_digit());
    let start = version.len().saturating_sub(15);
    digits.then(|| version[start..].parse().ok()).flatten()
}

fn latencies(informer: &InformerSnapshot, put: &mut dyn FnMut(Sample<'_>)) {
    for (name, handler) in &informer.handlers {
        let histogram = handler.latency;
        let mut sample = |suffix, bucket: Option<&str>, value| {
            put(Sample {
                label: Some(("handler", name)),
                bucket,
                suffix,
                value,
            });
        };
        let mut cumulative = 0;
        for (bound, n) in BUCKETS.iter().zip(histogram.buckets) {
            cumulative += n;
            let bound = Duration::from_nanos(*bound).as_secs_f64().to_string();
            sample("_bucket", Some(&bound), cumulative as f64);
        }
        sample("_bucket", Some("+Inf"), histogram.count as f64);
        sample("_sum", None, histogram.sum.as_secs_f64());
        sample("_count", None, histogram.count as f64);
    }
}

pub(super) fn render(informers: &[InformerSnapshot]) -> String {
    let mut out = String::new();
    for (metric, kind, help, samples) in METRICS {
        let mut lines = String::new();
        for informer in informers {
            samples(informer, &mut |sample| {
                line(&mut lines, metric, informer, &sample);
            });
        }
        if !lines.is_empty() {
            put(
                &mut out,
                format_args!("# HELP {metric} {help}.\n# TYPE {metric} {kind}\n{lines}"),
            );
        }
    }
    out
}

fn line(out: &mut String, metric: &str, informer: &InformerSnapshot, sample: &Sample<'_>) {
    put(out, format_args!("{metric}{}{{", sample.suffix));
    let own = [
        ("name", informer.name.as_str()),
        ("resource", informer.resource.as_str()),
    ];
    let version = Some(("version", informer.version.as_str()));
    let version = version.filter(|(_, version)| !version.is_empty());
    let bucket = sample.bucket.map(|bound| ("le", bound));
    let labels = own
        .into_iter()
        .chain(version)
        .chain(sample.label)
        .chain(bucket);
    for (at, (label, value)) in labels.enumerate() {
        let comma = if at == 0 { "" } else { "," };
        put(out, format_args!("{comma}{label}=\"{}\"", escaped(value)));
    }
    put(out, format_args!("}} {}\n", sample.value));
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n")
}

fn put(out: &mut String, text: impl Display) {
    write!(out, "{text}").expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;
    use crate::metrics::HandlerSnapshot;

    #[test]
    fn i93_a_version_is_shown_by_its_last_fifteen_digits() {
        for (version, want) in [
            ("", None),
            ("abc", None),
            ("7", Some(7)),
            ("123456789012345", Some(123_456_789_012_345)),
            ("99123456789012345", Some(123_456_789_012_345)),
        ] {
            assert_eq!(last_digits(version), want, "{version}");
        }
    }

    #[test]
    fn i45_a_snapshot_is_rendered_with_its_labels() {
        let mut handler = HandlerSnapshot {
            queued: 3,
            ..HandlerSnapshot::default()
        };
        handler.latency.buckets[2] = 1;
        handler.latency.count = 2;
        handler.latency.sum = Duration::from_millis(20_000);
        let informer = InformerSnapshot {
            name: "a\"b".to_owned(),
            resource: "Pod".to_owned(),
            list_duration: Summary {
                count: 2,
                sum: 3_000_000_000,
            },
            relists: [(Cause::Expired, 4)].into(),
            handlers: [("h".to_owned(), handler)].into(),
            ..InformerSnapshot::default()
        };
        let text = render(std::slice::from_ref(&informer));
        for line in [
            "# TYPE reflector_list_duration_seconds summary",
            r#"reflector_list_duration_seconds_sum{name="a\"b",resource="Pod"} 3"#,
            r#"reflector_list_duration_seconds_count{name="a\"b",resource="Pod"} 2"#,
            r#"reflector_relists_total{name="a\"b",resource="Pod",cause="expired"} 4"#,
            r#"informer_queued_items{name="a\"b",resource="Pod",handler="h"} 3"#,
            r#"informer_processing_latency_seconds_bucket{name="a\"b",resource="Pod",handler="h",le="0.0000001"} 0"#,
            r#"informer_processing_latency_seconds_bucket{name="a\"b",resource="Pod",handler="h",le="0.000001"} 1"#,
            r#"informer_processing_latency_seconds_bucket{name="a\"b",resource="Pod",handler="h",le="10"} 1"#,
            r#"informer_processing_latency_seconds_bucket{name="a\"b",resource="Pod",handler="h",le="+Inf"} 2"#,
            r#"informer_processing_latency_seconds_sum{name="a\"b",resource="Pod",handler="h"} 20"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("store_resource_version"), "no version yet");
        let text = render(&[InformerSnapshot {
            version: "v2".to_owned(),
            ..informer
        }]);
        let line = r#"reflector_errors_total{name="a\"b",resource="Pod",version="v2"} 0"#;
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        assert_eq!(render(&[]), "");
    }
}
