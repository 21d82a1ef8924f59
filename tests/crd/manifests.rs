//! What `manifests/` installs: names that fit together, and no right too many.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proxy_operator::api;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NAME: &str = "proxy-operator";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn base() -> PathBuf {
    root().join("manifests/base")
}

/// Every object of a file.
fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(base().join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The object of that kind, and that every field of it is one the kind has.
fn typed<K: DeserializeOwned + serde::Serialize>(file: &str, kind: &str) -> K {
    let found = documents(file)
        .into_iter()
        .find(|object| object["kind"] == kind);
    let found = found.unwrap_or_else(|| panic!("{file} has no {kind}"));
    let read: K = serde_json::from_value(found.clone()).expect("the kind's own fields");
    assert_eq!(
        serde_json::to_value(&read).expect("plain texts"),
        found,
        "{file}: an unknown field"
    );
    read
}

fn role() -> ClusterRole {
    typed("rbac.yaml", "ClusterRole")
}

#[test]
fn every_file_is_listed_and_every_listed_file_is_there() {
    for folder in [base(), root().join("crds")] {
        let text = std::fs::read_to_string(folder.join("kustomization.yaml")).expect("the list");
        let list: Value = serde_saphyr::from_str(&text).expect("valid YAML");
        let listed: BTreeSet<String> =
            serde_json::from_value(list["resources"].clone()).expect("a list of names");
        let (folders, listed): (BTreeSet<_>, BTreeSet<_>) = listed
            .into_iter()
            .partition(|name| !name.ends_with(".yaml"));
        for name in folders {
            assert!(
                folder.join(&name).join("kustomization.yaml").is_file(),
                "{name}"
            );
        }
        let there = std::fs::read_dir(&folder).expect("a folder").map(|entry| {
            entry
                .expect("a readable folder")
                .file_name()
                .to_string_lossy()
                .into_owned()
        });
        let there: BTreeSet<_> = there.filter(|name| name != "kustomization.yaml").collect();
        assert_eq!(listed, there, "{}", folder.display());
    }
}

#[test]
fn account_role_binding_and_deployment_name_each_other() {
    let namespace: Namespace = typed("namespace.yaml", "Namespace");
    assert_eq!(namespace.metadata.name.as_deref(), Some(NAME));

    let account: ServiceAccount = typed("serviceaccount.yaml", "ServiceAccount");
    assert_eq!(account.metadata.name.as_deref(), Some(NAME));
    assert_eq!(account.metadata.namespace.as_deref(), Some(NAME));

    let binding: ClusterRoleBinding = typed("rbac.yaml", "ClusterRoleBinding");
    assert_eq!(binding.role_ref.kind, "ClusterRole");
    assert_eq!(Some(binding.role_ref.name), role().metadata.name);
    let is_the_account = |subjects: Option<Vec<Subject>>| {
        let subjects = subjects.expect("somebody has the role");
        let [subject] = subjects.as_slice() else {
            panic!("more than one has the role")
        };
        assert_eq!(subject.kind, "ServiceAccount");
        assert_eq!(Some(&subject.name), account.metadata.name.as_ref());
        assert_eq!(subject.namespace, account.metadata.namespace);
    };
    is_the_account(binding.subjects);

    let role: Role = typed("rbac.yaml", "Role");
    let binding: RoleBinding = typed("rbac.yaml", "RoleBinding");
    assert_eq!(binding.role_ref.kind, "Role");
    assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    is_the_account(binding.subjects);
    for namespace in [role.metadata.namespace, binding.metadata.namespace] {
        assert_eq!(namespace, account.metadata.namespace);
    }

    let deployment: Deployment = typed("deployment.yaml", "Deployment");
    assert_eq!(deployment.metadata.namespace, account.metadata.namespace);
    let spec = deployment.spec.expect("it has a spec");
    let pod = spec.template.spec.expect("it has pods");
    assert_eq!(pod.service_account_name, account.metadata.name);
    let labels = spec
        .template
        .metadata
        .and_then(|metadata| metadata.labels)
        .expect("labels");
    for (key, value) in spec.selector.match_labels.expect("a selector") {
        assert_eq!(labels.get(&key), Some(&value), "{key}");
    }
}

#[test]
fn o03_the_role_has_these_rights_and_no_other() {
    let right = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let expected = vec![
        right(api::GROUP, "proxies", &["get", "list", "watch", "patch"]),
        right(api::GROUP, "proxies/status", &["patch"]),
        right(api::GROUP, "proxies/finalizers", &["update"]),
        right("", "secrets", &["get", "list", "watch", "create", "delete"]),
        right("", "pods", &["create", "get", "list", "delete"]),
        right("events.k8s.io", "events", &["create"]),
        PolicyRule {
            resource_names: Some(vec![proxy_operator::definition::NAME.to_owned()]),
            ..right(
                "apiextensions.k8s.io",
                "customresourcedefinitions",
                &["get"],
            )
        },
        PolicyRule {
            resource_names: Some(vec!["kube-system".to_owned()]),
            ..right("", "namespaces", &["get"])
        },
    ];
    assert_eq!(role().rules, Some(expected));

    // In its own namespace: the Lease by which replicas agree, and the cluster id.
    let expected = vec![
        right("coordination.k8s.io", "leases", &["create"]),
        PolicyRule {
            resource_names: Some(vec![proxy_operator::operations::LEASE.to_owned()]),
            ..right("coordination.k8s.io", "leases", &["get", "update"])
        },
        right("", "configmaps", &["create"]),
        PolicyRule {
            resource_names: Some(vec![proxy_operator::CONFIG_MAP.to_owned()]),
            ..right("", "configmaps", &["get", "update"])
        },
    ];
    let role: Role = typed("rbac.yaml", "Role");
    assert_eq!(role.rules, Some(expected));
}

#[test]
fn o04_two_operators_with_an_election_and_probes_run_without_privileges() {
    let deployment: Deployment = typed("deployment.yaml", "Deployment");
    let spec = deployment.spec.expect("it has a spec");
    assert_eq!(spec.replicas, Some(2));
    let pod = spec.template.spec.expect("it has pods");
    let expected = json!({
        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    assert_eq!(
        serde_json::to_value(pod.security_context).expect("plain texts"),
        expected
    );
    let [container] = pod.containers.as_slice() else {
        panic!("one container")
    };
    let expected = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    });
    let context = container
        .security_context
        .as_ref()
        .expect("a security context");
    assert_eq!(
        serde_json::to_value(context).expect("plain texts"),
        expected
    );
    let args = container.args.as_deref().expect("arguments");
    for argument in ["run", "--leader-elect", "--health-address=0.0.0.0:8081"] {
        assert!(args.iter().any(|one| one == argument), "{argument}");
    }
    let probes = [
        (&container.liveness_probe, "/healthz"),
        (&container.readiness_probe, "/readyz"),
        (&container.startup_probe, "/healthz"),
    ];
    for (probe, path) in probes {
        let get = probe.as_ref().and_then(|probe| probe.http_get.as_ref());
        let get = get.expect("a probe by HTTP");
        assert_eq!(get.path.as_deref(), Some(path));
        assert_eq!(get.port, IntOrString::String("health".to_owned()));
    }
}

#[test]
fn o04_what_stands_before_the_pods_selects_them_and_names_their_ports() {
    let deployment: Deployment = typed("deployment.yaml", "Deployment");
    let template = deployment.spec.expect("it has a spec").template;
    let labels = template
        .metadata
        .and_then(|metadata| metadata.labels)
        .expect("labels");
    let pod = template.spec.expect("it has pods");
    let ports = pod.containers[0].ports.as_deref().expect("ports");
    let is_port = |name: &IntOrString| {
        let IntOrString::String(name) = name else {
            return false;
        };
        ports.iter().any(|port| port.name.as_ref() == Some(name))
    };
    let selects = |selector: Option<BTreeMap<String, String>>| {
        let selector = selector.expect("a selector");
        !selector.is_empty()
            && selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    };
    for name in ["metrics", "health"] {
        let service: Service = documents("services.yaml")
            .into_iter()
            .map(|object| serde_json::from_value(object).expect("a Service"))
            .find(|one: &Service| one.metadata.name == Some(format!("{NAME}-{name}")))
            .expect("it is there");
        let spec = service.spec.expect("it has a spec");
        assert!(selects(spec.selector), "{name}");
        let [port] = &spec.ports.expect("ports")[..] else {
            panic!("one port")
        };
        assert!(port.target_port.as_ref().is_some_and(is_port), "{name}");
    }
    let policy: NetworkPolicy = typed("network-policy.yaml", "NetworkPolicy");
    let spec = policy.spec.expect("it has a spec");
    assert!(selects(
        spec.pod_selector.and_then(|selector| selector.match_labels)
    ));
    assert_eq!(spec.policy_types, Some(vec!["Ingress".to_owned()]));
    let opened = spec.ingress.expect("what is let in");
    let opened: Vec<_> = opened
        .iter()
        .filter_map(|rule| rule.ports.as_deref())
        .flatten()
        .collect();
    assert_eq!(opened.len(), ports.len());
    assert!(
        opened
            .iter()
            .all(|port| port.port.as_ref().is_some_and(is_port))
    );
    let budget: PodDisruptionBudget = typed("disruption-budget.yaml", "PodDisruptionBudget");
    let spec = budget.spec.expect("it has a spec");
    assert!(selects(
        spec.selector.and_then(|selector| selector.match_labels)
    ));
    assert_eq!(spec.max_unavailable, Some(IntOrString::Int(1)));
}

#[test]
fn o04_the_image_is_built_with_features_that_exist_and_runs_as_the_user_of_the_deployment() {
    let text = std::fs::read_to_string(root().join("Dockerfile")).expect("the Dockerfile");
    let line = |start: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(start));
        lines.next().unwrap_or_else(|| panic!("no line {start}"))
    };
    let cargo = std::fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    let features = cargo.split("\n[features]\n").nth(1).expect("the section");
    let features = features.split("\n[").next().unwrap_or_default();
    for feature in line("ARG FEATURES=").split(',') {
        let is_there = features
            .lines()
            .any(|line| line.starts_with(&format!("{feature} =")));
        assert!(is_there, "no feature {feature}");
    }
    assert!(
        !line("ARG FEATURES=").contains("dev"),
        "a release has no embedded cluster"
    );
    assert_eq!(line("USER "), "65532:65532");
    assert_eq!(line("ENTRYPOINT "), "[\"/proxy-operator\"]");
    let toolchain = line("FROM rust:").split('-').next();
    assert_eq!(toolchain, Some(env!("CARGO_PKG_RUST_VERSION")));
}

