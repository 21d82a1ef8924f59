//! Watches: the state, then events in order of revision.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::Stream;
use rand::Rng as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Api, Call, REVISION_WAIT,
    options::{WatchOptions, WatchStart},
    present::View,
    select::Selection,
};
use crate::{
    counters::OpenWatch,
    error::{ApiError, ApiResult},
    http::{
        body,
        response::{self, ApiResponse},
    },
    registry::Resource,
    store::{Event, EventKind, Key, StoredObject, Watcher},
};

/// Without a timeout of the client's a watch lives that long, and up to twice that.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// No watch lives longer.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Between bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// The last bookmark comes this long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Objects of the initial state that are sent at once.
const STATE_BATCH: usize = 500;

/// What a watcher is told of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

impl Api {
    pub(super) async fn watch(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let view = View::for_item(self, call)?;
        let selection = Selection::parse(call)?;
        let options = WatchOptions::parse(&call.query)?;
        let limit = match options.timeout_seconds {
            Some(seconds) => Duration::from_secs(seconds).min(LONGEST_TIMEOUT),
            None => DEFAULT_TIMEOUT.mul_f64(1.0 + rand::rng().random::<f64>()),
        };
        let opened = Instant::now();
        let mut stream = WatchStream {
            view,
            selection,
            resource: Arc::clone(&call.resource),
            retired: call.resource.retired.clone(),
            stop: self.serving(),
            open: self.recorder.watch_opened(),
            bookmarks: options.bookmarks,
            deadline: opened + limit,
            next_bookmark: next_bookmark(opened, opened + limit),
            headers: true,
            state: Vec::new().into_iter(),
            state_bookmark: None,
            watcher: None,
            failure: None,
        };
        stream.start(self, options.start).await;
        let events = futures::stream::unfold(stream, |mut stream| async move {
            let chunk = stream.next_chunk().await?;
            Some((chunk, stream))
        });
        Ok(stream_response(events))
    }
}

fn stream_response(events: impl Stream<Item = Bytes> + Send + 'static) -> ApiResponse {
    response::with_type(200, "application/json", body::stream(events))
}

fn next_bookmark(now: Instant, deadline: Instant) -> Option<Instant> {
    let last = deadline.checked_sub(BOOKMARK_BEFORE_END)?;
    let next = now + BOOKMARK_INTERVAL;
    // The one before the end is sent even when the regular one came shortly before.
    let next = next.min(last);
    (next > now).then_some(next)
}

/// One open watch.
struct WatchStream {
    view: View,
    selection: Selection,
    resource: Arc<Resource>,
    retired: CancellationToken,
    stop: CancellationToken,
    open: OpenWatch,
    bookmarks: bool,
    deadline: Instant,
    next_bookmark: Option<Instant>,
    /// The next Table carries its columns.
    headers: bool,
    /// Objects of the initial state that were not sent yet.
    state: std::vec::IntoIter<(Key, Arc<StoredObject>)>,
    /// The bookmark that ends the state.
    state_bookmark: Option<u64>,
    /// `None`: nothing follows.
    watcher: Option<Watcher>,
    /// An error event to send before the end.
    failure: Option<ApiError>,
}

impl WatchStream {
    async fn start(&mut self, api: &Api, start: WatchStart) {
        let collection = &self.resource.collection;
        match start {
            WatchStart::State { at_least } => {
                if let Err(error) = api.wait_for_revision(at_least).await {
                    tracing::debug!(at_least, waited = ?REVISION_WAIT, "watch of a future state");
                    self.failure = Some(error);
                    return;
                }
                let mut state = Vec::new();
                let (revision, watcher) =
                    collection.scan_and_watch(self.selection.scope(), |key, object| {
                        state.push((key.clone(), Arc::clone(object)));
                        ControlFlow::Continue(())
                    });
                state.retain(|(key, object)| self.selection.matches(&self.resource, key, object));
                self.state = state.into_iter();
                self.state_bookmark = self.bookmarks.then_some(revision);
                self.watcher = Some(watcher);
            }
            WatchStart::Now => match collection.watch_after(api.store.revision()) {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(compacted) => {
                    self.failure = Some(too_old(api.store.revision(), compacted.oldest))
                }
            },
            WatchStart::After(revision) => match collection.watch_after(revision) {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(compacted) => self.failure = Some(too_old(revision, compacted.oldest)),
            },
        }
    }

