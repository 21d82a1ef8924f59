//! What the workers do now and did before, key by key: for eyes, never for decisions.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use informer::ObjectKey;
use lru::LruCache;
use tokio::time::Instant;

use crate::enqueue::LOW_PRIORITY;
use crate::failure::Failure;
use crate::reconcile::Action;
use crate::redact::redact;

/// Runs of one key that are kept.
pub const RUNS_KEPT: usize = 8;

/// Longest text of an error that is kept, in bytes.
const ERROR_KEPT: usize = 256;

/// Why a key was reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trigger {
    /// An event, or a call of [`ControllerHandle::trigger`](crate::ControllerHandle::trigger);
    /// maybe before the wait was over that the run before had asked for.
    Change,
    /// An object of the initial list, or a resync.
    OldNews,
    /// The backoff after a failure or a requeue was over.
    Backoff,
    /// The time of a [`RequeueAfter`](Action::RequeueAfter) had come.
    Requested,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// [`Action::Done`]
    Done,
    /// [`Action::Requeue`]
    Requeue,
    /// [`Action::RequeueAfter`]
    RequeueAfter(Duration),
    /// An error that is retried; at most 256 bytes of its text, without the values it quotes.
    Error(Box<str>),
    /// An error that is not retried; at most 256 bytes of its text, without the values it quotes.
    Terminal(Box<str>),
}

impl Outcome {
    fn of(result: &Result<Action, Failure>) -> Self {
        match result {
            Ok(Action::Done) => Self::Done,
            Ok(
                Action::RequeueAfter(after)
                | Action::RequeueAt {
                    after: Some(after), ..
                },
            ) => Self::RequeueAfter(*after),
            Ok(Action::Requeue | Action::RequeueAt { after: None, .. }) => Self::Requeue,
            Err(error) if error.is_terminal() => Self::Terminal(excerpt(&error.text)),
            Err(error) => Self::Error(excerpt(&error.text)),
        }
    }

    fn is_failure(&self) -> bool {
        matches!(self, Self::Error(_) | Self::Terminal(_))
    }
}

/// What is kept and shown of an error's text: its beginning, without the values it quotes, since more
/// people may read a journal than the objects.
pub(crate) fn excerpt(text: &str) -> Box<str> {
    let mut text = redact(text);
    text.truncate(text.floor_char_boundary(ERROR_KEPT));
    text.into()
}

/// One run of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastRun {
    /// When it began.
    pub began: Instant,
    /// How long it took.
    pub took: Duration,
    /// Why it took place. Triggers that met in the queue count as one: what the run before had asked for
    /// if that was due by then, and otherwise whatever came earlier. An event that arrived while the key
    /// waited for a worker, after that moment, is not told apart.
    pub trigger: Trigger,
    /// 1 for the first run, one more for each since the last success.
    pub attempt: u32,
    /// Priority the key was handed out with.
    pub priority: i32,
    /// How it ended.
    pub outcome: Outcome,
}

/// The last runs of a key, and when it comes again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyHistory {
    /// The key.
    pub key: ObjectKey,
    /// Its last runs, at most [`RUNS_KEPT`], the newest last.
    pub runs: Vec<PastRun>,
    /// When the last run asked to come again; an event makes it earlier. `None` if it did not ask.
    pub next_due: Option<Instant>,
}

/// A run that takes longer than it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("controller {controller}: the reconcile of {key} runs for {age:?}, longer than {limit:?}")]
pub struct StuckRun {
    /// Name of the controller.
    pub controller: Box<str>,
    /// The key.
    pub key: ObjectKey,
    /// How long it has run.
    pub age: Duration,
    /// How long it may.
    pub limit: Duration,
}

/// What a run asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) due: Instant,
    pub(crate) trigger: Trigger,
}

/// What a worker says of a run that has ended.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
    pub(crate) attempt: u32,
    pub(crate) priority: i32,
    pub(crate) result: &'a Result<Action, Failure>,
    pub(crate) next: Option<Next>,
}

#[derive(Debug, Default)]
struct Past {
    runs: VecDeque<PastRun>,
    next: Option<Next>,
    /// Place of the last run among those of all keys.
    turn: u64,
}

/// The past of a bounded number of keys. Those that fail are what one looks for, so they are the
/// last to go.
#[derive(Debug)]
struct Pasts {
    most: NonZeroUsize,
    turns: u64,
    /// Keys whose last run failed.
    failing: LruCache<ObjectKey, Past>,
    /// All others.
    calm: LruCache<ObjectKey, Past>,
    /// The memory of the entry that was given up last, for the next one.
    spare: VecDeque<PastRun>,
}

