//! What to do next, from what was seen. Pure: no call, no clock, no change.
//!
//! The reconciler asks these functions in the order of the branches M1 to M9, X-01 to X-07 and
//! E-02, and carries the answer out.

use std::time::Duration;

use controller::finalizer;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use crate::api::conditions::{self, ConditionType, Reason};
use crate::api::hash::Comparison;
use crate::api::{
    ABANDON_INSTANCE_ANNOTATION, FINALIZER, Mode, Proxy, ProxySpec, ProxyStatus, RETRY_ANNOTATION,
    SKIP_REPLACEMENT_ANNOTATION, SPEC_HASH_ANNOTATION, SpecHash,
};
use crate::provider::{Instance, InstanceState};

/// which part of the reconciler a Proxy belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Branch {
    Delete,
    External,
    Managed,
}

pub(crate) fn dispatch(proxy: &Proxy) -> Branch {
    if proxy.metadata.deletion_timestamp.is_some() {
        Branch::Delete
    } else if proxy.spec.mode == Mode::External {
        Branch::External
    } else {
        Branch::Managed
    }
}

/// M1 to M3: what stands before any look at inputs and instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// M1: the finalizer is missing.
    AddFinalizer,
    /// M2: a permanent error was found with these very inputs.
    Latched,
    /// M2: the same, if the inputs that lie in Secrets still have this hash.
    LatchedOn(String),
    /// M3: nobody configured the provider of that name.
    NotConfigured(String),
    /// Go on to M4.
    Open,
}

pub(crate) fn gate(proxy: &Proxy, is_configured: impl Fn(&str) -> bool) -> Gate {
    if !has_finalizer(proxy) {
        return Gate::AddFinalizer;
    }
    let status = status_of(proxy);
    let wanted = proxy.spec.provider.as_deref().unwrap_or_default();
    match latch(proxy) {
        Some(hash) if is_configured(wanted) && proxy.spec.secret_names().next().is_some() => {
            return hash.map_or(Gate::Latched, Gate::LatchedOn);
        }
        Some(_) => return Gate::Latched,
        None => {}
    }
    // A machine is looked after by the provider that made it (S-06).
    let owner = status
        .provider
        .as_deref()
        .filter(|_| status.provider_id.is_some());
    for name in [Some(wanted), owner].into_iter().flatten() {
        if !is_configured(name) {
            return Gate::NotConfigured(name.to_owned());
        }
    }
    Gate::Open
}

/// S-03: the latch of a permanent error, as far as the Proxy itself tells; it holds while
/// generation, retry annotation and input hash are what they were. `Some` has that hash, where one
/// was known.
fn latch(proxy: &Proxy) -> Option<Option<String>> {
    let generation = proxy.metadata.generation?;
    let status = proxy.status.as_ref()?;
    let condition = conditions::find(&status.conditions, ConditionType::Provisioned)?;
    if condition.status != "False" || condition.reason != Reason::PermanentError.as_str() {
        return None;
    }
    let Some(latch) = &status.latch else {
        return (condition.observed_generation == Some(generation)).then_some(None);
    };
    let is_shut = latch.generation == generation
        && latch.retry_nonce.as_ref() == proxy.annotations().get(RETRY_ANNOTATION);
    is_shut.then(|| latch.input_hash.clone())
}

/// S-06: whether the record says at which provider a create may come to lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It says so.
    Settled,
    /// It says nothing: write it down first, so that no crash can hide where to look.
    Open,
    /// It names another provider, where an earlier create may lie that never got on record.
    Elsewhere(String),
}

/// Asks the copy that was read, not a draft: what counts is what a crash would leave.
pub(crate) fn place(proxy: &Proxy, wanted: &str) -> Place {
    match status_of(proxy).provider.as_deref() {
        Some(recorded) if recorded == wanted => Place::Settled,
        Some(other) => Place::Elsewhere(other.to_owned()),
        None => Place::Open,
    }
}

/// S-13: the number that a create has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Write this number down first; the create comes in the next pass.
    Announce(i64),
    /// Create under this number.
    Go(i64),
}

pub(crate) fn attempt(status: &ProxyStatus, write_ahead: bool) -> Attempt {
    let next = status.create_attempts.saturating_add(1);
    match (write_ahead, status.attempt_open) {
        (false, _) => Attempt::Go(next),
        (true, false) => Attempt::Announce(next),
        (true, true) => Attempt::Go(status.create_attempts),
    }
}

/// S-12: whether a live copy says nothing that the copy in hand does not say.
///
/// Labels may differ, and who manages which field: nothing is decided on them.
pub(crate) fn is_same_view(held: &Proxy, live: &Proxy) -> bool {
    let (held_meta, live_meta) = (&held.metadata, &live.metadata);
    held_meta.uid == live_meta.uid
        && held_meta.generation == live_meta.generation
        && held_meta.deletion_timestamp == live_meta.deletion_timestamp
        && held.finalizers() == live.finalizers()
        && held.annotations() == live.annotations()
        && held.status == live.status
}

