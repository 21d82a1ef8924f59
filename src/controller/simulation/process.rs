//! One process of the operator: its view of the API, its queue, its workers.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use controller::consistency::OwnWrites;
use controller::{Action, Event, ObjectKey, ReconcileError, Reconciler};
use dashmap::DashMap;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube_client::client::Body;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Universe;
use super::fates::{Fate, Fates};
use crate::api::Proxy;
use crate::cluster::Store;
use crate::controller::budget::{self, Budget, Census, Group};
use crate::controller::circuit::Circuits;
use crate::controller::drain::NoLeases;
use crate::controller::recent::Recent;
use crate::controller::reconcile::ProxyReconciler;
use crate::controller::testing::{Server, own_writes, refusal, virtual_now};
use crate::controller::timing::Timing;
use crate::controller::unclaimed::Unclaimed;
use crate::controller::wiring::is_news;
use crate::events::Events;
use crate::orphans::{Calm, Collector, Fleet, Metrics, Mode, Notices, Settings};
use crate::provider::sim::SimProvider;
use crate::provider::{
    Capabilities, CreateRequest, Creation, Error, Hint, Incarnation, Instance, Owner, Page,
    Provider, ProviderId, Reason, Registry,
};

/// Passes of one process at a time.
const WORKERS: usize = 2;

/// The longest that a watch lags behind.
const LONGEST_LAG: Duration = Duration::from_secs(30);

/// Becomes true when the process dies: from then on none of its calls comes back.
type Dead = Arc<Mutex<bool>>;

/// The cache of a process, as far as its watches have come.
#[derive(Debug, Default)]
struct View {
    version: u64,
    proxies: BTreeMap<ObjectKey, Arc<Proxy>>,
}

/// A pass on its way.
type Pass = JoinHandle<Result<Action, ReconcileError>>;

pub(super) struct Process {
    server: Server,
    rng: StdRng,
    dead: Dead,
    view: Arc<Mutex<View>>,
    /// What the watches lag behind by now, and until when.
    lag: (Duration, Instant),
    reconciler: Arc<ProxyReconciler>,
    own_writes: Arc<OwnWrites>,
    due: BTreeMap<ObjectKey, Instant>,
    failures: BTreeMap<ObjectKey, u32>,
    running: BTreeMap<ObjectKey, Pass>,
    /// G-01: looks for orphans as long as the process lives.
    collection: JoinHandle<Result<(), Infallible>>,
    /// Proxies whose instances the collection handed over.
    woken: Arc<Mutex<Vec<ObjectKey>>>,
}

