//! A controller through half an hour of faults, on paused time over the embedded cluster.
//!
//! `CONTROLLER_SOAK_MINUTES=600 CONTROLLER_SOAK_SEED=7 cargo test -p controller --test soak` takes
//! longer, or another course.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::{
    Action, Context, Controller, ControllerHandle, ControllerOptions, Informer, InformerOptions,
    Lister, Manager, ObjectKey, ReconcileError, Reconciler,
};
use devcluster::DevCluster;
use devcluster::faults::{self, Cut, FaultGuard, Rule, WatchAction};
use informer::compare_versions;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Api;
use kube_client::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_core::ObjectMeta;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const NAMES: usize = 40;
const SECOND: Duration = Duration::from_secs(1);

/// How much the process may grow between the second look and the last one: what the cluster keeps
/// of its own past (its log of requests is bounded) and what allocators hold back.
const MAY_GROW: u64 = 32 << 20;

/// The version each key was last reconciled at; none once it was reconciled as gone.
type Seen = Arc<Mutex<BTreeMap<ObjectKey, Option<String>>>>;

struct Look {
    configs: Lister<ConfigMap>,
    api: Api<ConfigMap>,
    seen: Seen,
    writes: Arc<Mutex<Writes>>,
    random: Mutex<SmallRng>,
}

/// What runs have written, and what later ones found in the cache.
#[derive(Default)]
struct Writes {
    /// The version of each key's last write.
    last: BTreeMap<ObjectKey, String>,
    /// Runs that came after a write of their key and were not told that the cache is stale.
    checked: usize,
    /// Those of them whose cache stood before the write.
    early: Vec<String>,
}

impl Look {
    /// A run begins: its cache shows the last write of its key, or it was told of the lag.
    fn compare(&self, key: &ObjectKey, ctx: &Context) {
        let cached = self.configs.resource_version();
        let mut writes = self.writes.lock().unwrap();
        let (Some(last), None) = (writes.last.get(key), ctx.stale()) else {
            return;
        };
        if compare_versions(&cached, last).is_none_or(|order| order.is_lt()) {
            let early = format!("{key}: the cache is at {cached}, the last write at {last}");
            writes.early.push(early);
        }
        writes.checked += 1;
    }

    /// Writes to the object of `key`, if it is there.
    async fn write(&self, key: &ObjectKey, ctx: &Context) -> Result<(), ReconcileError> {
        let patch = Patch::Merge(json!({ "data": { "looked": ctx.id().to_string() } }));
        let params = PatchParams::default();
        let answer = match self.api.patch(key.name(), &params, &patch).await {
            Err(kube_client::Error::Api(status)) if status.is_not_found() => return Ok(()),
            answer => answer?,
        };
        ctx.wrote(&answer);
        let version = answer.metadata.resource_version.unwrap_or_default();
        self.writes
            .lock()
            .unwrap()
            .last
            .insert(key.clone(), version);
        Ok(())
    }
}

impl Reconciler for Look {
    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Result<Action, ReconcileError> {
        self.compare(key, ctx);
        let object = self.configs.get(key);
        let version = object.and_then(|object| object.metadata.resource_version.clone());
        let (takes, luck) = {
            let mut random = self.random.lock().unwrap();
            (random.random_range(0..200), random.random_range(0..20))
        };
        tokio::time::sleep(Duration::from_millis(takes)).await;
        match luck {
            0 => Err(ReconcileError::retry("out of luck")),
            1 => panic!("very much out of luck"),
            2 => Ok(Action::Requeue),
            3..=7 => {
                self.write(key, ctx).await?;
                // At once: the cache has little time to see it.
                Ok(Action::RequeueAfter(Duration::ZERO))
            }
            _ => {
                self.seen.lock().unwrap().insert(key.clone(), version);
                Ok(Action::Done)
            }
        }
    }
}

/// The cluster, and the course of things.
struct World {
    cluster: DevCluster,
    api: Api<ConfigMap>,
    random: SmallRng,
    /// Faults under way with the moments at which they are over.
    faults: VecDeque<(Instant, FaultGuard)>,
}

