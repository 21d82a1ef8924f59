//! The shapes in which Compute Engine refuses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How a call ends, in place of what it would have been answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// An error body.
    Refuse(Refusal),
    /// This status and body, whatever they are.
    Raw {
        /// HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
    /// The connection is cut without an answer.
    Reset,
    /// No answer at all, until the client goes away.
    Hang,
    /// The call is accepted, and its operation fails: `error.errors[0].code` and message, and the
    /// HTTP status that goes with them.
    FailOperation {
        /// Code of the operation's error, such as `ZONE_RESOURCE_POOL_EXHAUSTED`.
        code: String,
        /// Its text.
        message: String,
        /// `httpErrorStatusCode` of the operation.
        status: u16,
    },
}

/// An error body as the API writes it: `error{code, message, errors[{reason, domain, message}]}`,
/// with `status` and an `ErrorInfo` in `details` where there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The old reason, `errors[0].reason`, such as `rateLimitExceeded`; left out if empty.
    #[serde(default)]
    pub reason: String,
    /// The text.
    pub message: String,
    /// `reason` of the `ErrorInfo`, such as `RATE_LIMIT_EXCEEDED`; no `details` if absent.
    #[serde(default)]
    pub error_info: Option<String>,
    /// `metadata` of the `ErrorInfo`.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// The header `Retry-After`, in seconds.
    #[serde(default)]
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// A refusal with an old reason and no `ErrorInfo`.
    pub fn new(status: u16, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            message: message.into(),
            error_info: None,
            metadata: BTreeMap::new(),
            retry_after: None,
        }
    }

    /// Adds an `ErrorInfo` with that reason.
    #[must_use]
    pub fn with_error_info(mut self, reason: impl Into<String>) -> Self {
        self.error_info = Some(reason.into());
        self
    }

    /// Adds the header `Retry-After`.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The body.
    pub(crate) fn body(&self) -> Value {
        let mut error = json!({ "code": self.status, "message": self.message });
        if !self.reason.is_empty() {
            error["errors"] = json!([{
                "message": self.message, "domain": domain(&self.reason), "reason": self.reason,
            }]);
        }
        if let Some(reason) = &self.error_info {
            error["status"] = json!(canonical(self.status));
            error["details"] = json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason, "domain": "compute.googleapis.com", "metadata": self.metadata,
            }]);
        }
        json!({ "error": error })
    }

    pub(crate) fn not_found(resource: &str) -> Box<Self> {
        let message = format!("The resource '{resource}' was not found");
        Self::boxed(404, "notFound", message)
    }

    pub(crate) fn boxed(status: u16, reason: &str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self::new(status, reason, message))
    }

    pub(crate) fn invalid(field: &str, value: &str, why: &str) -> Box<Self> {
        let message = format!("Invalid value for field '{field}': '{value}'. {why}");
        Self::boxed(400, "invalid", message)
    }

    pub(crate) fn unavailable() -> Box<Self> {
        Self::boxed(503, "backendError", "Backend Error")
    }
}

fn domain(reason: &str) -> &'static str {
    match reason {
        "quotaExceeded" | "rateLimitExceeded" | "accessNotConfigured" => "usageLimits",
        _ => "global",
    }
}

/// The name of the RPC code that goes with an HTTP status.
fn canonical(status: u16) -> &'static str {
    match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        409 => "ALREADY_EXISTS",
        412 => "FAILED_PRECONDITION",
        429 => "RESOURCE_EXHAUSTED",
        500 => "INTERNAL",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "UNKNOWN",
    }
}

/// What a call is answered with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Ok(Value),
    Refused(Box<Refusal>),
    Raw(u16, String),
    Reset,
    Hang,
}

impl From<Result<Value, Box<Refusal>>> for Reply {
    fn from(result: Result<Value, Box<Refusal>>) -> Self {
        match result {
            Ok(value) => Self::Ok(value),
            Err(refusal) => Self::Refused(refusal),
        }
    }
}
