//! What follows from the conditions: one word for the state, and whether the proxy is usable.

use super::conditions::{self, ConditionStatus, ConditionType, Reason};
use super::v1alpha1::{Phase, ProxyStatus};

/// One word for the state of a proxy; the first that fits, in this order.
///
/// 1. `deleting` (the object has a deletionTimestamp): Deleting.
/// 2. Provisioned for a reason that waits for the user: Failed.
/// 3. Provisioned with the reason Replacing or Draining: Replacing.
/// 4. No Provisioned condition, or no machine and a cause outside: Pending.
/// 5. Provisioned is not True: Provisioning.
/// 6. Healthy is False: Unhealthy. Healthy is Unknown or absent, and the proxy is probed
///    (the reason is not ProbingDisabled): Verifying.
/// 7. Ready.
pub fn compute_phase(deleting: bool, status: &ProxyStatus) -> Phase {
    if deleting {
        return Phase::Deleting;
    }
    let Some(provisioned) = conditions::status(&status.conditions, ConditionType::Provisioned)
    else {
        return Phase::Pending;
    };
    let reason = conditions::reason(&status.conditions, ConditionType::Provisioned);
    match reason {
        Some(Reason::PermanentError | Reason::NameCollision | Reason::ProviderNotConfigured) => {
            return Phase::Failed;
        }
        Some(Reason::Replacing | Reason::Draining) => return Phase::Replacing,
        _ => {}
    }
    if provisioned != ConditionStatus::True {
        let is_cause_outside = matches!(
            reason,
            Some(
                Reason::QuotaExceeded
                    | Reason::CapacityExhausted
                    | Reason::CloudInitError
                    | Reason::AuthSecretError
                    | Reason::ProviderError
            )
        );
        let has_machine = status
            .provider_id
            .as_deref()
            .is_some_and(|id| !id.is_empty());
        return if is_cause_outside && !has_machine {
            Phase::Pending
        } else {
            Phase::Provisioning
        };
    }
    match health(status) {
        Health::Good | Health::NotProbed => Phase::Ready,
        Health::Bad => Phase::Unhealthy,
        Health::Open => Phase::Verifying,
    }
}

/// Whether consumers may use the proxy, and the reason for the Ready condition.
///
/// True iff Provisioned is True, the proxy is neither deleting nor draining, and Healthy is True
/// or the proxy is not probed.
pub fn compute_ready(deleting: bool, status: &ProxyStatus) -> (ConditionStatus, Reason) {
    let no = |reason| (ConditionStatus::False, reason);
    if deleting {
        return no(Reason::Deleting);
    }
    let provisioned = conditions::status(&status.conditions, ConditionType::Provisioned);
    match conditions::reason(&status.conditions, ConditionType::Provisioned) {
        Some(Reason::Draining) => return no(Reason::Draining),
        Some(Reason::Deleting) => return no(Reason::Deleting),
        _ => {}
    }
    if provisioned != Some(ConditionStatus::True) {
        return no(Reason::NotProvisioned);
    }
    match health(status) {
        Health::Good | Health::NotProbed => (ConditionStatus::True, Reason::Serving),
        Health::Bad => no(Reason::Unhealthy),
        Health::Open => no(Reason::HealthUnknown),
    }
}

enum Health {
    Good,
    Bad,
    Open,
    NotProbed,
}

