use serde_json::{Value, json};

use super::super::testing::merge;
use super::*;
use crate::api::{ProxySpec, spec_hash};
use crate::provider::fake::{FakeProvider, owner};

const POLL: Duration = Duration::from_secs(900);

fn proxy(changes: &Value) -> Proxy {
    let mut object = json!({
        "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
        "metadata": { "name": "a", "namespace": "crawl", "uid": "u1", "generation": 3,
                      "finalizers": [FINALIZER], "annotations": {} },
        "spec": { "provider": "fake" }, "status": {},
    });
    merge(&mut object, changes);
    serde_json::from_value(object).expect("a Proxy")
}

fn provisioned(status: &str, reason: &str, generation: i64) -> Value {
    json!({ "conditions": [{ "type": "Provisioned", "status": status, "reason": reason,
        "message": "", "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
}

fn hash(port: u16) -> SpecHash {
    spec_hash(
        &ProxySpec {
            port: Some(port),
            ..ProxySpec::default()
        },
        None,
        None,
    )
}

fn instance(state: InstanceState, hash: &SpecHash) -> Instance {
    let mut instance = FakeProvider::default().put(&owner("u1"), hash);
    instance.state = state;
    instance
}

fn recorded(incarnation: &str) -> ProxyStatus {
    ProxyStatus {
        provider: Some("fake".to_owned()),
        provider_id: Some("fake://px-u1".to_owned()),
        instance_uid: Some(incarnation.to_owned()),
        ..ProxyStatus::default()
    }
}

#[test]
fn r04_a_deletion_comes_before_the_mode() {
    let gone = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let external = json!({ "spec": { "mode": "External" } });
    assert_eq!(dispatch(&proxy(&json!({}))), Branch::Managed);
    assert_eq!(dispatch(&proxy(&external)), Branch::External);
    assert_eq!(dispatch(&proxy(&gone)), Branch::Delete);
    let mut both = gone;
    merge(&mut both, &external);
    assert_eq!(dispatch(&proxy(&both)), Branch::Delete);
}

#[test]
fn m1_to_m3_are_asked_in_this_order() {
    let no_finalizer = json!({ "metadata": { "finalizers": [] } });
    let latched = json!({ "status": provisioned("False", "PermanentError", 3) });
    let edited = json!({ "status": provisioned("False", "PermanentError", 2) });
    let quota = json!({ "status": provisioned("False", "QuotaExceeded", 3) });
    let moved = json!({ "status": { "provider": "old", "providerID": "old://1" } });
    let both = |a: &Value, b: &Value| {
        let mut both = a.clone();
        merge(&mut both, b);
        both
    };
    let unknown = |name: &str| Gate::NotConfigured(name.to_owned());
    for (changes, configured, want) in [
        (json!({}), "fake", Gate::Open),
        (no_finalizer.clone(), "fake", Gate::AddFinalizer),
        (both(&no_finalizer, &latched), "none", Gate::AddFinalizer),
        (latched.clone(), "none", Gate::Latched),
        (edited, "fake", Gate::Open),
        (quota, "fake", Gate::Open),
        (json!({}), "other", unknown("fake")),
        (json!({ "spec": { "provider": null } }), "fake", unknown("")),
        (moved, "fake", unknown("old")),
    ] {
        let found = gate(&proxy(&changes), |name| name == configured);
        assert_eq!(found, want, "{changes} with {configured}");
    }
}

#[test]
fn m6_to_m9_follow_from_the_record_alone() {
    let wanted = hash(1);
    let none = ProxyStatus::default();
    let own = recorded("inc-1");
    let same = wanted.annotation();
    let tagged = SpecHash::from_tag(&wanted.tag())
        .expect("a tag")
        .annotation();
    let other = hash(2).annotation();
    let older = same.replace("v1:", "v0:");
    for (status, annotation, provider, inputs, want) in [
        (&none, None, "fake", true, Step::Create),
        (&none, Some(same.as_str()), "fake", true, Step::Create), // CP4
        (&none, None, "fake", false, Step::Create),
        (&own, None, "fake", true, Step::Adopt),
        (&own, Some(""), "fake", true, Step::Adopt),
        (&own, Some(older.as_str()), "fake", true, Step::Adopt),
        (&own, Some("nonsense"), "fake", true, Step::Adopt),
        (&own, Some(other.as_str()), "fake", true, Step::Replace),
        (&own, Some(same.as_str()), "fake", true, Step::Observe),
        (&own, Some(tagged.as_str()), "fake", true, Step::Observe),
        (&own, Some(other.as_str()), "fake", false, Step::Observe), // S-05
        (&own, Some(same.as_str()), "elsewhere", true, Step::Replace), // S-06
        (&own, None, "elsewhere", true, Step::Replace),
    ] {
        let found = step(status, annotation, provider, inputs.then_some(&wanted));
        assert_eq!(found, want, "{annotation:?} at {provider}, inputs={inputs}");
    }
}

#[test]
fn m8_kills_only_the_instance_on_record_made_from_other_inputs() {
    let (wanted, other) = (hash(1), hash(2));
    let old = instance(InstanceState::Running, &other);
    let new = instance(InstanceState::Running, &wanted);
    let going = Instance {
        deleting: true,
        ..old.clone()
    };
    let own = recorded("inc-1");
    let elsewhere = recorded("inc-0");
    for (seen, status, hold, want) in [
        (None, &own, None, Replacement::Gone),
        (None, &own, Some(Hold::Paused), Replacement::Gone),
        (Some(&old), &own, None, Replacement::Delete),
        (
            Some(&old),
            &own,
            Some(Hold::Paused),
            Replacement::Held(Hold::Paused),
        ),
        (
            Some(&old),
            &own,
            Some(Hold::Skipped),
            Replacement::Held(Hold::Skipped),
        ),
        (Some(&going), &own, None, Replacement::AlreadyDeleting),
        (
            Some(&going),
            &own,
            Some(Hold::Paused),
            Replacement::AlreadyDeleting,
        ),
        (Some(&new), &own, None, Replacement::TakeOver),
        (Some(&old), &elsewhere, None, Replacement::TakeOver), // S-11
    ] {
        let found = replacement(seen, status, &wanted, hold);
        assert_eq!(found, want, "{seen:?} {hold:?}");
    }
}

#[test]
fn m9_reads_the_instance() {
    let wanted = hash(1);
    let now = Timestamp::from_second(10_000).expect("in range");
    let own = recorded("inc-1");
    let elsewhere = recorded("inc-0");
    let at = |state, age: i64| {
        let mut instance = instance(state, &wanted);
        instance.created = Timestamp::from_second(10_000 - age).ok();
        instance
    };
    let going = Instance {
        deleting: true,
        ..at(InstanceState::Running, 1)
    };
    for (seen, status, want) in [
        (None, &own, Observation::Lost),
        (Some(going), &own, Observation::AlreadyDeleting),
        (
            Some(at(InstanceState::Running, 9_999)),
            &own,
            Observation::Running,
        ),
        (
            Some(at(InstanceState::Provisioning, 900)),
            &own,
            Observation::Provisioning,
        ),
        (
            Some(at(InstanceState::Provisioning, 901)),
            &own,
            Observation::TimedOut,
        ),
        (
            Some(at(InstanceState::Stopped, 1)),
            &own,
            Observation::Stopped,
        ),
        (
            Some(at(InstanceState::Terminated, 1)),
            &own,
            Observation::Stopped,
        ),
        (
            Some(at(InstanceState::Stopped, 1)),
            &elsewhere,
            Observation::TakeOver,
        ),
    ] {
        assert_eq!(
            observation(seen.as_ref(), &ProxySpec::default(), status, now, POLL),
            want,
            "{seen:?}"
        );
    }
}

#[test]
fn s01_the_instances_own_hash_is_written_down() {
    let (wanted, other) = (hash(1), hash(2));
    let found = instance(InstanceState::Running, &other);
    assert_eq!(hash_of(&found, &wanted), &other);
    let untagged = Instance {
        spec_hash: None,
        ..found
    };
    assert_eq!(hash_of(&untagged, &wanted), &wanted);
}

#[test]
fn x01_to_x07_are_asked_in_this_order() {
    let abandon = json!({ "metadata": { "annotations": { ABANDON_INSTANCE_ANNOTATION: "true" } } });
    let no_finalizer = json!({ "metadata": { "finalizers": ["other/one"] } });
    let attempted = json!({ "status": { "createAttempts": 1 } });
    let hashed = json!({ "metadata": { "annotations": { SPEC_HASH_ANNOTATION: "v1:0" } } });
    let moved = json!({ "status": { "provider": "old", "providerID": "old://1" } });
    let external = json!({ "spec": { "mode": "External", "provider": null } });
    let release =
        |names: &[&str]| Deletion::Release(names.iter().map(|n| (*n).to_owned()).collect());
    let blocked = |name: &str| Deletion::NotConfigured(name.to_owned());
    for (changes, configured, want) in [
        (no_finalizer, &["fake"][..], Deletion::NotOurs),
        (abandon, &[], Deletion::Abandon),
        (json!({}), &["fake"], release(&["fake"])),
        (json!({}), &["other"], Deletion::NeverProvisioned),
        (attempted, &["other"], blocked("fake")),
        (hashed, &["other"], blocked("fake")),
        (moved.clone(), &["fake"], blocked("old")),
        (moved, &["fake", "old"], release(&["old"])),
        (external, &["fake", "old"], release(&["fake", "old"])),
    ] {
        let found = deletion(&proxy(&changes), configured.iter().copied());
        assert_eq!(found, want, "{changes} with {configured:?}");
    }
}

#[test]
fn x07_only_the_value_true_abandons() {
    let asked = json!({ "metadata": { "annotations": { ABANDON_INSTANCE_ANNOTATION: "yes" } } });
    assert_ne!(deletion(&proxy(&asked), ["fake"]), Deletion::Abandon);
}

#[test]
fn x02_to_x04_release_what_is_there_once() {
    let there = instance(InstanceState::Running, &hash(1));
    let going = Instance {
        deleting: true,
        ..there.clone()
    };
    for (seen, hold, want) in [
        (None, None, Release::Gone),
        (None, Some(Hold::Paused), Release::Gone),
        (Some(&there), None, Release::Delete),
        (Some(&going), None, Release::AlreadyDeleting),
        (Some(&going), Some(Hold::Paused), Release::AlreadyDeleting),
        (Some(&there), Some(Hold::Paused), Release::Held),
    ] {
        assert_eq!(release(seen, hold), want, "{seen:?} {hold:?}");
    }
}

#[test]
fn e02_any_trace_of_a_managed_past_counts() {
    let clean = json!({ "metadata": { "finalizers": [] } });
    let with = |changes: Value| {
        let mut all = clean.clone();
        merge(&mut all, &changes);
        has_managed_past(&proxy(&all))
    };
    assert!(!with(json!({})));
    assert!(with(json!({ "metadata": { "finalizers": [FINALIZER] } })));
    assert!(with(json!({ "status": { "providerID": "fake://1" } })));
    assert!(with(
        json!({ "metadata": { "annotations": { SPEC_HASH_ANNOTATION: "v1:0" } } })
    ));
}
