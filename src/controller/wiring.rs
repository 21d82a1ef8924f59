//! which events wake which Proxy, and in which order all starts.

use std::sync::Arc;
use std::time::Duration;

use controller::election::{self, Elector};
use controller::events::{self, RecorderOptions, recorder};
use controller::informer::metrics as informers;
use controller::{
    Controller, ControllerOptions, Event, Feed, FeedSender, Manager, ManagerOptions, MetadataOnly,
    ObjectKey, Source, manager,
};
use dashmap::DashMap;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;
use tokio_util::sync::CancellationToken;

use super::budget::{self, Budget, Census, Group};
use super::caches::{Informers, Proxies};
use super::circuit::Circuits;
use super::drain::NoLeases;
use super::metrics::{Metrics, Snapshot};
use super::recent::Recent;
use super::reconcile::ProxyReconciler;
use super::timing::Timing;
use super::unclaimed::Unclaimed;
use crate::api::Proxy;
use crate::cluster::Store;
use crate::events::{Events, REPORTER};
use crate::operations::{self, Operations};
use crate::orphans::{self, Calm, Collector, Fleet, HandOver, Mode, Notices};
use crate::provider::Registry;
use crate::refused;

/// Index of the Proxy cache: `namespace/name` of every Secret that decides what runs.
pub const SECRET_INDEX: &str = "secret";

/// Index of the Proxy cache: the group whose disruption budget a Managed Proxy shares (H-18).
const GROUP_INDEX: &str = "group";

/// The same, of Proxies out of service alone.
const UNAVAILABLE_INDEX: &str = "unavailable";

/// How long a Proxy is held back until the cache shows the last write to it; then it is read live.
pub(super) const OWN_WRITE_CAP: Duration = Duration::from_secs(5);

