//! Orphan collection: pods that no Proxy stands behind any more, on a server that has bad days.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use devcluster::faults::{Action, FaultProxy, Rule};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::core::params::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::api::Proxy;
use proxy_operator::api::conditions::ConditionType;
use proxy_operator::{CLUSTER_ID_KEY, CONFIG_MAP};
use serde_json::{Value, json};

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::page::{free_address, get};
use crate::common::pods::PROXY_UID;
use crate::common::world::World;

/// Namespace of the operator's own objects.
pub(crate) const HOME: &str = "proxy-operator";
const CLUSTER: &str = "crawl.proxyoperator.dev/cluster";

/// An operator that looks for orphans every half second, and where it tells what it counts.
pub(crate) struct Collecting {
    pub(crate) operator: Operator,
    metrics: SocketAddr,
}

impl Collecting {
    fn start(world: &World, mode: &str) -> Self {
        Self::start_with(&world.operator_kubeconfig(), mode, &[])
    }

    pub(crate) fn start_with(kubeconfig: &Path, mode: &str, more: &[&str]) -> Self {
        let metrics = free_address();
        let address = metrics.to_string();
        let mut flags = vec!["--gc-mode", mode, "--metrics-address", &address];
        flags.extend([
            "--gc-interval",
            "500ms",
            "--gc-min-age",
            "0s",
            "--gc-calm",
            "0s",
        ]);
        flags.extend(more);
        Self {
            operator: Operator::start(kubeconfig, &flags),
            metrics,
        }
    }

    /// The value of a series; 0 where it is not there.
    pub(crate) async fn count(&self, series: &str) -> u64 {
        let Ok(page) = get(self.metrics, "/metrics").await else {
            return 0;
        };
        let mut lines = page
            .lines()
            .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        lines
            .next()
            .map_or(0, |value| value.parse().expect("a number"))
    }

    /// Waits until a series has grown by `more` from now on.
    async fn counts(&self, series: &str, more: u64) {
        let least = self.count(series).await + more;
        eventually(fleet::STEP, &format!("{series} gets {least}"), || async {
            let now = self.count(series).await;
            if now >= least {
                Ok(())
            } else {
                Err(now.to_string())
            }
        })
        .await;
    }

    /// Waits for three more cycles, in which everything would have gone that may.
    pub(crate) async fn looks_three_times(&self) {
        self.counts("pxo_orphan_cycle_duration_seconds_count", 3)
            .await;
    }

    /// Waits for three more cycles that this guard held.
    pub(crate) async fn is_guarded(&self, cause: &str) {
        let series = format!("pxo_orphan_cycles_guarded_total{{cause=\"{cause}\"}}");
        self.counts(&series, 3).await;
    }
}

async fn cluster_id(world: &World) -> String {
    let namespaces: Api<Namespace> = Api::all(world.admin.clone());
    let system = namespaces.get("kube-system").await.expect("it is there");
    system.uid().expect("a UID")
}

/// A pod as the operator of cluster `cluster` makes it for the Proxy of that name and UID.
pub(crate) async fn put_pod(world: &World, cluster: &str, proxy: &str, uid: &str) -> Pod {
    let labels = json!({
        CLUSTER: cluster, PROXY_UID: uid, "crawl.proxyoperator.dev/proxy": proxy,
        "app.kubernetes.io/managed-by": "proxy-operator",
    });
    put_labelled(world, &format!("px-{uid}"), &labels).await
}

async fn put_labelled(world: &World, name: &str, labels: &Value) -> Pod {
    let pods: Api<Pod> = world.api();
    let pod = json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "terminationGracePeriodSeconds": 0,
                  "containers": [{ "name": "proxy", "image": "registry.example/old:1" }] },
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("made")
}

async fn is_there(world: &World, pod: &Pod) -> bool {
    let pods: Api<Pod> = world.api();
    let seen = pods.get_opt(&pod.name_any()).await.expect("an answer");
    seen.is_some_and(|seen| {
        seen.metadata.uid == pod.metadata.uid && seen.metadata.deletion_timestamp.is_none()
    })
}

