//! The documents hold what they promise: commands run, links lead somewhere, named code is there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use devcluster::DevCluster;
use devcluster::kubelet::{Kubelet, KubeletOptions};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_client::core::params::{ListParams, PostParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::api::Proxy;
use proxy_operator::api::conditions::Reason;
use proxy_operator::api::validation::validate;
use realcluster::RealCluster;
use realcluster::tools::Tool;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::common::eventually::eventually;
use crate::kubectl::kubectl_is_there;

#[path = "../../controller/examples/configmap_expiry.rs"]
#[expect(dead_code, reason = "main is the example's")]
mod configmap_expiry;

const BINARY: &str = env!("CARGO_BIN_EXE_proxy-operator");
const PATIENCE: Duration = Duration::from_secs(60);

/// Commands of `sh` blocks that no line of `.ci/run` calls, since tests run them: the first here, since
/// it ends only when interrupted, the others in `dev.rs` (the second with `--once`).
const RUN_HERE: [&str; 5] = [
    "cargo run",
    "cargo run -- dev --provider sim",
    "cargo run -- dev --scene quota --once",
    "cargo run -- dev --scene crash --once",
    "cargo run -- dev --scene rotation --once",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every document, with its path below the root.
fn documents() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for folder in [
        ".",
        "docs",
        "docs/adr",
        "workqueue",
        "informer",
        "controller",
        "devcluster",
        "tests/realcluster",
        "tests/tools",
        "benches",
        "benches/peers",
    ] {
        let Ok(entries) = root().join(folder).read_dir() else {
            continue;
        };
        for entry in entries {
            let name = entry.expect("a readable folder").file_name();
            let path = Path::new(folder).join(name);
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = read(path.to_str().expect("UTF-8"));
                found.push((path, text));
            }
        }
    }
    found
}

/// The fenced blocks of a document: language and lines.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body = lines.by_ref().take_while(|line| *line != "```");
            blocks.push((language.to_owned(), body.map(str::to_owned).collect()));
        }
    }
    blocks
}

fn lines_of(text: &str, language: &str) -> Vec<String> {
    let of_language = blocks(text)
        .into_iter()
        .filter(|(found, _)| found == language);
    of_language
        .flat_map(|(_, lines)| lines)
        .filter(|line| !line.is_empty())
        .collect()
}

/// The words of a command, without what only pins or redirects it.
fn words(command: &str) -> Vec<&str> {
    command
        .split_whitespace()
        .take_while(|word| !matches!(*word, "#" | "|" | "2>&1"))
        .filter(|word| *word != "--locked")
        .collect()
}

