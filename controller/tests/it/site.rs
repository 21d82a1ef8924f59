//! The example of a kind of one's own on the embedded cluster, from its definition to its end.

use std::fmt::Debug;
use std::future::Future;
use std::net::TcpListener;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_client::{Api, Client};
use kube_core::CustomResourceExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[path = "../../examples/site.rs"]
#[expect(dead_code, reason = "main is the example's")]
mod example;

use example::Site;

/// Polls until `found` gives something, for at most 20 s.
async fn eventually<T, Fut>(what: &str, found: impl Fn() -> Fut) -> T
where
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = found().await {
            return found;
        }
        assert!(Instant::now() < deadline, "did not come to be: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Body of a page of the example's server.
async fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

fn title_of(page: &ConfigMap) -> Option<&str> {
    page.data.as_ref()?.get("title").map(String::as_str)
}

fn passed<T>(result: Result<T, impl Debug>) -> T {
    result.unwrap()
}

#[test]
fn the_examples_definition_is_the_one_of_its_type() {
    let yaml = include_str!("../../examples/site.yaml");
    let written: Value = serde_saphyr::from_str(yaml).unwrap();
    let expected = serde_json::to_value(Site::crd()).unwrap();
    assert_eq!(
        written,
        expected,
        "{}",
        serde_json::to_string_pretty(&expected).unwrap()
    );
}

#[test]
fn the_example_has_fewer_than_100_lines_and_the_comparison_counts_right() {
    let ours = include_str!("../../examples/site.rs");
    assert!(ours.lines().count() < 100);
    let page = include_str!("../../../docs/compared.md");
    for (framework, program) in [
        ("this framework", ours),
        (
            "controller-runtime",
            include_str!("../../../benches/peers/go/compared/main.go"),
        ),
        (
            "kube-runtime",
            include_str!("../../../benches/peers/rust/compared/src/main.rs"),
        ),
    ] {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        let (all, code) = (
            program.lines().count(),
            program.lines().filter(is_code).count(),
        );
        let row = page
            .lines()
            .find(|row| row.starts_with(&format!("| {framework} | [")));
        let counts = format!(" | {all} | {code} | ");
        assert!(
            row.is_some_and(|row| row.contains(&counts)),
            "{framework}:{counts}"
        );
    }
}

/// Runs the example as `client`'s user; `collects` says whether something deletes what has lost its
/// owner.
async fn publishes_tells_and_cleans_up(client: Client, collects: bool) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), &Site::crd())
        .await
        .unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let manager = example::sites(client.clone(), port).unwrap();
    let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
    let token = stop.clone();
    running.spawn(async move { manager.run(token).await });

    let sites: Api<Site> = Api::namespaced(client.clone(), "default");
    let pages: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let site = json!({"apiVersion": "example.dev/v1", "kind": "Site",
        "metadata": {"name": "a"}, "spec": {"title": "one"}});
    let site: Site = serde_json::from_value(site).unwrap();
    eventually("the kind is served", async || {
        sites.create(&PostParams::default(), &site).await.ok()
    })
    .await;
    let holds = async |name: &'static str, title: &'static str| {
        eventually(&format!("{name} holds {title}"), async || {
            let page = pages.get_opt(name).await.unwrap();
            page.filter(|page| title_of(page) == Some(title))
        })
        .await
    };
    let page = holds("a-page", "one").await;
    let owner = controller::owners::controller_of(&page).expect("the site controls it");
    assert_eq!((&*owner.kind, &*owner.name), ("Site", "a"));
    let published = async |title: &'static str| {
        eventually(&format!("{title} is published"), async || {
            let status = sites.get("a").await.unwrap().status?;
            (serde_json::to_value(status).unwrap()["published"] == title).then_some(())
        })
        .await;
    };
    published("one").await;

    let change = json!({"spec": {"title": "two"}});
    sites
        .patch("a", &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
    holds("a-page", "two").await;
    published("two").await;
    pages
        .delete("a-page", &DeleteParams::default())
        .await
        .unwrap();
    holds("a-page", "two").await;

    eventually("ready", async || get(port, "/readyz").await).await;
    let metrics = get(port, "/metrics").await.expect("metrics are served");
    for line in [
        "controller_runtime_reconcile_total{controller=\"site\",result=\"success\"}",
        "leader_election_master_status{name=\"site.example.dev\"} 1",
        "event_recorder_lost_total{controller=\"example.dev/site\",reason=\"full\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }

    sites.delete("a", &DeleteParams::default()).await.unwrap();
    holds("a-archive", "two").await;
    eventually("the site is gone", async || {
        sites.get_opt("a").await.unwrap().is_none().then_some(())
    })
    .await;
    if collects {
        eventually("its page is gone", async || {
            pages
                .get_opt("a-page")
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    }

    stop.cancel();
    passed(passed(running.join_next().await.expect("one task")));
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let about = ListParams::default().fields("regarding.kind=Site");
    let [event] = &*events.list(&about).await.unwrap().items else {
        panic!("one event, whatever was published")
    };
    assert_eq!(event.reason.as_deref(), Some("Published"));
    // No run reads the site from before its own last write.
    let count = event.series.as_ref().map(|series| series.count);
    assert_eq!(count, Some(2), "{event:?}");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let lease = leases.get("site.example.dev").await.unwrap().spec.unwrap();
    assert_eq!(
        lease.holder_identity.unwrap_or_default(),
        "",
        "given back at the end"
    );
}

mod embedded {
    use devcluster::DevCluster;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_example_publishes_tells_and_cleans_up() {
        let cluster = DevCluster::builder().start().await.unwrap();
        Box::pin(super::publishes_tells_and_cleans_up(
            cluster.client(),
            false,
        ))
        .await;
        cluster.shutdown().await;
    }
}

mod real {
    use crate::servers;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_example_publishes_tells_and_cleans_up() {
        let Some((_cluster, client)) = servers::real_with(&["garbagecollector"]).await else {
            return;
        };
        Box::pin(super::publishes_tells_and_cleans_up(client, true)).await;
    }
}
