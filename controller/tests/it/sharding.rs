//! Several members of a ring over one embedded cluster, on paused time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::sharding::{ShardBy, Sharding, ShardingHandle, ShardingOptions};
use controller::{Action, Context, Controller, Informer, Lister, Manager, ObjectKey, Reconciler};
use controller::{ControllerHandle, ControllerOptions, ManagerOptions, Outcome, ReconcileError};
use devcluster::DevCluster;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::{DeleteParams, PostParams};
use kube_client::{Api, Client};
use kube_core::ObjectMeta;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{ms, pass, unique};

const OBJECTS: usize = 24;

/// What runs where, over all members; a key that runs in two is a failure.
#[derive(Clone, Default)]
struct Board(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    running: BTreeMap<ObjectKey, String>,
    done: BTreeMap<ObjectKey, BTreeSet<String>>,
    overlaps: Vec<String>,
}

impl Board {
    /// Who has run what since the last look.
    fn take(&self) -> BTreeMap<ObjectKey, BTreeSet<String>> {
        let mut entries = self.0.lock().unwrap();
        assert_eq!(entries.overlaps, Vec::<String>::new());
        std::mem::take(&mut entries.done)
    }

    /// All keys are run by exactly one of `members`, and each of those runs some.
    fn expect(&self, members: &[&str]) {
        let done = self.take();
        assert_eq!(done.len(), OBJECTS, "some key was not run");
        let mut seen = BTreeSet::new();
        for (key, by) in &done {
            assert_eq!(by.len(), 1, "{key} was run by {by:?}");
            seen.extend(by.iter().map(String::as_str));
        }
        assert_eq!(seen, members.iter().copied().collect());
    }
}

/// On the board for as long as it runs, whichever way it ends.
struct OnBoard(Board, ObjectKey);

impl Drop for OnBoard {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().running.remove(&self.1);
    }
}

struct Worker {
    name: String,
    board: Board,
    takes: Duration,
    answer: Action,
}

impl Reconciler for Worker {
    async fn reconcile(&self, key: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
        {
            let mut entries = self.board.0.lock().unwrap();
            let other = entries.running.insert(key.clone(), self.name.clone());
            if let Some(other) = other {
                let overlap = format!("{key} in {other} and {}", self.name);
                entries.overlaps.push(overlap);
            }
        }
        let on_board = OnBoard(self.board.clone(), key.clone());
        tokio::time::sleep(self.takes).await;
        let mut entries = self.board.0.lock().unwrap();
        let by = entries.done.entry(key.clone()).or_default();
        by.insert(self.name.clone());
        drop(entries);
        drop(on_board);
        Ok(self.answer)
    }
}

/// One process of the ring.
struct Member {
    ring: ShardingHandle,
    handle: ControllerHandle,
    cut: Arc<AtomicBool>,
    stop: CancellationToken,
    running: JoinSet<()>,
}

impl Member {
    fn start(cluster: &DevCluster, name: &str, board: &Board, takes: Duration) -> Self {
        Self::placing(cluster, name, board, takes, ShardBy::uid)
    }

    /// As [`Self::start`], with other places for the keys than the UIDs give.
    fn placing(
        cluster: &DevCluster,
        name: &str,
        board: &Board,
        takes: Duration,
        by: impl FnOnce(Lister<ConfigMap>) -> ShardBy,
    ) -> Self {
        let worker = Worker {
            name: name.to_owned(),
            board: board.clone(),
            takes,
            answer: Action::RequeueAfter(ms(100)),
        };
        Self::working(cluster, worker, by)
    }

