//! Several operators of one cluster, with an election, probes and metrics.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube_client::Api;
use proxy_operator::operations::LEASE;
use serde_json::json;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::page::{free_address, get};
use crate::common::pods::PodMonitor;
use crate::common::world::World;

const NAMESPACE: &str = "proxy-operator";
const PATIENCE: Duration = Duration::from_secs(40);
/// How long a stop may take in all (O-07).
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// An operator that takes part in the election, and where it serves.
struct Replica {
    operator: Operator,
    health: SocketAddr,
    metrics: SocketAddr,
}

impl Replica {
    fn start(world: &World, flags: &[&str]) -> Self {
        let (health, metrics) = (free_address(), free_address());
        let (at_health, at_metrics) = (health.to_string(), metrics.to_string());
        let mut all = vec![
            "--leader-elect",
            "--leader-elect-namespace",
            NAMESPACE,
            "--leader-elect-lease-duration",
            "3s",
            "--leader-elect-renew-deadline",
            "2s",
            "--leader-elect-retry-period",
            "500ms",
            "--health-address",
            &at_health,
            "--metrics-address",
            &at_metrics,
        ];
        all.extend(flags);
        Self {
            operator: Operator::start(&world.operator_kubeconfig(), &all),
            health,
            metrics,
        }
    }

    async fn is_ready(&self) {
        eventually(PATIENCE, "a replica is ready", || {
            get(self.health, "/readyz")
        })
        .await;
    }

    /// Waits until the metrics hold this line.
    async fn shows(&self, line: &str) {
        eventually(PATIENCE, line, || async {
            let body = get(self.metrics, "/metrics").await?;
            if body.lines().any(|one| one == line) {
                Ok(())
            } else {
                Err(body)
            }
        })
        .await;
    }
}

async fn holder(world: &World) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), NAMESPACE);
    let lease = leases.get_opt(LEASE).await.expect("an answer")?;
    lease.spec?.holder_identity
}

fn leads(yes: bool) -> String {
    format!(
        "leader_election_master_status{{name=\"{LEASE}\"}} {}",
        u8::from(yes)
    )
}

/// T29, O-02.
pub(crate) async fn t29_a_leader_that_dies_amid_a_creation_is_followed_by_the_standby(
    world: &World,
) {
    let monitor = PodMonitor::start(world).await;
    let mut first = Replica::start(world, &["--crash-at", "CP2"]);
    first.shows(&leads(true)).await;
    let second = Replica::start(world, &[]);
    second.is_ready().await;
    second.shows(&leads(false)).await;

    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let ready = fleet::ready(world, "one").await;
    assert!(first.operator.is_gone(), "it died after its create call");
    second.shows(&leads(true)).await;
    let uid = ready.metadata.uid.expect("a UID");
    assert_eq!(
        monitor.ever(&uid),
        1,
        "the standby found the pod of the dead leader"
    );
    monitor.assert_never_two();
}

/// O-02, O-07.
pub(crate) async fn o07_a_leader_that_is_told_to_stop_gives_the_lease_back_and_the_standby_goes_on(
    world: &World,
) {
    let mut first = Replica::start(world, &[]);
    first.shows(&leads(true)).await;
    let mut second = Replica::start(world, &[]);
    second.is_ready().await;
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    fleet::ready(world, "one").await;
    let state = get(second.metrics, "/debug/state")
        .await
        .expect("it serves");
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(state["election"]["isLeader"], false);
    assert_eq!(
        state["controllers"][0]["results"]["success"], 0,
        "a standby only looks"
    );

    assert_eq!(first.operator.terminate(STOP_LIMIT).await, Some(0));
    second.shows(&leads(true)).await;
    fleet::create(world, &fleet::managed("two", &json!({}))).await;
    fleet::ready(world, "two").await;

    assert_eq!(second.operator.terminate(STOP_LIMIT).await, Some(0));
    assert_eq!(holder(world).await.as_deref(), Some(""));
}
