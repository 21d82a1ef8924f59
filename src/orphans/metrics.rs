//! What the collection counts (G-07), and its text for Prometheus.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller::metrics::Text;
use k8s_openapi::jiff::Timestamp;

use super::Guard;
use super::decide::{Decision, Known, Verdict};

/// Counters of the collection since the start of the process; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Arc<Mutex<Counters>>);

#[derive(Debug, Default)]
struct Counters {
    /// Orphans by provider, of the latest cycle that found out.
    now: BTreeMap<Arc<str>, u64>,
    found: BTreeMap<Arc<str>, u64>,
    deleted: BTreeMap<Arc<str>, u64>,
    skipped: BTreeMap<&'static str, u64>,
    unclaimed: u64,
    guarded: BTreeMap<&'static str, u64>,
    cycles: u64,
    duration: Duration,
    /// End of the latest cycle that was not guarded, or else the begin of the collection.
    last_success: Option<Timestamp>,
}

impl Counters {
    /// Takes the orphans of a cycle; a number that it did not find out stays what it was.
    fn count(&mut self, decision: &Decision) {
        let Known::AllBut(silent) = &decision.known else {
            return;
        };
        let mut seen: BTreeMap<_, u64> = BTreeMap::new();
        for orphan in &decision.orphans {
            let provider = Arc::clone(&orphan.sighting.provider);
            *seen.entry(provider).or_default() += 1;
        }
        // A provider without orphans by now goes on to be told of.
        for (provider, number) in &mut self.now {
            let new = seen.remove(provider).unwrap_or_default();
            *number = match silent.contains(provider) {
                // What it did not tell of may still be there.
                true => new.max(*number),
                false => new,
            };
        }
        self.now.extend(seen);
    }
}

impl Metrics {
    fn counters(&self) -> MutexGuard<'_, Counters> {
        // Counters that a panic left behind by one are of use still.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn deleted(&self, provider: &Arc<str>) {
        *self
            .counters()
            .deleted
            .entry(Arc::clone(provider))
            .or_default() += 1;
    }

    /// The collection begins: from now on it may be overdue, though no cycle succeeded yet.
    pub(super) fn began(&self, at: Timestamp) {
        self.counters().last_success.get_or_insert(at);
    }

    /// A cycle ended. One that was not guarded is a success.
    pub(super) fn cycle(&self, decision: &Decision, took: Duration, at: Timestamp) {
        let mut counters = self.counters();
        counters.cycles += 1;
        counters.duration += took;
        counters.unclaimed += decision.unclaimed.len() as u64;
        counters.count(decision);
        for orphan in &decision.orphans {
            let provider = &orphan.sighting.provider;
            if orphan.cycles == 1 {
                *counters.found.entry(Arc::clone(provider)).or_default() += 1;
            }
            if let Verdict::Keep(skip) = orphan.verdict {
                *counters.skipped.entry(skip.as_str()).or_default() += 1;
            }
        }
        for (cause, number) in [
            ("deleting", decision.deleting),
            ("unknown", decision.unknown),
        ] {
            *counters.skipped.entry(cause).or_default() += number as u64;
        }
        match &decision.guard {
            Some(guard) => *counters.guarded.entry(Guard::cause(guard)).or_default() += 1,
            None => counters.last_success = Some(at),
        }
    }

    /// All of them as text.
    pub(crate) fn render(&self) -> String {
        let counters = self.counters();
        let mut text = Text::default();
        let labelled = |text: &mut Text, name, kind, help, label, values: Vec<(&str, u64)>| {
            text.family(name, kind, help);
            for (value, number) in values {
                text.sample(name, &[(label, value)], number as f64);
            }
        };
        let by_provider = |map: &BTreeMap<Arc<str>, u64>| -> Vec<(String, u64)> {
            map.iter()
                .map(|(name, number)| (name.to_string(), *number))
                .collect()
        };
        for (name, kind, help, values) in [
            (
                "pxo_orphans",
                "gauge",
                "Instances without a Proxy, as far as the latest look told",
                &counters.now,
            ),
            (
                "pxo_orphans_found_total",
                "counter",
                "Orphans that were none before",
                &counters.found,
            ),
            (
                "pxo_orphans_deleted_total",
                "counter",
                "Orphans deleted",
                &counters.deleted,
            ),
        ] {
            let values = by_provider(values);
            let values = values.iter().map(|(name, number)| (name.as_str(), *number));
            labelled(&mut text, name, kind, help, "provider", values.collect());
        }
        for (name, help, values) in [
            (
                "pxo_orphans_skipped_total",
                "Instances left alone, by cause and cycle",
                &counters.skipped,
            ),
            (
                "pxo_orphan_cycles_guarded_total",
                "Cycles that deleted nothing, by guard",
                &counters.guarded,
            ),
        ] {
            let values = values
                .iter()
                .map(|(cause, number)| (*cause, *number))
                .collect();
            labelled(&mut text, name, "counter", help, "cause", values);
        }
        let mut plain = |name, kind, help, value: f64| {
            text.family(name, kind, help);
            text.sample(name, &[], value);
        };
        plain(
            "pxo_orphans_unclaimed_total",
            "counter",
            "Instances handed to the reconciler for their Proxies",
            counters.unclaimed as f64,
        );
        text.family(
            "pxo_orphan_cycle_duration_seconds",
            "summary",
            "Lengths of cycles",
        );
        let name = "pxo_orphan_cycle_duration_seconds_sum";
        text.sample(name, &[], counters.duration.as_secs_f64());
        let name = "pxo_orphan_cycle_duration_seconds_count";
        text.sample(name, &[], counters.cycles as f64);
        if let Some(at) = counters.last_success {
            let name = "pxo_orphan_last_success_timestamp_seconds";
            text.family(
                name,
                "gauge",
                "When the latest cycle ended that no guard held; before the first, when looking began",
            );
            text.sample(name, &[], at.as_second() as f64);
        }
        text.finish()
    }
}