impl Pasts {
    fn new(most: NonZeroUsize) -> Self {
        Self {
            most,
            turns: 0,
            failing: LruCache::unbounded(),
            calm: LruCache::unbounded(),
            spare: VecDeque::new(),
        }
    }

    fn get(&self, key: &ObjectKey) -> Option<&Past> {
        self.failing.peek(key).or_else(|| self.calm.peek(key))
    }

    /// Changes the past of the key that ran last, which failed or not, and gives up what there is no
    /// room for. Most keys go on as before, and so does their entry.
    fn note(&mut self, key: &ObjectKey, failed: bool, change: impl FnOnce(&mut Past)) {
        self.turns += 1;
        let turn = self.turns;
        let (same, other) = if failed {
            (&mut self.failing, &mut self.calm)
        } else {
            (&mut self.calm, &mut self.failing)
        };
        if let Some(past) = same.get_mut(key) {
            past.turn = turn;
            change(past);
            return;
        }
        let before = if other.is_empty() {
            None
        } else {
            other.pop(key)
        };
        let mut past = before.unwrap_or_else(|| Past {
            runs: std::mem::take(&mut self.spare),
            ..Past::default()
        });
        past.turn = turn;
        change(&mut past);
        same.put(key.clone(), past);
        if self.failing.len() + self.calm.len() > self.most.get() {
            let oldest = self.calm.pop_lru().or_else(|| self.failing.pop_lru());
            if let Some((_, mut past)) = oldest {
                past.runs.clear();
                self.spare = past.runs;
            }
        }
    }

    /// The key that ran last first.
    fn all(&self) -> Vec<KeyHistory> {
        let mut all: Vec<_> = self.failing.iter().chain(&self.calm).collect();
        all.sort_unstable_by_key(|(_, past)| std::cmp::Reverse(past.turn));
        all.into_iter()
            .map(|(key, past)| history(key, past))
            .collect()
    }
}

/// A place for each worker, and the past of the keys that ran last.
pub(crate) struct Journal {
    desks: Box<[Desk]>,
    past: Option<Mutex<Pasts>>,
}

type Desk = Mutex<Option<(ObjectKey, Instant)>>;

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("workers", &self.desks.len())
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// For this number of workers, with the past of at most `keys` keys.
    pub(crate) fn new(workers: usize, keys: usize) -> Arc<Self> {
        let past = NonZeroUsize::new(keys).map(|keys| Mutex::new(Pasts::new(keys)));
        Arc::new(Self {
            desks: (0..workers).map(|_| Mutex::new(None)).collect(),
            past,
        })
    }

    /// Notes a run on a worker's desk until the guard is dropped, also by panic or abort.
    pub(crate) fn begin(&self, worker: usize, key: &ObjectKey, now: Instant) -> AtDesk<'_> {
        let desk = &self.desks[worker];
        *lock(desk) = Some((key.clone(), now));
        AtDesk(desk)
    }

    pub(crate) fn end(&self, run: &Ended<'_>) {
        let Some(past) = &self.past else { return };
        // The text of an error is shortened before the lock is taken.
        let outcome = Outcome::of(run.result);
        let failed = outcome.is_failure();
        lock(past).note(run.key, failed, |past| {
            if past.runs.len() == RUNS_KEPT {
                past.runs.pop_front();
            }
            past.runs.push_back(PastRun {
                began: run.began,
                took: run.took,
                trigger: trigger(past.next, run.began, run.priority),
                attempt: run.attempt,
                priority: run.priority,
                outcome,
            });
            past.next = run.next;
        });
    }

    /// Keys under way with the time they have taken, the oldest first.
    pub(crate) fn running(&self) -> Vec<(ObjectKey, Duration)> {
        let now = Instant::now();
        let mut running: Vec<_> = self
            .desks
            .iter()
            .filter_map(|desk| lock(desk).clone())
            .map(|(key, began)| (key, now.saturating_duration_since(began)))
            .collect();
        running.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        running
    }

    pub(crate) fn of(&self, key: &ObjectKey) -> Option<KeyHistory> {
        let past = lock(self.past.as_ref()?);
        past.get(key).map(|past| history(key, past))
    }

    /// All that is kept, the key that ran last first.
    pub(crate) fn all(&self) -> Vec<KeyHistory> {
        match &self.past {
            Some(past) => lock(past).all(),
            None => Vec::new(),
        }
    }
}

/// Takes a run off its worker's desk when dropped.
#[derive(Debug)]
pub(crate) struct AtDesk<'a>(&'a Desk);

impl Drop for AtDesk<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

/// Why a run began, if the one before had asked for `next`.
fn trigger(next: Option<Next>, began: Instant, priority: i32) -> Trigger {
    match next {
        Some(next) if next.due <= began => next.trigger,
        _ if priority <= LOW_PRIORITY => Trigger::OldNews,
        _ => Trigger::Change,
    }
}

