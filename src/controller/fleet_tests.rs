//! Large fleets on the simulated cloud in virtual time, with one worker and a cache that is up to date.
//!
//! T14 looks at as many Proxies as its scenario says, in seconds; another number:
//! `PXO_RESYNC_SIZE=100000 cargo test -p proxy-operator --lib t14_`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::{Action, Context, Event, ObjectKey, Reconciler as _};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::budget::{self, Census, Group};
use super::reconcile::ProxyReconciler;
use super::testing::{Server, Told, reconciler_of, virtual_now};
use super::wiring::is_news;
use crate::api::conditions::{self, ConditionType, Reason as Word};
use crate::api::{Machine, Phase, Protocol, Proxy};
use crate::crash::here::Died;
use crate::provider::sim::{Op, Rule, Settings, SimProvider, World};
use crate::provider::{
    Capabilities, CreateRequest, Creation, Error, Hint, Incarnation, Instance, Owner, Page,
    Provider, ProviderCalls, ProviderId, Reason, Registry, name_from_uid,
};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// What the cache shows: the server's version, and the Proxies.
type View = Arc<Mutex<(u64, BTreeMap<ObjectKey, Arc<Proxy>>)>>;

/// A fleet, its cloud, and the operator.
pub(super) struct Fleet {
    pub(super) server: Server,
    pub(super) cloud: World,
    calls: ProviderCalls,
    told: Told,
    view: View,
    pub(super) reconciler: ProxyReconciler,
    pub(super) queue: BTreeSet<(Instant, ObjectKey)>,
    due: HashMap<ObjectKey, Instant>,
    failures: HashMap<ObjectKey, u32>,
    /// How often the process died by itself.
    pub(super) deaths: usize,
}

pub(super) fn object(n: usize, spec: &Value) -> Value {
    json!({
        "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
        "metadata": { "name": format!("p{n}"), "namespace": "crawl", "uid": format!("u-{n}"),
                      "generation": 1 },
        "spec": spec,
    })
}

pub(super) fn path(n: usize) -> String {
    format!("proxies/p{n}")
}

fn secret(data: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "boot", "namespace": "crawl" }, "data": { "user-data": data } })
}

pub(super) fn plain() -> Value {
    json!({ "provider": "sim" })
}

fn with_secret() -> Value {
    json!({ "provider": "sim", "cloudInit": { "secretRef": { "name": "boot" } } })
}

impl Fleet {
    /// So many Proxies of that spec that nobody has looked at yet.
    pub(super) fn new(size: usize, spec: &Value) -> Self {
        Self::on(&Settings::default(), size, spec)
    }

    pub(super) fn on(settings: &Settings, size: usize, spec: &Value) -> Self {
        let server = Server::default();
        server.put("secrets/boot", secret("b25l"));
        for n in 0..size {
            server.put(&path(n), object(n, spec));
        }
        let cloud = World::beginning_at(settings.clone(), virtual_now());
        let (calls, told, view) = (ProviderCalls::default(), Told::default(), View::default());
        let reconciler = operator(&server, &cloud, &calls, &told, &view);
        Self {
            server,
            cloud,
            calls,
            told,
            view,
            reconciler,
            queue: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            deaths: 0,
        }
    }

    /// The same, after all came up.
    pub(super) async fn settled(size: usize, spec: &Value) -> Self {
        let mut fleet = Self::new(size, spec);
        fleet.run(MINUTE).await;
        assert_eq!(fleet.count(Phase::Ready), size);
        fleet.server.take_writes();
        fleet
    }

    /// Another process: nothing is remembered, and all is listed.
    pub(super) fn restart(&mut self) {
        self.view = View::default();
        let Self {
            server,
            cloud,
            calls,
            told,
            view,
            ..
        } = self;
        self.reconciler = operator(server, cloud, calls, told, view);
        self.queue.clear();
        self.due.clear();
        self.failures.clear();
    }

    /// Reaches its cloud by this provider from now on.
    pub(super) fn reach_by(&mut self, sim: Arc<dyn Provider>) {
        let Self {
            server,
            calls,
            told,
            view,
            ..
        } = self;
        self.reconciler = operator_of(sim, server, calls, told, view);
    }

