//! What a refusal of the API server means for a pod (P-13), as one table.

use std::time::Duration;

use kube_core::Status;

use crate::provider::{Error, Reason};
use crate::refused::describe;

/// The call that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// POST of a pod or of its Secret.
    Create,
    /// GET of one object.
    Get,
    /// DELETE of one object.
    Delete,
    /// GET of a list.
    List,
}

impl Op {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }
}

/// Turns a client error into the provider's: reason, text, code and the wait the server asked for.
#[must_use]
pub fn classify(op: Op, error: &kube_client::Error) -> Error {
    match error {
        kube_client::Error::Api(status) => {
            let mut out = Error::new(
                reason(op, status),
                format!("{}: {} ({})", op.as_str(), status.message, status.code),
            )
            .with_code(status.code);
            if let Some(seconds) = retry_after_seconds(status) {
                out = out.with_retry_after(Duration::from_secs(seconds));
            }
            out
        }
        kube_client::Error::Auth(_) => Error::new(
            Reason::Credentials,
            format!(
                "{}: the operator's credentials do not work: {error}",
                op.as_str()
            ),
        ),
        other => Error::new(
            Reason::Unavailable,
            format!("{}: {}", op.as_str(), describe(other)),
        ),
    }
}

fn reason(op: Op, status: &Status) -> Reason {
    match (status.code, op) {
        (404, Op::Get | Op::Delete) => Reason::Gone,
        (403, Op::Create) if status.message.contains("exceeded quota") => Reason::Quota,
        (403, Op::Create) if status.message.contains("violates PodSecurity") => {
            Reason::InvalidInput
        }
        (403, Op::Create) if has_cause(status, "NamespaceTerminating") => Reason::Unavailable,
        (401 | 403, _) => Reason::Credentials,
        (400 | 413 | 422, Op::Create) => Reason::InvalidInput,
        (429, _) => Reason::Throttled,
        _ => Reason::Unavailable,
    }
}

fn has_cause(status: &Status, wanted: &str) -> bool {
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == wanted)
}

fn retry_after_seconds(status: &Status) -> Option<u64> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then_some(u64::from(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Class;

    fn refused(code: u16, message: &str) -> kube_client::Error {
        kube_client::Error::Api(Box::new(Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        }))
    }

    #[test]
    fn p13_every_refusal_has_the_class_of_the_table() {
        let quota = "pods \"px-1\" is forbidden: exceeded quota: small, requested: pods=1";
        let security = "pods \"px-1\" is forbidden: violates PodSecurity \"restricted:latest\"";
        for (op, code, message, want) in [
            (Op::Get, 404, "not found", Reason::Gone),
            (Op::Delete, 404, "not found", Reason::Gone),
            (
                Op::Create,
                404,
                "namespaces \"a\" not found",
                Reason::Unavailable,
            ),
            (Op::List, 404, "not found", Reason::Unavailable),
            (Op::Create, 403, quota, Reason::Quota),
            (Op::Create, 403, security, Reason::InvalidInput),
            (Op::Create, 403, "no rights", Reason::Credentials),
            (Op::Get, 403, "no rights", Reason::Credentials),
            (Op::Delete, 403, quota, Reason::Credentials),
            (Op::Create, 401, "token expired", Reason::Credentials),
            (Op::Create, 400, "bad body", Reason::InvalidInput),
            (
                Op::Create,
                422,
                "spec.containers[0].image: Required value",
                Reason::InvalidInput,
            ),
            (Op::Create, 413, "too large", Reason::InvalidInput),
            (Op::Get, 400, "bad", Reason::Unavailable),
            (Op::Create, 409, "object was modified", Reason::Unavailable),
            (Op::Create, 429, "slow down", Reason::Throttled),
            (Op::Create, 500, "etcd", Reason::Unavailable),
            (Op::Get, 503, "starting", Reason::Unavailable),
            (Op::Get, 504, "timeout", Reason::Unavailable),
        ] {
            let error = classify(op, &refused(code, message));
            assert_eq!(error.reason(), want, "{op:?} {code} {message}");
            assert_eq!(error.code(), Some(code));
            assert!(error.message().contains(message), "{error}");
        }
    }

    #[test]
    fn p13_credentials_and_quota_never_latch_a_proxy() {
        assert_eq!(Reason::Credentials.class(), Class::Transient);
        assert_eq!(Reason::Quota.class(), Class::QuotaExceeded);
        assert_eq!(Reason::InvalidInput.class(), Class::Permanent);
    }

    #[test]
    fn p13_the_wait_that_the_server_asks_for_is_kept() {
        let mut status = Status {
            code: 429,
            ..Status::default()
        };
        status.details = serde_json::from_value(serde_json::json!({ "retryAfterSeconds": 7 })).ok();
        let error = classify(Op::Create, &kube_client::Error::Api(Box::new(status)));
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_namespace_on_its_way_out_is_no_lack_of_rights() {
        let status = serde_json::from_value(serde_json::json!({
            "code": 403, "message": "unable to create new content in namespace a",
            "details": { "causes": [{ "reason": "NamespaceTerminating", "message": "", "field": "" }] },
        }))
        .expect("a status");
        let error = classify(Op::Create, &kube_client::Error::Api(Box::new(status)));
        assert_eq!(error.reason(), Reason::Unavailable);
    }
}
