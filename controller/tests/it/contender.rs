//! A process that contends for a Lease and counts while it leads: this test binary itself.
//!
//! It counts up a ConfigMap named like the Lease: `holder`, `term` and `count`. Every write is guarded
//! by `resourceVersion`, and a term older than the one on record writes nothing, which is how a user
//! makes the writes of a leader safe. client-go's contender (`realcluster elect`) does the same.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use controller::Signals;
use controller::election::{ElectionOptions, Elector, Term};
use controller::informer::client::{ClientOptions, ConfigSource, connect, load_config};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::core::params::PostParams;
use kube_client::{Api, Client};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

/// Set in the child: kubeconfig, name of the Lease and identity, divided by line feeds.
const CHILD: &str = "CONTROLLER_TEST_CONTENDER";

/// Namespace of Lease and ConfigMap.
pub(crate) const NAMESPACE: &str = "default";
/// How long others wait after the last renewal that they saw.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
pub(crate) const RETRY: Duration = Duration::from_millis(500);
const COUNT_PERIOD: Duration = Duration::from_millis(20);

/// Nothing by itself; other tests start it in processes of their own.
#[test]
fn the_contenders_side() {
    let Ok(orders) = std::env::var(CHILD) else {
        return;
    };
    let orders: Vec<_> = orders.split('\n').collect();
    let [kubeconfig, lease, identity] = orders[..] else {
        panic!("three orders")
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let clean = runtime.block_on(contend(kubeconfig.as_ref(), lease, identity));
    // The harness would turn a failure into code 101.
    std::process::exit(i32::from(!clean));
}

/// A client of a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Client {
    let source = ConfigSource {
        kubeconfig: Some(kubeconfig.to_owned()),
        context: None,
    };
    let config = load_config(&source).await.expect("a kubeconfig");
    connect(config, ClientOptions::default()).expect("a client")
}

async fn contend(kubeconfig: &Path, lease: &str, identity: &str) -> bool {
    let client = client(kubeconfig).await;
    let options = ElectionOptions {
        identity: identity.to_owned(),
        lease_duration: LEASE,
        renew_deadline: DEADLINE,
        retry_period: RETRY,
        ..ElectionOptions::new(NAMESPACE, lease)
    };
    let elector = Elector::new(client.clone(), options).expect("good options");
    let signals = Signals::install().expect("signals");
    let (name, holder) = (lease.to_owned(), identity.to_owned());
    let work = move |term: Term| count(client.clone(), name.clone(), holder.clone(), term);
    elector.run(work, signals.stop()).await.is_ok()
}

/// Counts until the term is over.
async fn count(client: Client, name: String, holder: String, term: Term) {
    let configs: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    while !term.is_cancelled() {
        if let Ok(mut counter) = configs.get(&name).await {
            let data = counter.data.take().unwrap_or_default();
            let number = |key: &str| data.get(key).and_then(|n| n.parse::<u32>().ok());
            // The check comes after the read: a process that stood still since then writes to a
            // version that is gone.
            if number("term").is_some_and(|on_record| on_record > term.number()) {
                return;
            }
            let next = number("count").unwrap_or_default() + 1;
            counter.data = Some(BTreeMap::from([
                ("holder".to_owned(), holder.clone()),
                ("term".to_owned(), term.number().to_string()),
                ("count".to_owned(), next.to_string()),
            ]));
            // A conflict, or a server that is away, costs one round.
            drop(
                configs
                    .replace(&name, &PostParams::default(), &counter)
                    .await,
            );
        }
        tokio::time::sleep(COUNT_PERIOD).await;
    }
}

/// A contender while it runs; killed when dropped.
pub(crate) struct Contender {
    pub(crate) identity: String,
    child: Child,
    _output: JoinSet<()>,
}

impl Contender {
    /// One of ours.
    pub(crate) fn start(kubeconfig: &Path, lease: &str, identity: &str) -> Self {
        let orders = format!("{}\n{lease}\n{identity}", kubeconfig.display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "contender::the_contenders_side", "--nocapture"])
            .env(CHILD, orders);
        Self::run(command, identity)
    }

    /// One of client-go's.
    pub(crate) fn start_client_gos(
        binary: &Path,
        kubeconfig: &Path,
        lease: &str,
        identity: &str,
    ) -> Self {
        let seconds = |time: Duration| format!("{}ms", time.as_millis());
        let mut command = Command::new(binary);
        command
            .arg("elect")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--namespace", NAMESPACE, "--lease", lease])
            .args(["--identity", identity])
            .args(["--lease-duration", &seconds(LEASE)])
            .args(["--renew-deadline", &seconds(DEADLINE)])
            .args(["--retry-period", &seconds(RETRY)]);
        Self::run(command, identity)
    }

    fn run(mut command: Command, identity: &str) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut output = JoinSet::new();
        // Read, so that it never waits for a reader.
        output.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self {
            identity: identity.to_owned(),
            child,
            _output: output,
        }
    }

    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().await;
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for the end; the exit code, none if a signal ended it.
    pub(crate) async fn ended(&mut self, patience: Duration) -> Option<i32> {
        let ended = tokio::time::timeout(patience, self.child.wait()).await;
        let status = ended
            .expect("it ends in time")
            .expect("the process is ours");
        status.code()
    }
}
