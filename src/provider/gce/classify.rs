//! What a refusal of Compute Engine means, as one table. Pure.
//!
//! A refusal is told by, in this order: how the call failed if it got no answer, the reasons in the
//! answer (`ErrorInfo` and the older `errors[].reason`, spelled alike once case and underscores are
//! gone), the HTTP status, and the text as the last resort. The error of an operation that ended is
//! told by its code.

use std::borrow::Cow;
use std::time::Duration;

use google_cloud_compute_v1::model;
use google_cloud_gax::error::Error as ApiError;
use google_cloud_gax::error::rpc::StatusDetails;

use crate::provider::{Error, Reason};

/// Least wait after the cloud asked for fewer calls.
pub const THROTTLED_RETRY: Duration = Duration::from_secs(60);
/// How often an answer that nobody knows is taken for a passing one.
pub const UNKNOWN_TRIES: u32 = 5;
/// Longest text that is kept of an answer, in characters.
const MAX_TEXT: usize = 600;

/// The call that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `instances.insert`
    Insert,
    /// `instances.get`
    Get,
    /// `instances.delete`
    Delete,
    /// `instances.aggregatedList`
    List,
    /// `zoneOperations.get`
    Operation,
}

impl Op {
    fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::List => "list",
            Self::Operation => "operation",
        }
    }
}

/// A call that did not succeed, as far as the table asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The cloud answered.
    Answer(Answer),
    /// The operator's own credentials gave no token.
    NoToken(String),
    /// No answer in time.
    Timeout,
    /// The connection broke, or the answer is none.
    Broken(String),
}

/// An error answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Reasons, as [`spelled`].
    pub reasons: Vec<String>,
    /// The text.
    pub message: String,
    /// What the cloud asked to wait.
    pub retry_after: Option<Duration>,
}

/// What a refusal means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The reason, or `None` for an answer that nobody knows.
    pub reason: Option<Reason>,
    /// Least wait.
    pub retry_after: Option<Duration>,
}

impl Verdict {
    fn of(reason: Reason) -> Self {
        let retry_after = (reason == Reason::Throttled).then_some(THROTTLED_RETRY);
        Self {
            reason: Some(reason),
            retry_after,
        }
    }

    const UNKNOWN: Self = Self {
        reason: None,
        retry_after: None,
    };
}

/// Reads the error of a call.
#[must_use]
pub fn read(error: &ApiError) -> Refusal {
    if error.is_authentication() {
        return Refusal::NoToken(crate::refused::chain(error));
    }
    let retry_after = error
        .http_headers()
        .and_then(|headers| headers.get(http::header::RETRY_AFTER))
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map(Duration::from_secs);
    if let (Some(status), Some(code)) = (error.status(), error.http_status_code()) {
        let info = |detail: &StatusDetails| match detail {
            StatusDetails::ErrorInfo(info) => Some(spelled(&info.reason)),
            _ => None,
        };
        return Refusal::Answer(Answer {
            status: code,
            reasons: status
                .details
                .iter()
                .filter_map(info)
                .filter(|text| !text.is_empty())
                .collect(),
            message: status.message.clone(),
            retry_after,
        });
    }
    // An answer whose body is not the API's, as proxies and load balancers write them.
    if let Some(status) = error.http_status_code() {
        return Refusal::Answer(Answer {
            status,
            message: String::new(),
            reasons: Vec::new(),
            retry_after,
        });
    }
    if error.is_timeout() {
        return Refusal::Timeout;
    }
    // What a decoder says may quote what it read, metadata too.
    if error.is_deserialization() {
        return Refusal::Broken("the answer cannot be read".to_owned());
    }
    Refusal::Broken(crate::refused::chain(error))
}

