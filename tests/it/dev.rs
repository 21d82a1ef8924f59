//! The commands that a newcomer types.

use std::net::Ipv4Addr;
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

/// Who called the echo server by a plain request and by a tunnel, of a line about a proxy.
fn callers(line: &str) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let (_, rest) = line.split_once("GET 200 seen from ")?;
    let (plain, tunnel) = rest.split_once(", CONNECT + GET 200 seen from ")?;
    Some((plain.trim().parse().ok()?, tunnel.trim().parse().ok()?))
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_once_shows_every_step_and_exits_0() {
    let (code, out, err) = run(&["dev", "--once"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let visits: Vec<_> = out.lines().filter_map(callers).collect();
    // Six of the fleet, then the replaced one and the recovered one.
    assert_eq!(visits.len(), 8, "{out}");
    for (plain, tunnel) in &visits {
        assert_eq!(plain, tunnel, "one proxy, one address: {out}");
    }
    let pods = visits
        .iter()
        .filter(|(plain, _)| plain.octets()[1] >= 64)
        .count();
    assert_eq!(
        pods, 7,
        "all but the External one call from a pod's address: {out}"
    );
    for (what, is_same_hash) in [(" replaced: pod ", false), (" recovered: pod ", true)] {
        let (_, line) = out
            .lines()
            .find_map(|line| line.split_once(what))
            .unwrap_or_else(|| panic!("{what} in {out}"));
        let changes: Vec<_> = line
            .split(", ")
            .map(|part| {
                let (before, after) = part.rsplit_once(" -> ").expect("a change");
                (before.rsplit(' ').next().expect("a word"), after)
            })
            .collect();
        let [pod, _, hash] = changes.as_slice() else {
            panic!("{line}")
        };
        assert_ne!(pod.0, pod.1, "{line}");
        assert!(hash.0.starts_with("v1:"), "{line}");
        assert_eq!(hash.0 == hash.1, is_same_hash, "{line}");
    }
    for end in [
        "0 Proxies, 0 pods, 0 Secrets, 0 proxies serving",
        "every step was proven",
    ] {
        assert!(out.contains(end), "{end} in {out}");
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
