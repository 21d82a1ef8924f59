use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::api::Protocol;
use crate::api::conditions::Update;

/// A status in as many words as a case needs.
#[derive(Clone, Copy, Default)]
struct Sketch {
    provisioned: Option<(bool, Reason)>,
    synced: Option<(bool, Reason)>,
    blocked: Option<Reason>,
    /// Incarnation of the instance on record.
    instance: Option<&'static str>,
}

const NOTHING: Sketch = Sketch {
    provisioned: None,
    synced: None,
    blocked: None,
    instance: None,
};

/// An instance on record that runs.
const RUNS: Sketch = with(true, Reason::Created, Some("one"));

const fn with(is_true: bool, reason: Reason, instance: Option<&'static str>) -> Sketch {
    Sketch {
        provisioned: Some((is_true, reason)),
        synced: None,
        blocked: None,
        instance,
    }
}

impl Sketch {
    fn status(self) -> ProxyStatus {
        let mut status = ProxyStatus::default();
        let blocked = self.blocked.map(|reason| (true, reason));
        for (kind, condition) in [
            (ConditionType::Provisioned, self.provisioned),
            (ConditionType::Synced, self.synced),
            (ConditionType::ReplacementBlocked, blocked),
        ] {
            let Some((is_true, reason)) = condition else {
                continue;
            };
            let update = Update {
                kind,
                status: if is_true {
                    ConditionStatus::True
                } else {
                    ConditionStatus::False
                },
                reason,
                message: "why".to_owned(),
                observed_generation: Some(1),
            };
            let now = Timestamp::from_second(1).expect("in range");
            conditions::set(&mut status.conditions, &update, now);
        }
        if let Some(incarnation) = self.instance {
            status.provider = Some("sim".to_owned());
            status.provider_id = Some("sim://px-1".to_owned());
            status.instance_uid = Some(incarnation.to_owned());
        }
        if self.provisioned.is_some_and(|(is_true, _)| is_true) {
            status.endpoint = Some(StatusEndpoint {
                host: "10.0.0.1".to_owned(),
                port: 3128,
                protocol: Protocol::Http,
            });
        }
        status
    }
}

fn told(branch: Branch, before: Sketch, after: Sketch, deed: Option<&Deed>) -> Vec<String> {
    let (before, after) = (before.status(), after.status());
    let outcome = Outcome {
        branch,
        before: &before,
        after: &after,
        deed,
    };
    news(&outcome)
        .into_iter()
        .map(|(word, note)| format!("{}: {note}", word.as_str()))
        .collect()
}

#[test]
fn r13_what_a_managed_pass_changed_decides_what_it_tells() {
    use Reason::*;
    let no = |reason, instance| with(false, reason, instance);
    let one = Some("one");
    let created = Deed::Created;
    type Case<'a> = (&'a str, Sketch, Sketch, Option<&'a Deed>, &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (
            "made",
            NOTHING,
            no(Provisioning, one),
            Some(&created),
            &["InstanceCreating: sim://px-1 is being created"],
        ),
        (
            "found",
            NOTHING,
            no(Provisioning, one),
            None,
            &["InstanceAdopted: sim://px-1 was there already and is this Proxy's"],
        ),
        (
            "found at work",
            NOTHING,
            with(true, Adopted, one),
            None,
            &[
                "InstanceAdopted: sim://px-1 was there already and is this Proxy's",
                "InstanceRunning: the instance runs at 10.0.0.1:3128",
            ],
        ),
        (
            "another life under the name",
            RUNS,
            with(true, Created, Some("two")),
            None,
            &["InstanceAdopted: sim://px-1 was there already and is this Proxy's"],
        ),
        (
            "up",
            no(Provisioning, one),
            RUNS,
            None,
            &["InstanceRunning: the instance runs at 10.0.0.1:3128"],
        ),
        (
            "still coming",
            no(Provisioning, one),
            no(Provisioning, one),
            None,
            &[],
        ),
        ("still up", RUNS, RUNS, None, &[]),
        (
            "drift",
            RUNS,
            no(Replacing, one),
            None,
            &["InstanceReplacing: why"],
        ),
        (
            "drained",
            no(Draining, one),
            no(Replacing, one),
            None,
            &["InstanceReplacing: why"],
        ),
        ("draining", RUNS, no(Draining, one), None, &[]),
        (
            "hung",
            no(Provisioning, one),
            no(ProvisioningTimeout, one),
            None,
            &["InstanceReplacing: why"],
        ),
        (
            "hung and edited",
            no(ProvisioningTimeout, one),
            no(Replacing, None),
            None,
            &["InstanceDeleted: sim://px-1 is gone"],
        ),
        (
            "replaced: gone",
            no(Replacing, one),
            no(Replacing, None),
            None,
            &["InstanceDeleted: sim://px-1 is gone"],
        ),
        (
            "gone while nobody looked",
            RUNS,
            no(Replacing, None),
            None,
            &[
                "InstanceDeleted: sim://px-1 is gone",
                "InstanceReplacing: why",
            ],
        ),
        (
            "stopped",
            RUNS,
            no(InstanceStopped, one),
            None,
            &["InstanceStopped: why"],
        ),
        (
            "stopped: gone",
            no(InstanceStopped, one),
            no(InstanceStopped, None),
            None,
            &["InstanceDeleted: sim://px-1 is gone"],
        ),
        (
            "lost",
            RUNS,
            no(InstanceLost, None),
            None,
            &["InstanceLost: why"],
        ),
        (
            "quota",
            NOTHING,
            no(QuotaExceeded, None),
            None,
            &["QuotaExceeded: why"],
        ),
        (
            "quota again",
            no(QuotaExceeded, None),
            no(QuotaExceeded, None),
            None,
            &[],
        ),
        (
            "stock",
            no(QuotaExceeded, None),
            no(CapacityExhausted, None),
            None,
            &["CapacityExhausted: why"],
        ),
        (
            "refused",
            NOTHING,
            no(PermanentError, None),
            None,
            &["PermanentError: why"],
        ),
        (
            "a stranger",
            NOTHING,
            no(NameCollision, None),
            None,
            &["NameCollision: why"],
        ),
        (
            "who?",
            NOTHING,
            no(ProviderNotConfigured, None),
            None,
            &["ProviderNotConfigured: why"],
        ),
        (
            "down",
            NOTHING,
            no(ProviderError, None),
            None,
            &["ProviderError: why"],
        ),
        (
            "no Secret",
            NOTHING,
            no(CloudInitError, None),
            None,
            &["CloudInitError: why"],
        ),
        (
            "no password",
            NOTHING,
            no(AuthSecretError, None),
            None,
            &["AuthSecretError: why"],
        ),
        (
            "no Secret any more",
            Sketch {
                synced: Some((true, InSync)),
                ..RUNS
            },
            Sketch {
                synced: Some((false, CloudInitError)),
                ..RUNS
            },
            None,
            &["CloudInitError: why"],
        ),
        (
            "deferred",
            Sketch {
                synced: Some((true, InSync)),
                ..RUNS
            },
            Sketch {
                synced: Some((false, ReplacementDeferred)),
                blocked: Some(BudgetExhausted),
                ..RUNS
            },
            None,
            &["ReplacementBlocked: BudgetExhausted: why"],
        ),
        (
            "blocked for another cause",
            Sketch {
                blocked: Some(BudgetExhausted),
                ..RUNS
            },
            Sketch {
                blocked: Some(Paused),
                ..RUNS
            },
            None,
            &["ReplacementBlocked: Paused: why"],
        ),
        (
            "free again",
            Sketch {
                blocked: Some(Paused),
                ..RUNS
            },
            RUNS,
            None,
            &[],
        ),
        (
            "was External",
            with(true, ExternalEndpoint, None),
            no(Provisioning, None),
            None,
            &["ModeSwitched: the Proxy is Managed now; an instance is made for it"],
        ),
    ];
    for (name, before, after, deed, want) in cases {
        assert_eq!(
            told(Branch::Managed, *before, *after, *deed),
            *want,
            "{name}"
        );
    }
}

