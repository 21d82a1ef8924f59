//! Orphan collection over VMs: the tags of two clusters in one project, each cluster an API server of its own.

use std::path::{Path, PathBuf};

use fake_gce::{FakeGce, Settings, World as Vms};
use kube_client::ResourceExt;
use proxy_operator::api::Proxy;
use serde_json::json;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::scenarios::orphans::{Collecting, event, force_delete};
use crate::common::world::World;

const ZONE: &str = "europe-west1-b";
const OTHER_ZONE: &str = "us-central1-a";

/// A project, and the file that leads operators to it.
struct Project {
    cloud: FakeGce,
    dir: tempfile::TempDir,
}

impl Project {
    async fn start() -> Self {
        let cloud = FakeGce::start(Settings::default()).await;
        let project = Self {
            cloud: cloud.expect("a free port"),
            dir: tempfile::tempdir().expect("a folder"),
        };
        let text = format!(
            "gce:\n  kind: gce\n  project: test-project\n  zone: {ZONE}\n  credentials: anonymous\n  \
             endpoint: {}\n",
            project.cloud.endpoint()
        );
        std::fs::write(project.file(), text).expect("a providers file");
        project
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("providers.yaml")
    }

    fn vms(&self) -> &Vms {
        self.cloud.world()
    }

    /// Whether the VM is there and nobody deletes it.
    fn has(&self, name: &str) -> bool {
        self.vms().named(name).iter().any(|vm| !vm.deleting)
    }

    async fn loses(&self, name: &str) {
        eventually(fleet::STEP, &format!("{name} goes"), || async {
            match self.has(name) {
                true => Err(format!("{:?}", self.vms().named(name))),
                false => Ok(()),
            }
        })
        .await;
    }
}

fn collecting(world: &World, providers: &Path) -> Collecting {
    let file = providers.display().to_string();
    Collecting::start_with(
        &world.operator_kubeconfig(),
        "delete",
        &["--providers", &file],
    )
}

/// A Proxy on a VM that runs, and the name of the VM.
async fn running(world: &World, name: &str, zone: &str) -> (Proxy, String) {
    let spec = json!({ "mode": "Managed", "provider": "gce", "machine": { "zone": zone },
        "tags": { "team": "crawl" } });
    fleet::create(world, &fleet::proxy(name, &spec)).await;
    let proxy = fleet::ready(world, name).await;
    let vm = format!("px-{}", proxy.uid().expect("a UID"));
    (proxy, vm)
}

/// T82 and T84: what one cluster loses goes, and nothing that carries the other's tags, or too few.
async fn t84_two_clusters_in_one_project_never_delete_each_others_vms(one: &World, two: &World) {
    let project = Project::start().await;
    let providers = project.file();
    let file = providers.display().to_string();
    let flags = ["--providers", file.as_str()];
    let first = Operator::start(&one.operator_kubeconfig(), &flags);
    let (_, lost) = running(one, "lost", ZONE).await;
    let (_, kept) = running(one, "kept", ZONE).await;
    let second = Operator::start(&two.operator_kubeconfig(), &flags);
    let (_, theirs) = running(two, "theirs", ZONE).await;
    first.kill().await;
    second.kill().await;
    force_delete(one, "lost").await;

    // Labels that a user of the project may set: nobody's, however much they look like it.
    let cluster = project.vms().named(&kept)[0].labels["pxo-cluster"].clone();
    let partly: [(&str, &[(&str, &str)]); 3] = [
        (
            "no-uid",
            &[("pxo-cluster", &cluster), ("pxo-managed", "proxy-operator")],
        ),
        (
            "no-manager",
            &[("pxo-cluster", &cluster), ("pxo-uid", "u-nobody")],
        ),
        (
            "no-cluster",
            &[("pxo-uid", "u-nobody"), ("pxo-managed", "proxy-operator")],
        ),
    ];
    for (name, labels) in partly {
        project.vms().put(ZONE, name, labels);
    }

    let first = collecting(one, &providers);
    let second = collecting(two, &providers);
    project.loses(&lost).await;
    event(one, "fleet", "OrphanDeleted", "lost").await;
    first.looks_three_times().await;
    second.looks_three_times().await;
    for name in [
        kept.as_str(),
        theirs.as_str(),
        "no-uid",
        "no-manager",
        "no-cluster",
    ] {
        assert!(project.has(name), "{name}");
    }
    assert_eq!(
        second
            .count("pxo_orphans_found_total{provider=\"gce\"}")
            .await,
        0
    );
    project.cloud.shutdown().await;
}

/// T85: a zone that does not answer is unknown, and its VMs go once it does.
async fn t85_vms_of_a_zone_that_does_not_answer_are_neither_orphans_nor_gone(world: &World) {
    let project = Project::start().await;
    let providers = project.file();
    let file = providers.display().to_string();
    let operator = Operator::start(
        &world.operator_kubeconfig(),
        &["--providers", file.as_str()],
    );
    let (_, kept) = running(world, "kept", OTHER_ZONE).await;
    let (_, here) = running(world, "here", ZONE).await;
    let (_, there) = running(world, "there", OTHER_ZONE).await;
    operator.kill().await;
    force_delete(world, "here").await;
    force_delete(world, "there").await;
    project.vms().set_unreachable([OTHER_ZONE]);

    let collecting = collecting(world, &providers);
    project.loses(&here).await;
    collecting.looks_three_times().await;
    assert!(project.has(&there) && project.has(&kept));
    assert_eq!(
        collecting
            .count("pxo_orphans_found_total{provider=\"gce\"}")
            .await,
        1
    );

    project.vms().set_unreachable([]);
    project.loses(&there).await;
    assert!(project.has(&kept));
    let after = fleet::ready(world, "kept").await;
    assert_eq!(
        after.status.and_then(|status| status.replacements),
        None,
        "never taken for lost"
    );
    project.cloud.shutdown().await;
}

macro_rules! on {
    ($t84:ident, $t85:ident, $world:path) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $t84() {
            let Some(one) = $world().await else { return };
            let Some(two) = $world().await else { return };
            t84_two_clusters_in_one_project_never_delete_each_others_vms(&one, &two).await;
            one.shutdown().await;
            two.shutdown().await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn $t85() {
            let Some(world) = $world().await else { return };
            t85_vms_of_a_zone_that_does_not_answer_are_neither_orphans_nor_gone(&world).await;
            world.shutdown().await;
        }
    };
}

mod embedded {
    use super::*;

    on!(
        t84_two_clusters_in_one_project,
        t85_a_zone_that_does_not_answer,
        crate::embedded::world
    );
}

mod conformance {
    use super::*;

    on!(
        t84_two_clusters_in_one_project,
        t85_a_zone_that_does_not_answer,
        crate::conformance::world
    );
}
