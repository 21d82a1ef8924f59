//! which Events a pass tells. Pure: from the status before and after, and from what the pass
//! did that no status shows.

use super::plan::Branch;
use crate::api::conditions::{self, ConditionStatus, ConditionType, Reason};
use crate::api::{ProxyStatus, StatusEndpoint};
use crate::events::Word;

/// What a pass did that its status does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Asked for an instance, and got a new one.
    Created,
    /// Let the Proxy go, or made it External, after its instance was gone.
    Released(String),
    /// let the Proxy go and left its instance where it is.
    Abandoned(String),
    /// the provider did not do its part of a deletion; in its words.
    DeletionFailed(String),
}

/// What a pass came to.
#[derive(Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) branch: Branch,
    /// The status that the pass began with.
    pub(crate) before: &'a ProxyStatus,
    /// The status that stands now; the one before if it could not be written.
    pub(crate) after: &'a ProxyStatus,
    pub(crate) deed: Option<&'a Deed>,
}

/// One Event to tell: its reason and its note.
pub(crate) type News = (Word, String);

/// The Events of one pass, in the order of what happened.
pub(crate) fn news(outcome: &Outcome<'_>) -> Vec<News> {
    let mut news = Vec::new();
    news.extend(mode(outcome));
    news.extend(gone(outcome));
    news.extend(instance(outcome));
    news.extend(provisioned(outcome));
    news.extend(synced(outcome));
    news.extend(block(outcome));
    news.extend(outcome.deed.and_then(deed));
    news
}

/// Status, reason and message of a condition.
fn condition(status: &ProxyStatus, kind: ConditionType) -> Option<(bool, Reason, &str)> {
    let found = conditions::find(&status.conditions, kind)?;
    let reason = conditions::reason(&status.conditions, kind)?;
    let is_true = found.status == ConditionStatus::True.as_str();
    Some((is_true, reason, found.message.as_str()))
}

fn reason_of(status: &ProxyStatus, kind: ConditionType) -> Option<Reason> {
    conditions::reason(&status.conditions, kind)
}

/// A condition that says now what it did not say before.
fn entered<'a>(outcome: &Outcome<'a>, kind: ConditionType) -> Option<(bool, Reason, &'a str)> {
    let now = condition(outcome.after, kind)?;
    let before = condition(outcome.before, kind);
    let is_new = before.is_none_or(|before| (before.0, before.1) != (now.0, now.1));
    is_new.then_some(now)
}

///
fn mode(outcome: &Outcome<'_>) -> Option<News> {
    let before = reason_of(outcome.before, ConditionType::Provisioned)?;
    let after = reason_of(outcome.after, ConditionType::Provisioned)?;
    let was_external = before == Reason::ExternalEndpoint;
    match (
        outcome.branch,
        was_external,
        after == Reason::ExternalEndpoint,
    ) {
        (Branch::External, false, true) if outcome.before.provider.is_some() => Some((
            Word::ModeSwitched,
            "the Proxy is External now; what its Managed past left is deleted".to_owned(),
        )),
        (Branch::Managed, true, false) => Some((
            Word::ModeSwitched,
            "the Proxy is Managed now; an instance is made for it".to_owned(),
        )),
        _ => None,
    }
}

/// An instance that was on record and is not any more.
fn gone(outcome: &Outcome<'_>) -> Option<News> {
    let id = outcome.before.provider_id.as_deref()?;
    if outcome.branch != Branch::Managed || outcome.after.provider_id.is_some() {
        return None;
    }
    // One that went by itself is told of as lost.
    let by_us = super::plan::reason_to_go(reason_of(outcome.after, ConditionType::Provisioned));
    by_us.map(|_| (Word::InstanceDeleted, format!("{id} is gone")))
}

/// An instance that is on record now and was not before.
fn instance(outcome: &Outcome<'_>) -> Option<News> {
    let (before, after) = (outcome.before, outcome.after);
    let id = after.provider_id.as_deref()?;
    if outcome.branch != Branch::Managed {
        return None;
    }
    if outcome.deed == Some(&Deed::Created) {
        return Some((Word::InstanceCreating, format!("{id} is being created")));
    }
    let is_new = before.provider_id.is_none() || before.instance_uid != after.instance_uid;
    is_new.then(|| {
        let note = format!("{id} was there already and is this Proxy's");
        (Word::InstanceAdopted, note)
    })
}

fn provisioned(outcome: &Outcome<'_>) -> Option<News> {
    let (is_true, reason, message) = entered(outcome, ConditionType::Provisioned)?;
    let before = reason_of(outcome.before, ConditionType::Provisioned);
    let word = match reason {
        Reason::Created | Reason::Adopted if is_true => {
            let endpoint = outcome.after.endpoint.as_ref();
            return Some((Word::InstanceRunning, running(endpoint)));
        }
        // The instance that makes way is told of once, by the cause that is known first.
        Reason::Replacing if super::plan::reason_to_go(before).is_some() => return None,
        Reason::Replacing | Reason::ProvisioningTimeout => Word::InstanceReplacing,
        Reason::InstanceLost => Word::InstanceLost,
        Reason::InstanceStopped => Word::InstanceStopped,
        Reason::QuotaExceeded => Word::QuotaExceeded,
        Reason::CapacityExhausted => Word::CapacityExhausted,
        Reason::PermanentError => Word::PermanentError,
        Reason::NameCollision => Word::NameCollision,
        Reason::ProviderNotConfigured => Word::ProviderNotConfigured,
        Reason::ProviderError => Word::ProviderError,
        Reason::CloudInitError => Word::CloudInitError,
        Reason::AuthSecretError => Word::AuthSecretError,
        Reason::DeletionBlocked => Word::DeletionBlocked,
        _ => return None,
    };
    Some((word, message.to_owned()))
}

fn running(endpoint: Option<&StatusEndpoint>) -> String {
    endpoint.map_or_else(
        || "the instance runs".to_owned(),
        |endpoint| format!("the instance runs at {}:{}", endpoint.host, endpoint.port),
    )
}

/// S-05: a Secret that cannot be read while the instance serves on.
fn synced(outcome: &Outcome<'_>) -> Option<News> {
    let (_, reason, message) = entered(outcome, ConditionType::Synced)?;
    let word = match reason {
        Reason::CloudInitError => Word::CloudInitError,
        Reason::AuthSecretError => Word::AuthSecretError,
        _ => return None,
    };
    Some((word, message.to_owned()))
}

fn block(outcome: &Outcome<'_>) -> Option<News> {
    let (is_true, reason, message) = entered(outcome, ConditionType::ReplacementBlocked)?;
    is_true.then(|| {
        let note = format!("{}: {message}", reason.as_str());
        (Word::ReplacementBlocked, note)
    })
}

fn deed(deed: &Deed) -> Option<News> {
    match deed {
        Deed::Created => None,
        Deed::Released(id) => Some((Word::InstanceDeleted, format!("{id} is gone"))),
        Deed::Abandoned(id) => Some((
            Word::InstanceAbandoned,
            format!("{id} is let go as an orphan, as the annotation abandon-instance asks"),
        )),
        Deed::DeletionFailed(words) => Some((
            Word::ProviderError,
            format!("the instance is not deleted yet: {words}"),
        )),
    }
}

#[cfg(test)]
#[path = "news_tests.rs"]
mod tests;