/// A reason without the differences of its spellings: `rateLimitExceeded` and
/// `RATE_LIMIT_EXCEEDED` are the same.
#[must_use]
pub fn spelled(reason: &str) -> String {
    reason
        .chars()
        .filter(|c| *c != '_')
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// The table.
#[must_use]
pub fn verdict(op: Op, refusal: &Refusal) -> Verdict {
    match refusal {
        Refusal::NoToken(_) => Verdict::of(Reason::Credentials),
        Refusal::Timeout => Verdict::of(Reason::Timeout),
        Refusal::Broken(_) => Verdict::of(Reason::Unavailable),
        Refusal::Answer(answer) => {
            let mut verdict = by_reason(answer)
                .map(Verdict::of)
                .unwrap_or_else(|| by_status(op, answer));
            // Machines are what a quota or a stock has none of left, and only an insert asks for one.
            if op != Op::Insert && matches!(verdict.reason, Some(Reason::Quota | Reason::Capacity))
            {
                verdict = Verdict::of(Reason::Throttled);
            }
            verdict.retry_after = verdict.retry_after.max(answer.retry_after);
            verdict
        }
    }
}

fn by_reason(answer: &Answer) -> Option<Reason> {
    answer
        .reasons
        .iter()
        .find_map(|reason| match reason.as_str() {
            text if is_throttling(text) => Some(Reason::Throttled),
            text if is_stock(text) => Some(Reason::Capacity),
            text if text.contains("quota") => Some(Reason::Quota),
            text if text.starts_with("resourceinuse") || text.contains("notready") => {
                Some(Reason::Unavailable)
            }
            "conditionnotmet" | "alreadyexists" => Some(Reason::Unavailable),
            _ => None,
        })
}

fn by_status(op: Op, answer: &Answer) -> Verdict {
    let text = answer.message.to_ascii_lowercase();
    match (op, answer.status) {
        (_, 429) => Verdict::of(Reason::Throttled),
        (_, 403) if text.contains("rate limit") || text.contains("too frequent") => {
            Verdict::of(Reason::Throttled)
        }
        (_, 403) if text.contains("quota") && text.contains("exceeded") => {
            Verdict::of(Reason::Quota)
        }
        (_, 401 | 403) => Verdict::of(Reason::Credentials),
        (Op::Get | Op::Delete | Op::Operation, 404) => Verdict::of(Reason::Gone),
        (Op::Insert, 404) if names_an_input(&text) => Verdict::of(Reason::InvalidInput),
        (Op::Insert, 400) if text.contains("not ready") => Verdict::of(Reason::Unavailable),
        (Op::Insert, 400) if is_about_input(answer) => Verdict::of(Reason::InvalidInput),
        (Op::Insert, 413) => Verdict::of(Reason::InvalidInput),
        (_, 503) if is_stock_text(&text) => Verdict::of(Reason::Capacity),
        (_, 408 | 409 | 412) => Verdict::of(Reason::Unavailable),
        // Only an insert carries what the Proxy says.
        (Op::Insert, 400..=499) => Verdict::UNKNOWN,
        _ => Verdict::of(Reason::Unavailable),
    }
}

/// The verdict on an operation that ended with this code.
#[must_use]
pub fn operation_verdict(code: &str) -> Verdict {
    match spelled(code).as_str() {
        text if is_throttling(text) => Verdict::of(Reason::Throttled),
        text if is_stock(text) => Verdict::of(Reason::Capacity),
        text if text.contains("quota") => Verdict::of(Reason::Quota),
        "internalerror"
        | "serviceunavailable"
        | "conditionnotmet"
        | "resourcenotready"
        | "resourceinusebyanotherresource"
        | "resourcealreadyexists" => Verdict::of(Reason::Unavailable),
        _ => Verdict::UNKNOWN,
    }
}

fn is_throttling(reason: &str) -> bool {
    reason.ends_with("ratelimitexceeded")
        || reason.ends_with("rateexceeded")
        || reason == "concurrentoperationsquotaexceeded"
        || reason == "toomanyrequests"
}

fn is_stock(reason: &str) -> bool {
    reason.contains("resourcepoolexhausted") || reason.starts_with("ipspaceexhausted")
}

fn is_stock_text(text: &str) -> bool {
    is_stock(&spelled(text))
        || text.contains("does not have enough resources available")
        || (text.contains("ip space") && text.contains("exhausted"))
}

/// The resource that was not found is one that the Proxy names, not the project or the API.
fn names_an_input(text: &str) -> bool {
    [
        "/images/",
        "/machinetypes/",
        "/networks/",
        "/subnetworks/",
        "/zones/",
        "/disktypes/",
    ]
    .iter()
    .any(|kind| text.contains(kind))
}

fn is_about_input(answer: &Answer) -> bool {
    let known = [
        "invalid",
        "required",
        "badrequest",
        "parseerror",
        "fieldviolation",
    ];
    let is_known = |reason: &String| known.iter().any(|word| reason.starts_with(word));
    answer.reasons.is_empty() || answer.reasons.iter().any(is_known)
}

/// Whether an insert was refused because its name is taken.
#[must_use]
pub fn is_already_exists(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Answer(answer) if answer.status == 409
        && (answer.reasons.iter().any(|reason| reason == "alreadyexists")
            || answer.message.contains("already exists")))
}

