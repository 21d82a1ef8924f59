//! The operator with a provider of VMs: the embedded API server on one side, the fake cloud on the other.

use std::path::PathBuf;
use std::time::Duration;

use fake_gce::{Answer, Call, FakeGce, Op, Refusal, Rule, Settings, Status, World as Vms};
use kube_client::ResourceExt;
use proxy_operator::api::conditions::{ConditionType, Reason};
use proxy_operator::api::v1alpha1::Phase;
use proxy_operator::api::{FINALIZER, Proxy};
use serde_json::{Value, json};

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::scenarios::crash::Doomed;
use crate::common::world::World;

const ZONE: &str = "europe-west1-b";

/// A cluster and a cloud.
struct Stage {
    world: World,
    cloud: FakeGce,
    dir: tempfile::TempDir,
}

impl Stage {
    async fn set() -> Self {
        let stage = Self {
            world: World::embedded().await,
            cloud: FakeGce::start(Settings::default())
                .await
                .expect("a free port"),
            dir: tempfile::tempdir().expect("a folder"),
        };
        let endpoint = stage.cloud.endpoint();
        let text = format!(
            "gce:\n  kind: gce\n  project: test-project\n  zone: {ZONE}\n  credentials: anonymous\n  \
             endpoint: {endpoint}\n  maxListAge: 200ms\n"
        );
        std::fs::write(stage.providers(), text).expect("a providers file");
        stage
    }

    fn providers(&self) -> PathBuf {
        self.dir.path().join("providers.yaml")
    }

    fn flags(&self) -> Vec<String> {
        let file = self.providers().display().to_string();
        ["--providers", &file, "--drift-poll", "500ms"]
            .map(str::to_owned)
            .to_vec()
    }

    fn operator(&self) -> Operator {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Operator::start(&self.world.operator_kubeconfig(), &flags)
    }

    fn vms(&self) -> &Vms {
        self.cloud.world()
    }

    async fn create(&self, name: &str, addition: &Value) -> Proxy {
        let mut spec = json!({ "mode": "Managed", "provider": "gce" });
        let fields = addition.as_object().into_iter().flatten();
        for (key, value) in fields {
            spec[key] = value.clone();
        }
        fleet::create(&self.world, &fleet::proxy(name, &spec)).await
    }

    async fn reason(&self, name: &str, wanted: Reason) -> Proxy {
        fleet::until(&self.world, name, &format!("{wanted:?}"), |proxy| {
            fleet::reason(proxy, ConditionType::Provisioned) == Some(wanted)
        })
        .await
    }

    async fn until(&self, what: &str, done: impl Fn(&Vms) -> bool) {
        eventually(fleet::STEP, what, || async {
            if done(self.vms()) {
                Ok(())
            } else {
                Err(format!("{:?}", self.vms().machines()))
            }
        })
        .await;
    }

    /// The calls of that kind; forgets all calls.
    fn calls(&self, op: Op) -> Vec<Call> {
        self.vms()
            .take_calls()
            .into_iter()
            .filter(|call| call.op == op)
            .collect()
    }
}

fn vm_of(proxy: &Proxy) -> String {
    format!("px-{}", proxy.uid().expect("a stored Proxy has a UID"))
}

fn refuse(refusal: Refusal) -> Answer {
    Answer::Refuse(refusal)
}