/// Why the controller could not be put together or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An informer could not be set up.
    #[error("set up the informers")]
    Informer(#[source] controller::informer::Error),
    /// The controller's settings do not work.
    #[error("build the controller")]
    Build(#[source] controller::Error),
    /// Events cannot be recorded.
    #[error("set up the recorder of Events")]
    Events(#[source] events::Error),
    /// Election or endpoints could not be set up.
    #[error(transparent)]
    Operations(#[from] operations::Error),
    /// something did not start in time, or failed while it ran.
    #[error(transparent)]
    Run(#[from] controller::manager::Error),
}

/// The operator, ready to run: informers of two kinds and one controller.
#[derive(Debug)]
pub struct Operator {
    manager: Manager,
    fleet: Proxies,
}

/// What the operator works with.
pub(crate) struct Parts {
    pub(crate) client: kube_client::Client,
    pub(crate) providers: Registry,
    pub(crate) cluster_id: Arc<str>,
    pub(crate) workers: usize,
    pub(crate) timing: Timing,
    pub(crate) sync_timeout: Duration,
    pub(crate) grace: Duration,
    pub(crate) operations: Operations,
    pub(crate) orphans: orphans::Settings,
    pub(crate) store: Store,
    /// The namespaces to look after; all of them if none is named.
    pub(crate) namespaces: Vec<String>,
}

impl std::fmt::Debug for ProxyReconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyReconciler")
            .field("providers", &self.providers)
            .field("cluster_id", &self.cluster_id)
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

impl Operator {
    pub(crate) fn build(parts: Parts) -> Result<Self, Error> {
        // One of its own, since several operators in one process may name theirs alike.
        let series = informers::Registry::new();
        let spaces = &parts.namespaces;
        let proxies = Informers::<Proxy>::new(&parts.client, spaces, "proxies", &series)
            .map_err(Error::Informer)?;
        proxies
            .add_index(SECRET_INDEX, secrets_of)
            .map_err(Error::Informer)?;
        // names and versions of Secrets alone; content is read live where it is needed.
        let secrets =
            Informers::<MetadataOnly<Secret>>::new(&parts.client, spaces, "secrets", &series)
                .map_err(Error::Informer)?;

        proxies
            .add_index(GROUP_INDEX, groups_of)
            .map_err(Error::Informer)?;
        proxies
            .add_index(UNAVAILABLE_INDEX, |proxy: &Proxy| {
                let out = budget::is_unavailable(proxy);
                if out { groups_of(proxy) } else { Vec::new() }
            })
            .map_err(Error::Informer)?;

        let calm = Calm::new();
        for proxies in proxies.iter() {
            let listen = proxies.set_error_handler(calm.listener());
            listen.map_err(Error::Informer)?;
        }
        for secrets in secrets.iter() {
            let listen = secrets.set_error_handler(calm.listener());
            listen.map_err(Error::Informer)?;
        }

        let fleet = proxies.fleet();
        let (recorder, writer) = recorder(parts.client.clone(), RecorderOptions::new(REPORTER))
            .map_err(Error::Events)?;
        let events = Arc::new(Events::new(recorder));
        let metrics = Arc::new(Metrics::default());
        let providers = parts.providers.counted(&metrics.provider_calls);
        let circuits = Circuits::new(parts.timing.quota_retry);
        let elector = parts.operations.elector(&parts.client)?;
        let leads = operations::leads(elector.as_ref().map(Elector::handle));
        let unclaimed = Unclaimed::default();
        let (found, feed) = Feed::channel("unclaimed instances");
        let collector = Arc::new(Collector {
            settings: parts.orphans,
            providers: providers.clone(),
            cluster_id: Arc::clone(&parts.cluster_id),
            fleet: Fleet::new(parts.client.clone(), parts.namespaces.clone()),
            calm,
            synced: Box::new({
                let (proxies, secrets) = (proxies.clone(), secrets.clone());
                move || proxies.have_synced() && secrets.have_synced()
            }),
            leads: Arc::clone(&leads),
            hand_over: hand_over(unclaimed.clone(), found),
            notices: Notices {
                events: Some(Arc::clone(&events)),
                about: parts.store.reference(),
            },
            metrics: orphans::Metrics::default(),
            store: parts.store,
            clock: Timestamp::now,
        });
        let reconciler = ProxyReconciler {
            client: parts.client.clone(),
            proxies: Box::new({
                let fleet = fleet.clone();
                move |key: &ObjectKey| fleet.get(key)
            }),
            providers: providers.clone(),
            cluster_id: parts.cluster_id,
            timing: parts.timing,
            leads,
            census: Box::new({
                let fleet = fleet.clone();
                move |group: &Group| census(&fleet, group)
            }),
            budget: Budget::default(),
            circuits: circuits.clone(),
            leases: Arc::new(NoLeases),
            recent: Recent::new(),
            events: Arc::clone(&events),
            metrics: Arc::clone(&metrics),
            unclaimed,
            clock: Timestamp::now,
            spread: || rand::random_range(-1.0..=1.0),
            steps: DashMap::new(),
        };
        let options = ControllerOptions {
            workers: parts.workers,
            backoff_base: parts.timing.backoff_base,
            backoff_max: parts.timing.backoff_max,
            sync_timeout: parts.sync_timeout,
            read_your_writes: Some(OWN_WRITE_CAP),
            // A standby has its queue full when it becomes the leader.
            warm_up: true,
            stuck_after: Some(operations::LONGEST_RUN),
            // Several operators in one process (tests, `dev`) may share the name.
            unique_name: false,
            ..ControllerOptions::default()
        };
        let mut builder = Controller::builder("proxy", reconciler)
            .feed(feed)
            .options(options);
        for proxies in proxies.iter() {
            builder = builder.source(Source::object(proxies).filter(is_news));
        }
        for secrets in secrets.iter() {
            let fleet = fleet.clone();
            builder = builder.source(Source::mapped(secrets, move |secret| {
                proxies_for_secret(&fleet, secret)
            }));
        }
        let controller = builder.build().map_err(Error::Build)?;
        let handle = controller.handle();
        let mut manager = Manager::new(ManagerOptions {
            grace: parts.grace,
            sync_timeout: parts.sync_timeout,
        });
        manager = secrets
            .run_by(proxies.run_by(manager))
            .add_controller(controller)
            .with_events(writer);
        if let Some(elector) = elector {
            manager = manager.with_election(elector);
        }
        let orphans = collector.metrics.clone();
        if parts.orphans.mode != Mode::Off {
            manager = manager.add_leader_task("orphans", move |stop| {
                let collector = Arc::clone(&collector);
                collector.run(stop)
            });
        }
        let page = {
            let fleet = fleet.clone();
            move || {
                let counted = handle.metrics();
                let snapshot = Snapshot {
                    metrics: &metrics,
                    proxies: &fleet.list(),
                    providers: &providers,
                    circuits: &circuits.all(),
                    events_dropped: events.dropped(),
                    stale: [counted.stale_skips, counted.stale_reconciles],
                };
                series.render() + &snapshot.render() + &orphans.render()
            }
        };
        let manager = parts.operations.serve(manager, &parts.client, page)?;
        Ok(Self { manager, fleet })
    }

    /// One more task, for as long as the operator runs.
    pub(crate) fn with_task<F, Fut, E>(mut self, name: &str, run: F) -> Self
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        self.manager = self.manager.add_task(name, run);
        self
    }

    /// The cache of Proxies, to look into while the operator runs.
    #[must_use]
    pub fn proxies(&self) -> Proxies {
        self.fleet.clone()
    }

    /// Runs until `stop`; then lets running passes end within the grace time. What an API server or a
    /// provider that does not answer keeps from ending is dropped then, as is all work of a Lease
    /// that cannot be renewed meanwhile; that is logged, and the stop is one all the same (O-07).
    ///
    /// Cancellation safety: dropping the future drops everything at its next await point.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] if the informers did not sync in time, naming kind and cause, or if
    /// something failed.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        match self.manager.run(stop.clone()).await {
            Err(error) if stop.is_cancelled() && is_late(&error) => {
                tracing::warn!(
                    error = refused::chain(&error),
                    "stopped; not all came to its end"
                );
                Ok(())
            }
            ended => ended.map_err(Error::Run),
        }
    }
}

/// Whether this is all that a stop leaves behind where calls are not answered.
fn is_late(error: &manager::Error) -> bool {
    use manager::Error::{Election, GraceExceeded, Several};
    match error {
        GraceExceeded { .. } => true,
        Election(error) => matches!(
            **error,
            election::Error::NotRenewed { .. } | election::Error::Taken { .. }
        ),
        Several { errors } => errors.iter().all(is_late),
        _ => false,
    }
}

/// G-01: notes what the orphan collection found of a Proxy and wakes it.
fn hand_over(unclaimed: Unclaimed, wake: FeedSender) -> HandOver {
    Box::new(move |key, uid, provider| {
        unclaimed.note(key.clone(), uid, provider);
        if let Err(error) = wake.try_send(key) {
            // The note stays for the next pass, and the next cycle finds the instance again.
            tracing::debug!(%error, "a Proxy is not woken for its instance");
        }
    })
}

/// R-01, without the echo of the operator's own status writes.
///
/// Nobody else writes the status, and a pass says itself when it wants to come again, so an
/// update that changes nothing but the status tells nothing new. A resync changes nothing at all
/// and passes.
pub(super) fn is_news(event: &Event<Proxy>) -> bool {
    let Event::Updated { old, new } = event else {
        return true;
    };
    event.is_resync()
        || old.status == new.status
        || old.metadata.uid != new.metadata.uid
        || old.metadata.generation != new.metadata.generation
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.finalizers() != new.finalizers()
        || old.annotations() != new.annotations()
        || old.labels() != new.labels()
        || old.spec != new.spec
}

fn secrets_of(proxy: &Proxy) -> Vec<String> {
    let namespace = proxy.metadata.namespace.as_deref().unwrap_or_default();
    proxy
        .spec
        .secret_names()
        .map(|name| format!("{namespace}/{name}"))
        .collect()
}

fn groups_of(proxy: &Proxy) -> Vec<String> {
    Group::of(proxy)
        .map(|group| group.as_str().to_owned())
        .into_iter()
        .collect()
}

/// H-18: a group as the cache shows it.
fn census(fleet: &Proxies, group: &Group) -> Census {
    let all = fleet.index_len(GROUP_INDEX, group.as_str());
    Census {
        all,
        unavailable: fleet.some_index_keys(UNAVAILABLE_INDEX, group.as_str(), budget::enough(all)),
    }
}

/// the Proxies that a Secret decides about, whatever happened to it.
fn proxies_for_secret(fleet: &Proxies, secret: &MetadataOnly<Secret>) -> Vec<ObjectKey> {
    let key = ObjectKey::of(secret).to_string();
    fleet.index_keys(SECRET_INDEX, &key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn proxy(value: serde_json::Value) -> Proxy {
        serde_json::from_value(value).expect("a Proxy")
    }

    #[test]
    fn r02_a_proxy_is_indexed_by_every_secret_that_decides_what_runs() {
        let both = proxy(json!({
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
            "metadata": { "name": "a", "namespace": "ns" },
            "spec": {
                "cloudInit": { "secretRef": { "name": "boot" } },
                "auth": { "secretRef": { "name": "users" } },
            },
        }));
        assert_eq!(secrets_of(&both), ["ns/boot", "ns/users"]);
    }

    #[test]
    fn o07_what_a_stop_leaves_behind_is_no_failure_and_all_else_is() {
        use manager::Error::{Election, Failed, GraceExceeded, Several};
        let late = || GraceExceeded {
            grace: Duration::from_secs(20),
            running: Vec::new(),
        };
        let lost = || {
            Election(Box::new(election::Error::NotRenewed {
                name: "a".to_owned(),
                deadline: Duration::from_secs(10),
            }))
        };
        let panicked = || {
            Election(Box::new(election::Error::Panicked {
                name: "a".to_owned(),
                message: "why".to_owned(),
            }))
        };
        let failed = || Failed {
            name: "a".to_owned(),
            source: "why".into(),
        };
        for (errors, want) in [
            (vec![late()], true),
            (vec![lost(), late()], true),
            (vec![late(), failed()], false),
            (vec![panicked(), late()], false),
        ] {
            let error = Several { errors };
            assert_eq!(is_late(&error), want, "{error}");
        }
    }

    #[test]
    fn r01_own_status_writes_wake_nobody_and_everything_else_does() {
        let base = json!({
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
            "metadata": { "name": "a", "namespace": "ns", "uid": "u", "generation": 1,
                          "resourceVersion": "1" },
            "spec": {}, "status": { "ip": "10.0.0.1" },
        });
        let changed = |pointer: &str, value: serde_json::Value| {
            let mut new = base.clone();
            new["metadata"]["resourceVersion"] = json!("2");
            let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
            new.pointer_mut(parent).expect("there")[field] = value;
            Event::Updated {
                old: Arc::new(proxy(base.clone())),
                new: Arc::new(proxy(new)),
            }
        };
        assert!(!is_news(&changed("/status/ip", json!("10.0.0.2"))));
        for (pointer, value) in [
            ("/metadata/generation", json!(2)),
            ("/metadata/finalizers", json!(["x"])),
            ("/metadata/annotations", json!({ "a": "b" })),
            ("/metadata/labels", json!({ "a": "b" })),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            ("/metadata/uid", json!("v")),
        ] {
            assert!(is_news(&changed(pointer, value)), "{pointer}");
        }
        let same = Arc::new(proxy(base.clone()));
        assert!(
            is_news(&Event::Updated {
                old: Arc::clone(&same),
                new: same
            }),
            "a resync"
        );
    }
}
