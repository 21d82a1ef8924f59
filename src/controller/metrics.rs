//! O-05: what the operator counts, under names that begin with `pxo_`.
//!
//! Counters are atomic and never block a pass; gauges are taken from caches when somebody asks,
//! at the cost of one look at each Proxy. Labels hold configured names and fixed words alone,
//! never what a user may invent: no name of a Proxy, and a provider that is not configured is
//! `unknown`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use controller::metrics::Text;

use super::circuit::CircuitState;
use crate::api::{Mode, Phase, Proxy};
use crate::provider::{ProviderCalls, Registry};

/// Label of a Proxy that names a provider which nobody configured.
const UNKNOWN: &str = "unknown";

/// How a status patch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patched {
    /// The API server took it.
    Written,
    /// It rested on an old copy; the pass is done again.
    Conflict,
    /// It failed in another way.
    Failed,
}

/// The counters of one operator.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) provider_calls: ProviderCalls,
    patches: [AtomicU64; 3],
}

impl Metrics {
    /// Counts a status patch.
    pub(crate) fn patched(&self, how: Patched) {
        self.patches[how as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What a page of metrics is made of.
#[derive(Debug)]
pub(crate) struct Snapshot<'a> {
    pub(crate) metrics: &'a Metrics,
    pub(crate) proxies: &'a [Arc<Proxy>],
    pub(crate) providers: &'a Registry,
    /// Circuits that are not closed, by provider.
    pub(crate) circuits: &'a [(String, CircuitState)],
    pub(crate) events_dropped: u64,
    /// How often a Proxy was due while the cache was behind an own write: put off, and read live.
    pub(crate) stale: [u64; 2],
}

impl Snapshot<'_> {
    /// All of it in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let mut text = Text::default();
        self.proxies(&mut text);
        self.calls(&mut text);
        self.circuits(&mut text);
        let read = |counter: &AtomicU64| number(counter.load(Ordering::Relaxed));
        let name = "pxo_status_patches_total";
        text.family(name, "counter", "Status patches by their outcome");
        for (result, count) in ["written", "conflict", "failed"]
            .iter()
            .zip(&self.metrics.patches)
        {
            text.sample(name, &[("result", result)], read(count));
        }
        let name = "pxo_cache_staleness_total";
        let help =
            "Times that a Proxy was due while the cache was behind an own write, by what was done";
        text.family(name, "counter", help);
        for (action, count) in ["skipped", "read_live"].iter().zip(self.stale) {
            text.sample(name, &[("action", action)], number(count));
        }
        let name = "pxo_events_dropped_total";
        text.family(name, "counter", "Events not told since too many were");
        text.sample(name, &[], number(self.events_dropped));
        text.finish()
    }

    fn proxies(&self, text: &mut Text) {
        let name = "pxo_proxies";
        text.family(name, "gauge", "Proxies by phase and provider");
        let mut counts = BTreeMap::<(&str, &str), u64>::new();
        for proxy in self.proxies {
            let phase = proxy.status.as_ref().and_then(|status| status.phase);
            let key = (
                phase.unwrap_or(Phase::Pending).as_str(),
                self.provider_of(proxy),
            );
            *counts.entry(key).or_default() += 1;
        }
        for ((phase, provider), count) in counts {
            let labels = [("phase", phase), ("provider", provider)];
            text.sample(name, &labels, number(count));
        }
    }

