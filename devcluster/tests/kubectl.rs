//! A real `kubectl` against the embedded cluster. Without one on the machine these tests say so and pass.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use devcluster::DevCluster;
use serde_json::{Value, json};

/// A cluster and the `kubectl` that talks to it.
struct Kubectl {
    cluster: DevCluster,
    folder: Arc<tempfile::TempDir>,
}

/// What a call printed.
#[derive(Debug)]
struct Output {
    ok: bool,
    out: String,
    err: String,
}

impl Output {
    #[track_caller]
    fn ok(&self) -> &str {
        assert!(self.ok, "{self:?}");
        &self.out
    }

    #[track_caller]
    fn has(&self, parts: &[&str]) -> &str {
        self.ok();
        for part in parts {
            assert!(self.out.contains(part), "no {part:?} in {self:?}");
        }
        &self.out
    }

    /// Lines as words.
    fn rows(&self) -> Vec<Vec<&str>> {
        self.out
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect()
    }
}

impl Kubectl {
    /// `None` when there is no kubectl.
    #[expect(
        clippy::print_stderr,
        reason = "a skipped test is told to whoever reads the run"
    )]
    async fn start() -> Option<Self> {
        let found = Command::new("kubectl")
            .args(["version", "--client"])
            .output();
        if !found.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: there is no kubectl on this machine");
            return None;
        }
        let cluster = DevCluster::builder()
            .start()
            .await
            .expect("the cluster starts");
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        cluster
            .write_kubeconfig(folder.path().join("config"))
            .expect("the kubeconfig");
        Some(Self { cluster, folder })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(arguments)
            .env("KUBECONFIG", self.folder.path().join("config"))
            .env("HOME", self.folder.path())
            .env_remove("KUBECTL_EXTERNAL_DIFF");
        command
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, "").await
    }

    /// Runs with a text on standard input.
    async fn run_with(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let input = input.to_owned();
        let ran = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().expect("kubectl starts");
            let mut stdin = child.stdin.take().expect("it is piped");
            stdin.write_all(input.as_bytes()).expect("kubectl reads");
            drop(stdin);
            child.wait_with_output().expect("kubectl ends")
        });
        let output = ran.await.expect("the call does not panic");
        Output {
            ok: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    async fn apply(&self, manifest: &Value) -> Output {
        self.run_with(&["apply", "-f", "-"], &manifest.to_string())
            .await
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("the folder can be written");
        path
    }
}