impl Process {
    pub(super) fn start(universe: &Universe, seed: u64) -> Self {
        let dead = Dead::default();
        let view = Arc::new(Mutex::new(View::default()));
        let reconciler = reconciler(universe, &dead, &view);
        let woken = Arc::<Mutex<Vec<ObjectKey>>>::default();
        let collector = Arc::new(collector(universe, &dead, &reconciler, &woken));
        #[expect(
            clippy::disallowed_methods,
            reason = "the process owns the handle, looks at it in each step, and aborts it"
        )]
        let collection = tokio::spawn(collector.run(CancellationToken::new()));
        let (seen, shown) = (Arc::clone(&view), Arc::clone(&view));
        let own_writes = own_writes(
            move || seen.lock().expect("not poisoned").version,
            move |key| {
                shown
                    .lock()
                    .expect("not poisoned")
                    .proxies
                    .get(key)
                    .cloned()
            },
        );
        let mut process = Self {
            server: universe.server.clone(),
            rng: StdRng::seed_from_u64(seed ^ 0x9_0c35),
            dead,
            view,
            lag: (Duration::ZERO, Instant::now()),
            reconciler: Arc::new(reconciler),
            own_writes,
            due: BTreeMap::new(),
            failures: BTreeMap::new(),
            running: BTreeMap::new(),
            collection,
            woken,
        };
        process.change_lag(universe.fates.are_kind());
        process.watch();
        process
    }

    /// The process is dead: nothing of it goes on.
    pub(super) fn is_over(&self) -> bool {
        *self.dead.lock().expect("not poisoned")
    }

    /// Watches get on, passes begin and end.
    pub(super) async fn step(&mut self) {
        if Instant::now() >= self.lag.1 {
            self.change_lag(false);
        }
        self.watch();
        if self.collection.is_finished()
            && let Err(error) = (&mut self.collection).await
        {
            std::panic::resume_unwind(error.into_panic());
        }
        let woken = std::mem::take(&mut *self.woken.lock().expect("not poisoned"));
        woken.into_iter().for_each(|key| self.trigger(key));
        loop {
            self.begin();
            // Passes go as far as they get without time going by.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            if !self.end().await || self.is_over() {
                break;
            }
        }
        if self.is_over() {
            self.collection.abort();
            self.running.values().for_each(Pass::abort);
            self.running.clear();
        }
    }

    /// When something of this process is due, if anything is known.
    pub(super) fn next(&self) -> Option<Instant> {
        let idle = self
            .due
            .iter()
            .filter(|(key, _)| !self.running.contains_key(*key));
        let due = idle.map(|(_, at)| *at).min();
        let seen = self.view.lock().expect("not poisoned").version;
        let change = self
            .server
            .changes_after(seen)
            .first()
            .map(|change| change.at + self.lag.0);
        let busy = (!self.running.is_empty()).then(|| Instant::now() + Duration::from_millis(100));
        due.into_iter().chain(change).chain(busy).min()
    }

    fn change_lag(&mut self, is_kind: bool) {
        let lag = match self.rng.random_range(0..4) {
            _ if is_kind => Duration::ZERO,
            0 => self.rng.random_range(Duration::ZERO..LONGEST_LAG),
            _ => self
                .rng
                .random_range(Duration::ZERO..Duration::from_millis(200)),
        };
        let until = Instant::now()
            + self
                .rng
                .random_range(Duration::from_secs(5)..Duration::from_secs(90));
        self.lag = (lag, until);
    }

    /// Takes in the changes that are old enough.
    fn watch(&mut self) {
        let seen = self.view.lock().expect("not poisoned").version;
        for change in self.server.changes_after(seen) {
            if change.at + self.lag.0 > Instant::now() {
                break;
            }
            let mut view = self.view.lock().expect("not poisoned");
            view.version = change.version;
            let Some(name) = change.path.strip_prefix("proxies/") else {
                // a Secret changed.
                let keys: Vec<_> = view.proxies.keys().cloned().collect();
                drop(view);
                keys.into_iter().for_each(|key| self.trigger(key));
                continue;
            };
            let key = ObjectKey::namespaced("crawl", name);
            let old = view.proxies.remove(&key);
            let new = change
                .object
                .map(|object| Arc::new(serde_json::from_value::<Proxy>(object).expect("a Proxy")));
            if let Some(new) = &new {
                view.proxies.insert(key.clone(), Arc::clone(new));
            }
            drop(view);
            let is_news = match (old, new) {
                (Some(old), Some(new)) => is_news(&Event::Updated { old, new }),
                _ => true,
            };
            if is_news {
                self.trigger(key);
            }
        }
    }

    fn trigger(&mut self, key: ObjectKey) {
        let now = Instant::now();
        let due = self.due.entry(key).or_insert(now);
        *due = now.min(*due);
    }

    fn begin(&mut self) {
        let now = Instant::now();
        while self.running.len() < WORKERS {
            let ready = self
                .due
                .iter()
                .find(|(key, at)| **at <= now && !self.running.contains_key(*key))
                .map(|(key, _)| key.clone());
            let Some(key) = ready else { return };
            self.due.remove(&key);
            let ctx = match self.own_writes.context(&key) {
                Ok(ctx) => ctx,
                Err(lag) => {
                    self.due.insert(key, now + lag.look_again());
                    continue;
                }
            };
            let reconciler = Arc::clone(&self.reconciler);
            let pass = {
                let key = key.clone();
                async move { ctx.noticing(reconciler.reconcile(&key, &ctx)).await }
            };
            #[expect(
                clippy::disallowed_methods,
                reason = "the process owns the handle, looks at it between steps, and aborts it"
            )]
            self.running.insert(key, tokio::spawn(pass));
        }
    }

    /// Takes in the passes that ended; `false` if none did.
    async fn end(&mut self) -> bool {
        let ended: BTreeSet<_> = self
            .running
            .iter()
            .filter(|(_, pass)| pass.is_finished())
            .map(|(key, _)| key.clone())
            .collect();
        for key in &ended {
            let Some(pass) = self.running.remove(key) else {
                continue;
            };
            let outcome = match pass.await {
                Ok(outcome) => outcome,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            let wait = match outcome {
                Ok(Action::Done) => {
                    self.failures.remove(key);
                    continue;
                }
                Ok(Action::RequeueAfter(wait)) => {
                    self.failures.remove(key);
                    wait
                }
                Ok(_) | Err(_) => {
                    let failures = self.failures.entry(key.clone()).or_insert(0);
                    *failures += 1;
                    Duration::from_millis(500) * 2_u32.pow((*failures).min(9))
                }
            };
            let at = Instant::now() + wait;
            let due = self.due.entry(key.clone()).or_insert(at);
            *due = at.min(*due);
        }
        !ended.is_empty()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        *self.dead.lock().expect("not poisoned") = true;
        self.collection.abort();
        self.running.values().for_each(Pass::abort);
    }
}

