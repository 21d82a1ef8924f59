//! What the dependency graph must look like, read from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Declared>,
    features: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Declared {
    name: String,
    rename: Option<String>,
    req: String,
    path: Option<String>,
    kind: Option<String>,
    optional: bool,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
    features: Vec<String>,
}

#[derive(Deserialize)]
struct Edge {
    name: String,
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

impl Package {
    /// Whether a feature that is on asks for the dependency behind this edge. Cargo lists those too that only a weak
    /// feature (`name?/feature`) mentions, and never builds them.
    fn asks_for(&self, edge: &Edge, enabled: &[String]) -> bool {
        let mut declared = self.dependencies.iter().filter(|dependency| {
            let key = dependency.rename.as_ref().unwrap_or(&dependency.name);
            key.replace('-', "_") == edge.name
        });
        declared.any(|dependency| {
            let key = dependency.rename.as_ref().unwrap_or(&dependency.name);
            let asked = |text: &String| {
                text.strip_prefix("dep:") == Some(key) || text.split('/').next() == Some(key)
            };
            let mut parts = enabled
                .iter()
                .filter_map(|name| self.features.get(name))
                .flatten();
            !dependency.optional || parts.any(asked)
        })
    }
}

#[derive(Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

/// The resolved graph with all features, seen from our packages along normal and build edges only.
struct Graph {
    packages: BTreeMap<String, Package>,
    edges: BTreeMap<String, Vec<String>>,
    members: Vec<String>,
}

impl Graph {
    fn load() -> Self {
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--format-version",
                "1",
                "--locked",
                "--all-features",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo's format 1");
        let packages: BTreeMap<String, Package> = metadata
            .packages
            .into_iter()
            .map(|p| (p.id.clone(), p))
            .collect();
        let edges = metadata
            .resolve
            .nodes
            .into_iter()
            .map(|node| {
                let shipped = |edge: &Edge| {
                    edge.dep_kinds
                        .iter()
                        .any(|kind| kind.kind.as_deref() != Some("dev"))
                };
                let package = &packages[&node.id];
                let edges = node
                    .deps
                    .into_iter()
                    .filter(shipped)
                    .filter(|edge| package.asks_for(edge, &node.features))
                    .map(|edge| edge.pkg)
                    .collect();
                (node.id, edges)
            })
            .collect();
        Self {
            packages,
            edges,
            members: metadata.workspace_members,
        }
    }

    fn reachable(&self, from: &[String], without: &[&str]) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut open = from.to_vec();
        while let Some(id) = open.pop() {
            if without.contains(&self.packages[&id].name.as_str()) || !seen.insert(id.clone()) {
                continue;
            }
            open.extend(self.edges[&id].iter().cloned());
        }
        seen
    }

    fn shipped(&self) -> impl Iterator<Item = &Package> {
        self.reachable(&self.members, &[])
            .into_iter()
            .map(|id| &self.packages[&id])
    }

    fn member(&self, name: &str) -> &Package {
        self.members
            .iter()
            .map(|id| &self.packages[id])
            .find(|package| package.name == name)
            .unwrap_or_else(|| panic!("no package {name} in the workspace"))
    }
}

#[test]
fn kube_runtime_and_the_other_banned_crates_are_nowhere_in_the_product() {
    let graph = Graph::load();
    let banned = [
        "kube-runtime",
        "kube",
        "openssl",
        "openssl-sys",
        "native-tls",
        "async-std",
        "serde_yaml",
    ];
    let found: Vec<_> = graph
        .shipped()
        .map(|p| p.name.as_str())
        .filter(|name| banned.contains(name))
        .collect();
    assert!(found.is_empty(), "banned: {found:?}");
    let beside_cel = graph.reachable(&graph.members, &["kube-cel"]);
    assert!(
        !beside_cel
            .iter()
            .any(|id| graph.packages[id].name == "chrono"),
        "chrono may only be reached through kube-cel"
    );
}