/// M6 to M9: which branch the record of the Proxy leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// M6: no instance on record.
    Create,
    /// M7: an instance, and no (or no comparable) hash of it.
    Adopt,
    /// M8: the instance was made from other inputs.
    Replace,
    /// M9: the instance is the wanted one.
    Observe,
}

/// `wanted` is `None` while the inputs cannot be read: then nothing is compared (S-05).
pub(crate) fn step(
    status: &ProxyStatus,
    annotation: Option<&str>,
    provider: &str,
    wanted: Option<&SpecHash>,
) -> Step {
    if status.provider_id.is_none() {
        return Step::Create;
    }
    let Some(wanted) = wanted else {
        return Step::Observe;
    };
    // An instance at another provider is never the wanted one, whatever its hash says (S-06).
    if status
        .provider
        .as_deref()
        .is_some_and(|owner| owner != provider)
    {
        return Step::Replace;
    }
    match annotation
        .filter(|text| !text.is_empty())
        .map(|text| wanted.compare(text))
    {
        // a hash of another version says nothing about the machine.
        None | Some(Comparison::OtherVersion) => Step::Adopt,
        Some(Comparison::Same) => Step::Observe,
        Some(Comparison::Differs) => Step::Replace,
    }
}

/// Why an instance stays although it should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// `spec.paused`.
    Paused,
    /// The annotation `skip-replacement`; holds replacements only.
    Skipped,
}

pub(crate) fn hold_of(proxy: &Proxy) -> Option<Hold> {
    proxy.spec.paused.then_some(Hold::Paused)
}

pub(crate) fn replacement_hold_of(proxy: &Proxy) -> Option<Hold> {
    let skipped = || {
        proxy
            .annotations()
            .contains_key(SKIP_REPLACEMENT_ANNOTATION)
    };
    hold_of(proxy).or_else(|| skipped().then_some(Hold::Skipped))
}

/// M8, once the provider was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// It is gone: write the new hash, forget the old instance.
    Gone,
    /// The view was old: this instance is already the wanted one, or not the one on record.
    TakeOver,
    /// Wait for a deletion that goes on.
    AlreadyDeleting,
    /// Delete it.
    Delete,
    /// It should go, and may not.
    Held(Hold),
}

pub(crate) fn replacement(
    seen: Option<&Instance>,
    status: &ProxyStatus,
    wanted: &SpecHash,
    hold: Option<Hold>,
) -> Replacement {
    let Some(instance) = seen else {
        return Replacement::Gone;
    };
    if instance.deleting {
        return Replacement::AlreadyDeleting;
    }
    if is_made_for(instance, wanted) || !is_recorded(instance, status) {
        return Replacement::TakeOver;
    }
    hold.map_or(Replacement::Delete, Replacement::Held)
}

/// M9, once the provider was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// It is gone although nobody asked for that.
    Lost,
    /// Another incarnation stands under the name: take it over, never kill it by an old view.
    TakeOver,
    /// Wait for a deletion that goes on.
    AlreadyDeleting,
    /// It comes up.
    Provisioning,
    /// It should have come up long ago.
    TimedOut,
    /// It runs.
    Running,
    /// It runs, and has reached `spec.rotation.maxAgeSeconds`.
    Expired,
    /// It ended; cattle is not repaired.
    Stopped,
}

pub(crate) fn observation(
    seen: Option<&Instance>,
    spec: &ProxySpec,
    status: &ProxyStatus,
    now: Timestamp,
    provisioning_timeout: Duration,
) -> Observation {
    let Some(instance) = seen else {
        return Observation::Lost;
    };
    if instance.deleting {
        return Observation::AlreadyDeleting;
    }
    if !is_recorded(instance, status) {
        return Observation::TakeOver;
    }
    match instance.state {
        InstanceState::Running if expires(spec, instance).is_some_and(|end| end <= now) => {
            Observation::Expired
        }
        InstanceState::Running => Observation::Running,
        InstanceState::Stopped | InstanceState::Terminated => Observation::Stopped,
        InstanceState::Provisioning => {
            let limit =
                SignedDuration::try_from(provisioning_timeout).unwrap_or(SignedDuration::MAX);
            let since = instance
                .created
                .and_then(|created| comes_up_since(status, created));
            match since {
                Some(since) if now.duration_since(since) > limit => Observation::TimedOut,
                _ => Observation::Provisioning,
            }
        }
    }
}

/// When the instance reaches `spec.rotation.maxAgeSeconds`, if it ever does.
pub(crate) fn expires(spec: &ProxySpec, instance: &Instance) -> Option<Timestamp> {
    let rotation = spec.rotation.as_ref()?;
    let age = SignedDuration::from_secs(i64::from(rotation.max_age_seconds?));
    instance.created?.checked_add(age).ok()
}

/// Why an instance that the operator deletes itself goes; `None` for one that went by itself.
pub(crate) fn reason_to_go(reason: Option<Reason>) -> Option<Reason> {
    reason.filter(|reason| {
        matches!(
            reason,
            Reason::Replacing | Reason::InstanceStopped | Reason::ProvisioningTimeout
        )
    })
}

