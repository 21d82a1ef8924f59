//! Rules by which calls fail or take their time.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::provider::{Error, Owner, Reason};

/// A call of the provider trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// `create`
    Create,
    /// `get`
    Get,
    /// `delete`
    Delete,
    /// `find`
    Find,
    /// `list_by_tag`
    List,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 5] = [Op::Create, Op::Get, Op::Delete, Op::Find, Op::List];

    /// The name of the call.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::Find => "find",
            Self::List => "list",
        }
    }
}

/// Whether a call that fails has had its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// It has not.
    #[default]
    Before,
    /// It has, and only the answer is lost.
    After,
}

/// What happens to some calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The call; any if absent.
    pub op: Option<Op>,
    /// A part of `namespace/name` of the Proxy; any Proxy if absent.
    pub matching: Option<String>,
    /// How the call fails; it only takes longer if absent.
    pub error: Option<Reason>,
    /// How many calls are met; all of them if absent.
    pub times: Option<u32>,
    /// Only each so-manieth of the calls that fit is met; each one if absent.
    pub every: Option<NonZeroU32>,
    /// Calls that fitted and were not met since the last one that was.
    pub passed: u32,
    /// How long the answer takes.
    pub delay: Duration,
    /// Whether a call that fails has had its effect.
    pub when: When,
    /// How long the error asks to wait before the next try.
    pub retry_after: Option<Duration>,
}

impl Rule {
    /// Whether the rule meets a call, as it was before that; it is used up a little by it.
    pub(super) fn take(&mut self, op: Op, owner: Option<&Owner>) -> Option<Self> {
        if !self.fits(op, owner) {
            return None;
        }
        if self
            .every
            .is_some_and(|every| self.passed + 1 < every.get())
        {
            self.passed += 1;
            return None;
        }
        self.passed = 0;
        let met = self.clone();
        self.times = self.times.map(|times| times.saturating_sub(1));
        Some(met)
    }

    fn fits(&self, op: Op, owner: Option<&Owner>) -> bool {
        let is_op = self.op.is_none_or(|wanted| wanted == op);
        let is_proxy = self.matching.as_deref().is_none_or(|part| {
            owner.is_some_and(|owner| format!("{}/{}", owner.namespace, owner.proxy).contains(part))
        });
        is_op && is_proxy && self.times != Some(0)
    }

    /// The error that the call ends with.
    pub(super) fn error(&self, op: Op) -> Option<Error> {
        let reason = self.error?;
        let text = format!("simulated: {} fails with {reason:?}", op.as_str());
        let error = Error::new(reason, text);
        Some(match self.retry_after {
            Some(wait) => error.with_retry_after(wait),
            None => error,
        })
    }
}
