//! SIGKILL at random moments while a fleet is created, changed, hurt and deleted: nothing leaks, nothing stands
//! twice, nothing is stuck.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube_client::core::params::{DeleteParams, ListParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::api::Proxy;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::time::Instant;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::pods::PodMonitor;
use crate::common::world::World;

/// Overrides how many rounds there are.
const ROUNDS_VARIABLE: &str = "PXO_KILL_ROUNDS";
const ROUNDS_EMBEDDED: usize = 20;
const ROUNDS_REAL: usize = 5;
/// Overrides where the random numbers begin, to see a failure again.
const SEED_VARIABLE: &str = "PXO_KILL_SEED";
const SEED: u64 = 0x5eed;
/// Proxies that are there at a time.
const FLEET: usize = 50;
/// Secrets with user data, each shared by as many Proxies.
const SECRETS: usize = 10;
/// Things done between two kills, at most.
const MOST_ACTIONS: usize = 8;
/// An operator lives for less than this: time to start, and to be in the middle of anything.
const LONGEST_LIFE: Duration = Duration::from_millis(1500);
/// How long the whole fleet may take to come to rest once nobody kills the operator any more.
const REST: Duration = Duration::from_secs(180);

fn setting<T: std::str::FromStr>(variable: &str, default: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is {text:?}, no number")),
        Err(_) => default,
    }
}

fn start(world: &World) -> Operator {
    let flags = [
        "--drift-poll",
        "500ms",
        "--backoff-max",
        "2s",
        "--workers",
        "8",
    ];
    Operator::start(&world.operator_kubeconfig(), &flags)
}

/// The fleet as its users want it.
struct Users<'a> {
    world: &'a World,
    random: StdRng,
    wanted: Vec<String>,
    created: usize,
    /// Pods are lost once for each Proxy: a second loss waits for longer and longer (S-10).
    hurt: Vec<String>,
}

impl Users<'_> {
    fn one(&mut self) -> Option<String> {
        if self.wanted.is_empty() {
            return None;
        }
        let n = self.random.random_range(0..self.wanted.len());
        Some(self.wanted[n].clone())
    }

    async fn create(&mut self) {
        let name = format!("p{}", self.created);
        let addition = match self.created % 4 {
            0 => json!({}),
            1 => json!({ "cloudInit": { "inline": "#cloud-config\n" } }),
            _ => {
                let secret = format!("boot-{}", self.created % SECRETS);
                json!({ "cloudInit": { "secretRef": { "name": secret } } })
            }
        };
        self.created += 1;
        fleet::create(self.world, &fleet::managed(&name, &addition)).await;
        self.wanted.push(name);
    }

    async fn delete(&mut self) {
        let Some(name) = self.one() else { return };
        self.wanted.retain(|one| *one != name);
        fleet::delete(self.world, &name).await;
    }

    async fn rotate(&mut self) {
        let name = format!("boot-{}", self.random.random_range(0..SECRETS));
        let text = self.random.random::<u64>().to_string();
        fleet::put_secret(self.world, &name, "user-data", &text).await;
    }

    async fn edit(&mut self) {
        let Some(name) = self.one() else { return };
        let revision = format!("r{}", self.random.random_range(0..1000));
        let patch = json!({ "spec": { "tags": { "revision": revision } } });
        fleet::edit(self.world, &name, &patch).await;
    }

    async fn lose_a_pod(&mut self) {
        let Some(name) = self.one().filter(|name| !self.hurt.contains(name)) else {
            return;
        };
        let Some(proxy) = fleet::get(self.world, &name).await else {
            return;
        };
        let pods: Api<Pod> = self.world.api();
        for pod in fleet::pods_of(self.world, &proxy).await {
            // Gone already is as good.
            drop(pods.delete(&pod.name_any(), &DeleteParams::default()).await);
        }
        self.hurt.push(name);
    }

    /// Does a few things at once, as many users do.
    async fn act(&mut self) {
        for _ in 0..self.random.random_range(1..=MOST_ACTIONS) {
            match self.random.random_range(0..10) {
                0..=2 => self.edit().await,
                3..=5 => self.delete().await,
                6 => self.lose_a_pod().await,
                7 => self.rotate().await,
                _ => {}
            }
            while self.wanted.len() < FLEET {
                self.create().await;
            }
        }
    }

    /// Waits until every Proxy that is wanted runs on the one pod of its own, and nothing else is there.
    async fn at_rest(&self) {
        let proxies: Api<Proxy> = self.world.api();
        eventually(REST, "the fleet comes to rest", || async {
            let list = proxies.list(&ListParams::default()).await;
            let list = list.map_err(|error| error.to_string())?.items;
            let stuck: Vec<_> = list
                .iter()
                .filter(|proxy| !self.wanted.contains(&proxy.name_any()))
                .map(|proxy| format!("{} with {:?}", proxy.name_any(), proxy.finalizers()))
                .collect();
            let late: Vec<_> = list
                .iter()
                .filter(|proxy| !fleet::is_ready(proxy))
                .collect();
            if stuck.is_empty() && late.is_empty() && list.len() == self.wanted.len() {
                return Ok(());
            }
            let late: Vec<_> = late.into_iter().map(fleet::describe).collect();
            Err(format!("still there: {stuck:?}; not ready: {late:#?}"))
        })
        .await;
        let pods = fleet::all_pods(self.world).await;
        assert_eq!(pods.len(), self.wanted.len(), "a pod for each Proxy");
        for name in &self.wanted {
            let proxy = fleet::get(self.world, name).await.expect("it is wanted");
            let own = fleet::pods_of(self.world, &proxy).await;
            let uids: Vec<_> = own.iter().filter_map(ResourceExt::uid).collect();
            let instance = fleet::instance(&proxy).map(str::to_owned);
            assert_eq!(uids, instance.into_iter().collect::<Vec<_>>(), "{name}");
        }
    }

    async fn delete_all(&mut self) {
        for name in std::mem::take(&mut self.wanted) {
            fleet::delete(self.world, &name).await;
        }
    }
}