impl World {
    /// One change of a random object; one that the server refuses did not take place.
    async fn change(&mut self) {
        let name = self.random.random_range(0..NAMES).to_string();
        let kind = self.random.random_range(0..10);
        let text = self.random.random::<u64>().to_string();
        let patch = Patch::Merge(json!({ "data": { "text": text } }));
        match kind {
            0 | 1 => drop(self.api.delete(&name, &DeleteParams::default()).await),
            2..=4 => {
                let metadata = ObjectMeta {
                    name: Some(name),
                    ..ObjectMeta::default()
                };
                let config = ConfigMap {
                    metadata,
                    ..ConfigMap::default()
                };
                drop(self.api.create(&PostParams::default(), &config).await);
            }
            _ => drop(self.api.patch(&name, &PatchParams::default(), &patch).await),
        }
    }

    /// One thing goes wrong, for up to half a minute.
    async fn fault(&mut self) {
        let watch = |action: WatchAction| Rule::new(action).verb("watch");
        let rule = match self.random.random_range(0..9) {
            0 => {
                self.cluster.trim_history();
                watch(WatchAction::cut(Cut::Clean)).at_most(1)
            }
            1 => {
                self.cluster.restart().await.unwrap();
                return;
            }
            2 => {
                self.cluster.take_down().await;
                let outage = self.random.random_range(1..20);
                tokio::time::sleep(SECOND * outage).await;
                self.cluster.restart().await.unwrap();
                return;
            }
            3 => {
                let throttled = faults::Action::status(429, "TooManyRequests").retry_after(2);
                Rule::new(throttled).verb("list").at_most(3)
            }
            4 => {
                let throttled = faults::Action::status(429, "TooManyRequests").retry_after(1);
                Rule::new(throttled).verb("watch").at_most(3)
            }
            5 => watch(WatchAction::cut(Cut::Reset)),
            6 => watch(WatchAction::Delay(Duration::from_millis(700))),
            7 => watch(WatchAction::Error(faults::Action::status(410, "Expired"))).at_most(2),
            _ => Rule::new(faults::Action::Slow(400)).verb("watch"),
        };
        let over = Instant::now() + SECOND * self.random.random_range(1..30);
        let guard = self.cluster.faults().add(rule);
        self.faults.push_back((over, guard));
    }

    async fn minutes(&mut self, minutes: u64) {
        let end = Instant::now() + SECOND * 60 * u32::try_from(minutes).unwrap();
        while Instant::now() < end {
            let pause = self.random.random_range(0..1500);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.change().await;
            if self.random.random_range(0..20) == 0 {
                self.fault().await;
            }
            self.faults.retain(|(over, _)| Instant::now() < *over);
        }
        self.faults.clear();
    }
}

struct Watched {
    configs: Informer<ConfigMap>,
    handle: ControllerHandle,
    seen: Seen,
    writes: Arc<Mutex<Writes>>,
}