/// The API server as this process reaches it.
fn client(universe: &Universe, dead: &Dead) -> kube_client::Client {
    let api = MortalApi {
        server: universe.server.clone(),
        fates: universe.fates.clone(),
        dead: Arc::clone(dead),
    };
    kube_client::Client::new(api, "crawl")
}

/// The providers as this process reaches them, for the collection of orphans or for passes.
fn providers(universe: &Universe, dead: &Dead, collects: bool) -> Registry {
    let of = |(name, sim): (&'static str, SimProvider)| {
        let provider = Mortal {
            inner: sim,
            fates: universe.fates.clone(),
            dead: Arc::clone(dead),
            universe: universe.clone(),
            collects,
        };
        (name.to_owned(), Arc::new(provider) as Arc<dyn Provider>)
    };
    Registry::new(universe.providers().map(of).collect())
}

/// A collection that deletes, and wakes Proxies by way of `woken`.
fn collector(
    universe: &Universe,
    dead: &Dead,
    reconciler: &ProxyReconciler,
    woken: &Arc<Mutex<Vec<ObjectKey>>>,
) -> Collector {
    let client = client(universe, dead);
    let store = Store::new(client.clone(), "crawl");
    let (unclaimed, woken) = (reconciler.unclaimed.clone(), Arc::clone(woken));
    Collector {
        settings: Settings {
            mode: Mode::Delete,
            ..Settings::default()
        },
        providers: providers(universe, dead, true),
        cluster_id: Arc::clone(&reconciler.cluster_id),
        fleet: Fleet::new(client, Vec::new()),
        calm: Calm::new(),
        synced: Box::new(|| true),
        leads: Arc::new(|| true),
        hand_over: Box::new(move |key, uid, provider| {
            unclaimed.note(key.clone(), uid, provider);
            woken.lock().expect("not poisoned").push(key);
        }),
        notices: Notices {
            events: None,
            about: store.reference(),
        },
        store,
        metrics: Metrics::default(),
        clock: virtual_now,
    }
}

fn reconciler(universe: &Universe, dead: &Dead, view: &Arc<Mutex<View>>) -> ProxyReconciler {
    let (cached, counted) = (Arc::clone(view), Arc::clone(view));
    let timing = Timing::default();
    ProxyReconciler {
        client: client(universe, dead),
        proxies: Box::new(move |key| {
            cached
                .lock()
                .expect("not poisoned")
                .proxies
                .get(key)
                .cloned()
        }),
        providers: providers(universe, dead, false),
        cluster_id: Arc::from("cluster"),
        timing,
        leads: Arc::new(|| true),
        census: Box::new(move |group| census(&counted.lock().expect("not poisoned"), group)),
        budget: Budget::default(),
        circuits: Circuits::new(timing.quota_retry),
        leases: Arc::new(NoLeases),
        recent: Recent::new(),
        events: Arc::new(Events::through(Box::new(|_, _, _| {}))),
        metrics: Arc::default(),
        unclaimed: Unclaimed::default(),
        clock: virtual_now,
        spread: || 0.0,
        steps: DashMap::new(),
    }
}

