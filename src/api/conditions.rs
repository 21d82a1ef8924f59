//! Conditions of a Proxy: their types, their reasons, and how they are set.
//!
//! [`TABLE`] is the whole vocabulary. A condition keeps its `lastTransitionTime` unless its status
//! changes, and carries the generation that it speaks of.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// Longest message of a condition in characters; longer ones are cut.
pub const MAX_MESSAGE_CHARS: usize = 1024;

/// A name that is no word of the vocabulary, for example one written by a later version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a known {what}")]
pub struct UnknownName {
    /// What the name was to be.
    pub what: &'static str,
    /// The name.
    pub name: String,
}

/// Defines an enum of words that are written as their variant's name.
macro_rules! words {
    (
        $(#[$doc:meta])*
        $name:ident ($what:literal) { $( $(#[$variant_doc:meta])* $variant:ident ),+ $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_doc])* $variant ),+
        }

        impl $name {
            /// Every word.
            pub const ALL: &[$name] = &[$( $name::$variant ),+];

            /// The word as it stands in a condition.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( $name::$variant => stringify!($variant) ),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                $name::ALL
                    .iter()
                    .copied()
                    .find(|word| word.as_str() == name)
                    .ok_or_else(|| UnknownName { what: $what, name: name.to_owned() })
            }
        }
    };
}

words! {
    /// Type of a condition.
    ConditionType("condition type") {
        /// Whether there is a running machine, or an endpoint to use.
        Provisioned,
        /// Whether the running machine is what the spec asks for.
        Synced,
        /// Whether the proxy forwards.
        Healthy,
        /// Whether consumers may use the proxy.
        Ready,
        /// Holds, as True, while a wanted replacement is held back.
        ReplacementBlocked,
    }
}

words! {
    /// Status of a condition.
    ConditionStatus("condition status") {
        /// It holds.
        True,
        /// It does not hold.
        False,
        /// It is not known whether it holds.
        Unknown,
    }
}

words! {
    /// Reason of a condition; [`TABLE`] tells where each may stand.
    Reason("condition reason") {
        /// The machine was made by the operator and runs.
        Created,
        /// The machine was found under the Proxy's name with its marks, and taken over.
        Adopted,
        /// The endpoint of an External proxy is in use.
        ExternalEndpoint,
        /// A machine is being made.
        Provisioning,
        /// The machine goes because another is to take its place.
        Replacing,
        /// The machine goes because the Proxy goes.
        Deleting,
        /// Running leases get time to end.
        Draining,
        /// The Proxy cannot go, because its machine cannot be deleted.
        DeletionBlocked,
        /// The machine is gone although nobody asked for that.
        InstanceLost,
        /// The machine stopped although nobody asked for that.
        InstanceStopped,
        /// The machine did not run in time.
        ProvisioningTimeout,
        /// The provider's quota is used up.
        QuotaExceeded,
        /// The provider has no such machine left.
        CapacityExhausted,
        /// The Proxy's own inputs are wrong.
        PermanentError,
        /// A machine of somebody else has the Proxy's name.
        NameCollision,
        /// No provider of that name is configured.
        ProviderNotConfigured,
        /// The provider fails for a cause outside of the Proxy.
        ProviderError,
        /// The user data cannot be read.
        CloudInitError,
        /// The credentials cannot be read.
        AuthSecretError,
        /// The running machine is what the spec asks for.
        InSync,
        /// The running machine is not, and its replacement waits for the budget.
        ReplacementDeferred,
        /// The machine of a former Managed life is being deleted.
        ReleasingInstance,
        /// The latest probes succeeded.
        ProbeSucceeded,
        /// No connection to the proxy.
        ProxyUnreachable,
        /// The proxy refuses the credentials.
        ProxyAuthRejected,
        /// The proxy answers with an error of its own.
        ProxyError,
        /// The proxy works, its way to the target does not.
        TargetUnreachable,
        /// The target's answer is not what it should be.
        BodyMismatch,
        /// The answer takes too long.
        TooSlow,
        /// Targets see another address than the proxy's own.
        ExitIPMismatch,
        /// The proxy serves without credentials.
        OpenProxy,
        /// The health changes too often.
        Flapping,
        /// There is no result yet.
        AwaitingFirstProbe,
        /// The check target is suspected rather than the proxy.
        CheckTargetSuspect,
        /// The proxy is not probed.
        ProbingDisabled,
        /// Consumers may use the proxy.
        Serving,
        /// There is no machine to use.
        NotProvisioned,
        /// The proxy does not forward.
        Unhealthy,
        /// It is not known whether the proxy forwards.
        HealthUnknown,
        /// Too many proxies are out of service already.
        BudgetExhausted,
        /// Too many proxies are unhealthy for the cause to be theirs.
        TooManyUnhealthy,
        /// The day's replacements are used up.
        DailyLimit,
        /// An annotation forbids it.
        Skipped,
        /// The Proxy is paused.
        Paused,
    }
}

/// Which reasons a condition may have with which status.
pub const TABLE: &[(ConditionType, ConditionStatus, &[Reason])] = {
    use ConditionStatus as Is;
    use ConditionType as Of;
    use Reason::*;
    &[
        (
            Of::Provisioned,
            Is::True,
            &[Created, Adopted, ExternalEndpoint],
        ),
        (
            Of::Provisioned,
            Is::False,
            &[
                Provisioning,
                Replacing,
                Deleting,
                Draining,
                DeletionBlocked,
                InstanceLost,
                InstanceStopped,
                ProvisioningTimeout,
                QuotaExceeded,
                CapacityExhausted,
                PermanentError,
                NameCollision,
                ProviderNotConfigured,
                ProviderError,
                CloudInitError,
                AuthSecretError,
            ],
        ),
        (Of::Synced, Is::True, &[InSync]),
        (
            Of::Synced,
            Is::False,
            &[
                ReplacementDeferred,
                CloudInitError,
                AuthSecretError,
                ReleasingInstance,
            ],
        ),
        (Of::Healthy, Is::True, &[ProbeSucceeded]),
        (
            Of::Healthy,
            Is::False,
            &[
                ProxyUnreachable,
                ProxyAuthRejected,
                ProxyError,
                TargetUnreachable,
                BodyMismatch,
                TooSlow,
                ExitIPMismatch,
                OpenProxy,
                Flapping,
            ],
        ),
        (
            Of::Healthy,
            Is::Unknown,
            &[AwaitingFirstProbe, CheckTargetSuspect, ProbingDisabled],
        ),
        (Of::Ready, Is::True, &[Serving]),
        (
            Of::Ready,
            Is::False,
            &[NotProvisioned, Unhealthy, HealthUnknown, Draining, Deleting],
        ),
        (
            Of::ReplacementBlocked,
            Is::True,
            &[
                BudgetExhausted,
                TooManyUnhealthy,
                DailyLimit,
                Skipped,
                Paused,
            ],
        ),
    ]
};

/// Whether [`TABLE`] has this combination.
pub fn is_listed(kind: ConditionType, status: ConditionStatus, reason: Reason) -> bool {
    TABLE
        .iter()
        .any(|(of, is, reasons)| *of == kind && *is == status && reasons.contains(&reason))
}

/// What a condition is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Type of the condition.
    pub kind: ConditionType,
    /// Its status.
    pub status: ConditionStatus,
    /// Its reason; together with type and status a line of [`TABLE`].
    pub reason: Reason,
    /// Text for people, cut at [`MAX_MESSAGE_CHARS`]. Never a Secret's content.
    pub message: String,
    /// Generation of the object that this was concluded from.
    pub observed_generation: Option<i64>,
}

/// Sets a condition and tells whether anything about it changed.
///
/// `lastTransitionTime` becomes `now`, cut to whole seconds, if the condition is new or its status
/// changes, and stays otherwise. The order of the others stays; a new one comes last.
///
/// # Panics
/// With debug assertions, if [`TABLE`] does not have the combination.
pub fn set(conditions: &mut Vec<Condition>, update: &Update, now: Timestamp) -> bool {
    debug_assert!(
        is_listed(update.kind, update.status, update.reason),
        "{}={} has no reason {}",
        update.kind,
        update.status,
        update.reason
    );
    let mut wanted = Condition {
        type_: update.kind.as_str().to_owned(),
        status: update.status.as_str().to_owned(),
        reason: update.reason.as_str().to_owned(),
        message: cut(&update.message),
        observed_generation: update.observed_generation,
        last_transition_time: Time(whole_seconds(now)),
    };
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == wanted.type_)
    {
        Some(present) => {
            if present.status == wanted.status {
                wanted.last_transition_time = present.last_transition_time.clone();
            }
            let changed = *present != wanted;
            *present = wanted;
            changed
        }
        None => {
            conditions.push(wanted);
            true
        }
    }
}

