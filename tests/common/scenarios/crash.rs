//! The operator dies at each crash point; started again, it ends in the same state as if it had not.

use k8s_openapi::api::core::v1::Pod;
use kube_client::core::params::DeleteParams;
use kube_client::{Api, ResourceExt};
use proxy_operator::api::Proxy;
use serde_json::json;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::pods::PodMonitor;
use crate::common::world::World;

const NAMES: [&str; 2] = ["one", "two"];

/// The operator with a crash point set, until it dies there; then without.
pub(crate) struct Doomed<'a> {
    world: &'a World,
    point: &'static str,
    flags: Vec<String>,
    operator: Operator,
    crashes: usize,
}

impl<'a> Doomed<'a> {
    pub(crate) fn start(world: &'a World, point: &'static str, flags: Vec<String>) -> Self {
        let all = flags.iter().map(String::as_str);
        let doomed: Vec<&str> = all.chain(["--crash-at", point]).collect();
        let operator = Operator::start(&world.operator_kubeconfig(), &doomed);
        Self {
            world,
            point,
            flags,
            operator,
            crashes: 0,
        }
    }

    /// Starts it anew if it has died. It may die once only: the second run has no crash point.
    fn revive(&mut self) {
        if self.operator.is_gone() {
            self.crashes += 1;
            assert_eq!(self.crashes, 1, "ended by itself:\n{}", self.operator.log());
            let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
            self.operator = Operator::start(&self.world.operator_kubeconfig(), &flags);
        }
    }

    /// Waits for a state of these Proxies, reviving the operator when it dies.
    pub(crate) async fn until(
        &mut self,
        names: &[&str],
        what: &str,
        check: impl Fn(&Option<Proxy>) -> bool,
    ) {
        for name in names {
            let world = self.world;
            let this = std::cell::RefCell::new(&mut *self);
            eventually(fleet::STEP, &format!("{name}: {what}"), || {
                this.borrow_mut().revive();
                let check = &check;
                async move {
                    let proxy = fleet::get(world, name).await;
                    if check(&proxy) {
                        Ok(())
                    } else {
                        Err(format!("{proxy:?}"))
                    }
                }
            })
            .await;
        }
    }

    /// Waits for its death: one after the last Proxy has gone shows only then.
    pub(crate) async fn until_it_died_once(&mut self) {
        eventually(
            fleet::STEP,
            &format!("the operator dies at {}", self.point),
            || {
                self.revive();
                let crashes = self.crashes;
                async move {
                    if crashes == 1 {
                        Ok(())
                    } else {
                        Err("it never died".to_owned())
                    }
                }
            },
        )
        .await;
    }
}

/// Creates, edits, loses and deletes a small fleet while the operator dies once at `point`.
async fn survives(world: &World, point: &'static str) {
    let monitor = PodMonitor::start(world).await;
    let flags = ["--drift-poll", "500ms"].map(str::to_owned).to_vec();
    let mut operator = Doomed::start(world, point, flags);
    let ready = |proxy: &Option<Proxy>| proxy.as_ref().is_some_and(fleet::is_ready);
    let mut created = Vec::new();
    for name in NAMES {
        created.push(fleet::create(world, &fleet::managed(name, &json!({}))).await);
    }
    operator.until(&NAMES, "gets Ready", ready).await;
    one_pod_each(world, &created).await;

    let mut hashes = Vec::new();
    for name in NAMES {
        let proxy = fleet::get(world, name).await.expect("it is there");
        hashes.push(fleet::hash(&proxy).map(str::to_owned));
        fleet::edit(
            world,
            name,
            &json!({ "spec": { "tags": { "edited": "yes" } } }),
        )
        .await;
    }
    operator
        .until(&NAMES, "is replaced", |proxy| {
            ready(proxy)
                && proxy
                    .as_ref()
                    .is_some_and(|proxy| !hashes.contains(&fleet::hash(proxy).map(str::to_owned)))
        })
        .await;
    one_pod_each(world, &created).await;

    let mut lost = Vec::new();
    let pods: Api<Pod> = world.api();
    for pod in fleet::all_pods(world).await {
        lost.push(pod.uid());
        pods.delete(&pod.name_any(), &DeleteParams::default())
            .await
            .expect("a pod can be lost");
    }
    operator
        .until(&NAMES, "is made again", |proxy| {
            ready(proxy)
                && proxy
                    .as_ref()
                    .is_some_and(|proxy| !lost.contains(&fleet::instance(proxy).map(str::to_owned)))
        })
        .await;
    one_pod_each(world, &created).await;
    for proxy in &created {
        let proxy = fleet::get(world, &proxy.name_any())
            .await
            .expect("it is there");
        fleet::answers(world, &proxy).await;
    }

    for name in NAMES {
        fleet::delete(world, name).await;
    }
    operator.until(&NAMES, "is gone", Option::is_none).await;
    operator.until_it_died_once().await;
    eventually(fleet::STEP, "no pod is left", || async {
        let left = fleet::all_pods(world).await.len();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} pods"))
        }
    })
    .await;
    monitor.assert_never_two();
}

async fn one_pod_each(world: &World, proxies: &[Proxy]) {
    for proxy in proxies {
        let pods = fleet::pods_of(world, proxy).await;
        assert_eq!(pods.len(), 1, "{}", proxy.name_any());
    }
    assert_eq!(fleet::all_pods(world).await.len(), proxies.len());
}

macro_rules! crash_points {
    ($($name:ident: $point:literal,)+) => {
        $(pub(crate) async fn $name(world: &World) {
            survives(world, $point).await;
        })+
    };
}

crash_points! {
    t16_cp1_before_the_create_call: "CP1",
    t17_cp2_create_accepted_answer_lost: "CP2",
    t18_cp3_create_answered_before_the_annotation: "CP3",
    t19_cp4_annotation_written_before_the_status: "CP4",
    t20_cp5_status_written: "CP5",
    t21_cp6_replacement_gone_annotation_written_id_kept: "CP6",
    t22_cp7_delete_accepted_status_not_written: "CP7",
    t23_cp8_instance_gone_finalizer_still_there: "CP8",
    t24_cp9_finalizer_removed_before_the_status: "CP9",
    t25_cp10_finalizer_added: "CP10",
}
