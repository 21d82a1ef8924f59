//! One list for many looks (P-28): all VMs of the cluster as of a moment ago, half a minute at most.
//!
//! Whoever only wants to know whether a VM that ran still runs may be answered from it. It holds
//! no metadata, so no user data and no credentials.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::provider::{Error, Instance, ProviderId};

/// The latest list of one cluster.
#[derive(Debug)]
pub struct Snapshot {
    max_age: Duration,
    latest: ArcSwapOption<View>,
    /// When the last list failed or took too long.
    failed: ArcSwapOption<Instant>,
    /// One list at a time, whoever asks.
    turn: Semaphore,
}

/// How long a list may take. A look that waits for it has time left for a call of its own.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct View {
    /// When the list began: nothing in it is older.
    taken: Instant,
    cluster_id: Arc<str>,
    instances: HashMap<ProviderId, Instance>,
}

impl Snapshot {
    /// Holds no list yet; one is answered from until it has that age.
    #[must_use]
    pub fn new(max_age: Duration) -> Self {
        Self {
            max_age,
            latest: ArcSwapOption::empty(),
            failed: ArcSwapOption::empty(),
            turn: Semaphore::new(1),
        }
    }

    /// The instance as the list shows it, after a new list where the last one is too old; `None`
    /// where it is not in it, which says nothing: a list may lag, and a zone may not have answered.
    ///
    /// `None` too where `list` fails or takes longer than 20 s, or did so within the age of a list: a
    /// list that does not come must not keep anybody from looking at the VM itself.
    pub async fn look(
        &self,
        cluster_id: &Arc<str>,
        id: &ProviderId,
        list: impl Future<Output = Result<Vec<Instance>, Error>>,
    ) -> Option<Instance> {
        if let Some(view) = self.fresh(cluster_id) {
            return view.instances.get(id).cloned();
        }
        if self.has_failed() {
            return None;
        }
        // It is given back after `LIST_TIMEOUT` at the latest.
        let _turn = self.turn.acquire().await.ok()?;
        // Whoever had the turn before may have brought it.
        if let Some(view) = self.fresh(cluster_id) {
            return view.instances.get(id).cloned();
        }
        if self.has_failed() {
            return None;
        }
        let taken = Instant::now();
        let listed = match tokio::time::timeout(LIST_TIMEOUT, list).await {
            Ok(Ok(listed)) => listed,
            failed => {
                self.failed.store(Some(Arc::new(Instant::now())));
                match failed {
                    Ok(Err(error)) => tracing::debug!(%error, "no list to look into"),
                    _ => {
                        tracing::debug!(after = ?LIST_TIMEOUT, "the list to look into takes too long")
                    }
                }
                return None;
            }
        };
        let instances = listed
            .into_iter()
            .map(|seen| (seen.id.clone(), seen))
            .collect();
        let view = Arc::new(View {
            taken,
            cluster_id: Arc::clone(cluster_id),
            instances,
        });
        self.latest.store(Some(Arc::clone(&view)));
        view.instances.get(id).cloned()
    }

    /// Forgets the list: something was changed since.
    pub fn forget(&self) {
        self.latest.store(None);
    }

    fn has_failed(&self) -> bool {
        let failed = self.failed.load();
        failed
            .as_ref()
            .is_some_and(|at| at.elapsed() < self.max_age)
    }

    fn fresh(&self, cluster_id: &Arc<str>) -> Option<Arc<View>> {
        let view = self.latest.load_full()?;
        (view.cluster_id == *cluster_id && view.taken.elapsed() < self.max_age).then_some(view)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::provider::gce::id::Place;
    use crate::provider::gce::settings::MAX_LIST_AGE;
    use crate::provider::gce::state;
    use crate::provider::{Incarnation, Reason};

    fn instance(name: &str) -> Instance {
        let place = Place {
            project: "p",
            zone: "z",
            name,
        };
        state::unseen(place, Incarnation::new("1"), Arc::from("operation-1"))
    }

    #[tokio::test(start_paused = true)]
    async fn p28_many_looks_within_half_a_minute_cost_one_list() {
        let (snapshot, lists) = (Snapshot::new(MAX_LIST_AGE), AtomicU32::new(0));
        let cluster: Arc<str> = Arc::from("c");
        let look = |name: &'static str| {
            let list = async {
                lists.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(vec![instance("a")])
            };
            let (snapshot, cluster) = (&snapshot, &cluster);
            async move {
                let id = instance(name).id;
                snapshot.look(cluster, &id, list).await.is_some()
            }
        };
        let looks = futures::future::join_all((0..50).map(|_| look("a"))).await;
        assert!(looks.into_iter().all(|seen| seen), "all see it");
        assert!(!look("b").await, "not in the list");
        assert_eq!(lists.load(Ordering::Relaxed), 1);
        tokio::time::advance(MAX_LIST_AGE).await;
        look("a").await;
        assert_eq!(lists.load(Ordering::Relaxed), 2, "the view is too old");
        snapshot.forget();
        look("a").await;
        assert_eq!(lists.load(Ordering::Relaxed), 3, "something was changed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_or_hangs_holds_nobody_up_and_is_tried_again_later() {
        for hangs in [false, true] {
            let (snapshot, lists) = (Snapshot::new(MAX_LIST_AGE), AtomicU32::new(0));
            let (cluster, id) = (Arc::from("c"), instance("a").id);
            let look = || {
                let list = async {
                    lists.fetch_add(1, Ordering::Relaxed);
                    if hangs {
                        std::future::pending::<()>().await;
                    }
                    Err(Error::new(Reason::Unavailable, "down"))
                };
                snapshot.look(&cluster, &id, list)
            };
            let began = Instant::now();
            let seen = futures::future::join_all((0..50).map(|_| look())).await;
            assert!(seen.iter().all(Option::is_none));
            assert!(
                began.elapsed() <= LIST_TIMEOUT,
                "time is left for the VM itself"
            );
            assert_eq!(lists.load(Ordering::Relaxed), 1, "for all of them");
            tokio::time::advance(MAX_LIST_AGE).await;
            let worked = async { Ok(vec![instance("a")]) };
            assert!(snapshot.look(&cluster, &id, worked).await.is_some());
        }
    }
}