pub(crate) async fn goes(world: &World, pod: &Pod) {
    eventually(fleet::STEP, &format!("{} goes", pod.name_any()), || async {
        match is_there(world, pod).await {
            true => Err("it is there".to_owned()),
            false => Ok(()),
        }
    })
    .await;
}

/// Takes a Proxy away as nobody should: without its finalizer.
pub(crate) async fn force_delete(world: &World, name: &str) {
    let patch = json!({ "metadata": { "finalizers": null } });
    fleet::edit(world, name, &patch).await;
    fleet::delete(world, name).await;
    fleet::gone(world, name).await;
}

async fn only_pod_of(world: &World, proxy: &Proxy) -> Pod {
    let mut pods = fleet::pods_of(world, proxy).await;
    assert_eq!(pods.len(), 1, "{}", proxy.name_any());
    pods.remove(0)
}

/// Waits for an Event of that reason about the object of that name.
pub(crate) async fn event(world: &World, namespace: &str, reason: &str, about: &str) -> Event {
    let events: Api<Event> = Api::namespaced(world.admin.clone(), namespace);
    eventually(fleet::STEP, &format!("{reason} of {about}"), || async {
        let all = events
            .list(&ListParams::default())
            .await
            .expect("a list")
            .items;
        let is_wanted = |event: &&Event| {
            event.reason.as_deref() == Some(reason)
                && event.regarding.as_ref().and_then(|one| one.name.as_deref()) == Some(about)
        };
        all.iter().find(is_wanted).cloned().ok_or_else(|| {
            let seen = all.iter().filter_map(|event| event.reason.clone());
            seen.collect::<Vec<_>>().join(", ")
        })
    })
    .await
}

/// What `proxy-operator gc` answered: exit code, stdout, stderr.
async fn gc(world: &World, flags: &[&str]) -> (Option<i32>, String, String) {
    gc_as(&world.admin_kubeconfig(), flags).await
}

