//! Snapshots of event recorders as text.

use super::text::Text;
use crate::events::EventMetrics;

/// What a metric is of a recorder.
type Value = fn(&EventMetrics) -> u64;

/// Metrics of one value for each recorder: name, type, help, value.
const SIMPLE: [(&str, &str, &str, Value); 4] = [
    (
        "event_recorder_notices_total",
        "counter",
        "Notices that were recorded",
        |m| m.observed,
    ),
    (
        "event_recorder_folded_total",
        "counter",
        "Notices that were counted into an event known already",
        |m| m.counted,
    ),
    ("event_recorder_queued", "gauge", "Writes that wait", |m| {
        m.queued as u64
    }),
    (
        "event_recorder_remembered",
        "gauge",
        "Events that further notices may be counted into",
        |m| m.remembered as u64,
    ),
];

/// The metrics of event recorders in the Prometheus text format; empty without any.
///
/// Recorders that share a name are added up.
#[must_use]
pub fn render_events(recorders: &[EventMetrics]) -> String {
    let mut text = Text::default();
    if recorders.is_empty() {
        return text.finish();
    }
    let mut names: Vec<_> = recorders.iter().map(|one| &*one.controller).collect();
    names.sort_unstable();
    names.dedup();
    let sum = |name: &str, value: &dyn Fn(&EventMetrics) -> u64| {
        let of_name = recorders.iter().filter(|one| one.controller == name);
        of_name.map(value).sum::<u64>() as f64
    };
    for (family, kind, help, value) in SIMPLE {
        text.family(family, kind, help);
        for name in &names {
            text.sample(family, &[("controller", name)], sum(name, &value));
        }
    }
    let lost = "event_recorder_lost_total";
    text.family(lost, "counter", "Notices that led to no write of their own");
    for name in &names {
        let mut put = |reason, value: fn(&EventMetrics) -> u64| {
            let labels = [("controller", *name), ("reason", reason)];
            text.sample(lost, &labels, sum(name, &value));
        };
        put("full", |m| m.dropped);
        put("invalid", |m| m.invalid);
        put("rationed", |m| m.filtered);
    }
    let writes = "event_recorder_writes_total";
    text.family(
        writes,
        "counter",
        "Writes to the API server by their outcome",
    );
    for name in &names {
        let mut put = |result, value: fn(&EventMetrics) -> u64| {
            let labels = [("controller", *name), ("result", result)];
            text.sample(writes, &labels, sum(name, &value));
        };
        put("written", |m| m.written);
        put("rejected", |m| m.rejected);
        put("undelivered", |m| m.undelivered);
    }
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c60_recorders_of_one_name_are_added_up() {
        let metrics = |controller: &str, observed| EventMetrics {
            controller: controller.to_owned(),
            observed,
            counted: 1,
            filtered: 0,
            dropped: 2,
            invalid: 0,
            written: 3,
            rejected: 0,
            undelivered: 1,
            queued: 5,
            remembered: 6,
        };
        let text = render_events(&[metrics("b", 7), metrics("a", 1), metrics("b", 10)]);
        for line in [
            "# TYPE event_recorder_notices_total counter",
            "event_recorder_notices_total{controller=\"a\"} 1",
            "event_recorder_notices_total{controller=\"b\"} 17",
            "event_recorder_queued{controller=\"b\"} 10",
            "event_recorder_lost_total{controller=\"b\",reason=\"full\"} 4",
            "event_recorder_lost_total{controller=\"a\",reason=\"rationed\"} 0",
            "event_recorder_writes_total{controller=\"b\",result=\"written\"} 6",
        ] {
            assert!(
                text.lines().any(|present| present == line),
                "{line}\n{text}"
            );
        }
        assert_eq!(render_events(&[]), "");
    }
}
