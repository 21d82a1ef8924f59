//! SIGKILL at random moments of a Proxy's life: the end is the same, and never do two pods stand side by side.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube_client::core::params::DeleteParams;
use kube_client::{Api, ResourceExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::pods::PodMonitor;
use crate::common::world::World;

const KILLS: usize = 20;
const SEED: u64 = 0x5eed;

fn start(world: &World) -> Operator {
    Operator::start(&world.operator_kubeconfig(), &["--drift-poll", "300ms"])
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_at_random_moments_lose_and_double_nothing() {
    let world = World::embedded().await;
    let monitor = PodMonitor::start(&world).await;
    let mut random = StdRng::seed_from_u64(SEED);
    let mut operator = start(&world);
    fleet::put_secret(&world, "boot", "user-data", "0").await;
    let pods: Api<Pod> = world.api();

    for round in 0..KILLS {
        let name = format!("p{round}");
        let addition = json!({ "cloudInit": { "secretRef": { "name": "boot" } } });
        fleet::create(&world, &fleet::managed(&name, &addition)).await;
        // What the operator is in the middle of when it dies: creation, replacement, recovery or deletion.
        match round % 4 {
            1 => fleet::put_secret(&world, "boot", "user-data", &round.to_string()).await,
            2 => {
                if let Some(pod) = fleet::all_pods(&world).await.first() {
                    // Gone already is as good.
                    drop(pods.delete(&pod.name_any(), &DeleteParams::default()).await);
                }
            }
            3 => fleet::delete(&world, &format!("p{}", round - 1)).await,
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..400))).await;
        operator.kill().await;
        operator = start(&world);
    }

    for round in (0..KILLS).filter(|round| round % 4 != 2 || round + 1 == KILLS) {
        let proxy = fleet::ready(&world, &format!("p{round}")).await;
        assert_eq!(fleet::pods_of(&world, &proxy).await.len(), 1);
    }
    for round in 0..KILLS {
        let name = format!("p{round}");
        if fleet::get(&world, &name)
            .await
            .is_some_and(|p| p.metadata.deletion_timestamp.is_none())
        {
            fleet::delete(&world, &name).await;
        }
    }
    for round in 0..KILLS {
        fleet::gone(&world, &format!("p{round}")).await;
    }
    eventually(fleet::STEP, "no pod is left", || async {
        let left = fleet::all_pods(&world).await.len();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} pods, seed {SEED:#x}"))
        }
    })
    .await;
    monitor.assert_never_two();
    world.shutdown().await;
}