#[tokio::test(flavor = "multi_thread")]
async fn t01_t05_t03_a_proxy_on_a_vm_is_made_replaced_and_deleted() {
    let stage = Stage::set().await;
    let _operator = stage.operator();
    let data = "#cloud-config\npackages: [squid]\n";
    let addition = json!({ "cloudInit": { "inline": data }, "tags": { "team": "crawl" } });
    let made = stage.create("one", &addition).await;
    let name = vm_of(&made);
    let proxy = fleet::ready(&stage.world, "one").await;
    let status = proxy.status.as_ref().expect("a status");
    let id = format!("gce://test-project/{ZONE}/{name}");
    assert_eq!(status.provider_id, Some(id));
    assert_eq!(
        fleet::reason(&proxy, ConditionType::Provisioned),
        Some(Reason::Created)
    );
    assert!(
        status
            .ip
            .as_deref()
            .is_some_and(|ip| ip.starts_with("127.")),
        "{status:?}"
    );
    assert_eq!((status.create_attempts, status.attempt_open), (1, false));
    assert_eq!(status.operation, None, "it runs");
    let vm = &stage.vms().named(&name)[0];
    assert_eq!(status.instance_uid, Some(vm.id.to_string()));
    assert_eq!(vm.labels["pxo-uid"], proxy.uid().expect("a UID"));
    assert_eq!(vm.labels["team"], "crawl");
    assert_eq!(
        stage.vms().metadata(&name, "user-data").as_deref(),
        Some(data)
    );
    assert_eq!(
        stage.vms().metadata(&name, "pxo-proxy").as_deref(),
        Some("one")
    );

    let edit = json!({ "spec": { "machine": { "size": "e2-small" } } });
    fleet::edit(&stage.world, "one", &edit).await;
    let replaced = fleet::replaced(&stage.world, "one", &proxy).await;
    let status = replaced.status.as_ref().expect("a status");
    assert_eq!(status.create_attempts, 2);
    assert_eq!(
        (stage.vms().machines().len(), stage.vms().inserted()),
        (1, 2)
    );
    let ids: std::collections::BTreeSet<_> = stage
        .calls(Op::Insert)
        .into_iter()
        .map(|call| call.request_id)
        .collect();
    assert_eq!(
        ids.len(),
        2,
        "P-24: each attempt has its own request id: {ids:?}"
    );

    fleet::delete(&stage.world, "one").await;
    fleet::gone(&stage.world, "one").await;
    assert!(stage.vms().machines().is_empty(), "the VM went first");
    assert_eq!(
        stage.calls(Op::Delete).len(),
        1,
        "P-26: one call, then polls"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn t12_a_preempted_and_a_stopped_vm_are_made_again() {
    let stage = Stage::set().await;
    let _operator = stage.operator();
    let spot = stage
        .create("spot", &json!({ "machine": { "spot": true } }))
        .await;
    let plain = stage.create("plain", &json!({})).await;
    let mut before = Vec::new();
    for name in ["spot", "plain"] {
        before.push(fleet::ready(&stage.world, name).await);
    }
    assert!(stage.vms().preempt(&vm_of(&spot)) && stage.vms().stop(&vm_of(&plain)));
    for (name, before) in ["spot", "plain"].into_iter().zip(&before) {
        let after = fleet::replaced(&stage.world, name, before).await;
        assert_eq!(stage.vms().named(&vm_of(&after)).len(), 1);
    }
    assert_eq!(
        (stage.vms().machines().len(), stage.vms().inserted()),
        (2, 4)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn b10_b11_wrong_inputs_are_told_with_what_is_wrong() {
    let stage = Stage::set().await;
    let large = format!("#!/bin/sh\n# hunter2\n{}", "x".repeat(300 * 1024));
    fleet::put_secret(&stage.world, "large", "user-data", &large).await;
    let operator = stage.operator();
    let of_secret = json!({ "cloudInit": { "secretRef": { "name": "large" } } });
    stage.create("b10", &of_secret).await;
    stage
        .create("b11", &json!({ "machine": { "size": "huge-1000" } }))
        .await;
    let b10 = stage.reason("b10", Reason::CloudInitError).await;
    let text = fleet::message(&b10, ConditionType::Provisioned);
    assert!(
        text.contains(&large.len().to_string()) && text.contains("262144"),
        "{text}"
    );
    let b11 = stage.reason("b11", Reason::PermanentError).await;
    let text = fleet::message(&b11, ConditionType::Provisioned);
    assert!(text.contains("huge-1000") && text.contains(ZONE), "{text}");
    assert_eq!(
        b11.status.as_ref().and_then(|status| status.phase),
        Some(Phase::Failed)
    );
    assert!(stage.vms().machines().is_empty());
    assert!(!operator.log().contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn t48_t49_refusals_slow_down_and_show_their_reason() {
    let stage = Stage::set().await;
    let rate = Refusal::new(403, "rateLimitExceeded", "Rate Limit Exceeded")
        .with_error_info("RATE_LIMIT_EXCEEDED");
    let stockout = Answer::FailOperation {
        code: "ZONE_RESOURCE_POOL_EXHAUSTED".to_owned(),
        message: "The zone does not have enough resources available.".to_owned(),
        status: 503,
    };
    let limited = stage.create("limited", &json!({})).await;
    let us = json!({ "machine": { "zone": "us-central1-a" } });
    let starved = stage.create("starved", &us).await;
    let rule = |answer, proxy: &Proxy| Rule {
        op: Some(Op::Insert),
        answer: Some(answer),
        matching: Some(vm_of(proxy)),
        ..Rule::default()
    };
    stage.vms().add_rule(rule(refuse(rate), &limited));
    stage.vms().add_rule(rule(stockout, &starved));
    let _operator = stage.operator();
    let limited = stage.reason("limited", Reason::ProviderError).await;
    let text = fleet::message(&limited, ConditionType::Provisioned);
    assert!(text.contains("Rate Limit Exceeded"), "{text}");
    let starved = stage.reason("starved", Reason::CapacityExhausted).await;
    let text = fleet::message(&starved, ConditionType::Provisioned);
    assert!(text.contains("ZONE_RESOURCE_POOL_EXHAUSTED"), "{text}");
    for proxy in [&limited, &starved] {
        let status = proxy.status.as_ref().expect("a status");
        assert!(
            status.latch.is_none() && status.phase != Some(Phase::Failed),
            "{status:?}"
        );
        assert_eq!(proxy.finalizers(), [FINALIZER]);
    }
    let _so_far = stage.vms().take_calls();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let since = stage.calls(Op::Insert);
    assert!(since.is_empty(), "no hot loop: {since:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn t45_a_strangers_vm_is_a_collision_and_stays() {
    let stage = Stage::set().await;
    let made = stage.create("one", &json!({})).await;
    stage
        .vms()
        .put(ZONE, &vm_of(&made), &[("owner", "somebody")]);
    let _operator = stage.operator();
    stage.reason("one", Reason::NameCollision).await;
    fleet::delete(&stage.world, "one").await;
    fleet::gone(&stage.world, "one").await;
    assert_eq!(stage.vms().machines().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn t42_a_cloud_that_is_down_keeps_the_finalizer_until_it_is_back() {
    let stage = Stage::set().await;
    let _operator = stage.operator();
    stage.create("one", &json!({})).await;
    fleet::ready(&stage.world, "one").await;
    stage.vms().set_unreachable([ZONE]);
    stage.vms().set_partial_lists(false);
    fleet::delete(&stage.world, "one").await;
    let held = fleet::until(&stage.world, "one", "is told why", |proxy| {
        fleet::message(proxy, ConditionType::Provisioned).contains("provider gce")
    })
    .await;
    assert_eq!(held.finalizers(), [FINALIZER]);
    stage.vms().set_unreachable([]);
    fleet::gone(&stage.world, "one").await;
    assert!(stage.vms().machines().is_empty());
}

const NAMES: [&str; 2] = ["one", "two"];

/// Creates, edits, loses and deletes two proxies while the operator dies once at `point`.
async fn survives(point: &'static str) {
    let stage = Stage::set().await;
    let mut operator = Doomed::start(&stage.world, point, stage.flags());
    let ready = |proxy: &Option<Proxy>| proxy.as_ref().is_some_and(fleet::is_ready);
    let mut made = Vec::new();
    for name in NAMES {
        made.push(stage.create(name, &json!({})).await);
    }
    operator.until(&NAMES, "gets Ready", ready).await;
    one_vm_each(&stage, &made, 2);

    let mut lives = lives(&stage).await;
    for name in NAMES {
        let edit = json!({ "spec": { "tags": { "edited": "yes" } } });
        fleet::edit(&stage.world, name, &edit).await;
    }
    let renewed = |lives: Vec<Option<String>>| {
        move |proxy: &Option<Proxy>| {
            proxy.as_ref().is_some_and(|proxy| {
                fleet::is_ready(proxy)
                    && !lives.contains(&fleet::instance(proxy).map(str::to_owned))
            })
        }
    };
    operator.until(&NAMES, "is replaced", renewed(lives)).await;
    one_vm_each(&stage, &made, 4);

    lives = self::lives(&stage).await;
    for proxy in &made {
        assert!(stage.vms().vanish(&vm_of(proxy)));
    }
    operator
        .until(&NAMES, "is made again", renewed(lives))
        .await;
    one_vm_each(&stage, &made, 6);

    for name in NAMES {
        fleet::delete(&stage.world, name).await;
    }
    operator.until(&NAMES, "is gone", Option::is_none).await;
    operator.until_it_died_once().await;
    stage
        .until("no VM is left", |vms| vms.machines().is_empty())
        .await;
    // S-13, P-24: every retry of an attempt meets the operation that was begun.
    assert_eq!(stage.vms().inserted(), 6);
}

/// One VM for each Proxy, and no more ever made than lives that were needed.
fn one_vm_each(stage: &Stage, proxies: &[Proxy], inserted: u64) {
    for proxy in proxies {
        let vms = stage.vms().named(&vm_of(proxy));
        assert_eq!(vms.len(), 1, "{}", proxy.name_any());
        assert_eq!(vms[0].status, Status::Running);
    }
    assert_eq!(
        (stage.vms().machines().len(), stage.vms().inserted()),
        (proxies.len(), inserted)
    );
}

async fn lives(stage: &Stage) -> Vec<Option<String>> {
    let mut lives = Vec::new();
    for name in NAMES {
        let proxy = fleet::get(&stage.world, name).await.expect("it is there");
        lives.push(fleet::instance(&proxy).map(str::to_owned));
    }
    lives
}

macro_rules! crash_points {
    ($($name:ident: $point:literal,)+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            survives($point).await;
        })+
    };
}

crash_points! {
    t16_cp1_before_the_insert: "CP1",
    t17_cp2_insert_accepted_answer_lost: "CP2",
    t18_cp3_insert_answered_before_the_annotation: "CP3",
    t19_cp4_annotation_written_before_the_status: "CP4",
    t20_cp5_status_written: "CP5",
    t21_cp6_replacement_gone_annotation_written_id_kept: "CP6",
    t22_cp7_delete_accepted_status_not_written: "CP7",
    t23_cp8_vm_gone_finalizer_still_there: "CP8",
    t24_cp9_finalizer_removed_before_the_status: "CP9",
    t25_cp10_finalizer_added: "CP10",
}
