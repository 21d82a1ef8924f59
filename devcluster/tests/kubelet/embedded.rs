//! The scenarios on the embedded API server, and what only it can show.

use std::time::Duration;

use devcluster::{
    DevCluster,
    kubelet::{Addressing, KubeletOptions},
};

use crate::{scenarios, support::World};

#[tokio::test]
async fn simulated_nodes_serve_the_embedded_api_server() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let world = World::start(cluster.client(), KubeletOptions::default()).await;
    Box::pin(scenarios::all(&world)).await;
    world.kubelet.shutdown().await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn pods_start_at_once_without_a_delay() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let options = KubeletOptions {
        start_delay: Duration::ZERO.into(),
        ..KubeletOptions::default()
    };
    let world = World::start(cluster.client(), options).await;
    Box::pin(scenarios::all(&world)).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn pods_that_drain_hold_up_no_other() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let world = World::start(cluster.client(), KubeletOptions::default()).await;
    scenarios::pods_that_drain_hold_up_no_other(&world).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn virtual_addresses_come_with_a_port_map() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let options = KubeletOptions {
        addressing: Addressing::Virtual,
        ..KubeletOptions::default()
    };
    let world = World::start(cluster.client(), options).await;
    scenarios::a_virtual_pod_tells_where_its_proxy_listens(&world).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn pods_outlive_a_kubelet_and_start_again_under_the_next() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let world = World::start(cluster.client(), KubeletOptions::default()).await;
    let (client, address) = scenarios::a_pod_runs_and_its_node_goes(world).await;
    let world = World::start(client, KubeletOptions::default()).await;
    scenarios::the_pod_runs_again(&world, address).await;
    cluster.shutdown().await;
}