fn census(view: &View, group: &Group) -> Census {
    let of_group = || {
        let all = view.proxies.iter();
        all.filter(|(_, proxy)| Group::of(proxy).as_ref() == Some(group))
    };
    Census {
        all: of_group().count(),
        unavailable: of_group()
            .filter(|(_, proxy)| budget::is_unavailable(proxy))
            .map(|(key, _)| key.clone())
            .collect(),
    }
}

/// The API server as this process meets it.
#[derive(Clone)]
struct MortalApi {
    server: Server,
    fates: Fates,
    dead: Dead,
}

/// Waits for an answer that never comes.
async fn never<T>() -> T {
    std::future::pending().await
}

fn die(dead: &Dead) {
    *dead.lock().expect("not poisoned") = true;
}

fn is_dead(dead: &Dead) -> bool {
    *dead.lock().expect("not poisoned")
}

impl tower::Service<http::Request<Body>> for MortalApi {
    type Response = http::Response<Body>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let api = self.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a body in memory");
            if is_dead(&api.dead) {
                return never().await;
            }
            let path = parts.uri.path();
            let reset = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
            let answer = || api.server.answer(&parts.method, path, &body);
            let (code, value) = match api.fates.next(&format!("{} {path}", parts.method)) {
                Fate::Answered => answer(),
                Fate::Refused => refusal(429, "TooManyRequests", "try again later"),
                Fate::Lost => return reset(),
                Fate::Reset => {
                    answer();
                    return reset();
                }
                Fate::DeathBefore => {
                    die(&api.dead);
                    return never().await;
                }
                Fate::DeathAfter => {
                    answer();
                    die(&api.dead);
                    return never().await;
                }
            };
            let body = Body::from(serde_json::to_vec(&value).expect("JSON"));
            Ok(http::Response::builder()
                .status(code)
                .body(body)
                .expect("a response"))
        }
        .boxed()
    }
}

/// A provider as this process meets it.
#[derive(Clone)]
struct Mortal {
    inner: SimProvider,
    fates: Fates,
    dead: Dead,
    universe: Universe,
    /// Whether it is the collection of orphans that calls.
    collects: bool,
}

impl std::fmt::Debug for Mortal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Mortal {
    fn call<'a, T: Send + 'a>(
        &'a self,
        op: &'static str,
        call: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        async move {
            if is_dead(&self.dead) {
                return never().await;
            }
            let fate = self.fates.next(op);
            let fault = |reason| Err(Error::new(reason, format!("{op}: as fate would have it")));
            if fate == Fate::DeathBefore {
                die(&self.dead);
                return never().await;
            }
            match fate {
                Fate::Lost => return fault(Reason::Unavailable),
                // Of machines, or of calls: reads and deletions are refused by that word too.
                Fate::Refused => return fault(Reason::Quota),
                _ => {}
            }
            let answer = call.await;
            self.universe.check();
            match fate {
                Fate::DeathAfter => {
                    die(&self.dead);
                    never().await
                }
                Fate::Reset => fault(Reason::Timeout),
                _ => answer,
            }
        }
        .boxed()
    }
}

impl Provider for Mortal {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        self.call("create", self.inner.create(request))
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        self.call("get", self.inner.get(id, owner, hint))
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        if self.collects {
            self.universe.check_orphan(id, owner);
        }
        self.call("delete", self.inner.delete(id, owner, incarnation))
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        self.call("find", self.inner.find(owner))
    }

    fn delete_leftovers<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<(), Error>> {
        self.call("delete_leftovers", self.inner.delete_leftovers(owner))
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.call("list", self.inner.list_by_tag(cluster_id, page))
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}
