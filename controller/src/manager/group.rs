//! Things that are started and stopped together.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use super::runnable::{Keys, Runnable, Tokens};
use super::{Dropped, Error};
use crate::error::list;
use crate::reconcile::BoxError;

/// How long dropped tasks may take to reach an await point. Only what blocks its thread takes
/// longer, and that can't be waited for.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// A group while it runs.
pub(super) struct Group {
    tokens: Tokens,
    running: JoinSet<Result<(), BoxError>>,
    parts: HashMap<Id, Part>,
    /// Whether it was cut off: how its parts end does not matter any more.
    is_cut: bool,
    /// What a stop has found so far, so that nothing is lost if it is given up and begun anew.
    ended: Ended,
}

/// Something that runs in a group.
struct Part {
    name: String,
    keys: Option<Keys>,
}

impl Part {
    /// What is to be told of it before it is dropped.
    fn dropped(self) -> Dropped {
        Dropped {
            keys: self.keys.map(|keys| keys()).unwrap_or_default(),
            name: self.name,
        }
    }
}

/// What was left of a group after its stop.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) errors: Vec<Error>,
    /// What had to be dropped.
    pub(super) dropped: Vec<Dropped>,
    /// Whether something of it still runs, because it blocks its thread.
    pub(super) blocked: bool,
}

impl Group {
    pub(super) fn new() -> Self {
        let tokens = Tokens {
            stop: CancellationToken::new(),
            elected: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        Self {
            tokens,
            running: JoinSet::new(),
            parts: HashMap::new(),
            is_cut: false,
            ended: Ended::default(),
        }
    }

    /// Starts `runnable`; without effect on one that had its only start.
    pub(super) fn start(&mut self, runnable: &mut Runnable) {
        if let Some(run) = runnable.start(self.tokens.clone()) {
            debug!(name = runnable.name, "starting");
            let task = self.running.spawn(run);
            let part = Part {
                name: runnable.name.clone(),
                keys: runnable.keys.clone(),
            };
            self.parts.insert(task.id(), part);
        }
    }

    /// Tells the group that this process leads, or that the group need not wait for that.
    pub(super) fn elect(&self) {
        self.tokens.elected.cancel();
    }

    pub(super) fn is_elected(&self) -> bool {
        self.tokens.elected.is_cancelled()
    }

    /// Waits for the first failure, for ever if nothing fails. Cancel-safe.
    pub(super) async fn failure(&mut self) -> Error {
        while let Some(ended) = self.running.join_next_with_id().await {
            if let Some(error) = self.failure_of(ended) {
                return error;
            }
        }
        std::future::pending().await
    }

    /// The failure of a task that has ended by itself, if it is one, with the task's name.
    fn failure_of(
        &mut self,
        ended: Result<(Id, Result<(), BoxError>), JoinError>,
    ) -> Option<Error> {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        // What was dropped has given up its name, and is told of by that alone.
        let name = self.parts.remove(&id)?.name;
        match ended {
            _ if self.is_cut => None,
            Ok((_, Ok(()))) => {
                debug!(name, "ended");
                None
            }
            Ok((_, Err(source))) => Some(Error::Failed { name, source }),
            Err(error) if error.is_cancelled() => None,
            Err(error) => Some(Error::Panicked {
                name,
                message: error.to_string(),
            }),
        }
    }

    /// Tells everything to stop and waits until `deadline`, without one for ever; the rest is
    /// dropped.
    ///
    /// Cancel-safe: called again, it goes on waiting, and tells also what ended before.
    pub(super) async fn stop(&mut self, deadline: Option<Instant>) -> Ended {
        self.tokens.stop.cancel();
        match deadline {
            None => self.all_ended().await,
            Some(deadline) => tokio::time::timeout_at(deadline, self.all_ended())
                .await
                .unwrap_or(()),
        }
        if !self.running.is_empty() || !self.tokens.tasks.is_empty() {
            let parts = self.parts.drain().map(|(_, part)| part.dropped());
            let mut dropped: Vec<_> = parts.collect();
            dropped.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let running = list(&dropped);
            warn!(running, "grace time over; dropping what still runs");
            self.ended.dropped.extend(dropped);
            self.running.abort_all();
            let all_dropped = self.all_ended();
            let blocked = tokio::time::timeout(ABORT_LIMIT, all_dropped)
                .await
                .is_err();
            if blocked {
                error!(running, "blocked outside of any await point");
            }
            self.ended.blocked = blocked;
        }
        std::mem::take(&mut self.ended)
    }

    /// Waits until nothing runs any more. Cancel-safe.
    async fn all_ended(&mut self) {
        while let Some(ended) = self.running.join_next_with_id().await {
            let error = self.failure_of(ended);
            self.ended.errors.extend(error);
        }
        self.tokens.no_task_is_left().await;
    }

    /// Drops everything at its next await and waits until all of it has ended. Cancel-safe: a
    /// [`stop`](Self::stop) after it names what still runs.
    pub(super) async fn cut(&mut self) {
        self.tokens.stop.cancel();
        self.is_cut = true;
        self.running.abort_all();
        self.all_ended().await;
    }
}
