//! The same scenarios on a real API server, which forgets by being killed and started again.

use std::net::SocketAddr;

use realcluster::{Options, RealCluster};

use crate::scenarios::*;

async fn start() -> Option<RealCluster> {
    let cluster = RealCluster::start_if_built(&Options::default())
        .await
        .unwrap();
    if cluster.is_none() {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("real API server: skipped (not built)");
        }
    }
    cluster
}

fn address(cluster: &RealCluster) -> SocketAddr {
    let address = cluster.server().trim_start_matches("https://");
    address.parse().unwrap()
}

async fn follows(watch_list: bool) {
    let Some(mut cluster) = start().await else {
        return;
    };
    let address = address(&cluster);
    let kubeconfig = cluster.kubeconfig().to_owned();
    // Its watch cache begins at the newest state, so older versions are gone.
    let forget = async || {
        cluster.kill("kube-apiserver").await.unwrap();
        cluster.restart("kube-apiserver").await.unwrap();
    };
    Box::pin(follows_the_server(address, &kubeconfig, watch_list, forget)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informer_follows_a_real_server_by_list_and_watch() {
    follows(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informer_follows_a_real_server_by_streamed_lists() {
    follows(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metadata_informer_is_never_sent_secret_data_by_a_real_server() {
    let Some(cluster) = start().await else { return };
    Box::pin(hides_secrets(address(&cluster), cluster.kubeconfig())).await;
}