#[test]
fn our_crates_depend_on_each_other_in_one_direction_only() {
    let graph = Graph::load();
    let allowed: &[(&str, &[&str])] = &[
        ("workqueue", &[]),
        ("informer", &[]),
        ("controller", &["informer", "workqueue"]),
        ("devcluster", &[]),
        ("proxy-operator", &["controller", "informer", "devcluster"]),
        ("realcluster", &[]),
        ("fake-gce", &[]),
        (
            "benches",
            &["workqueue", "informer", "controller", "devcluster"],
        ),
    ];
    let ours: BTreeSet<&str> = graph
        .members
        .iter()
        .map(|id| graph.packages[id].name.as_str())
        .collect();
    assert_eq!(
        ours,
        allowed.iter().map(|(name, _)| *name).collect(),
        "a new crate needs a row here: what may it depend on?"
    );
    for (name, may) in allowed {
        for dependency in &graph.member(name).dependencies {
            let shipped = dependency.kind.as_deref() != Some("dev");
            if shipped && ours.contains(dependency.name.as_str()) {
                assert!(
                    may.contains(&dependency.name.as_str()),
                    "{name} must not depend on {}",
                    dependency.name
                );
            }
        }
    }
    let devcluster = graph
        .member("proxy-operator")
        .dependencies
        .iter()
        .find(|d| d.name == "devcluster" && d.kind.is_none())
        .expect("the binary may carry the embedded cluster");
    assert!(
        devcluster.optional,
        "a production image is built without the embedded cluster"
    );
}

#[test]
fn libraries_leave_the_kubernetes_version_to_the_binary() {
    let graph = Graph::load();
    for name in ["informer", "controller", "devcluster"] {
        let manifest =
            std::fs::read_to_string(format!("{}/{name}/Cargo.toml", env!("CARGO_MANIFEST_DIR")))
                .expect("a manifest");
        let dependencies = manifest
            .split("\n[dependencies]\n")
            .nth(1)
            .expect("the section");
        let shipped = dependencies.split("\n[").next().unwrap_or_default();
        assert!(
            !shipped.contains("v1_"),
            "{name} picks a k8s-openapi version"
        );
        assert_eq!(graph.member(name).name, name);
    }
}

#[test]
fn shared_types_exist_in_one_version() {
    let graph = Graph::load();
    for name in [
        "kube-core",
        "kube-client",
        "k8s-openapi",
        "jiff",
        "tokio",
        "rustls",
        "http",
    ] {
        let versions: BTreeSet<_> = graph
            .shipped()
            .filter(|p| p.name == name)
            .map(|p| p.version.as_str())
            .collect();
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
    }
}

#[test]
fn every_dependency_is_public_pinned_and_freely_licensed() {
    let graph = Graph::load();
    let allowed = [
        "MIT",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "Unicode-3.0",
        "Zlib",
        "CDLA-Permissive-2.0",
        "0BSD",
        "BSL-1.0",
        "Unlicense",
        "MIT-0",
    ];
    for package in graph.shipped() {
        let licence = package.license.as_deref().unwrap_or("none");
        // One alternative of an OR suffices; each part of an AND is needed.
        let free = licence
            .replace('/', " OR ")
            .split(" OR ")
            .any(|alternative| {
                alternative.split(" AND ").all(|part| {
                    let part = part.trim().trim_matches(['(', ')']);
                    allowed.contains(&part.split(" WITH ").next().unwrap_or(part))
                })
            });
        assert!(
            free,
            "{} {}: licence {licence}",
            package.name, package.version
        );
        if let Some(source) = &package.source {
            assert!(
                source.starts_with("registry+"),
                "{}: {source}",
                package.name
            );
        }
    }
    for id in &graph.members {
        for dependency in &graph.packages[id].dependencies {
            let ours = dependency.path.is_some();
            assert!(ours || dependency.req != "*", "{} in {id}", dependency.name);
            assert_ne!(
                dependency.name, "lazy_static",
                "std::sync::LazyLock does it"
            );
        }
    }
}
