//! Elections of processes that are killed and stopped, on a real kube-apiserver.
//!
//! `PXO_ELECTION_ROUNDS` sets how many leaders fall (default 5).

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::core::WatchEvent;
use kube_client::core::params::{PostParams, WatchParams};
use kube_client::{Api, Client};
use realcluster::{Options, RealCluster};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::contender::{Contender, LEASE, NAMESPACE, RETRY, client};

/// Beyond what the rules allow: processes start, calls take time, the machine is busy.
const SLACK: Duration = Duration::from_secs(20);

/// One accepted count.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Count {
    holder: String,
    term: u32,
    count: u32,
    at: Instant,
}

/// Watches the counter: every write that the server took, in its order.
struct Tally {
    counts: Arc<Mutex<Vec<Count>>>,
    _watch: JoinSet<()>,
}

impl Tally {
    /// Makes the counter and watches it.
    async fn of(client: &Client, name: &str) -> Self {
        let configs: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let mut counter = ConfigMap::default();
        counter.metadata.name = Some(name.to_owned());
        let made = configs.create(&PostParams::default(), &counter).await;
        let version = made.expect("a counter").metadata.resource_version;
        let counts = Arc::<Mutex<Vec<Count>>>::default();
        let (tally, name) = (Arc::clone(&counts), name.to_owned());
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            let mut version = version.expect("the server sets it");
            let params = WatchParams::default().fields(&format!("metadata.name={name}"));
            loop {
                let Ok(events) = configs.watch(&params, &version).await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let mut events = std::pin::pin!(events);
                while let Some(Ok(event)) = events.next().await {
                    let WatchEvent::Modified(counter) = event else {
                        continue;
                    };
                    version = counter
                        .metadata
                        .resource_version
                        .expect("the server sets it");
                    let data = counter.data.unwrap_or_default();
                    let number = |key: &str| data[key].parse().expect("a number");
                    tally.lock().unwrap().push(Count {
                        holder: data["holder"].clone(),
                        term: number("term"),
                        count: number("count"),
                        at: Instant::now(),
                    });
                }
            }
        });
        Self {
            counts,
            _watch: watch,
        }
    }

    fn last(&self) -> Option<Count> {
        self.counts.lock().unwrap().last().cloned()
    }

    /// Waits for a count that `fits`, and for some more by the same holder.
    async fn until(&self, what: &str, fits: impl Fn(&Count) -> bool) -> Count {
        let limit = Instant::now() + LEASE + SLACK;
        let mut first = None;
        loop {
            if let Some(last) = self.last().filter(|last| fits(last)) {
                let first: &Count = first.get_or_insert(last.clone());
                if last.holder == first.holder && last.count >= first.count + 3 {
                    return first.clone();
                }
                if last.holder != first.holder {
                    panic!("{what}: {last:?} follows {first:?} and nobody fell");
                }
            }
            assert!(Instant::now() < limit, "{what}: last is {:?}", self.last());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// No count of an older term after one of a newer, none lost and none made twice, one holder for
    /// each term.
    fn check(&self) -> usize {
        let counts = self.counts.lock().unwrap();
        for pair in counts.windows(2) {
            let [before, after] = pair else {
                unreachable!("windows of two")
            };
            assert!(after.term >= before.term, "{after:?} after {before:?}");
            assert_eq!(after.count, before.count + 1, "{after:?} after {before:?}");
            let same_term = after.term == before.term;
            assert_eq!(
                same_term,
                after.holder == before.holder,
                "{after:?} after {before:?}"
            );
        }
        counts.len()
    }
}

fn rounds() -> usize {
    let rounds = std::env::var("PXO_ELECTION_ROUNDS");
    rounds.map_or(5, |text| text.parse().expect("a number of rounds"))
}

/// Times are measured here, so one at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn cluster() -> Option<RealCluster> {
    let cluster = RealCluster::start_if_built(&Options::default()).await;
    let cluster = cluster.expect("the real API server starts");
    if cluster.is_none() {
        skipped();
    }
    cluster
}

#[expect(clippy::print_stderr, reason = "a test says why it tested nothing")]
fn skipped() {
    let path = RealCluster::path();
    eprintln!("skipped: no real API server at {}", path.display());
}

#[expect(clippy::print_stderr, reason = "figures of a long run")]
fn tell(text: &str) {
    eprintln!("{text}");
}

fn percentile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of a short list"
    )]
    let index = ((times.len() - 1) as f64 * share).round() as usize;
    times[index]
}

