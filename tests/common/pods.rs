//! Watches the fleet's pods from the side, to catch a moment at which two of them belong to one Proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube_client::Api;
use kube_client::core::WatchEvent;
use kube_client::core::params::{ListParams, WatchParams};
use tokio::task::JoinHandle;

use super::world::World;

const RETRY: std::time::Duration = std::time::Duration::from_millis(20);

/// The label that names the Proxy of a pod.
pub(crate) const PROXY_UID: &str = "crawl.proxyoperator.dev/proxy-uid";

#[derive(Default)]
struct Ledger {
    alive: BTreeMap<String, BTreeSet<String>>,
    ever: BTreeMap<String, BTreeSet<String>>,
    twice: Vec<String>,
}

impl Ledger {
    fn apply(&mut self, pod: &Pod, gone: bool) {
        let Some(proxy) = pod
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(PROXY_UID))
        else {
            return;
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let alive = self.alive.entry(proxy.clone()).or_default();
        if gone {
            alive.remove(&uid);
            return;
        }
        alive.insert(uid.clone());
        if alive.len() > 1 {
            self.twice.push(format!("Proxy {proxy}: pods {alive:?}"));
        }
        self.ever.entry(proxy.clone()).or_default().insert(uid);
    }
}

/// Follows every pod of the fleet from the moment it starts.
pub(crate) struct PodMonitor {
    ledger: Arc<Mutex<Ledger>>,
    task: JoinHandle<()>,
}

impl PodMonitor {
    /// Starts to follow.
    pub(crate) async fn start(world: &World) -> Self {
        let pods: Api<Pod> = world.api();
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let list = pods
            .list(&ListParams::default())
            .await
            .expect("pods can be listed");
        for pod in &list.items {
            ledger
                .lock()
                .expect("no panic under the lock")
                .apply(pod, false);
        }
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let shared = Arc::clone(&ledger);
        #[expect(
            clippy::disallowed_methods,
            reason = "the monitor owns the task and aborts it"
        )]
        let task = tokio::spawn(async move {
            loop {
                let Ok(stream) = pods.watch(&WatchParams::default(), &version).await else {
                    // A refused connection is answered without a pause: without one of ours, nothing could abort us.
                    tokio::time::sleep(RETRY).await;
                    continue;
                };
                let mut stream = stream.boxed();
                while let Ok(Some(event)) = stream.try_next().await {
                    let (pod, gone) = match event {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                        WatchEvent::Deleted(pod) => (pod, true),
                        WatchEvent::Bookmark(mark) => {
                            version = mark.metadata.resource_version;
                            continue;
                        }
                        WatchEvent::Error(status) => panic!("the pod watch broke: {status:?}"),
                    };
                    version = pod.metadata.resource_version.clone().unwrap_or(version);
                    shared
                        .lock()
                        .expect("no panic under the lock")
                        .apply(&pod, gone);
                }
            }
        });
        Self { ledger, task }
    }

    /// How many pods the Proxy with this UID has had so far.
    pub(crate) fn ever(&self, proxy_uid: &str) -> usize {
        let ledger = self.ledger.lock().expect("no panic under the lock");
        ledger.ever.get(proxy_uid).map_or(0, BTreeSet::len)
    }

    /// How many pods all Proxies together have had so far.
    pub(crate) fn made(&self) -> usize {
        let ledger = self.ledger.lock().expect("no panic under the lock");
        ledger.ever.values().map(BTreeSet::len).sum()
    }

    /// Panics if at some moment two pods of one Proxy stood side by side, or if the watch broke.
    pub(crate) fn assert_never_two(&self) {
        assert!(!self.task.is_finished(), "the pod watch broke");
        let ledger = self.ledger.lock().expect("no panic under the lock");
        assert!(ledger.twice.is_empty(), "{:?}", ledger.twice);
    }
}

impl Drop for PodMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}
