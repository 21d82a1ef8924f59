//! What a failure means, and what the reflector does about it: two tables without effects.

use kube_core::Status;

use crate::Cause;
use crate::source::Error;

/// Reason of the status cause by which a server says that it has not reached a version yet.
const VERSION_TOO_LARGE: &str = "ResourceVersionTooLarge";
/// Text of servers that know no such reason.
const VERSION_TOO_LARGE_TEXT: &str = "Too large resource version";

/// Class of a source's failure.
pub(crate) fn cause(error: &Error) -> Cause {
    match error {
        Error::Status { status, .. } => status_cause(status),
        Error::Refused(_) => Cause::Refused,
        Error::Credentials(_) => Cause::Unauthorized,
        Error::Transport(_) => Cause::Transport,
        Error::Deadline { .. } => Cause::Deadline,
        Error::Answer(_) | Error::Request(_) => Cause::Protocol,
    }
}

/// Class of a status. Reason and code count, whatever HTTP status carried them.
pub(crate) fn status_cause(status: &Status) -> Cause {
    if is_version_too_large(status) {
        return Cause::VersionTooLarge;
    }
    match (status.reason.as_str(), status.code) {
        ("Expired" | "Gone", _) | (_, 410) => Cause::Expired,
        ("TooManyRequests", _) | (_, 429) => Cause::Throttled,
        ("Unauthorized", _) | (_, 401) => Cause::Unauthorized,
        ("Forbidden", _) | (_, 403) => Cause::Forbidden,
        ("NotFound", _) | (_, 404) => Cause::NotFound,
        ("BadRequest" | "Invalid" | "MethodNotAllowed" | "NotAcceptable", _)
        | (_, 400 | 405 | 406 | 415 | 422) => Cause::Invalid,
        ("InternalError", _) | (_, 500) => Cause::Internal,
        ("ServiceUnavailable" | "Timeout" | "ServerTimeout", _) | (_, 501..=599) => {
            Cause::Unavailable
        }
        _ => Cause::Other,
    }
}

fn is_version_too_large(status: &Status) -> bool {
    let causes = || status.details.iter().flat_map(|details| &details.causes);
    if causes().any(|cause| cause.reason == VERSION_TOO_LARGE) {
        return true;
    }
    let timed_out = status.code == 504 || status.reason == "Timeout";
    timed_out
        && (status.message.contains(VERSION_TOO_LARGE_TEXT)
            || causes().any(|cause| cause.message.contains(VERSION_TOO_LARGE_TEXT)))
}

/// The step at which a failure was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A list; `consistent` if it asked for the newest state already.
    List { consistent: bool },
    /// The request that opens a watch.
    OpenWatch,
    /// An open watch.
    Watch,
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// List the newest state, at once.
    ListConsistent,
    /// Wait, then list.
    List,
    /// Wait, then watch from the version reached.
    Watch,
    /// As [`Next::Watch`] while the window for server failures lasts, else [`Next::List`].
    WatchInsideWindow,
}

/// What follows a failure of class `cause` at `step`.
pub(crate) fn next(step: Step, cause: Cause) -> Next {
    match (step, cause) {
        (Step::List { consistent: false }, Cause::Expired | Cause::VersionTooLarge) => {
            Next::ListConsistent
        }
        (Step::List { .. }, _) => Next::List,
        (Step::OpenWatch, Cause::Refused | Cause::Throttled) => Next::Watch,
        (Step::OpenWatch, _) => Next::List,
        (Step::Watch, Cause::Throttled | Cause::Transport | Cause::Refused) => Next::Watch,
        (Step::Watch, Cause::Internal) => Next::WatchInsideWindow,
        (Step::Watch, _) => Next::List,
    }
}

#[cfg(test)]
mod tests {
    use kube_core::response::{StatusCause, StatusDetails};

    use super::*;

    fn status(code: u16, reason: &str, message: &str) -> Status {
        Status::failure(message, reason).with_code(code)
    }

    fn with_cause(status: Status, reason: &str, message: &str) -> Status {
        status.with_details(StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: vec![StatusCause {
                reason: reason.to_owned(),
                message: message.to_owned(),
                field: String::new(),
            }],
            retry_after_seconds: 0,
        })
    }

    #[test]
    fn r2_statuses_are_classified_by_reason_cause_text_and_code() {
        let old = "Too large resource version: 9, current: 5";
        let cases = [
            (status(410, "Expired", ""), Cause::Expired),
            (status(410, "Gone", ""), Cause::Expired),
            (status(200, "Expired", ""), Cause::Expired),
            (status(410, "", ""), Cause::Expired),
            (
                with_cause(status(504, "Timeout", ""), VERSION_TOO_LARGE, ""),
                Cause::VersionTooLarge,
            ),
            (
                with_cause(status(504, "Timeout", ""), "", old),
                Cause::VersionTooLarge,
            ),
            (status(504, "Timeout", old), Cause::VersionTooLarge),
            (status(500, "InternalError", old), Cause::Internal),
            (status(504, "Timeout", "etcd"), Cause::Unavailable),
            (status(503, "ServiceUnavailable", ""), Cause::Unavailable),
            (status(429, "TooManyRequests", ""), Cause::Throttled),
            (status(429, "", ""), Cause::Throttled),
            (status(401, "Unauthorized", ""), Cause::Unauthorized),
            (status(403, "Forbidden", ""), Cause::Forbidden),
            (status(404, "NotFound", ""), Cause::NotFound),
            (status(404, "", "404 page not found"), Cause::NotFound),
            (status(422, "Invalid", ""), Cause::Invalid),
            (status(400, "BadRequest", ""), Cause::Invalid),
            (status(500, "InternalError", ""), Cause::Internal),
            (status(409, "Conflict", ""), Cause::Other),
        ];
        for (status, want) in cases {
            assert_eq!(status_cause(&status), want, "{status:?}");
        }
    }

    #[test]
    fn every_class_has_one_answer_at_every_step() {
        use Cause::*;
        const ALL: [Cause; 18] = [
            Expired,
            VersionTooLarge,
            Throttled,
            Unauthorized,
            Forbidden,
            NotFound,
            Invalid,
            Internal,
            Unavailable,
            Refused,
            Transport,
            Deadline,
            Protocol,
            Decode,
            ShortWatch,
            BeganAnew,
            Panic,
            Other,
        ];
        let special = [
            (
                Step::List { consistent: false },
                Expired,
                Next::ListConsistent,
            ),
            (
                Step::List { consistent: false },
                VersionTooLarge,
                Next::ListConsistent,
            ),
            (Step::OpenWatch, Refused, Next::Watch),
            (Step::OpenWatch, Throttled, Next::Watch),
            (Step::Watch, Throttled, Next::Watch),
            (Step::Watch, Transport, Next::Watch),
            (Step::Watch, Refused, Next::Watch),
            (Step::Watch, Internal, Next::WatchInsideWindow),
        ];
        let steps = [
            Step::List { consistent: false },
            Step::List { consistent: true },
            Step::OpenWatch,
            Step::Watch,
        ];
        for step in steps {
            for cause in ALL {
                let want = special
                    .iter()
                    .find(|(at, of, _)| (*at, *of) == (step, cause))
                    .map_or(Next::List, |(_, _, next)| *next);
                assert_eq!(next(step, cause), want, "{step:?} {cause:?}");
            }
        }
    }
}
