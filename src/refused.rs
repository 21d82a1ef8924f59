//! What the API server, or the way to it, answered instead of what was asked for.

use std::fmt;
use std::time::Duration;

use controller::retry::MaybeConflict as _;

/// A failed call, worded in one line.
///
/// The client's own texts repeat themselves and print whole status objects; here a refusal is the
/// server's message with its code, and anything else the chain of causes, each said once.
#[derive(Debug)]
pub struct Refused(Box<kube_client::Error>);

impl Refused {
    /// The object in hand is older than the server's.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.0.is_conflict()
    }

    /// There is no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(&*self.0, kube_client::Error::Api(status) if status.is_not_found())
    }

    /// The credentials are good, the rights are missing.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(&*self.0, kube_client::Error::Api(status) if status.is_forbidden())
    }

    /// How long the server asked to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let kube_client::Error::Api(status) = &*self.0 else {
            return None;
        };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
    }
}

impl From<kube_client::Error> for Refused {
    fn from(error: kube_client::Error) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.0))
    }
}

// Without a source: the text above is the whole chain.
impl std::error::Error for Refused {}

/// The text of a failed call, as [`Refused`] prints it.
pub(crate) fn describe(error: &kube_client::Error) -> String {
    if let kube_client::Error::Api(status) = error {
        return format!("{} ({})", status.message, status.code);
    }
    // The cause would quote the answer, which may be a Secret.
    if let kube_client::Error::SerdeError(cause) = error {
        return format!(
            "the server's answer cannot be read ({:?} error at line {}, column {})",
            cause.classify(),
            cause.line(),
            cause.column()
        );
    }
    chain(error)
}

/// An error and its causes in one line, each said once: some print their source themselves.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_core::Status;

    #[test]
    fn a_refusal_is_the_servers_message_and_code() {
        let status = Status {
            code: 403,
            message: "pods is forbidden".to_owned(),
            reason: "Forbidden".to_owned(),
            ..Status::default()
        };
        let refused = Refused::from(kube_client::Error::Api(Box::new(status)));
        assert_eq!(refused.to_string(), "pods is forbidden (403)");
        assert!(refused.is_forbidden() && !refused.is_conflict() && !refused.is_not_found());
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_not_quoted() {
        let cause = serde_json::from_str::<u8>("\"hunter2\"").expect_err("no number");
        assert!(cause.to_string().contains("hunter2"));
        let text = describe(&kube_client::Error::SerdeError(cause));
        assert!(
            text.contains("cannot be read") && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = std::io::Error::other("connection refused");
        let text = describe(&kube_client::Error::ReadEvents(inner));
        assert_eq!(text.matches("connection refused").count(), 1, "{text}");
    }
}
