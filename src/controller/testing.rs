//! A world for tests of the reconciler: one namespace of an API server in memory, a provider in
//! memory, a cache that lags on demand, and a process that dies at any effect.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use controller::consistency::{Cache, ObservedVersion, OwnWrites};
use controller::informer::kind_name;
use controller::{Action, ObjectKey, ReconcileError, Reconciler};
use dashmap::DashMap;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_client::client::Body;
use serde_json::{Value, json};

use super::budget::{Budget, Census};
use super::circuit::{Circuits, Scope};
use super::drain::NoLeases;
use super::recent::Recent;
use super::reconcile::ProxyReconciler;
use super::timing::Timing;
use super::unclaimed::Unclaimed;
use super::wiring::OWN_WRITE_CAP;
use crate::api::Proxy;
use crate::api::conditions::{self, ConditionType};
use crate::events::{Events, Subject};
use crate::provider::fake::FakeProvider;
use crate::provider::{Provider, Registry};

type Request = http::Request<Body>;
type Response = http::Response<Body>;

/// What the cache shows: the server's version, and the Proxy.
type Shown = Arc<Mutex<(u64, Option<Arc<Proxy>>)>>;

/// The own writes of a controller whose cache of Proxies is asked by `version` and `get`, as the
/// informer's is in real life.
pub(crate) fn own_writes(
    version: impl Fn() -> u64 + Send + Sync + 'static,
    get: impl Fn(&ObjectKey) -> Option<Arc<Proxy>> + Send + Sync + 'static,
) -> Arc<OwnWrites> {
    let own_writes = OwnWrites::new(OWN_WRITE_CAP);
    own_writes.track_owners(ProxyCache {
        kind: kind_name::<Proxy>(&()),
        version,
        get,
    });
    Arc::new(own_writes)
}

struct ProxyCache<V, G> {
    kind: String,
    version: V,
    get: G,
}

impl<V, G> ObservedVersion for ProxyCache<V, G>
where
    V: Fn() -> u64 + Send + Sync + 'static,
    G: Send + Sync + 'static,
{
    fn observed_version(&self) -> Option<Arc<str>> {
        Some((self.version)().to_string().into())
    }
}

impl<V, G> Cache for ProxyCache<V, G>
where
    V: Fn() -> u64 + Send + Sync + 'static,
    G: Fn(&ObjectKey) -> Option<Arc<Proxy>> + Send + Sync + 'static,
{
    fn kind(&self) -> &str {
        &self.kind
    }

    fn uid(&self, key: &ObjectKey) -> Option<String> {
        (self.get)(key)?.metadata.uid.clone()
    }

    fn will_show(&self, _: &ObjectMeta) -> bool {
        true
    }
}

/// What a pass came to.
pub(crate) type Outcome = Result<Action, ReconcileError>;

/// One namespace of an API server: Proxies with status subresource and finalizers, Secrets.
#[derive(Clone, Default)]
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
}

/// Something that happens at the server meanwhile.
type Incident = Box<dyn FnOnce(&Server) + Send>;