impl Watched {
    /// Waits until the cache is what the server has and every key was reconciled at that; says
    /// what differs if that does not come to be.
    async fn settle(&self, world: &World) {
        let deadline = Instant::now() + SECOND * 300;
        loop {
            let difference = self.difference(world).await;
            if difference.is_empty() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "still different: {difference:#?}"
            );
            tokio::time::sleep(SECOND).await;
        }
    }

    async fn difference(&self, world: &World) -> Vec<String> {
        let listed = world.api.list(&ListParams::default()).await.unwrap();
        let version = |config: &ConfigMap| config.metadata.resource_version.clone();
        let server: BTreeMap<_, _> = listed
            .items
            .iter()
            .map(|config| (ObjectKey::of(config), version(config)))
            .collect();
        let cached: BTreeMap<_, _> = self
            .configs
            .lister()
            .list()
            .iter()
            .map(|config| (ObjectKey::of(&**config), version(config)))
            .collect();
        let mut difference = Vec::new();
        for key in server.keys().chain(cached.keys()) {
            if server.get(key) != cached.get(key) {
                difference.push(format!(
                    "{key}: {:?} is not {:?}",
                    cached.get(key),
                    server.get(key)
                ));
            }
        }
        for (key, seen) in &*self.seen.lock().unwrap() {
            let now = server.get(key).cloned().flatten();
            if *seen != now {
                difference.push(format!("{key}: reconciled at {seen:?}, is at {now:?}"));
            }
        }
        let unseen = server.len() - self.known(&server);
        if unseen > 0 {
            difference.push(format!("{unseen} were never reconciled"));
        }
        let queue = self.handle.queue();
        if (queue.ready, queue.running, queue.delayed, queue.failing) != (0, 0, 0, 0) {
            difference.push(format!("the queue holds {queue:?}"));
        }
        let unseen = self.handle.unseen_writes();
        if unseen > 0 {
            difference.push(format!("{unseen} keys have writes that are not shown"));
        }
        for (handler, waiting) in self.configs.queue_lengths() {
            if waiting > 0 {
                difference.push(format!("{waiting} events wait for {handler}"));
            }
        }
        difference
    }

    fn known(&self, server: &BTreeMap<ObjectKey, Option<String>>) -> usize {
        let seen = self.seen.lock().unwrap();
        server.keys().filter(|key| seen.contains_key(key)).count()
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn from_env(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a whole number"))
}

#[tokio::test(start_paused = true)]
async fn k9_half_an_hour_of_faults_leaves_cache_reconciles_tasks_and_memory_right() {
    let minutes = from_env("CONTROLLER_SOAK_MINUTES", 30);
    let seed = from_env("CONTROLLER_SOAK_SEED", 1);
    // Panics of the reconciler are part of the course; their text would fill the output.
    std::panic::set_hook(Box::new(|_| {}));
    let cluster = DevCluster::builder().start().await.unwrap();
    let options = InformerOptions {
        namespace: Some("default".to_owned()),
        ..InformerOptions::default()
    };
    let configs = Informer::new(cluster.client(), options).unwrap();
    let seen = Seen::default();
    let writes = Arc::<Mutex<Writes>>::default();
    let look = Look {
        configs: configs.lister(),
        api: Api::namespaced(cluster.client(), "default"),
        seen: Arc::clone(&seen),
        writes: Arc::clone(&writes),
        random: Mutex::new(SmallRng::seed_from_u64(seed)),
    };
    let controller = Controller::builder("soak", look)
        .for_object(&configs)
        .options(ControllerOptions {
            workers: 4,
            ..ControllerOptions::default()
        })
        .build()
        .unwrap();
    let watched = Watched {
        configs: configs.clone(),
        handle: controller.handle(),
        seen,
        writes,
    };
    let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
    let manager = Manager::default()
        .add_informer(&configs)
        .add_controller(controller);
    running.spawn(manager.run(stop.clone()));

    let mut world = World {
        api: Api::namespaced(cluster.client(), "default"),
        cluster,
        random: SmallRng::seed_from_u64(seed + 1),
        faults: VecDeque::new(),
    };
    let tokio = tokio::runtime::Handle::current();
    let mut sizes = Vec::new();
    for _ in 0..minutes.div_ceil(5) {
        world.minutes(5).await;
        watched.settle(&world).await;
        sizes.push((tokio.metrics().num_alive_tasks(), resident()));
        assert!(running.try_join_next().is_none(), "the manager ended");
    }
    let metrics = watched.handle.metrics();
    assert!(metrics.panics > 0 && metrics.errors > metrics.panics && metrics.requeue > 0);
    {
        let writes = watched.writes.lock().unwrap();
        assert!(writes.early.is_empty(), "{:#?}", writes.early);
        assert!(writes.checked > 100, "{} runs", writes.checked);
    }
    assert!(metrics.stale_skips > 100, "{} rests", metrics.stale_skips);
    let stats = watched.configs.stats();
    assert!(
        stats.lists > 3 && stats.watches > 10 && stats.errors > 3,
        "{stats:?}"
    );
    if let [_, (tasks, memory), .., (tasks_last, memory_last)] = sizes[..] {
        // A connection more or less, and the cluster's own.
        assert!(tasks_last <= tasks + 4, "tasks: {sizes:?}");
        assert!(memory_last <= memory + MAY_GROW, "memory: {sizes:?}");
    }
    stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
    world.cluster.shutdown().await;
}
