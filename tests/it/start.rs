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
        (Some("here"), "the definition of the Proxy resource"),
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

/// What the program says and how it ends, with these arguments.
async fn ends(args: &[&str]) -> (Option<i32>, String, String) {
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_proxy-operator"))
        .args(args)
        .env_remove("KUBECONFIG")
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, run).await.expect("it ends");
    let output = output.expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn b17_a_bad_providers_file_ends_with_2_naming_file_and_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("providers.yaml");
    let file = path.to_str().expect("UTF-8");
    for (text, line, part) in [
        ("a:\n  kind: sim\na:\n  kind: sim\n", ":3:", "duplicate"),
        ("a:\n  kind: mainframe\n", ":2:", "mainframe"),
        ("a:\n  kind: kubernetes\n  zone: x\n", ":3:", "zone"),
    ] {
        std::fs::write(&path, text).expect("a file");
        let (code, _, words) = ends(&["run", "--providers", file]).await;
        assert_eq!(code, Some(2), "{words}");
        for part in [file, line, part, "--providers"] {
            assert!(words.contains(part), "{part} in {words}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn o01_print_config_shows_the_effective_set_and_refuses_a_bad_one() {
    let (code, out, words) = ends(&["run", "--print-config", "--workers", "7"]).await;
    assert_eq!(code, Some(0), "{words}");
    for line in [
        "workers: \"7\" # --workers",
        "drift-poll: \"5m\" # default",
        "leader-elect: \"false\" # default",
        "cluster-id: null # not set",
    ] {
        assert!(out.lines().any(|found| found == line), "{line} in {out}");
    }
    let bad = [
        "run",
        "--print-config",
        "--backoff-base",
        "10s",
        "--backoff-max",
        "1s",
    ];
    let (code, out, words) = ends(&bad).await;
    assert_eq!((code, out.as_str()), (Some(2), ""), "{words}");
}
