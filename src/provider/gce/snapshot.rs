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
    /// One list at a time, whoever asks.
    turn: Semaphore,
}

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
            turn: Semaphore::new(1),
        }
    }

    /// The instance as the list shows it, after a new list where the last one is too old; `None`
    /// where it is not in it, which says nothing: a list may lag, and a zone may not have answered.
    ///
    /// # Errors
    ///
    /// Whatever `list` fails with.
    pub async fn look(
        &self,
        cluster_id: &Arc<str>,
        id: &ProviderId,
        list: impl Future<Output = Result<Vec<Instance>, Error>>,
    ) -> Result<Option<Instance>, Error> {
        if let Some(view) = self.fresh(cluster_id) {
            return Ok(view.instances.get(id).cloned());
        }
        let Ok(_turn) = self.turn.acquire().await else {
            return Ok(None);
        };
        // Whoever had the turn before may have brought it.
        if let Some(view) = self.fresh(cluster_id) {
            return Ok(view.instances.get(id).cloned());
        }
        let taken = Instant::now();
        let instances = list
            .await?
            .into_iter()
            .map(|seen| (seen.id.clone(), seen))
            .collect();
        let view = Arc::new(View {
            taken,
            cluster_id: Arc::clone(cluster_id),
            instances,
        });
        self.latest.store(Some(Arc::clone(&view)));
        Ok(view.instances.get(id).cloned())
    }

    /// Forgets the list: something was changed since.
    pub fn forget(&self) {
        self.latest.store(None);
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
                let seen = snapshot.look(cluster, &id, list).await.expect("listed");
                seen.is_some()
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
    async fn a_list_that_fails_is_not_kept() {
        let (snapshot, cluster) = (Snapshot::new(MAX_LIST_AGE), Arc::from("c"));
        let id = instance("a").id;
        let failed = async { Err(Error::new(Reason::Unavailable, "down")) };
        assert!(snapshot.look(&cluster, &id, failed).await.is_err());
        let worked = async { Ok(vec![instance("a")]) };
        assert!(
            snapshot
                .look(&cluster, &id, worked)
                .await
                .expect("listed")
                .is_some()
        );
    }
}