    /// Another process beside this one, whose cache shows the same, and which begins with all of it.
    pub(super) fn rival(&mut self) -> Self {
        self.follow();
        let view = self.view.lock().expect("not poisoned").clone();
        let view = Arc::new(Mutex::new(view));
        let (server, cloud, calls, told) = (&self.server, &self.cloud, &self.calls, &self.told);
        let mut rival = Self {
            reconciler: operator(server, cloud, calls, told, &view),
            server: server.clone(),
            cloud: cloud.clone(),
            calls: calls.clone(),
            told: Arc::clone(told),
            view,
            queue: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            deaths: 0,
        };
        rival.resync();
        rival
    }

    /// Takes in what happened at the server.
    fn follow(&mut self) {
        let seen = self.view.lock().expect("not poisoned").0;
        for change in self.server.changes_after(seen) {
            let mut view = self.view.lock().expect("not poisoned");
            view.0 = change.version;
            let Some(name) = change.path.strip_prefix("proxies/") else {
                let keys: Vec<_> = view.1.keys().cloned().collect();
                drop(view);
                keys.into_iter()
                    .for_each(|key| self.wake(key, Instant::now()));
                continue;
            };
            let key = ObjectKey::namespaced("crawl", name);
            let new = change
                .object
                .map(|object| Arc::new(serde_json::from_value::<Proxy>(object).expect("a Proxy")));
            let old = match &new {
                Some(new) => view.1.insert(key.clone(), Arc::clone(new)),
                None => view.1.remove(&key),
            };
            drop(view);
            let news = match (old, new) {
                (Some(old), Some(new)) => is_news(&Event::Updated { old, new }),
                _ => true,
            };
            if news {
                self.wake(key, Instant::now());
            }
        }
    }

