//! O-03: the caches of the operator, one of each kind for the whole cluster, or one for each
//! namespace that it looks after.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use controller::informer::{self, metrics};
use controller::{Informer, InformerOptions, Lister, Manager, ObjectKey};
use kube_core::Resource;
use serde::de::DeserializeOwned;

use crate::api::Proxy;

/// Informers of one kind by namespace; the one without a namespace has all of them.
#[derive(Clone, Debug)]
pub(super) struct Informers<K>(BTreeMap<Option<String>, Informer<K>>);

impl<K> Informers<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    /// One informer for each of the namespaces, or one for the cluster if none is named. The series
    /// of all of them bear the name.
    pub(super) fn new(
        client: &kube_client::Client,
        namespaces: &[String],
        name: &str,
        series: &metrics::Registry,
    ) -> Result<Self, informer::Error> {
        let one = |namespace: Option<String>| {
            let options = InformerOptions {
                name: Some(match &namespace {
                    None => name.to_owned(),
                    Some(namespace) => format!("{name}/{namespace}"),
                }),
                registry: series.clone(),
                namespace: namespace.clone(),
                ..InformerOptions::default()
            };
            Ok((namespace, Informer::new(client.clone(), options)?))
        };
        let namespaces = match namespaces {
            [] => vec![None],
            named => named.iter().cloned().map(Some).collect(),
        };
        let all: Result<_, informer::Error> = namespaces.into_iter().map(one).collect();
        Ok(Self(all?))
    }

    /// Indexes every cache by this function.
    pub(super) fn add_index<F>(&self, name: &str, index: F) -> Result<(), informer::Error>
    where
        F: Fn(&K) -> Vec<String> + Clone + Send + Sync + 'static,
    {
        self.iter()
            .try_for_each(|informer| informer.add_index(name, index.clone()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Informer<K>> {
        self.0.values()
    }

    /// Whether each of them has seen its first list.
    pub(super) fn have_synced(&self) -> bool {
        self.iter().all(Informer::has_synced)
    }

    /// Lets `manager` run them.
    pub(super) fn run_by(&self, manager: Manager) -> Manager {
        self.iter().fold(manager, Manager::add_informer)
    }
}

impl Informers<Proxy> {
    pub(super) fn fleet(&self) -> Proxies {
        let listers = self.0.iter();
        let listers = listers.map(|(namespace, one)| (namespace.clone(), one.lister()));
        Proxies(Arc::new(listers.collect()))
    }
}

/// All Proxies that the operator looks after, as its caches show them; clones read the same ones.
#[derive(Clone, Debug)]
pub struct Proxies(Arc<BTreeMap<Option<String>, Lister<Proxy>>>);

impl Proxies {
    /// The Proxy of that key, if a cache has it. Costs one look-up.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Proxy>> {
        self.0.values().find_map(|lister| lister.get(key))
    }

    /// All Proxies, in no order. Costs one clone of a reference for each.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Proxy>> {
        self.0.values().flat_map(Lister::list).collect()
    }

    /// How many Proxies an index has under a value. Costs one look-up for each cache.
    pub(super) fn index_len(&self, index: &str, value: &str) -> usize {
        let count = |lister: &Lister<Proxy>| {
            lister
                .read(|view| view.count_by_index(index, value))
                .expect("the index was added before the first event")
        };
        self.0.values().map(count).sum()
    }

    /// At most so many of the keys that an index has under a value. Costs those alone.
    pub(super) fn some_index_keys(
        &self,
        index: &str,
        value: &str,
        most: usize,
    ) -> HashSet<ObjectKey> {
        let mut keys = HashSet::new();
        for lister in self.0.values() {
            lister.read(|view| {
                let found = view
                    .index_keys(index, value)
                    .expect("the index was added before the first event");
                keys.extend(found.take(most - keys.len()).cloned());
            });
        }
        keys
    }

    /// The keys that an index has under a value.
    pub(super) fn index_keys(&self, index: &str, value: &str) -> Vec<ObjectKey> {
        let keys = |lister: &Lister<Proxy>| {
            lister
                .index_keys(index, value)
                .expect("the index was added before the first event")
        };
        self.0.values().flat_map(keys).collect()
    }
}