    fn working(
        cluster: &DevCluster,
        worker: Worker,
        by: impl FnOnce(Lister<ConfigMap>) -> ShardBy,
    ) -> Self {
        let name = worker.name.clone();
        let cut = Arc::new(AtomicBool::new(false));
        let client = {
            let (direct, cut) = (cluster.client(), Arc::clone(&cut));
            let service = tower::service_fn(move |request| {
                let (direct, cut) = (direct.clone(), Arc::clone(&cut));
                async move {
                    if cut.load(Ordering::Relaxed) {
                        std::future::pending::<()>().await;
                    }
                    direct.send(request).await
                }
            });
            Client::new(service, "default")
        };
        let configs: Informer<ConfigMap> = Informer::new(
            client.clone(),
            controller::InformerOptions {
                namespace: Some("default".to_owned()),
                ..Default::default()
            },
        )
        .unwrap();
        let options = ShardingOptions {
            identity: name.clone(),
            ..ShardingOptions::new("default", "ring")
        };
        let sharding = Sharding::over(client, options, by(configs.lister())).unwrap();
        let ring = sharding.handle();
        let controller = Controller::builder(unique(&name), worker)
            .for_object(&configs)
            .sharded(sharding)
            .options(ControllerOptions {
                workers: OBJECTS,
                ..ControllerOptions::default()
            })
            .build()
            .unwrap();
        let handle = controller.handle();
        // Runs may take longer than the default grace time.
        let manager = Manager::new(ManagerOptions {
            grace: Duration::MAX,
            ..ManagerOptions::default()
        })
        .add_informer(&configs)
        .add_controller(controller);
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        let token = stop.clone();
        running.spawn(async move { manager.run(token).await.unwrap() });
        Self {
            ring,
            handle,
            cut,
            stop,
            running,
        }
    }

    async fn leave(mut self) {
        self.stop.cancel();
        self.running.join_next().await.unwrap().unwrap();
    }
}

async fn cluster() -> DevCluster {
    let cluster = DevCluster::builder().start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    for n in 0..OBJECTS {
        create(&api, &n.to_string()).await;
    }
    cluster
}