#[tokio::test(flavor = "multi_thread")]
async fn c45_leaders_that_are_killed_or_stand_still_are_followed_and_never_write_after_it() {
    let _turn = TURN.lock().await;
    let Some(cluster) = cluster().await else {
        return;
    };
    let kubeconfig = cluster.kubeconfig().to_owned();
    let client = client(&kubeconfig).await;
    let lease = "three-processes";
    let tally = Tally::of(&client, lease).await;
    let mut born = 0;
    let mut birth = || {
        born += 1;
        Contender::start(&kubeconfig, lease, &format!("ours-{born}"))
    };
    let mut contenders: Vec<_> = (0..3).map(|_| birth()).collect();
    let mut take_overs = Vec::new();
    for round in 0..rounds() {
        let leader = tally.until("somebody leads", |_| true).await;
        let index = contenders
            .iter()
            .position(|one| one.identity == leader.holder)
            .expect("the leader is one of ours");
        let fallen = Instant::now();
        if round % 2 == 0 {
            let mut killed = contenders.swap_remove(index);
            killed.signal("KILL").await;
            assert_eq!(killed.ended(SLACK).await, None);
            let next = tally
                .until("the next leads", |one| one.holder != leader.holder)
                .await;
            take_overs.push(next.at - fallen);
            contenders.push(birth());
        } else {
            contenders[index].signal("STOP").await;
            let next = tally
                .until("the next leads", |one| one.holder != leader.holder)
                .await;
            take_overs.push(next.at - fallen);
            // Back on its feet it finds that its term is over, and ends with an error.
            contenders[index].signal("CONT").await;
            let mut woken = contenders.swap_remove(index);
            assert_eq!(woken.ended(SLACK).await, Some(1));
            contenders.push(birth());
        }
        tally.check();
    }
    let counts = tally.check();
    let (median, worst) = (
        percentile(&mut take_overs, 0.5),
        percentile(&mut take_overs, 1.0),
    );
    tell(&format!(
        "{counts} counts; take-over median {median:?}, longest {worst:?}"
    ));
    // A renewal that was seen late, the lease, a try; then processes share a busy machine.
    let bound = LEASE + RETRY.mul_f64(2.2) * 2;
    assert!(
        median <= bound + Duration::from_secs(2),
        "median {median:?}"
    );
    assert!(worst <= bound + SLACK, "longest {worst:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c50_client_gos_elector_and_ours_honour_each_other_on_one_lease() {
    let _turn = TURN.lock().await;
    let Some(cluster) = cluster().await else {
        return;
    };
    let kubeconfig = cluster.kubeconfig().to_owned();
    let client = client(&kubeconfig).await;
    let lease = "two-kinds";
    let tally = Tally::of(&client, lease).await;
    let mut born = 0;
    let mut birth = |ours: bool| {
        born += 1;
        if ours {
            Contender::start(&kubeconfig, lease, &format!("ours-{born}"))
        } else {
            let identity = format!("client-go-{born}");
            let binary = RealCluster::path();
            Contender::start_client_gos(Path::new(&binary), &kubeconfig, lease, &identity)
        }
    };
    let mut leader = birth(true);
    tally.until("ours leads", |_| true).await;
    for round in 0..rounds().max(4) {
        let ours = leader.identity.starts_with("ours");
        let standby = birth(!ours);
        // A standby that heeds the Lease stays one, for longer than a lease.
        tokio::time::sleep(LEASE + RETRY.mul_f64(2.2)).await;
        let last = tally.last().expect("somebody counts");
        assert_eq!(last.holder, leader.identity, "round {round}");
        // Every other round the Lease is given back, else it expires.
        let (signal, code) = if round % 4 < 2 {
            ("TERM", Some(0))
        } else {
            ("KILL", None)
        };
        let fallen = Instant::now();
        leader.signal(signal).await;
        assert_eq!(leader.ended(SLACK).await, code, "round {round}");
        let next = tally
            .until("the other kind leads", |one| one.holder != leader.identity)
            .await;
        assert_eq!(next.holder, standby.identity, "round {round}");
        let took = next.at - fallen;
        let bound = if code == Some(0) {
            Duration::ZERO
        } else {
            LEASE
        };
        assert!(
            took <= bound + RETRY.mul_f64(4.4) + SLACK,
            "round {round}: {took:?}"
        );
        leader = standby;
        tally.check();
    }
    tally.check();
}
