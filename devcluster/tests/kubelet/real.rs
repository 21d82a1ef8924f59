//! The scenarios on the real API server.

use devcluster::kubelet::KubeletOptions;
use kube_client::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use realcluster::{Options, RealCluster};

use crate::{scenarios, support::World};

#[tokio::test]
async fn simulated_nodes_serve_the_real_api_server() {
    let Some(mut server) = RealCluster::start_if_built(&Options::default())
        .await
        .unwrap()
    else {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("real API server: skipped (not built)");
        }
        return;
    };
    let config = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .unwrap();
    let client = Client::try_from(config).unwrap();
    let world = World::start(client, KubeletOptions::default()).await;
    Box::pin(scenarios::all(&world)).await;

    server.kill("kube-apiserver").await.unwrap();
    server.restart("kube-apiserver").await.unwrap();
    scenarios::a_pod_runs(&world, "after-a-crash").await;
    world.kubelet.shutdown().await;
}
