//! The crash matrix: whole lives of small fleets in virtual time, with crashes at any call.
//!
//! A run follows from its seed alone. Users edit, rotate, switch and delete; machines get lost;
//! the API server and the providers refuse, and lose requests and answers; watches lag by up to
//! 30 s; processes die at any call, up to three times in a row; for a while there are two leaders.
//! After every effect on a machine R-08 must hold: no Proxy has two. Each process collects orphans,
//! and what it deletes as one belongs to no live Proxy (G-01). When all is quiet, the state
//! must be the one that the same script leads to without any fault.
//!
//! `PXO_SIMULATION_SEEDS=10000 cargo test -p proxy-operator --lib simulation` runs that many seeds
//! (default 1,000); `PXO_SIMULATION_SEED=42` replays one.

mod fates;
mod process;
mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use controller::ObjectKey;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use self::fates::Fates;
use self::process::Process;
use self::script::{Act, Script};
use super::testing::{Server, virtual_now};
use crate::api::{Mode, Phase, Proxy};
use crate::provider::sim::{Settings, SimProvider, World};
use crate::provider::{Owner, ProviderId};

/// Time in which users act and things go wrong.
const TROUBLE: Duration = Duration::from_secs(20 * 60);

/// Time afterwards in which all must come to rest.
const REST: Duration = Duration::from_secs(4 * 60 * 60);

/// Names of the two providers.
const PROVIDERS: [&str; 2] = ["sim-a", "sim-b"];

/// Everything but the processes.
#[derive(Clone)]
struct Universe {
    server: Server,
    worlds: [World; 2],
    fates: Fates,
}

impl Universe {
    fn new(seed: u64, has_faults: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let is_consistent = rng.random_bool(0.5);
        let settings = Settings {
            boot: Duration::from_secs(1)..Duration::from_secs(30),
            deletion: Duration::from_millis(100)..Duration::from_secs(20),
            hidden_for: Duration::from_secs(if is_consistent { 0 } else { 5 }),
            // Who reads what may be stale has to write down what it is about to ask for.
            write_ahead: !is_consistent || rng.random_bool(0.5),
            seed,
            ..Settings::default()
        };
        let world = || World::beginning_at(settings.clone(), virtual_now());
        Self {
            server: Server::default(),
            worlds: [world(), world()],
            fates: Fates::new(seed, has_faults),
        }
    }

    fn providers(&self) -> impl Iterator<Item = (&'static str, SimProvider)> {
        let worlds = self.worlds.iter().cloned().map(SimProvider::new);
        PROVIDERS.into_iter().zip(worlds)
    }

    fn proxies(&self) -> BTreeMap<ObjectKey, Proxy> {
        let objects = self.server.all("proxies/");
        objects
            .into_iter()
            .map(|object| {
                let proxy: Proxy = serde_json::from_value(object).expect("a Proxy");
                (ObjectKey::of(&proxy), proxy)
            })
            .collect()
    }

    /// Machines of each UID.
    fn machines(&self) -> BTreeMap<String, Vec<String>> {
        let mut machines = BTreeMap::<_, Vec<_>>::new();
        for (name, world) in PROVIDERS.iter().zip(&self.worlds) {
            for (owner, instance) in world.all() {
                let hash = instance
                    .spec_hash
                    .map(|hash| hash.tag())
                    .unwrap_or_default();
                machines
                    .entry(owner.uid)
                    .or_default()
                    .push(format!("{name} {hash} {}", instance.deleting));
            }
        }
        machines
    }

    /// no Proxy has two machines, wherever they are.
    fn check(&self) {
        for (uid, machines) in self.machines() {
            assert!(machines.len() <= 1, "{uid} has two machines: {machines:?}");
        }
    }

    /// G-01: what the collection of orphans is about to delete belongs to no live Proxy, or is not
    /// the instance that its Proxy names.
    fn check_orphan(&self, id: &ProviderId, owner: &Owner) {
        for (key, proxy) in self.proxies() {
            if proxy.metadata.uid.as_deref() != Some(owner.uid.as_str()) {
                continue;
            }
            let recorded = proxy.status.and_then(|status| status.provider_id);
            assert!(
                recorded
                    .as_deref()
                    .is_some_and(|other| other != id.as_str()),
                "{id} of the live Proxy {key} is about to be deleted as an orphan; on record is \
                 {recorded:?}"
            );
        }
    }

    /// All that a user can see, without what follows from times and numbers of tries.
    fn picture(&self) -> BTreeMap<String, String> {
        let mut machines = self.machines();
        let mut picture = BTreeMap::new();
        for (key, proxy) in self.proxies() {
            let uid = proxy.metadata.uid.clone().unwrap_or_default();
            let own = machines.remove(&uid).unwrap_or_default();
            let status = proxy.status.unwrap_or_default();
            let conditions: BTreeSet<_> = status
                .conditions
                .iter()
                .map(|condition| format!("{}={}", condition.type_, condition.status))
                .collect();
            let line = format!(
                "{:?} {:?} finalizers={} {conditions:?} machines={own:?}",
                proxy.spec.mode,
                status.phase,
                proxy.metadata.finalizers.map_or(0, |all| all.len()),
            );
            picture.insert(key.to_string(), line);
        }
        for (uid, orphans) in machines {
            picture.insert(uid, format!("leaked: {orphans:?}"));
        }
        picture
    }
}