/// A change as a watch shows it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) at: tokio::time::Instant,
    pub(crate) path: String,
    /// `None` for a deletion.
    pub(crate) object: Option<Value>,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    log: Vec<Change>,
    /// Objects that users make once their names are free.
    waiting: BTreeMap<String, Value>,
    writes: Vec<String>,
    refuse_every_second_patch: bool,
    patches: u64,
    /// Effects that the process may still have; the next one happens and is not answered.
    life: Option<u64>,
    /// What happens right after the operator's next look at its Proxy.
    after_look: Option<Incident>,
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no test panics while it holds the state")
    }

    /// Writes of the operator so far, such as `patch a` or `status a`; forgets them.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.state().writes)
    }

    pub(crate) fn refuse_every_second_patch(&self) {
        self.state().refuse_every_second_patch = true;
    }

    /// The object under that path, such as `proxies/a`.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    /// Creates or replaces an object, as a user does.
    pub(crate) fn put(&self, path: &str, mut object: Value) {
        let mut state = self.state();
        state.stamp(&mut object);
        state.store(path, object);
    }

    /// Creates the object as soon as nothing has its path.
    pub(crate) fn put_when_free(&self, path: &str, object: Value) {
        self.state().waiting.insert(path.to_owned(), object);
        self.state().let_in();
    }

    /// The object that users mean by that path: one that waits for its name, or the one there is.
    pub(crate) fn newest(&self, path: &str) -> Option<Value> {
        let state = self.state();
        state
            .waiting
            .get(path)
            .or_else(|| state.objects.get(path))
            .cloned()
    }

    /// All objects under that path, in the order of their names.
    pub(crate) fn all(&self, prefix: &str) -> Vec<Value> {
        let state = self.state();
        let objects = state.objects.iter();
        objects
            .filter(|(path, _)| path.starts_with(prefix))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Changes after that version, in their order.
    pub(crate) fn changes_after(&self, version: u64) -> Vec<Change> {
        let state = self.state();
        let from = state
            .log
            .partition_point(|change| change.version <= version);
        state.log[from..].to_vec()
    }

    /// Changes an object by a merge patch, as a user does; a change of the spec counts.
    pub(crate) fn edit(&self, path: &str, patch: &Value) {
        if let Some(next) = self.state().waiting.get_mut(path) {
            return merge(next, patch);
        }
        self.edit_held(path, patch);
    }

    /// The same, of the object that has the path now, whatever waits for it.
    pub(crate) fn edit_held(&self, path: &str, patch: &Value) {
        let mut state = self.state();
        let Some(mut object) = state.objects.get(path).cloned() else {
            return;
        };
        merge(&mut object, patch);
        if patch.get("spec").is_some() {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
            object["metadata"]["generation"] = json!(generation + 1);
        }
        state.stamp(&mut object);
        state.store(path, object);
    }

    /// Deletes an object, as a user does: at once, or as soon as its finalizers are gone.
    pub(crate) fn delete(&self, path: &str) {
        let mut state = self.state();
        state.waiting.remove(path);
        let Some(mut object) = state.objects.get(path).cloned() else {
            return;
        };
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        if !held {
            state.remove(path);
        } else if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
            object["metadata"]["generation"] = json!(generation + 1);
            state.stamp(&mut object);
            state.store(path, object);
        }
    }

    /// Lets something happen between the operator's next look at its Proxy and what it does then.
    pub(crate) fn after_look(&self, event: impl FnOnce(&Server) + Send + 'static) {
        self.state().after_look = Some(Box::new(event));
    }

    pub(crate) fn version(&self) -> u64 {
        self.state().version
    }

    /// Takes one from the process's life; `true` if that was the last: no answer comes back.
    pub(crate) fn spend(&self) -> bool {
        match &mut self.state().life {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                *left == 0
            }
        }
    }

    fn is_dead(&self) -> bool {
        self.state().life == Some(0)
    }

    pub(crate) fn answer(&self, method: &http::Method, path: &str, body: &[u8]) -> (u16, Value) {
        let mut state = self.state();
        if method == http::Method::GET && path.ends_with("/proxies") {
            return (200, state.list("proxies/"));
        }
        let (target, is_status) = match path.strip_suffix("/status") {
            Some(target) => (target, true),
            None => (path, false),
        };
        let (_, target) = target
            .split_once("/namespaces/crawl/")
            .expect("a namespaced path");
        let Some(present) = state.objects.get(target).cloned() else {
            return not_found(target);
        };
        if method == http::Method::GET {
            return (200, present);
        }
        assert_eq!(
            method,
            http::Method::PATCH,
            "the operator only patches Proxies"
        );
        let name = target.rsplit('/').next().expect("a name").to_owned();
        state.patches += 1;
        let refused = state.refuse_every_second_patch && state.patches.is_multiple_of(2);
        let mut patch: Value = serde_json::from_slice(body).expect("a patch is JSON");
        let guard = patch["metadata"]["resourceVersion"].take();
        assert!(guard.is_string(), "every write is guarded: {patch}");
        if refused || guard != present["metadata"]["resourceVersion"] {
            return refusal(409, "Conflict", "the object has been modified");
        }
        if let Some(metadata) = patch["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let mut object = present;
        if is_status {
            merge(&mut object, &json!({ "status": patch["status"] }));
        } else {
            merge(&mut object, &json!({ "metadata": patch["metadata"] }));
        }
        state.writes.push(format!(
            "{} {name}",
            if is_status { "status" } else { "patch" }
        ));
        state.stamp(&mut object);
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        if object["metadata"]["deletionTimestamp"].is_string() && !held {
            state.remove(target);
        } else {
            state.store(target, object.clone());
        }
        (200, object)
    }
}

