//! A stage for tests of the collection: one API server with moods, one simulated provider, and the collector.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube_client::Client;
use kube_client::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::collector::{Past, Report};
use super::decide::Life;
use super::{Calm, Collector, Fleet, Metrics, Mode, Notices, Settings};
use crate::cluster::{CONFIG_MAP, KEY, Store};
use crate::controller::testing::{Server, refusal, virtual_now};
use crate::events::{Events, Subject};
use crate::provider::sim::{SimProvider, World};
use crate::provider::{CreateRequest, Instance, Owner, Provider, Registry, conformance, sim};

pub(super) const CYCLE: Duration = Duration::from_secs(10 * 60);
pub(super) const CLUSTER: &str = "cluster-1";

/// How the API server answers about Proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    /// It fails.
    Fails,
    /// It fails after the first page of a list.
    FailsHalfWay,
    /// It knows no Proxies.
    NoDefinition,
    /// It has lost all Proxies.
    Empty,
    /// Lists leave out what a single read shows.
    HidesInLists,
}

/// One cluster with its API server, and the collector that looks at it.
pub(super) struct Stage {
    pub(super) server: Server,
    pub(super) mood: Arc<Mutex<Mood>>,
    pub(super) world: World,
    pub(super) told: Arc<Mutex<Vec<String>>>,
    pub(super) handed: Arc<Mutex<Vec<String>>>,
    pub(super) collector: Collector,
    pub(super) past: Past,
}

pub(super) fn world() -> World {
    World::beginning_at(sim::Settings::default(), virtual_now())
}

impl Stage {
    pub(super) fn new(mode: Mode) -> Self {
        Self::of(CLUSTER, mode, world())
    }

    pub(super) fn of(cluster_id: &str, mode: Mode, world: World) -> Self {
        let server = Server::default();
        let mood = Arc::new(Mutex::new(Mood::Well));
        let client = client(server.clone(), Arc::clone(&mood));
        let store = Store::new(client.clone(), "crawl");
        let provider: Arc<dyn Provider> = Arc::new(SimProvider::new(world.clone()));
        let told = Arc::new(Mutex::new(Vec::new()));
        let handed = Arc::new(Mutex::new(Vec::new()));
        let events = Events::through(Box::new({
            let told = Arc::clone(&told);
            move |subject: Subject<'_>, word, _| {
                let about = subject.about;
                let name = about.name.clone().unwrap_or_default();
                let line = format!("{} {name}", word.as_str());
                told.lock().expect("not poisoned").push(line);
            }
        }));
        let collector = Collector {
            settings: Settings {
                mode,
                ..Settings::default()
            },
            providers: Registry::new(BTreeMap::from([("sim".to_owned(), provider)])),
            cluster_id: Arc::from(cluster_id),
            fleet: Fleet::new(client, Vec::new()),
            calm: Calm::new(),
            synced: Box::new(|| true),
            leads: Arc::new(|| true),
            hand_over: Box::new({
                let handed = Arc::clone(&handed);
                move |key, uid, provider| {
                    let line = format!("{key} {uid} {provider}");
                    handed.lock().expect("not poisoned").push(line);
                }
            }),
            notices: Notices {
                events: Some(Arc::new(events)),
                about: store.reference(),
            },
            store,
            metrics: Metrics::default(),
            clock: virtual_now,
        };
        let stage = Self {
            server,
            mood,
            world,
            told,
            handed,
            collector,
            past: Past::default(),
        };
        stage.keep_id(cluster_id);
        stage
    }

    pub(super) fn keep_id(&self, id: &str) {
        let config = json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": CONFIG_MAP, "namespace": "crawl" }, "data": { KEY: id } });
        self.server.put(&format!("configmaps/{CONFIG_MAP}"), config);
    }

    pub(super) fn turn(&self, mood: Mood) {
        *self.mood.lock().expect("not poisoned") = mood;
    }

    /// The instance of a Proxy, made as the operator of that cluster makes it.
    pub(super) async fn make(&self, name: &str, zone: &str) -> Instance {
        let mut request = CreateRequest {
            owner: owner(&self.collector.cluster_id, name),
            ..conformance::request(name)
        };
        request.machine.zone = Some(zone.to_owned());
        let provider = SimProvider::new(self.world.clone());
        let made = provider.create(&request).await.expect("made");
        made.instance().clone()
    }

    pub(super) fn proxy(&self, name: &str, status: &Value) {
        put_proxy(&self.server, name, status);
    }

    /// A Proxy that runs.
    pub(super) async fn live(&self, name: &str) {
        let instance = self.make(name, "zone-a").await;
        self.record(name, &instance);
    }

    pub(super) fn record(&self, name: &str, instance: &Instance) {
        self.proxy(name, &recorded(instance));
    }

    /// The next cycle, when its time has come.
    pub(super) async fn cycle(&mut self) -> Report {
        tokio::time::sleep(CYCLE).await;
        self.cycle_now(None).await
    }

    pub(super) async fn cycle_now(&mut self, approved: Option<&HashSet<Life>>) -> Report {
        let stop = CancellationToken::new();
        let cycle = self.collector.cycle(&mut self.past, approved, &stop);
        cycle.await.expect("nobody stops it")
    }

    /// Cycles until one deletes something, at most so many: how many it took.
    pub(super) async fn cycles_until_deleted(&mut self, most: usize) -> Option<usize> {
        for n in 1..=most {
            if !self.cycle().await.outcome.deleted.is_empty() {
                return Some(n);
            }
        }
        None
    }

    /// Whether the instance is there and nobody deletes it.
    pub(super) fn is_kept(&self, name: &str) -> bool {
        let seen = self.world.find(&owner(&self.collector.cluster_id, name));
        seen.is_some_and(|seen| !seen.deleting)
    }

    pub(super) fn take_told(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().expect("not poisoned"))
    }

    pub(super) fn metric(&self, line: &str) -> bool {
        self.collector
            .metrics
            .render()
            .lines()
            .any(|one| one == line)
    }
}

