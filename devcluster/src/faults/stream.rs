//! The events of one watch on their way through the rules.

use std::{collections::VecDeque, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::{sync::watch, time::Instant};

use super::{Action, Cut, Faults, Hit, Target, WatchAction};
use crate::http::body::{Aborted, Body};

/// Chunks of a delayed watch that are held; beyond them the server is not read.
const MAX_HELD: usize = 1024;

/// Reads a watch and does to it what the rule says that has struck it.
pub(super) struct WatchEvents {
    faults: Faults,
    changed: watch::Receiver<u64>,
    target: Target,
    events: Body,
    /// The server has ended the watch.
    drained: bool,
    /// Nothing more comes through.
    ended: bool,
    hit: Option<Hit>,
    /// Rules that had their chance at this watch.
    known: u64,
    /// What came through last was the end of an event.
    between_events: bool,
    /// Bytes that came through since the rule struck.
    passed: u64,
    /// Bytes that were read and have not come through yet, with the time at which they may.
    held: VecDeque<(Instant, Bytes)>,
}

impl WatchEvents {
    pub(super) fn new(
        faults: Faults,
        events: Body,
        target: Target,
        hit: Option<Hit>,
        known: u64,
    ) -> Self {
        Self {
            changed: faults.changed.subscribe(),
            faults,
            target,
            events,
            drained: false,
            ended: false,
            hit,
            known,
            between_events: true,
            passed: 0,
            held: VecDeque::new(),
        }
    }

    /// The next bytes that come through; `None` at a clean end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Aborted> {
        while !self.ended {
            self.rebind();
            let action = match self.hit.as_ref().map(Hit::action) {
                Some(Action::Watch(action)) => Some(action.clone()),
                _ => None,
            };
            let step = match action {
                None => self.whole().await?,
                Some(WatchAction::Cut { how, after }) => self.up_to(after, how).await?,
                Some(WatchAction::CutRising(how)) => {
                    let after = self.hit.as_ref().map_or(0, |hit| hit.before);
                    self.up_to(after, how).await?
                }
                Some(WatchAction::Stall) => {
                    // A closed channel would mean that no rule can be removed any more.
                    self.changed.changed().await.map_err(|_| Aborted)?;
                    None
                }
                Some(WatchAction::Error(_)) if !self.between_events => self.rest_of_event().await?,
                Some(WatchAction::Error(failure)) => {
                    self.ended = true;
                    let event = serde_json::json!({"type": "ERROR", "object": failure.status()});
                    return Ok(Some(Bytes::from(format!("{event}\n"))));
                }
                Some(WatchAction::DropBookmarks) => self.without_bookmarks(|end| end).await?,
                Some(WatchAction::DropInitialEventsEnd) => {
                    self.without_bookmarks(|end| !end).await?
                }
                Some(WatchAction::Delay(delay)) => self.later(delay).await?,
            };
            match step {
                Some(Some(chunk)) => {
                    self.between_events = chunk.ends_with(b"\n");
                    return Ok(Some(chunk));
                }
                Some(None) => self.ended = true,
                None => {}
            }
        }
        Ok(None)
    }

    /// Lets go of a rule that was removed and takes one that was added.
    fn rebind(&mut self) {
        self.changed.mark_unchanged();
        if self.hit.as_ref().is_some_and(|hit| !self.faults.holds(hit)) {
            self.hit = None;
        }
        if self.hit.is_none() {
            self.hit = self.faults.strike_open(&self.target, &mut self.known);
            self.passed = 0;
        }
    }

    /// The server's next chunk (`Some(None)`: it ended the watch), or `None` when the rules changed before.
    async fn read(&mut self) -> Result<Option<Option<Bytes>>, Aborted> {
        while !self.drained {
            let frame = tokio::select! {
                biased;
                _ = self.changed.changed() => return Ok(None),
                frame = self.events.frame() => frame,
            };
            match frame.transpose()?.map(http_body::Frame::into_data) {
                None => self.drained = true,
                Some(Ok(chunk)) => return Ok(Some(Some(chunk))),
                // Trailers say nothing here.
                Some(Err(_)) => {}
            }
        }
        Ok(Some(None))
    }

    /// What earlier rules left, then chunks as they come.
    async fn whole(&mut self) -> Result<Option<Option<Bytes>>, Aborted> {
        if let Some((_, chunk)) = self.held.pop_front() {
            return Ok(Some(Some(chunk)));
        }
        self.read().await
    }

    /// Keeps bytes for later that were read too early.
    fn put_back(&mut self, rest: Bytes) {
        if !rest.is_empty() {
            self.held.push_front((Instant::now(), rest));
        }
    }

    /// What comes before the next event.
    async fn rest_of_event(&mut self) -> Result<Option<Option<Bytes>>, Aborted> {
        let mut chunk = match self.whole().await? {
            Some(Some(chunk)) => chunk,
            other => return Ok(other),
        };
        if let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let rest = chunk.split_off(end + 1);
            self.put_back(rest);
        }
        Ok(Some(Some(chunk)))
    }

    async fn up_to(&mut self, after: u64, how: Cut) -> Result<Option<Option<Bytes>>, Aborted> {
        let rest = usize::try_from(after.saturating_sub(self.passed)).unwrap_or(usize::MAX);
        if rest == 0 {
            if how == Cut::Clean {
                return Ok(Some(None));
            }
            // What came before is sent before the connection breaks.
            tokio::task::yield_now().await;
            return Err(Aborted);
        }
        let mut chunk = match self.whole().await? {
            Some(Some(chunk)) => chunk,
            other => return Ok(other),
        };
        let through = chunk.split_to(rest.min(chunk.len()));
        // For the case that the rule is removed before the cut.
        self.put_back(chunk);
        self.passed += through.len() as u64;
        Ok(Some(Some(through)))
    }

    async fn without_bookmarks(
        &mut self,
        keep: impl Fn(bool) -> bool,
    ) -> Result<Option<Option<Bytes>>, Aborted> {
        let mut kept = BytesMut::new();
        let mut lines = BytesMut::new();
        loop {
            while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
                let line = lines.split_to(end + 1);
                if bookmark(&line).is_none_or(&keep) {
                    kept.extend_from_slice(&line);
                }
            }
            if !kept.is_empty() {
                self.put_back(lines.freeze());
                return Ok(Some(Some(kept.freeze())));
            }
            match self.whole().await? {
                Some(Some(chunk)) => lines.extend_from_slice(&chunk),
                other => {
                    self.put_back(lines.freeze());
                    return Ok(other);
                }
            }
        }
    }

    async fn later(&mut self, delay: Duration) -> Result<Option<Option<Bytes>>, Aborted> {
        loop {
            let due = self.held.front().map(|(due, _)| *due);
            let front = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            if due.is_none() && self.drained {
                return Ok(Some(None));
            }
            let may_read = !self.drained && self.held.len() < MAX_HELD;
            tokio::select! {
                biased;
                () = front => {
                    let chunk = self.held.pop_front().map(|(_, chunk)| chunk);
                    return Ok(Some(chunk));
                }
                read = self.read(), if may_read => match read? {
                    Some(Some(chunk)) => self.held.push_back((Instant::now() + delay, chunk)),
                    Some(None) => {}
                    None => return Ok(None),
                },
            }
        }
    }
}

/// Whether a line is a bookmark, and if so whether it ends the initial state.
fn bookmark(line: &[u8]) -> Option<bool> {
    #[derive(serde::Deserialize)]
    struct Event<'a> {
        r#type: &'a str,
        #[serde(borrow)]
        object: &'a serde_json::value::RawValue,
    }
    let event: Event<'_> = serde_json::from_slice(line).ok()?;
    (event.r#type == "BOOKMARK").then(|| event.object.get().contains("k8s.io/initial-events-end"))
}