/// Nothing of the operator's is left: no Proxy with a finalizer, no pod, no Secret of user data.
async fn nothing_is_left(world: &World) {
    let (proxies, secrets): (Api<Proxy>, Api<Secret>) = (world.api(), world.api());
    let all = ListParams::default();
    eventually(REST, "nothing is left", || async {
        let proxies = proxies
            .list(&all)
            .await
            .map_err(|error| error.to_string())?;
        let secrets = secrets
            .list(&all)
            .await
            .map_err(|error| error.to_string())?;
        let own: Vec<_> = secrets
            .iter()
            .map(ResourceExt::name_any)
            .filter(|name| name.starts_with("px-"))
            .collect();
        let pods = fleet::all_pods(world).await.len();
        if proxies.items.is_empty() && own.is_empty() && pods == 0 {
            return Ok(());
        }
        let proxies: Vec<_> = proxies.iter().map(fleet::describe).collect();
        Err(format!(
            "{pods} pods, Secrets {own:?}, Proxies {proxies:#?}"
        ))
    })
    .await;
}

pub(crate) async fn sigkill_at_random_moments_leaks_doubles_and_blocks_nothing(world: &World) {
    let default = match world.embedded_cluster() {
        Some(_) => ROUNDS_EMBEDDED,
        None => ROUNDS_REAL,
    };
    let (rounds, seed) = (
        setting(ROUNDS_VARIABLE, default),
        setting(SEED_VARIABLE, SEED),
    );
    let began = Instant::now();
    let monitor = PodMonitor::start(world).await;
    let mut users = Users {
        world,
        random: StdRng::seed_from_u64(seed),
        wanted: Vec::new(),
        created: 0,
        hurt: Vec::new(),
    };
    for n in 0..SECRETS {
        fleet::put_secret(world, &format!("boot-{n}"), "user-data", "0").await;
    }
    let mut operator = start(world);
    for _ in 0..rounds {
        let life = users.random.random_range(Duration::ZERO..LONGEST_LIFE);
        let death = Instant::now() + life;
        users.act().await;
        tokio::time::sleep_until(death).await;
        operator.kill().await;
        operator = start(world);
        monitor.assert_never_two();
    }
    let killed = began.elapsed();
    users.at_rest().await;
    let rested = began.elapsed();
    users.delete_all().await;
    // The last one dies amid the deletions, too.
    tokio::time::sleep(users.random.random_range(Duration::ZERO..LONGEST_LIFE)).await;
    operator.kill().await;
    let _operator = start(world);
    nothing_is_left(world).await;
    monitor.assert_never_two();
    crate::common::say(&format!(
        "{} kills from seed {seed:#x} in {killed:.1?}, at rest after {rested:.1?}, all deleted after {:.1?}: \
         {} Proxies, {} pods; 0 leaked, 0 twice, 0 stuck",
        rounds + 1,
        began.elapsed(),
        users.created,
        monitor.made(),
    ));
}
