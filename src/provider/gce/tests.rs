//! The provider against the fake cloud: what each call does, and what it does when it fails.

use std::collections::BTreeSet;
use std::time::Duration;

use fake_gce::{Answer, FakeGce, Op as Call, Refusal as Body, Rule, Status, World};

use super::settings::{CredentialsSource, Project, Zone};
use super::*;
use crate::provider::Class;
use crate::provider::conformance::{
    life_of_an_instance, owner, request, request_with_data, tags_of_users_forge_no_owner,
};

const ZONE: &str = "europe-west1-b";

struct Cloud {
    fake: FakeGce,
    provider: GceProvider,
}

impl Cloud {
    async fn start(settings: fake_gce::Settings) -> Self {
        let fake = FakeGce::start(settings).await.expect("a free port");
        let provider = provider(&fake);
        Self { fake, provider }
    }

    async fn quick() -> Self {
        Self::start(fake_gce::Settings::default()).await
    }

    fn world(&self) -> &World {
        self.fake.world()
    }

    /// A provider that knows nothing of the first one, as after a restart.
    fn restarted(&self) -> GceProvider {
        provider(&self.fake)
    }

    async fn create(&self, uid: &str) -> Instance {
        self.provider
            .create(&request(uid))
            .await
            .expect("made")
            .instance()
            .clone()
    }

    async fn get(&self, seen: &Instance, uid: &str) -> Result<Instance, Error> {
        let hint = Hint {
            incarnation: Some(seen.incarnation.clone()),
            operation: seen.operation.clone(),
            ..Hint::default()
        };
        self.provider.get(&seen.id, &owner(uid), &hint).await
    }

    async fn delete(&self, seen: &Instance, uid: &str) -> Result<(), Error> {
        self.provider
            .delete(&seen.id, &owner(uid), &seen.incarnation)
            .await
    }

    /// Request ids of the calls of that kind since the last look.
    fn request_ids(&self, op: Call) -> Vec<String> {
        let calls = self
            .world()
            .take_calls()
            .into_iter()
            .filter(|call| call.op == op);
        calls.filter_map(|call| call.request_id).collect()
    }

