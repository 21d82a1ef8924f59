//! What a fault does.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{error::ApiError, kubelet::Delay};

/// What happens to a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// It is handled that much later.
    Latency(Delay),
    /// It is not handled; this is the answer.
    Status(Failure),
    /// It is not handled; the connection ends without an answer.
    ResetBefore,
    /// It is handled, and the connection ends without an answer: a write has happened, and the client does
    /// not know.
    ResetAfter,
    /// It is handled, and after that many bytes of the answer's body the connection ends.
    Truncate(u64),
    /// It is handled, and the answer's body comes at that many bytes per second (at least 1).
    Slow(u64),
    /// It waits until the rule is removed, and is handled then.
    Stall,
    /// Another query parameter is sent, in the place of one of that name if there is one.
    Query(String, String),
    /// Another header is sent, in the place of one of that name if there is one.
    Header(String, String),
    /// Its connection is asked to end: by GOAWAY in HTTP/2, after this answer in HTTP/1.1.
    GoAway,
    /// It is handled; this happens to the events of a watch.
    Watch(WatchAction),
}

impl Action {
    /// A refusal with this code and reason, to be refined.
    pub fn status(code: u16, reason: &str) -> Failure {
        Failure {
            code,
            reason: reason.to_owned(),
            message: format!("{reason}, on demand"),
            cause: None,
            retry_after: None,
        }
    }
}

impl From<Failure> for Action {
    fn from(failure: Failure) -> Self {
        Self::Status(failure)
    }
}

impl From<WatchAction> for Action {
    fn from(action: WatchAction) -> Self {
        Self::Watch(action)
    }
}

/// A refusal: the Status of an answer or of an error event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Failure {
    pub(super) code: u16,
    reason: String,
    message: String,
    cause: Option<String>,
    pub(super) retry_after: Option<u32>,
}

impl Failure {
    /// With this text.
    pub fn message(mut self, message: &str) -> Self {
        message.clone_into(&mut self.message);
        self
    }

    /// With a cause of this reason, such as `ResourceVersionTooLarge`.
    pub fn cause(mut self, reason: &str) -> Self {
        self.cause = Some(reason.to_owned());
        self
    }

    /// With a `Retry-After` of that many seconds.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The Status as JSON.
    pub(super) fn status(&self) -> Value {
        let mut details = json!({});
        if let Some(seconds) = self.retry_after {
            details["retryAfterSeconds"] = Value::from(seconds);
        }
        if let Some(reason) = &self.cause {
            details["causes"] = json!([{"reason": reason, "message": self.message}]);
        }
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "details": details, "code": self.code,
        })
    }
}

/// What happens to the events of a watch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WatchAction {
    /// It ends after that many bytes from here on, in the middle of an event if they end there.
    Cut {
        /// How it ends.
        how: Cut,
        /// Bytes that still come through.
        after: u64,
    },
    /// It ends after as many bytes as the rule has struck watches before: 0, then 1, then 2 …
    CutRising(Cut),
    /// Nothing comes through until the rule is removed; nothing is lost.
    Stall,
    /// Bookmarks are left out, the one that ends the initial state apart.
    DropBookmarks,
    /// The bookmark that ends the initial state is left out.
    DropInitialEventsEnd,
    /// Events come that much later, in their order.
    Delay(Duration),
    /// An ERROR event comes at once, and the watch ends.
    Error(Failure),
}

impl WatchAction {
    /// The watch ends at once.
    pub fn cut(how: Cut) -> Self {
        Self::Cut { how, after: 0 }
    }
}

/// How a stream of events ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As if the server had ended it.
    Clean,
    /// The connection breaks.
    Reset,
}

/// The answer of a refusal.
pub(super) fn answer(failure: &Failure) -> crate::http::response::ApiResponse {
    let mut response = crate::http::response::json(failure.code, &failure.status());
    if let Some(seconds) = failure.retry_after {
        response
            .headers_mut()
            .insert(http::header::RETRY_AFTER, http::HeaderValue::from(seconds));
    }
    response
}

/// A refusal because a body could not be read.
pub(super) fn unreadable(error: &dyn std::fmt::Display) -> crate::http::response::ApiResponse {
    crate::http::response::failure(&ApiError::bad_request(format!(
        "cannot read the body: {error}"
    )))
}