fn history(key: &ObjectKey, past: &Past) -> KeyHistory {
    KeyHistory {
        key: key.clone(),
        runs: past.runs.iter().cloned().collect(),
        next_due: past.next.map(|next| next.due),
    }
}

/// Every change under these locks is whole, so a panic elsewhere leaves them usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::ReconcileError;

    const MS: Duration = Duration::from_millis(1);

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("ns", name)
    }

    fn ended<'a>(
        key: &'a ObjectKey,
        began: Instant,
        result: &'a Result<Action, Failure>,
    ) -> Ended<'a> {
        Ended {
            key,
            began,
            took: MS,
            attempt: 1,
            priority: 0,
            result,
            next: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c12_the_last_8_runs_of_the_last_keys_are_kept() {
        let journal = Journal::new(1, 2);
        let start = Instant::now();
        let done = Ok(Action::Done);
        for n in 0..20 {
            journal.end(&ended(&key("a"), start + n * MS, &done));
        }
        let runs = journal.of(&key("a")).unwrap().runs;
        assert_eq!(runs.len(), 8);
        assert_eq!(runs[0].began, start + 12 * MS, "the oldest went");
        journal.end(&ended(&key("b"), start, &done));
        journal.end(&ended(&key("a"), start, &done));
        journal.end(&ended(&key("c"), start, &done));
        let keys: Vec<_> = journal.all().into_iter().map(|past| past.key).collect();
        assert_eq!(keys, [key("c"), key("a")], "b ran longest ago");
        assert_eq!(Journal::new(1, 0).all(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn c12_keys_whose_last_run_failed_are_the_last_to_go() {
        /// Names, and whether each run succeeds.
        type Runs = [(&'static str, bool)];
        let done = Ok(Action::Done);
        let failed = Err(ReconcileError::retry("no").into());
        let terminal = Err(ReconcileError::terminal("never").into());
        let cases: [(&Runs, &[&str]); 5] = [
            (&[("a", false), ("b", true), ("c", true)], &["c", "a"]),
            (&[("a", false), ("b", false), ("c", true)], &["b", "a"]),
            (&[("a", false), ("b", false), ("c", false)], &["c", "b"]),
            (
                &[("a", false), ("a", true), ("b", true), ("c", true)],
                &["c", "b"],
            ),
            (
                &[("a", true), ("a", false), ("b", true), ("c", true)],
                &["c", "a"],
            ),
        ];
        for error in [&failed, &terminal] {
            for (runs, kept) in cases {
                let journal = Journal::new(1, 2);
                for (name, succeeds) in runs {
                    let result = if *succeeds { &done } else { error };
                    journal.end(&ended(&key(name), Instant::now(), result));
                }
                let keys: Vec<_> = journal.all().into_iter().map(|past| past.key).collect();
                let kept: Vec<_> = kept.iter().map(|name| key(name)).collect();
                assert_eq!(keys, kept, "{runs:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c12_a_run_knows_why_it_took_place() {
        let now = Instant::now();
        let next = |due, trigger| Some(Next { due, trigger });
        let cases = [
            (None, 0, Trigger::Change),
            (None, LOW_PRIORITY, Trigger::OldNews),
            (next(now, Trigger::Backoff), 0, Trigger::Backoff),
            (
                next(now, Trigger::Requested),
                LOW_PRIORITY,
                Trigger::Requested,
            ),
            (next(now + MS, Trigger::Backoff), 0, Trigger::Change),
        ];
        for (next, priority, expected) in cases {
            assert_eq!(trigger(next, now, priority), expected, "{next:?}");
        }
    }

    #[test]
    fn c12_an_error_is_kept_by_the_beginning_of_its_text() {
        let long = "ä".repeat(500);
        let Outcome::Error(text) = Outcome::of(&Err(ReconcileError::retry(long).into())) else {
            panic!("an error is an error")
        };
        assert_eq!(text.len(), 256);
        let terminal = Outcome::of(&Err(ReconcileError::terminal("no \"hunter2\"").into()));
        assert_eq!(terminal, Outcome::Terminal("no \"…\"".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn c11_a_run_is_on_its_desk_until_its_guard_is_gone() {
        let journal = Journal::new(2, 0);
        let first = journal.begin(1, &key("a"), Instant::now());
        tokio::time::advance(5 * MS).await;
        let second = journal.begin(0, &key("b"), Instant::now());
        tokio::time::advance(MS).await;
        assert_eq!(journal.running(), [(key("a"), 6 * MS), (key("b"), MS)]);
        drop(first);
        assert_eq!(journal.running(), [(key("b"), MS)]);
        drop(second);
        assert!(journal.running().is_empty());
    }
}