fn config_map(value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": value, "l": "x"}})
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/i:1"}]},
    })
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "description": "What is wanted.", "properties": {
                        "size": {"type": "integer", "description": "How big it is."},
                    }},
                    "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                }}},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
                ],
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_creates_changes_and_leaves_alone() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&config_map("v"))
        .await
        .has(&["configmap/c created"]);
    let before = k.cluster.store().revision();
    k.apply(&config_map("v"))
        .await
        .has(&["configmap/c unchanged"]);
    assert_eq!(k.cluster.store().revision(), before, "nothing was written");
    k.apply(&config_map("w"))
        .await
        .has(&["configmap/c configured"]);
    let fewer = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "w"}});
    k.apply(&fewer).await.has(&["configmap/c configured"]);
    k.run(&["get", "cm", "c", "-o", "jsonpath={.data}"])
        .await
        .has(&[r#"{"k":"w"}"#]);
    let wrong =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d"}, "dataa": {}});
    let refused = k.apply(&wrong).await;
    assert!(
        !refused.ok && refused.err.contains(r#"unknown field "dataa""#),
        "{refused:?}"
    );
    let unknown =
        json!({"apiVersion": "example.com/v1", "kind": "Nothing", "metadata": {"name": "n"}});
    let refused = k.apply(&unknown).await;
    assert!(
        !refused.ok && refused.err.contains(r#"no matches for kind "Nothing""#),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn diff_shows_what_apply_would_change() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&config_map("v")).await.ok();
    let same = k
        .run_with(&["diff", "-f", "-"], &config_map("v").to_string())
        .await;
    assert!(same.ok && same.out.is_empty(), "{same:?}");
    let differs = k
        .run_with(&["diff", "-f", "-"], &config_map("w").to_string())
        .await;
    assert!(
        !differs.ok && differs.out.contains("+  k: w"),
        "{differs:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn get_prints_the_columns_of_the_server() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&pod()).await.ok();
    let table = k.run(&["get", "pods", "-o", "wide", "--show-labels"]).await;
    table.ok();
    let rows = table.rows();
    assert_eq!(
        &rows[0][..6],
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"]
    );
    assert_eq!(&rows[1][..4], ["p", "0/1", "Pending", "0"]);
    assert_eq!(rows[1].last(), Some(&"app=a"));
    k.run(&["get", "po", "-l", "app=a", "-o", "name"])
        .await
        .has(&["pod/p"]);
    k.run(&["get", "pods", "--field-selector", "status.phase=Running"])
        .await
        .ok();
    k.run(&["get", "all"]).await.has(&["pod/p"]);
    let none = k.run(&["get", "pod", "none"]).await;
    assert!(none.err.contains(r#"pods "none" not found"#), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_shows_an_object_and_its_events() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&pod()).await.ok();
    let uid = k
        .run(&["get", "pod", "p", "-o", "jsonpath={.metadata.uid}"])
        .await
        .ok()
        .to_owned();
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "reason": "Tested", "message": "it was looked at", "type": "Normal", "count": 1,
        "source": {"component": "test"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p", "uid": uid},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    k.run_with(&["create", "-f", "-"], &event.to_string())
        .await
        .ok();
    k.run(&["describe", "pod", "p"]).await.has(&[
        "Name:         p",
        "Status:       Pending",
        "Tested",
        "it was looked at",
    ]);
    k.run(&["get", "events"]).await.has(&["Tested", "pod/p"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_of_every_type_and_an_edit() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&config_map("v")).await.ok();
    for (kind, patch) in [
        ("strategic", r#"{"data":{"s":"1"}}"#),
        ("merge", r#"{"data":{"m":"2","l":null}}"#),
        ("json", r#"[{"op":"add","path":"/data/j","value":"3"}]"#),
    ] {
        k.run(&["patch", "cm", "c", "--type", kind, "-p", patch])
            .await
            .has(&["patched"]);
    }
    k.run(&["annotate", "cm", "c", "note=x"]).await.ok();
    k.run(&["label", "cm", "c", "tier=y"]).await.ok();
    let read = k.run(&["get", "cm", "c", "-o", "json"]).await;
    let object: Value = serde_json::from_str(read.ok()).unwrap();
    assert_eq!(
        object["data"],
        json!({"k": "v", "s": "1", "m": "2", "j": "3"})
    );
    assert_eq!(object["metadata"]["labels"]["tier"], "y");

    let editor = k.file(
        "editor.sh",
        "#!/bin/sh\nsed -i 's/  k: v/  k: edited/' \"$1\"\n",
    );
    let edit = format!("sh {}", editor.display());
    let mut command = k.command(&["edit", "cm", "c"]);
    command.env("EDITOR", edit);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    k.run(&["get", "cm", "c", "-o", "jsonpath={.data.k}"])
        .await
        .has(&["edited"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_explained_listed_and_waited_for() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&definition()).await.has(&["created"]);
    k.run(&[
        "wait",
        "--for=condition=Established",
        "crd/widgets.example.com",
        "--timeout=20s",
    ])
    .await
    .has(&["condition met"]);
    k.run(&["api-resources", "--api-group=example.com"])
        .await
        .has(&["widgets", "wd", "Widget"]);
    let widget = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3},
    });
    k.apply(&widget)
        .await
        .has(&["widget.example.com/w created"]);
    k.apply(&widget).await.has(&["unchanged"]);
    let patch = r#"{"status":{"phase":"Up"}}"#;
    k.run(&[
        "patch",
        "wd",
        "w",
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ])
    .await
    .ok();
    k.run(&[
        "wait",
        "wd/w",
        "--for=jsonpath={.status.phase}=Up",
        "--timeout=20s",
    ])
    .await
    .ok();
    let table = k.run(&["get", "wd", "-o", "wide"]).await;
    table.ok();
    assert_eq!(table.rows(), [["NAME", "PHASE", "SIZE"], ["w", "Up", "3"]]);
    k.run(&["explain", "widgets.spec.size"])
        .await
        .has(&["FIELD: size <integer>", "How big it is."]);
    k.run(&["describe", "wd", "w"])
        .await
        .has(&["Size:  3", "Phase:  Up"]);
    let bad = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "x"}, "spec": {"size": "no"}});
    let refused = k.apply(&bad).await;
    assert!(
        !refused.ok && refused.err.contains("spec.size"),
        "{refused:?}"
    );
    k.run(&["delete", "wd", "w"]).await.has(&["deleted"]);
    k.run(&["delete", "crd", "widgets.example.com"])
        .await
        .has(&["deleted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_prints_rows_as_they_come() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&config_map("v")).await.ok();
    let mut command = k.command(&["get", "cm", "c", "-w"]);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl starts");
    let stdout = child.stdout.take().expect("it is piped");
    let watching = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.take(3).collect::<Vec<String>>()
    });
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while k.cluster.counters().watches().opened == 0 {
        assert!(tokio::time::Instant::now() < deadline, "no watch came");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    k.run(&["patch", "cm", "c", "-p", r#"{"data":{"more":"x"}}"#])
        .await
        .ok();
    let lines = tokio::time::timeout(std::time::Duration::from_secs(20), watching).await;
    child.kill().expect("kubectl still watches");
    child.wait().expect("kubectl ends");
    let lines = lines.expect("a row for each change").unwrap();
    let counts: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(counts, ["DATA", "2", "3"], "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_reviews_and_typed_creation() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.run(&["explain", "pod.spec.containers.ports"])
        .await
        .has(&["FIELD: ports <[]ContainerPort>"]);
    k.run(&["auth", "can-i", "create", "pods"])
        .await
        .has(&["yes"]);
    k.run(&["auth", "whoami"])
        .await
        .has(&["admin", "system:masters"]);
    k.run(&["version"]).await.has(&["v1.37.2"]);
    k.run(&["create", "namespace", "n"])
        .await
        .has(&["namespace/n created"]);
    k.run(&["create", "configmap", "c", "--from-literal=a=b"])
        .await
        .has(&["created"]);
    k.run(&["create", "secret", "generic", "s", "--from-literal=a=b"])
        .await
        .has(&["created"]);
    k.run(&["create", "deployment", "d", "--image=i:1"])
        .await
        .has(&["created"]);
    k.run(&["scale", "deployment", "d", "--replicas=3"])
        .await
        .has(&["scaled"]);
    k.run(&["get", "deployment", "d"]).await.has(&["0/3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_waits_until_the_object_is_gone() {
    let Some(k) = Kubectl::start().await else {
        return;
    };
    k.apply(&pod()).await.ok();
    k.run(&["delete", "pod", "p", "--wait", "--timeout=20s"])
        .await
        .has(&["deleted"]);
    k.apply(&config_map("v")).await.ok();
    k.run(&["delete", "cm", "--all"])
        .await
        .has(&["configmap \"c\" deleted"]);
    k.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}))
        .await
        .ok();
    k.run(&[
        "-n",
        "n",
        "apply",
        "-f",
        k.file("c.json", &config_map("v").to_string())
            .to_str()
            .unwrap(),
    ])
    .await
    .ok();
    k.run(&["delete", "ns", "n", "--timeout=20s"])
        .await
        .has(&["deleted"]);
    let gone = k.run(&["get", "ns", "n"]).await;
    assert!(gone.err.contains("not found"), "{gone:?}");
}
