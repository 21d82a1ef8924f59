//! Watches: events into the store, from the version reached.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use kube_core::Resource;
use rand::Rng as _;
use tokio::time::Instant;

use super::classify::{self, Next, Step};
use super::{Reflector, ReflectorError};
use crate::ObjectKey;
use crate::source::{self, Malformed, WatchEvent, WatchRequest, WatchStream};
use crate::store::Delta;

/// A watch shorter than this that brought nothing new failed.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Frames that enter the store in one step, for which handlers and other writers wait.
const MAX_BATCH: usize = 1000;
/// How long after its own timeout a watch is given up.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// A watch that was answered.
pub(super) struct OpenWatch<K> {
    pub(super) stream: WatchStream<K>,
    pub(super) began: Instant,
    /// When it is given up.
    pub(super) end: Instant,
    /// It has brought the store to no new version.
    pub(super) nothing_new: bool,
    /// The version of an event is a point to resume from.
    pub(super) resumable: bool,
}

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    /// Watches from the version reached, again and again, until only a list can help; goes on
    /// with `open` first if there is one.
    pub(super) async fn watch(&mut self, mut open: Option<OpenWatch<K>>) -> (Step, ReflectorError) {
        loop {
            let outcome = match open.take() {
                Some(watch) => self.follow(watch).await,
                None => self.watch_once().await,
            };
            let (step, error) = match outcome {
                Ok(()) => continue,
                Err(failure) => failure,
            };
            let again = match classify::next(step, error.cause()) {
                Next::Watch => true,
                Next::WatchInsideWindow => self.window.admits(Instant::now()),
                Next::List | Next::ListConsistent => false,
            };
            if !again {
                return (step, error);
            }
            self.reporter.failed(&error);
            self.pause(&error).await;
        }
    }

    /// One watch until its normal end.
    async fn watch_once(&mut self) -> Result<(), (Step, ReflectorError)> {
        let version = self.state.version().to_owned();
        let watch = self
            .open(version, false)
            .await
            .map_err(|error| (Step::OpenWatch, error))?;
        self.follow(watch).await
    }

    pub(super) async fn open(
        &mut self,
        resource_version: String,
        initial_events: bool,
    ) -> Result<OpenWatch<K>, ReflectorError> {
        // From no version or from "0" the server first sends what exists, and none of that is a
        // point to resume from.
        let resumable = !matches!(resource_version.as_str(), "" | "0");
        let timeout = self.watch_timeout();
        let request = WatchRequest {
            resource_version,
            timeout,
            initial_events,
        };
        let began = Instant::now();
        let after = self.options.open_timeout;
        let stream = tokio::time::timeout(after, self.source.watch(request))
            .await
            .unwrap_or(Err(source::Error::Deadline {
                step: "watch",
                after,
            }))
            .map_err(ReflectorError::OpenWatch)?;
        self.asked_waits = 0;
        self.core
            .progress
            .stats
            .watches
            .fetch_add(1, Ordering::Relaxed);
        let end = began + timeout + WATCH_GRACE;
        Ok(OpenWatch {
            stream,
            began,
            end,
            nothing_new: true,
            resumable,
        })
    }

    async fn follow(&mut self, watch: OpenWatch<K>) -> Result<(), (Step, ReflectorError)> {
        let progress = Arc::clone(&self.core.progress);
        let (began, before) = (watch.began, progress.stats.events.load(Ordering::Relaxed));
        let outcome = self.follow_to_end(watch).await;
        let events = progress.stats.events.load(Ordering::Relaxed) - before;
        progress.meters.items_per_watch.add(events);
        progress.meters.watch_duration.add_duration(began.elapsed());
        outcome
    }

    async fn follow_to_end(
        &mut self,
        mut watch: OpenWatch<K>,
    ) -> Result<(), (Step, ReflectorError)> {
        self.reporter.watching();
        let from = self.state.version().to_owned();
        let mut heard = Instant::now();
        loop {
            let silent = self.silence_ends(heard).filter(|end| *end < watch.end);
            let next = tokio::time::timeout_at(silent.unwrap_or(watch.end), watch.stream.next());
            let batch = match next.await {
                Ok(Some(batch)) => batch,
                Err(_) if silent.is_some() => {
                    let after = self.options.max_silence;
                    let step = "an open watch";
                    let error = source::Error::Deadline { step, after };
                    return Err((Step::Watch, ReflectorError::Watch(error)));
                }
                // A peer that neither sends nor ends is given up as if it had ended the watch.
                Ok(None) | Err(_) => break,
            };
            heard = Instant::now();
            let batch = batch.map_err(|error| (Step::Watch, ReflectorError::Watch(error)))?;
            self.take_batch(batch, &mut watch.resumable)
                .map_err(|error| (Step::Watch, error))?;
            watch.nothing_new &= self.state.version() == from;
            // A full buffer of frames must not keep the thread from others.
            tokio::task::coop::consume_budget().await;
        }
        if watch.nothing_new && watch.began.elapsed() < SHORT_WATCH {
            self.core
                .progress
                .stats
                .short_watches
                .fetch_add(1, Ordering::Relaxed);
            return Err((Step::Watch, ReflectorError::ShortWatch));
        }
        Ok(())
    }

    /// When a watch that was last heard of at `heard` is given up, if its server is one that sends bookmarks.
    ///
    /// Such a server is heard of about once a minute. Silence means that nothing comes through any more, or that
    /// the server began anew: to a watch from a version that it has not reached it sends nothing at all.
    fn silence_ends(&self, heard: Instant) -> Option<Instant> {
        let bookmarked = self.state.is_bookmarked();
        bookmarked.then(|| heard.checked_add(self.options.max_silence))?
    }

    fn watch_timeout(&mut self) -> Duration {
        let min = self.options.min_watch_timeout.as_secs();
        Duration::from_secs(self.dice.random_range(min..=2 * min))
    }

    /// Applies frames that arrived together, up to the first that ends the watch.
    pub(super) fn take_batch(
        &mut self,
        batch: Vec<WatchEvent<K>>,
        resumable: &mut bool,
    ) -> Result<(), ReflectorError> {
        let mut rest = batch.into_iter();
        while rest.len() > 0 {
            self.take_together(rest.by_ref().take(MAX_BATCH), resumable)?;
        }
        Ok(())
    }

    /// Applies frames in one step.
    fn take_together(
        &mut self,
        batch: impl ExactSizeIterator<Item = WatchEvent<K>>,
        resumable: &mut bool,
    ) -> Result<(), ReflectorError> {
        let strict = *resumable;
        let mut deltas = Vec::with_capacity(batch.len());
        let mut reached: Option<String> = None;
        let mut failure = None;
        for event in batch {
            match self.take_event(event, &mut deltas, resumable) {
                Ok(version) if *resumable => reached = version.or(reached),
                Ok(_) => {}
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if !deltas.is_empty() || reached.is_some() {
            if let Some(key) = self.core.apply(deltas, reached.as_deref(), strict) {
                return Err(ReflectorError::BeganAnew { key });
            }
            if let Some(version) = &reached {
                self.state.reached(version);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Turns one frame into a step for the store; the result is the version that it carries.
    fn take_event(
        &mut self,
        event: WatchEvent<K>,
        deltas: &mut Vec<Delta<K>>,
        resumable: &mut bool,
    ) -> Result<Option<String>, ReflectorError> {
        let added = matches!(event, WatchEvent::Added(_));
        let deleted = matches!(event, WatchEvent::Deleted(_));
        let (object, wrap): (K, fn(K) -> Delta<K>) = match event {
            WatchEvent::Error(status) => {
                return Err(ReflectorError::Watch(source::Error::status(*status)));
            }
            WatchEvent::Bookmark {
                resource_version,
                initial_events_end,
            } => {
                if !initial_events_end {
                    self.state.bookmarked();
                }
                let version = Some(resource_version).filter(|version| !version.is_empty());
                // One that names no version is no point to resume from, and the objects behind it
                // may still be those that exist.
                *resumable |= version.is_some();
                return Ok(version);
            }
            WatchEvent::Malformed(malformed) => {
                return self.take_malformed(malformed, deltas);
            }
            WatchEvent::Added(object) => (object, Delta::Added),
            WatchEvent::Modified(object) => (object, Delta::Modified),
            WatchEvent::Deleted(object) => (object, Delta::Deleted),
        };
        self.core
            .progress
            .stats
            .events
            .fetch_add(1, Ordering::Relaxed);
        *resumable |= !added;
        let version = object.meta().resource_version.clone();
        match self.prepare(object)? {
            Ok(object) => {
                self.core
                    .progress
                    .unreadable
                    .remove(|| ObjectKey::try_of(&object));
                deltas.push(wrap(object));
            }
            Err(mut malformed) => {
                malformed.deleted = deleted;
                self.leave_out(malformed, deltas)?;
            }
        }
        Ok(version)
    }

    fn take_malformed(
        &mut self,
        malformed: Box<Malformed>,
        deltas: &mut Vec<Delta<K>>,
    ) -> Result<Option<String>, ReflectorError> {
        self.core
            .progress
            .stats
            .events
            .fetch_add(1, Ordering::Relaxed);
        if malformed.foreign {
            self.pass_over(malformed);
            return Ok(None);
        }
        let version = malformed.resource_version.clone();
        self.leave_out(malformed, deltas)?;
        Ok(version)
    }

    /// Leaves an object out whose state cannot be used. That it is gone counts all the same.
    fn leave_out(
        &mut self,
        malformed: Box<Malformed>,
        deltas: &mut Vec<Delta<K>>,
    ) -> Result<(), ReflectorError> {
        if malformed.deleted {
            let Some(key) = &malformed.key else {
                // Which object is gone only a list can tell.
                return Err(ReflectorError::Malformed(malformed));
            };
            deltas.push(Delta::Vanished(key.clone()));
        } else if let (Some(key), Some(uid)) = (&malformed.key, &malformed.uid) {
            let (key, uid) = (key.clone(), uid.clone());
            deltas.push(Delta::Unreadable { key, uid });
        }
        self.skip(malformed)
    }
}
