//! Whether a streamed list shows what a list of the same version shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube_core::Resource;

use super::Reflector;
use super::pager::{Paged, Pager};
use crate::ObjectKey;
use crate::source::{Error, ListRequest, ListVersion};

/// Environment variable that turns the check on, as in client-go.
const VARIABLE: &str = "KUBE_WATCHLIST_INCONSISTENCY_DETECTOR";
/// Tries of the list that is compared with.
const MAX_TRIES: u32 = 5;
/// Wait between them.
const PAUSE: Duration = Duration::from_secs(1);
/// Differences that are named.
const MAX_NAMED: usize = 10;

/// Whether the environment asks for the check.
pub(crate) fn is_wanted_by_environment() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| is_true(&value))
}

fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "TRUE" | "true" | "True")
}

/// What an object is and in which state: UID (or key, where a transform takes the UID away) and
/// version.
type States = BTreeMap<String, String>;

fn state_of<K: Resource>(object: &K) -> (String, String) {
    let meta = object.meta();
    let key = ObjectKey::of(object);
    let identity = match &meta.uid {
        Some(uid) => format!("{key} {uid}"),
        None => key.to_string(),
    };
    let version = meta.resource_version.clone().unwrap_or_default();
    (identity, version)
}

/// Each difference as a line.
fn differences(streamed: &States, listed: &States) -> Vec<String> {
    let all = streamed.keys().chain(listed.keys());
    let unequal = all.filter(|identity| streamed.get(*identity) != listed.get(*identity));
    let show = |states: &States, identity: &String| match states.get(identity) {
        Some(version) => format!("version {version}"),
        None => "nothing".to_owned(),
    };
    let mut lines: Vec<_> = unequal
        .map(|identity| {
            let (streamed, listed) = (show(streamed, identity), show(listed, identity));
            format!("{identity}: {streamed} streamed, {listed} listed")
        })
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    /// Compares the store, filled by a stream at `version`, with a list of just that version.
    ///
    /// # Panics
    /// With the differences, as a server that streams something else must not go unseen.
    pub(super) async fn check_stream(&mut self, version: &str) {
        let Some(listed) = self.listed_at(version).await else {
            return;
        };
        let streamed = self.core.store.version();
        let unreadable = |key: &ObjectKey| self.listed_unreadable.contains(key);
        let streamed: States = streamed
            .iter()
            .filter(|entry| !unreadable(&entry.key))
            .map(|entry| state_of(&*entry.object))
            .collect();
        let mut lines = differences(&streamed, &listed);
        let number = lines.len();
        lines.truncate(MAX_NAMED);
        assert!(
            number == 0,
            "{}: {number} objects of the list streamed at version {version} differ from a list of \
             that version: {}",
            self.core.progress.name(),
            lines.join("; ")
        );
    }

    async fn listed_at(&mut self, version: &str) -> Option<States> {
        for _ in 0..MAX_TRIES {
            match self.list_states(version).await {
                Ok(states) => return Some(states),
                Err(error) => {
                    let informer = self.core.progress.name();
                    tracing::warn!(informer, %error, "no list to compare a streamed one with");
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }

    async fn list_states(&mut self, version: &str) -> Result<States, Error> {
        let request = ListRequest {
            version: ListVersion::Exact(Arc::from(version)),
            limit: None,
            continue_token: None,
        };
        let source = Arc::clone(&self.source);
        let mut pager = Pager::new(source, request, self.options.list_timeout);
        let mut states = States::new();
        loop {
            match pager.next().await? {
                Paged::Items(items) => {
                    let objects = items.into_iter().flatten();
                    let kept = objects.filter_map(|object| self.prepare(object).ok()?.ok());
                    states.extend(kept.map(|object| state_of(&object)));
                }
                Paged::StartOver(_) => states.clear(),
                Paged::End { .. } => return Ok(states),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i26_the_environment_is_read_as_a_truth_value() {
        for (text, want) in [
            ("true", true),
            ("1", true),
            ("T", true),
            ("false", false),
            ("0", false),
            ("", false),
            ("yes", false),
        ] {
            assert_eq!(is_true(text), want, "{text}");
        }
    }

    #[test]
    fn i26_differences_are_named_with_both_sides() {
        let states = |pairs: &[(&str, &str)]| -> States {
            let owned = |text: &&str| (*text).to_owned();
            pairs.iter().map(|(a, b)| (owned(a), owned(b))).collect()
        };
        let streamed = states(&[("n/a u1", "1"), ("n/b u2", "2"), ("n/c u3", "3")]);
        let listed = states(&[("n/a u1", "1"), ("n/b u2", "5"), ("n/c u4", "3")]);
        assert_eq!(
            differences(&streamed, &listed),
            [
                "n/b u2: version 2 streamed, version 5 listed",
                "n/c u3: version 3 streamed, nothing listed",
                "n/c u4: nothing streamed, version 3 listed",
            ]
        );
        assert_eq!(differences(&streamed, &streamed), Vec::<String>::new());
    }
}