/// Takes a condition away and tells whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, kind: ConditionType) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != kind.as_str());
    conditions.len() != before
}

/// The condition of that type.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == kind.as_str())
}

/// Status of the condition of that type; an unreadable one counts as Unknown.
pub fn status(conditions: &[Condition], kind: ConditionType) -> Option<ConditionStatus> {
    find(conditions, kind)
        .map(|condition| condition.status.parse().unwrap_or(ConditionStatus::Unknown))
}

/// Reason of the condition of that type; `None` also for one that this version does not know.
pub fn reason(conditions: &[Condition], kind: ConditionType) -> Option<Reason> {
    find(conditions, kind)?.reason.parse().ok()
}

/// API times have whole seconds, so a finer one would differ from what is read back.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).expect("fewer digits of a time in range")
}

fn cut(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        None => message.to_owned(),
        Some(_) => message
            .chars()
            .take(MAX_MESSAGE_CHARS - 1)
            .chain(['…'])
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number of seconds")
    }

    fn provisioned(status: ConditionStatus, reason: Reason) -> Update {
        Update {
            kind: ConditionType::Provisioned,
            status,
            reason,
            message: "text".to_owned(),
            observed_generation: Some(1),
        }
    }

    #[test]
    fn transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        let provisioning = provisioned(ConditionStatus::False, Reason::Provisioning);
        let created = provisioned(ConditionStatus::True, Reason::Created);

        assert!(set(&mut conditions, &provisioning, at(10)));
        let lost = provisioned(ConditionStatus::False, Reason::InstanceLost);
        assert!(set(&mut conditions, &lost, at(20)));
        assert_eq!(conditions[0].last_transition_time, Time(at(10)));
        assert_eq!(conditions[0].reason, "InstanceLost");

        assert!(set(&mut conditions, &created, at(30)));
        assert_eq!(conditions[0].last_transition_time, Time(at(30)));
        assert!(!set(&mut conditions, &created, at(40)), "nothing differs");
        assert_eq!(conditions[0].last_transition_time, Time(at(30)));

        let newer = Update {
            observed_generation: Some(2),
            ..created
        };
        assert!(set(&mut conditions, &newer, at(50)));
        assert_eq!(conditions[0].last_transition_time, Time(at(30)));
        assert_eq!(conditions[0].observed_generation, Some(2));
    }

    #[test]
    fn set_and_remove_leave_other_conditions_and_their_order_alone() {
        let ready = Update {
            kind: ConditionType::Ready,
            reason: Reason::Serving,
            ..provisioned(ConditionStatus::True, Reason::Created)
        };
        let mut conditions = Vec::new();
        set(
            &mut conditions,
            &provisioned(ConditionStatus::True, Reason::Created),
            at(1),
        );
        set(&mut conditions, &ready, at(1));
        let foreign = Condition {
            type_: "example.com/Audited".to_owned(),
            ..conditions[0].clone()
        };
        conditions.insert(0, foreign.clone());
        set(
            &mut conditions,
            &provisioned(ConditionStatus::False, Reason::Replacing),
            at(2),
        );
        let types: Vec<_> = conditions
            .iter()
            .map(|condition| condition.type_.as_str())
            .collect();
        assert_eq!(types, ["example.com/Audited", "Provisioned", "Ready"]);
        assert_eq!(conditions[0], foreign);

        assert!(remove(&mut conditions, ConditionType::Provisioned));
        assert!(!remove(&mut conditions, ConditionType::Provisioned));
        assert_eq!(conditions.len(), 2);
    }

    #[test]
    fn transition_time_equals_what_is_read_back() {
        let mut conditions = Vec::new();
        let now = Timestamp::new(100, 250_000_000).expect("a quarter second");
        set(
            &mut conditions,
            &provisioned(ConditionStatus::True, Reason::Created),
            now,
        );
        let text = serde_json::to_string(&conditions).expect("plain texts");
        let back: Vec<Condition> = serde_json::from_str(&text).expect("what was just written");
        assert_eq!(back, conditions);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let mut conditions = Vec::new();
        let long = Update {
            message: "ä".repeat(MAX_MESSAGE_CHARS + 1),
            ..provisioned(ConditionStatus::True, Reason::Created)
        };
        set(&mut conditions, &long, at(1));
        let message = &conditions[0].message;
        assert_eq!(message.chars().count(), MAX_MESSAGE_CHARS);
        assert!(message.ends_with('…'), "{message}");

        let fits = Update {
            message: "ä".repeat(MAX_MESSAGE_CHARS),
            ..long
        };
        set(&mut conditions, &fits, at(1));
        assert_eq!(conditions[0].message, fits.message);
    }

    #[test]
    fn every_reason_stands_in_the_table_and_reads_back() {
        for reason in Reason::ALL {
            assert!(
                TABLE.iter().any(|(_, _, reasons)| reasons.contains(reason)),
                "{reason}"
            );
            assert_eq!(reason.as_str().parse(), Ok(*reason));
        }
        for kind in ConditionType::ALL {
            assert!(TABLE.iter().any(|(of, _, _)| of == kind), "{kind}");
            assert_eq!(kind.as_str().parse(), Ok(*kind));
        }
        assert!("Nonsense".parse::<Reason>().is_err());
    }

    #[test]
    fn words_of_a_later_version_do_no_harm() {
        let mut conditions = Vec::new();
        set(
            &mut conditions,
            &provisioned(ConditionStatus::True, Reason::Created),
            at(1),
        );
        conditions[0].status = "Perhaps".to_owned();
        conditions[0].reason = "Teleported".to_owned();
        let kind = ConditionType::Provisioned;
        assert_eq!(status(&conditions, kind), Some(ConditionStatus::Unknown));
        assert_eq!(reason(&conditions, kind), None);
    }
}
