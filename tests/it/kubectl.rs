//! A real kubectl against `proxy-operator dev`, where kubectl is found.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::common::eventually::eventually;

const PATIENCE: Duration = Duration::from_secs(60);

/// `proxy-operator dev` with its kubeconfig in a folder of our own.
struct Dev {
    child: Child,
    dir: tempfile::TempDir,
}

impl Dev {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let child = Command::new(env!("CARGO_BIN_EXE_proxy-operator"))
            .args(["dev", "--dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let dev = Self { child, dir };
        eventually(PATIENCE, "the kubeconfig is written", || async {
            if dev.kubeconfig().exists() {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await;
        dev
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--cache-dir")
            .arg(self.dir.path().join("cache"))
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn output(&self, args: &[&str]) -> Output {
        tokio::time::timeout(PATIENCE, self.command(args).output())
            .await
            .unwrap_or_else(|_| panic!("kubectl {args:?} hangs"))
            .expect("kubectl runs")
    }

    /// Runs kubectl and gives its standard output; it must succeed without a word on standard error.
    async fn kubectl(&self, args: &[&str]) -> String {
        let output = self.output(args).await;
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "kubectl {args:?}: {out}{err}");
        out.into_owned()
    }

    async fn until(&self, args: &[&str], what: &str, check: impl Fn(&str) -> bool) -> String {
        eventually(PATIENCE, what, || async {
            let output = self.output(args).await;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() && check(&text) {
                Ok(text)
            } else {
                Err(text)
            }
        })
        .await
    }

    async fn interrupt(mut self) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .await
            .expect("kill runs");
        assert!(sent.success());
        let status = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("dev ends on Ctrl-C")
            .expect("the process is ours");
        assert_eq!(status.code(), Some(0));
        assert!(!self.kubeconfig().exists(), "the kubeconfig goes with dev");
    }
}

pub(crate) fn kubectl_is_there() -> bool {
    let found = std::process::Command::new("kubectl")
        .args(["version", "--client"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        crate::common::skipped("no kubectl on this machine");
    }
    found
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("a manifest");
    path.display().to_string()
}

const MANIFEST: &str = "\
apiVersion: crawl.proxyoperator.dev/v1alpha1
kind: Proxy
metadata:
  name: by-hand
  namespace: default
spec:
  mode: Managed
  provider: kubernetes
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_applies_edits_watches_and_deletes_proxies() {
    if !kubectl_is_there() {
        return;
    }
    let dev = Dev::start().await;
    let wide = dev
        .until(
            &["get", "proxies", "-A", "-o", "wide"],
            "six Proxies are Ready",
            |text| {
                text.lines()
                    .skip(1)
                    .filter(|line| line.contains(" Ready "))
                    .count()
                    >= 6
            },
        )
        .await;
    let header: Vec<_> = wide
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    assert_eq!(
        header,
        [
            "NAMESPACE",
            "NAME",
            "MODE",
            "PROVIDER",
            "PHASE",
            "IP",
            "HEALTHY",
            "REASON",
            "AGE",
            "ZONE",
            "EXITIP",
            "PROVIDERID",
            "MESSAGE"
        ]
    );

    let file = write(dev.dir.path(), "proxy.yaml", MANIFEST);
    assert!(
        dev.kubectl(&["apply", "-f", &file])
            .await
            .contains("by-hand created")
    );
    assert!(
        dev.kubectl(&["apply", "-f", &file])
            .await
            .contains("by-hand unchanged")
    );
    dev.until(&["get", "px", "by-hand"], "it is Ready", |text| {
        text.contains(" Ready ")
    })
    .await;

    let described = dev.kubectl(&["describe", "proxy", "by-hand"]).await;
    for part in [
        "Provisioned",
        "Created",
        "Provider ID",
        "kubernetes://default/px-",
        "Ready",
    ] {
        assert!(described.contains(part), "{part} in {described}");
    }
    assert!(
        dev.kubectl(&["explain", "proxy.spec.mode"])
            .await
            .contains("Managed")
    );
    assert!(
        dev.kubectl(&["api-resources"])
            .await
            .contains("crawl.proxyoperator.dev/v1alpha1")
    );
    assert!(dev.kubectl(&["get", "crawl"]).await.contains("by-hand"));
    assert!(dev.kubectl(&["get", "pods"]).await.contains("1/1"));

    let mut watch = dev
        .command(&["get", "proxy", "by-hand", "-w"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let uid = [
        "get",
        "proxy",
        "by-hand",
        "-o",
        "jsonpath={.status.instanceUID}",
    ];
    let before = dev.kubectl(&uid).await;

    let edited = MANIFEST.to_owned() + "  tags:\n    team: search\n";
    let file = write(dev.dir.path(), "proxy.yaml", &edited);
    assert!(
        dev.kubectl(&["apply", "-f", &file])
            .await
            .contains("by-hand configured")
    );
    dev.until(&uid, "it is replaced", |now| {
        !now.is_empty() && now != before
    })
    .await;
    let seen = tokio::time::timeout(PATIENCE, async {
        while let Some(line) = lines.next_line().await.expect("the pipe is open") {
            if line.contains("Replacing") || line.contains("Provisioning") {
                return true;
            }
        }
        false
    })
    .await;
    assert_eq!(seen, Ok(true), "the watch shows the replacement");
    watch.kill().await.expect("the process is ours");

    let json = r#"[{"op":"add","path":"/metadata/labels","value":{"pool":"a"}}]"#;
    dev.kubectl(&["patch", "proxy", "by-hand", "--type", "json", "-p", json])
        .await;
    let merge = r#"{"spec":{"paused":true}}"#;
    dev.kubectl(&["patch", "proxy", "by-hand", "--type", "merge", "-p", merge])
        .await;
    assert!(
        dev.kubectl(&["get", "proxies", "-l", "pool=a"])
            .await
            .contains("by-hand")
    );
    dev.kubectl(&["label", "proxy", "by-hand", "pool-"]).await;
    dev.kubectl(&["annotate", "proxy", "by-hand", "note=text"])
        .await;
    let unpause = r#"{"spec":{"paused":false}}"#;
    dev.kubectl(&[
        "patch", "proxy", "by-hand", "--type", "merge", "-p", unpause,
    ])
    .await;

    let bad = write(
        dev.dir.path(),
        "bad.yaml",
        &MANIFEST.replace("  provider: kubernetes\n", ""),
    );
    let refused = dev.output(&["apply", "-f", &bad]).await;
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        words.contains("spec.provider is required when spec.mode is Managed"),
        "{words}"
    );

    assert!(
        dev.kubectl(&["delete", "-f", &file, "--wait"])
            .await
            .contains("deleted")
    );
    let gone = dev.output(&["get", "proxy", "by-hand"]).await;
    assert!(String::from_utf8_lossy(&gone.stderr).contains("NotFound"));
    dev.interrupt().await;
}
