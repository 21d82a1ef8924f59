//! O-07: a stop ends in time, whatever hangs; a second signal does not wait.

use std::time::Duration;

use devcluster::faults::{Action, FaultGuard, FaultProxy, Rule};
use serde_json::json;
use tokio::time::Instant;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::world::World;

/// What a stop may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A leader amid a create call, on a server that answers nothing as long as the rules are there.
async fn hung_amid_a_create(world: &World, front: &FaultProxy) -> (Operator, [FaultGuard; 2]) {
    let kubeconfig = world.kubeconfig_at(&front.url());
    let operator = Operator::start(&kubeconfig, &["--leader-elect"]);
    let stalled = front
        .faults()
        .add(Rule::new(Action::Stall).verb("create").resource("pods"));
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    eventually(fleet::STEP, "the create call hangs", || async {
        match stalled.hits() {
            0 => Err(operator.log()),
            _ => Ok(()),
        }
    })
    .await;
    // From here on nothing is answered: no renewal of the Lease, no status, no Event.
    let all = front.faults().add(Rule::new(Action::Stall));
    (operator, [stalled, all])
}

#[tokio::test(flavor = "multi_thread")]
async fn o07_a_stop_amid_calls_that_hang_ends_with_0_in_half_a_minute() {
    let world = World::embedded().await;
    let front = FaultProxy::start(world.operator_client().await).await;
    let front = front.expect("a proxy before the server");
    let (mut operator, hang) = hung_amid_a_create(&world, &front).await;
    assert_eq!(operator.terminate(LIMIT).await, Some(0));
    drop(hang);
    front.shutdown().await;
    world.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn o07_a_second_signal_ends_a_stop_that_hangs_at_once_with_1() {
    let world = World::embedded().await;
    let front = FaultProxy::start(world.operator_client().await).await;
    let front = front.expect("a proxy before the server");
    let (mut operator, hang) = hung_amid_a_create(&world, &front).await;
    operator.signal().await;
    eventually(fleet::STEP, "the first signal is heard", || async {
        let log = operator.log();
        if log.contains("a second signal ends the process at once") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    assert!(!operator.is_gone(), "it waits for the call that hangs");
    let began = Instant::now();
    assert_eq!(operator.terminate(LIMIT).await, Some(1));
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    drop(hang);
    front.shutdown().await;
    world.shutdown().await;
}
