//! A failed run as the worker keeps it: without anything of the user's own in it.

use crate::reconcile::{Class, ReconcileError};
use crate::retry::MaybeConflict;

/// What is needed of a [`ReconcileError`] once its run has ended.
///
/// The cause is of the user's own type: to print it, to follow its chain and to drop it is code that
/// may panic. That is done here once, which must be where a panic is caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    /// Priority of the retry, if it is another than the key had.
    pub(crate) priority: Option<i32>,
    /// Whether two writers met, which is no fault of either.
    pub(crate) is_conflict: bool,
    /// The cause and its chain.
    pub(crate) text: Box<str>,
}

impl Failure {
    pub(crate) fn is_terminal(&self) -> bool {
        self.class == Class::Terminal
    }
}

impl From<ReconcileError> for Failure {
    fn from(error: ReconcileError) -> Self {
        Self {
            class: error.class(),
            priority: error.priority(),
            is_conflict: error.is_conflict(),
            text: error.to_string().into(),
        }
    }
}