    /// The next bytes to send; `None` ends the watch.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            let mut chunk = BytesMut::new();
            let mut events = 0;
            if let Some(error) = self.failure.take() {
                self.watcher = None;
                frame(
                    &mut chunk,
                    "ERROR",
                    &crate::store::object_bytes(&error.status()),
                );
                events += 1;
            } else if self.state.len() > 0 {
                for (_, object) in self.state.by_ref().take(STATE_BATCH) {
                    let headers = std::mem::take(&mut self.headers);
                    frame(
                        &mut chunk,
                        Change::Added.as_str(),
                        &self.view.event_object(&object, headers),
                    );
                    events += 1;
                }
            } else if let Some(revision) = self.state_bookmark.take() {
                let headers = std::mem::take(&mut self.headers);
                frame(
                    &mut chunk,
                    "BOOKMARK",
                    &self.view.bookmark(revision, true, headers),
                );
                events += 1;
            } else {
                events += self.follow(&mut chunk).await?;
            }
            if events > 0 {
                self.open.sent(events, chunk.len());
                return Some(chunk.freeze());
            }
        }
    }

    /// Waits for events and writes those that the watch is about. `None` ends the watch.
    async fn follow(&mut self, chunk: &mut BytesMut) -> Option<u64> {
        let watcher = self.watcher.as_mut()?;
        let Ok(events) = watcher.read() else {
            tracing::info!(resource = ?self.resource, "a watch that read too slowly is ended");
            self.open.lagged();
            return None;
        };
        if events.is_empty() {
            let bookmark_at = self.next_bookmark.filter(|_| self.bookmarks);
            let bookmark = async {
                match bookmark_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                () = self.retired.cancelled() => return None,
                () = watcher.ready() => {}
                () = bookmark => {
                    // Once more, so that the bookmark's revision is complete.
                    let Ok(events) = watcher.read() else { return None };
                    let (revision, complete) = (watcher.progress(), watcher.caught_up());
                    let mut written = self.write(&events, chunk);
                    if complete {
                        let headers = std::mem::take(&mut self.headers);
                        frame(chunk, "BOOKMARK", &self.view.bookmark(revision, false, headers));
                        written += 1;
                        self.next_bookmark = next_bookmark(Instant::now(), self.deadline);
                    }
                    return Some(written);
                }
                () = tokio::time::sleep_until(self.deadline) => return None,
            }
            return Some(0);
        }
        if Instant::now() >= self.deadline
            || self.stop.is_cancelled()
            || self.retired.is_cancelled()
        {
            return None;
        }
        Some(self.write(&events, chunk))
    }

    fn write(&mut self, events: &[Arc<Event>], chunk: &mut BytesMut) -> u64 {
        let mut written = 0;
        for event in events {
            if !self.selection.scope().contains(&event.key) {
                continue;
            }
            if let Some((change, object)) = self.change(event) {
                let headers = std::mem::take(&mut self.headers);
                frame(
                    chunk,
                    change.as_str(),
                    &self.view.event_object(object, headers),
                );
                written += 1;
            }
        }
        written
    }

    /// What an event means to this watch: an object may enter, stay in or leave the selection.
    fn change<'a>(&self, event: &'a Event) -> Option<(Change, &'a StoredObject)> {
        let selected =
            |object: &StoredObject| self.selection.matches(&self.resource, &event.key, object);
        let was = event
            .previous
            .as_ref()
            .is_some_and(|previous| selected(previous));
        match event.kind {
            EventKind::Put => {
                let is = selected(&event.object);
                match (was, is) {
                    (false, true) => Some((Change::Added, &event.object)),
                    (true, true) => Some((Change::Modified, &event.object)),
                    (true, false) => Some((Change::Deleted, event.departed()?)),
                    (false, false) => None,
                }
            }
            EventKind::Delete => was.then(|| (Change::Deleted, &*event.object)),
        }
    }
}

fn frame(chunk: &mut BytesMut, kind: &str, object: &[u8]) {
    chunk.reserve(object.len() + 40);
    chunk.put_slice(b"{\"type\":\"");
    chunk.put_slice(kind.as_bytes());
    chunk.put_slice(b"\",\"object\":");
    chunk.put_slice(object);
    chunk.put_slice(b"}\n");
}

fn too_old(asked: u64, oldest: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({oldest})"))
}
