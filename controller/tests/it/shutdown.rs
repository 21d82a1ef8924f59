//! SIGTERM in the middle of a hundred reconciles, in a process of its own.

use std::process::Stdio;
use std::time::Duration;

use controller::election::{ElectionOptions, Elector};
use controller::{
    Action, Context, Controller, ControllerOptions, Informer, InformerOptions, Manager,
    ManagerOptions, ObjectKey, ReconcileError, Reconciler, Signals,
};
use devcluster::DevCluster;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube_client::Api;
use kube_client::core::params::PostParams;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::contender::client;

/// Set in the child: the kubeconfig.
const CHILD: &str = "CONTROLLER_TEST_SHUTDOWN";
const RECONCILES: usize = 100;
const GRACE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs until it is cancelled and then for up to 2 s more.
struct Slow;

impl Reconciler for Slow {
    #[expect(clippy::print_stderr, reason = "how the child talks to the test")]
    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Result<Action, ReconcileError> {
        if !key.name().starts_with("slow-") {
            return Ok(Action::Done);
        }
        eprintln!("begin {}", key.name());
        ctx.cancelled().await;
        let number: u64 = key.name()["slow-".len()..].parse()?;
        tokio::time::sleep(Duration::from_millis(20 * number)).await;
        eprintln!("end {} {}", key.name(), Timestamp::now());
        Ok(Action::Done)
    }
}

/// Nothing by itself; the other test starts it in a process of its own.
#[test]
fn the_childs_side() {
    let Ok(kubeconfig) = std::env::var(CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let result = runtime.block_on(async {
        let signals = Signals::install().unwrap();
        let client = client(kubeconfig.as_ref()).await;
        let configs: Informer<ConfigMap> =
            Informer::new(client.clone(), InformerOptions::default()).unwrap();
        let controller = Controller::builder("slow", Slow)
            .for_object(&configs)
            .options(ControllerOptions {
                workers: RECONCILES,
                ..ControllerOptions::default()
            })
            .build()
            .unwrap();
        let elector = Elector::new(client, ElectionOptions::new("default", "slow")).unwrap();
        Manager::new(ManagerOptions {
            grace: GRACE,
            ..ManagerOptions::default()
        })
        .with_election(elector)
        .add_informer(&configs)
        .add_controller(controller)
        .run(signals.stop())
        .await
    });
    // The harness would turn a failure into code 101.
    std::process::exit(i32::from(result.is_err()));
}

#[tokio::test(flavor = "multi_thread")]
async fn k6_sigterm_amid_a_hundred_reconciles_lets_all_end_then_gives_the_lease_back_and_exits_0() {
    let cluster = DevCluster::builder().start().await.expect("a cluster");
    let kubeconfig = std::env::temp_dir().join(format!("shutdown-{}", controller::Uuid::new_v4()));
    cluster.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    let configs: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    for n in 0..RECONCILES {
        let mut config = ConfigMap::default();
        config.metadata.name = Some(format!("slow-{n}"));
        let made = configs.create(&PostParams::default(), &config).await;
        made.expect("a ConfigMap");
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shutdown::the_childs_side", "--nocapture"])
        .env(CHILD, &kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let run = async {
        let mut running = 0;
        while running < RECONCILES {
            let line = lines.next_line().await.unwrap().expect("it runs");
            running += usize::from(line.starts_with("begin "));
        }
        let pid = child.id().expect("it runs").to_string();
        let sent = Command::new("kill")
            .args(["-s", "TERM", &pid])
            .status()
            .await;
        assert!(sent.unwrap().success());
        let stopped = tokio::time::Instant::now();
        let mut ends = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with("end ") {
                let time = line.rsplit(' ').next().expect("a time");
                ends.push(time.parse::<Timestamp>().unwrap());
            }
        }
        let code = child.wait().await.unwrap().code();
        (ends, code, stopped.elapsed())
    };
    let (ends, code, took) = tokio::time::timeout(PATIENCE, run).await.expect("in time");
    assert_eq!(code, Some(0));
    assert!(took < GRACE, "{took:?}");
    assert_eq!(ends.len(), RECONCILES);
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "default");
    let spec = leases.get("slow").await.expect("a Lease").spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""));
    let released = spec.renew_time.expect("set by the release").0;
    let last = ends.into_iter().max().expect("a hundred");
    // The Lease's time has six decimals.
    assert!(
        released.as_microsecond() >= last.as_microsecond(),
        "{released} {last}"
    );
    std::fs::remove_file(&kubeconfig).unwrap();
    cluster.shutdown().await;
}
