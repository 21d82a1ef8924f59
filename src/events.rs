//! what happened to a Proxy, in Events, as `kubectl describe` shows them.
//!
//! [`Events::tell`] is cheap and never waits: what passes two limits goes to the framework's
//! recorder, whose one writer brings it to the API server. The limits:
//!
//! - one Event for each reason and object in 10 minutes, so that a machine that gets lost every few
//!   seconds does not drown what else happened; where a second object took part, for each pair;
//! - a rate for the whole process, so that a large fleet that changes at once does not spend the
//!   API server's time on telling about it. What exceeds it is dropped and counted: the conditions
//!   of each Proxy have the same news.
//!
//! A note quotes names, ids and the texts of conditions, never a value of a Secret.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller::events::{EventRecorder, EventType, Notice};
use governor::{DefaultDirectRateLimiter, Quota};
use k8s_openapi::api::core::v1::ObjectReference;
use lru::LruCache;
use tokio::time::Instant;

/// Name under which the operator reports Events.
pub(crate) const REPORTER: &str = "crawl.proxyoperator.dev/proxy-operator";

/// Least time between two Events of one reason about one object.
const PAUSE: Duration = Duration::from_secs(10 * 60);

/// Events of one type that a process tells per second in the long run.
const PER_SECOND: NonZeroU32 = NonZeroU32::new(25).expect("not zero");

/// Events of one type that it tells at once after a calm.
const BURST: NonZeroU32 = NonZeroU32::new(500).expect("not zero");

/// No more Events than these pass the rate in [`PAUSE`], so none is forgotten too early.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(2 * (25 * 600 + 500)).expect("not zero");

macro_rules! words {
    ($($(#[doc = $doc:literal])+ $word:ident: $kind:ident, $action:literal;)+) => {
        /// The reason of an Event; its type and the action that it tells of follow from it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Word {
            $($(#[doc = $doc])+ $word,)+
        }

        impl Word {
            /// All of them, in the order of their declaration.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$word,)+];

            /// The reason as the API spells it.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)+
                }
            }

            const fn kind(self) -> EventType {
                match self {
                    $(Self::$word => EventType::$kind,)+
                }
            }

            const fn action(self) -> &'static str {
                match self {
                    $(Self::$word => $action,)+
                }
            }
        }
    };
}

words! {
    /// An instance was asked for.
    InstanceCreating: Normal, "Create";
    /// The instance runs and has an address.
    InstanceRunning: Normal, "Observe";
    /// An instance that was there already is this Proxy's.
    InstanceAdopted: Normal, "Adopt";
    /// The instance makes way for another; the note names the cause.
    InstanceReplacing: Normal, "Replace";
    /// An instance that the operator deleted is gone.
    InstanceDeleted: Normal, "Delete";
    /// The Proxy turned from Managed to External or back.
    ModeSwitched: Normal, "SwitchMode";
    /// The provider has no quota left.
    QuotaExceeded: Warning, "Create";
    /// The provider has no machine left.
    CapacityExhausted: Warning, "Create";
    /// The Proxy's own inputs are refused for good.
    PermanentError: Warning, "Create";
    /// A machine of somebody else has the instance's name.
    NameCollision: Warning, "Create";
    /// The provider that the Proxy names is not configured.
    ProviderNotConfigured: Warning, "Create";
    /// The user data cannot be read.
    CloudInitError: Warning, "ReadSecret";
    /// The credentials cannot be read.
    AuthSecretError: Warning, "ReadSecret";
    /// The provider fails for a cause outside of the Proxy.
    ProviderError: Warning, "CallProvider";
    /// The instance is gone although nobody asked for that.
    InstanceLost: Warning, "Observe";
    /// The instance stopped by itself.
    InstanceStopped: Warning, "Observe";
    /// A replacement is due and may not begin.
    ReplacementBlocked: Warning, "Replace";
    /// The instance cannot be deleted.
    DeletionBlocked: Warning, "Delete";
    /// The Proxy went and its instance was let go.
    InstanceAbandoned: Warning, "Delete";
    /// An instance without a Proxy was found.
    OrphanFound: Warning, "CollectOrphans";
    /// Its provider was asked to delete an instance without a Proxy.
    OrphanDeleted: Warning, "CollectOrphans";
    /// A guard keeps all instances without a Proxy.
    OrphansKept: Warning, "CollectOrphans";
}

/// What an Event is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The object whose Event it is.
    pub(crate) about: &'a ObjectReference,
    /// A second object that took part, if there is one: what is told of one is not told of another.
    pub(crate) related: Option<&'a ObjectReference>,
}

impl<'a> From<&'a ObjectReference> for Subject<'a> {
    fn from(about: &'a ObjectReference) -> Self {
        Self {
            about,
            related: None,
        }
    }
}

