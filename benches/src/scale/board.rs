//! The fleet as its events tell it, one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use kube_client::Client;
use kube_core::WatchEvent;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::failed;
use crate::Error;

/// As much of a Proxy as is followed.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Seen {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: i64,
    #[serde(rename = "instanceUID")]
    instance_uid: Option<String>,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Seen {
    /// The instance that serves, if the Proxy is Ready as it is now.
    fn serving(&self) -> Option<&str> {
        let ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        let is_ready = self.status.conditions.iter().any(ready)
            && self.status.observed_generation == self.metadata.generation;
        let instance = self.status.instance_uid.as_deref();
        instance.filter(|_| is_ready)
    }
}

/// What is known of a fleet.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// By name: the instance that serves, if one does.
    serving: HashMap<String, Option<String>>,
    n_serving: usize,
    /// For each name the instance that is to be replaced.
    old: HashMap<String, String>,
    n_replaced: usize,
    /// Most Proxies out of service at once since [`Board::expect_replacement`].
    peak_out: usize,
    n_events: u64,
}

impl Board {
    /// Takes the next event in.
    fn take(&mut self, event: &WatchEvent<Seen>) {
        self.n_events += 1;
        match event {
            WatchEvent::Added(seen) | WatchEvent::Modified(seen) => {
                let name = &seen.metadata.name;
                let serving = seen.serving().map(str::to_owned);
                self.n_serving += usize::from(serving.is_some());
                let before = self.serving.insert(name.clone(), serving.clone());
                self.n_serving -= usize::from(before.flatten().is_some());
                if let (Some(now), Some(old)) = (&serving, self.old.get(name))
                    && now != old
                {
                    self.old.remove(name);
                    self.n_replaced += 1;
                }
            }
            WatchEvent::Deleted(seen) => {
                let before = self.serving.remove(&seen.metadata.name);
                self.n_serving -= usize::from(before.flatten().is_some());
            }
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
        }
        self.peak_out = self.peak_out.max(self.serving.len() - self.n_serving);
    }

    /// From now on every instance is an old one, and the peak is counted anew.
    pub(super) fn expect_replacement(&mut self) {
        let serving = self.serving.iter();
        self.old = serving
            .filter_map(|(name, instance)| Some((name.clone(), instance.clone()?)))
            .collect();
        self.n_replaced = 0;
        self.peak_out = self.serving.len() - self.n_serving;
    }

    pub(super) fn n_serving(&self) -> usize {
        self.n_serving
    }

    pub(super) fn n_replaced(&self) -> usize {
        self.n_replaced
    }

    pub(super) fn peak_out(&self) -> usize {
        self.peak_out
    }

    pub(super) fn n_events(&self) -> u64 {
        self.n_events
    }
}

/// A board that one watch keeps up to date; the watch ends with it.
#[derive(Debug)]
pub(super) struct Followed {
    board: Arc<Mutex<Board>>,
    changed: Arc<Notify>,
    watching: JoinSet<Error>,
}

impl Followed {
    /// Follows `path`, a collection that holds nothing yet.
    pub(super) async fn begin(client: &Client, path: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Listed {
            metadata: ListMeta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ListMeta {
            resource_version: String,
        }
        let get = |path: String| {
            http::Request::get(path)
                .body(Vec::new())
                .map_err(failed("ask for the fleet"))
        };
        let listed: Listed = client
            .request(get(format!("{path}?limit=1"))?)
            .await
            .map_err(failed("list the fleet"))?;
        let version = listed.metadata.resource_version;
        let watch = get(format!(
            "{path}?watch=true&timeoutSeconds=7200&resourceVersion={version}"
        ))?;
        let events = client
            .request_events::<Seen>(watch)
            .await
            .map_err(failed("watch the fleet"))?;
        let board = Arc::new(Mutex::new(Board::default()));
        let changed = Arc::new(Notify::new());
        let mut watching = JoinSet::new();
        watching.spawn({
            let (board, changed) = (Arc::clone(&board), Arc::clone(&changed));
            async move {
                pin_mut!(events);
                while let Some(event) = events.next().await {
                    match event {
                        Ok(WatchEvent::Error(status)) => {
                            return Error::Failed(format!("the watch broke: {}", status.message));
                        }
                        Ok(event) => {
                            board.lock().take(&event);
                            changed.notify_one();
                        }
                        Err(error) => return Error::Failed(format!("the watch broke: {error}")),
                    }
                }
                Error::Failed("the watch ended".to_owned())
            }
        });
        Ok(Self {
            board,
            changed,
            watching,
        })
    }

    /// Looks at the board, or changes what it counts.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Board) -> T) -> T {
        look(&mut self.board.lock())
    }

    /// Waits until the board is as `done` says; fails after `limit`, or if the watch breaks.
    pub(super) async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        done: impl Fn(&Board) -> bool,
    ) -> Result<(), Error> {
        let deadline = tokio::time::sleep(limit);
        pin_mut!(deadline);
        loop {
            if done(&self.board.lock()) {
                return Ok(());
            }
            tokio::select! {
                () = self.changed.notified() => {}
                Some(ended) = self.watching.join_next() => {
                    return Err(ended.unwrap_or_else(|error| Error::Failed(error.to_string())));
                }
                () = &mut deadline => {
                    let n = self.board.lock().n_serving();
                    let seconds = limit.as_secs();
                    let text = format!("{what}: not within {seconds} s; {n} Proxies serve");
                    return Err(Error::Failed(text));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, name: &str, instance: Option<&str>, ready: bool) -> WatchEvent<Seen> {
        serde_json::from_value(json!({
            "type": kind,
            "object": {
                "metadata": { "name": name, "generation": 1 },
                "status": {
                    "observedGeneration": 1, "instanceUID": instance,
                    "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
                },
            },
        }))
        .expect("an event")
    }

    #[test]
    fn every_event_counts_for_the_most_that_were_out_of_service_at_once() {
        let mut board = Board::default();
        for name in ["a", "b", "c"] {
            board.take(&event("ADDED", name, None, false));
            board.take(&event("MODIFIED", name, Some("1"), true));
        }
        assert_eq!((board.n_serving(), board.n_events()), (3, 6));
        board.expect_replacement();
        assert_eq!(board.peak_out(), 0, "counted anew");
        for (name, instance, ready, replaced, out) in [
            ("a", "1", false, 0, 1),
            ("b", "1", false, 0, 2),
            ("a", "2", false, 0, 2),
            ("a", "2", true, 1, 2),
            ("b", "1", true, 1, 2),
            ("a", "2", true, 1, 2),
        ] {
            board.take(&event("MODIFIED", name, Some(instance), ready));
            assert_eq!((board.n_replaced(), board.peak_out()), (replaced, out));
        }
        board.take(&event("DELETED", "a", Some("2"), true));
        assert_eq!(board.n_serving(), 2);
    }

    #[test]
    fn what_is_said_of_an_older_generation_is_no_service() {
        let mut board = Board::default();
        let WatchEvent::Modified(mut seen) = event("MODIFIED", "a", Some("1"), true) else {
            panic!("a change")
        };
        seen.metadata.generation = 2;
        board.take(&WatchEvent::Modified(seen));
        assert_eq!(board.n_serving(), 0);
    }
}
