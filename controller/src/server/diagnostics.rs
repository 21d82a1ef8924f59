//! The live state of a process, for eyes and for tools.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::page::{Endpoint, Page, PageRequest};
use crate::election::ElectionHandle;
use crate::journal::excerpt;
use crate::manager::{Directory, Phase, Watched};
use crate::{ControllerHandle, KeyHistory, Outcome};

/// Keys of a controller that are shown as held back: a cache that stands still holds all of them.
const MOST_HELD_BACK: usize = 100;

/// What a manager runs, as JSON: its phase, the election, informers, controllers with their queues.
///
/// Holds names, numbers and times; nothing of an object but its name, so nothing of a Secret. Of an
/// error it has the cause, such as the server's reason and the path of a field, at most 256 bytes. The
/// values that an error quotes, be it in quotation marks, braces or an API server's `Invalid value: …`,
/// are replaced by `…`; what a reconciler prints bare into the text of its own errors is shown.
/// `heldBack` has up to 100 keys whose last write a cache does not show, the longest wait first.
///
/// ```json
/// {
///   "phase": "running",
///   "election": { "lease": "my-controller", "identity": "…", "leader": "…", "isLeader": true,
///                 "term": 3, "slowPaths": 0 },
///   "informers": [ { "name": "ConfigMap", "kind": "ConfigMap", "synced": true, "objects": 12,
///                    "resourceVersion": "4711", "lag": { "census": 0 }, "lastError": null } ],
///   "controllers": [ { "name": "census", "synced": true, "workers": 1, "queue": { "depth": 0 },
///                      "unseenWrites": 1,
///                      "heldBack": [ { "key": "ns/c", "cache": "ConfigMap", "waitedSeconds": 0.3 } ],
///                      "running": [ { "key": "ns/a", "ageSeconds": 0.2 } ],
///                      "failing": [ { "key": "ns/b", "attempts": 4, "terminal": false,
///                                     "nextDueSeconds": 1.5, "lastError": "…" } ] } ]
/// }
/// ```
///
/// `lag` counts the events that wait for each handler, those of one name together. A key is failing from
/// a run that failed to the next that does not; `terminal` if it is not retried, so that no time is due.
#[derive(Debug)]
pub struct Diagnostics {
    directory: Directory,
}

impl Diagnostics {
    /// The state of what `directory` knows.
    #[must_use]
    pub fn of(directory: &Directory) -> Self {
        Self {
            directory: directory.clone(),
        }
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> Value {
        let directory = &self.directory;
        let informers = directory.informers();
        let controllers = directory.controllers();
        json!({
            "phase": match directory.phase() {
                Phase::Starting => "starting",
                Phase::Running => "running",
                Phase::Stopping => "stopping",
            },
            "election": directory.election().map(|election| of_election(&election)),
            "informers": informers.iter().map(|one| of_informer(&**one)).collect::<Vec<_>>(),
            "controllers": controllers.iter().map(of_controller).collect::<Vec<_>>(),
        })
    }
}

impl Endpoint for Diagnostics {
    fn answer(&self, request: &PageRequest<'_>) -> Page {
        if !request.subpath.is_empty() {
            return Page::not_found();
        }
        let body = format!("{:#}\n", self.state());
        Page {
            status: StatusCode::OK,
            content_type: "application/json",
            body,
        }
    }
}

fn of_election(election: &ElectionHandle) -> Value {
    json!({
        "lease": election.name(),
        "identity": election.identity(),
        "leader": election.leader(),
        "isLeader": election.is_leader(),
        "term": election.term(),
        "slowPaths": election.metrics().slow_paths,
    })
}

fn of_informer(informer: &dyn Watched) -> Value {
    let status = informer.status();
    json!({
        "name": informer.name(),
        "kind": status.kind,
        "synced": status.synced,
        "objects": status.objects,
        "resourceVersion": status.resource_version,
        "lag": lags(informer.queue_lengths()),
        "lastError": status.last_error.map(|(cause, text)| json!({
            "cause": cause.to_string(),
            "text": excerpt(&text),
        })),
    })
}

/// Events that wait, by the name of their handler: a controller has one for each source.
fn lags(waiting: Vec<(String, usize)>) -> BTreeMap<String, usize> {
    let mut lags = BTreeMap::new();
    for (handler, events) in waiting {
        *lags.entry(handler).or_default() += events;
    }
    lags
}

fn of_controller(controller: &ControllerHandle) -> Value {
    let metrics = controller.metrics();
    let queue = controller.queue();
    let running: Vec<_> = controller
        .running()
        .into_iter()
        .map(|(key, age)| json!({ "key": key.to_string(), "ageSeconds": seconds(age) }))
        .collect();
    let held_back: Vec<_> = controller
        .held_back()
        .into_iter()
        .take(MOST_HELD_BACK)
        .map(|(key, lag)| {
            json!({
                "key": key.to_string(),
                "cache": &*lag.cache,
                "waitedSeconds": seconds(lag.waited),
            })
        })
        .collect();
    let now = Instant::now();
    let failing: Vec<_> = controller
        .histories()
        .iter()
        .filter_map(|history| of_failing(history, now))
        .collect();
    json!({
        "name": controller.name(),
        "synced": controller.has_synced(),
        "workers": metrics.max_concurrent_reconciles,
        "activeWorkers": metrics.active_workers,
        "results": {
            "success": metrics.success,
            "requeue": metrics.requeue,
            "requeueAfter": metrics.requeue_after,
            "error": metrics.error,
            "terminalError": metrics.terminal_errors,
            "panic": metrics.panics,
            "timeout": metrics.timeouts,
        },
        "queue": {
            "depth": queue.depth,
            "ready": queue.ready,
            "delayed": queue.delayed,
            "running": queue.running,
            "failing": queue.failing,
            "oldestReadySeconds": seconds(queue.oldest_ready_age),
            "longestRunningSeconds": seconds(queue.longest_running),
            "unfinishedSeconds": seconds(queue.unfinished_work),
        },
        "unseenWrites": controller.unseen_writes(),
        "heldBack": held_back,
        "running": running,
        "failing": failing,
    })
}

/// A key whose last run failed: how often in a row, and when it comes again.
fn of_failing(history: &KeyHistory, now: Instant) -> Option<Value> {
    let last = history.runs.last()?;
    let (error, terminal) = match &last.outcome {
        Outcome::Error(error) => (error, false),
        Outcome::Terminal(error) => (error, true),
        Outcome::Done | Outcome::Requeue | Outcome::RequeueAfter(_) => return None,
    };
    let due = history.next_due;
    Some(json!({
        "key": history.key.to_string(),
        "attempts": last.attempt,
        "terminal": terminal,
        "nextDueSeconds": due.map(|due| seconds(due.saturating_duration_since(now))),
        "lastError": error,
    }))
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lags_of_several_handlers_of_one_name_are_added_up() {
        let waiting = [("a", 3), ("b", 1), ("a", 0), ("a", 4)];
        let waiting = waiting.map(|(name, events)| (name.to_owned(), events));
        let expected = [("a", 7), ("b", 1)].map(|(name, events)| (name.to_owned(), events));
        assert_eq!(lags(waiting.into()), expected.into());
    }
}