impl State {
    fn list(&self, prefix: &str) -> Value {
        let objects = self.objects.iter();
        let items: Vec<_> = objects
            .filter(|(path, _)| path.starts_with(prefix))
            .map(|(_, object)| object)
            .collect();
        json!({ "kind": "List", "apiVersion": "v1", "items": items,
            "metadata": { "resourceVersion": self.version.to_string() } })
    }

    fn stamp(&mut self, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    fn store(&mut self, path: &str, object: Value) {
        self.tell(path, Some(object.clone()));
        self.objects.insert(path.to_owned(), object);
    }

    fn remove(&mut self, path: &str) {
        self.version += 1;
        self.tell(path, None);
        self.objects.remove(path);
        self.let_in();
    }

    fn let_in(&mut self) {
        let objects = &self.objects;
        let free: Vec<_> = self
            .waiting
            .extract_if(.., |path, _| !objects.contains_key(path))
            .collect();
        for (path, mut object) in free {
            self.stamp(&mut object);
            self.store(&path, object);
        }
    }

    fn tell(&mut self, path: &str, object: Option<Value>) {
        self.log.push(Change {
            version: self.version,
            at: tokio::time::Instant::now(),
            path: path.to_owned(),
            object,
        });
    }
}

/// No object has that path.
fn not_found(path: &str) -> (u16, Value) {
    let (code, mut status) = refusal(404, "NotFound", "not found");
    let (kind, name) = path.split_once('/').expect("a kind and a name");
    status["details"] = json!({ "kind": kind, "name": name });
    (code, status)
}

pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message });
    (code, status)
}

/// RFC 7396.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let fields = target.as_object_mut().expect("just made one");
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

impl tower::Service<Request> for Server {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let server = self.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a body in memory");
            if server.is_dead() {
                return std::future::pending().await;
            }
            let (code, value) = server.answer(&parts.method, parts.uri.path(), &body);
            if parts.method == http::Method::GET && parts.uri.path().ends_with(PATH) {
                let event = server.state().after_look.take();
                if let Some(event) = event {
                    event(&server);
                }
            }
            if parts.method == http::Method::PATCH && server.spend() {
                return std::future::pending().await;
            }
            let body = Body::from(serde_json::to_vec(&value).expect("JSON"));
            Ok(http::Response::builder()
                .status(code)
                .body(body)
                .expect("a response"))
        }
        .boxed()
    }
}

/// The time of day of the virtual world, which began with the year 2026.
pub(crate) fn virtual_now() -> Timestamp {
    thread_local! {
        static BEGAN: tokio::time::Instant = tokio::time::Instant::now();
    }
    let passed = BEGAN.with(tokio::time::Instant::elapsed);
    let began = Timestamp::from_second(1_767_225_600).expect("in range");
    began + SignedDuration::try_from(passed).expect("less than an age")
}

/// A provider that shares the life of the process with the server.
#[derive(Clone)]
pub(crate) struct Mortal {
    inner: FakeProvider,
    server: Server,
}

