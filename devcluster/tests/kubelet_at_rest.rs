//! What simulated nodes cost when nothing happens; alone in its process, since it measures it.

use std::time::Duration;

use devcluster::{
    DevCluster,
    kubelet::{KUBELET_USER_AGENT, Kubelet, KubeletOptions},
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube_client::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;

const N_PODS: usize = 5000;
const N_NODES: usize = 10;
const MINUTES: u64 = 10;

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let after_name = stat.rsplit_once(')').expect("the name is in parentheses").1;
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|n| n.parse::<u64>().expect("a number"))
        .sum();
    // A tick is 10 ms on Linux wherever user space sees it.
    Duration::from_millis(10 * ticks)
}

#[tokio::test(start_paused = true)]
async fn k8_five_thousand_pods_at_rest_cost_less_than_a_core_second_per_minute() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let options = KubeletOptions {
        nodes: N_NODES,
        pods_per_node: N_PODS / N_NODES,
        start_delay: Duration::from_millis(300).into(),
        ..KubeletOptions::default()
    };
    let _kubelet = Kubelet::start(cluster.client(), options).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "default");
    let create = async |i: usize| {
        let pod = serde_json::from_value(json!({
            "metadata": { "name": format!("p{i}") },
            "spec": { "containers": [{ "name": "c", "image": "example.test/c" }] },
        }))
        .unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    };
    stream::iter((0..N_PODS).map(create))
        .buffer_unordered(64)
        .collect::<Vec<()>>()
        .await;
    let running = ListParams::default().fields("status.phase=Running");
    let mut looks = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if pods.list(&running).await.unwrap().items.len() == N_PODS {
            break;
        }
        looks += 1;
        assert!(looks < 600, "every pod runs in the end");
    }

    tokio::time::sleep(Duration::from_secs(20)).await;
    let (before, cpu) = (cluster.counters(), cpu_time());
    tokio::time::sleep(Duration::from_secs(60 * MINUTES)).await;
    let (asked, cost) = (cluster.counters().since(&before), cpu_time() - cpu);

    assert!(
        cost < Duration::from_secs(MINUTES),
        "{cost:?} of CPU in {MINUTES} minutes"
    );
    let by_kubelet = |resource: &str, verb: &str| {
        asked.count(|key| {
            key.user_agent == KUBELET_USER_AGENT && key.resource == resource && key.verb == verb
        })
    };
    let renewals = 6 * MINUTES * N_NODES as u64;
    assert_eq!(by_kubelet("leases", "patch"), renewals);
    assert_eq!(by_kubelet("nodes", "patch"), MINUTES / 5 * N_NODES as u64);
    let watches = by_kubelet("pods", "watch") + by_kubelet("nodes", "watch");
    assert!(
        (2..=8).contains(&watches),
        "{watches} watches were opened again"
    );
    let all = asked.count(|key| key.user_agent == KUBELET_USER_AGENT);
    assert_eq!(
        all,
        renewals + MINUTES / 5 * N_NODES as u64 + watches,
        "{asked:?}"
    );
}
