//! Streamed lists: the initial state as the first events of a watch, which then goes on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use kube_core::Resource;
use tokio::time::Instant;

use super::classify::Step;
use super::watch::OpenWatch;
use super::{Reflector, ReflectorError};
use crate::source::{self, WatchEvent};
use crate::store::BuildUp;
use crate::{Cause, ObjectKey};

/// How long a server that refused to stream is not asked again.
const REFUSAL_HOLDS: Duration = Duration::from_secs(600);
/// Streams that may end too early before an ordinary list is made.
const MAX_EARLY_ENDS: u32 = 3;
/// Time without any object after which an ordinary list is made.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// How often a missing end is told.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// What is known of a server's streams.
#[derive(Debug, Default)]
pub(super) struct StreamMemory {
    refused_at: Option<Instant>,
    early_ends: u32,
    warned: bool,
}

impl StreamMemory {
    fn is_refused(&self, now: Instant) -> bool {
        self.refused_at
            .is_some_and(|at| now.duration_since(at) < REFUSAL_HOLDS)
    }
}

/// Outcome of a round that tried to stream.
pub(super) enum Filled<K> {
    /// The store is filled, and the same watch goes on.
    Open(OpenWatch<K>),
    /// An ordinary list is due.
    No,
}

/// Why a stream did not fill the store.
#[derive(Debug)]
enum Unfilled {
    /// It was open, and ended or broke.
    EarlyEnd(ReflectorError),
    /// It was open, and brought nothing for too long.
    Silence(ReflectorError),
    /// It was refused, by its answer or by what it brought.
    Failed(ReflectorError),
}

impl Unfilled {
    /// An open stream failed with `error`.
    fn broken(error: source::Error) -> Self {
        let error = ReflectorError::Watch(error);
        match error.cause() {
            Cause::Transport | Cause::Refused => Self::EarlyEnd(error),
            _ => Self::Failed(error),
        }
    }
}

/// What follows a failed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Stream the newest state, at once.
    StreamConsistent,
    /// Wait, then stream again.
    Stream,
    /// List in this round.
    List,
    /// List, and do not try to stream for a while.
    ListForLong,
}

