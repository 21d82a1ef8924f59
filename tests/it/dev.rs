//! The commands that a newcomer types.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// What a script may wait for.
const LIMIT: Duration = Duration::from_secs(60);

async fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_proxy-operator"))
        .args(args)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, output)
        .await
        .unwrap_or_else(|_| panic!("{args:?} takes longer than {LIMIT:?}"))
        .expect("the binary runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_once_shows_every_step_and_exits_0() {
    let (code, out, err) = run(&["dev", "--once"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let lines: Vec<_> = out.lines().collect();
    assert!(
        lines
            .iter()
            .filter(|line| line.contains("127.64.") || line.contains("127."))
            .count()
            >= 6
    );
    for word in ["CONNECT", "Secret", "deleted", "v1:"] {
        assert!(out.contains(word), "{word} in {out}");
    }
}

#[tokio::test]
async fn crd_prints_what_the_repository_ships() {
    let (code, out, _) = run(&["crd"]).await;
    let shipped = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crds/proxies.crawl.proxyoperator.dev.yaml"
    );
    assert_eq!(code, Some(0));
    assert_eq!(
        out,
        std::fs::read_to_string(shipped).expect("the shipped CRD")
    );
}

#[tokio::test]
async fn a_bad_flag_or_value_exits_2_and_names_what_is_allowed() {
    for (args, words) in [
        (
            &["run", "--workers", "none"][..],
            &["--workers", "none"][..],
        ),
        (&["run", "--drift-poll", "soon"], &["--drift-poll", "soon"]),
        (&["run", "--unknown"], &["--unknown"]),
        (&["frobnicate"], &["frobnicate", "run", "dev", "crd"]),
    ] {
        let (code, _, err) = run(args).await;
        assert_eq!(code, Some(2), "{args:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{args:?}: {word} in {err}");
        }
    }
}