async fn create(api: &Api<ConfigMap>, name: &str) {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let config = ConfigMap {
        metadata,
        ..ConfigMap::default()
    };
    api.create(&PostParams::default(), &config).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn w74_keys_move_with_the_ring_and_never_run_in_two_members() {
    let (cluster, board) = (cluster().await, Board::default());
    let a = Member::start(&cluster, "a", &board, ms(300));
    pass(ms(10_000)).await;
    board.expect(&["a"]);

    let b = Member::start(&cluster, "b", &board, ms(300));
    pass(ms(10_000)).await;
    board.take();
    pass(ms(5000)).await;
    board.expect(&["a", "b"]);
    assert_eq!(a.ring.members(), ["a", "b"]);
    assert!(a.ring.is_agreed() && b.ring.is_agreed());

    a.leave().await;
    // Two retry periods after it has left, everything runs at the other one.
    pass(ms(5000)).await;
    board.take();
    pass(ms(5000)).await;
    board.expect(&["b"]);

    // Three at once, and one of them is killed.
    let mut c = Member::start(&cluster, "c", &board, ms(300));
    let d = Member::start(&cluster, "d", &board, ms(300));
    pass(ms(15_000)).await;
    board.take();
    pass(ms(5000)).await;
    board.expect(&["b", "c", "d"]);
    c.running.shutdown().await;
    pass(ms(25_000)).await;
    board.take();
    pass(ms(5000)).await;
    board.expect(&["b", "d"]);
    b.leave().await;
    d.leave().await;
}

#[tokio::test(start_paused = true)]
async fn w74_a_member_that_is_cut_off_drops_its_runs_before_others_begin_them() {
    let (cluster, board) = (cluster().await, Board::default());
    // Each run takes longer than the others wait for a member that is silent.
    let a = Member::start(&cluster, "a", &board, ms(60_000));
    pass(ms(1000)).await;
    let b = Member::start(&cluster, "b", &board, ms(60_000));
    pass(ms(200_000)).await;
    board.take();
    pass(ms(130_000)).await;
    board.expect(&["a", "b"]);

    a.cut.store(true, Ordering::Relaxed);
    pass(ms(200_000)).await;
    board.take();
    pass(ms(130_000)).await;
    board.expect(&["b"]);
    assert_eq!(b.ring.members(), ["b"]);

    a.cut.store(false, Ordering::Relaxed);
    pass(ms(300_000)).await;
    board.take();
    pass(ms(130_000)).await;
    board.expect(&["a", "b"]);
    a.leave().await;
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn w74_a_deletion_is_run_by_the_member_that_had_the_object() {
    let (cluster, board) = (cluster().await, Board::default());
    let members = ["a", "b", "c"].map(|name| Member::start(&cluster, name, &board, ms(10)));
    pass(ms(30_000)).await;
    let before = board.take();
    pass(ms(1000)).await;
    let before = {
        drop(before);
        board.take()
    };
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    api.delete("7", &DeleteParams::default()).await.unwrap();
    let key = ObjectKey::namespaced("default", "7");
    pass(ms(5)).await;
    board.take();
    pass(ms(500)).await;
    let after = board.take();
    assert_eq!(after.get(&key), before.get(&key));
    for member in members {
        member.leave().await;
    }
}

#[tokio::test(start_paused = true)]
async fn w74_a_panic_of_what_places_keys_is_a_failed_run_of_the_key() {
    let (cluster, board) = (cluster().await, Board::default());
    let works = Arc::new(AtomicBool::new(false));
    let placing = {
        let works = Arc::clone(&works);
        move |configs| {
            ShardBy::object(configs, move |config: &ConfigMap| {
                let name = config.metadata.name.clone().unwrap_or_default();
                assert!(name != "7" || works.load(Ordering::Relaxed), "no place");
                name
            })
        }
    };
    let member = Member::placing(&cluster, "a", &board, ms(10), placing);
    let key = ObjectKey::namespaced("default", "7");
    pass(ms(10_000)).await;
    let done = board.take();
    assert_eq!(done.len(), OBJECTS - 1, "the others run");
    assert!(!done.contains_key(&key));
    let last = member.handle.history(&key).unwrap().runs.pop().unwrap();
    let Outcome::Error(error) = &last.outcome else {
        panic!("{last:?}")
    };
    assert!(error.contains("no place"), "{error}");
    assert!(last.attempt > 1, "it is tried again");
    works.store(true, Ordering::Relaxed);
    pass(ms(60_000)).await;
    assert!(
        board.take().contains_key(&key),
        "it runs once it has a place"
    );
    member.leave().await;
}

#[tokio::test(start_paused = true)]
async fn w74_a_panic_of_what_places_keys_after_a_run_costs_nothing_of_it() {
    let (cluster, board) = (cluster().await, Board::default());
    let key = ObjectKey::namespaced("default", "7");
    let panics = Arc::new(AtomicUsize::new(0));
    let placing = {
        let (key, board, panics) = (key.clone(), board.clone(), Arc::clone(&panics));
        move |configs| {
            ShardBy::object(configs, move |config: &ConfigMap| {
                let name = config.metadata.name.clone().unwrap_or_default();
                if name == "7" && board.0.lock().unwrap().done.contains_key(&key) {
                    panics.fetch_add(1, Ordering::Relaxed);
                    panic!("no place any more");
                }
                name
            })
        }
    };
    let worker = Worker {
        name: "a".to_owned(),
        board: board.clone(),
        takes: ms(10),
        answer: Action::Done,
    };
    let member = Member::working(&cluster, worker, placing);
    pass(ms(10_000)).await;
    assert_eq!(panics.load(Ordering::Relaxed), 1, "after the run");
    assert_eq!(board.take().len(), OBJECTS, "all have run");
    let runs = member.handle.history(&key).unwrap().runs;
    assert_eq!((runs.len(), &runs[0].outcome), (1, &Outcome::Done));
    assert_eq!(member.handle.metrics().panics, 0);
    // The worker takes further keys, and this one too.
    member.handle.trigger(key.clone());
    pass(ms(1000)).await;
    assert!(board.take().contains_key(&key));
    member.leave().await;
}