    fn wake(&mut self, key: ObjectKey, at: Instant) {
        match self.due.get(&key) {
            Some(known) if *known <= at => return,
            Some(known) => {
                self.queue.remove(&(*known, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), at);
        self.queue.insert((at, key));
    }

    /// Every Proxy comes again, as by a resync.
    fn resync(&mut self) {
        self.follow();
        let keys: Vec<_> = self
            .view
            .lock()
            .expect("not poisoned")
            .1
            .keys()
            .cloned()
            .collect();
        keys.into_iter()
            .for_each(|key| self.wake(key, Instant::now()));
    }

    /// Lets so much time go by, with a look after each pass.
    pub(super) async fn watched(&mut self, time: Duration, mut look: impl FnMut(&Self)) {
        let end = Instant::now() + time;
        loop {
            self.follow();
            let now = Instant::now();
            let next = self.queue.first().cloned();
            let Some((_, key)) = next.clone().filter(|(at, _)| *at <= now) else {
                let wake = next.map_or(end, |(at, _)| at.min(end));
                if wake >= end {
                    tokio::time::sleep_until(end).await;
                    return;
                }
                // Wakes exactly at the moment: a paused clock knows milliseconds alone.
                tokio::time::sleep_until(wake + Duration::from_millis(1)).await;
                continue;
            };
            self.queue.pop_first();
            self.due.remove(&key);
            let ctx = Context::default();
            let pass = AssertUnwindSafe(self.reconciler.reconcile(&key, &ctx));
            let outcome = match pass.catch_unwind().await {
                Ok(outcome) => outcome,
                Err(death) if death.is::<Died>() => {
                    self.deaths += 1;
                    self.restart();
                    self.follow();
                    look(self);
                    continue;
                }
                Err(panic) => std::panic::resume_unwind(panic),
            };
            let wait = match outcome {
                Ok(Action::Done) => {
                    self.failures.remove(&key);
                    None
                }
                Ok(Action::RequeueAfter(wait)) => {
                    self.failures.remove(&key);
                    Some(wait)
                }
                Ok(_) | Err(_) => {
                    let failures = self.failures.entry(key.clone()).or_default();
                    *failures += 1;
                    let wait = Duration::from_millis(500) * 2_u32.pow((*failures).min(9));
                    Some(wait.min(5 * MINUTE))
                }
            };
            if let Some(wait) = wait {
                self.wake(key, Instant::now() + wait);
            }
            self.follow();
            look(self);
        }
    }

    pub(super) async fn run(&mut self, time: Duration) {
        self.watched(time, |_| ()).await;
    }

    /// The Proxies as the cache shows them.
    pub(super) fn proxies(&self) -> Vec<Arc<Proxy>> {
        let view = self.view.lock().expect("not poisoned");
        view.1.values().cloned().collect()
    }

    pub(super) fn count(&self, phase: Phase) -> usize {
        let of_phase =
            |proxy: &Proxy| proxy.status.as_ref().and_then(|status| status.phase) == Some(phase);
        self.proxies()
            .iter()
            .filter(|proxy| of_phase(proxy))
            .count()
    }

    /// Proxies whose Provisioned condition has this reason.
    pub(super) fn with_reason(&self, reason: Word) -> usize {
        let has = |proxy: &Proxy| {
            let status = proxy.status.as_ref();
            status.and_then(|status| {
                conditions::reason(&status.conditions, ConditionType::Provisioned)
            }) == Some(reason)
        };
        self.proxies().iter().filter(|proxy| has(proxy)).count()
    }

    /// Calls of this operation so far, however they came out.
    pub(super) fn calls(&self, op: &str) -> u64 {
        let all = self.calls.all().into_iter();
        all.filter(|((_, called, _), _)| *called == op)
            .map(|(_, count)| count)
            .sum()
    }

    fn fail(&self, op: Option<Op>, reason: Reason) {
        self.cloud.add_rule(Rule {
            op,
            error: Some(reason),
            ..Rule::default()
        });
    }
}

fn operator(
    server: &Server,
    cloud: &World,
    calls: &ProviderCalls,
    told: &Told,
    view: &View,
) -> ProxyReconciler {
    let sim = Arc::new(SimProvider::new(cloud.clone()));
    operator_of(sim, server, calls, told, view)
}

fn operator_of(
    sim: Arc<dyn Provider>,
    server: &Server,
    calls: &ProviderCalls,
    told: &Told,
    view: &View,
) -> ProxyReconciler {
    let providers = Registry::new(BTreeMap::from([("sim".to_owned(), sim)])).counted(calls);
    let (cached, counted) = (Arc::clone(view), Arc::clone(view));
    let mut reconciler = reconciler_of(server.clone(), providers, told);
    reconciler.proxies =
        Box::new(move |key| cached.lock().expect("not poisoned").1.get(key).cloned());
    reconciler.census = Box::new(move |group| {
        let view = counted.lock().expect("not poisoned");
        let of_group = || {
            let all = view.1.iter();
            all.filter(|(_, proxy)| Group::of(proxy).as_ref() == Some(group))
        };
        Census {
            all: of_group().count(),
            unavailable: of_group()
                .filter(|(_, proxy)| budget::is_unavailable(proxy))
                .map(|(key, _)| key.clone())
                .collect(),
        }
    });
    reconciler
}

/// A cloud that accepts every create, and lets its operation fail for stock as long as it has none.
#[derive(Clone, Debug)]
struct OutOfStock {
    inner: SimProvider,
    cloud: World,
    is_out: Arc<AtomicBool>,
}

impl Provider for OutOfStock {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        self.inner.create(request)
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        if hint.operation.is_some() && self.is_out.load(Ordering::Relaxed) {
            self.cloud.vanish(id.name());
            let error = Error::new(Reason::Capacity, "none left").with_ended();
            return async move { Err(error) }.boxed();
        }
        self.inner.get(id, owner, hint)
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.inner.delete(id, owner, incarnation)
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        self.inner.find(owner)
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.inner.list_by_tag(cluster_id, page)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

/// A rollout of 50 Proxies in which no more than the budget is ever out of service.
async fn rolls_within_the_budget(fleet: &mut Fleet, time: Duration) {
    let made = fleet.cloud.made();
    let mut worst = 0;
    fleet
        .watched(time, |fleet| {
            worst = worst.max(50 - fleet.count(Phase::Ready));
        })
        .await;
    assert!(
        (1..=5).contains(&worst),
        "{worst} were out of service at once"
    );
    assert_eq!(fleet.count(Phase::Ready), 50);
    assert_eq!(fleet.cloud.made() - made, 50, "each was replaced once");
}

#[tokio::test(start_paused = true)]
async fn t15_a_secret_that_fifty_proxies_share_rolls_within_the_budget() {
    let mut fleet = Fleet::settled(50, &with_secret()).await;
    fleet.server.put("secrets/boot", secret("dHdv"));
    rolls_within_the_budget(&mut fleet, 60 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn t08_a_new_nonce_and_the_greatest_age_replace_a_fleet_within_the_budget() {
    let mut fleet = Fleet::settled(50, &plain()).await;
    for n in 0..50 {
        let nonce = json!({ "spec": { "rotation": { "nonce": "again" } } });
        fleet.server.edit(&path(n), &nonce);
    }
    rolls_within_the_budget(&mut fleet, 60 * MINUTE).await;
    for n in 0..50 {
        let age = json!({ "spec": { "rotation": { "maxAgeSeconds": 6 * 3600 } } });
        fleet.server.edit(&path(n), &age);
    }
    fleet.run(4 * 60 * MINUTE).await;
    assert_eq!(fleet.cloud.made(), 100, "none is old enough");
    rolls_within_the_budget(&mut fleet, 3 * 60 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn t14_a_resync_of_a_large_settled_fleet_writes_nothing() {
    let size = std::env::var("PXO_RESYNC_SIZE");
    let size = size.map_or(10_000, |size| size.parse().expect("a number"));
    let mut fleet = Fleet::settled(1, &plain()).await;
    let pattern = fleet.server.get(&path(0)).expect("it is there").to_string();
    let (_, first) = fleet.cloud.all().pop().expect("it runs");
    // The others are what the first one is, without living through all of it.
    let sim = SimProvider::new(fleet.cloud.clone());
    for n in 1..size {
        let request = CreateRequest {
            owner: Owner {
                cluster_id: Arc::from("cluster"),
                uid: format!("u-{n}"),
                namespace: "crawl".to_owned(),
                proxy: format!("p{n}"),
            },
            spec_hash: first.spec_hash.clone().expect("stamped"),
            attempt: 1,
            resent: false,
            machine: Machine::default(),
            protocol: Protocol::Http,
            port: 3128,
            cloud_init: None,
            credentials: None,
            tags: BTreeMap::new(),
        };
        sim.create(&request).await.expect("there is room");
    }
    tokio::time::advance(MINUTE).await;
    for (owner, instance) in fleet.cloud.all() {
        let quoted = |text: &str| format!("\"{text}\"");
        let ip = |instance: &Instance| quoted(instance.ip().expect("it runs"));
        let text = pattern
            .replace("\"p0\"", &quoted(&owner.proxy))
            .replace("u-0", &owner.uid)
            .replace(
                &quoted(first.incarnation.as_str()),
                &quoted(instance.incarnation.as_str()),
            )
            .replace(&ip(&first), &ip(&instance));
        let object = serde_json::from_str(&text).expect("JSON");
        fleet
            .server
            .put(&format!("proxies/{}", owner.proxy), object);
    }
    fleet.restart();
    let looks = fleet.calls("get");
    for _ in 0..2 {
        fleet.resync();
        fleet.run(Duration::from_secs(5)).await;
    }
    assert_eq!(
        fleet.calls("get") - looks,
        2 * size as u64,
        "all were looked at"
    );
    assert!(fleet.server.take_writes().is_empty());
    assert_eq!((fleet.calls("create"), fleet.calls("delete")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn t31_an_operator_that_was_away_for_an_hour_brings_all_to_where_it_should_be() {
    let mut fleet = Fleet::settled(20, &with_secret()).await;
    let hash = |fleet: &Fleet, n: usize| {
        let object = fleet.server.get(&path(n)).expect("it is there");
        object["metadata"]["annotations"]["crawl.proxyoperator.dev/spec-hash"].to_string()
    };
    let before = hash(&fleet, 10);
    // Nobody runs.
    tokio::time::advance(30 * MINUTE).await;
    fleet.server.put("secrets/boot", secret("dHdv"));
    (0..5).for_each(|n| fleet.server.delete(&path(n)));
    for n in [5, 6] {
        assert!(fleet.cloud.preempt(&name_from_uid(&format!("u-{n}"))));
    }
    tokio::time::advance(30 * MINUTE).await;
    fleet.restart();
    fleet.run(60 * MINUTE).await;
    assert_eq!(fleet.proxies().len(), 15);
    assert_eq!((fleet.count(Phase::Ready), fleet.cloud.count()), (15, 15));
    for n in 5..20 {
        assert_ne!(hash(&fleet, n), before, "p{n} has the new user data");
    }
}

#[tokio::test(start_paused = true)]
async fn t37_five_hundred_proxies_without_quota_ask_once_in_each_retry_time_and_all_recover() {
    let mut fleet = Fleet::new(500, &plain());
    fleet.fail(Some(Op::Create), Reason::Quota);
    fleet.run(MINUTE).await;
    assert_eq!(fleet.with_reason(Word::QuotaExceeded), 500);
    assert_eq!(fleet.calls("create"), 1, "the others wait for the first");
    fleet.run(30 * MINUTE).await;
    let asked = fleet.calls("create");
    assert!((3..=5).contains(&asked), "one for each round: {asked}");
    fleet.cloud.clear_rules();
    fleet.run(30 * MINUTE).await;
    assert_eq!(fleet.count(Phase::Ready), 500);
    assert_eq!(
        fleet.calls("create") - asked,
        500,
        "each was made by one call"
    );
    let told = fleet.told.lock().expect("not poisoned");
    let refusals = told.iter().filter(|line| line.starts_with("QuotaExceeded"));
    assert_eq!(refusals.count(), 500, "each was told of once");
}

#[tokio::test(start_paused = true)]
async fn t37_stock_that_fails_accepted_creates_later_is_asked_once_in_each_retry_time() {
    let settings = Settings {
        boot: Duration::from_secs(20)..Duration::from_secs(40),
        hidden_for: Duration::from_secs(30),
        write_ahead: true,
        ..Settings::default()
    };
    let mut fleet = Fleet::on(&settings, 200, &plain());
    let cloud = OutOfStock {
        inner: SimProvider::new(fleet.cloud.clone()),
        cloud: fleet.cloud.clone(),
        is_out: Arc::new(AtomicBool::new(true)),
    };
    fleet.reconciler = operator_of(
        Arc::new(cloud.clone()),
        &fleet.server,
        &fleet.calls,
        &fleet.told,
        &fleet.view,
    );
    fleet.run(5 * MINUTE).await;
    assert_eq!(fleet.with_reason(Word::CapacityExhausted), 200);
    let asked = fleet.calls("create");
    assert_eq!(asked, 200, "all were accepted before the first failed");
    fleet.run(30 * MINUTE).await;
    let tries = fleet.calls("create") - asked;
    assert!((2..=4).contains(&tries), "one for each round: {tries}");
    cloud.is_out.store(false, Ordering::Relaxed);
    fleet.run(60 * MINUTE).await;
    assert_eq!((fleet.count(Phase::Ready), fleet.cloud.count()), (200, 200));
    // One that was on its way when stock came in again needs no other.
    let calls = fleet.calls("create") - asked - tries;
    assert!((199..=200).contains(&calls), "each by one call: {calls}");
}

#[tokio::test(start_paused = true)]
async fn t40_credentials_refused_for_ten_minutes_latch_none_of_two_hundred_proxies() {
    let mut fleet = Fleet::settled(100, &plain()).await;
    for n in 100..200 {
        fleet.server.put(&path(n), object(n, &plain()));
    }
    fleet.fail(None, Reason::Credentials);
    fleet.run(10 * MINUTE).await;
    assert_eq!(
        fleet.count(Phase::Ready),
        100,
        "what serves goes on serving"
    );
    assert_eq!(fleet.with_reason(Word::ProviderError), 100);
    let latched = |proxy: &Proxy| {
        proxy
            .status
            .as_ref()
            .is_some_and(|status| status.latch.is_some())
    };
    assert!(!fleet.proxies().iter().any(|proxy| latched(proxy)));
    fleet.cloud.clear_rules();
    fleet.run(10 * MINUTE).await;
    assert_eq!((fleet.count(Phase::Ready), fleet.cloud.made()), (200, 200));
}

#[tokio::test(start_paused = true)]
async fn t50_a_machine_that_never_comes_up_is_made_again_every_quarter_of_an_hour_and_later() {
    let settings = Settings {
        boot: 600 * MINUTE..700 * MINUTE,
        ..Settings::default()
    };
    let mut fleet = Fleet::on(&settings, 1, &plain());
    let mut made = vec![Instant::now()];
    fleet
        .watched(4 * 60 * MINUTE, |fleet| {
            if fleet.cloud.made() > made.len() as u64 {
                made.push(Instant::now());
            }
            assert!(fleet.cloud.count() <= 1);
        })
        .await;
    let gaps: Vec<_> = made
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert!((8..=16).contains(&gaps.len()), "{gaps:?}");
    assert!(
        gaps.iter().all(|gap| (900..=1600).contains(gap)),
        "{gaps:?}"
    );
    let (first, last) = (gaps[0], gaps[gaps.len() - 1]);
    assert!(last - first > 300, "the gap grows: {gaps:?}");
    let told = fleet.told.lock().expect("not poisoned");
    let cause = "InstanceReplacing: not running in 900s";
    assert!(told.iter().any(|line| line.starts_with(cause)), "{told:?}");
}