/// One life of a fleet; answers with the picture at its end.
async fn live(seed: u64, has_faults: bool) -> BTreeMap<String, String> {
    let universe = Universe::new(seed, has_faults);
    let script = Script::new(seed);
    let began = Instant::now();
    script.set_the_stage(&universe.server);
    let mut processes = vec![Process::start(&universe, seed)];
    let mut starts = seed;
    let mut acts = script.acts().iter().peekable();
    let mut is_quiet = false;
    let mut calm_since = began;
    let mut last_version = 0;
    while began.elapsed() < TROUBLE + REST {
        while let Some((at, act)) = acts.peek() {
            if began.elapsed() < *at {
                break;
            }
            if has_faults || !act.is_fault() {
                act.happen(&universe);
            }
            if has_faults && matches!(act, Act::SecondLeader) && processes.len() < 2 {
                starts += 1;
                processes.push(Process::start(&universe, starts));
            }
            acts.next();
        }
        for process in &mut processes {
            process.step().await;
        }
        universe.check();
        // A process that died is followed by another; a second leader by none.
        processes.retain(|process| !process.is_over());
        if processes.is_empty() {
            starts += 1;
            processes.push(Process::start(&universe, starts));
        }
        if !is_quiet && began.elapsed() >= TROUBLE {
            is_quiet = true;
            universe.fates.be_kind();
            processes.truncate(1);
            script.free_all(&universe.server);
        }
        if universe.server.version() != last_version {
            last_version = universe.server.version();
            calm_since = Instant::now();
        }
        let settled = is_quiet && calm_since.elapsed() > Duration::from_secs(30 * 60);
        if settled && universe.is_at_rest() {
            break;
        }
        // The next thing that happens is at most this far away.
        let next = processes
            .iter()
            .filter_map(Process::next)
            .chain(acts.peek().map(|(at, _)| began + *at))
            .min()
            .unwrap_or_else(|| Instant::now() + Duration::from_secs(1));
        let least = Instant::now() + Duration::from_millis(1);
        tokio::time::sleep_until(next.clamp(least, least + Duration::from_secs(60))).await;
    }
    universe.picture()
}

impl Universe {
    /// Whether every Proxy is where its spec wants it.
    fn is_at_rest(&self) -> bool {
        self.proxies().values().all(|proxy| {
            let phase = proxy.status.as_ref().and_then(|status| status.phase);
            proxy.metadata.deletion_timestamp.is_none()
                && (phase == Some(Phase::Ready) || proxy.spec.mode == Mode::External)
        })
    }
}

/// One seed: with faults all ends as without them.
fn run(seed: u64) -> Result<(), String> {
    let picture = |has_faults| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(live(seed, has_faults))
    };
    let outcome = std::panic::catch_unwind(|| (picture(false), picture(true)));
    match outcome {
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("seed {seed}: {}", text.unwrap_or("panicked")))
        }
        Ok((without, with)) if without != with => Err(format!(
            "seed {seed}: without faults {without:#?}\nwith faults {with:#?}"
        )),
        Ok((without, _)) => match without.values().find(|line| !line.contains("Ready=True")) {
            Some(line) => Err(format!("seed {seed}: even without faults: {line}")),
            None => Ok(()),
        },
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} must be a number")),
    )
}

#[test]
fn r08_no_seed_of_crashes_faults_and_stale_views_leaks_or_doubles_an_instance() {
    if let Some(seed) = number("PXO_SIMULATION_SEED") {
        run(seed).unwrap_or_else(|fault| panic!("{fault}"));
        return;
    }
    let seeds = number("PXO_SIMULATION_SEEDS").unwrap_or(1000);
    let next = Arc::new(std::sync::atomic::AtomicU64::new(1));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let faults: Vec<String> = std::thread::scope(|scope| {
        let worker = || {
            let mut faults = Vec::new();
            loop {
                let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if seed > seeds || faults.len() > 3 {
                    return faults;
                }
                faults.extend(run(seed).err());
            }
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended
            .flat_map(|faults| faults.expect("a worker catches its panics"))
            .collect()
    });
    assert!(
        faults.is_empty(),
        "{} of {seeds} seeds fail:\n{}",
        faults.len(),
        faults.join("\n\n")
    );
}

#[test]
fn a_seed_leads_to_the_same_run_each_time() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime")
    };
    let trace = |seed| {
        runtime().block_on(async {
            let _picture = live(seed, true).await;
            fates::calls_of_this_thread()
        })
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}
