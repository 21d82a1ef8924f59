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

#[tokio::test(flavor = "multi_thread")]
async fn p30_dev_on_the_simulated_provider_is_the_whole_product_with_proxies_that_serve() {
    let (code, out, err) = run(&["dev", "--provider", "sim", "--once"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    let visits: Vec<_> = out.lines().filter_map(callers).collect();
    assert_eq!(visits.len(), 8, "{out}");
    let machines = visits
        .iter()
        .filter(|(plain, tunnel)| plain == tunnel && plain.octets()[1] >= 64);
    assert_eq!(machines.count(), 7, "all but the External one: {out}");
    for words in [
        " replaced: machine ",
        " recovered: machine ",
        "0 Proxies, 0 machines, 0 Secrets, 0 proxies serving",
        "every step was proven",
    ] {
        assert!(out.contains(words), "{words} in {out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_scene_shows_its_steps_and_exits_0() {
    let scenes = [
        (
            "quota",
            &[
                "3 are Ready, 5 wait with reason QuotaExceeded",
                "ask for all 5: one in each retry time",
                "quota raised to 8",
                "machine 4 of 8 is made",
                "8 of 8 Ready",
            ][..],
        ),
        (
            "crash",
            &[
                "operator killed: the cloud runs machine 1, the Proxy knows nothing of it",
                "took machine 1 over: machines ever made 1, running 1",
                "finished the replacement: machine 1 -> 2",
                "machines ever made 2, running 1",
            ],
        ),
        (
            "rotation",
            &[
                "20 Proxies Ready",
                "all 20 are to be replaced",
                "20 of 20 done",
                "all 20 are replaced; never more than ",
            ],
        ),
    ];
    for (scene, steps) in scenes {
        let (code, out, err) = run(&["dev", "--scene", scene, "--once"]).await;
        assert_eq!(code, Some(0), "{out}{err}");
        let mut rest = &*out;
        for step in steps.iter().chain(&["every step was proven"]) {
            (_, rest) = rest
                .split_once(step)
                .unwrap_or_else(|| panic!("{step:?}, in its turn, in {out}"));
        }
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
        (
            &["dev", "--scene", "noon"],
            &["noon", "quota", "crash", "rotation"],
        ),
        (
            &["dev", "--scene", "quota", "--provider", "kubernetes"],
            &["--scene", "--provider sim"],
        ),
        (
            &["dev", "--sim-admin", "0.0.0.0:80"],
            &["0.0.0.0:80", "loopback"],
        ),
    ] {
        let (code, _, err) = run(args).await;
        assert_eq!(code, Some(2), "{args:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{args:?}: {word} in {err}");
        }
    }
}
