use std::time::Duration;

use serde_json::json;

use super::super::testing::{INSTANCE, PATH, UID, World, virtual_now};
use super::*;
use crate::api::{
    ABANDON_INSTANCE_ANNOTATION, FINALIZER, Mode, Proxy, RETRY_ANNOTATION,
    SKIP_REPLACEMENT_ANNOTATION, SPEC_HASH_ANNOTATION,
};
use crate::provider::fake::{Fault, owner};
use crate::provider::{Error as ProviderError, InstanceState, Reason};

fn managed() -> serde_json::Value {
    json!({ "provider": "fake" })
}

fn external() -> serde_json::Value {
    json!({ "mode": "External", "provider": null,
            "endpoint": { "host": "proxy.example.com", "port": 9000 } })
}

async fn settled(spec: &serde_json::Value) -> World {
    let mut world = World::new(spec);
    assert!(world.run().await);
    world.provider.take_calls();
    world.server.take_writes();
    world.take_events();
    world
}

fn finalizers(proxy: &Proxy) -> Vec<String> {
    proxy.metadata.finalizers.clone().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn t01_a_managed_proxy_comes_up_step_by_step() {
    let mut world = World::new(&managed());
    assert_eq!(
        world.ok().await,
        Action::Done,
        "M1: the event of the finalizer goes on"
    );
    assert_eq!(finalizers(&world.proxy()), [FINALIZER]);
    assert!(
        world.provider.take_calls().is_empty(),
        "nothing is made without the finalizer"
    );

    assert_eq!(
        world.ok().await,
        Action::RequeueAfter(Duration::from_secs(10)),
        "M6"
    );
    assert_eq!(world.provider.take_calls(), ["create px-u1"]);
    assert_eq!(world.condition("Provisioned"), "False/Provisioning");
    assert_eq!(world.phase(), "Provisioning");
    assert_eq!(world.status("providerID"), "fake://px-u1");
    assert_eq!(world.status("instanceUID"), "inc-1");
    assert_eq!(world.status("provider"), "fake");
    assert_eq!(world.proxy().status.expect("written").create_attempts, 1);

    assert_eq!(
        world.ok().await,
        Action::RequeueAfter(Duration::from_secs(10)),
        "M9"
    );
    world.provider.run(INSTANCE, "10.0.0.1");
    let Action::RequeueAfter(wait) = world.ok().await else {
        panic!("polled")
    };
    assert!(
        (270.0..=330.0).contains(&wait.as_secs_f64()),
        "DRIFT_POLL: {wait:?}"
    );
    assert_eq!(world.condition("Provisioned"), "True/Created");
    assert_eq!(world.condition("Synced"), "True/InSync");
    assert_eq!(world.condition("Healthy"), "Unknown/ProbingDisabled");
    assert_eq!(world.condition("Ready"), "True/Serving");
    assert_eq!(
        (world.phase().as_str(), world.status("ip").as_str()),
        ("Ready", "10.0.0.1")
    );
    let endpoint = world
        .proxy()
        .status
        .expect("written")
        .endpoint
        .expect("resolved");
    assert_eq!((endpoint.host.as_str(), endpoint.port), ("10.0.0.1", 3128));
    assert_eq!(
        world.take_events(),
        [
            "InstanceCreating: fake://px-u1 is being created",
            "InstanceRunning: the instance runs at 10.0.0.1:3128",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn r05_a_settled_proxy_costs_one_look_and_no_write() {
    let mut world = settled(&managed()).await;
    for _ in 0..3 {
        world.ok().await;
    }
    assert_eq!(
        world.provider.take_calls(),
        ["get px-u1", "get px-u1", "get px-u1"]
    );
    assert!(world.server.take_writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r05_a_pass_writes_the_status_at_most_once() {
    let mut world = World::new(&managed());
    for _ in 0..4 {
        world.ok().await;
        let writes = world.server.take_writes();
        let statuses = writes.iter().filter(|write| *write == "status a").count();
        assert!(statuses <= 1, "{writes:?}");
    }
}

/// Lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn o06_a_line_about_a_proxy_says_which_one_at_what_and_how_it_came_out() {
    // While a subscriber that wants everything is there, no span that another test meets first,
    // without one of its own, is switched off for good.
    tracing::subscriber::set_global_default(tracing_subscriber::registry())
        .expect("no other test has one for the whole process");
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_writer({
            let lines = lines.clone();
            move || lines.clone()
        })
        .finish();
    let mut world = World::new(&managed());
    let logging = tracing::subscriber::set_default(subscriber);
    assert!(world.run().await);
    let written = lines.0.lock().expect("not poisoned").len();
    for _ in 0..3 {
        world.ok().await;
    }
    drop(logging);
    let text = String::from_utf8(lines.0.lock().expect("not poisoned").clone()).expect("text");
    assert_eq!(text.len(), written, "a settled Proxy logs nothing at info");
    let ready = text.lines().rfind(|line| line.contains("status written"));
    let line: serde_json::Value = serde_json::from_str(ready.expect("told")).expect("JSON");
    assert_eq!(line["phase"], "Ready");
    let span = &line["spans"][0];
    for (field, want) in [
        ("proxy", json!("crawl/a")),
        ("uid", json!(UID)),
        ("generation", json!(1)),
        ("provider", json!("fake")),
        ("instance", json!("fake://px-u1")),
        ("outcome", json!("waits")),
    ] {
        assert_eq!(span[field], want, "{field} in {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn t02_an_external_proxy_needs_no_provider_and_no_finalizer() {
    let mut world = World::new(&external());
    assert_eq!(world.ok().await, Action::Done);
    assert_eq!(world.condition("Provisioned"), "True/ExternalEndpoint");
    assert_eq!(
        (world.phase().as_str(), world.status("ip").as_str()),
        ("Ready", "proxy.example.com")
    );
    assert!(finalizers(&world.proxy()).is_empty());
    assert!(world.provider.take_calls().is_empty());
    world.server.take_writes();
    world.ok().await;
    assert!(world.server.take_writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t03_the_instance_is_gone_before_the_object_is() {
    let mut world = settled(&managed()).await;
    world.server.delete(PATH);
    assert_eq!(
        world.ok().await,
        Action::RequeueAfter(Duration::from_secs(10))
    );
    assert_eq!(world.provider.take_calls(), ["get px-u1", "delete px-u1"]);
    assert_eq!(world.condition("Provisioned"), "False/Deleting");
    assert_eq!(world.phase(), "Deleting");

    world.ok().await;
    assert_eq!(
        world.provider.take_calls(),
        ["get px-u1"],
        "X-04: no second delete"
    );
    world.provider.vanish(INSTANCE);
    assert_eq!(world.ok().await, Action::Done, "X-03");
    assert!(world.server.get(PATH).is_none());
    assert_eq!(
        world.ok().await,
        Action::Done,
        "a key without an object is done"
    );
    assert_eq!(
        world.take_events(),
        ["InstanceDeleted: fake://px-u1 is gone"]
    );
}

#[tokio::test(start_paused = true)]
async fn t05_an_edit_of_the_machine_replaces_the_instance_under_the_same_name() {
    let mut world = settled(&managed()).await;
    let before = world.proxy().metadata.annotations.expect("stamped")[SPEC_HASH_ANNOTATION].clone();
    world
        .server
        .edit(PATH, &json!({ "spec": { "machine": { "size": "big" } } }));
    world.ok().await;
    assert_eq!(
        world.provider.take_calls(),
        ["get px-u1", "delete px-u1"],
        "M8"
    );
    assert_eq!(
        (
            world.condition("Provisioned").as_str(),
            world.phase().as_str()
        ),
        ("False/Replacing", "Replacing")
    );
    assert!(world.run().await);
    assert_eq!(world.status("instanceUID"), "inc-2");
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
    let after = world.proxy().metadata.annotations.expect("stamped")[SPEC_HASH_ANNOTATION].clone();
    assert_ne!(before, after);
    // What was told of the first instance less than ten minutes ago is not told again.
    assert_eq!(
        world.take_events(),
        [
            "InstanceReplacing: spec or Secret changed, the old instance is being deleted",
            "InstanceDeleted: fake://px-u1 is gone",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn t06_what_is_not_in_the_hash_replaces_nothing() {
    let mut world = settled(&managed()).await;
    world.server.edit(
        PATH,
        &json!({ "spec": { "lease": { "weight": 7 }, "location": { "country": "CH" } } }),
    );
    world
        .server
        .edit(PATH, &json!({ "metadata": { "labels": { "a": "b" } } }));
    assert!(world.run().await);
    assert_eq!(world.provider.made(), 1);
    assert_eq!(
        world.proxy().status.expect("written").observed_generation,
        Some(2)
    );
}

#[tokio::test(start_paused = true)]
async fn t07_only_other_bytes_in_the_secret_replace_the_instance() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = World::new(&spec);
    world.put_secret("b25l");
    assert!(world.run().await);
    world.server.take_writes();
    world.put_secret("b25l");
    assert!(world.run().await);
    assert_eq!(
        (world.provider.made(), world.server.take_writes().len()),
        (1, 0)
    );
    world.put_secret("dHdv");
    assert!(world.run().await);
    assert_eq!(world.provider.made(), 2);
}

#[tokio::test(start_paused = true)]
async fn t09_from_managed_to_external_and_back() {
    let mut world = settled(&managed()).await;
    world.server.edit(PATH, &json!({ "spec": external() }));
    world.ok().await;
    assert_eq!(world.condition("Synced"), "False/ReleasingInstance");
    assert_eq!(world.condition("Provisioned"), "True/ExternalEndpoint");
    assert!(world.run().await);
    assert!(world.provider.see(INSTANCE).is_none());
    assert_eq!(world.condition("Synced"), "True/InSync");
    assert_eq!(world.status("providerID"), "");
    assert!(finalizers(&world.proxy()).is_empty());
    assert!(
        !world
            .proxy()
            .metadata
            .annotations
            .unwrap_or_default()
            .contains_key(SPEC_HASH_ANNOTATION)
    );

    world.server.edit(
        PATH,
        &json!({ "spec": { "mode": "Managed", "provider": "fake", "endpoint": null } }),
    );
    world.ok().await;
    assert_eq!(world.condition("Provisioned"), "False/Provisioning", "R-12");
    assert_eq!(world.status("ip"), "");
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

/// T10, S-06: the definition lets the provider change only by way of External (V7).
#[tokio::test(start_paused = true)]
async fn t10_another_provider_by_way_of_external_strands_nothing() {
    for external_is_seen in [true, false] {
        let mut world = World::new(&managed());
        let next = world.configure_beside("next");
        assert!(world.run().await);
        let (_, _) = (world.provider.take_calls(), next.take_calls());

        world.server.edit(PATH, &json!({ "spec": external() }));
        if external_is_seen {
            assert!(world.run().await);
            assert!(world.provider.see(INSTANCE).is_none());
        }
        let back = json!({ "mode": "Managed", "provider": "next", "endpoint": null });
        world.server.edit(PATH, &json!({ "spec": back }));
        assert!(world.run().await);
        assert_eq!(
            (world.phase().as_str(), world.status("provider").as_str()),
            ("Ready", "next")
        );

        let of =
            |calls: Vec<String>, op: &str| calls.iter().filter(|call| call.starts_with(op)).count();
        let (first, second) = (world.provider.take_calls(), next.take_calls());
        assert_eq!(
            of(first.clone(), "delete"),
            1,
            "by the provider that had it: {first:?}"
        );
        assert_eq!(of(first, "create"), 0);
        assert_eq!(of(second.clone(), "create"), 1, "{second:?}");
        assert_eq!(of(second, "delete"), 0);
        assert!(
            world.provider.see(INSTANCE).is_none(),
            "nothing is stranded"
        );
        let there = next.see(INSTANCE).expect("the new one");
        assert_eq!(world.status("instanceUID"), there.incarnation.as_str());
        assert_eq!((world.provider.made(), next.made()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn t11_a_paused_proxy_is_not_touched_and_goes_on_later() {
    let mut world = World::new(&json!({ "provider": "fake", "paused": true }));
    world.ok().await;
    world.ok().await;
    assert_eq!(world.condition("ReplacementBlocked"), "True/Paused");
    assert_eq!(world.provider.made(), 0);

    world
        .server
        .edit(PATH, &json!({ "spec": { "paused": false } }));
    assert!(world.run().await);
    assert_eq!(
        (
            world.phase().as_str(),
            world.condition("ReplacementBlocked").as_str()
        ),
        ("Ready", "")
    );

    world
        .server
        .edit(PATH, &json!({ "spec": { "paused": true, "port": 9 } }));
    assert!(world.run().await);
    assert_eq!(world.condition("Synced"), "False/ReplacementDeferred");
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 1)
    );

    world
        .provider
        .change(INSTANCE, |instance| instance.state = InstanceState::Stopped);
    world.provider.take_calls();
    world.ok().await;
    assert_eq!(world.provider.take_calls(), ["get px-u1"]);
    world.server.delete(PATH);
    world.ok().await;
    assert_eq!(world.condition("Provisioned"), "False/DeletionBlocked");
    assert!(
        world
            .provider
            .see(INSTANCE)
            .is_some_and(|instance| !instance.deleting)
    );

    world
        .server
        .edit(PATH, &json!({ "spec": { "paused": false } }));
    assert!(world.run().await);
    assert!(world.server.get(PATH).is_none() && world.provider.see(INSTANCE).is_none());
}

#[tokio::test(start_paused = true)]
async fn t11_a_stopped_instance_of_a_paused_proxy_is_not_said_to_be_deleted() {
    let mut world = settled(&managed()).await;
    world
        .server
        .edit(PATH, &json!({ "spec": { "paused": true } }));
    world
        .provider
        .change(INSTANCE, |instance| instance.state = InstanceState::Stopped);
    world.ok().await;
    assert_eq!(world.condition("Provisioned"), "False/InstanceStopped");
    assert!(
        world.message().contains("not deleted") && !world.message().contains("being deleted"),
        "{}",
        world.message()
    );
}

#[tokio::test(start_paused = true)]
async fn t11_a_deleted_paused_proxy_goes_once_its_instance_went_by_other_hands() {
    let mut world = settled(&managed()).await;
    world
        .server
        .edit(PATH, &json!({ "spec": { "paused": true } }));
    world.server.delete(PATH);
    let Action::RequeueAfter(wait) = world.ok().await else {
        panic!("nobody would look again")
    };
    assert!(wait <= Duration::from_secs(330), "{wait:?}");
    world.provider.vanish(INSTANCE);
    world.ok().await;
    assert!(world.server.get(PATH).is_none());
}

#[tokio::test(start_paused = true)]
async fn t11_a_paused_external_proxy_looks_again_at_the_instance_of_its_managed_past() {
    let mut world = settled(&managed()).await;
    let mut spec = external();
    spec["paused"] = json!(true);
    world.server.edit(PATH, &json!({ "spec": spec }));
    assert!(matches!(world.ok().await, Action::RequeueAfter(_)));
    assert_eq!(world.condition("Synced"), "False/ReleasingInstance");
    world.provider.vanish(INSTANCE);
    world.ok().await;
    assert!(finalizers(&world.proxy()).is_empty());
    assert_eq!(world.status("providerID"), "");
}

#[tokio::test(start_paused = true)]
async fn c08_a_block_outlasts_a_pass_that_fails_before_it_can_tell() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = World::new(&spec);
    world.put_secret("b25l");
    assert!(world.run().await);
    world
        .server
        .edit(PATH, &json!({ "spec": { "paused": true, "port": 9 } }));
    assert!(world.run().await);
    assert_eq!(world.condition("ReplacementBlocked"), "True/Paused");
    world.server.take_writes();
    let down = Fault::Before(ProviderError::new(Reason::Unavailable, "down"));
    world.provider.fault("get", down);
    world.pass().await.expect_err("backoff");
    world.ok().await;
    assert!(world.server.take_writes().is_empty());

    world.server.delete("secrets/boot");
    world.pass().await.expect_err("backoff");
    assert_eq!(world.condition("Synced"), "False/CloudInitError");
    assert_eq!(world.condition("ReplacementBlocked"), "True/Paused");
    world
        .server
        .edit(PATH, &json!({ "spec": { "paused": false } }));
    world.pass().await.expect_err("backoff");
    assert_eq!(world.condition("ReplacementBlocked"), "");
}

#[tokio::test(start_paused = true)]
async fn the_annotation_skip_replacement_defers_a_replacement() {
    let mut world = settled(&managed()).await;
    let skip = json!({ "annotations": { SKIP_REPLACEMENT_ANNOTATION: "" } });
    world
        .server
        .edit(PATH, &json!({ "metadata": skip, "spec": { "port": 9 } }));
    assert!(world.run().await);
    assert_eq!(world.condition("ReplacementBlocked"), "True/Skipped");
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn t12_a_stopped_instance_is_deleted_and_made_again() {
    for state in [InstanceState::Stopped, InstanceState::Terminated] {
        let mut world = settled(&managed()).await;
        world
            .provider
            .change(INSTANCE, |instance| instance.state = state);
        world.ok().await;
        assert_eq!(world.provider.take_calls(), ["get px-u1", "delete px-u1"]);
        assert_eq!(world.condition("Provisioned"), "False/InstanceStopped");
        assert!(world.run().await);
        assert_eq!(
            (world.phase().as_str(), world.provider.made()),
            ("Ready", 2)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn t12_a_stopped_instance_whose_deletion_is_refused_counts_as_one_loss() {
    for reason in [Reason::Unavailable, Reason::Quota, Reason::InvalidInput] {
        let mut world = settled(&managed()).await;
        world
            .provider
            .change(INSTANCE, |instance| instance.state = InstanceState::Stopped);
        for round in 0..5 {
            let refused = ProviderError::new(reason, "no deletions now");
            world.provider.fault("delete", Fault::Before(refused));
            let error = world.pass().await.expect_err("backoff");
            assert!(error.to_string().contains("no deletions now"), "{error}");
            assert_eq!(world.condition("Provisioned"), "False/InstanceStopped");
            assert!(world.message().contains("not deleted yet"));
            let streak = world.proxy().status.expect("written").failure_streak;
            assert_eq!(streak, 1, "{reason:?}, round {round}");
            let writes = world.server.take_writes().len();
            assert_eq!(writes, usize::from(round == 0), "C-08: nothing new");
        }
        assert!(world.run().await);
        assert_eq!(
            (world.phase().as_str(), world.provider.made()),
            ("Ready", 2)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn t13_an_instance_deleted_by_hand_is_made_again_exactly_once() {
    let mut world = settled(&managed()).await;
    world.provider.vanish(INSTANCE);
    assert_eq!(
        world.ok().await,
        Action::RequeueAfter(Duration::from_millis(50)),
        "REQUEUE_NOW"
    );
    assert_eq!(world.condition("Provisioned"), "False/InstanceLost");
    assert_eq!(
        (world.status("ip"), world.status("providerID")),
        (String::new(), String::new())
    );
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn t50_an_instance_that_never_comes_up_is_deleted() {
    let mut world = World::new(&managed());
    world.ok().await;
    world.ok().await;
    grow_old(&mut world);
    world.provider.take_calls();
    world.ok().await;
    assert_eq!(world.condition("Provisioned"), "False/ProvisioningTimeout");
    assert_eq!(world.provider.take_calls(), ["get px-u1", "delete px-u1"]);
}

/// Lets the instance, and the time that the Proxy has not been in service, begin long ago.
fn grow_old(world: &mut World) {
    let old = k8s_openapi::jiff::Timestamp::from_second(1_000).expect("in range");
    world
        .provider
        .change(INSTANCE, |instance| instance.created = Some(old));
    let mut object = world.server.get(PATH).expect("there");
    for condition in object["status"]["conditions"]
        .as_array_mut()
        .expect("a list")
    {
        condition["lastTransitionTime"] = json!(old.to_string());
    }
    world.server.put(PATH, object);
}

#[tokio::test(start_paused = true)]
async fn t50_an_instance_that_served_gets_its_time_to_come_up_again() {
    let mut world = settled(&managed()).await;
    grow_old(&mut world);
    world
        .provider
        .change(INSTANCE, |instance| instance.ips.clear());
    let provisioning = |instance: &mut crate::provider::Instance| {
        instance.state = InstanceState::Provisioning;
    };
    world.provider.change(INSTANCE, provisioning);
    for _ in 0..2 {
        world.ok().await;
        assert_eq!(world.condition("Provisioned"), "False/Provisioning");
    }
    assert_eq!(world.provider.take_calls(), ["get px-u1", "get px-u1"]);
    grow_old(&mut world);
    world.ok().await;
    assert_eq!(world.condition("Provisioned"), "False/ProvisioningTimeout");
}

#[tokio::test(start_paused = true)]
async fn m3_a_provider_that_nobody_configured_fails_the_proxy_until_the_operator_knows_it() {
    let mut world = World::new(&json!({ "provider": "gcp" }));
    world.ok().await;
    assert_eq!(world.ok().await, Action::Done);
    assert_eq!(
        (
            world.condition("Provisioned").as_str(),
            world.phase().as_str()
        ),
        ("False/ProviderNotConfigured", "Failed")
    );
    assert!(
        world.message().contains("gcp") && world.message().contains("fake"),
        "B08: {}",
        world.message()
    );
    world.configure(&["fake", "gcp"]);
    assert!(world.run().await, "S-04");
    assert_eq!(world.phase(), "Ready");
}

#[tokio::test(start_paused = true)]
async fn m4_without_its_secret_a_new_proxy_waits_with_backoff() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = World::new(&spec);
    world.ok().await;
    let error = world.pass().await.expect_err("there is no Secret");
    assert!(
        error.to_string().contains("Secret boot does not exist"),
        "{error}"
    );
    assert_eq!(
        (
            world.condition("Provisioned").as_str(),
            world.phase().as_str()
        ),
        ("False/CloudInitError", "Pending")
    );
    assert_eq!(world.provider.made(), 0);
    world.put_secret("b25l");
    assert!(world.run().await);
    assert_eq!(world.phase(), "Ready");
}

#[tokio::test(start_paused = true)]
async fn m4_an_answer_that_is_no_secret_is_reported_without_its_content() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = World::new(&spec);
    world.ok().await;
    let secret = json!({ "metadata": { "name": "boot" }, "data": "hunter2" });
    world.server.put("secrets/boot", secret);
    let error = world.pass().await.expect_err("backoff");
    assert_eq!(world.condition("Provisioned"), "False/CloudInitError");
    for text in [world.message(), format!("{error} {error:?}")] {
        assert!(text.contains("boot") && !text.contains("hunter2"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn s05_a_failed_read_of_a_secret_says_nothing_about_the_running_instance() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = World::new(&spec);
    world.put_secret("b25l");
    assert!(world.run().await);
    world.server.take_writes();
    let secret = json!({ "metadata": { "name": "boot" }, "data": "no answer of use" });
    world.server.put("secrets/boot", secret);
    world.provider.take_calls();
    world.pass().await.expect_err("backoff");
    assert_eq!(world.provider.take_calls(), ["get px-u1"], "M9 goes on");
    world.put_secret("b25l");
    world.ok().await;
    assert!(world.server.take_writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_external_proxy_with_a_fault_still_lets_its_managed_past_go() {
    let mut world = settled(&managed()).await;
    let endpoint = json!({ "host": "http://1.2.3.4", "port": 1 });
    let spec = json!({ "mode": "External", "provider": null, "endpoint": endpoint });
    world.server.edit(PATH, &json!({ "spec": spec }));
    world.ok().await;
    assert_eq!(world.condition("Synced"), "False/ReleasingInstance");
    assert!(world.run().await);
    assert!(world.provider.see(INSTANCE).is_none());
    assert!(finalizers(&world.proxy()).is_empty());
    assert_eq!(
        (world.phase().as_str(), world.condition("Synced").as_str()),
        ("Failed", "")
    );
}

#[tokio::test(start_paused = true)]
async fn s05_a_deleted_secret_takes_no_proxy_out_of_service() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = World::new(&spec);
    world.put_secret("b25l");
    assert!(world.run().await);
    world.server.delete("secrets/boot");
    world.provider.run(INSTANCE, "10.0.0.2");
    world.pass().await.expect_err("backoff");
    assert_eq!(world.condition("Synced"), "False/CloudInitError");
    assert_eq!(
        (world.phase().as_str(), world.status("ip").as_str()),
        ("Ready", "10.0.0.2"),
        "M9 goes on"
    );
    world.put_secret("b25l");
    assert!(world.run().await);
    assert_eq!(
        (world.condition("Synced").as_str(), world.provider.made()),
        ("True/InSync", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn m7_a_lost_annotation_is_written_again_from_the_instance() {
    let mut world = settled(&managed()).await;
    world
        .server
        .edit(PATH, &json!({ "metadata": { "annotations": null } }));
    assert_eq!(
        world.ok().await,
        Action::RequeueAfter(Duration::from_millis(50))
    );
    world.ok().await;
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 1)
    );
    // Lost together with an edit: the instance's own hash shows the drift.
    world.server.edit(
        PATH,
        &json!({ "metadata": { "annotations": null }, "spec": { "port": 9 } }),
    );
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn r10_a_hash_of_another_version_is_written_anew_and_replaces_nothing() {
    let mut world = settled(&managed()).await;
    let old = format!("v0:{}", "0".repeat(64));
    world.server.edit(
        PATH,
        &json!({ "metadata": { "annotations": { SPEC_HASH_ANNOTATION: old } } }),
    );
    assert!(world.run().await);
    assert_eq!(world.provider.made(), 1);
    assert!(
        world.proxy().metadata.annotations.expect("stamped")[SPEC_HASH_ANNOTATION]
            .starts_with("v1:")
    );
}

#[tokio::test(start_paused = true)]
async fn r06_each_class_of_error_has_its_own_end() {
    for (reason, condition, phase, latched, wait) in [
        (
            Reason::Quota,
            "False/QuotaExceeded",
            "Pending",
            false,
            Some(480..=720),
        ),
        (
            Reason::Capacity,
            "False/CapacityExhausted",
            "Pending",
            false,
            Some(480..=720),
        ),
        (
            Reason::InvalidInput,
            "False/PermanentError",
            "Failed",
            true,
            None,
        ),
    ] {
        let mut world = World::new(&managed());
        world.ok().await;
        world.provider.fault(
            "create",
            Fault::Before(ProviderError::new(reason, "refused")),
        );
        match (world.ok().await, wait) {
            (Action::Done, None) => {}
            (Action::RequeueAfter(found), Some(range)) => {
                assert!(range.contains(&found.as_secs()), "{reason:?}: {found:?}");
            }
            other => panic!("{reason:?}: {other:?}"),
        }
        assert_eq!(
            (
                world.condition("Provisioned").as_str(),
                world.phase().as_str()
            ),
            (condition, phase)
        );
        assert!(world.message().contains("refused"));
        world.provider.take_calls();
        world.server.take_writes();
        tokio::time::advance(Duration::from_secs(720)).await;
        world.ok().await;
        assert_eq!(
            world.provider.take_calls().is_empty(),
            latched,
            "{reason:?}"
        );
    }
}

/// P-25: the create was accepted, and its operation goes on.
async fn on_the_way(spec: &serde_json::Value) -> World {
    let mut world = World::new(spec);
    world.put_secret("aGVsbG8=");
    world.provider.be_a_cloud();
    for _ in 0..3 {
        world.ok().await;
    }
    assert_eq!(world.status("operation"), "operation-1");
    world.provider.take_calls();
    world
}

/// The same, and the operation has failed since.
async fn failed_on_the_way(spec: &serde_json::Value, reason: Reason) -> World {
    let world = on_the_way(spec).await;
    world.provider.vanish(INSTANCE);
    let failed = ProviderError::new(reason, "the operation failed").with_ended();
    world.provider.fault("get", Fault::Before(failed));
    world
}

#[tokio::test(start_paused = true)]
async fn s13_an_operation_that_failed_leaves_no_instance_on_record() {
    let mut world = failed_on_the_way(&managed(), Reason::Unavailable).await;
    world.pass().await.expect_err("with backoff");
    assert_eq!(world.condition("Provisioned"), "False/ProviderError");
    let status = world.proxy().status.expect("written");
    assert_eq!((status.provider_id, status.operation), (None, None));
    assert_eq!(status.failure_streak, 1, "the next ones keep a distance");
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn x03_an_operation_that_failed_holds_no_deletion_up() {
    let mut world = failed_on_the_way(&managed(), Reason::Unavailable).await;
    tokio::time::advance(Duration::from_secs(30)).await;
    world.server.delete(PATH);
    world.ok().await;
    assert!(world.server.get(PATH).is_none());
}

#[tokio::test(start_paused = true)]
async fn t48_a_read_that_is_refused_for_quota_lets_no_instance_go() {
    for reason in [Reason::Quota, Reason::Capacity] {
        let mut world = on_the_way(&managed()).await;
        world.server.delete(PATH);
        let refused = ProviderError::new(reason, "Quota exceeded for quota metric");
        world.provider.fault("get", Fault::Before(refused));
        world.pass().await.expect_err("backoff");
        assert_eq!(finalizers(&world.proxy()), [FINALIZER], "{reason:?}");
        assert_eq!(world.condition("Provisioned"), "False/Deleting");
        assert_eq!(world.status("operation"), "operation-1");
        assert!(world.run().await);
        assert!(world.server.get(PATH).is_none() && world.provider.see(INSTANCE).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn t48_a_read_that_is_refused_for_quota_takes_no_instance_off_the_record() {
    let refused = |reason| Fault::Before(ProviderError::new(reason, "too many reads"));
    for reason in [Reason::Quota, Reason::Capacity] {
        let mut world = on_the_way(&managed()).await;
        world.provider.fault("get", refused(reason));
        world.pass().await.expect_err("backoff");
        assert_eq!(world.status("providerID"), "fake://px-u1", "{reason:?}");
        assert_eq!(world.status("operation"), "operation-1");
        assert_eq!(world.condition("Provisioned"), "False/ProviderError");
        let streak = world.proxy().status.expect("written").failure_streak;
        assert_eq!(
            (streak, world.circuit_wait()),
            (0, None),
            "no create was refused"
        );

        world.provider.run(INSTANCE, "10.0.0.1");
        world.ok().await;
        world.server.take_writes();
        world.provider.fault("get", refused(reason));
        world.pass().await.expect_err("backoff");
        assert_eq!(world.condition("Provisioned"), "True/Created");
        assert!(world.server.take_writes().is_empty(), "it serves on");
        assert_eq!(world.circuit_wait(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn t49_stock_that_fails_a_create_after_it_was_accepted_is_told_and_waited_for() {
    let mut world = failed_on_the_way(&managed(), Reason::Capacity).await;
    let Action::RequeueAfter(wait) = world.ok().await else {
        panic!("it comes again")
    };
    assert!(
        (480..=720).contains(&wait.as_secs()),
        "QUOTA_RETRY: {wait:?}"
    );
    assert_eq!(world.condition("Provisioned"), "False/CapacityExhausted");
    assert!(world.message().contains("the operation failed"));
    assert_eq!(world.phase(), "Pending");
    assert_eq!(world.status("providerID"), "");
    assert_eq!(world.circuit_wait(), Some(Duration::from_secs(600)));
    world.provider.take_calls();
    tokio::time::advance(Duration::from_secs(300)).await;
    world.ok().await;
    assert!(world.provider.take_calls().is_empty(), "no hot loop");
    assert_eq!(world.condition("Provisioned"), "False/CapacityExhausted");
    tokio::time::advance(Duration::from_secs(300)).await;
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn t39_inputs_that_fail_a_create_late_are_freed_by_another_secret() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = failed_on_the_way(&spec, Reason::InvalidInput).await;
    assert_eq!(world.ok().await, Action::Done);
    assert_eq!(world.condition("Provisioned"), "False/PermanentError");
    world.put_secret("aGVsbG8=");
    assert_eq!(world.ok().await, Action::Done);
    assert_eq!(world.phase(), "Failed", "the same bytes");
    assert_eq!(world.provider.made(), 1);
    world.put_secret("d29ybGQ=");
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn t39_inputs_that_fail_late_do_not_latch_those_that_replaced_them_meanwhile() {
    let mut world = failed_on_the_way(&managed(), Reason::InvalidInput).await;
    world.server.edit(PATH, &json!({ "spec": { "port": 9 } }));
    world.ok().await;
    assert_eq!(world.condition("Provisioned"), "False/ProviderError");
    assert!(world.proxy().status.expect("written").latch.is_none());
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

/// The circuit of the provider is open, and its time to try again has come.
async fn due_to_try() -> World {
    let mut world = World::new(&managed());
    world.provider.be_a_cloud();
    world.ok().await;
    world.ok().await;
    let refused = ProviderError::new(Reason::Quota, "none left");
    world.provider.fault("create", Fault::Before(refused));
    world.ok().await;
    tokio::time::advance(Duration::from_secs(720)).await;
    world.ok().await;
    world
}

#[tokio::test(start_paused = true)]
async fn s09_a_try_counts_once_its_instance_runs() {
    let mut world = due_to_try().await;
    world.ok().await;
    assert_eq!(world.provider.made(), 1);
    let waits = Some(Duration::from_secs(10));
    assert_eq!(world.circuit_wait(), waits, "only accepted");
    world.ok().await;
    assert_eq!(world.circuit_wait(), waits, "still coming up");
    world.provider.run(INSTANCE, "10.0.0.1");
    world.ok().await;
    assert_eq!(world.circuit_wait(), None, "the others follow");
}

#[tokio::test(start_paused = true)]
async fn s09_a_try_that_could_not_be_noted_down_goes_on_itself() {
    let mut world = due_to_try().await;
    world.thaw();
    world.freeze();
    let label = json!({ "metadata": { "labels": { "pool": "a" } } });
    world
        .server
        .after_look(move |server| server.edit(PATH, &label));
    world.ok().await;
    assert_eq!(
        (world.provider.made(), world.status("providerID").as_str()),
        (1, ""),
        "made, and the annotation was refused"
    );
    world.thaw();
    world.ok().await;
    assert_eq!(world.status("providerID"), "fake://px-u1");
    assert_eq!(world.circuit_wait(), Some(Duration::from_secs(10)));
}

#[tokio::test(start_paused = true)]
async fn s09_a_try_that_is_not_sent_uses_up_no_turn() {
    let mut world = due_to_try().await;
    world.do_not_lead();
    world.pass().await.expect_err("not sure of leading");
    assert_eq!(
        (world.provider.made(), world.circuit_wait()),
        (0, None),
        "another may try"
    );
}

#[tokio::test(start_paused = true)]
async fn s13_a_create_that_may_have_been_sent_before_is_told_so() {
    let unsure = || Fault::Before(ProviderError::new(Reason::Timeout, "no answer"));
    let mut world = World::new(&managed());
    world.provider.be_a_cloud();
    world.ok().await;
    world.ok().await;
    world.provider.fault("create", unsure());
    world.pass().await.expect_err("backoff");
    world.provider.fault("create", unsure());
    world.pass().await.expect_err("backoff");
    assert_eq!(world.provider.take_resent(), [false, true]);
    world.restart();
    world.ok().await;
    assert_eq!(
        world.provider.take_resent(),
        [true],
        "by the process before"
    );
    assert_eq!(world.proxy().status.expect("written").create_attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn x03_an_instance_that_one_read_does_not_show_is_gone_when_a_list_agrees() {
    let mut world = on_the_way(&managed()).await;
    world.provider.run(INSTANCE, "10.0.0.1");
    world.ok().await;
    world.server.delete(PATH);
    let flap = || Fault::Before(ProviderError::new(Reason::Gone, "not found"));
    world.provider.fault("get", flap());
    let down = ProviderError::new(Reason::Unavailable, "zone z did not answer");
    world.provider.fault("find", Fault::Before(down));
    world.provider.take_calls();
    world.pass().await.expect_err("backoff");
    assert_eq!(world.provider.take_calls(), ["get px-u1", "find px-u1"]);
    assert_eq!(finalizers(&world.proxy()), [FINALIZER]);
    assert!(world.message().contains("zone z"), "{}", world.message());
    world.provider.fault("get", flap());
    world.ok().await;
    let calls = world.provider.take_calls();
    assert_eq!(calls, ["get px-u1", "find px-u1", "delete px-u1"]);
    assert!(world.run().await);
    assert!(world.server.get(PATH).is_none());
}

#[tokio::test(start_paused = true)]
async fn t38_a_zone_without_stock_is_asked_again_at_the_quota_retry() {
    let mut world = World::new(&managed());
    world.ok().await;
    for _ in 0..3 {
        let empty = ProviderError::new(Reason::Capacity, "zone z has none left");
        world.provider.fault("create", Fault::Before(empty));
        let Action::RequeueAfter(wait) = world.ok().await else {
            panic!("it comes again")
        };
        assert!((480.0..=720.0).contains(&wait.as_secs_f64()), "{wait:?}");
        assert_eq!(world.condition("Provisioned"), "False/CapacityExhausted");
        assert_eq!(world.phase(), "Pending");
        tokio::time::advance(Duration::from_secs(720)).await;
    }
    assert_eq!(world.provider.take_calls(), ["create px-u1"; 3]);
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn t39_a_permanent_error_is_silent_until_the_spec_changes() {
    let mut world = World::new(&managed());
    world.ok().await;
    world.provider.fault(
        "create",
        Fault::Before(ProviderError::new(Reason::InvalidInput, "no")),
    );
    world.ok().await;
    world.provider.take_calls();
    world.server.take_writes();
    for _ in 0..3 {
        assert_eq!(world.ok().await, Action::Done, "M2");
    }
    assert!(world.provider.take_calls().is_empty() && world.server.take_writes().is_empty());
    assert!(world.proxy().status.expect("written").latch.is_some());
    world.server.edit(PATH, &json!({ "spec": { "port": 9 } }));
    assert!(world.run().await);
    assert_eq!(world.phase(), "Ready");
    assert!(world.proxy().status.expect("written").latch.is_none());
}

async fn refused_for_good(spec: &serde_json::Value) -> World {
    let mut world = World::new(spec);
    world.put_secret("aGVsbG8=");
    world.ok().await;
    let refusal = ProviderError::new(Reason::InvalidInput, "no");
    world.provider.fault("create", Fault::Before(refusal));
    world.ok().await;
    assert_eq!(world.phase(), "Failed");
    world.provider.take_calls();
    world
}

#[tokio::test(start_paused = true)]
async fn t39_the_annotation_retry_lets_a_failed_proxy_try_once_more() {
    let mut world = refused_for_good(&managed()).await;
    let again = |text: &str| json!({ "metadata": { "annotations": { RETRY_ANNOTATION: text } } });
    world.server.edit(PATH, &again("1"));
    let refusal = ProviderError::new(Reason::InvalidInput, "still no");
    world.provider.fault("create", Fault::Before(refusal));
    world.ok().await;
    assert_eq!(world.provider.take_calls(), ["create px-u1"]);
    assert_eq!(
        world.ok().await,
        Action::Done,
        "the same text is no second retry"
    );
    assert!(world.provider.take_calls().is_empty());
    world.server.edit(PATH, &again("2"));
    assert!(world.run().await);
    assert_eq!(world.phase(), "Ready");
}

#[tokio::test(start_paused = true)]
async fn t39_a_fixed_secret_frees_a_failed_proxy_and_an_equal_one_does_not() {
    let spec = json!({ "provider": "fake", "cloudInit": { "secretRef": { "name": "boot" } } });
    let mut world = refused_for_good(&spec).await;
    world.put_secret("aGVsbG8=");
    assert_eq!(world.ok().await, Action::Done);
    assert_eq!(world.phase(), "Failed", "the same bytes");
    assert!(world.provider.take_calls().is_empty());
    world.put_secret("d29ybGQ=");
    assert!(world.run().await);
    assert_eq!(world.phase(), "Ready");
}

#[tokio::test(start_paused = true)]
async fn t08_an_instance_is_replaced_at_its_greatest_age() {
    let spec = json!({ "provider": "fake", "rotation": { "maxAgeSeconds": 600 } });
    let mut world = settled(&spec).await;
    let made = virtual_now();
    world
        .provider
        .change(INSTANCE, |instance| instance.created = Some(made));
    tokio::time::advance(Duration::from_secs(500)).await;
    assert_eq!(
        world.ok().await,
        Action::RequeueAfter(Duration::from_secs(100)),
        "looked at when its time is over"
    );
    tokio::time::advance(Duration::from_secs(100)).await;
    world.provider.take_calls();
    world.ok().await;
    assert_eq!(
        world.provider.take_calls(),
        ["get px-u1", "get px-u1", "delete px-u1"],
        "P-28: by a look of its own"
    );
    assert_eq!(world.condition("Provisioned"), "False/Replacing");
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
    let status = world.proxy().status.expect("written");
    assert_eq!(status.failure_streak, 0, "no loss");
    let replaced = status.replacements.expect("counted");
    assert_eq!(replaced.last_reason.as_deref(), Some("Replacing"));
}

#[tokio::test(start_paused = true)]
async fn p28_an_age_that_an_old_view_shows_deletes_nothing() {
    let spec = json!({ "provider": "fake", "rotation": { "maxAgeSeconds": 600 } });
    let mut world = settled(&spec).await;
    let made = virtual_now();
    world
        .provider
        .change(INSTANCE, |instance| instance.created = Some(made));
    tokio::time::advance(Duration::from_secs(600)).await;
    world.provider.show_once_as_it_is(INSTANCE);
    world.provider.change(INSTANCE, |instance| {
        instance.created = Some(virtual_now());
    });
    world.provider.take_calls();
    world.ok().await;
    assert_eq!(world.provider.take_calls(), ["get px-u1", "get px-u1"]);
    assert_eq!(world.condition("Provisioned"), "True/Created");
}

#[tokio::test(start_paused = true)]
async fn t51_an_instance_lost_again_and_again_is_made_ever_more_slowly() {
    let mut world = settled(&managed()).await;
    let mut gaps = Vec::new();
    let mut last = tokio::time::Instant::now();
    for round in 2..=11 {
        tokio::time::advance(Duration::from_secs(10)).await;
        world.provider.vanish(INSTANCE);
        while world.provider.made() < round {
            match world.ok().await {
                Action::RequeueAfter(wait) => tokio::time::advance(wait).await,
                other => panic!("{other:?}"),
            }
        }
        gaps.push(last.elapsed().as_secs());
        last = tokio::time::Instant::now();
        world.provider.run(INSTANCE, "10.0.0.1");
        world.ok().await;
        assert_eq!(world.phase(), "Ready");
    }
    for (n, gap) in gaps.iter().enumerate() {
        let least = (5_u64 << n).min(600);
        assert!((least..=least + 25).contains(gap), "loss {n}: {gaps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn t34_a_deletion_that_the_cache_does_not_show_stops_a_create() {
    let mut world = about_to_create().await;
    world.server.delete(PATH);
    assert_eq!(world.ok().await, Action::Done);
    assert_eq!(
        (world.provider.made(), world.server.get(PATH)),
        (0, None),
        "the live copy says that there is nothing to do but to let it go"
    );
}

#[tokio::test(start_paused = true)]
async fn s12_who_does_not_lead_changes_nothing_at_a_provider() {
    let mut world = settled(&managed()).await;
    world.do_not_lead();
    world.server.edit(PATH, &json!({ "spec": { "port": 9 } }));
    world.pass().await.expect_err("not sure of leading");
    world.server.delete(PATH);
    world.pass().await.expect_err("not sure of leading");
    let calls = world.provider.take_calls();
    assert!(
        calls.iter().all(|call| call.starts_with("get ")),
        "{calls:?}"
    );
    assert!(
        world.server.get(PATH).is_some(),
        "nor does it let the Proxy go"
    );
}

#[tokio::test(start_paused = true)]
async fn s07_a_replacement_out_of_budget_waits_and_the_instance_serves_on() {
    let mut world = settled(&managed()).await;
    world.others_unavailable(1);
    world.server.edit(PATH, &json!({ "spec": { "port": 9 } }));
    let Action::RequeueAfter(wait) = world.ok().await else {
        panic!("asked again later")
    };
    assert!((24..=36).contains(&wait.as_secs()), "{wait:?}");
    assert_eq!(world.condition("Synced"), "False/ReplacementDeferred");
    assert_eq!(
        world.condition("ReplacementBlocked"),
        "True/BudgetExhausted"
    );
    assert_eq!(world.condition("Ready"), "True/Serving");
    world.others_unavailable(0);
    assert!(world.run().await);
    assert_eq!(world.provider.made(), 2);
    assert!(world.condition("ReplacementBlocked").is_empty());
}

#[tokio::test(start_paused = true)]
async fn t40_refused_credentials_latch_nothing_and_leave_running_proxies_in_service() {
    let refused = || Fault::Before(ProviderError::new(Reason::Credentials, "expired"));
    let mut world = World::new(&managed());
    world.ok().await;
    world.provider.fault("create", refused());
    world.pass().await.expect_err("backoff");
    assert_eq!(
        (
            world.condition("Provisioned").as_str(),
            world.phase().as_str()
        ),
        ("False/ProviderError", "Pending")
    );
    assert!(world.run().await);

    world.provider.fault("get", refused());
    world.server.take_writes();
    world.pass().await.expect_err("backoff");
    assert_eq!(world.condition("Provisioned"), "True/Created");
    assert!(world.server.take_writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t41_a_create_whose_answer_is_lost_leaves_one_instance() {
    let mut world = World::new(&managed());
    world.ok().await;
    world.provider.fault(
        "create",
        Fault::After(ProviderError::new(Reason::Timeout, "late")),
    );
    world.pass().await.expect_err("backoff");
    world.provider.run(INSTANCE, "10.0.0.1");
    world.ok().await;
    assert_eq!(world.condition("Provisioned"), "True/Adopted", "S-01");
    assert_eq!(world.provider.made(), 1);
    world.ok().await;
    assert_eq!(
        world.condition("Provisioned"),
        "True/Adopted",
        "and stays so"
    );
}

#[tokio::test(start_paused = true)]
async fn s01_an_adopted_instance_of_older_inputs_is_replaced() {
    let mut world = World::new(&managed());
    world.ok().await;
    world.provider.fault(
        "create",
        Fault::After(ProviderError::new(Reason::Timeout, "late")),
    );
    world.pass().await.expect_err("backoff");
    world.server.edit(PATH, &json!({ "spec": { "port": 9 } }));
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
    assert_eq!(world.status("instanceUID"), "inc-2");
}

#[tokio::test(start_paused = true)]
async fn t42_with_the_provider_down_the_finalizer_stays() {
    let mut world = settled(&managed()).await;
    world.server.delete(PATH);
    for op in ["get", "delete"] {
        world.provider.fault(
            op,
            Fault::Before(ProviderError::new(Reason::Unavailable, "down")),
        );
        world.pass().await.expect_err("X-05: backoff");
        assert_eq!(finalizers(&world.proxy()), [FINALIZER]);
        assert_eq!(world.condition("Provisioned"), "False/Deleting");
    }
    assert!(world.run().await);
    assert!(world.server.get(PATH).is_none() && world.provider.see(INSTANCE).is_none());
    assert_eq!(
        world.take_events(),
        [
            "ProviderError: the instance is not deleted yet: provider fake: down",
            "InstanceDeleted: fake://px-u1 is gone",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn x05_a_provider_that_stays_down_is_told_of_every_ten_minutes() {
    let mut world = settled(&managed()).await;
    world.server.delete(PATH);
    for minute in 0..25 {
        let down = ProviderError::new(Reason::Unavailable, "down");
        world.provider.fault("get", Fault::Before(down));
        world.pass().await.expect_err("X-05: backoff");
        let told = world.take_events().len();
        assert_eq!(told, usize::from(minute % 10 == 0), "minute {minute}");
        tokio::time::advance(Duration::from_secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn x06_refused_credentials_block_a_deletion() {
    let mut world = settled(&managed()).await;
    world.server.delete(PATH);
    world.provider.fault(
        "get",
        Fault::Before(ProviderError::new(Reason::Credentials, "expired")),
    );
    world.pass().await.expect_err("backoff");
    assert_eq!(world.condition("Provisioned"), "False/DeletionBlocked");
    assert_eq!(finalizers(&world.proxy()), [FINALIZER]);
}

#[tokio::test(start_paused = true)]
async fn x06_refused_credentials_let_a_proxy_go_that_never_had_an_instance() {
    let refused = || Fault::Before(ProviderError::new(Reason::Credentials, "expired"));
    let mut never = World::new(&managed());
    never.ok().await;
    never.server.delete(PATH);
    never.provider.fault("find", refused());
    never.ok().await;
    assert!(never.server.get(PATH).is_none());

    // One that is found is no longer one that never was.
    let mut found = World::new(&managed());
    found.ok().await;
    let hash = crate::api::spec_hash(&found.proxy().spec, None, None);
    found.provider.put(&owner(UID), &hash);
    found.server.delete(PATH);
    found.provider.fault("delete", refused());
    found.pass().await.expect_err("backoff");
    assert_eq!(found.condition("Provisioned"), "False/DeletionBlocked");
    assert_eq!(finalizers(&found.proxy()), [FINALIZER]);
}

#[tokio::test(start_paused = true)]
async fn t43_a_provider_removed_from_the_configuration_blocks_only_what_may_hold_an_instance() {
    let mut provisioned = settled(&managed()).await;
    provisioned.configure(&["other"]);
    provisioned.server.delete(PATH);
    assert_eq!(provisioned.ok().await, Action::Done);
    assert_eq!(
        provisioned.condition("Provisioned"),
        "False/DeletionBlocked"
    );
    assert_eq!(finalizers(&provisioned.proxy()), [FINALIZER]);

    let mut never = World::new(&managed());
    never.ok().await;
    never.configure(&["other"]);
    never.server.delete(PATH);
    never.ok().await;
    assert!(never.server.get(PATH).is_none());
}

#[tokio::test(start_paused = true)]
async fn t44_an_abandoned_instance_goes_on_running() {
    let mut world = settled(&managed()).await;
    let abandon = json!({ "metadata": { "annotations": { ABANDON_INSTANCE_ANNOTATION: "true" } } });
    world.server.edit(PATH, &abandon);
    world.server.delete(PATH);
    world.ok().await;
    assert!(world.server.get(PATH).is_none());
    assert!(world.provider.take_calls().is_empty());
    assert!(
        world
            .provider
            .see(INSTANCE)
            .is_some_and(|instance| !instance.deleting)
    );
    assert_eq!(
        world.take_events(),
        [
            "InstanceAbandoned: fake://px-u1 is let go as an orphan, as the annotation abandon-instance asks"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn t45_a_stranger_under_the_name_is_left_alone() {
    let mut world = World::new(&managed());
    world.provider.put_stranger(INSTANCE);
    world.ok().await;
    assert!(matches!(world.ok().await, Action::RequeueAfter(_)));
    assert_eq!(
        (
            world.condition("Provisioned").as_str(),
            world.phase().as_str()
        ),
        ("False/NameCollision", "Failed")
    );
    world.server.delete(PATH);
    assert!(world.run().await);
    assert!(world.server.get(PATH).is_none());
    assert!(
        world
            .provider
            .see(INSTANCE)
            .is_some_and(|instance| !instance.deleting)
    );
}

#[tokio::test(start_paused = true)]
async fn t46_a_create_waits_for_an_older_instance_to_go() {
    let mut world = World::new(&managed());
    world.ok().await;
    let hash = crate::api::spec_hash(&world.proxy().spec, None, None);
    world.provider.put(&owner(UID), &hash);
    world
        .provider
        .change(INSTANCE, |instance| instance.deleting = true);
    for _ in 0..2 {
        let error = world.pass().await.expect_err("it waits");
        assert!(error.to_string().contains("still going"), "{error}");
        let of_pass = error.source().downcast_ref::<Error>().expect("of a pass");
        assert_eq!(of_pass.retry_after(), Some(Duration::from_secs(2)), "S-01");
        assert_eq!(world.condition("Provisioned"), "False/ProviderError");
        assert_eq!(world.provider.made(), 1, "none beside the old one");
    }
    world.provider.vanish(INSTANCE);
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn s02_a_deletion_finds_the_instance_that_a_crash_kept_off_the_record() {
    let mut world = World::new(&managed());
    world.ok().await;
    world.provider.fault(
        "create",
        Fault::After(ProviderError::new(Reason::Timeout, "late")),
    );
    world.pass().await.expect_err("backoff");
    world.server.delete(PATH);
    world.provider.take_calls();
    world.ok().await;
    assert_eq!(world.provider.take_calls(), ["find px-u1", "delete px-u1"]);
    assert!(world.run().await);
    assert!(world.server.get(PATH).is_none() && world.provider.see(INSTANCE).is_none());
}

#[tokio::test(start_paused = true)]
async fn t35_an_old_view_of_the_annotation_does_not_kill_the_new_instance() {
    let mut world = settled(&managed()).await;
    let old = format!("v1:{}", "0".repeat(64));
    world.server.edit(
        PATH,
        &json!({ "metadata": { "annotations": { SPEC_HASH_ANNOTATION: old } } }),
    );
    assert!(world.run().await);
    assert_eq!(world.provider.made(), 1);
    assert!(
        !world
            .provider
            .take_calls()
            .contains(&"delete px-u1".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn s11_an_incarnation_that_is_not_on_record_is_taken_over() {
    let mut world = settled(&managed()).await;
    let hash = crate::api::spec_hash(&world.proxy().spec, None, None);
    world.provider.put(&owner(UID), &hash);
    world
        .provider
        .change(INSTANCE, |instance| instance.state = InstanceState::Stopped);
    world.ok().await;
    assert_eq!(
        world.provider.take_calls(),
        ["get px-u1"],
        "no delete by an old view"
    );
    assert_eq!(world.status("instanceUID"), "inc-2");
}

#[tokio::test(start_paused = true)]
async fn t32_a_cache_that_lags_causes_no_extra_call_and_is_passed_by_after_five_seconds() {
    let mut world = World::new(&managed());
    world.ok().await;
    world.freeze();
    let look_again = Action::RequeueAfter(Duration::from_millis(5));
    assert_eq!(world.ok().await, look_again, "M1 not seen");
    assert!(world.provider.take_calls().is_empty());
    tokio::time::advance(Duration::from_secs(5)).await;
    world.ok().await;
    assert_eq!(
        world.provider.take_calls(),
        ["create px-u1"],
        "by a live read"
    );
    world.server.take_writes();
    for _ in 0..5 {
        assert_eq!(world.ok().await, look_again);
    }
    assert!(world.provider.take_calls().is_empty() && world.server.take_writes().is_empty());
    world.thaw();
    assert!(world.run().await);
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 1)
    );
}

/// One life, made, edited and deleted, with a watch that shows each own write that much later: the creates and
/// deletes at the provider and the writes at the server, in their order.
async fn life_with_a_watch_behind_by(lag: Duration) -> (Vec<String>, Vec<String>) {
    let mut world = World::new(&managed());
    let mut shown_at = None;
    let is_ready = |world: &World, port: u16| {
        let hash = crate::api::spec_hash(&world.proxy().spec, None, None);
        let made_for = |instance| plan::is_made_for(&instance, &hash);
        world.phase() == "Ready"
            && world.proxy().spec.port == Some(port)
            && world.provider.see(INSTANCE).is_some_and(made_for)
    };
    world.server.edit(PATH, &json!({ "spec": { "port": 1 } }));
    for step in ["made", "edited", "deleted"] {
        match step {
            "edited" => world.server.edit(PATH, &json!({ "spec": { "port": 2 } })),
            "deleted" => world.server.delete(PATH),
            _ => {}
        }
        let began = tokio::time::Instant::now();
        // To the end of the step, and as long again, so that late news are met too.
        let mut quiet_until = None;
        loop {
            let now = tokio::time::Instant::now();
            assert!(now - began < Duration::from_secs(3600), "no end: {step}");
            if shown_at.is_some_and(|at| now >= at) {
                shown_at = None;
                world.thaw();
            }
            let before = world.server.version();
            let outcome = world.pass().await;
            if world.server.version() > before && !lag.is_zero() {
                world.freeze();
                shown_at = Some(tokio::time::Instant::now() + lag);
            }
            world.live_on();
            let is_done = match step {
                "made" => is_ready(&world, 1),
                "edited" => is_ready(&world, 2),
                _ => world.server.get(PATH).is_none(),
            };
            if is_done {
                let until = quiet_until.get_or_insert(now + 2 * lag + Duration::from_secs(60));
                if now >= *until {
                    break;
                }
            }
            let wait = match outcome {
                Ok(Action::RequeueAfter(wait)) => wait.min(Duration::from_secs(1)),
                _ => Duration::from_secs(1),
            };
            tokio::time::advance(wait.max(Duration::from_millis(100))).await;
        }
    }
    let calls = world.provider.take_calls().into_iter();
    let effects = calls.filter(|call| call.starts_with("create") || call.starts_with("delete"));
    (effects.collect(), world.server.take_writes())
}

#[tokio::test(start_paused = true)]
async fn t32_a_watch_half_a_minute_behind_costs_no_extra_create_delete_or_write() {
    let (calls, writes) = life_with_a_watch_behind_by(Duration::ZERO).await;
    assert_eq!(
        calls,
        [
            "create px-u1",
            "delete px-u1",
            "create px-u1",
            "delete px-u1"
        ]
    );
    let late = life_with_a_watch_behind_by(Duration::from_secs(30)).await;
    assert_eq!(late, (calls, writes));
}

#[tokio::test(start_paused = true)]
async fn t33_a_proxy_made_anew_under_the_same_name_is_another_one() {
    let mut world = settled(&managed()).await;
    world.ok().await;
    world.freeze();
    let mut object = world.server.get(PATH).expect("there");
    object["metadata"] = json!({ "name": "a", "namespace": "crawl", "uid": "u2", "generation": 1 });
    object["status"] = json!({});
    world.server.put(PATH, object);
    // The old view: whatever it wants to write is refused by the version it carries.
    world.provider.vanish(INSTANCE);
    assert_eq!(world.ok().await, Action::RequeueAfter(Duration::ZERO));
    world.thaw();
    world.ok().await;
    world.ok().await;
    assert!(world.provider.see("px-u2").is_some());
}

#[tokio::test(start_paused = true)]
async fn t36_with_every_second_patch_refused_it_still_comes_up() {
    let mut world = World::new(&managed());
    world.server.refuse_every_second_patch();
    assert!(world.run().await);
    let told = world.take_events();
    let [creating, running] = &told[..] else {
        panic!("no trouble is told of: {told:?}")
    };
    // The pass that made it could not note it down, so the next one found it.
    assert!(creating.starts_with("Instance") && running.starts_with("InstanceRunning"));
    assert_eq!(
        (world.phase().as_str(), world.provider.made()),
        ("Ready", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_went_behind_the_cache_is_no_failure() {
    let mut world = World::new(&managed());
    world.freeze();
    world.server.delete(PATH);
    assert_eq!(world.ok().await, Action::Done, "M1 meets 404");
}

/// A cache that has seen the finalizer and not what came after it.
async fn about_to_create() -> World {
    let mut world = World::new(&managed());
    world.ok().await;
    world.thaw();
    world.freeze();
    world.provider.take_calls();
    world
}

/// As a real server does that had begun to delete the object when the finalizer came.
#[tokio::test(start_paused = true)]
async fn an_instance_made_for_a_proxy_that_went_in_spite_of_its_finalizer_is_taken_back() {
    let mut world = about_to_create().await;
    world.server.after_look(|server| {
        server.edit(PATH, &json!({ "metadata": { "finalizers": null } }));
        server.delete(PATH);
    });
    assert_eq!(world.ok().await, Action::Done);
    world.provider.finish_deletions();
    assert!(world.provider.see(INSTANCE).is_none());
    assert_eq!(world.provider.made(), 1, "it was made, and taken back");
}

#[tokio::test(start_paused = true)]
async fn an_instance_made_for_a_proxy_whose_name_another_took_is_taken_back() {
    let mut world = about_to_create().await;
    world.server.after_look(|server| {
        let mut object = server.get(PATH).expect("there");
        object["metadata"] =
            json!({ "name": "a", "namespace": "crawl", "uid": "u2", "generation": 1 });
        server.put(PATH, object);
    });
    assert_eq!(world.ok().await, Action::RequeueAfter(Duration::ZERO));
    world.provider.finish_deletions();
    assert!(world.provider.see(INSTANCE).is_none());
    world.thaw();
    world.ok().await;
    world.ok().await;
    assert!(world.provider.see("px-u2").is_some());
}

#[tokio::test(start_paused = true)]
async fn an_instance_made_while_its_proxy_was_edited_stays() {
    let mut world = about_to_create().await;
    world.server.after_look(|server| {
        server.edit(PATH, &json!({ "metadata": { "labels": { "pool": "a" } } }))
    });
    assert_eq!(world.ok().await, Action::RequeueAfter(Duration::ZERO));
    assert!(
        world
            .provider
            .see(INSTANCE)
            .is_some_and(|seen| !seen.deleting)
    );
    world.thaw();
    assert!(world.run().await);
    assert_eq!(world.provider.made(), 1);
}

#[tokio::test(start_paused = true)]
async fn steps_without_progress_are_slowed_down() {
    let mut world = settled(&managed()).await;
    world.ok().await;
    world.freeze();
    world.server.edit(
        PATH,
        &json!({ "metadata": { "labels": { "new": "copy" } } }),
    );
    world.provider.vanish(INSTANCE);
    for _ in 0..MAX_STEPS_IN_A_ROW {
        assert_eq!(
            world.ok().await,
            Action::RequeueAfter(Duration::ZERO),
            "refused as a conflict"
        );
    }
    assert_eq!(world.ok().await, Action::Requeue, "with backoff");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_an_older_definition_let_in_is_reported_and_not_served_by_panic() {
    let mut world =
        World::new(&json!({ "provider": "fake", "endpoint": { "host": "h", "port": 1 } }));
    world.ok().await;
    assert_eq!(world.ok().await, Action::Done);
    assert_eq!(
        (
            world.condition("Provisioned").as_str(),
            world.phase().as_str()
        ),
        ("False/PermanentError", "Failed")
    );
    assert!(
        world.message().contains("spec.endpoint"),
        "{}",
        world.message()
    );
    for (spec, field) in [
        (json!({ "mode": "External" }), "spec.endpoint"),
        (
            json!({ "mode": "External", "endpoint": { "host": "http://1.2.3.4", "port": 1 } }),
            "spec.endpoint.host",
        ),
        (json!({}), "spec.provider"),
    ] {
        let mut world = World::new(&spec);
        world.ok().await;
        world.ok().await;
        assert_eq!(world.phase(), "Failed", "{spec}");
        assert!(
            world.message().starts_with(field),
            "{spec}: {}",
            world.message()
        );
        assert_eq!(world.status("ip"), "", "{spec}");
    }
}

/// What happens while the process is down.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    Edit,
    Delete,
}

/// the process dies after its effect number `n`, and again after the effect number `m` of
/// its next life, for every n and m, with and without something that happens meanwhile.
#[tokio::test(start_paused = true)]
async fn t26_an_edit_after_dying_at_any_effect_ends_in_an_instance_of_the_new_spec() {
    die_at_any_effect_twice(Meanwhile::Edit).await;
}

#[tokio::test(start_paused = true)]
async fn t27_a_deletion_after_dying_at_any_effect_leaves_no_instance() {
    die_at_any_effect_twice(Meanwhile::Delete).await;
}

#[tokio::test(start_paused = true)]
async fn t28_dying_at_any_effect_twice_in_a_row_ends_in_the_same_state_with_one_instance() {
    die_at_any_effect_twice(Meanwhile::Nothing).await;
}

/// dies at one effect of each kind of work, then at another, and looks where it ends.
async fn die_at_any_effect_twice(meanwhile: Meanwhile) {
    {
        for start in ["create", "replace", "stop", "release", "delete"] {
            for first in 1.. {
                let mut survived = false;
                for second in 1..=3 {
                    let mut world = match start {
                        "create" => World::new(&managed()),
                        _ => settled(&managed()).await,
                    };
                    match start {
                        "replace" => world.server.edit(PATH, &json!({ "spec": { "port": 7 } })),
                        "stop" => world
                            .provider
                            .change(INSTANCE, |instance| instance.state = InstanceState::Stopped),
                        "release" => world.server.edit(PATH, &json!({ "spec": external() })),
                        "delete" => world.server.delete(PATH),
                        _ => {}
                    }
                    world.restart_mortal(first);
                    survived = world.run().await;
                    world.restart_mortal(second);
                    world.run().await;
                    match meanwhile {
                        Meanwhile::Nothing => {}
                        Meanwhile::Edit if world.server.get(PATH).is_none() => {}
                        Meanwhile::Edit if start == "release" => {
                            let back = json!({ "mode": "Managed", "provider": "fake",
                                "endpoint": null });
                            world.server.edit(PATH, &json!({ "spec": back }));
                        }
                        Meanwhile::Edit => {
                            world.server.edit(PATH, &json!({ "spec": { "port": 9 } }))
                        }
                        Meanwhile::Delete => world.server.delete(PATH),
                    }
                    world.restart();
                    let case = format!("{start}, dead after {first} and {second}, {meanwhile:?}");
                    assert!(world.run().await, "{case}");
                    if start == "delete" || meanwhile == Meanwhile::Delete {
                        assert!(world.server.get(PATH).is_none(), "{case}");
                        assert!(world.provider.see(INSTANCE).is_none(), "{case}");
                        continue;
                    }
                    assert_eq!(world.phase(), "Ready", "{case}");
                    if world.proxy().spec.mode == Mode::External {
                        assert!(world.provider.see(INSTANCE).is_none(), "{case}");
                        assert!(finalizers(&world.proxy()).is_empty(), "{case}");
                        assert_eq!(world.status("providerID"), "", "{case}");
                        continue;
                    }
                    let instance = world.provider.see(INSTANCE).expect("one instance");
                    assert_eq!(
                        world.status("instanceUID"),
                        instance.incarnation.as_str(),
                        "{case}"
                    );
                    let wanted = crate::api::spec_hash(&world.proxy().spec, None, None);
                    assert!(
                        plan::is_made_for(&instance, &wanted),
                        "{case}: made for the spec"
                    );
                    let most = 1
                        + u64::from(["replace", "stop"].contains(&start))
                        + u64::from(meanwhile == Meanwhile::Edit);
                    assert!(
                        world.provider.made() <= most,
                        "{case}: made {}",
                        world.provider.made()
                    );
                }
                if survived {
                    assert!(first > 2, "{start} has more than two effects");
                    break;
                }
            }
        }
    }
}