    async fn until(&self, what: &str, done: impl Fn(&World) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !done(self.world()) {
            assert!(Instant::now() < end, "never: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_runs(&self, name: &str) {
        let runs = |world: &World| {
            world
                .named(name)
                .iter()
                .any(|vm| vm.status == Status::Running)
        };
        self.until("it runs", runs).await;
    }
}

fn provider(fake: &FakeGce) -> GceProvider {
    let project = Project::new("test-project").expect("a project");
    GceProvider::new(Settings {
        endpoint: Some(fake.endpoint()),
        credentials: CredentialsSource::Anonymous,
        ..Settings::new(project, Zone::new(ZONE).expect("a zone"))
    })
}

fn fail(code: &str, status: u16) -> Answer {
    Answer::FailOperation {
        code: code.to_owned(),
        message: format!("the cloud says {code}"),
        status,
    }
}

fn refuse(status: u16, reason: &str) -> Answer {
    Answer::Refuse(Body::new(status, reason, "the cloud says no"))
}

#[tokio::test]
async fn p07_a_vm_lives_as_every_instance_does() {
    let cloud = Cloud::quick().await;
    let settled = |world: &World| world.machines().iter().all(|vm| !vm.deleting);
    life_of_an_instance(&cloud.provider, async || {
        cloud.until("deletions end", settled).await
    })
    .await;
}

#[tokio::test]
async fn t84_tags_of_users_forge_no_owner() {
    let cloud = Cloud::quick().await;
    let forged = [
        ("pxo-managed", "somebody"),
        ("pxo-cluster", "cluster-2"),
        ("pxo-uid", "u-2"),
    ];
    tags_of_users_forge_no_owner(&cloud.provider, &forged).await;
}

#[tokio::test]
async fn a_vm_comes_up_runs_and_is_read_with_its_address() {
    let cloud = Cloud::start(fake_gce::Settings {
        boot: Duration::from_secs(1),
        ..fake_gce::Settings::default()
    })
    .await;
    let made = cloud.create("u-1").await;
    assert_eq!(made.state, InstanceState::Provisioning);
    assert!(made.operation.is_some(), "remembered until it runs");
    cloud.until_runs("px-u-1").await;
    let seen = cloud.get(&made, "u-1").await.expect("there");
    assert_eq!((seen.state, seen.operation), (InstanceState::Running, None));
    assert!(
        seen.ips[0].starts_with("127."),
        "the public address first: {:?}",
        seen.ips
    );
    assert!(seen.ips[1].starts_with("10."));
    assert!(cloud.provider.capabilities().write_ahead);
    assert_eq!(cloud.provider.capabilities().max_cloud_init_bytes, 262_144);
}

/// T17, T41, S-13: the insert was accepted, and the answer was lost with the connection or with
/// the whole process.
#[tokio::test]
async fn t41_a_lost_answer_leads_to_the_same_operation_and_one_vm() {
    let cloud = Cloud::quick().await;
    cloud
        .world()
        .add_rule(Rule::once(Call::Insert, Answer::Reset).after_effect());
    let lost = cloud
        .provider
        .create(&request("u-1"))
        .await
        .expect_err("no answer");
    assert_eq!(
        (lost.class(), lost.is_definite()),
        (Class::Transient, false),
        "{lost}"
    );
    // The list may not show it yet, so that the request id alone is what finds it.
    let hidden = Answer::Raw {
        status: 200,
        body: r#"{"items":{}}"#.to_owned(),
    };
    cloud.world().add_rule(Rule::once(Call::List, hidden));
    let again = cloud
        .restarted()
        .create(&request("u-1"))
        .await
        .expect("found");
    assert_eq!(cloud.world().inserted(), 1);
    let vm = &cloud.world().named("px-u-1")[0];
    assert_eq!(again.instance().incarnation.as_str(), vm.id.to_string());
    let ids = cloud.request_ids(Call::Insert);
    assert_eq!(ids.len(), 2);
    assert_eq!(ids[0], ids[1], "P-24: one attempt, one request id");
}

/// P-21: a POST or DELETE that may have had an effect is sent once for each call of the provider; whoever asked
/// decides whether to ask again.
#[tokio::test]
async fn p21_an_insert_or_delete_that_fails_is_not_sent_again_by_itself() {
    for answer in [Answer::Reset, refuse(503, "backendError")] {
        let cloud = Cloud::quick().await;
        let rule = |op| Rule::once(op, answer.clone());
        cloud.world().add_rule(rule(Call::Insert));
        let lost = cloud.provider.create(&request("u-1")).await;
        assert_eq!(lost.expect_err("no answer").class(), Class::Transient);
        assert_eq!(cloud.request_ids(Call::Insert).len(), 1, "{answer:?}");

        let made = cloud.create("u-1").await;
        cloud.world().add_rule(rule(Call::Delete));
        let lost = cloud.delete(&made, "u-1").await;
        assert_eq!(lost.expect_err("no answer").class(), Class::Transient);
        assert_eq!(cloud.request_ids(Call::Delete).len(), 1, "{answer:?}");
    }
}

/// T26 at the seam: what a replayed operation made is told by the VM's own hash (S-01).
#[tokio::test]
async fn t26_a_spec_edited_between_crash_and_retry_shows_as_drift() {
    let cloud = Cloud::quick().await;
    let first = request("u-1");
    cloud.provider.create(&first).await.expect("made");
    let edited = crate::api::ProxySpec {
        port: Some(9),
        ..crate::api::ProxySpec::default()
    };
    let again = CreateRequest {
        spec_hash: crate::api::spec_hash(&edited, None, None),
        ..first.clone()
    };
    let hidden = Answer::Raw {
        status: 200,
        body: r#"{"items":{}}"#.to_owned(),
    };
    for list_shows_it in [true, false] {
        if !list_shows_it {
            cloud
                .world()
                .add_rule(Rule::once(Call::List, hidden.clone()));
        }
        match cloud.restarted().create(&again).await {
            Ok(Creation::Adopted(found)) => {
                let hash = found.spec_hash.expect("stamped");
                assert_eq!(
                    hash.tag(),
                    first.spec_hash.tag(),
                    "its own, not the wanted one"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(cloud.world().inserted(), 1);
}

#[tokio::test]
async fn t26_a_zone_edited_between_crash_and_retry_makes_no_second_vm() {
    let cloud = Cloud::quick().await;
    let first = cloud.create("u-1").await;
    let mut moved = request("u-1");
    moved.machine.zone = Some("us-central1-a".to_owned());
    match cloud.restarted().create(&moved).await {
        Ok(Creation::Adopted(found)) => assert_eq!(found.id, first.id),
        other => panic!("{other:?}"),
    }
    assert_eq!(cloud.world().machines().len(), 1);
}

/// R-08: the answer to the insert was lost, the zone went down, and the Proxy was moved meanwhile.
#[tokio::test]
async fn t26_a_zone_edited_while_the_first_one_is_down_makes_no_second_vm() {
    let cloud = Cloud::quick().await;
    cloud
        .world()
        .add_rule(Rule::once(Call::Insert, Answer::Reset).after_effect());
    let lost = cloud.provider.create(&request("u-1")).await;
    lost.expect_err("no answer");
    let mut moved = CreateRequest {
        resent: true,
        ..request("u-1")
    };
    moved.machine.zone = Some("us-central1-a".to_owned());
    for is_partial in [true, false] {
        cloud.world().set_unreachable([ZONE]);
        cloud.world().set_partial_lists(is_partial);
        for provider in [&cloud.provider, &cloud.restarted()] {
            let error = provider.create(&moved).await.expect_err("nobody knows");
            assert_eq!(error.class(), Class::Transient, "{error}");
            assert!(!error.is_definite(), "the attempt goes on: {error}");
        }
    }
    assert_eq!(cloud.world().machines().len(), 1);
    cloud.world().set_unreachable([]);
    match cloud.provider.create(&moved).await {
        Ok(Creation::Adopted(found)) => assert!(found.id.as_str().contains(ZONE), "{found:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(cloud.world().inserted(), 1);
}

/// S-13: the VM of a lost answer counts before inputs that were edited since, and may be bad.
#[tokio::test]
async fn t41_a_vm_of_a_lost_answer_is_found_also_by_inputs_that_no_vm_takes() {
    let cloud = Cloud::quick().await;
    let first = cloud.create("u-1").await;
    let bad = CreateRequest {
        resent: true,
        ..request_with_data("u-1", &"x".repeat(300 * 1024))
    };
    match cloud.restarted().create(&bad).await {
        Ok(Creation::Adopted(found)) => assert_eq!(found.id, first.id),
        other => panic!("{other:?}"),
    }
    cloud.world().vanish("px-u-1");
    let error = cloud.provider.create(&bad).await.expect_err("too large");
    assert_eq!(error.class(), Class::Permanent);
}

#[tokio::test]
async fn t45_a_strangers_vm_is_neither_adopted_nor_reported_nor_deleted() {
    let cloud = Cloud::quick().await;
    let (ours, request) = (owner("u-1"), request("u-1"));
    let name = ours.instance_name();
    cloud.world().put(
        ZONE,
        &name,
        &[("pxo-managed", "proxy-operator"), ("pxo-cluster", "other")],
    );
    let error = cloud
        .provider
        .create(&request)
        .await
        .expect_err("the name is taken");
    assert_eq!(
        (error.class(), error.reason()),
        (Class::Permanent, Reason::NameCollision)
    );
    assert!(
        error.message().contains(&name) && error.message().contains(ZONE),
        "{error}"
    );
    assert_eq!(cloud.provider.find(&ours).await, Ok(None));
    let id = Place {
        project: "test-project",
        zone: ZONE,
        name: &name,
    }
    .id();
    let read = cloud.provider.get(&id, &ours, &Hint::default()).await;
    assert!(read.expect_err("a stranger's").is_not_found());
    let life = Incarnation::new(cloud.world().named(&name)[0].id.to_string());
    assert_eq!(cloud.provider.delete(&id, &ours, &life).await, Ok(()));
    assert!(!cloud.world().named(&name)[0].deleting);
}

#[tokio::test]
async fn t46_a_vm_that_is_still_stopping_holds_up_the_next_one_and_then_no_more() {
    let cloud = Cloud::start(fake_gce::Settings {
        deletion: Duration::from_millis(300),
        ..fake_gce::Settings::default()
    })
    .await;
    let first = cloud.create("u-1").await;
    cloud.delete(&first, "u-1").await.expect("accepted");
    let next = CreateRequest {
        attempt: 2,
        ..request("u-1")
    };
    let hidden = Answer::Raw {
        status: 200,
        body: r#"{"items":{}}"#.to_owned(),
    };
    for list_shows_it in [true, false] {
        if !list_shows_it {
            cloud
                .world()
                .add_rule(Rule::once(Call::List, hidden.clone()));
        }
        let error = cloud.provider.create(&next).await.expect_err("still going");
        assert_eq!(error.reason(), Reason::BeingDeleted, "{error}");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    }
    cloud
        .until("it is gone", |world| world.machines().is_empty())
        .await;
    match cloud.provider.create(&next).await {
        Ok(Creation::Created(second)) => assert_ne!(second.incarnation, first.incarnation),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn t47_an_operation_that_cannot_be_polled_says_nothing_about_the_insert() {
    let cloud = Cloud::start(fake_gce::Settings {
        hidden_for: Duration::from_secs(3600),
        ..fake_gce::Settings::default()
    })
    .await;
    let polling_fails = Rule {
        op: Some(Call::Operation),
        answer: Some(refuse(503, "backendError")),
        ..Rule::default()
    };
    cloud.world().add_rule(polling_fails);
    let began = Instant::now();
    let made = cloud.create("u-1").await;
    assert!(
        began.elapsed() < EARLY + Duration::from_secs(2),
        "no worker is held longer"
    );
    for _ in 0..3 {
        let error = cloud.get(&made, "u-1").await.expect_err("not told");
        assert_eq!(
            (error.class(), error.is_definite()),
            (Class::Transient, false),
            "{error}"
        );
    }
    cloud.world().clear_rules();
    let again = cloud
        .restarted()
        .create(&request("u-1"))
        .await
        .expect("the same");
    assert_eq!(again.instance().incarnation, made.incarnation);
    assert_eq!(cloud.world().inserted(), 1);
}

/// P-25: a VM that does not show is told by its operation.
#[tokio::test]
async fn p25_a_missing_vm_is_told_by_its_operation() {
    let cloud = Cloud::start(fake_gce::Settings {
        insert: Duration::from_secs(6),
        hidden_for: Duration::from_secs(3600),
        ..fake_gce::Settings::default()
    })
    .await;
    cloud
        .world()
        .add_rule(Rule::once(Call::Insert, fail("QUOTA_EXCEEDED", 403)).matching("u-2"));
    let (works, fails) = tokio::join!(cloud.create("u-1"), cloud.create("u-2"));
    let seen = cloud.get(&works, "u-1").await.expect("its operation runs");
    assert_eq!(
        (seen.state, &seen.incarnation),
        (InstanceState::Provisioning, &works.incarnation)
    );
    let without = cloud
        .provider
        .get(&works.id, &owner("u-1"), &Hint::default())
        .await;
    assert!(without.expect_err("nothing known of it").is_not_found());
    let end = Instant::now() + Duration::from_secs(20);
    let ended = async |seen: &Instance, uid: &str| loop {
        match cloud.get(seen, uid).await {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < end, "its operation never ends"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let gone = ended(&works, "u-1").await;
    assert!(gone.is_not_found(), "done, and not there: {gone}");
    let error = ended(&fails, "u-2").await;
    assert_eq!(
        (error.reason(), error.is_definite()),
        (Reason::Quota, true),
        "{error}"
    );
}

#[tokio::test]
async fn t48_too_many_calls_slow_down_and_neither_latch_nor_let_go() {
    let cloud = Cloud::quick().await;
    let made = cloud.create("u-1").await;
    for op in [Call::Insert, Call::Get, Call::List, Call::Delete] {
        cloud
            .world()
            .add_rule(Rule::once(op, refuse(403, "rateLimitExceeded")));
    }
    let errors = [
        cloud.provider.find(&owner("u-1")).await.expect_err("list"),
        cloud
            .provider
            .create(&request("u-2"))
            .await
            .expect_err("insert"),
        cloud.get(&made, "u-1").await.expect_err("get"),
        cloud.delete(&made, "u-1").await.expect_err("delete"),
    ];
    for error in errors {
        assert_eq!(
            (error.class(), error.reason()),
            (Class::Transient, Reason::Throttled),
            "{error}"
        );
        assert!(
            error.retry_after() >= Some(Duration::from_secs(60)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn t49_an_operation_that_fails_for_stock_ends_its_attempt_with_the_reason() {
    let cloud = Cloud::quick().await;
    cloud.world().add_rule(Rule::once(
        Call::Insert,
        fail("ZONE_RESOURCE_POOL_EXHAUSTED", 503),
    ));
    let error = cloud
        .provider
        .create(&request("u-1"))
        .await
        .expect_err("none left");
    assert_eq!(
        (error.class(), error.reason()),
        (Class::QuotaExceeded, Reason::Capacity)
    );
    assert!(
        error.is_definite() && error.message().contains("ZONE_RESOURCE_POOL_EXHAUSTED"),
        "{error}"
    );
    // A replay of the attempt, by a process that did not hear of it, meets the same end.
    let replayed = cloud
        .restarted()
        .create(&request("u-1"))
        .await
        .expect_err("the same operation");
    assert_eq!(replayed.reason(), Reason::Capacity);
    let next = CreateRequest {
        attempt: 2,
        ..request("u-1")
    };
    assert!(matches!(
        cloud.provider.create(&next).await,
        Ok(Creation::Created(_))
    ));
    let ids: BTreeSet<_> = cloud.request_ids(Call::Insert).into_iter().collect();
    assert_eq!(ids.len(), 2, "P-24: a new attempt has a new request id");
}

#[tokio::test]
async fn an_operation_that_fails_by_the_clouds_own_fault_ends_its_attempt_too() {
    let cloud = Cloud::quick().await;
    cloud
        .world()
        .add_rule(Rule::once(Call::Insert, fail("INTERNAL_ERROR", 500)));
    let error = cloud
        .provider
        .create(&request("u-1"))
        .await
        .expect_err("it failed");
    assert_eq!(
        (error.class(), error.is_definite()),
        (Class::Transient, true)
    );
}

#[tokio::test]
async fn b10_user_data_that_no_vm_takes_is_refused_without_a_call() {
    let cloud = Cloud::quick().await;
    let large = request_with_data("u-1", &"x".repeat(300 * 1024));
    let error = cloud.provider.create(&large).await.expect_err("too large");
    assert_eq!(error.class(), Class::Permanent);
    assert!(
        error.message().contains("307200") && error.message().contains("262144"),
        "{error}"
    );
    assert!(cloud.world().take_calls().is_empty());
}

#[tokio::test]
async fn b11_an_unknown_machine_type_is_permanent_and_quotes_type_and_zone() {
    let cloud = Cloud::quick().await;
    let mut huge = request("u-1");
    huge.machine.size = Some("huge-1000".to_owned());
    let error = cloud
        .provider
        .create(&huge)
        .await
        .expect_err("no such type");
    assert_eq!((error.class(), error.code()), (Class::Permanent, Some(400)));
    assert!(
        error.message().contains("huge-1000") && error.message().contains(ZONE),
        "{error}"
    );
}

#[tokio::test]
async fn p04_a_refusal_that_repeats_user_data_does_not_pass_it_on() {
    let cloud = Cloud::quick().await;
    let secret = request_with_data(
        "u-1",
        "#!/bin/sh\n# refuse-this-value\nexport KEY=hunter2\n",
    );
    let error = cloud.provider.create(&secret).await.expect_err("refused");
    let text = format!("{error} {error:?} {:?}", cloud.provider);
    assert!(text.contains("resource.metadata.items[4].value"), "{text}");
    assert!(
        !text.contains("hunter2") && !text.contains("refuse-this-value"),
        "{text}"
    );
}

#[tokio::test]
async fn p26_a_deletion_goes_out_once_under_one_request_id() {
    let cloud = Cloud::quick().await;
    let made = cloud.create("u-1").await;
    // The answer is lost after the effect: the next try finds it stopping, and sends nothing.
    cloud
        .world()
        .add_rule(Rule::once(Call::Delete, Answer::Reset).after_effect());
    cloud.delete(&made, "u-1").await.expect_err("no answer");
    cloud.delete(&made, "u-1").await.expect("going already");
    assert_eq!(cloud.request_ids(Call::Delete).len(), 1);
    // Before the effect: the same request again.
    let other = cloud.create("u-2").await;
    cloud
        .world()
        .add_rule(Rule::once(Call::Delete, Answer::Reset));
    cloud.delete(&other, "u-2").await.expect_err("no answer");
    cloud.delete(&other, "u-2").await.expect("accepted");
    let ids = cloud.request_ids(Call::Delete);
    assert_eq!(
        (ids.len(), ids.iter().collect::<BTreeSet<_>>().len()),
        (2, 1)
    );
}

#[tokio::test]
async fn p26_a_deletion_that_failed_is_not_replayed_for_ever() {
    let cloud = Cloud::quick().await;
    let made = cloud.create("u-1").await;
    cloud
        .world()
        .add_rule(Rule::once(Call::Delete, fail("INTERNAL_ERROR", 500)));
    cloud
        .delete(&made, "u-1")
        .await
        .expect("accepted, and fails later");
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!cloud.world().named("px-u-1")[0].deleting);
    cloud
        .delete(&made, "u-1")
        .await
        .expect("accepted under another id");
    assert!(cloud.world().named("px-u-1")[0].deleting);
    assert_eq!(
        cloud
            .request_ids(Call::Delete)
            .into_iter()
            .collect::<BTreeSet<_>>()
            .len(),
        2
    );
}

#[tokio::test]
async fn p27_preempted_and_stopped_vms_are_told_apart_from_those_that_go() {
    let cloud = Cloud::quick().await;
    let mut spot = request("u-1");
    spot.machine.spot = true;
    let taken = cloud
        .provider
        .create(&spot)
        .await
        .expect("made")
        .instance()
        .clone();
    let stopped = cloud.create("u-2").await;
    cloud.until_runs("px-u-1").await;
    assert!(cloud.world().preempt("px-u-1") && cloud.world().stop("px-u-2"));
    let going = cloud.get(&taken, "u-1").await.expect("going");
    assert_eq!(
        (going.state, going.deleting),
        (InstanceState::Stopped, true)
    );
    let halted = cloud.get(&stopped, "u-2").await.expect("there");
    assert_eq!(
        (halted.state, halted.deleting),
        (InstanceState::Stopped, false),
        "billed still"
    );
    cloud
        .until("it was taken", |world| world.named("px-u-1").is_empty())
        .await;
    assert!(
        cloud
            .get(&taken, "u-1")
            .await
            .expect_err("gone")
            .is_not_found()
    );
}

#[tokio::test]
async fn p28_looks_for_drift_share_one_list_and_no_decision_rests_on_it() {
    let cloud = Cloud::quick().await;
    let mut made = Vec::new();
    for n in 0..20 {
        made.push((format!("u-{n}"), cloud.create(&format!("u-{n}")).await));
    }
    for n in 0..20 {
        cloud.until_runs(&format!("px-u-{n}")).await;
    }
    let _before = cloud.world().take_calls();
    let look = async |uid: &str, seen: &Instance| {
        let hint = Hint {
            incarnation: Some(seen.incarnation.clone()),
            was_running: true,
            drift: true,
            ..Hint::default()
        };
        cloud.provider.get(&seen.id, &owner(uid), &hint).await
    };
    for (uid, seen) in &made {
        assert_eq!(
            look(uid, seen).await.expect("runs").state,
            InstanceState::Running
        );
    }
    let calls = cloud.world().take_calls();
    assert_eq!(calls.len(), 1, "20 looks: {calls:?}");
    assert_eq!(calls[0].op, Call::List);
    // What the list does not show running is asked for by itself, and a deletion asks again.
    let (uid, seen) = &made[0];
    cloud.world().stop("px-u-0");
    cloud.provider.snapshot.forget();
    assert_eq!(
        look(uid, seen).await.expect("there").state,
        InstanceState::Stopped
    );
    assert_eq!(cloud.world().take_calls().len(), 2, "a list and a get");
    cloud.world().vanish("px-u-1");
    let (uid, seen) = &made[1];
    assert!(look(uid, seen).await.is_ok(), "as of the list");
    assert_eq!(cloud.delete(seen, uid).await, Ok(()), "asked live");
    assert!(
        look(uid, seen)
            .await
            .expect_err("a change ends the view")
            .is_not_found()
    );
    // Another life under the name is never told from the list.
    let (uid, seen) = &made[2];
    let other = Instance {
        incarnation: Incarnation::new("1"),
        ..seen.clone()
    };
    let found = look(uid, &other).await.expect("read live");
    assert_eq!(found.incarnation, seen.incarnation);
    // Without a list each is asked for.
    cloud.provider.snapshot.forget();
    cloud
        .world()
        .add_rule(Rule::once(Call::List, refuse(503, "backendError")));
    assert!(look(uid, seen).await.is_ok());
}

#[tokio::test]
async fn g04_zones_that_do_not_answer_are_named_and_their_vms_are_not_gone() {
    let cloud = Cloud::quick().await;
    let seen = cloud.create("u-1").await;
    let mut elsewhere = request("u-2");
    elsewhere.machine.zone = Some("us-central1-a".to_owned());
    cloud.provider.create(&elsewhere).await.expect("made");
    cloud.world().set_unreachable([ZONE]);
    let page = cloud
        .provider
        .list_by_tag("cluster-1", None)
        .await
        .expect("in part");
    assert_eq!(page.unreachable, [ZONE]);
    assert_eq!(page.instances.len(), 1);
    assert_eq!(page.instances[0].owner, owner("u-2"));
    let error = cloud
        .provider
        .find(&owner("u-1"))
        .await
        .expect_err("nobody knows");
    assert_eq!(error.class(), Class::Transient);
    assert!(error.message().contains(ZONE), "{error}");
    assert!(
        cloud
            .provider
            .find(&owner("u-2"))
            .await
            .expect("found")
            .is_some()
    );
    let error = cloud.get(&seen, "u-1").await.expect_err("no answer");
    assert_eq!(error.class(), Class::Transient, "{error}");
    cloud.world().set_partial_lists(false);
    assert!(
        cloud.provider.list_by_tag("cluster-1", None).await.is_err(),
        "no half list"
    );
}

#[tokio::test]
async fn a_zone_that_is_down_elsewhere_keeps_nobody_from_new_vms() {
    let cloud = Cloud::quick().await;
    cloud.world().set_unreachable(["us-central1-a"]);
    cloud.world().set_partial_lists(false);
    assert!(matches!(
        cloud.provider.create(&request("u-1")).await,
        Ok(Creation::Created(_))
    ));
}

#[tokio::test]
async fn g01_a_long_list_comes_in_pages() {
    let cloud = Cloud::start(fake_gce::Settings {
        page: 3,
        ..fake_gce::Settings::default()
    })
    .await;
    for n in 0..8 {
        let uid = format!("u-{n}");
        let labels = [
            ("pxo-managed", "proxy-operator"),
            ("pxo-cluster", "cluster-1"),
            ("pxo-uid", &*uid),
        ];
        cloud.world().put(ZONE, &format!("px-{uid}"), &labels[..]);
    }
    cloud.world().put(
        ZONE,
        "px-half",
        &[
            ("pxo-managed", "proxy-operator"),
            ("pxo-cluster", "cluster-1"),
        ],
    );
    let (mut uids, mut pages, mut page) = (BTreeSet::new(), 0, None);
    loop {
        let answer = cloud
            .provider
            .list_by_tag("cluster-1", page.as_deref())
            .await
            .expect("lists");
        pages += 1;
        uids.extend(answer.instances.into_iter().map(|listed| listed.owner.uid));
        page = answer.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(
        (uids.len(), pages),
        (8, 3),
        "without the one that lacks a label"
    );
}

#[tokio::test]
async fn a_404_that_passes_costs_no_second_vm() {
    let cloud = Cloud::quick().await;
    let made = cloud.create("u-1").await;
    cloud.until_runs("px-u-1").await;
    cloud
        .world()
        .add_rule(Rule::once(Call::Get, refuse(404, "notFound")));
    let hint = Hint {
        was_running: true,
        ..Hint::default()
    };
    let lost = cloud.provider.get(&made.id, &owner("u-1"), &hint).await;
    assert!(lost.expect_err("it flaps").is_not_found());
    let next = CreateRequest {
        attempt: 2,
        ..request("u-1")
    };
    match cloud.provider.create(&next).await {
        Ok(Creation::Adopted(found)) => assert_eq!(found.incarnation, made.incarnation),
        other => panic!("{other:?}"),
    }
    assert_eq!(cloud.world().inserted(), 1);
}

#[tokio::test]
async fn an_answer_that_nobody_knows_is_hoped_on_five_times() {
    let cloud = Cloud::quick().await;
    for (n, answer) in [refuse(418, "teapot"), fail("SOMETHING_NEW", 400)]
        .into_iter()
        .enumerate()
    {
        let uid = format!("u-{n}");
        cloud
            .world()
            .add_rule(Rule::times(Call::Insert, 6, answer).matching(&*uid));
        for attempt in 1..=6 {
            let request = CreateRequest {
                attempt,
                ..request(&uid)
            };
            let error = cloud.provider.create(&request).await.expect_err("refused");
            let want = if attempt <= 5 {
                Class::Transient
            } else {
                Class::Permanent
            };
            assert_eq!(error.class(), want, "attempt {attempt}: {error}");
        }
        let request = CreateRequest {
            attempt: 7,
            ..request(&uid)
        };
        assert!(cloud.provider.create(&request).await.is_ok());
    }
}

#[tokio::test]
async fn an_unknown_answer_is_forgotten_when_its_vm_runs_and_not_before() {
    let cloud = Cloud::start(fake_gce::Settings {
        boot: Duration::from_secs(2),
        ..fake_gce::Settings::default()
    })
    .await;
    let made = cloud.create("u-1").await;
    let five = || (0..5).any(|_| cloud.provider.one_more_unknown("u-1"));
    assert!(!five());
    let seen = cloud.get(&made, "u-1").await.expect("there");
    assert_eq!(seen.state, InstanceState::Provisioning);
    assert!(cloud.provider.one_more_unknown("u-1"), "the sixth");
    assert!(!five());
    cloud.until_runs("px-u-1").await;
    let seen = cloud.get(&made, "u-1").await.expect("there");
    assert_eq!(seen.state, InstanceState::Running);
    assert!(!cloud.provider.one_more_unknown("u-1"), "the first again");
}

#[tokio::test]
async fn credentials_that_do_not_work_latch_nothing() {
    let cloud = Cloud::quick().await;
    let settings = Settings {
        credentials: CredentialsSource::File("/none/key.json".into()),
        ..cloud.provider.settings.clone()
    };
    let error = GceProvider::new(settings)
        .find(&owner("u-1"))
        .await
        .expect_err("no file");
    assert_eq!(
        (error.class(), error.reason()),
        (Class::Transient, Reason::Credentials)
    );
    assert!(error.message().contains("/none/key.json"), "{error}");
}

/// One row of the table, as the cloud answers it.
struct Row {
    call: Call,
    status: u16,
    /// `errors[].reason`
    old: &'static str,
    /// `ErrorInfo.reason`
    new: &'static str,
    message: &'static str,
    want: Reason,
}

fn rows() -> Vec<Row> {
    let row = |call, status, old, new, message, want| Row {
        call,
        status,
        old,
        new,
        message,
        want,
    };
    let quota = "Quota 'CPUS' exceeded. Limit: 24.0 in region europe-west1.";
    let reads =
        "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'";
    let rate = "Rate Limit Exceeded";
    let busy = "The resource 'projects/p/global/networks/n' is not ready";
    let stock = "The zone 'projects/p/zones/europe-west1-b' does not have enough resources available to fulfill the request.";
    let forbidden =
        "Required 'compute.instances.create' permission for 'projects/p/zones/z/instances/i'";
    let image = "The resource 'projects/p/global/images/none' was not found";
    vec![
        row(
            Call::Get,
            404,
            "notFound",
            "RESOURCE_NOT_FOUND",
            "The resource 'i' was not found",
            Reason::Gone,
        ),
        row(
            Call::Insert,
            403,
            "quotaExceeded",
            "QUOTA_EXCEEDED",
            quota,
            Reason::Quota,
        ),
        row(
            Call::Insert,
            503,
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            stock,
            Reason::Capacity,
        ),
        row(
            Call::Insert,
            503,
            "backendError",
            "STOCKOUT",
            stock,
            Reason::Capacity,
        ),
        row(
            Call::Insert,
            503,
            "IP_SPACE_EXHAUSTED_WITH_DETAILS",
            "IP_SPACE_EXHAUSTED",
            "IP space of 'projects/p/regions/r/subnetworks/s' is exhausted.",
            Reason::Capacity,
        ),
        row(
            Call::Get,
            403,
            "quotaExceeded",
            "QUOTA_EXCEEDED",
            reads,
            Reason::Throttled,
        ),
        row(
            Call::List,
            403,
            "quotaExceeded",
            "QUOTA_EXCEEDED",
            reads,
            Reason::Throttled,
        ),
        row(
            Call::Operation,
            403,
            "quotaExceeded",
            "QUOTA_EXCEEDED",
            reads,
            Reason::Throttled,
        ),
        row(
            Call::Delete,
            403,
            "quotaExceeded",
            "QUOTA_EXCEEDED",
            reads,
            Reason::Throttled,
        ),
        row(
            Call::Get,
            503,
            "backendError",
            "STOCKOUT",
            stock,
            Reason::Throttled,
        ),
        row(
            Call::Operation,
            503,
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            stock,
            Reason::Throttled,
        ),
        row(
            Call::Insert,
            403,
            "rateLimitExceeded",
            "RATE_LIMIT_EXCEEDED",
            rate,
            Reason::Throttled,
        ),
        row(
            Call::Get,
            403,
            "rateLimitExceeded",
            "RATE_LIMIT_EXCEEDED",
            rate,
            Reason::Throttled,
        ),
        row(
            Call::Delete,
            403,
            "rateLimitExceeded",
            "RESOURCE_OPERATION_RATE_EXCEEDED",
            "Too frequent operations",
            Reason::Throttled,
        ),
        row(
            Call::Insert,
            403,
            "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
            "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
            "Rate limit",
            Reason::Throttled,
        ),
        row(
            Call::List,
            429,
            "tooManyRequests",
            "RATE_LIMIT_EXCEEDED",
            "slow down",
            Reason::Throttled,
        ),
        row(
            Call::Insert,
            409,
            "resourceInUseByAnotherResource",
            "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
            "in use",
            Reason::Unavailable,
        ),
        row(
            Call::Delete,
            409,
            "resourceNotReady",
            "RESOURCE_NOT_READY",
            "not ready",
            Reason::Unavailable,
        ),
        row(
            Call::Delete,
            400,
            "resourceNotReady",
            "RESOURCE_NOT_READY",
            "not ready",
            Reason::Unavailable,
        ),
        row(
            Call::Insert,
            400,
            "resourceNotReady",
            "RESOURCE_NOT_READY",
            busy,
            Reason::Unavailable,
        ),
        row(
            Call::Insert,
            409,
            "resourceNotReady",
            "RESOURCE_NOT_READY",
            busy,
            Reason::Unavailable,
        ),
        row(
            Call::Insert,
            400,
            "invalid",
            "INVALID_FIELD_VALUE",
            "Invalid value for field 'resource.name': 'X'.",
            Reason::InvalidInput,
        ),
        row(
            Call::Insert,
            400,
            "required",
            "REQUIRED",
            "Required field 'resource.name' not specified",
            Reason::InvalidInput,
        ),
        row(
            Call::Insert,
            404,
            "notFound",
            "RESOURCE_NOT_FOUND",
            image,
            Reason::InvalidInput,
        ),
        row(
            Call::Insert,
            404,
            "notFound",
            "RESOURCE_NOT_FOUND",
            "The resource 'projects/p/global/networks/n' was not found",
            Reason::InvalidInput,
        ),
        row(
            Call::Insert,
            404,
            "notFound",
            "RESOURCE_NOT_FOUND",
            "The resource 'projects/p/regions/r/subnetworks/s' was not found",
            Reason::InvalidInput,
        ),
        row(
            Call::Insert,
            404,
            "notFound",
            "RESOURCE_NOT_FOUND",
            "The resource 'projects/p/zones/z' was not found",
            Reason::InvalidInput,
        ),
        row(
            Call::Insert,
            413,
            "uploadTooLarge",
            "REQUEST_TOO_LARGE",
            "too large",
            Reason::InvalidInput,
        ),
        row(
            Call::Insert,
            401,
            "authError",
            "ACCESS_TOKEN_EXPIRED",
            "Invalid Credentials",
            Reason::Credentials,
        ),
        row(
            Call::Get,
            401,
            "required",
            "CREDENTIALS_MISSING",
            "Login Required.",
            Reason::Credentials,
        ),
        row(
            Call::Insert,
            403,
            "forbidden",
            "IAM_PERMISSION_DENIED",
            forbidden,
            Reason::Credentials,
        ),
        row(
            Call::Delete,
            403,
            "accessNotConfigured",
            "SERVICE_DISABLED",
            "API disabled",
            Reason::Credentials,
        ),
        row(
            Call::Insert,
            412,
            "conditionNotMet",
            "CONDITION_NOT_MET",
            "Precondition Failed",
            Reason::Unavailable,
        ),
        row(
            Call::Insert,
            408,
            "requestTimeout",
            "REQUEST_TIMEOUT",
            "timeout",
            Reason::Unavailable,
        ),
        row(
            Call::Insert,
            500,
            "backendError",
            "INTERNAL",
            "Backend Error",
            Reason::Unavailable,
        ),
        row(
            Call::Get,
            502,
            "badGateway",
            "BAD_GATEWAY",
            "Bad Gateway",
            Reason::Unavailable,
        ),
        row(
            Call::Delete,
            503,
            "backendError",
            "UNAVAILABLE",
            "Backend Error",
            Reason::Unavailable,
        ),
        row(
            Call::List,
            400,
            "invalid",
            "INVALID",
            "Invalid value for field 'filter'",
            Reason::Unavailable,
        ),
        row(
            Call::Insert,
            418,
            "teapot",
            "TEAPOT",
            "I am a teapot",
            Reason::Unavailable,
        ),
    ]
}

/// The error of the one call of the provider that makes this call of the API.
async fn provoke(cloud: &Cloud, call: Call, made: &Instance) -> Error {
    match call {
        Call::Insert => cloud.provider.create(&request("u-2")).await.map(drop),
        Call::Get => cloud.get(made, "u-1").await.map(drop),
        Call::Delete => cloud.delete(made, "u-1").await,
        Call::List => cloud
            .provider
            .list_by_tag("cluster-1", None)
            .await
            .map(drop),
        Call::Operation => {
            let missing = Place {
                project: "test-project",
                zone: ZONE,
                name: "px-none",
            };
            let missing = Instance {
                id: missing.id(),
                operation: Some(Arc::from("operation-1")),
                ..made.clone()
            };
            cloud.get(&missing, "none").await.map(drop)
        }
    }
    .expect_err("refused")
}

#[tokio::test]
async fn t52_every_row_of_the_table_with_and_without_error_info() {
    let cloud = Cloud::quick().await;
    let made = cloud.create("u-1").await;
    cloud.until_runs("px-u-1").await;
    let made = Instance {
        operation: None,
        ..made
    };
    for row in rows() {
        let old = Body::new(row.status, row.old, row.message);
        for body in [old.clone(), old.with_error_info(row.new)] {
            let with_info = body.error_info.is_some();
            cloud
                .world()
                .add_rule(Rule::once(row.call, Answer::Refuse(body)));
            let error = provoke(&cloud, row.call, &made).await;
            let told = format!("{} {} info={with_info}: {error}", row.status, row.old);
            assert_eq!(error.reason(), row.want, "{told}");
            assert_eq!(error.code(), Some(row.status), "{told}");
            assert!(error.message().contains(row.message), "{told}");
            let is_slow = error.retry_after() >= Some(Duration::from_secs(60));
            assert_eq!(is_slow, row.want == Reason::Throttled, "{told}");
        }
    }
}

#[tokio::test]
async fn t52_the_text_alone_is_the_last_resort() {
    let cloud = Cloud::quick().await;
    let made = cloud.create("u-1").await;
    for row in rows() {
        let mut body = Body::new(row.status, "", row.message);
        body.retry_after = Some(90);
        cloud
            .world()
            .add_rule(Rule::once(row.call, Answer::Refuse(body)));
        let error = provoke(
            &cloud,
            row.call,
            &Instance {
                operation: None,
                ..made.clone()
            },
        )
        .await;
        assert_eq!(
            error.reason(),
            row.want,
            "{} {}: {error}",
            row.status,
            row.message
        );
        assert_eq!(
            error.retry_after(),
            Some(Duration::from_secs(90)),
            "{error}"
        );
    }
    let page = Answer::Raw {
        status: 502,
        body: "<html>Bad Gateway</html>".to_owned(),
    };
    cloud.world().add_rule(Rule::once(Call::Get, page));
    let error = cloud
        .provider
        .get(&made.id, &owner("u-1"), &Hint::default())
        .await;
    let error = error.expect_err("no answer of the API");
    assert_eq!(
        (error.reason(), error.code()),
        (Reason::Unavailable, Some(502)),
        "{error}"
    );
}

#[tokio::test]
async fn t52_every_code_of_an_operation_through_the_wire() {
    let cloud = Cloud::quick().await;
    for (n, (code, status, want)) in [
        ("QUOTA_EXCEEDED", 403, Reason::Quota),
        (
            "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
            403,
            Reason::Throttled,
        ),
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            503,
            Reason::Capacity,
        ),
        ("IP_SPACE_EXHAUSTED", 503, Reason::Capacity),
        ("INTERNAL_ERROR", 500, Reason::Unavailable),
        ("SOMETHING_NEW", 400, Reason::Unavailable),
    ]
    .into_iter()
    .enumerate()
    {
        cloud
            .world()
            .add_rule(Rule::once(Call::Insert, fail(code, status)));
        let error = cloud
            .provider
            .create(&request(&format!("u-{n}")))
            .await
            .expect_err(code);
        assert_eq!(
            (error.reason(), error.is_definite()),
            (want, true),
            "{code}: {error}"
        );
        assert!(error.message().contains(code), "{error}");
    }
}

#[tokio::test]
async fn t52_connections_that_break_are_passing_errors() {
    let cloud = Cloud::quick().await;
    let made = cloud.create("u-1").await;
    for call in [Call::Insert, Call::Get, Call::List] {
        cloud.world().add_rule(Rule::once(call, Answer::Reset));
        let error = provoke(
            &cloud,
            call,
            &Instance {
                operation: None,
                ..made.clone()
            },
        )
        .await;
        assert_eq!(
            (error.class(), error.is_definite()),
            (Class::Transient, false),
            "{error}"
        );
    }
}