pub(super) fn put_proxy(server: &Server, name: &str, status: &Value) {
    let proxy = json!({
        "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
        "metadata": { "name": name, "namespace": "crawl", "uid": uid(name), "generation": 1 },
        "spec": { "provider": "sim" }, "status": status,
    });
    server.put(&format!("proxies/{name}"), proxy);
}

/// The status of a Proxy that has this instance on record.
pub(super) fn recorded(instance: &Instance) -> Value {
    json!({ "providerID": instance.id.as_str(), "instanceUID": instance.incarnation.as_str() })
}

pub(super) fn uid(name: &str) -> String {
    format!("u-{name}")
}

pub(super) fn owner(cluster_id: &str, name: &str) -> Owner {
    Owner {
        cluster_id: Arc::from(cluster_id),
        uid: uid(name),
        namespace: "crawl".to_owned(),
        proxy: name.to_owned(),
    }
}

pub(super) fn client(server: Server, mood: Arc<Mutex<Mood>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = request.uri().path().to_owned();
        let is_next_page = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("continue="));
        let mood = *mood.lock().expect("not poisoned");
        let is_list = path.ends_with("/proxies");
        let is_about_proxies = path.contains("/proxies");
        let (code, value) = match mood {
            Mood::Fails if is_about_proxies => refusal(500, "InternalError", "not today"),
            Mood::FailsHalfWay if is_next_page => refusal(500, "InternalError", "not today"),
            Mood::NoDefinition if is_about_proxies => refusal(
                404,
                "NotFound",
                "the server could not find the requested resource",
            ),
            mood => {
                let (code, mut value) = server.answer(request.method(), &path, &[]);
                let is_without = matches!(mood, Mood::Empty | Mood::HidesInLists);
                if is_list && is_without {
                    value["items"] = json!([]);
                }
                if is_list && mood == Mood::FailsHalfWay {
                    value["metadata"]["continue"] = json!("more");
                }
                (code, value)
            }
        };
        let body = Body::from(serde_json::to_vec(&value).expect("JSON"));
        let response = http::Response::builder().status(code).body(body);
        async move { Ok::<_, Infallible>(response.expect("a response")) }
    });
    Client::new(service, "crawl")
}
