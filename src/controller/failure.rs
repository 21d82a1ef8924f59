//! what a provider's error means for a Proxy. Pure.

use super::timing::Next;
use crate::api::conditions::Reason as Word;
use crate::provider::{Class, Error, Reason};

/// What follows from a provider's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Reason of the Provisioned condition; `None` leaves a proxy that runs as it is.
    pub(crate) reason: Option<Word>,
    /// Do not try again until the spec changes.
    pub(crate) latch: bool,
    /// How the Proxy goes on.
    pub(crate) then: Then,
}

/// How a Proxy goes on after a provider's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Later, and the pass counts as a success.
    Wait(Next),
    /// The pass failed: with backoff, and no earlier than the provider asked.
    Backoff,
}

/// The verdict on an error of a create for a Managed Proxy, or on what a create ended with later.
pub(crate) fn verdict(error: &Error, is_running: bool) -> Verdict {
    let failed = |reason, latch, next| Verdict {
        reason: Some(reason),
        latch,
        then: Then::Wait(next),
    };
    match (error.class(), error.reason()) {
        (Class::QuotaExceeded, Reason::Capacity) => {
            failed(Word::CapacityExhausted, false, Next::Quota)
        }
        (Class::QuotaExceeded, _) => failed(Word::QuotaExceeded, false, Next::Quota),
        // The operator's settings change with a restart, whose first list asks again (S-04).
        (Class::Permanent, Reason::NotConfigured) => {
            failed(Word::ProviderNotConfigured, false, Next::Event)
        }
        // The stranger may go without an event that would tell.
        (Class::Permanent, Reason::NameCollision) => {
            failed(Word::NameCollision, false, Next::Drift)
        }
        (Class::Permanent, _) => failed(Word::PermanentError, true, Next::Event),
        // NotFound is an answer, and never gets here from a get; from anything else it is odd.
        (Class::Transient | Class::NotFound, _) => passing(is_running),
    }
}

/// The verdict on an error of a read: one that is refused for quota asks for nothing that could be
/// used up, so that it says nothing of machines.
pub(crate) fn verdict_of_read(error: &Error, is_running: bool) -> Verdict {
    match error.class() {
        Class::QuotaExceeded if !error.has_ended() => passing(is_running),
        _ => verdict(error, is_running),
    }
}

/// The verdict on any error of a delete, which has no inputs that a Proxy could set right.
pub(crate) fn passing(is_running: bool) -> Verdict {
    Verdict {
        reason: (!is_running).then_some(Word::ProviderError),
        latch: false,
        then: Then::Backoff,
    }
}

/// why the deletion of an instance does not go on, as a word.
pub(crate) fn deletion_reason(error: &Error) -> Word {
    match error.reason() {
        Reason::Credentials | Reason::NotConfigured => Word::DeletionBlocked,
        _ => Word::Deleting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r06_every_reason_has_its_verdict() {
        let wait = |word, latch, next| Verdict {
            reason: Some(word),
            latch,
            then: Then::Wait(next),
        };
        let backoff = Verdict {
            reason: Some(Word::ProviderError),
            latch: false,
            then: Then::Backoff,
        };
        for (reason, want) in [
            (Reason::Quota, wait(Word::QuotaExceeded, false, Next::Quota)),
            (
                Reason::Capacity,
                wait(Word::CapacityExhausted, false, Next::Quota),
            ),
            (
                Reason::InvalidInput,
                wait(Word::PermanentError, true, Next::Event),
            ),
            (
                Reason::NameCollision,
                wait(Word::NameCollision, false, Next::Drift),
            ),
            (
                Reason::NotConfigured,
                wait(Word::ProviderNotConfigured, false, Next::Event),
            ),
            (Reason::Credentials, backoff),
            (Reason::BeingDeleted, backoff),
            (Reason::Throttled, backoff),
            (Reason::Timeout, backoff),
            (Reason::Unavailable, backoff),
            (Reason::Gone, backoff),
        ] {
            assert_eq!(
                verdict(&Error::new(reason, "text"), false),
                want,
                "{reason:?}"
            );
        }
    }

    #[test]
    fn r06_a_read_refused_for_quota_says_nothing_of_machines_unless_a_create_ended_so() {
        for reason in [Reason::Quota, Reason::Capacity] {
            let refused = Error::new(reason, "text");
            for is_running in [true, false] {
                let found = verdict_of_read(&refused, is_running);
                assert_eq!(found, passing(is_running), "{reason:?} {is_running}");
            }
            let ended = refused.with_ended();
            assert_eq!(verdict_of_read(&ended, false), verdict(&ended, false));
        }
    }

    #[test]
    fn r06_a_transient_error_leaves_a_running_proxy_in_service() {
        let verdict = verdict(&Error::new(Reason::Unavailable, "text"), true);
        assert_eq!(verdict.reason, None);
        assert_eq!(verdict.then, Then::Backoff);
    }

    #[test]
    fn r07_refused_credentials_latch_nothing() {
        assert!(!verdict(&Error::new(Reason::Credentials, "text"), false).latch);
    }

    #[test]
    fn x06_only_refused_credentials_and_missing_settings_block_a_deletion() {
        for (reason, want) in [
            (Reason::Credentials, Word::DeletionBlocked),
            (Reason::NotConfigured, Word::DeletionBlocked),
            (Reason::Unavailable, Word::Deleting),
            (Reason::Throttled, Word::Deleting),
            (Reason::Timeout, Word::Deleting),
        ] {
            assert_eq!(
                deletion_reason(&Error::new(reason, "text")),
                want,
                "{reason:?}"
            );
        }
    }
}