impl std::fmt::Debug for Mortal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

type Beside = BTreeMap<&'static str, FakeProvider>;

/// Everything around one Proxy named `a`.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) provider: FakeProvider,
    cache: Shown,
    frozen: bool,
    providers: Vec<&'static str>,
    /// Providers with instances of their own; every other name leads to `provider`.
    beside: Beside,
    reconciler: ProxyReconciler,
    told: Told,
    own_writes: Arc<OwnWrites>,
}

pub(crate) const UID: &str = "u1";
pub(crate) const INSTANCE: &str = "px-u1";
pub(crate) const PATH: &str = "proxies/a";

impl World {
    /// A world with the Proxy `a` of this spec.
    pub(crate) fn new(spec: &Value) -> Self {
        let server = Server::default();
        server.put(
            PATH,
            json!({
                "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
                "metadata": { "name": "a", "namespace": "crawl", "uid": UID, "generation": 1 },
                "spec": spec,
            }),
        );
        let provider = FakeProvider::default();
        let cache = Arc::default();
        let providers = vec!["fake"];
        let told = Told::default();
        let beside = Beside::new();
        let reconciler = reconciler(&server, &provider, &beside, &cache, &providers, &told);
        let mut world = Self {
            beside,
            own_writes: own_writes_of(&cache),
            server,
            provider,
            cache,
            frozen: false,
            providers,
            reconciler,
            told,
        };
        world.refresh();
        world
    }

    /// A new process: nothing is remembered, the cache is fresh.
    pub(crate) fn restart(&mut self) {
        self.server.state().life = None;
        self.reconciler = reconciler(
            &self.server,
            &self.provider,
            &self.beside,
            &self.cache,
            &self.providers,
            &self.told,
        );
        self.own_writes = own_writes_of(&self.cache);
        self.refresh();
    }

    /// A new process that dies at its effect number `effects`, from 1.
    pub(crate) fn restart_mortal(&mut self, effects: u64) {
        self.restart();
        self.server.state().life = Some(effects);
    }

