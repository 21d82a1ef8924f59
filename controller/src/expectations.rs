//! Expectations: how many creations and deletions of children an owner still waits to see.
//!
//! A controller that creates children by a generated name can't ask whether one is there already;
//! acting on a cache that has not seen its last creations yet, it would make too many. So it
//! records what it is about to do ([`Expectations::expect_creations`]), its handlers of the
//! children's events lower that, and it does not act again until [`Expectations::satisfied`].
//! Mirrors kube-controller-manager's `UIDTrackingControllerExpectations`.
//!
//! [`consistency`](crate::consistency) is the simpler tool where the server's answers to the
//! writes are at hand; expectations need no versions, and hold across writes whose answer was lost.
//!
//! ```
//! use controller::ObjectKey;
//! use controller::expectations::Expectations;
//!
//! let expectations = Expectations::default();
//! let owner = ObjectKey::namespaced("ns", "replicas");
//! expectations.expect_creations(&owner, 2); // before two creates are sent
//! expectations.creation_observed(&owner); // from the handler of added children
//! assert!(!expectations.satisfied(&owner));
//! expectations.creation_observed(&owner); // or because the second create failed
//! assert!(expectations.satisfied(&owner));
//! ```

use std::collections::HashSet;
use std::time::Duration;

use dashmap::DashMap;
use informer::ObjectKey;
use tokio::time::Instant;

/// Time after which an expectation is given up, so that a lost event can't stop an owner for ever.
pub const TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// What each owner waits for; share it between reconciler and handlers.
///
/// Memory: one record for each owner that ever expected something, until it is
/// [forgotten](Self::forget); [`len`](Self::len) tells how many.
#[derive(Debug)]
pub struct Expectations {
    timeout: Duration,
    records: DashMap<ObjectKey, Record>,
}

#[derive(Debug)]
struct Record {
    creations: i64,
    deletions: i64,
    /// Deletions that are expected by UID; each counts once.
    uids: HashSet<Box<str>>,
    set_at: Instant,
}

impl Record {
    fn new(creations: i64, deletions: i64) -> Self {
        Self {
            creations,
            deletions,
            uids: HashSet::new(),
            set_at: Instant::now(),
        }
    }

    fn add(&mut self, creations: i64, deletions: i64) {
        self.creations = self.creations.saturating_add(creations);
        self.deletions = self.deletions.saturating_add(deletions);
    }
}

impl Default for Expectations {
    /// Expectations that are given up after 5 min.
    fn default() -> Self {
        Self::new(TIMEOUT)
    }
}

