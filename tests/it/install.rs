//! What installs the operator: the kustomize base and its variants, and the chart, by the real programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::core::params::{DeleteParams, PostParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::definition;
use realcluster::tools::Tool;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::common::eventually::eventually;
use crate::common::operator::Operator;
use crate::common::pods::PodMonitor;
use crate::common::world::{OPERATOR, World};
use crate::common::{fleet, manifests};

const CHART: &str = "charts/proxy-operator";
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);
const STOP: std::time::Duration = std::time::Duration::from_secs(30);
/// What helm adds to the objects of every release.
const OF_RELEASES: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

/// The built program; none, and it says so, where it is not built.
fn tool(tool: Tool) -> Option<PathBuf> {
    let found = tool.if_built().expect("the program that this run demands");
    if found.is_none() {
        crate::common::skipped(&format!("no {tool:?} (see tests/tools)"));
    }
    found
}

/// What a program prints to stdout, or else to stderr.
async fn output(program: &Path, args: &[&str]) -> Result<String, String> {
    let home = tempfile::tempdir().expect("a folder");
    let output = Command::new(program)
        .args(args)
        .current_dir(manifests::in_project("."))
        .env("HOME", home.path())
        .env_remove("KUBECONFIG")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output)
        .await
        .unwrap_or_else(|_| panic!("{args:?} hangs"))
        .expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// The objects of a kustomization; none, and it says so, where kustomize is not built.
pub(crate) async fn kustomize(folder: &str) -> Option<Vec<Value>> {
    let program = tool(Tool::Kustomize)?;
    let built = output(&program, &["build", folder]).await;
    Some(manifests::objects(&built.expect("a kustomization")))
}

/// Objects by kind, namespace and name.
pub(crate) fn by_name(objects: &[Value]) -> BTreeMap<String, Value> {
    let key = |object: &Value| {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let (kind, name) = (object["kind"].as_str(), metadata["name"].as_str());
        format!(
            "{} {namespace}/{}",
            kind.unwrap_or_default(),
            name.unwrap_or_default()
        )
    };
    objects
        .iter()
        .map(|object| (key(object), object.clone()))
        .collect()
}

/// Takes away what only releases have, and the kinds that helm brings in another way.
fn comparable(mut objects: Vec<Value>) -> BTreeMap<String, Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for label in OF_RELEASES {
                    fields.remove(label);
                }
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    objects.retain(|one| one["kind"] != "Namespace" && one["kind"] != "CustomResourceDefinition");
    objects.iter_mut().for_each(strip);
    by_name(&objects)
}

async fn template(helm: &Path, more: &[&str]) -> Result<Vec<Value>, String> {
    let args = [
        &["template", OPERATOR, CHART, "--namespace", OPERATOR],
        more,
    ]
    .concat();
    output(helm, &args)
        .await
        .map(|text| manifests::objects(&text))
}

fn arguments(deployment: &Value) -> Vec<String> {
    let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    serde_json::from_value(args.clone()).expect("a list of texts")
}

#[tokio::test]
async fn o04_the_chart_renders_the_objects_of_the_base() {
    let (Some(helm), Some(base)) = (tool(Tool::Helm), kustomize("manifests/base").await) else {
        return;
    };
    let rendered = comparable(template(&helm, &[]).await.expect("a chart"));
    let base = comparable(base);
    assert!(base.len() >= 10, "{:?}", base.keys());
    assert_eq!(rendered, base);
}

#[tokio::test]
async fn o04_the_chart_of_chosen_namespaces_renders_the_namespaced_variant() {
    let variant = kustomize("manifests/namespaced").await;
    let (Some(helm), Some(variant)) = (tool(Tool::Helm), variant) else {
        return;
    };
    let values = ["--set", "namespaces={crawl}", "--set", "clusterId=example"];
    let rendered = comparable(template(&helm, &values).await.expect("a chart"));
    let variant = comparable(variant);
    assert!(
        variant.keys().all(|key| !key.starts_with("Cluster")),
        "{:?}",
        variant.keys()
    );
    assert!(variant.contains_key("Role crawl/proxy-operator-fleet"));
    assert_eq!(rendered, variant);
}

