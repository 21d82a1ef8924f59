//! A zonal operation: an insert or a delete that goes on.

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::machine::url;

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) zone: String,
    pub(crate) kind: &'static str,
    /// Path and id of the VM.
    pub(crate) target: (String, u64),
    pub(crate) inserted: Timestamp,
    /// When it ends.
    pub(crate) done: Instant,
    pub(crate) error: Option<Failure>,
}

/// How an operation failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) status: u16,
}

impl Operation {
    /// The name of the VM that it is about.
    pub(crate) fn machine(&self) -> &str {
        self.target.0.rsplit('/').next().unwrap_or_default()
    }

    /// The resource as the API shows it.
    pub(crate) fn show(&self, project: &str, now: Instant) -> Value {
        let is_done = now >= self.done;
        let mut shown = json!({
            "kind": "compute#operation",
            "id": self.id.to_string(),
            "name": self.name,
            "zone": url(&format!("projects/{project}/zones/{}", self.zone)),
            "operationType": self.kind,
            "targetLink": url(&self.target.0),
            "targetId": self.target.1.to_string(),
            "status": if is_done { "DONE" } else { "RUNNING" },
            "user": "operator@example.iam.gserviceaccount.com",
            "progress": if is_done { 100 } else { 0 },
            "insertTime": self.inserted.to_string(),
            "startTime": self.inserted.to_string(),
            "selfLink": url(&format!(
                "projects/{project}/zones/{}/operations/{}", self.zone, self.name
            )),
        });
        if is_done && let Some(error) = &self.error {
            shown["error"] = json!({
                "errors": [{ "code": error.code, "message": error.message }],
            });
            shown["httpErrorStatusCode"] = json!(error.status);
            shown["httpErrorMessage"] = json!(http_message(error.status));
        }
        if is_done {
            shown["endTime"] = json!(self.inserted.to_string());
        }
        shown
    }
}

fn http_message(status: u16) -> &'static str {
    match status {
        400 => "BAD REQUEST",
        403 => "FORBIDDEN",
        404 => "NOT FOUND",
        409 => "CONFLICT",
        503 => "SERVICE UNAVAILABLE",
        _ => "INTERNAL SERVER ERROR",
    }
}