/// One and the same set of rights in a namespace of Proxies, however it is given.
#[test]
fn o03_the_role_of_a_fleet_namespace_is_the_cluster_role_without_what_is_of_the_cluster() {
    let of_cluster = ["customresourcedefinitions", "namespaces"];
    let mut expected = role().rules.expect("rules");
    expected.retain(|rule| {
        let resources = rule.resources.as_deref().unwrap_or_default();
        !resources.iter().any(|one| of_cluster.contains(&&**one))
    });
    let role: Role = typed("../fleet-namespace/rbac.yaml", "Role");
    assert_eq!(role.rules, Some(expected));
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn o04_kubectl_builds_the_base_too() {
    let built = match Command::new("kubectl")
        .arg("kustomize")
        .arg(base())
        .output()
    {
        Ok(built) => built,
        Err(error) => {
            eprintln!("skipped: no kubectl ({error})");
            return;
        }
    };
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let text = String::from_utf8(built.stdout).expect("YAML is UTF-8");
    let by_name = |objects: Vec<Value>| -> BTreeMap<String, Value> {
        let name = |one: &Value| format!("{} {}", one["kind"], one["metadata"]);
        objects.into_iter().map(|one| (name(&one), one)).collect()
    };
    let built: Vec<Value> = serde_saphyr::from_multiple(&text).expect("valid YAML");
    let image = format!("proxy-operator:{}", env!("CARGO_PKG_VERSION"));
    let printed = proxy_operator::commands::objects(&image).expect("manifests");
    assert_eq!(by_name(built), by_name(printed));
}
