//! From the result of a reconcile to what happens with its key: the decision, without effects.

use std::time::Duration;

use crate::failure::Failure;
use crate::metrics::ResultLabel;
use crate::reconcile::{Action, Class};

/// What to do with a key after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Under which result the run is counted.
    pub(crate) label: ResultLabel,
    /// Whether the limiter forgets the failures of the key.
    pub(crate) forget: bool,
    /// When the key comes again, if at all.
    pub(crate) requeue: Option<Requeue>,
}

impl Settlement {
    /// Whether the key comes again without any wait.
    pub(crate) fn is_at_once(&self) -> bool {
        let delay = self.requeue.map(|requeue| requeue.delay);
        delay == Some(Delay::Exactly(Duration::ZERO))
    }

    /// The same with a wait that grows, for a key that comes at once too often.
    pub(crate) fn braked(self) -> Self {
        Self {
            forget: false,
            requeue: self.requeue.map(|requeue| Requeue {
                delay: Delay::Backoff {
                    at_least: Duration::ZERO,
                },
                ..requeue
            }),
            ..self
        }
    }
}

/// When and how a key comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requeue {
    pub(crate) delay: Delay,
    pub(crate) priority: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    /// The wait the limiter gives, and no less than `at_least`.
    Backoff { at_least: Duration },
    /// This wait, beside the limiter.
    Exactly(Duration),
}

/// Decides for a run that ended with `result`, of a key handed out at `priority`.
pub(crate) fn settle(result: &Result<Action, Failure>, priority: i32) -> Settlement {
    match result {
        Ok(action) => settle_action(*action, priority),
        Err(error) => settle_error(error, priority),
    }
}

fn settle_action(action: Action, priority: i32) -> Settlement {
    let (after, priority) = match action {
        Action::Done => {
            return Settlement {
                label: ResultLabel::Success,
                forget: true,
                requeue: None,
            };
        }
        Action::Requeue => (None, priority),
        Action::RequeueAfter(after) => (Some(after), priority),
        Action::RequeueAt { priority, after } => (after, priority),
    };
    match after {
        Some(after) => Settlement {
            label: ResultLabel::RequeueAfter,
            forget: true,
            requeue: Some(Requeue {
                delay: Delay::Exactly(after),
                priority,
            }),
        },
        None => Settlement {
            label: ResultLabel::Requeue,
            forget: false,
            requeue: Some(Requeue {
                delay: Delay::Backoff {
                    at_least: Duration::ZERO,
                },
                priority,
            }),
        },
    }
}

fn settle_error(error: &Failure, priority: i32) -> Settlement {
    let requeue = match error.class {
        Class::Terminal => None,
        Class::Retry { at_least } => Some(Requeue {
            delay: Delay::Backoff {
                at_least: at_least.unwrap_or_default(),
            },
            priority: error.priority.unwrap_or(priority),
        }),
    };
    // A terminal error leaves no failure behind: the next event starts with the first backoff.
    Settlement {
        label: ResultLabel::Error,
        forget: requeue.is_none(),
        requeue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::ReconcileError;

    const BACKOFF: Delay = Delay::Backoff {
        at_least: Duration::ZERO,
    };
    const SECOND: Duration = Duration::from_secs(1);

    /// A result, and the label, forgetting, delay and priority of the next run that follow from it.
    type Row = (
        Result<Action, ReconcileError>,
        ResultLabel,
        bool,
        Option<(Delay, i32)>,
    );

    #[test]
    fn k1_every_result_settles_by_the_table() {
        use ResultLabel::{Error, Requeue as Again, RequeueAfter, Success};
        let retry = || ReconcileError::retry("broken");
        let at_least = Delay::Backoff { at_least: SECOND };
        // The key was handed out at priority 3.
        let table: [Row; 12] = [
            (Ok(Action::Done), Success, true, None),
            (Ok(Action::Done.at_priority(9)), Success, true, None),
            (Ok(Action::Requeue), Again, false, Some((BACKOFF, 3))),
            (
                Ok(Action::Requeue.at_priority(9)),
                Again,
                false,
                Some((BACKOFF, 9)),
            ),
            (
                Ok(Action::RequeueAfter(SECOND)),
                RequeueAfter,
                true,
                Some((Delay::Exactly(SECOND), 3)),
            ),
            (
                Ok(Action::RequeueAfter(Duration::ZERO)),
                RequeueAfter,
                true,
                Some((Delay::Exactly(Duration::ZERO), 3)),
            ),
            (
                Ok(Action::RequeueAfter(SECOND).at_priority(-100)),
                RequeueAfter,
                true,
                Some((Delay::Exactly(SECOND), -100)),
            ),
            (Err(retry()), Error, false, Some((BACKOFF, 3))),
            (
                Err(retry().at_priority(9)),
                Error,
                false,
                Some((BACKOFF, 9)),
            ),
            (
                Err(ReconcileError::retry_after("busy", SECOND)),
                Error,
                false,
                Some((at_least, 3)),
            ),
            (Err(ReconcileError::terminal("no")), Error, true, None),
            (
                Err(ReconcileError::terminal("no").at_priority(9)),
                Error,
                true,
                None,
            ),
        ];
        for (result, label, forget, requeue) in table {
            let result = result.map_err(Failure::from);
            let requeue = requeue.map(|(delay, priority)| Requeue { delay, priority });
            assert_eq!(
                settle(&result, 3),
                Settlement {
                    label,
                    forget,
                    requeue
                },
                "{result:?}"
            );
        }
    }
}