#[tokio::test]
async fn o04_the_chart_renders_the_service_monitor_of_the_component() {
    let Some(helm) = tool(Tool::Helm) else { return };
    let rendered = template(&helm, &["--set", "serviceMonitor.enabled=true"]).await;
    let rendered = comparable(rendered.expect("a chart"));
    let file = manifests::in_project("manifests/components/service-monitor/service-monitor.yaml");
    let component = manifests::objects(&std::fs::read_to_string(file).expect("a file"));
    let key = "ServiceMonitor proxy-operator/proxy-operator";
    assert_eq!(rendered.get(key), component.first());
}

#[tokio::test]
async fn o04_the_chart_is_sound_and_refuses_values_that_do_not_go_together() {
    let Some(helm) = tool(Tool::Helm) else { return };
    output(&helm, &["lint", "--strict", CHART])
        .await
        .expect("nothing to complain of");
    for (value, part) in [
        ("namespaces={crawl}", "clusterId"),
        ("workers=0", "workers"),
        ("replicaCount=3", "replicaCount"),
        ("log.format=xml", "format"),
        ("image.digest=sha256:1", "digest"),
        ("providers.Cloud.kind=sim", "Cloud"),
        ("extraArgs={run}", "extraArgs"),
    ] {
        let refused = template(&helm, &["--set", value]).await;
        let words = refused.expect_err(value);
        assert!(words.contains(part), "{value}: {words}");
    }
}

#[tokio::test]
async fn o04_values_become_flags_that_the_program_takes() {
    let Some(helm) = tool(Tool::Helm) else { return };
    let values = [
        "clusterId=here",
        "defaultProxyImage=registry.example/forward-proxy:1",
        "providers.kubernetes.kind=kubernetes",
        "workers=7",
        "log.level=debug",
        "log.format=text",
        "extraArgs={--drift-poll=1m}",
        "image.digest=sha256:0123456789012345678901234567890123456789012345678901234567890123",
    ];
    let values: Vec<_> = values.iter().flat_map(|value| ["--set", value]).collect();
    let rendered = by_name(&template(&helm, &values).await.expect("a chart"));
    let deployment = &rendered["Deployment proxy-operator/proxy-operator"];
    let pod = &deployment["spec"]["template"]["spec"];
    let image = pod["containers"][0]["image"].as_str().unwrap_or_default();
    assert!(image.starts_with("proxy-operator@sha256:0123"), "{image}");
    let file =
        &rendered["ConfigMap proxy-operator/proxy-operator-providers"]["data"]["providers.yaml"];
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("providers.yaml");
    std::fs::write(&path, file.as_str().expect("a text")).expect("a file");
    let providers = format!("--providers={}", path.display());
    let mut args = arguments(deployment);
    for argument in &mut args {
        if argument.starts_with("--providers=") {
            argument.clone_from(&providers);
        }
    }
    // It parses the command line and the file, and then misses its cluster.
    let run = Command::new(env!("CARGO_BIN_EXE_proxy-operator"))
        .args(args)
        .env("PXO_KUBECONFIG", dir.path().join("none"))
        .output();
    let run = run.await.expect("the binary starts");
    assert_eq!(run.status.code(), Some(1), "{run:?}");
}

mod real {
    use super::*;

