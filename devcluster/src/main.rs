//! Serves an embedded development cluster until Ctrl-C.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use devcluster::{
    Authorization, DevCluster,
    kubelet::{Kubelet, KubeletOptions},
};

/// An in-process Kubernetes API server with simulated nodes.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where to serve.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Serve an address that other machines can reach.
    #[arg(long)]
    allow_remote: bool,
    /// Where to write the administrator's kubeconfig.
    #[arg(long, default_value = "devcluster.kubeconfig")]
    kubeconfig: PathBuf,
    /// Let roles decide who may do what; the administrator still may do everything.
    #[arg(long)]
    rbac: bool,
    /// How many nodes to simulate.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Milliseconds between the scheduling of a pod and its start.
    #[arg(long, default_value_t = 500)]
    pod_start_ms: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = &*error, "cannot run the cluster");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let cluster = DevCluster::builder()
        .listen(arguments.listen)
        .allow_remote(arguments.allow_remote)
        .authorization(if arguments.rbac {
            Authorization::Rbac
        } else {
            Authorization::Authenticated
        })
        .start()
        .await?;
    cluster.write_kubeconfig(&arguments.kubeconfig)?;
    tracing::info!(
        url = cluster.url(),
        kubeconfig = %arguments.kubeconfig.display(),
        "the cluster is ready, Ctrl-C ends it"
    );
    let options = KubeletOptions {
        nodes: arguments.nodes,
        start_delay: Duration::from_millis(arguments.pod_start_ms).into(),
        ..KubeletOptions::default()
    };
    let kubelet = Kubelet::start(cluster.client(), options).await?;
    tokio::signal::ctrl_c().await?;
    kubelet.shutdown().await;
    cluster.shutdown().await;
    Ok(())
}
