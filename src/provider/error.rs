//! What can go wrong at a provider, by what to do about it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What an error means for the Proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The instance is not there.
    NotFound,
    /// The account's limit or the provider's stock is used up; waiting may help.
    #[serde(rename = "quota")]
    QuotaExceeded,
    /// This Proxy's own inputs are wrong; trying again does not help.
    Permanent,
    /// Anything that may be better next time.
    Transient,
}

impl Class {
    /// A short lower-case word, for metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::QuotaExceeded => "quota",
            Self::Permanent => "permanent",
            Self::Transient => "transient",
        }
    }
}

/// What exactly happened, where the class alone would lose something a user must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// No instance of that name, incarnation and owner.
    Gone,
    /// A quota is used up.
    Quota,
    /// The provider has no machines of this kind left.
    Capacity,
    /// A field that the Proxy sets was refused.
    InvalidInput,
    /// The name is taken by something that is not this Proxy's.
    NameCollision,
    /// The operator lacks a setting that this Proxy needs.
    NotConfigured,
    /// The operator's own credentials were refused.
    Credentials,
    /// An older instance of the same name is still going away.
    BeingDeleted,
    /// The provider asked for fewer calls.
    Throttled,
    /// No answer in time.
    Timeout,
    /// The provider did not work, or answered what nobody expects.
    Unavailable,
}

impl Reason {
    /// The class that errors of this reason have.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::Gone => Class::NotFound,
            Self::Quota | Self::Capacity => Class::QuotaExceeded,
            Self::InvalidInput | Self::NameCollision | Self::NotConfigured => Class::Permanent,
            Self::Credentials
            | Self::BeingDeleted
            | Self::Throttled
            | Self::Timeout
            | Self::Unavailable => Class::Transient,
        }
    }
}

/// An error of a provider. Its text never holds a Secret's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Detail>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Detail {
    reason: Reason,
    message: Cow<'static, str>,
    code: Option<u16>,
    retry_after: Option<Duration>,
    ended: bool,
}

impl Error {
    /// Makes an error of that reason; the message says what was tried and what came back.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Detail {
            reason,
            message: message.into(),
            code: None,
            retry_after: None,
            ended: false,
        }))
    }

    /// Adds the HTTP status of the answer.
    #[must_use]
    pub fn with_code(mut self, code: u16) -> Self {
        self.0.code = Some(code);
        self
    }

    /// Adds how long to wait at least before the next try.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// Says that the call was accepted, and what it began has ended so.
    #[must_use]
    pub fn with_ended(mut self) -> Self {
        self.0.ended = true;
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        self.0.reason.class()
    }

    /// What happened.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The text, without the class.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// HTTP status of the answer, where there was one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        self.0.code
    }

    /// How long the provider asked to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// True for an answer after which nothing of the call can still come about: the attempt that
    /// it belonged to is over (S-13).
    #[must_use]
    pub fn is_definite(&self) -> bool {
        self.0.ended || matches!(self.class(), Class::QuotaExceeded | Class::Permanent)
    }

    /// True if the call that the error tells of was accepted, and what it began has ended so: the
    /// instance that a create was to make will not come.
    ///
    /// A read that is refused tells nothing of that, whatever its class.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.ended
    }

    /// True for [`Class::NotFound`].
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.class() == Class::NotFound
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}