    async fn bare() -> Option<World> {
        let world = World::bare().await;
        if world.is_none() {
            crate::common::skipped("no real API server");
        }
        world
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn o04_base_and_namespaced_variant_are_taken_by_a_dry_run_and_for_good() {
        let (Some(base), Some(variant)) = (
            kustomize("manifests/base").await,
            kustomize("manifests/namespaced").await,
        ) else {
            return;
        };
        let Some(world) = bare().await else { return };
        for name in ["crawl", OPERATOR] {
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": name } });
            manifests::apply(&world.admin, &namespace, false).await;
        }
        for objects in [&base, &variant] {
            for object in objects {
                manifests::apply(&world.admin, object, true).await;
            }
            let made = definition_is_there(&world).await;
            assert!(!made, "a dry run keeps nothing");
        }
        for objects in [base, variant] {
            for object in objects {
                let stored = manifests::apply(&world.admin, &object, false).await;
                let again = manifests::apply(&world.admin, &object, false).await;
                let what = format!("{} {}", object["kind"], stored.name_any());
                assert_eq!(
                    stored.metadata.generation, again.metadata.generation,
                    "{what}"
                );
            }
            world.serves_proxies().await;
            remove_definition(&world).await;
        }
        world.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn t88_the_notes_say_how_the_proxies_of_each_chosen_namespace_are_removed() {
        let Some(helm) = tool(Tool::Helm) else { return };
        // helm asks a server which kinds there are even where it only prints.
        let Some(world) = bare().await else { return };
        let kubeconfig = world.admin_kubeconfig().display().to_string();
        let of_two = ["--set", "namespaces={a,b}", "--set", "clusterId=example"];
        for (values, removals) in [
            (&of_two[..], &["-n a", "-n b"][..]),
            (&[], &["--all-namespaces"]),
        ] {
            let args = [
                "install",
                OPERATOR,
                CHART,
                "--dry-run=client",
                "--kubeconfig",
            ];
            let args = [&args[..], &[kubeconfig.as_str()], values].concat();
            let said = output(&helm, &args).await.expect("a chart");
            let (_, notes) = said.split_once("NOTES:").expect("notes");
            let lines = notes.lines().map(str::trim);
            let removed: Vec<_> = lines
                .filter_map(|line| line.strip_prefix("kubectl delete proxies --all "))
                .collect();
            assert_eq!(removed, removals, "{notes}");
            // What comes before the Proxies are gone would leave them to nobody.
            let at = |part| notes.find(part).expect("it is named");
            assert!(at("delete proxies") < at("helm uninstall"), "{notes}");
            assert!(at("helm uninstall") < at("kubectl delete crd"), "{notes}");
        }
        world.shutdown().await;
    }

    async fn definition_is_there(world: &World) -> bool {
        let definitions: Api<CustomResourceDefinition> = Api::all(world.admin.clone());
        let found = definitions.get_opt(definition::NAME).await;
        found.expect("an answer").is_some()
    }

    /// Deletes the definition and waits until it is gone, which no object of it may hinder.
    async fn remove_definition(world: &World) {
        let definitions: Api<CustomResourceDefinition> = Api::all(world.admin.clone());
        let params = DeleteParams::default();
        let deleted = definitions.delete(definition::NAME, &params).await;
        drop(deleted.expect("it is there"));
        eventually(PATIENCE, "the definition is gone", || async {
            if definition_is_there(world).await {
                Err("still there".to_owned())
            } else {
                Ok(())
            }
        })
        .await;
    }

    /// helm against the world's server, in the operator's namespace.
    struct Helm<'a> {
        program: PathBuf,
        world: &'a World,
    }

    impl Helm<'_> {
        async fn run(&self, args: &[&str]) -> String {
            let kubeconfig = self.world.admin_kubeconfig().display().to_string();
            let at = ["--namespace", OPERATOR, "--kubeconfig", &kubeconfig];
            let done = output(&self.program, &[args, &at].concat()).await;
            done.unwrap_or_else(|words| panic!("helm {args:?}: {words}"))
        }

        /// The operator with the arguments of the Deployment, as its pod would run it.
        async fn operator(&self) -> Operator {
            self.world.admit_operator().await;
            let deployments: Api<Deployment> = Api::namespaced(self.world.admin.clone(), OPERATOR);
            let deployment = deployments.get(OPERATOR).await.expect("it is installed");
            let deployment = serde_json::to_value(deployment).expect("plain texts");
            // All pods of this machine share its ports, so that those of the Deployment may be taken.
            let args = arguments(&deployment);
            let flags = args[1..].iter().filter(|flag| !flag.contains("-address="));
            let flags: Vec<_> = flags.map(String::as_str).collect();
            assert!(flags.contains(&"--leader-elect"), "{flags:?}");
            let in_its_namespace = [&flags[..], &["--leader-elect-namespace", OPERATOR]].concat();
            Operator::start(&self.world.operator_kubeconfig(), &in_its_namespace)
        }

        /// Everything that carries the release's name.
        async fn left(&self) -> Vec<String> {
            let mut left = Vec::new();
            let manifest = template(&self.program, &[]).await.expect("a chart");
            for object in manifest {
                let object = manifests::dynamic(&object);
                let place = manifests::place(&self.world.admin, &object);
                let name = object.name_any();
                if place.get_opt(&name).await.expect("an answer").is_some() {
                    left.push(format!("{:?} {name}", object.types));
                }
            }
            left
        }
    }