/// The same, with the rights of this kubeconfig.
pub(crate) async fn gc_as(kubeconfig: &Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_proxy-operator"))
        .arg("gc")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(flags)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let limit = std::time::Duration::from_secs(120);
    let output = tokio::time::timeout(limit, run).await.expect("it ends");
    let output = output.expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// T82.
pub(crate) async fn t82_a_pod_whose_proxy_was_deleted_by_force_is_reported_and_in_mode_delete_goes(
    world: &World,
) {
    let operator = Operator::start(&world.operator_kubeconfig(), &[]);
    for name in ["lost", "kept"] {
        fleet::create(world, &fleet::managed(name, &json!({}))).await;
    }
    let lost = only_pod_of(world, &fleet::ready(world, "lost").await).await;
    let kept = only_pod_of(world, &fleet::ready(world, "kept").await).await;
    operator.kill().await;
    force_delete(world, "lost").await;

    let looking = Collecting::start(world, "dry-run");
    let found = event(world, "fleet", "OrphanFound", "lost").await;
    assert_eq!(found.type_.as_deref(), Some("Warning"));
    looking.looks_three_times().await;
    assert_eq!(
        looking.count("pxo_orphans{provider=\"kubernetes\"}").await,
        1
    );
    assert!(is_there(world, &lost).await, "it is only reported");
    let (code, table, _) = gc(world, &["--dry-run", "--min-age", "0s"]).await;
    assert_eq!(code, Some(0), "{table}");
    for part in [
        lost.name_any().as_str(),
        "fleet/lost",
        "orphans: 1 of 2 instances",
    ] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    looking.operator.kill().await;

    let _deleting = Collecting::start(world, "delete");
    goes(world, &lost).await;
    event(world, "fleet", "OrphanDeleted", "lost").await;
    assert!(is_there(world, &kept).await);
    let kept = fleet::ready(world, "kept").await;
    fleet::answers(world, &kept).await;
}

/// T83, with an API server that fails.
pub(crate) async fn t83_nothing_goes_while_the_api_server_fails_lists_nothing_or_knows_no_proxies(
    world: &World,
) {
    let id = cluster_id(world).await;
    // It fails: the lists of Proxies, as the collection makes them.
    let front = FaultProxy::start(world.operator_client().await).await;
    let front = front.expect("a proxy before the server");
    let kubeconfig = world.kubeconfig_at(&front.url());
    let collecting = Collecting::start_with(&kubeconfig, "delete", &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let one = only_pod_of(world, &fleet::ready(world, "one").await).await;
    let failing = Rule::new(Action::status(500, "InternalError")).verb("list");
    let failing = front.faults().add(failing.resource("proxies"));
    // The informer has its list; what fails from here on is the collection's.
    collecting.is_guarded("unread").await;
    let orphan = put_pod(world, &id, "gone", "u-gone").await;
    collecting.is_guarded("unread").await;
    assert!(is_there(world, &orphan).await && is_there(world, &one).await);
    let kept = event(world, HOME, "OrphansKept", CONFIG_MAP).await;
    assert!(
        kept.note
            .is_some_and(|note| note.contains("could not be read"))
    );
    drop(failing);
    goes(world, &orphan).await;
    assert!(is_there(world, &one).await);
    collecting.operator.kill().await;
    front.shutdown().await;

    // It has lost all Proxies.
    force_delete(world, "one").await;
    let collecting = Collecting::start(world, "delete");
    collecting.is_guarded("no-proxies").await;
    assert!(is_there(world, &one).await);

    // It has lost their definition.
    let definitions: Api<CustomResourceDefinition> = Api::all(world.admin.clone());
    let name = "proxies.crawl.proxyoperator.dev";
    let deleted = definitions.delete(name, &DeleteParams::default()).await;
    deleted.expect("the definition can be deleted");
    collecting.is_guarded("definition-missing").await;
    assert!(is_there(world, &one).await);
    let (code, _, error) = gc(world, &["--delete", "--count", "1"]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("does not know Proxies"), "{error}");
}

/// T84, with pods of another cluster in the same place.
pub(crate) async fn t84_pods_of_another_cluster_and_pods_with_forged_labels_are_never_touched(
    world: &World,
) {
    let id = cluster_id(world).await;
    let proxies: Api<Proxy> = world.api();
    for tag in ["pxo-uid", "pxo-cluster", "pxo-managed"] {
        let forging = fleet::managed("forging", &json!({ "tags": { tag: "u-other" } }));
        let refused = proxies.create(&PostParams::default(), &forging).await;
        assert!(refused.is_err(), "{tag} is not a user's");
    }
    let foreign = put_pod(world, "another-cluster", "theirs", "u-theirs").await;
    let all = [
        (CLUSTER, id.as_str()),
        (PROXY_UID, "u-nobody"),
        ("app.kubernetes.io/managed-by", "proxy-operator"),
    ];
    let mut incomplete = Vec::new();
    for (n, (missing, _)) in all.iter().enumerate() {
        let rest = all.iter().filter(|(label, _)| label != missing);
        let labels: serde_json::Map<_, _> = rest
            .map(|(label, value)| ((*label).to_owned(), json!(value)))
            .collect();
        let name = format!("incomplete-{n}");
        incomplete.push(put_labelled(world, &name, &Value::Object(labels)).await);
    }
    let orphan = put_pod(world, &id, "gone", "u-gone").await;

    let collecting = Collecting::start(world, "delete");
    let addition = json!({ "tags": { "team": "u-other", "managed-by": "somebody" } });
    fleet::create(world, &fleet::managed("one", &addition)).await;
    let one = only_pod_of(world, &fleet::ready(world, "one").await).await;
    goes(world, &orphan).await;
    collecting.looks_three_times().await;
    for pod in incomplete.iter().chain([&foreign, &one]) {
        assert!(is_there(world, pod).await, "{}", pod.name_any());
    }
}

/// T86.
pub(crate) async fn t86_thirty_orphans_stop_the_collection_and_go_five_per_cycle_by_their_count(
    world: &World,
) {
    let id = cluster_id(world).await;
    let collecting = Collecting::start(world, "dry-run");
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let one = only_pod_of(world, &fleet::ready(world, "one").await).await;
    collecting.operator.kill().await;
    for n in 0..30 {
        put_pod(world, &id, &format!("gone-{n}"), &format!("u-{n}")).await;
    }
    let collecting = Collecting::start(world, "delete");
    collecting.is_guarded("too-many").await;
    let kept = event(world, HOME, "OrphansKept", CONFIG_MAP).await;
    assert!(
        kept.note
            .is_some_and(|note| note.contains("gc --delete --count 30"))
    );
    assert_eq!(fleet::all_pods(world).await.len(), 31);
    // It would help as soon as few enough are left.
    collecting.operator.kill().await;

    let (code, json, _) = gc(world, &["--dry-run", "-o", "json"]).await;
    assert_eq!(code, Some(0));
    let report: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(report["orphans"].as_array().map(Vec::len), Some(30));
    assert_eq!(report["guard"]["cause"], "too-many");
    assert_eq!(report["count"], 30);
    let quick = [
        "--delete",
        "--min-age",
        "0s",
        "--interval",
        "300ms",
        "--count",
    ];
    let with = |count: &'static str| [&quick[..], &[count]].concat();
    let (code, _, error) = gc(world, &with("29")).await;
    assert_eq!(code, Some(1));
    assert!(
        error.contains("30 orphans may go, not 29: nothing is deleted"),
        "{error}"
    );
    assert_eq!(fleet::all_pods(world).await.len(), 31);

    let began = tokio::time::Instant::now();
    let (code, said, error) = gc(world, &with("30")).await;
    assert_eq!(code, Some(0), "{said}{error}");
    assert_eq!(said.lines().count(), 30);
    // Six cycles with four pauses of a second each.
    assert!(began.elapsed().as_secs() >= 24, "{:?}", began.elapsed());
    eventually(fleet::STEP, "the orphans are gone", || async {
        let left = fleet::all_pods(world).await.len();
        if left == 1 {
            Ok(())
        } else {
            Err(left.to_string())
        }
    })
    .await;
    assert!(is_there(world, &one).await);
}

/// G-01.
pub(crate) async fn g01_a_proxy_that_lost_its_record_and_failed_gets_its_pod_back(world: &World) {
    let operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    let before = fleet::ready(world, "one").await;
    let pod = only_pod_of(world, &before).await;
    operator.kill().await;
    let generation = before.metadata.generation;
    let status = json!({ "status": {
        "phase": "Failed", "providerID": null, "instanceUID": null, "ip": null, "endpoint": null,
        "latch": { "generation": generation },
        "conditions": [{ "type": "Provisioned", "status": "False", "reason": "PermanentError",
            "message": "refused", "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z" }],
    } });
    let proxies: Api<Proxy> = world.api();
    let patch = Patch::Merge(&status);
    let params = PatchParams::default();
    proxies
        .patch_status("one", &params, &patch)
        .await
        .expect("the record goes");

    let _collecting = Collecting::start(world, "delete");
    let after = fleet::ready(world, "one").await;
    assert_eq!(
        fleet::instance(&after),
        pod.metadata.uid.as_deref(),
        "the same pod"
    );
    assert!(is_there(world, &pod).await);
    assert!(fleet::message(&after, ConditionType::Provisioned).is_empty());
}

/// G-06.
pub(crate) async fn g06_a_changed_cluster_id_is_refused_while_pods_carry_the_old_one(
    world: &World,
) {
    let id = cluster_id(world).await;
    let operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::create(world, &fleet::managed("one", &json!({}))).await;
    fleet::ready(world, "one").await;
    operator.kill().await;
    let configs: Api<ConfigMap> = Api::namespaced(world.admin.clone(), HOME);
    let stored = configs.get(CONFIG_MAP).await.expect("the operator made it");
    assert_eq!(stored.data.expect("data")[CLUSTER_ID_KEY], id);

    let mut changed = Operator::start(&world.operator_kubeconfig(), &["--cluster-id", "other"]);
    eventually(fleet::STEP, "it refuses to start", || {
        let is_gone = changed.is_gone();
        async move {
            if is_gone {
                Ok(())
            } else {
                Err("it runs".to_owned())
            }
        }
    })
    .await;
    let log = changed.log();
    for part in [
        id.as_str(),
        "other",
        "1 instance at provider kubernetes",
        "--cluster-id",
    ] {
        assert!(log.contains(part), "{part} in\n{log}");
    }
    let stored = configs.get(CONFIG_MAP).await.expect("it stays");
    assert_eq!(stored.data.expect("data")[CLUSTER_ID_KEY], id);
}