/// What follows a stream that was refused for `cause`; `consistent` if it asked for the newest state.
fn after(cause: Cause, consistent: bool) -> After {
    match cause {
        Cause::Throttled | Cause::Refused => After::Stream,
        Cause::Expired | Cause::VersionTooLarge if !consistent => After::StreamConsistent,
        Cause::Invalid => After::ListForLong,
        _ => After::List,
    }
}

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    /// Fills the store by a stream if the server can.
    ///
    /// Every try builds a state of its own. A failure that the caller has to wait for comes back
    /// as an error.
    pub(super) async fn stream(&mut self) -> Result<Filled<K>, (Step, ReflectorError)> {
        if !self.options.watch_list || !self.source.supports_watch_list() {
            return Ok(Filled::No);
        }
        loop {
            if self.streams.is_refused(Instant::now()) {
                return Ok(Filled::No);
            }
            let version = self.state.stream_version();
            let consistent = version.is_empty();
            let error = match self.stream_once(version).await {
                Ok(watch) => {
                    self.streams.early_ends = 0;
                    return Ok(Filled::Open(watch));
                }
                Err(Unfilled::EarlyEnd(error)) => {
                    self.streams.early_ends += 1;
                    if self.streams.early_ends < MAX_EARLY_ENDS {
                        return Err((Step::Watch, error));
                    }
                    let why = "streams ended before their initial state was complete";
                    self.give_up(why, &error);
                    return Ok(Filled::No);
                }
                Err(Unfilled::Silence(error)) => {
                    let why = "a stream went silent before its initial state was complete";
                    self.give_up(why, &error);
                    return Ok(Filled::No);
                }
                Err(Unfilled::Failed(error)) => error,
            };
            match after(error.cause(), consistent) {
                After::StreamConsistent => {
                    self.reporter.failed(&error);
                    self.state.version_refused();
                }
                After::Stream => return Err((Step::OpenWatch, error)),
                After::List => {
                    self.reporter.failed(&error);
                    // The list is due in this round, and no sooner than the server asks for.
                    if error.retry_after().is_some() {
                        self.pause(&error).await;
                    }
                    return Ok(Filled::No);
                }
                After::ListForLong => {
                    self.reporter.failed(&error);
                    self.streams.refused_at = Some(Instant::now());
                    return Ok(Filled::No);
                }
            }
        }
    }

    fn give_up(&mut self, why: &'static str, error: &ReflectorError) {
        self.reporter.failed(error);
        self.streams.refused_at = Some(Instant::now());
        self.streams.early_ends = 0;
        if !std::mem::replace(&mut self.streams.warned, true) {
            tracing::warn!(
                informer = self.core.progress.name(),
                why,
                "listing instead of streaming"
            );
        }
    }

    async fn stream_once(&mut self, version: String) -> Result<OpenWatch<K>, Unfilled> {
        let mut watch = self.open(version, true).await.map_err(Unfilled::Failed)?;
        self.core
            .progress
            .stats
            .lists
            .fetch_add(1, Ordering::Relaxed);
        let mut built = self.begin();
        let mut last_progress = Instant::now();
        let mut next_warning = watch.began + WARN_INTERVAL;
        loop {
            let wait = tokio::time::timeout_at(
                next_warning.min(last_progress + MAX_SILENCE),
                watch.stream.next(),
            );
            let Ok(arrived) = wait.await else {
                let now = Instant::now();
                if now >= last_progress + MAX_SILENCE {
                    let silence = source::Error::Deadline {
                        step: "a streamed list",
                        after: MAX_SILENCE,
                    };
                    return Err(Unfilled::Silence(ReflectorError::Watch(silence)));
                }
                next_warning = now + WARN_INTERVAL;
                self.core
                    .progress
                    .stats
                    .late_bookmarks
                    .fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    informer = self.core.progress.name(),
                    seconds = watch.began.elapsed().as_secs(),
                    "the initial state is not complete yet"
                );
                continue;
            };
            let batch = match arrived {
                None => {
                    let ended = "a streamed list ended before its state was complete";
                    let ended = source::Error::Answer(ended.to_owned());
                    return Err(Unfilled::EarlyEnd(ReflectorError::List(ended)));
                }
                Some(Err(error)) => return Err(Unfilled::broken(error)),
                Some(Ok(batch)) => batch,
            };
            // A server that does not know streamed lists sends bookmarks for ever, and no end.
            if !batch
                .iter()
                .all(|event| matches!(event, WatchEvent::Bookmark { .. }))
            {
                last_progress = Instant::now();
            }
            let mut rest = batch.into_iter();
            while let Some(event) = rest.next() {
                let end = self
                    .take_initial(event, &mut built)
                    .map_err(Unfilled::Failed)?;
                let Some(version) = end else { continue };
                self.finish(&built, &version, watch.began);
                if self.options.check_streams {
                    self.check_stream(&version).await;
                }
                self.state.streamed(&version);
                watch.nothing_new = false;
                watch.resumable = true;
                let rest: Vec<_> = rest.collect();
                if !rest.is_empty() {
                    // Nothing of this watch was applied that a failure here could tear apart.
                    let resumable = &mut watch.resumable;
                    self.take_batch(rest, resumable).map_err(Unfilled::Failed)?;
                }
                return Ok(watch);
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Takes an event of the initial state; the version of its end, once that comes.
    fn take_initial(
        &mut self,
        event: WatchEvent<K>,
        built: &mut BuildUp<K>,
    ) -> Result<Option<String>, ReflectorError> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.take_listed(Ok(object), built)?;
            }
            WatchEvent::Deleted(object) => {
                if let Some(key) = ObjectKey::try_of(&object) {
                    built.remove(&key);
                    self.listed_unreadable.remove(&key);
                }
            }
            WatchEvent::Malformed(malformed) if malformed.foreign && malformed.deleted => {
                self.pass_over(malformed);
            }
            WatchEvent::Malformed(malformed) if malformed.deleted => {
                let Some(key) = &malformed.key else {
                    return Err(ReflectorError::Malformed(malformed));
                };
                built.remove(key);
                self.skip(malformed)?;
            }
            WatchEvent::Malformed(malformed) => self.take_listed(Err(malformed), built)?,
            WatchEvent::Bookmark {
                resource_version,
                initial_events_end: true,
            } if !resource_version.is_empty() => {
                return Ok(Some(resource_version));
            }
            WatchEvent::Bookmark { .. } => {}
            WatchEvent::Error(status) => {
                return Err(ReflectorError::Watch(source::Error::status(*status)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i23_a_refused_stream_is_followed_by_class() {
        let cases = [
            (Cause::Throttled, false, After::Stream),
            (Cause::Refused, true, After::Stream),
            (Cause::Expired, false, After::StreamConsistent),
            (Cause::VersionTooLarge, false, After::StreamConsistent),
            (Cause::Expired, true, After::List),
            (Cause::Invalid, false, After::ListForLong),
            (Cause::Forbidden, false, After::List),
            (Cause::Internal, true, After::List),
            (Cause::Transport, false, After::List),
        ];
        for (cause, consistent, want) in cases {
            assert_eq!(after(cause, consistent), want, "{cause} {consistent}");
        }
    }

    #[test]
    fn i24_a_stream_that_breaks_has_ended_early_and_one_that_says_why_was_refused() {
        let status = |code, reason: &str| {
            let status = kube_core::Status::failure("", reason).with_code(code);
            source::Error::status(status)
        };
        let lost = || Box::new(kube_client::Error::TlsRequired);
        let cases = [
            (source::Error::Transport(lost()), true),
            (source::Error::Refused(lost()), true),
            (status(500, "InternalError"), false),
            (status(410, "Expired"), false),
            (source::Error::Answer("no event".to_owned()), false),
        ];
        for (error, early) in cases {
            let shown = error.to_string();
            let unfilled = Unfilled::broken(error);
            assert_eq!(matches!(unfilled, Unfilled::EarlyEnd(_)), early, "{shown}");
        }
    }
}