    /// A new process with these providers configured.
    pub(crate) fn configure(&mut self, providers: &[&'static str]) {
        self.providers = providers.to_vec();
        self.restart();
    }

    /// A new process that knows one more provider, which has instances of its own.
    pub(crate) fn configure_beside(&mut self, name: &'static str) -> FakeProvider {
        let provider = FakeProvider::default();
        self.beside.insert(name, provider.clone());
        self.providers.push(name);
        self.restart();
        provider
    }

    /// Keeps the cache as it is until [`World::thaw`].
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    pub(crate) fn thaw(&mut self) {
        self.frozen = false;
        self.refresh();
    }

    fn refresh(&mut self) {
        if self.frozen {
            return;
        }
        let proxy = self
            .server
            .get(PATH)
            .map(|object| Arc::new(serde_json::from_value(object).expect("a Proxy")));
        *self.cache.lock().expect("not poisoned") = (self.server.version(), proxy);
    }

    /// One pass, as a worker makes it: not before the cache shows the own writes.
    pub(crate) async fn pass(&mut self) -> Outcome {
        self.refresh();
        let key = ObjectKey::namespaced("crawl", "a");
        let ctx = match self.own_writes.context(&key) {
            Ok(ctx) => ctx,
            Err(lag) => return Ok(Action::RequeueAfter(lag.look_again())),
        };
        let pass = self.reconciler.reconcile(&key, &ctx);
        ctx.noticing(pass).await
    }

    /// One pass that must succeed; answers when the Proxy comes again.
    pub(crate) async fn ok(&mut self) -> Action {
        self.pass()
            .await
            .unwrap_or_else(|error| panic!("the pass failed: {error}"))
    }

    /// Passes while there is something to do; a deletion goes on in the world meanwhile. `false`
    /// if the process died.
    pub(crate) async fn run(&mut self) -> bool {
        for _ in 0..60 {
            // Paused time: the timeout fires only when nothing else can move, so only for a
            // process that waits for an answer that never comes.
            let pass = tokio::time::timeout(Duration::from_secs(3600), self.pass());
            let Ok(outcome) = pass.await else {
                return false;
            };
            self.live_on();
            let done = match &outcome {
                Ok(Action::Done) => self.server.get(PATH).is_none_or(|_| self.is_settled()),
                Ok(Action::RequeueAfter(wait)) => *wait > Duration::from_secs(60),
                _ => false,
            };
            if done {
                return true;
            }
            match outcome {
                Ok(Action::RequeueAfter(wait)) => tokio::time::advance(wait).await,
                Ok(_) => {}
                Err(_) => tokio::time::advance(Duration::from_secs(2)).await,
            }
        }
        panic!("no rest after 60 passes: {:?}", self.server.get(PATH));
    }

    /// What providers do meanwhile: what is being deleted goes, and what was made runs.
    pub(crate) fn live_on(&self) {
        for provider in std::iter::once(&self.provider).chain(self.beside.values()) {
            if let Some(seen) = provider.see(INSTANCE) {
                if seen.deleting {
                    provider.vanish(INSTANCE);
                } else if seen.ips.is_empty() {
                    provider.run(INSTANCE, "10.0.0.1");
                }
            }
        }
    }

    /// True if a pass has nothing to answer to: the cache shows the newest copy.
    fn is_settled(&self) -> bool {
        self.cache.lock().expect("not poisoned").0 == self.server.version()
    }

    pub(crate) fn proxy(&self) -> Proxy {
        serde_json::from_value(self.server.get(PATH).expect("the Proxy is there")).expect("a Proxy")
    }

    pub(crate) fn phase(&self) -> String {
        self.status("phase")
    }

    /// A field of the status as text; empty if absent.
    pub(crate) fn status(&self, field: &str) -> String {
        let object = self.server.get(PATH).expect("the Proxy is there");
        object["status"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// `status/reason` of a condition; empty if absent.
    pub(crate) fn condition(&self, kind: &str) -> String {
        let status = self.proxy().status.unwrap_or_default();
        let found = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind);
        found.map_or_else(String::new, |found| {
            format!("{}/{}", found.status, found.reason)
        })
    }

    /// The message of the Provisioned condition.
    pub(crate) fn message(&self) -> String {
        let status = self.proxy().status.unwrap_or_default();
        let found = conditions::find(&status.conditions, ConditionType::Provisioned);
        found.map_or_else(String::new, |condition| condition.message.clone())
    }

    /// This process is not sure to lead, from now on.
    pub(crate) fn do_not_lead(&mut self) {
        self.reconciler.leads = Arc::new(|| false);
    }

    /// How long the create of another Proxy would have to wait for the provider's quota circuit now.
    pub(crate) fn circuit_wait(&self) -> Option<Duration> {
        let scope = Scope {
            provider: "fake".to_owned(),
            zone: None,
        };
        let other = ObjectKey::namespaced("crawl", "other");
        self.reconciler.circuits.wait(&scope, &other)
    }

    /// So many other Proxies of the group are out of service, from now on.
    pub(crate) fn others_unavailable(&mut self, number: usize) {
        let others = (0..number).map(|n| ObjectKey::namespaced("crawl", format!("other-{n}")));
        let census = Census {
            all: 9,
            unavailable: others.collect(),
        };
        self.reconciler.census = Box::new(move |_| census.clone());
    }

    /// Lets the orphan collection find an instance of the Proxy with that UID.
    pub(crate) fn find_unclaimed(&self, uid: &str) {
        self.find_unclaimed_by(uid, "fake");
    }

    /// The same, by the provider of that name.
    pub(crate) fn find_unclaimed_by(&self, uid: &str, provider: &str) {
        let key = ObjectKey::namespaced("crawl", "a");
        self.reconciler.unclaimed.note(key, uid, provider);
    }

    /// Events told so far; forgets them.
    pub(crate) fn take_events(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().expect("not poisoned"))
    }

    /// Puts the Secret `boot` with this user data (base64).
    pub(crate) fn put_secret(&self, data: &str) {
        self.server.put(
            "secrets/boot",
            json!({ "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": "boot", "namespace": "crawl" },
                "data": { "user-data": data } }),
        );
    }
}

