//! A source that answers by a script and records what it was asked.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{
    Error, ListEnd, ListPart, ListRequest, ListWatch, Malformed, WatchEvent, WatchRequest,
    WatchStream,
};

/// Events that may wait in a [`WatchFeed`].
const FEED_DEPTH: usize = 4096;

/// What the source was asked, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A list call.
    List(ListRequest, Instant),
    /// A watch call.
    Watch(WatchRequest, Instant),
}

impl Request {
    /// The call as a short text, such as `list 0 limit=500` or `watch 17`.
    pub fn summary(&self) -> String {
        match self {
            Self::List(request, _) => {
                let version = match &request.version {
                    super::ListVersion::Any => "0",
                    super::ListVersion::NotOlderThan(version) => version,
                    super::ListVersion::Exact(version) => &*format!("={version}"),
                    super::ListVersion::Consistent => "\"\"",
                };
                let mut text = match &request.continue_token {
                    Some(token) => format!("list continue={token}"),
                    None => format!("list {version}"),
                };
                if let Some(limit) = request.limit {
                    text.push_str(&format!(" limit={limit}"));
                }
                text
            }
            Self::Watch(request, _) => {
                let version = match request.resource_version.as_str() {
                    "" => "\"\"",
                    version => version,
                };
                let stream = if request.initial_events {
                    " initial-events"
                } else {
                    ""
                };
                format!("watch {version}{stream}")
            }
        }
    }

    /// When the call was made.
    pub fn at(&self) -> Instant {
        match self {
            Self::List(_, at) | Self::Watch(_, at) => *at,
        }
    }
}

/// The answer to one list call.
#[derive(Debug)]
pub enum ListAnswer<K> {
    /// Objects, and how the page ends.
    Page(Vec<Result<K, Box<Malformed>>>, ListEnd),
    /// A failure after some objects.
    Fail(Vec<K>, Error),
    /// No answer at all.
    Hang,
}

impl<K> ListAnswer<K> {
    /// A complete list.
    pub fn all(objects: impl IntoIterator<Item = K>, resource_version: &str) -> Self {
        Self::page(objects, resource_version, None)
    }

    /// A page, with the token of the next one.
    pub fn page(
        objects: impl IntoIterator<Item = K>,
        resource_version: &str,
        continue_token: Option<&str>,
    ) -> Self {
        let end = ListEnd {
            resource_version: resource_version.to_owned(),
            continue_token: continue_token.map(str::to_owned),
        };
        Self::Page(objects.into_iter().map(Ok).collect(), end)
    }
}

enum WatchAnswer<K> {
    Refuse(Error),
    Hang,
    Open(mpsc::Receiver<Result<Vec<WatchEvent<K>>, Error>>),
}

/// Sends events into one open watch. Dropping it ends the watch as a server does at its timeout.
#[derive(Debug)]
pub struct WatchFeed<K>(mpsc::Sender<Result<Vec<WatchEvent<K>>, Error>>);

impl<K> WatchFeed<K> {
    /// Sends one event by itself.
    ///
    /// # Panics
    /// If more than 4096 sends wait.
    pub fn send(&self, event: WatchEvent<K>) {
        self.send_batch(vec![event]);
    }

    /// Sends events that arrive together.
    ///
    /// # Panics
    /// If more than 4096 sends wait.
    pub fn send_batch(&self, events: Vec<WatchEvent<K>>) {
        self.put(Ok(events));
    }

    /// Breaks the watch with an error.
    ///
    /// # Panics
    /// If more than 4096 sends wait.
    pub fn fail(self, error: Error) {
        self.put(Err(error));
    }

    /// Whether nobody reads the watch any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }

    fn put(&self, sent: Result<Vec<WatchEvent<K>>, Error>) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.0.try_send(sent) {
            panic!("a watch feed holds at most {FEED_DEPTH} unread sends");
        }
    }
}

struct Script<K> {
    lists: VecDeque<ListAnswer<K>>,
    watches: VecDeque<WatchAnswer<K>>,
}

