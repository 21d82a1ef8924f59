//! List and watch of one kind, told as changes on a bounded channel.

use std::{fmt::Debug, time::Duration};

use futures::StreamExt as _;
use kube_client::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use kube_core::Resource;
use rand::Rng as _;
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::timeout};
use tracing::{debug, warn};

use super::nodes::is_code;

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Life of one watch; the server ends it, then it is opened again at the last version.
const WATCH_SECONDS: u32 = 240;
/// A watch that is silent longer than its own life is dead.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);
const BACKOFF_BASE: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A change of a collection.
#[derive(Debug)]
pub(super) enum Change<K> {
    /// The whole collection, after the first list and whenever the history was lost.
    Replaced(Vec<K>),
    /// An object was added or changed.
    Applied(K),
    /// An object is gone; its last state.
    Deleted(K),
}

/// Why a watch round ended.
enum Ended {
    /// The receiver is gone.
    Unwanted,
    /// Open the watch again at the last version.
    Resume,
    /// The history is lost: list again.
    Expired,
    Failed(kube_client::Error),
}

/// Follows a collection until the receiver is dropped.
///
/// Every object's `managedFields` are cut. Failures are retried for ever with jittered backoff.
pub(super) async fn follow<K>(api: Api<K>, changes: mpsc::Sender<Change<K>>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut version: Option<String> = None;
    let mut failures: u32 = 0;
    loop {
        let ended = match &mut version {
            None => match list(&api).await {
                Ok((items, listed)) => {
                    if changes.send(Change::Replaced(items)).await.is_err() {
                        return;
                    }
                    failures = 0;
                    version = Some(listed);
                    continue;
                }
                Err(error) => Ended::Failed(error),
            },
            Some(version) => watch(&api, version, &changes, &mut failures).await,
        };
        match ended {
            Ended::Unwanted => return,
            Ended::Resume => {}
            Ended::Expired => version = None,
            Ended::Failed(error) => {
                failures = failures.saturating_add(1);
                if failures.is_power_of_two() {
                    warn!(failures, %error, "list or watch of simulated nodes failed");
                }
                tokio::select! {
                    () = tokio::time::sleep(backoff(failures)) => {}
                    () = changes.closed() => return,
                }
            }
        }
    }
}

async fn list<K>(api: &Api<K>) -> kube_client::Result<(Vec<K>, String)>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    let mut items = Vec::new();
    loop {
        let page = api.list(&params).await?;
        items.extend(page.items.into_iter().map(trimmed));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((items, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}

async fn watch<K>(
    api: &Api<K>,
    version: &mut String,
    changes: &mpsc::Sender<Change<K>>,
    failures: &mut u32,
) -> Ended
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let params = WatchParams {
        bookmarks: true,
        timeout: Some(WATCH_SECONDS),
        ..WatchParams::default()
    };
    let opened = tokio::select! {
        opened = timeout(SILENCE, api.watch(&params, version)) => opened,
        () = changes.closed() => return Ended::Unwanted,
    };
    let mut events = match opened {
        Ok(Ok(events)) => events.boxed(),
        Ok(Err(error)) if is_code(&error, 410) => return Ended::Expired,
        Ok(Err(error)) => return Ended::Failed(error),
        Err(_) => return Ended::Resume,
    };
    loop {
        let event = tokio::select! {
            event = timeout(SILENCE, events.next()) => event,
            () = changes.closed() => return Ended::Unwanted,
        };
        let change = match event {
            Ok(Some(Ok(event))) => match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    Change::Applied(trimmed(object))
                }
                WatchEvent::Deleted(object) => Change::Deleted(trimmed(object)),
                WatchEvent::Bookmark(bookmark) => {
                    *version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Ended::Expired,
                WatchEvent::Error(status) => {
                    return Ended::Failed(kube_client::Error::Api(status));
                }
            },
            Ok(Some(Err(error))) if is_code(&error, 410) => return Ended::Expired,
            Ok(Some(Err(error))) => return Ended::Failed(error),
            Ok(None) => return Ended::Resume,
            Err(_) => {
                debug!("a silent watch is opened again");
                return Ended::Resume;
            }
        };
        *failures = 0;
        let (Change::Applied(object) | Change::Deleted(object)) = &change else {
            continue;
        };
        let reached = object.meta().resource_version.clone();
        if changes.send(change).await.is_err() {
            return Ended::Unwanted;
        }
        if let Some(reached) = reached {
            *version = reached;
        }
    }
}

fn trimmed<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

fn backoff(failures: u32) -> Duration {
    let full = BACKOFF_BASE.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    full.min(BACKOFF_MAX)
        .mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
