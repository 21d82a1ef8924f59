//! Events: each goes an hour after it was last written.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    handlers::Api,
    store::{EventKind, Key, Watcher},
};

/// How long an event is kept, as the real server's default.
const LIFETIME: Duration = Duration::from_secs(60 * 60);

/// A version of an event and when it goes.
#[derive(Debug)]
struct Expiry {
    at: Instant,
    key: Key,
    revision: u64,
}

/// Deletes old events until `stop`. Sleeps while there are none.
pub(crate) async fn expire_events(api: Arc<Api>, stop: CancellationToken) {
    let events = api.registry.built_in("", "events");
    // Nothing was written before the cluster's first request.
    let Ok(mut watcher) = events.collection.watch_after(api.store.revision()) else {
        return;
    };
    let mut expiries: VecDeque<Expiry> = VecDeque::new();
    loop {
        if !note_writes(&mut watcher, &mut expiries) {
            // The history was trimmed by hand: events written meanwhile stay until the cluster ends.
            match events.collection.watch_after(api.store.revision()) {
                Ok(newer) => watcher = newer,
                Err(_) => return,
            }
            continue;
        }
        let now = Instant::now();
        while let Some(expiry) = expiries.pop_front_if(|expiry| expiry.at <= now) {
            // An event that was written again since has an expiry of its own.
            if events
                .collection
                .remove(&expiry.key, expiry.revision, None)
                .is_err()
            {
                tracing::trace!(key = ?expiry.key, "event was written again or is gone");
            }
        }
        let next = expiries.front().map(|expiry| expiry.at);
        let expired = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = watcher.ready() => {}
            () = expired => {}
        }
    }
}

/// Notes the writes that were made since; false when some were missed.
fn note_writes(watcher: &mut Watcher, expiries: &mut VecDeque<Expiry>) -> bool {
    loop {
        let Ok(writes) = watcher.read() else {
            return false;
        };
        for write in writes.iter().filter(|write| write.kind == EventKind::Put) {
            expiries.push_back(Expiry {
                at: Instant::now() + LIFETIME,
                key: write.key.clone(),
                revision: write.revision,
            });
        }
        if watcher.caught_up() {
            return true;
        }
    }
}
