//! HTTP/2 against HTTP/1.1: 1, 10 and 50 informers on the embedded API server over TLS.
//!
//! ```sh
//! cargo run -p informer --example http2
//! ```
//!
//! Prints for each: time until all have synced, connections, and the time from a write to the last
//! handler that is told of it. Server, writer and informers share one process, so only the ratios
//! mean anything.

use std::time::Duration;

use devcluster::DevCluster;
use informer::client::{self, ClientOptions, ConfigSource};
use informer::{Event, Informer, InformerOptions};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::{Api, Patch, PatchParams, PostParams};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const OBJECTS: usize = 1000;
const WRITES: usize = 200;

type Failure = Box<dyn std::error::Error>;

/// Established connections to `port`, as the kernel counts them.
fn connections(port: u16) -> std::io::Result<usize> {
    let remote = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/self/net/tcp")?;
    let is_open = |line: &&str| {
        let mut columns = line.split_whitespace().skip(2);
        columns.next().is_some_and(|to| to.ends_with(&remote)) && columns.next() == Some("01")
    };
    Ok(table.lines().filter(is_open).count())
}

/// One line of figures.
async fn measure(cluster: &DevCluster, informers: usize, http2: bool) -> Result<String, Failure> {
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&kubeconfig)?;
    let source = ConfigSource {
        kubeconfig: Some(kubeconfig),
        context: None,
    };
    let options = ClientOptions {
        http2,
        ..ClientOptions::default()
    };
    let client = client::connect(client::load_config(&source).await?, options)?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    let mut told = Vec::new();
    let mut all = Vec::new();
    for _ in 0..informers {
        let informer: Informer<ConfigMap> =
            Informer::new(client.clone(), InformerOptions::default())?;
        let (send, seen) = watch::channel(String::new());
        informer.add_handler("mark", move |event: &Event<ConfigMap>| {
            let data = event.object().data.as_ref();
            if let Some(mark) = data.and_then(|data| data.get("mark")) {
                send.send_replace(mark.clone());
            }
        })?;
        told.push(seen);
        let (running, token) = (informer.clone(), stop.clone());
        tasks.spawn(async move { running.run(token).await });
        all.push(informer);
    }
    for informer in &all {
        informer.synced().await;
    }
    let synced = began.elapsed();
    let open = connections(cluster.address().port())?;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let mut times = Vec::new();
    for number in 0..WRITES {
        let mark = format!("{http2}-{informers}-{number}");
        let patch = Patch::Merge(serde_json::json!({"data": {"mark": mark}}));
        let written = Instant::now();
        api.patch("o0", &PatchParams::default(), &patch).await?;
        for seen in &mut told {
            seen.wait_for(|seen| *seen == mark).await?;
        }
        times.push(written.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    times.sort();
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let protocol = if http2 { "HTTP/2" } else { "HTTP/1.1" };
    Ok(format!(
        "{informers:>9}  {protocol:<8}  {:>9.1}  {open:>11}  {:>7.2}  {:>7.2}",
        synced.as_secs_f64() * 1e3,
        times[WRITES / 2].as_secs_f64() * 1e3,
        times[WRITES * 99 / 100].as_secs_f64() * 1e3,
    ))
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "a program that prints its figures")]
async fn main() -> Result<(), Failure> {
    let cluster = DevCluster::builder().start().await?;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    for at in 0..OBJECTS {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(format!("o{at}"));
        object.data = Some([("k".to_owned(), "x".repeat(1000))].into());
        api.create(&PostParams::default(), &object).await?;
    }
    println!("informers  protocol  synced ms  connections   p50 ms   p99 ms");
    for informers in [1, 10, 50] {
        for http2 in [false, true, false, true] {
            println!("{}", measure(&cluster, informers, http2).await?);
        }
    }
    Ok(())
}