    /// An External Proxy has no provider.
    fn provider_of<'a>(&'a self, proxy: &Proxy) -> &'a str {
        let name = match proxy.spec.mode {
            Mode::External => return "",
            Mode::Managed => proxy.spec.provider.as_deref().unwrap_or_default(),
        };
        let mut configured = self.providers.names();
        configured.find(|known| *known == name).unwrap_or(UNKNOWN)
    }

    fn calls(&self, text: &mut Text) {
        let name = "pxo_provider_calls_total";
        let help = "Calls of providers by operation and class of the outcome";
        text.family(name, "counter", help);
        for ((provider, op, class), count) in self.metrics.provider_calls.all() {
            let labels = [("provider", &*provider), ("op", op), ("class", class)];
            text.sample(name, &labels, number(count));
        }
    }

    fn circuits(&self, text: &mut Text) {
        let name = "pxo_quota_circuits";
        let help = "Zones of a provider that refused for quota or stock, by what is done there now";
        text.family(name, "gauge", help);
        let mut counts = BTreeMap::<(&str, &str), u64>::new();
        for provider in self.providers.names() {
            for state in CircuitState::ALL {
                counts.insert((provider, state.as_str()), 0);
            }
        }
        for (provider, state) in self.circuits {
            *counts.entry((provider, state.as_str())).or_default() += 1;
        }
        for ((provider, state), count) in counts {
            let labels = [("provider", provider), ("state", state)];
            text.sample(name, &labels, number(count));
        }
    }
}

/// Exact up to 2⁵³, as all numbers of this format.
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provider::Provider;
    use crate::provider::fake::{FakeProvider, owner};

    fn proxy(spec: &serde_json::Value, phase: &str) -> Arc<Proxy> {
        let object = json!({
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
            "metadata": { "name": "secret-name", "namespace": "ns" },
            "spec": spec, "status": { "phase": phase },
        });
        Arc::new(serde_json::from_value(object).expect("a Proxy"))
    }

    async fn page() -> String {
        let metrics = Metrics::default();
        metrics.patched(Patched::Written);
        metrics.patched(Patched::Conflict);
        let provider = || Arc::new(FakeProvider::default()) as Arc<dyn Provider>;
        let providers = Registry::new(BTreeMap::from([("sim".to_owned(), provider())]));
        let providers = providers.counted(&metrics.provider_calls);
        let sim = providers.get("sim").expect("configured");
        sim.find(&owner("u1")).await.expect("nothing there");
        let managed = json!({ "mode": "Managed", "provider": "sim" });
        let proxies = [
            proxy(&managed, "Ready"),
            proxy(&managed, "Ready"),
            proxy(&managed, "Replacing"),
            proxy(&json!({ "mode": "Managed", "provider": "who" }), "Failed"),
            proxy(&json!({ "mode": "External" }), "Ready"),
        ];
        let circuits = [("sim".to_owned(), CircuitState::Open)];
        let snapshot = Snapshot {
            metrics: &metrics,
            proxies: &proxies,
            providers: &providers,
            circuits: &circuits,
            events_dropped: 7,
            stale: [0, 1],
        };
        snapshot.render()
    }

    #[tokio::test]
    async fn o05_the_page_has_what_was_counted() {
        let page = page().await;
        for line in [
            r#"pxo_proxies{phase="Ready",provider="sim"} 2"#,
            r#"pxo_proxies{phase="Replacing",provider="sim"} 1"#,
            r#"pxo_proxies{phase="Failed",provider="unknown"} 1"#,
            r#"pxo_proxies{phase="Ready",provider=""} 1"#,
            r#"pxo_provider_calls_total{provider="sim",op="find",class="ok"} 1"#,
            r#"pxo_quota_circuits{provider="sim",state="open"} 1"#,
            r#"pxo_quota_circuits{provider="sim",state="trying"} 0"#,
            r#"pxo_status_patches_total{result="written"} 1"#,
            r#"pxo_status_patches_total{result="conflict"} 1"#,
            r#"pxo_status_patches_total{result="failed"} 0"#,
            r#"pxo_cache_staleness_total{action="skipped"} 0"#,
            r#"pxo_cache_staleness_total{action="read_live"} 1"#,
            "pxo_events_dropped_total 7",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
    }

    #[tokio::test]
    async fn o05_no_label_holds_a_name_that_a_user_invents_and_every_family_is_documented() {
        let page = page().await;
        assert!(
            !page.contains("secret-name") && !page.contains("who"),
            "{page}"
        );
        let text = include_str!("../../docs/operations.md");
        for family in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = family.split(' ').next().expect("a name");
            assert!(
                text.contains(&format!("| `{name}` |")),
                "docs/operations.md: {name}"
            );
        }
    }
}
