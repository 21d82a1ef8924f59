//! What this process did of late and the status does not tell: when it made which instance.

use std::time::Duration;

use controller::ObjectKey;
use dashmap::DashMap;
use dashmap::mapref::one::RefMut;
use tokio::time::Instant;

/// How long a provider that is not consistent may not show an instance that it made.
const MAY_NOT_SHOW: Duration = Duration::from_secs(30);

/// Creates of this process. One entry for each Proxy that it created for; gone with the Proxy.
#[derive(Debug)]
pub(crate) struct Recent {
    started: Instant,
    creates: DashMap<ObjectKey, Create>,
}

#[derive(Clone, Copy, Debug)]
struct Create {
    attempt: i64,
    asked: Instant,
    made: Option<Instant>,
    shown: bool,
    /// The attempt was opened by this process, which has not sent it yet.
    is_unsent: bool,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            creates: DashMap::new(),
        }
    }

    fn entry(&self, key: &ObjectKey, attempt: i64) -> RefMut<'_, ObjectKey, Create> {
        self.creates.entry(key.clone()).or_insert_with(|| Create {
            attempt,
            asked: Instant::now(),
            made: None,
            shown: false,
            is_unsent: false,
        })
    }

    /// This process opens an attempt, and sends it later.
    pub(crate) fn announced(&self, key: &ObjectKey, attempt: i64) {
        let mut create = self.entry(key, attempt);
        create.attempt = attempt;
        create.asked = Instant::now();
        create.shown = false;
        create.is_unsent = true;
    }

    /// A create is about to be sent, or may have been sent just now by somebody else. Answers
    /// whether nobody can have sent that attempt before.
    pub(crate) fn asked(&self, key: &ObjectKey, attempt: i64) -> bool {
        let mut create = self.entry(key, attempt);
        let is_first = create.is_unsent && create.attempt == attempt;
        create.attempt = attempt;
        create.asked = Instant::now();
        create.shown = false;
        create.is_unsent = false;
        is_first
    }

    /// The create was answered with an instance.
    pub(crate) fn made(&self, key: &ObjectKey) {
        if let Some(mut create) = self.creates.get_mut(key) {
            create.made = Some(create.asked);
        }
    }

    /// The provider showed the instance.
    pub(crate) fn shown(&self, key: &ObjectKey) {
        if let Some(mut create) = self.creates.get_mut(key) {
            create.shown = true;
        }
    }

    /// Time since this process made the latest instance of the Proxy.
    pub(crate) fn since_made(&self, key: &ObjectKey) -> Option<Duration> {
        self.creates
            .get(key)
            .and_then(|create| create.made)
            .map(|made| made.elapsed())
    }

    /// Whether an instance that was just asked for may exist although the provider does not show
    /// it.
    ///
    /// What an earlier process asked for counts as asked when this one began; an open attempt that
    /// is none of this process, when it is first seen.
    pub(crate) fn may_not_show(&self, key: &ObjectKey, open: Option<i64>) -> bool {
        if let Some(attempt) = open {
            let is_known = self
                .creates
                .get(key)
                .is_some_and(|create| create.attempt == attempt);
            if !is_known {
                self.asked(key, attempt);
            }
        }
        let create = self.creates.get(key).map(|create| *create);
        let (asked, shown) =
            create.map_or((self.started, false), |create| (create.asked, create.shown));
        !shown && asked.elapsed() < MAY_NOT_SHOW
    }

    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.creates.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_instance_may_be_hidden_for_half_a_minute_unless_it_was_shown() {
        let key = ObjectKey::namespaced("crawl", "a");
        let recent = Recent::new();
        assert!(
            recent.may_not_show(&key, None),
            "an earlier process may have asked"
        );
        tokio::time::advance(MAY_NOT_SHOW).await;
        assert!(!recent.may_not_show(&key, None));
        recent.asked(&key, 1);
        assert!(recent.may_not_show(&key, None));
        assert_eq!(recent.since_made(&key), None, "asked is not made");
        recent.made(&key);
        recent.shown(&key);
        assert!(!recent.may_not_show(&key, None));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(recent.since_made(&key), Some(Duration::from_secs(3)));
        recent.forget(&key);
        assert_eq!(recent.since_made(&key), None);
        assert!(
            recent.may_not_show(&key, Some(7)),
            "another process may have asked"
        );
        tokio::time::advance(MAY_NOT_SHOW).await;
        assert!(!recent.may_not_show(&key, Some(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn s13_only_the_process_that_opened_an_attempt_knows_that_it_was_not_sent() {
        let key = ObjectKey::namespaced("crawl", "a");
        let recent = Recent::new();
        assert!(
            !recent.asked(&key, 1),
            "an earlier process may have sent it"
        );
        recent.announced(&key, 2);
        assert!(!recent.asked(&key, 1), "another attempt");
        recent.announced(&key, 2);
        assert!(recent.asked(&key, 2), "the first time");
        assert!(!recent.asked(&key, 2), "the second time");
    }
}
