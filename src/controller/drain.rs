//! S-08: an instance that is to go is kept while running leases may still end. Pure.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::conditions::{self, ConditionType, Reason};
use crate::api::{ProxySpec, ProxyStatus};

/// Who knows the leases on a Proxy.
pub trait Leases: Send + Sync + std::fmt::Debug {
    /// Stops lending the Proxy of this UID, and answers with the number of its active leases.
    fn drain(&self, uid: &str) -> usize;
}

/// A program that lends nothing: no Proxy ever has a lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLeases;

impl Leases for NoLeases {
    fn drain(&self, _uid: &str) -> usize {
        0
    }
}

/// What a drain comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drain {
    /// Nobody uses the instance, or the time is over.
    Done,
    /// Leases run; look again after this.
    Wait(Duration),
}

/// `active` leases run on a Proxy that may be waited for by `spec.lease.drainSeconds`, counted
/// from the moment that the status says Draining.
pub(crate) fn drain(
    active: usize,
    spec: &ProxySpec,
    status: &ProxyStatus,
    now: Timestamp,
) -> Drain {
    if active == 0 {
        return Drain::Done;
    }
    let allowed = SignedDuration::from_secs(i64::from(spec.lease.drain_seconds));
    let waited = conditions::find(&status.conditions, ConditionType::Provisioned)
        .filter(|provisioned| provisioned.reason == Reason::Draining.as_str())
        .map_or(SignedDuration::ZERO, |since| {
            now.duration_since(since.last_transition_time.0)
        });
    match Duration::try_from(allowed - waited) {
        Ok(rest) if !rest.is_zero() => Drain::Wait(rest),
        _ => Drain::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::{ConditionStatus, Update};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn status(reason: Reason, since: i64) -> ProxyStatus {
        let mut status = ProxyStatus::default();
        let update = Update {
            kind: ConditionType::Provisioned,
            status: ConditionStatus::False,
            reason,
            message: String::new(),
            observed_generation: None,
        };
        conditions::set(&mut status.conditions, &update, at(since));
        status
    }

    #[test]
    fn s08_leases_get_their_time_and_no_more() {
        let spec: ProxySpec =
            serde_json::from_value(serde_json::json!({ "lease": { "drainSeconds": 30 } }))
                .expect("a spec");
        let secs = Duration::from_secs;
        for (active, status, now, want) in [
            (0, status(Reason::Draining, 0), 1, Drain::Done),
            (
                2,
                status(Reason::Provisioning, 0),
                99,
                Drain::Wait(secs(30)),
            ),
            (2, status(Reason::Draining, 100), 110, Drain::Wait(secs(20))),
            (2, status(Reason::Draining, 100), 130, Drain::Done),
        ] {
            assert_eq!(
                drain(active, &spec, &status, at(now)),
                want,
                "{active} at {now}"
            );
        }
    }
}