/// Events in the order in which they were told, as `Reason: note`.
pub(crate) type Told = Arc<Mutex<Vec<String>>>;

pub(crate) fn told_to(told: &Told) -> Events {
    let told = Arc::clone(told);
    Events::through(Box::new(move |subject: Subject<'_>, word, note| {
        let about = subject.about;
        assert!(about.uid.is_some() && about.kind.as_deref() == Some("Proxy"));
        let line = format!("{}: {note}", word.as_str());
        told.lock().expect("not poisoned").push(line);
    }))
}

fn own_writes_of(cache: &Shown) -> Arc<OwnWrites> {
    let (seen, shown) = (Arc::clone(cache), Arc::clone(cache));
    own_writes(
        move || seen.lock().expect("not poisoned").0,
        move |_| shown.lock().expect("not poisoned").1.clone(),
    )
}

fn reconciler(
    server: &Server,
    provider: &FakeProvider,
    beside: &Beside,
    cache: &Shown,
    names: &[&'static str],
    told: &Told,
) -> ProxyReconciler {
    let of = |name: &&str| {
        let mortal = Mortal {
            inner: beside.get(name).unwrap_or(provider).clone(),
            server: server.clone(),
        };
        ((*name).to_owned(), Arc::new(mortal) as Arc<dyn Provider>)
    };
    let providers = Registry::new(names.iter().map(of).collect());
    let shown = Arc::clone(cache);
    let mut reconciler = reconciler_of(server.clone(), providers, told);
    reconciler.proxies = Box::new(move |_| shown.lock().expect("not poisoned").1.clone());
    reconciler
}

/// A reconciler with an empty cache, and room in every group.
pub(crate) fn reconciler_of(server: Server, providers: Registry, told: &Told) -> ProxyReconciler {
    ProxyReconciler {
        client: kube_client::Client::new(server, "crawl"),
        proxies: Box::new(|_| None),
        providers,
        cluster_id: Arc::from("cluster"),
        timing: Timing::default(),
        leads: Arc::new(|| true),
        census: Box::new(|_| Census {
            all: 1,
            ..Census::default()
        }),
        budget: Budget::default(),
        circuits: Circuits::new(Timing::default().quota_retry),
        leases: Arc::new(NoLeases),
        recent: Recent::new(),
        events: Arc::new(told_to(told)),
        metrics: Arc::default(),
        unclaimed: Unclaimed::default(),
        clock: virtual_now,
        spread: || rand::random_range(-1.0..=1.0),
        steps: DashMap::new(),
    }
}

mod mortal {
    use super::{BoxFuture, FutureExt, Mortal, Provider};
    use crate::provider::{Around, Error};

    impl Mortal {
        async fn effect<T>(&self, call: BoxFuture<'_, T>) -> T {
            if self.server.is_dead() {
                return std::future::pending().await;
            }
            let answer = call.await;
            if self.server.spend() {
                std::future::pending().await
            } else {
                answer
            }
        }
    }

    impl Around for Mortal {
        fn inner(&self) -> &dyn Provider {
            &self.inner
        }

        fn call<'a, T: Send + 'a>(
            &'a self,
            op: &'static str,
            call: BoxFuture<'a, Result<T, Error>>,
        ) -> BoxFuture<'a, Result<T, Error>> {
            match op {
                "create" | "delete" => self.effect(call).boxed(),
                _ => call,
            }
        }
    }
}