#[test]
fn r13_what_a_deletion_came_to_decides_what_it_tells() {
    use Reason::*;
    let no = |reason| with(false, reason, Some("one"));
    let id = || "sim://px-1".to_owned();
    let (gone, left) = (Deed::Released(id()), Deed::Abandoned(id()));
    let failed = Deed::DeletionFailed("provider sim: down".to_owned());
    for (name, before, after, deed, want) in [
        ("begins", RUNS, no(Deleting), None, None),
        ("goes on", no(Deleting), no(Deleting), None, None),
        (
            "an instance off the record",
            NOTHING,
            no(Deleting),
            None,
            None,
        ),
        (
            "ends",
            no(Deleting),
            no(Deleting),
            Some(&gone),
            Some("InstanceDeleted: sim://px-1 is gone"),
        ),
        (
            "blocked",
            RUNS,
            no(DeletionBlocked),
            None,
            Some("DeletionBlocked: why"),
        ),
        (
            "still blocked",
            no(DeletionBlocked),
            no(DeletionBlocked),
            None,
            None,
        ),
        (
            "X-05",
            no(Deleting),
            no(Deleting),
            Some(&failed),
            Some("ProviderError: the instance is not deleted yet: provider sim: down"),
        ),
        (
            "X-07",
            RUNS,
            RUNS,
            Some(&left),
            Some(
                "InstanceAbandoned: sim://px-1 is let go as an orphan, as the annotation abandon-instance asks",
            ),
        ),
    ] {
        let want: Vec<_> = want.into_iter().collect();
        assert_eq!(told(Branch::Delete, before, after, deed), want, "{name}");
    }
}

#[test]
fn r13_an_external_proxy_tells_of_the_mode_it_left_and_of_the_instance_it_gave_up() {
    let external = |instance| with(true, Reason::ExternalEndpoint, instance);
    let gone = Deed::Released("sim://px-1".to_owned());
    for (name, before, after, deed, want) in [
        ("always was", NOTHING, external(None), None, None),
        ("stays", external(None), external(None), None, None),
        (
            "was Managed",
            RUNS,
            external(Some("one")),
            None,
            Some("ModeSwitched: the Proxy is External now; what its Managed past left is deleted"),
        ),
        (
            "its past is gone",
            external(Some("one")),
            external(None),
            Some(&gone),
            Some("InstanceDeleted: sim://px-1 is gone"),
        ),
        (
            "had a fault",
            with(false, Reason::PermanentError, None),
            external(None),
            None,
            None,
        ),
    ] {
        let want: Vec<_> = want.into_iter().collect();
        assert_eq!(told(Branch::External, before, after, deed), want, "{name}");
    }
}