/// The error for a refusal; `subject` is what the call was about, for the text.
#[must_use]
pub fn error(op: Op, subject: &str, refusal: &Refusal, verdict: &Verdict) -> Error {
    let (text, code) = match refusal {
        Refusal::Answer(answer) => (in_words(answer), Some(answer.status)),
        Refusal::NoToken(why) => (
            format!("the operator's credentials do not work: {why}"),
            None,
        ),
        Refusal::Timeout => ("no answer in time".to_owned(), None),
        Refusal::Broken(why) => (why.clone(), None),
    };
    let reason = verdict.reason.unwrap_or(Reason::Unavailable);
    let mut error = Error::new(reason, format!("{} {subject}: {text}", op.as_str()));
    if let Some(code) = code {
        error = error.with_code(code);
    }
    match verdict.retry_after {
        Some(wait) => error.with_retry_after(wait),
        None => error,
    }
}

fn in_words(answer: &Answer) -> String {
    let reasons = answer.reasons.join(", ");
    let text = presentable(&answer.message);
    match (text.is_empty(), reasons.is_empty()) {
        (true, true) => format!("status {}", answer.status),
        (true, false) => format!("status {} {reasons}", answer.status),
        (false, true) => format!("{text} ({})", answer.status),
        (false, false) => format!("{text} ({} {reasons})", answer.status),
    }
}

/// How an operation that ended failed; `None` if it did not.
#[must_use]
pub fn failure(operation: &model::Operation) -> Option<(String, String)> {
    let errors = operation
        .error
        .as_ref()
        .map(|error| error.errors.as_slice())
        .unwrap_or_default();
    if let Some(first) = errors.first() {
        let code = first.code.clone().unwrap_or_else(|| "UNKNOWN".to_owned());
        return Some((code, first.message.clone().unwrap_or_default()));
    }
    let status = operation
        .http_error_status_code
        .filter(|status| *status >= 400)?;
    let code = if status >= 500 {
        "SERVICE_UNAVAILABLE".to_owned()
    } else {
        format!("HTTP_{status}")
    };
    Some((
        code,
        operation.http_error_message.clone().unwrap_or_default(),
    ))
}

/// The error for an operation that ended with this code and text.
#[must_use]
pub fn operation_error(subject: &str, code: &str, message: &str, verdict: &Verdict) -> Error {
    let reason = verdict.reason.unwrap_or(Reason::Unavailable);
    let text = format!(
        "the operation for {subject} failed: {code}: {}",
        presentable(message)
    );
    let error = Error::new(reason, text).with_ended();
    match verdict.retry_after {
        Some(wait) => error.with_retry_after(wait),
        None => error,
    }
}

/// An answer's text as it may be shown: cut to a length, and without the metadata values that the
/// cloud repeats, which are user data and credentials.
#[must_use]
pub fn presentable(message: &str) -> Cow<'_, str> {
    const FIELD: &str = "resource.metadata";
    if let Some(at) = message.find(FIELD) {
        let name = message[at..]
            .split(['\'', '"', ' ', ':'])
            .next()
            .unwrap_or(FIELD);
        return Cow::Owned(format!("{name} was refused; its value is not shown"));
    }
    match message.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => Cow::Owned(format!("{}…", &message[..end])),
        None => Cow::Borrowed(message),
    }
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