#[test]
fn every_command_of_the_readme_is_run_by_ci() {
    let readme = read("README.md");
    let known = ["sh", "console", "yaml", "rust,no_run"];
    for (language, _) in blocks(&readme) {
        assert!(
            known.contains(&&*language),
            "a block of {language:?} that nothing checks"
        );
    }
    let ci = read(".ci/run");
    let run: BTreeSet<Vec<&str>> = ci.lines().map(words).collect();
    for command in lines_of(&readme, "sh") {
        let command = words(&command);
        assert!(
            run.contains(&command) || RUN_HERE.contains(&&*command.join(" ")),
            "neither .ci/run nor a test runs {command:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cargo_run_shows_the_fleet_until_it_is_interrupted() {
    let mut dev = Command::new(BINARY)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(dev.stdout.take().expect("a pipe")).lines();
    let mut seen = Vec::new();
    let answered = tokio::time::timeout(PATIENCE, async {
        let mut answered = BTreeSet::new();
        while answered.len() < 6 {
            let line = lines
                .next_line()
                .await
                .expect("UTF-8")
                .expect("it shows six proxies first");
            if let Some((proxy, _)) = line.split_once(": via ")
                && line.matches("GET 200").count() == 2
            {
                answered.insert(proxy.rsplit(' ').next().map(str::to_owned));
            }
            seen.push(line);
        }
    })
    .await;
    assert!(
        answered.is_ok(),
        "no answer through each of the six proxies: {seen:#?}"
    );
    let pid = dev.id().expect("it runs").to_string();
    let sent = Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .await
        .expect("kill runs");
    assert!(sent.success());
    let ended = tokio::time::timeout(PATIENCE, dev.wait())
        .await
        .expect("it ends on Ctrl-C");
    assert_eq!(ended.expect("the process is ours").code(), Some(0));
}

/// A shell in the root of the project whose `kubectl`, `helm` and `proxy-operator` talk to `kubeconfig`.
async fn shell(command: &str, kubeconfig: &Path, programs: &[PathBuf]) -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = programs
        .iter()
        .filter_map(|program| program.parent().map(Path::to_owned))
        .chain(std::env::split_paths(&path));
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(root())
        .env("PATH", std::env::join_paths(folders).expect("folders"))
        .env("HOME", kubeconfig.with_file_name("home"))
        .env("KUBECONFIG", kubeconfig)
        .env("KUBECACHEDIR", kubeconfig.with_file_name("cache"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(2 * PATIENCE, output)
        .await
        .unwrap_or_else(|_| panic!("{command} hangs"))
        .expect("sh runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command}\n{out}{err}");
    out.into_owned()
}

/// The real server empties deleted namespaces, as a cluster's controllers do.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_installation_work_in_their_order_on_the_real_server() {
    let Some(helm) = Tool::Helm.if_built().expect("the program that is demanded") else {
        return crate::common::skipped("no helm (see tests/tools)");
    };
    let options = realcluster::Options {
        controllers: vec!["namespace-controller".to_owned()],
        ..realcluster::Options::default()
    };
    let cluster = RealCluster::start_if_built(&options)
        .await
        .expect("it starts");
    let (Some(cluster), true) = (cluster, kubectl_is_there()) else {
        return crate::common::skipped("no real API server");
    };
    let dir = tempfile::tempdir().expect("a folder");
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::copy(cluster.kubeconfig(), &kubeconfig).expect("a kubeconfig");
    let commands = lines_of(&read("docs/install.md"), "sh");
    assert!(commands.len() >= 10, "{commands:?}");
    for command in commands {
        shell(&command, &kubeconfig, &[helm.clone(), BINARY.into()]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_lines_of_the_readme_work_in_their_order() {
    if !kubectl_is_there() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let kubeconfig = dir.path().join("kubeconfig");
    let cluster = DevCluster::builder()
        .start()
        .await
        .expect("the embedded cluster starts");
    cluster.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    let nodes = Kubelet::start(cluster.client(), KubeletOptions::default())
        .await
        .expect("nodes");
    let log = std::fs::File::create(dir.path().join("operator.log")).expect("a log file");
    let mut operators = Vec::new();

    for line in lines_of(&read("README.md"), "console") {
        let command = line
            .strip_prefix("$ ")
            .expect("a console line begins with $");
        if let Some(arguments) = command.strip_prefix("cargo run -- ") {
            let operator = Command::new(BINARY)
                .args(arguments.split(' '))
                .env("KUBECONFIG", &kubeconfig)
                .env("PXO_PROVISIONING_POLL", "200ms")
                .env("PXO_DELETION_POLL", "200ms")
                .stdin(Stdio::null())
                .stderr(log.try_clone().expect("a second handle of the log"))
                .kill_on_drop(true)
                .spawn();
            operators.push(operator.expect("the binary starts"));
            continue;
        }
        assert!(command.starts_with("kubectl "), "nothing runs `{command}`");
        let said = shell(command, &kubeconfig, &[]).await;
        if command.contains("get proxies") {
            assert_eq!(said.matches(" Ready ").count(), 6, "{said}");
        }
    }
    assert!(!operators.is_empty(), "the README runs the operator");
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "crawl");
    let left = pods
        .list(&ListParams::default())
        .await
        .expect("a list")
        .items;
    assert!(
        left.is_empty(),
        "pods of deleted Proxies are left: {}",
        left.len()
    );
    drop(operators);
    nodes.shutdown().await;
    cluster.shutdown().await;
}

#[test]
fn the_proxy_of_the_readme_breaks_no_rule() {
    let text = lines_of(&read("README.md"), "yaml").join("\n");
    let proxy: Proxy = serde_saphyr::from_str(&text).expect("a Proxy");
    assert_eq!(validate(&proxy), []);
}

#[test]
fn the_controller_of_the_readme_is_the_shipped_example_and_shorter_than_60_lines() {
    let example = read("controller/examples/configmap_expiry.rs");
    let shown = lines_of(&read("README.md"), "rust,no_run");
    let shipped: Vec<_> = example.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(shown, shipped);
    assert!(example.lines().count() < 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_of_the_readme_deletes_what_has_expired_and_nothing_else() {
    let cluster = DevCluster::builder()
        .start()
        .await
        .expect("the embedded cluster starts");
    let configs: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let at = |seconds| (Timestamp::now() + SignedDuration::from_secs(seconds)).to_string();
    for (name, expires) in [
        ("past", Some(at(-1))),
        ("soon", Some(at(2))),
        ("later", Some(at(3600))),
        ("unreadable", Some("tomorrow".to_owned())),
        ("never", None),
    ] {
        let mut config = ConfigMap::default();
        config.metadata.name = Some(name.to_owned());
        config.metadata.annotations =
            expires.map(|expires| [("example.dev/expires".to_owned(), expires)].into());
        configs
            .create(&PostParams::default(), &config)
            .await
            .expect("a ConfigMap");
    }
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    let manager = configmap_expiry::expiry(cluster.client()).expect("the example is sound");
    running.spawn(manager.run(stop.clone()));
    eventually(
        PATIENCE,
        "what has expired is gone, and nothing else",
        || async {
            let list = configs.list(&ListParams::default()).await.expect("a list");
            let names: Vec<_> = list.items.iter().map(ResourceExt::name_any).collect();
            if names == ["later", "never", "unreadable"] {
                Ok(())
            } else {
                Err(names.join(", "))
            }
        },
    )
    .await;
    stop.cancel();
    let ended = running
        .join_next()
        .await
        .expect("it was spawned")
        .expect("no panic");
    ended.expect("a stop is no error");
    cluster.shutdown().await;
}

#[test]
fn every_local_link_leads_to_a_file() {
    for (document, text) in documents() {
        for link in text.split("](").skip(1) {
            let target = link.split(')').next().unwrap_or_default();
            let path = target.split('#').next().unwrap_or_default();
            let is_elsewhere = path.is_empty() || path.contains("://");
            // An item of the crate that the document belongs to, or a pattern in a rule's text.
            let is_no_path = !path.contains(['/', '.']) || path.contains(['[', '{']);
            if is_elsewhere || is_no_path {
                continue;
            }
            let folder = root().join(&document);
            let found = folder.with_file_name(path);
            assert!(
                found.exists(),
                "{}: {target} leads nowhere",
                document.display()
            );
        }
    }
}

/// The texts in backticks, outside of fenced blocks.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("\n```").step_by(2);
    prose
        .flat_map(|part| part.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_path_that_a_document_names_is_there() {
    let entries = root().read_dir().expect("the project's folder");
    let folders: BTreeSet<_> = entries
        .map(|entry| entry.expect("readable").file_name())
        .collect();
    for (document, text) in documents() {
        for path in quoted(&text) {
            let first = path.split_once('/').map(|(first, _)| first);
            let is_ours = first.is_some_and(|first| folders.contains(OsStr::new(first)));
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
            if !is_ours || !path.bytes().all(is_plain) || first == Some("target") {
                continue;
            }
            // A crate's README may name what lies in the crate.
            let places = [
                root().join(path),
                root().join(&document).with_file_name(path),
            ];
            let is_there = places.iter().any(|place| place.exists());
            assert!(is_there, "{}: no {path}", document.display());
        }
    }
}

/// All code below a folder, in one text.
fn code(folder: &Path) -> String {
    let mut text = String::new();
    for entry in folder.read_dir().expect("a folder of code") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            text += &code(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(&path).expect("code is UTF-8");
        }
    }
    text
}

#[test]
fn the_log_lines_that_the_operations_manual_explains_are_written_by_the_code() {
    let folders = ["src", "controller/src", "informer/src"];
    let code: String = folders.map(|folder| code(&root().join(folder))).concat();
    let manual = read("docs/operations.md");
    let is_log_row = |row: &&str| {
        ["| info |", "| warn |", "| error |"]
            .iter()
            .any(|l| row.contains(l))
    };
    let mut n_messages = 0;
    for row in manual.lines().filter(is_log_row) {
        let first = row.split('|').nth(1).unwrap_or_default();
        for message in quoted(first) {
            assert!(
                code.contains(&format!("\"{message}\"")),
                "nothing logs {message:?}"
            );
            n_messages += 1;
        }
    }
    assert!(
        n_messages >= 5,
        "the manual explains log lines: {n_messages}"
    );
}

#[test]
fn the_operations_manual_has_an_entry_for_each_reason_of_a_condition_and_for_no_other() {
    let manual = read("docs/operations.md");
    let (_, runbook) = manual
        .split_once("## Runbook")
        .expect("the manual has a runbook");
    let runbook = runbook.split("\n## ").next().unwrap_or_default();
    let rows = runbook.lines().filter(|line| line.starts_with("| "));
    let mut entries = Vec::new();
    for row in rows.filter(|row| !row.starts_with("| reason ")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let ["", reason, means, look, act, ""] = cells.as_slice() else {
            panic!("four columns: {row}")
        };
        assert!(
            [means, look, act].iter().all(|cell| !cell.is_empty()),
            "what it means, what to look at, what to do: {row}"
        );
        entries.push((*reason).to_owned());
    }
    let mut wanted: Vec<_> = Reason::ALL.iter().map(ToString::to_string).collect();
    entries.sort();
    wanted.sort();
    assert_eq!(entries, wanted, "one entry for each reason");
}

/// Words of a text that are names of series.
fn series(text: &str) -> BTreeSet<&str> {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_inner(c));
    let families = [
        "controller_runtime_",
        "workqueue_",
        "reflector_",
        "informer_",
        "leader_election_",
        "process_",
        "pxo_",
    ];
    words
        .filter(|word| {
            families
                .iter()
                .any(|family| word.len() > family.len() && word.starts_with(family))
        })
        .collect()
}

#[test]
fn the_series_that_alerts_and_tables_of_the_operations_manual_name_are_written_by_the_code() {
    let folders = ["src", "controller/src", "informer/src", "workqueue/src"];
    let code: String = folders.map(|folder| code(&root().join(folder))).concat();
    let manual = read("docs/operations.md");
    let named = series(&manual);
    assert!(named.len() >= 15, "{named:?}");
    for name in named {
        assert!(code.contains(name), "nothing writes {name}");
    }
    let rules = lines_of(&manual, "yaml").join("\n");
    let rules: serde_json::Value = serde_saphyr::from_str(&rules).expect("rules in YAML");
    let rules = rules["groups"][0]["rules"].as_array().expect("rules");
    for rule in rules {
        for field in ["alert", "expr", "annotations"] {
            assert!(!rule[field].is_null(), "{field}: {rule}");
        }
    }
    assert!(rules.len() >= 6, "{}", rules.len());
}

#[test]
fn the_functions_on_the_way_of_an_event_are_where_the_architecture_says() {
    let text = read("ARCHITECTURE.md");
    assert!(
        text.lines().count() <= 300,
        "it is meant to be read in one go"
    );
    let mut n_functions = 0;
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = row.split('|').skip(2);
        let (Some(file), Some(functions)) = (cells.next(), cells.next()) else {
            continue;
        };
        let Some(file) = quoted(file).into_iter().find(|file| file.ends_with(".rs")) else {
            continue;
        };
        let source = read(file);
        for function in quoted(functions) {
            let name = function.rsplit("::").next().unwrap_or(function);
            assert!(
                source.contains(&format!("fn {name}(")) || source.contains(&format!("fn {name}<")),
                "{file} has no function {name}"
            );
            n_functions += 1;
        }
    }
    assert!(
        n_functions >= 20,
        "the way of an event names its functions: {n_functions}"
    );
}