impl Expectations {
    /// Expectations that are given up after `timeout`.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            records: DashMap::new(),
        }
    }

    /// Expects `creations` and `deletions`, in place of whatever was expected before.
    pub fn set(&self, owner: &ObjectKey, creations: u32, deletions: u32) {
        let record = Record::new(creations.into(), deletions.into());
        self.records.insert(owner.clone(), record);
    }

    /// Expects `creations` and nothing else.
    pub fn expect_creations(&self, owner: &ObjectKey, creations: u32) {
        self.set(owner, creations, 0);
    }

    /// Expects the deletion of the children with these UIDs and nothing else.
    ///
    /// A UID counts once, however often its deletion is told: a child marked for deletion, and
    /// later gone, is one deletion.
    pub fn expect_deletions<U>(&self, owner: &ObjectKey, uids: impl IntoIterator<Item = U>)
    where
        U: Into<Box<str>>,
    {
        let uids: HashSet<_> = uids.into_iter().map(Into::into).collect();
        let deletions = i64::try_from(uids.len()).unwrap_or(i64::MAX);
        let record = Record {
            uids,
            ..Record::new(0, deletions)
        };
        self.records.insert(owner.clone(), record);
    }

    /// Expects that many more; without effect if nothing is on record for `owner`.
    pub fn raise(&self, owner: &ObjectKey, creations: u32, deletions: u32) {
        self.add(owner, creations.into(), deletions.into());
    }

    /// Expects that many fewer, for instance since the write failed; without effect if nothing is
    /// on record for `owner`.
    pub fn lower(&self, owner: &ObjectKey, creations: u32, deletions: u32) {
        self.add(owner, -i64::from(creations), -i64::from(deletions));
    }

    fn add(&self, owner: &ObjectKey, creations: i64, deletions: i64) {
        if let Some(mut record) = self.records.get_mut(owner) {
            record.add(creations, deletions);
        }
    }

    /// A child was seen to be there.
    pub fn creation_observed(&self, owner: &ObjectKey) {
        self.lower(owner, 1, 0);
    }

    /// The child `uid` was seen to go. Counts once, and only if it was
    /// [expected](Self::expect_deletions).
    pub fn deletion_observed(&self, owner: &ObjectKey, uid: &str) {
        if let Some(mut record) = self.records.get_mut(owner)
            && record.uids.remove(uid)
        {
            record.add(0, -1);
        }
    }

    /// Reports whether `owner` may act: nothing is on record, everything was seen, or the record
    /// is older than the timeout.
    #[must_use]
    pub fn satisfied(&self, owner: &ObjectKey) -> bool {
        self.records.get(owner).is_none_or(|record| {
            let seen = record.creations <= 0 && record.deletions <= 0;
            seen || record.set_at.elapsed() > self.timeout
        })
    }

    /// Number of owners on record: those that expect something, and those that were not
    /// [forgotten](Self::forget) after. What grows without end is owners that nobody forgets, so it is
    /// worth a line on the metrics page:
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use controller::expectations::Expectations;
    /// use controller::manager::Directory;
    /// use controller::metrics::Text;
    /// use controller::server::MetricsPage;
    ///
    /// let expectations = Arc::new(Expectations::default());
    /// let shown = Arc::clone(&expectations);
    /// # let directory = Directory::default();
    /// let page = MetricsPage::of(&directory).and(move || {
    ///     let (mut text, name) = (Text::default(), "site_expectations");
    ///     text.family(name, "gauge", "Sites whose children are counted");
    ///     text.sample(name, &[], shown.len() as f64);
    ///     text.finish()
    /// });
    /// # drop(page);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether no owner is on record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Creations and deletions that `owner` waits for; negative if more were seen than expected,
    /// none if nothing is on record.
    #[must_use]
    pub fn get(&self, owner: &ObjectKey) -> Option<(i64, i64)> {
        let record = self.records.get(owner)?;
        Some((record.creations, record.deletions))
    }

    /// Drops the record of `owner`: it is gone.
    pub fn forget(&self, owner: &ObjectKey) {
        self.records.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> ObjectKey {
        ObjectKey::namespaced("ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn k7_raised_and_lowered_expectations_are_satisfied_at_zero_or_below() {
        let all = Expectations::default();
        let a = owner("a");
        assert!(all.satisfied(&a), "none on record");
        all.raise(&a, 3, 3);
        assert_eq!(all.get(&a), None, "raising needs a record");
        all.set(&a, 0, 0);
        // (raise, lower, expected sum, satisfied)
        for (raise, lower, expected, satisfied) in [
            ((0, 0), (0, 0), (0, 0), true),
            ((2, 1), (0, 0), (2, 1), false),
            ((0, 0), (2, 0), (0, 1), false),
            ((1, 0), (0, 1), (1, 0), false),
            ((0, 0), (1, 0), (0, 0), true),
            ((0, 0), (1, 4), (-1, -4), true),
            ((1, 5), (0, 0), (0, 1), false),
        ] {
            all.raise(&a, raise.0, raise.1);
            all.lower(&a, lower.0, lower.1);
            assert_eq!(all.get(&a), Some(expected));
            assert_eq!(all.satisfied(&a), satisfied, "{expected:?}");
            assert!(all.satisfied(&owner("b")), "another owner goes on");
        }
        all.expect_creations(&a, 7);
        assert_eq!(all.get(&a), Some((7, 0)), "set anew");
        assert_eq!(all.len(), 1);
        all.forget(&a);
        assert!(all.satisfied(&a) && all.get(&a).is_none());
        assert!(all.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn k7_an_expectation_expires_after_5_minutes() {
        let all = Expectations::default();
        all.expect_creations(&owner("a"), 1);
        tokio::time::advance(TIMEOUT).await;
        assert!(!all.satisfied(&owner("a")));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(all.satisfied(&owner("a")));
        all.expect_creations(&owner("a"), 1);
        assert!(!all.satisfied(&owner("a")), "a new one has its own time");
    }

    #[tokio::test(start_paused = true)]
    async fn k7_a_deletion_told_twice_counts_once() {
        let all = Expectations::default();
        let a = owner("a");
        all.expect_deletions(&a, ["u1", "u2", "u2"]);
        assert_eq!(all.get(&a), Some((0, 2)));
        for (uid, left) in [("u1", 1), ("u1", 1), ("stranger", 1), ("u2", 0), ("u2", 0)] {
            all.deletion_observed(&a, uid);
            assert_eq!(all.get(&a), Some((0, left)), "{uid}");
        }
        assert!(all.satisfied(&a));
        all.expect_deletions(&a, ["u3"]);
        all.lower(&a, 0, 1);
        assert!(all.satisfied(&a), "the deletion failed");
    }
}
