//! Whether and when a failed call is made again.

use std::time::Duration;

use http::StatusCode;

use super::intent::Intent;

/// Most repetitions of one call.
pub(crate) const MAX_RETRIES: u32 = 10;
/// First wait where the server names none.
const BASE: Duration = Duration::from_millis(100);
/// Longest wait where the server names none.
const MAX: Duration = Duration::from_secs(5);
/// Longest wait that a server may ask for.
pub(crate) const MAX_ASKED: Duration = Duration::from_secs(60);

/// A call that was answered by a failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed {
    pub(super) intent: Intent,
    pub(super) status: StatusCode,
    /// The answer's `Retry-After`.
    pub(super) retry_after: Option<Duration>,
    /// Repetitions made so far.
    pub(super) retries: u32,
    /// Time until the call's deadline.
    pub(super) remaining: Duration,
}

impl Failed {
    /// Whether the answer tells that the call may be made again at all, if that is safe.
    pub(super) fn is_transient(&self) -> bool {
        matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        )
    }

    /// The wait before the call is made again, or `None` if it must not be.
    ///
    /// A throttled call was not carried out, whatever it was. After other failures only calls
    /// that do the same however often they are carried out are repeated: reads, apply, and
    /// updates that name the version they replace (`guarded`). `dice` lies in [0, 1).
    pub(super) fn wait(&self, guarded: bool, dice: f64) -> Option<Duration> {
        let safe = match self.intent {
            Intent::Get | Intent::List | Intent::Watch | Intent::Apply => true,
            Intent::Update => guarded,
            Intent::Create | Intent::Delete | Intent::Other => false,
        };
        let throttled = self.status == StatusCode::TOO_MANY_REQUESTS;
        if !self.is_transient() || !(safe || throttled) || self.retries >= MAX_RETRIES {
            return None;
        }
        let own = BASE
            .saturating_mul(1 << self.retries)
            .min(MAX)
            .mul_f64(1.0 + dice);
        let wait = match self.retry_after {
            Some(asked) => asked.min(MAX_ASKED).max(own),
            None => own,
        };
        // Waiting past the deadline would only change which error the caller gets.
        (wait < self.remaining).then_some(wait)
    }
}

/// Whether a body is an object, or a merge of one, that names the version it replaces.
pub(super) fn names_version(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Object {
        metadata: Meta,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        resource_version: String,
    }
    serde_json::from_slice::<Object>(body)
        .is_ok_and(|object| !object.metadata.resource_version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(intent: Intent, status: u16) -> Failed {
        Failed {
            intent,
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: None,
            retries: 0,
            remaining: Duration::from_secs(10),
        }
    }

    #[test]
    fn only_what_is_safe_is_repeated() {
        use Intent::*;
        let all = [Get, List, Watch, Apply, Update, Create, Delete, Other];
        for intent in all {
            for status in [200, 400, 404, 409, 410, 500, 502] {
                assert_eq!(
                    failed(intent, status).wait(true, 0.0),
                    None,
                    "{intent:?} {status}"
                );
            }
            assert!(
                failed(intent, 429).wait(false, 0.0).is_some(),
                "{intent:?} throttled"
            );
            let repeats = matches!(intent, Get | List | Watch | Apply);
            for status in [503, 504] {
                let call = failed(intent, status);
                assert_eq!(
                    call.wait(false, 0.0).is_some(),
                    repeats,
                    "{intent:?} {status}"
                );
                let guarded = repeats || intent == Update;
                assert_eq!(
                    call.wait(true, 0.0).is_some(),
                    guarded,
                    "{intent:?} {status}"
                );
            }
        }
    }

    #[test]
    fn waits_grow_and_the_server_may_ask_for_longer_ones() {
        let waits: Vec<_> = (0..11)
            .map(|retries| {
                Failed {
                    retries,
                    ..failed(Intent::Get, 503)
                }
                .wait(false, 0.0)
            })
            .map(|wait| wait.map(|wait| wait.as_millis()))
            .collect();
        let grown = [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000];
        assert_eq!(waits[..10], grown.map(Some));
        assert_eq!(waits[10], None, "the eleventh");

        let asked = |seconds, remaining| {
            Failed {
                retry_after: Some(Duration::from_secs(seconds)),
                remaining: Duration::from_secs(remaining),
                ..failed(Intent::Get, 429)
            }
            .wait(false, 0.0)
        };
        assert_eq!(asked(3, 10), Some(Duration::from_secs(3)));
        assert_eq!(asked(0, 10), Some(Duration::from_millis(100)));
        assert_eq!(asked(600, 1000), Some(Duration::from_secs(60)));
        assert_eq!(asked(11, 10), None, "past the deadline");
    }

    #[test]
    fn a_guard_is_a_version_in_the_metadata() {
        assert!(names_version(
            br#"{"spec":{},"metadata":{"resourceVersion":"5","name":"x"}}"#
        ));
        assert!(!names_version(br#"{"metadata":{"resourceVersion":""}}"#));
        assert!(!names_version(br#"{"metadata":{"name":"x"}}"#));
        assert!(!names_version(
            br#"[{"op":"test","path":"/metadata/resourceVersion","value":"5"}]"#
        ));
        assert!(!names_version(b"junk"));
    }
}