/// The scripted source. Clones share one script; calls beyond the script hang.
pub struct Scripted<K> {
    script: Arc<Mutex<Script<K>>>,
    requests: Arc<watch::Sender<Vec<Request>>>,
    streams: bool,
}

impl<K> Clone for Scripted<K> {
    fn clone(&self) -> Self {
        Self {
            script: Arc::clone(&self.script),
            requests: Arc::clone(&self.requests),
            streams: self.streams,
        }
    }
}

impl<K> fmt::Debug for Scripted<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted")
            .field("requests", &*self.requests.borrow())
            .finish()
    }
}

impl<K> Default for Scripted<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Scripted<K> {
    /// A source with an empty script, which lists and does not stream initial state.
    pub fn new() -> Self {
        let script = Script {
            lists: VecDeque::new(),
            watches: VecDeque::new(),
        };
        Self {
            script: Arc::new(Mutex::new(script)),
            requests: Arc::new(watch::Sender::new(Vec::new())),
            streams: false,
        }
    }

    /// The same source, which also streams initial state if it is asked to.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.streams = true;
        self
    }

    /// Answers the next list call that has no answer yet.
    pub fn list(&self, answer: ListAnswer<K>) {
        self.script.lock().lists.push_back(answer);
    }

    /// Opens the next watch call that has no answer yet; the feed sends its events.
    pub fn watch(&self) -> WatchFeed<K> {
        let (sender, receiver) = mpsc::channel(FEED_DEPTH);
        self.script
            .lock()
            .watches
            .push_back(WatchAnswer::Open(receiver));
        WatchFeed(sender)
    }

    /// Refuses the next watch call that has no answer yet.
    pub fn refuse_watch(&self, error: Error) {
        self.script
            .lock()
            .watches
            .push_back(WatchAnswer::Refuse(error));
    }

    /// Leaves the next watch call without any answer.
    pub fn hang_watch(&self) {
        self.script.lock().watches.push_back(WatchAnswer::Hang);
    }

    /// All calls so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.borrow().clone()
    }

    /// All calls so far as short texts.
    pub fn summaries(&self) -> Vec<String> {
        self.requests
            .borrow()
            .iter()
            .map(Request::summary)
            .collect()
    }

    /// Waits until at least `n` calls were made. Cancel-safe.
    pub async fn called(&self, n: usize) {
        let mut requests = self.requests.subscribe();
        // The sender lives as long as `self`.
        drop(requests.wait_for(|all| all.len() >= n).await);
    }

    fn record(&self, request: Request) {
        self.requests.send_modify(|all| all.push(request));
    }
}

impl<K: Send + 'static> ListWatch<K> for Scripted<K>
where
    Self: Send + Sync,
{
    fn list(&self, request: ListRequest) -> BoxStream<'static, Result<ListPart<K>, Error>> {
        self.record(Request::List(request, Instant::now()));
        match self.script.lock().lists.pop_front() {
            Some(ListAnswer::Page(items, end)) => {
                let end = ListPart::End(end);
                stream::iter([Ok(ListPart::Items(items)), Ok(end)]).boxed()
            }
            Some(ListAnswer::Fail(objects, error)) => {
                let items = objects.into_iter().map(Ok).collect();
                stream::iter([Ok(ListPart::Items(items)), Err(error)]).boxed()
            }
            Some(ListAnswer::Hang) | None => stream::pending().boxed(),
        }
    }

    fn watch(&self, request: WatchRequest) -> BoxFuture<'static, Result<WatchStream<K>, Error>> {
        self.record(Request::Watch(request, Instant::now()));
        let answer = self.script.lock().watches.pop_front();
        Box::pin(async move {
            match answer {
                Some(WatchAnswer::Refuse(error)) => Err(error),
                Some(WatchAnswer::Open(receiver)) => {
                    let stream = stream::unfold(receiver, |mut receiver| async move {
                        receiver.recv().await.map(|sent| (sent, receiver))
                    });
                    Ok(stream.boxed())
                }
                Some(WatchAnswer::Hang) | None => std::future::pending().await,
            }
        })
    }

    fn supports_watch_list(&self) -> bool {
        self.streams
    }
}
