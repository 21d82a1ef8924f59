//! What `run` says when it cannot start.

use std::path::PathBuf;
use std::time::Duration;

use devcluster::DevCluster;
use proxy_operator::{ConfigSource, Options};
use tokio_util::sync::CancellationToken;

/// In place of the two minutes of a shipped operator.
const PATIENCE: Duration = Duration::from_secs(2);
/// Every call has a deadline of its own, which may begin just before the end.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the operator until it gives up, and answers with its last words.
async fn last_words(kubeconfig: PathBuf, cluster_id: Option<&str>) -> String {
    let options = Options {
        cluster: ConfigSource {
            kubeconfig: Some(kubeconfig),
            context: None,
        },
        cluster_id: cluster_id.map(str::to_owned),
        sync_timeout: PATIENCE,
        ..Options::default()
    };
    let run = proxy_operator::run(options, CancellationToken::new());
    let ended = tokio::time::timeout(LIMIT, run).await.expect("it gives up");
    ended.expect_err("it cannot start").line()
}

#[tokio::test(flavor = "multi_thread")]
async fn r03_without_the_definition_the_kind_and_the_cause_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let kubeconfig = dir.path().join("admin.yaml");
    let cluster = DevCluster::builder().start().await.expect("a cluster");
    cluster.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    let words = last_words(kubeconfig, None).await;
    for part in ["Proxy", "2s", "404"] {
        assert!(words.contains(part), "{part} in {words}");
    }
    assert!(
        !words.contains("Secret"),
        "Secrets can be listed, so they hold nothing up: {words}"
    );
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r03_without_an_api_server_what_was_not_read_and_the_cause_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let kubeconfig = dir.path().join("admin.yaml");
    let cluster = DevCluster::builder().start().await.expect("a cluster");
    cluster.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    cluster.shutdown().await;
    for (cluster_id, what) in [
        (None, "kube-system"),
        (Some("here"), "default/proxy-operator"),
    ] {
        let words = last_words(kubeconfig.clone(), cluster_id).await;
        for part in [what, "2s", "refused"] {
            assert!(
                words.to_lowercase().contains(&part.to_lowercase()),
                "{part} in {words}"
            );
        }
    }
}