/// Where Events go after both limits.
type Outlet = Box<dyn Fn(Subject<'_>, Word, &str) + Send + Sync>;

/// Tells Events, within its limits.
pub(crate) struct Events {
    outlet: Outlet,
    /// When a subject was last told about for that reason.
    told: Mutex<LruCache<(String, Word), Instant>>,
    normal: DefaultDirectRateLimiter,
    warning: DefaultDirectRateLimiter,
    dropped: AtomicU64,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events")
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// Tells through this recorder.
    pub(crate) fn new(recorder: EventRecorder) -> Self {
        Self::through(Box::new(move |subject: Subject<'_>, word, note| {
            let notice = match word.kind() {
                EventType::Normal => Notice::normal(word.as_str(), word.action(), note),
                EventType::Warning => Notice::warning(word.as_str(), word.action(), note),
            };
            let notice = match subject.related {
                Some(related) => notice.related_to(related.clone()),
                None => notice,
            };
            recorder.record_about(subject.about, notice);
        }))
    }

    /// Tells through a function, such as a test's.
    pub(crate) fn through(outlet: Outlet) -> Self {
        let limiter =
            || DefaultDirectRateLimiter::direct(Quota::per_second(PER_SECOND).allow_burst(BURST));
        Self {
            outlet,
            told: Mutex::new(LruCache::new(REMEMBERED)),
            normal: limiter(),
            warning: limiter(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Tells of `subject` that `word` happened, unless the same was told in the last 10 minutes.
    pub(crate) fn tell<'a>(&self, subject: impl Into<Subject<'a>>, word: Word, note: &str) {
        self.tell_inner(subject.into(), word, note);
    }

    fn tell_inner(&self, subject: Subject<'_>, word: Word, note: &str) {
        let now = Instant::now();
        let key = (subject.identity(), word);
        let is_told = self
            .told()
            .peek(&key)
            .is_some_and(|at| now.duration_since(*at) < PAUSE);
        if is_told {
            return;
        }
        let limiter = match word.kind() {
            EventType::Normal => &self.normal,
            EventType::Warning => &self.warning,
        };
        if limiter.check().is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.told().put(key, now);
        (self.outlet)(subject, word, note);
    }

    /// Events that exceeded the rate, since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn told(&self) -> MutexGuard<'_, LruCache<(String, Word), Instant>> {
        // Each change is one call: a panic in between leaves nothing half done.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subject<'_> {
    fn identity(self) -> String {
        match self.related {
            // UIDs of what is no object of the API server are unique below a name alone.
            Some(related) => {
                let name = related.name.as_deref().unwrap_or_default();
                format!("{}\0{}\0{name}", identity(self.about), identity(related))
            }
            None => identity(self.about),
        }
    }
}

/// One name for each object: its UID, or where it lies if that is unknown.
fn identity(about: &ObjectReference) -> String {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    about.uid.clone().unwrap_or_else(|| {
        format!(
            "{}/{}/{}",
            text(&about.kind),
            text(&about.namespace),
            text(&about.name)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn about(uid: &str) -> ObjectReference {
        ObjectReference {
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    fn recorded() -> (Events, Arc<Mutex<Vec<String>>>) {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let events = Events::through(Box::new({
            let seen = Arc::clone(&seen);
            move |subject: Subject<'_>, word, note| {
                let line = format!("{} {} {note}", identity(subject.about), word.as_str());
                seen.lock().expect("not poisoned").push(line);
            }
        }));
        (events, seen)
    }

    #[tokio::test(start_paused = true)]
    async fn r13_one_reason_is_told_of_one_object_once_in_ten_minutes() {
        let (events, seen) = recorded();
        events.tell(&about("a"), Word::InstanceLost, "first");
        tokio::time::advance(Duration::from_secs(599)).await;
        events.tell(&about("a"), Word::InstanceLost, "too early");
        events.tell(&about("a"), Word::InstanceStopped, "another reason");
        events.tell(&about("b"), Word::InstanceLost, "another object");
        tokio::time::advance(Duration::from_secs(1)).await;
        events.tell(&about("a"), Word::InstanceLost, "again");
        assert_eq!(
            *seen.lock().expect("not poisoned"),
            [
                "a InstanceLost first",
                "a InstanceStopped another reason",
                "b InstanceLost another object",
                "a InstanceLost again",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn r13_what_is_told_of_one_related_object_is_not_told_of_another() {
        let (events, seen) = recorded();
        let home = about("home");
        for (related, note) in [("x", "first"), ("y", "second"), ("x", "again")] {
            let related = about(related);
            let subject = Subject {
                about: &home,
                related: Some(&related),
            };
            events.tell(subject, Word::OrphanFound, note);
        }
        assert_eq!(
            *seen.lock().expect("not poisoned"),
            ["home OrphanFound first", "home OrphanFound second"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_that_changes_at_once_is_told_of_up_to_the_rate_and_the_rest_is_counted() {
        let (events, seen) = recorded();
        for n in 0..2000 {
            events.tell(&about(&n.to_string()), Word::InstanceCreating, "");
        }
        let told = seen.lock().expect("not poisoned").len();
        assert!((500..1000).contains(&told), "{told}");
        assert_eq!(events.dropped(), 2000 - told as u64);
        events.tell(
            &about("a"),
            Word::InstanceLost,
            "trouble has a rate of its own",
        );
        assert_eq!(seen.lock().expect("not poisoned").len(), told + 1);
    }

    #[test]
    fn every_reason_is_explained_with_its_type_in_the_documentation() {
        let text = include_str!("../docs/operations.md");
        for word in Word::ALL {
            let name = format!("`{}`", word.as_str());
            let kind = format!("| {} |", word.kind());
            let line = text.lines().find(|line| {
                line.starts_with("| `") && line.contains(&name) && line.contains(&kind)
            });
            assert!(line.is_some(), "docs/operations.md has no row for {name}");
        }
    }

    #[test]
    fn r13_the_server_takes_every_reason_and_action() {
        for word in Word::ALL {
            for text in [word.as_str(), word.action()] {
                let fits = text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric());
                assert!(
                    fits && text.starts_with(|c: char| c.is_ascii_uppercase()),
                    "{text}"
                );
            }
        }
    }
}