fn health(status: &ProxyStatus) -> Health {
    let reason = conditions::reason(&status.conditions, ConditionType::Healthy);
    match conditions::status(&status.conditions, ConditionType::Healthy) {
        Some(ConditionStatus::True) => Health::Good,
        Some(ConditionStatus::False) => Health::Bad,
        Some(ConditionStatus::Unknown) if reason == Some(Reason::ProbingDisabled) => {
            Health::NotProbed
        }
        Some(ConditionStatus::Unknown) | None => Health::Open,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::api::conditions::{TABLE, Update};

    type Line = (ConditionStatus, Reason);

    fn lines(kind: ConditionType) -> Vec<Option<Line>> {
        let listed = TABLE.iter().filter(|(of, _, _)| *of == kind);
        let listed =
            listed.flat_map(|(_, is, reasons)| reasons.iter().map(|why| Some((*is, *why))));
        std::iter::once(None).chain(listed).collect()
    }

    fn status(provisioned: Option<Line>, healthy: Option<Line>, has_machine: bool) -> ProxyStatus {
        let mut status = ProxyStatus {
            provider_id: has_machine.then(|| "sim://px-1".to_owned()),
            ..ProxyStatus::default()
        };
        let pairs = [
            (ConditionType::Provisioned, provisioned),
            (ConditionType::Healthy, healthy),
        ];
        for (kind, line) in pairs {
            let Some((is, reason)) = line else { continue };
            let update = Update {
                kind,
                status: is,
                reason,
                message: String::new(),
                observed_generation: None,
            };
            conditions::set(&mut status.conditions, &update, Timestamp::UNIX_EPOCH);
        }
        status
    }

    /// The phase of a Provisioned line that does not depend on health, as a table of its own.
    fn expected_without_health(line: Option<Line>, has_machine: bool) -> Option<Phase> {
        let Some((_, reason)) = line else {
            return Some(Phase::Pending);
        };
        match reason.as_str() {
            "Created" | "Adopted" | "ExternalEndpoint" => None,
            "PermanentError" | "NameCollision" | "ProviderNotConfigured" => Some(Phase::Failed),
            "Replacing" | "Draining" => Some(Phase::Replacing),
            "QuotaExceeded" | "CapacityExhausted" | "CloudInitError" | "AuthSecretError"
            | "ProviderError" => Some(if has_machine {
                Phase::Provisioning
            } else {
                Phase::Pending
            }),
            "Provisioning"
            | "Deleting"
            | "DeletionBlocked"
            | "InstanceLost"
            | "InstanceStopped"
            | "ProvisioningTimeout" => Some(Phase::Provisioning),
            other => panic!("{other} has no expectation"),
        }
    }

    #[test]
    fn c10_phase_over_every_combination_of_conditions() {
        let mut seen = 0;
        for provisioned in lines(ConditionType::Provisioned) {
            for healthy in lines(ConditionType::Healthy) {
                for has_machine in [false, true] {
                    let status = status(provisioned, healthy, has_machine);
                    let case = format!("{provisioned:?} {healthy:?} machine={has_machine}");
                    assert_eq!(compute_phase(true, &status), Phase::Deleting, "{case}");

                    let with_health = match healthy.map(|(is, reason)| (is.as_str(), reason)) {
                        Some(("True", _)) | Some(("Unknown", Reason::ProbingDisabled)) => {
                            Phase::Ready
                        }
                        Some(("False", _)) => Phase::Unhealthy,
                        _ => Phase::Verifying,
                    };
                    let expected =
                        expected_without_health(provisioned, has_machine).unwrap_or(with_health);
                    assert_eq!(compute_phase(false, &status), expected, "{case}");
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 20 * 14 * 2, "a line was added to the vocabulary");
    }

    #[test]
    fn c11_ready_only_when_provisioned_and_healthy_or_not_probed() {
        for provisioned in lines(ConditionType::Provisioned) {
            for healthy in lines(ConditionType::Healthy) {
                let status = status(provisioned, healthy, true);
                let case = format!("{provisioned:?} {healthy:?}");
                assert_eq!(
                    compute_ready(true, &status),
                    (ConditionStatus::False, Reason::Deleting),
                    "{case}"
                );

                let expected = match (provisioned, healthy) {
                    (Some((ConditionStatus::False, Reason::Draining)), _) => Reason::Draining,
                    (Some((ConditionStatus::False, Reason::Deleting)), _) => Reason::Deleting,
                    (None | Some((ConditionStatus::False, _)), _) => Reason::NotProvisioned,
                    (_, Some((ConditionStatus::True, _)) | Some((_, Reason::ProbingDisabled))) => {
                        Reason::Serving
                    }
                    (_, Some((ConditionStatus::False, _))) => Reason::Unhealthy,
                    _ => Reason::HealthUnknown,
                };
                let (is, reason) = compute_ready(false, &status);
                assert_eq!(reason, expected, "{case}");
                assert_eq!(
                    is == ConditionStatus::True,
                    reason == Reason::Serving,
                    "{case}"
                );
                assert!(
                    conditions::is_listed(ConditionType::Ready, is, reason),
                    "{case}"
                );
            }
        }
    }

    #[test]
    fn a_reason_of_a_later_version_falls_back_to_the_status() {
        let mut status = status(Some((ConditionStatus::True, Reason::Created)), None, true);
        status.conditions[0].reason = "Teleported".to_owned();
        assert_eq!(compute_phase(false, &status), Phase::Verifying);
        status.conditions[0].status = "Unknown".to_owned();
        assert_eq!(compute_phase(false, &status), Phase::Provisioning);
        assert_eq!(compute_ready(false, &status).1, Reason::NotProvisioned);
    }
}
