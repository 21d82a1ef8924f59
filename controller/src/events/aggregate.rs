//! The two brakes of the form `v1`: similar events become one, and an object's events are rationed.
//!
//! Pure state over an injected time, after client-go's correlator.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use lru::LruCache;
use tokio::time::Instant;

use super::ledger::Key;
use super::notice::Notice;

/// From this distinct message on, events of one reason become one.
const SIMILAR_FROM: usize = 10;
/// Messages are forgotten when none of their reason came for longer than this.
const SIMILAR_FOR: Duration = Duration::from_secs(600);
/// Writes about one object that may come at once.
const BURST: u32 = 25;
/// Time in which one more write becomes free.
const REFILL: Duration = Duration::from_secs(300);

const COMBINED: &str = "(combined from similar events): ";

/// Keys, messages and permissions of events in the form `v1`.
#[derive(Debug)]
pub(super) struct Aggregator {
    similar: LruCache<Key, Similar>,
    rations: LruCache<Key, Ration>,
    hasher: RandomState,
}

/// The messages seen under one reason.
#[derive(Debug)]
struct Similar {
    /// Hashes: the messages themselves would take up to 40 MB.
    messages: HashSet<u64>,
    last: Instant,
}

/// A bucket of [`BURST`] tokens, as the moment at which it would be full again.
#[derive(Debug, Clone, Copy)]
struct Ration {
    full_at: Instant,
}

impl Ration {
    fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + REFILL;
        let permitted = full_at - now <= REFILL * BURST;
        if permitted {
            self.full_at = full_at;
        }
        permitted
    }
}

impl Aggregator {
    pub(super) fn new(cache: NonZeroUsize) -> Self {
        Self {
            similar: LruCache::new(cache),
            rations: LruCache::new(cache),
            hasher: RandomState::new(),
        }
    }

    /// The event that `notice` belongs to: one of its own message, or the combined one, which
    /// changes the note.
    pub(super) fn fold(
        &mut self,
        regarding: &ObjectReference,
        mut notice: Notice,
        now: Instant,
    ) -> (Key, Notice) {
        let group = Key::of(&[&object_of(regarding), notice.type_.as_str(), &notice.reason]);
        let message = self.hasher.hash_one(&notice.note);
        let similar = self.similar.get_or_insert_mut(group.clone(), || Similar {
            messages: HashSet::new(),
            last: now,
        });
        if now - similar.last > SIMILAR_FOR {
            similar.messages.clear();
        }
        similar.last = now;
        let distinct = similar.messages.len() + usize::from(!similar.messages.contains(&message));
        if distinct < SIMILAR_FROM {
            similar.messages.insert(message);
            let path = regarding.field_path.as_deref().unwrap_or_default();
            return (Key::of(&[&group.0, path, &notice.note]), notice);
        }
        notice.note.insert_str(0, COMBINED);
        (group, notice)
    }

    /// Whether one more event of this type about this object may be written; takes its token.
    pub(super) fn permits(
        &mut self,
        regarding: &ObjectReference,
        notice: &Notice,
        now: Instant,
    ) -> bool {
        let key = Key::of(&[&object_of(regarding), notice.type_.as_str()]);
        let full = || Ration { full_at: now };
        self.rations.get_or_insert_mut(key, full).take(now)
    }
}

/// The object in one text; its field path is left out, as are versions.
pub(super) fn object_of(object: &ObjectReference) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    [
        part(&object.api_version),
        part(&object.kind),
        part(&object.namespace),
        part(&object.name),
        part(&object.uid),
    ]
    .join("\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        }
    }

    fn notice(note: &str) -> Notice {
        Notice::normal("Reason", "Act", note)
    }

    fn aggregator() -> Aggregator {
        Aggregator::new(NonZeroUsize::new(4096).unwrap())
    }

    #[test]
    fn e2_the_tenth_distinct_message_and_later_ones_go_to_the_combined_event() {
        let mut aggregator = aggregator();
        let now = Instant::now();
        let mut keys = HashSet::new();
        for n in 1..=30 {
            let (key, folded) = aggregator.fold(&about("a"), notice(&n.to_string()), now);
            keys.insert(key);
            let combined = format!("(combined from similar events): {n}");
            let expected = if n < 10 { n.to_string() } else { combined };
            assert_eq!(folded.note, expected);
        }
        assert_eq!(keys.len(), 9 + 1);
        let (_, known) = aggregator.fold(&about("a"), notice("3"), now);
        assert_eq!(known.note, "3", "one of the first nine keeps its own event");
        for (object, reason) in [("b", "Reason"), ("a", "Other")] {
            let other = Notice::normal(reason, "Act", "11");
            let (_, folded) = aggregator.fold(&about(object), other, now);
            assert_eq!(folded.note, "11", "{object} {reason}");
        }
    }

    #[test]
    fn c62_messages_are_forgotten_after_600_s_of_quiet() {
        for (quiet, combined) in [(600, true), (601, false)] {
            let mut aggregator = aggregator();
            let start = Instant::now();
            for n in 0..10 {
                // Quiet counts from the last message and not from the first.
                let at = start + Duration::from_secs(n * 500);
                drop(aggregator.fold(&about("a"), notice(&n.to_string()), at));
            }
            let at = start + Duration::from_secs(9 * 500 + quiet);
            let (_, folded) = aggregator.fold(&about("a"), notice("new"), at);
            assert_eq!(folded.note.starts_with(COMBINED), combined, "{quiet} s");
        }
    }

    #[test]
    fn e3_the_26th_event_of_an_object_and_type_waits_for_a_refill() {
        let mut aggregator = aggregator();
        let start = Instant::now();
        let mut permitted = |object: &str, notice: &Notice, seconds: u64| {
            aggregator.permits(&about(object), notice, start + Duration::from_secs(seconds))
        };
        let normal = notice("n");
        for n in 1..=40 {
            assert_eq!(permitted("a", &normal, 0), n <= 25, "event {n}");
        }
        let warning = Notice::warning("Reason", "Act", "n");
        assert!(permitted("a", &warning, 0), "another type");
        assert!(permitted("b", &normal, 0), "another object");
        // (seconds, permitted): one token each 300 s, refused ones take none.
        for (seconds, expected) in [
            (299, false),
            (300, true),
            (300, false),
            (599, false),
            (600, true),
            (601, false),
            (1201, true),
            (1201, true),
            (1201, false),
        ] {
            assert_eq!(permitted("a", &normal, seconds), expected, "at {seconds} s");
        }
        for n in 1..=26 {
            let full_again = 1201 + 25 * 300;
            assert_eq!(permitted("a", &normal, full_again), n <= 25, "event {n}");
        }
    }

    #[test]
    fn c65_no_more_objects_are_remembered_than_the_cache_holds() {
        let mut aggregator = Aggregator::new(NonZeroUsize::new(2).unwrap());
        let now = Instant::now();
        for _ in 0..25 {
            assert!(aggregator.permits(&about("a"), &notice("n"), now));
        }
        assert!(!aggregator.permits(&about("a"), &notice("n"), now));
        for name in ["b", "c"] {
            assert!(aggregator.permits(&about(name), &notice("n"), now));
        }
        assert!(
            aggregator.permits(&about("a"), &notice("n"), now),
            "a was forgotten"
        );
        assert_eq!(aggregator.rations.len(), 2);
    }
}