    const NAMES: [&str; 3] = ["one", "two", "three"];

    async fn create_fleet(world: &World) {
        for name in NAMES {
            let inline = json!({ "cloudInit": { "inline": "#cloud-config\n" } });
            fleet::create(world, &fleet::managed(name, &inline)).await;
        }
        for name in NAMES {
            fleet::ready(world, name).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn t88_the_chart_is_installed_upgraded_over_live_proxies_and_removed_with_nothing_stuck()
    {
        let Some(program) = tool(Tool::Helm) else {
            return;
        };
        let Some(world) = bare().await else { return };
        let helm = Helm {
            program,
            world: &world,
        };
        let namespace: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": OPERATOR } }))
                .expect("a namespace");
        Api::<Namespace>::all(world.admin.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .expect("the operator's namespace");

        helm.run(&["install", OPERATOR, CHART, "--dry-run=server"])
            .await;
        assert_eq!(helm.left().await, [""; 0], "a dry run keeps nothing");
        let notes = helm.run(&["install", OPERATOR, CHART]).await;
        for part in [
            "crd apply",
            "helm uninstall",
            "kubectl delete proxies --all",
        ] {
            assert!(notes.contains(part), "{part} in {notes}");
        }
        world.serves_proxies().await;
        let monitor = PodMonitor::start(&world).await;
        let mut operator = helm.operator().await;
        create_fleet(&world).await;

        // The documented upgrade: the definition first, then the release.
        let admin = world.admin_kubeconfig();
        let apply = Command::new(env!("CARGO_BIN_EXE_proxy-operator"))
            .args(["crd", "apply", "--kubeconfig"])
            .arg(&admin)
            .output();
        let apply = apply.await.expect("the binary starts");
        assert!(apply.status.success(), "{apply:?}");
        helm.run(&["upgrade", OPERATOR, CHART, "--set", "workers=7,replicas=3"])
            .await;
        assert_eq!(operator.terminate(STOP).await, Some(0));
        let mut operator = helm.operator().await;
        let edit = json!({ "spec": { "tags": { "edited": "yes" } } });
        let before = fleet::get(&world, "one").await.expect("it is there");
        fleet::edit(&world, "one", &edit).await;
        fleet::replaced(&world, "one", &before).await;
        for (name, pods) in [("one", 2), ("two", 1), ("three", 1)] {
            let proxy = fleet::ready(&world, name).await;
            let uid = proxy.uid().expect("a UID");
            assert_eq!(
                monitor.ever(&uid),
                pods,
                "{name}: an upgrade replaces no machine"
            );
            fleet::answers(&world, &proxy).await;
        }

        // Removed in the wrong order, Proxies stay until an operator is back.
        assert_eq!(operator.terminate(STOP).await, Some(0));
        helm.run(&["uninstall", OPERATOR]).await;
        assert_eq!(helm.left().await, [""; 0]);
        fleet::delete(&world, "three").await;
        let waiting = fleet::get(&world, "three")
            .await
            .expect("held by its finalizer");
        assert!(waiting.metadata.deletion_timestamp.is_some());
        helm.run(&["install", OPERATOR, CHART]).await;
        let mut operator = helm.operator().await;
        fleet::gone(&world, "three").await;

        // The documented order.
        for name in ["one", "two"] {
            fleet::delete(&world, name).await;
        }
        for name in NAMES {
            fleet::gone(&world, name).await;
        }
        assert!(fleet::all_pods(&world).await.is_empty());
        assert_eq!(operator.terminate(STOP).await, Some(0));
        helm.run(&["uninstall", OPERATOR]).await;
        assert_eq!(helm.left().await, [""; 0]);
        remove_definition(&world).await;
        monitor.assert_never_two();
        world.shutdown().await;
    }
}