/// Since when the instance has been coming up without a break: one that has served counts from
/// the moment it stopped to, and `None` says that it served until now.
fn comes_up_since(status: &ProxyStatus, created: Timestamp) -> Option<Timestamp> {
    match conditions::find(&status.conditions, ConditionType::Provisioned) {
        None => Some(created),
        Some(condition) if condition.status == "True" => None,
        Some(condition) => Some(created.max(condition.last_transition_time.0)),
    }
}

/// The hash to write down for an instance that was found: its own, so that inputs that changed
/// meanwhile show as drift (S-01); the wanted one where its own says nothing.
pub(crate) fn hash_of<'a>(instance: &'a Instance, wanted: &'a SpecHash) -> &'a SpecHash {
    instance
        .spec_hash
        .as_ref()
        .filter(|own| wanted.compare(&own.annotation()) != Comparison::OtherVersion)
        .unwrap_or(wanted)
}

pub(crate) fn is_made_for(instance: &Instance, wanted: &SpecHash) -> bool {
    instance
        .spec_hash
        .as_ref()
        .is_some_and(|own| wanted.compare(&own.annotation()) == Comparison::Same)
}

fn is_recorded(instance: &Instance, status: &ProxyStatus) -> bool {
    status
        .instance_uid
        .as_deref()
        .is_none_or(|uid| uid == instance.incarnation.as_str())
}

/// what a deletion needs no provider for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// not held by the operator.
    NotOurs,
    /// the user lets the instance go.
    Abandon,
    /// nobody configured the provider, and no attempt was ever made there.
    NeverProvisioned,
    /// nobody configured the provider that may have an instance.
    NotConfigured(String),
    /// Ask these providers, one after another.
    Release(Vec<String>),
}

pub(crate) fn deletion<'a>(
    proxy: &Proxy,
    configured: impl IntoIterator<Item = &'a str>,
) -> Deletion {
    if !has_finalizer(proxy) {
        return Deletion::NotOurs;
    }
    if proxy
        .annotations()
        .get(ABANDON_INSTANCE_ANNOTATION)
        .is_some_and(|value| value == "true")
    {
        return Deletion::Abandon;
    }
    match owners(proxy, configured) {
        Ok(owners) => Deletion::Release(owners),
        Err(_) if was_never_provisioned(proxy) => Deletion::NeverProvisioned,
        Err(missing) => Deletion::NotConfigured(missing),
    }
}

/// no create was ever sent, as far as the record tells.
pub(crate) fn was_never_provisioned(proxy: &Proxy) -> bool {
    let status = status_of(proxy);
    status.create_attempts == 0
        && status.provider_id.is_none()
        && annotation_of(proxy).is_none_or(str::is_empty)
}

/// S-06: the providers that may hold an instance of this Proxy; `Err` names a missing one.
///
/// The one on record alone, else the one in the spec; an External Proxy names none, so an instance
/// of its Managed past that never got on record may lie with any of them.
pub(crate) fn owners<'a>(
    proxy: &Proxy,
    configured: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<String>, String> {
    let status = status_of(proxy);
    let mut configured = configured.into_iter();
    match status
        .provider
        .as_deref()
        .or(proxy.spec.provider.as_deref())
    {
        Some(name) if configured.any(|known| known == name) => Ok(vec![name.to_owned()]),
        Some(name) => Err(name.to_owned()),
        None => Ok(configured.map(str::to_owned).collect()),
    }
}

/// and E-02, once a provider was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Nothing there.
    Gone,
    /// Wait for a deletion that goes on.
    AlreadyDeleting,
    /// Delete it.
    Delete,
    /// It should go, and may not.
    Held,
}

pub(crate) fn release(seen: Option<&Instance>, hold: Option<Hold>) -> Release {
    match seen {
        None => Release::Gone,
        Some(instance) if instance.deleting => Release::AlreadyDeleting,
        Some(_) if hold == Some(Hold::Paused) => Release::Held,
        Some(_) => Release::Delete,
    }
}

/// E-02: a Managed past left something behind.
pub(crate) fn has_managed_past(proxy: &Proxy) -> bool {
    has_finalizer(proxy) || status_of(proxy).provider_id.is_some() || annotation_of(proxy).is_some()
}

/// an External past left its endpoint in the status of a Managed Proxy.
pub(crate) fn has_external_past(status: &ProxyStatus) -> bool {
    conditions::find(&status.conditions, ConditionType::Provisioned)
        .is_some_and(|condition| condition.reason == Reason::ExternalEndpoint.as_str())
}

pub(crate) fn has_finalizer(proxy: &Proxy) -> bool {
    finalizer::contains(proxy, FINALIZER)
}

pub(crate) fn annotation_of(proxy: &Proxy) -> Option<&str> {
    proxy
        .annotations()
        .get(SPEC_HASH_ANNOTATION)
        .map(String::as_str)
}

fn status_of(proxy: &Proxy) -> &ProxyStatus {
    static EMPTY: std::sync::LazyLock<ProxyStatus> = std::sync::LazyLock::new(ProxyStatus::default);
    proxy.status.as_ref().unwrap_or(&EMPTY)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
