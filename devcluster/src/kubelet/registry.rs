//! Which pods serve a real proxy now, for readers outside of the agent.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use super::pod::PodKey;
use crate::proxy::{ProxyCounters, ProxyHandle};

/// A proxy that a simulated pod serves.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodProxy {
    /// `namespace/name` of the pod.
    pub pod: String,
    /// Where the proxy listens.
    pub address: SocketAddr,
    /// What it has done so far.
    pub counters: ProxyCounters,
}

/// The proxies by pod; it keeps none of them alive.
#[derive(Debug, Clone, Default)]
pub(super) struct Registry(Arc<Mutex<BTreeMap<PodKey, Vec<Weak<ProxyHandle>>>>>);

impl Registry {
    pub(super) fn insert(&self, pod: &PodKey, proxies: &[Arc<ProxyHandle>]) {
        if !proxies.is_empty() {
            let weak = proxies.iter().map(Arc::downgrade).collect();
            self.0.lock().insert(Arc::clone(pod), weak);
        }
    }

    pub(super) fn remove(&self, pod: &PodKey) {
        self.0.lock().remove(pod);
    }

    pub(super) fn list(&self) -> Vec<PodProxy> {
        let proxies = self.0.lock();
        proxies
            .iter()
            .flat_map(|(pod, proxies)| proxies.iter().map(move |proxy| (pod, proxy)))
            .filter_map(|(pod, proxy)| {
                let proxy = proxy.upgrade()?;
                Some(PodProxy {
                    pod: pod.as_ref().to_owned(),
                    address: proxy.address(),
                    counters: proxy.counters(),
                })
            })
            .collect()
    }
}
