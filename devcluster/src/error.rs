//! Errors as API clients see them: a code, a reason, a text and details, rendered as a `v1` Status.

use serde_json::{Map, Value, json};

use crate::schema::FieldError;

/// The outcome of a step of a request.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

/// A request's failure. Renders as a Status whose `code` is the HTTP code.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} ({}): {}", .0.reason, .0.code, .0.message)]
pub(crate) struct ApiError(Box<Fault>);

#[derive(Clone, Debug)]
struct Fault {
    code: u16,
    reason: &'static str,
    message: String,
    details: Map<String, Value>,
    /// `details` is shown even when there is nothing in it.
    shows_details: bool,
    /// `metadata.continue` of the Status.
    continue_token: Option<String>,
}

/// Names a resource in an error: its group and plural.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) group: &'a str,
    pub(crate) plural: &'a str,
}

impl std::fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.plural)?;
        if self.group.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", self.group)
        }
    }
}

impl Named<'_> {
    fn details(&self, name: &str) -> Map<String, Value> {
        object_details(self.group, self.plural, name)
    }
}

fn object_details(group: &str, kind: &str, name: &str) -> Map<String, Value> {
    let parts = [("name", name), ("group", group), ("kind", kind)];
    parts
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(key, text)| (key.to_owned(), Value::from(text)))
        .collect()
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Fault {
            code,
            reason,
            message,
            details: Map::new(),
            shows_details: false,
            continue_token: None,
        }))
    }

    fn showing_details(mut self) -> Self {
        self.0.shows_details = true;
        self
    }

    fn with_details(mut self, details: Map<String, Value>) -> Self {
        self.0.details.extend(details);
        self
    }

    /// Adds an entry to `details.causes`.
    pub(crate) fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        let mut cause = Map::new();
        for (key, text) in [("reason", reason), ("message", message), ("field", field)] {
            if !text.is_empty() {
                cause.insert(key.to_owned(), Value::from(text));
            }
        }
        let causes = self.0.details.entry("causes").or_insert_with(|| json!([]));
        if let Some(causes) = causes.as_array_mut() {
            causes.push(Value::Object(cause));
        }
        self
    }

    /// Tells the client when to try again (`details.retryAfterSeconds` and the `Retry-After` header).
    pub(crate) fn with_retry_after(mut self, seconds: u32) -> Self {
        self.0
            .details
            .insert("retryAfterSeconds".to_owned(), Value::from(seconds));
        self
    }

    /// Offers a token that continues the list that failed.
    pub(crate) fn with_continue(mut self, token: String) -> Self {
        self.0.continue_token = Some(token);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(resource: Named<'_>, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} \"{name}\" is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).with_details(resource.details(name))
    }

    pub(crate) fn forbidden_path(user: &str, verb: &str, path: &str, reason: &str) -> Self {
        let mut message = format!("forbidden: User \"{user}\" cannot {verb} path \"{path}\"");
        if !reason.is_empty() {
            message = format!("{message}: {reason}");
        }
        Self::new(403, "Forbidden", message).showing_details()
    }

    pub(crate) fn not_found(resource: Named<'_>, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found"))
            .with_details(resource.details(name))
    }

    /// A path below a known group version that names nothing.
    pub(crate) fn no_such_resource() -> Self {
        Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
        .showing_details()
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message).showing_details()
    }

    pub(crate) fn not_implemented(what: &str) -> Self {
        Self::new(
            501,
            "NotImplemented",
            format!("this server does not offer {what}"),
        )
    }

    pub(crate) fn not_acceptable(accepted: &[&str]) -> Self {
        let list = accepted.join(", ");
        Self::new(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {list}"),
        )
    }

    pub(crate) fn already_exists(resource: Named<'_>, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            format!("{resource} \"{name}\" already exists"),
        )
        .with_details(resource.details(name))
    }

    pub(crate) fn already_exists_deleting(resource: Named<'_>, name: &str) -> Self {
        let message = format!("object is being deleted: {resource} \"{name}\" already exists");
        Self::new(409, "AlreadyExists", message).with_details(resource.details(name))
    }

    pub(crate) fn conflict(resource: Named<'_>, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(409, "Conflict", message).with_details(resource.details(name))
    }

    /// The conflict of an update that was based on an older version.
    pub(crate) fn modified(resource: Named<'_>, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// An apply that would change fields of others; the causes name them.
    pub(crate) fn apply_conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }

    /// Whether the name of a new object was taken.
    pub(crate) fn is_already_exists(&self) -> bool {
        self.0.reason == "AlreadyExists"
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    pub(crate) fn too_many_patch_operations(limit: usize, found: usize) -> Self {
        let message = format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {limit}, got {found}"
        );
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// An object that breaks rules; all broken rules at once.
    pub(crate) fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let message = crate::schema::invalid_message(group, kind, name, errors);
        let mut error =
            Self::new(422, "Invalid", message).with_details(object_details(group, kind, name));
        let causes: Vec<Value> = errors.iter().map(FieldError::cause).collect();
        error
            .0
            .details
            .insert("causes".to_owned(), Value::Array(causes));
        error
    }

    /// A patch whose result is no object of the kind.
    pub(crate) fn invalid_patch(patch: &Value, why: &str) -> Self {
        Self::invalid(
            "",
            "",
            "",
            &[FieldError::invalid("patch", patch.to_string(), why)],
        )
    }

    /// A failure of the 422 class without an object, e.g. a patch that does not apply.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    pub(crate) fn internal(message: &str) -> Self {
        Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .with_cause("", message, "")
    }

    /// A failure that the real server answers with 500 and no reason.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    pub(crate) fn timeout(message: &str) -> Self {
        Self::new(504, "Timeout", format!("Timeout: {message}"))
    }

    /// A read of a revision that the server has not reached.
    pub(crate) fn revision_too_large(asked: u64, current: u64) -> Self {
        Self::timeout(&format!(
            "Too large resource version: {asked}, current: {current}"
        ))
        .with_cause("ResourceVersionTooLarge", "Too large resource version", "")
        .with_retry_after(1)
    }

    /// The HTTP code.
    pub(crate) fn code(&self) -> u16 {
        self.0.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.0
            .details
            .get("retryAfterSeconds")
            .and_then(Value::as_u64)
    }

    /// The Status object.
    pub(crate) fn status(&self) -> Value {
        let fault = &*self.0;
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": fault.message, "code": fault.code,
        });
        if !fault.reason.is_empty() {
            status["reason"] = Value::from(fault.reason);
        }
        if fault.shows_details || !fault.details.is_empty() {
            status["details"] = Value::Object(fault.details.clone());
        }
        if let Some(token) = &fault.continue_token {
            status["metadata"]["continue"] = Value::from(token.as_str());
        }
        status
    }
}
