//! The real API server, for the scenes that are played on both servers.

use informer::client::{ClientOptions, ConfigSource, connect, load_config};
use kube_client::Client;
use realcluster::{Options, RealCluster};

/// A real API server and a client of it; none where it is not built.
pub(crate) async fn real() -> Option<(RealCluster, Client)> {
    real_with(&[]).await
}

/// The same with `controllers` of kube-controller-manager.
pub(crate) async fn real_with(controllers: &[&str]) -> Option<(RealCluster, Client)> {
    let options = Options {
        controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
        ..Options::default()
    };
    let cluster = RealCluster::start_if_built(&options).await.unwrap();
    let Some(cluster) = cluster else {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("real API server: skipped (not built)");
        }
        return None;
    };
    let source = ConfigSource {
        kubeconfig: Some(cluster.kubeconfig().to_owned()),
        context: None,
    };
    let client = connect(
        load_config(&source).await.unwrap(),
        ClientOptions::default(),
    )
    .unwrap();
    Some((cluster, client))
}
