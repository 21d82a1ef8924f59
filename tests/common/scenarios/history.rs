//! The exact history of conditions and Events (T01, R-13).

use kube_client::ResourceExt;
use serde_json::json;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::history::{self, History};
use crate::common::operator::Operator;
use crate::common::world::World;

/// Waits until exactly these Events were told of the Proxy.
async fn told(world: &World, proxy: &proxy_operator::api::Proxy, want: &[&str]) {
    eventually(fleet::STEP, "the Events are those expected", || async {
        let told = history::told(world, proxy).await;
        if told == want {
            Ok(())
        } else {
            Err(format!("{told:#?}"))
        }
    })
    .await;
}

pub(crate) async fn t01_a_managed_proxy_on_sim_has_the_exact_history_of_conditions_and_events(
    world: &World,
) {
    let providers = world.operator_kubeconfig().with_file_name("providers.yaml");
    std::fs::write(&providers, "sim:\n  kind: sim\n  boot: 1s\n").expect("a file");
    let path = providers.to_str().expect("UTF-8").to_owned();
    let _operator = Operator::start(&world.operator_kubeconfig(), &["--providers", &path]);
    let conditions = History::start(world, "one").await;
    let spec = json!({ "mode": "Managed", "provider": "sim" });
    fleet::create(world, &fleet::proxy("one", &spec)).await;
    let proxy = fleet::ready(world, "one").await;
    let status = proxy.status.as_ref().expect("a status");
    let id = status.provider_id.clone().expect("an instance");
    let address = status.ip.clone().expect("an address");
    told(
        world,
        &proxy,
        &[
            &format!("Normal InstanceCreating: {id} is being created"),
            &format!("Normal InstanceRunning: the instance runs at {address}:3128"),
        ],
    )
    .await;
    assert_eq!(
        conditions.lines(),
        [
            "Pending: Healthy=Unknown/ProbingDisabled Ready=False/NotProvisioned",
            "Provisioning: Healthy=Unknown/ProbingDisabled Provisioned=False/Provisioning \
             Ready=False/NotProvisioned Synced=True/InSync",
            "Ready: Healthy=Unknown/ProbingDisabled Provisioned=True/Created Ready=True/Serving \
             Synced=True/InSync",
        ]
    );
}

pub(crate) async fn r13_a_replacement_and_a_deletion_are_told_once_each_with_their_cause(
    world: &World,
) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let before = fleet::ready(world, "one").await;
    let id = before
        .status
        .as_ref()
        .and_then(|status| status.provider_id.clone());
    let id = id.expect("an instance");
    let edit = json!({ "spec": { "tags": { "team": "search" } } });
    fleet::edit(world, "one", &edit).await;
    let after = fleet::replaced(world, "one", &before).await;
    assert_eq!(after.uid(), before.uid());
    fleet::delete(world, "one").await;
    fleet::gone(world, "one").await;
    let address = before.status.as_ref().and_then(|status| status.ip.clone());
    // The second instance comes within ten minutes of the first, and so does the end of both.
    told(
        world,
        &before,
        &[
            &format!("Normal InstanceCreating: {id} is being created"),
            &format!(
                "Normal InstanceRunning: the instance runs at {}:3128",
                address.expect("an address")
            ),
            "Normal InstanceReplacing: spec or Secret changed, the old instance is being deleted",
            &format!("Normal InstanceDeleted: {id} is gone"),
        ],
    )
    .await;
}
