//! Reads from an informer's cache.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube_core::{Resource, Selector, SelectorExt as _};

use crate::query::{self, Page, Query};
use crate::shared::Progress;
use crate::store::index::NAMESPACE_INDEX;
use crate::store::{Entry, Store, Version};
use crate::{Error, ObjectKey};

/// The object asked for is not in the cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {key} is not in the cache")]
pub struct NotFound {
    /// The kind of the cache.
    pub kind: String,
    /// The key asked for.
    pub key: Box<ObjectKey>,
}

/// Read access to a cache; cheap to clone.
///
/// Every call reads the newest state, takes no lock that a writer holds, and gives shared
/// references to the stored objects. Two calls may see two states; [`Lister::snapshot`] keeps one.
/// It keeps the cache alive, and no handler: a handler may hold one of its own informer. An index
/// function must not, or neither is ever freed.
/// The order of results is unspecified unless a call says otherwise.
pub struct Lister<K> {
    // The store alone: a handler that holds a lister must not hold itself.
    store: Arc<Store<K>>,
    progress: Arc<Progress>,
}

impl<K> Clone for Lister<K> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            progress: Arc::clone(&self.progress),
        }
    }
}

impl<K> fmt::Debug for Lister<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lister")
            .field("of", &self.progress.name())
            .finish_non_exhaustive()
    }
}

impl<K: Resource + Send + Sync + 'static> Lister<K> {
    pub(crate) fn new(store: Arc<Store<K>>, progress: Arc<Progress>) -> Self {
        Self { store, progress }
    }

    /// The state of this moment. It does not change while events go on; it keeps the objects of
    /// its time alive.
    pub fn snapshot(&self) -> Snapshot<K> {
        Snapshot(self.store.version())
    }

    /// Looks at the state of this moment without holding on to it: what `look` borrows costs no
    /// reference count, which for an object that was not touched lately is most of a look-up.
    ///
    /// Wait-free for the reader, and no writer waits for `look`.
    ///
    /// ```
    /// # use informer::{Lister, ObjectKey};
    /// # use k8s_openapi::api::core::v1::Pod;
    /// fn node_of(pods: &Lister<Pod>, key: &ObjectKey) -> Option<String> {
    ///     pods.read(|now| now.get(key)?.spec.as_ref()?.node_name.clone())
    /// }
    /// ```
    pub fn read<T>(&self, look: impl FnOnce(View<'_, K>) -> T) -> T {
        self.store.look(|version| look(View(version)))
    }

    /// The object of `key`.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.store
            .look(|version| version.get(key).map(|entry| Arc::clone(&entry.object)))
    }

    /// The object of `key`, or an error that names it.
    ///
    /// # Errors
    /// [`NotFound`] if the cache has no such object.
    pub fn require(&self, key: &ObjectKey) -> Result<Arc<K>, NotFound> {
        self.get(key).ok_or_else(|| NotFound {
            kind: self.progress.kind.clone(),
            key: Box::new(key.clone()),
        })
    }

    /// All objects.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.store.look(list)
    }

    /// The objects of one namespace.
    pub fn namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.by_index(NAMESPACE_INDEX, namespace)
            .unwrap_or_default()
    }

    /// The objects whose labels match, in all namespaces or in one.
    pub fn select(&self, namespace: Option<&str>, labels: &Selector) -> Vec<Arc<K>> {
        self.snapshot().select(namespace, labels)
    }

    /// The objects for which the index gives `value`. Costs the result, not the store.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Arc<K>>, Error> {
        let store = &self.store;
        store.look(|version| by_index(version, index, value))
    }

    /// Keys of the objects for which the index gives `value`.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_keys(&self, index: &str, value: &str) -> Result<Vec<ObjectKey>, Error> {
        self.snapshot().index_keys(index, value)
    }

    /// All values that the index has objects for.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_values(&self, index: &str) -> Result<Vec<Arc<str>>, Error> {
        self.snapshot().index_values(index)
    }

    /// The objects that meet a condition over several indexes and labels. Costs the smallest set
    /// that can hold all of them.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn query(&self, query: &Query) -> Result<Vec<Arc<K>>, Error> {
        self.snapshot().query(query)
    }

    /// Up to `limit` of them, at least 1, in the order of their keys, beginning behind the key
    /// `after`. Pages are right while the cache changes: what was there all along comes once.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn query_page(
        &self,
        query: &Query,
        after: Option<&ObjectKey>,
        limit: usize,
    ) -> Result<Page<K>, Error> {
        self.snapshot().query_page(query, after, limit)
    }

    /// The values that the index gives for `object`, which need not be in the cache.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_of(&self, index: &str, object: &K) -> Result<Vec<String>, Error> {
        self.store.version().index_of(index, object)
    }

    /// Version of the last event, bookmark or list that the cache shows; empty before the first.
    pub fn resource_version(&self) -> Arc<str> {
        self.snapshot().resource_version()
    }

    /// Waits until the cache shows `resource_version` or a later one; `false` after `timeout`.
    ///
    /// Versions that cannot be compared must be equal. Cancel-safe.
    pub async fn wait_for_version(&self, resource_version: &str, timeout: Duration) -> bool {
        self.store.wait_for_version(resource_version, timeout).await
    }
}

/// One state of a cache, in which objects, indexes and resource version agree.
pub struct Snapshot<K>(Arc<Version<K>>);

impl<K> Clone for Snapshot<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> fmt::Debug for Snapshot<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Snapshot").field(&self.0).finish()
    }
}

impl<K: Resource + Send + Sync + 'static> Snapshot<K> {
    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Version of the state; empty before the first list.
    pub fn resource_version(&self) -> Arc<str> {
        Arc::clone(self.0.resource_version())
    }

    /// The object of `key`.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.0.get(key).map(|entry| Arc::clone(&entry.object))
    }

    /// The same state, for reads that borrow from it.
    pub fn view(&self) -> View<'_, K> {
        View(&self.0)
    }

    /// All objects, borrowed.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.0.iter().map(|entry| &entry.object)
    }

    /// All keys, borrowed.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.0.iter().map(|entry| &entry.key)
    }

    /// All objects.
    pub fn list(&self) -> Vec<Arc<K>> {
        list(&self.0)
    }

    /// All objects in the order of their keys.
    pub fn list_sorted(&self) -> Vec<Arc<K>> {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_unstable_by(|left, right| left.key.cmp(&right.key));
        entries
            .into_iter()
            .map(|entry| Arc::clone(&entry.object))
            .collect()
    }

    /// The objects of one namespace.
    pub fn namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.by_index(NAMESPACE_INDEX, namespace)
            .unwrap_or_default()
    }

    /// The objects whose labels match, in all namespaces or in one.
    pub fn select(&self, namespace: Option<&str>, labels: &Selector) -> Vec<Arc<K>> {
        let matches = |object: &Arc<K>| match &object.meta().labels {
            Some(present) => labels.matches(present),
            None => labels.matches(&Default::default()),
        };
        match namespace {
            None => self
                .iter()
                .filter(|object| matches(object))
                .map(Arc::clone)
                .collect(),
            Some(namespace) => {
                let mut objects = self.namespace(namespace);
                objects.retain(matches);
                objects
            }
        }
    }

    /// The objects for which the index gives `value`.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Arc<K>>, Error> {
        by_index(&self.0, index, value)
    }

    /// Keys of the objects for which the index gives `value`.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_keys(&self, index: &str, value: &str) -> Result<Vec<ObjectKey>, Error> {
        let entries = self.0.by_index(index, value)?;
        Ok(entries.map(|entry| entry.key.clone()).collect())
    }

    /// As [`Lister::query`].
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn query(&self, query: &Query) -> Result<Vec<Arc<K>>, Error> {
        query::all(query, &self.0)
    }

    /// As [`Lister::query_page`].
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn query_page(
        &self,
        query: &Query,
        after: Option<&ObjectKey>,
        limit: usize,
    ) -> Result<Page<K>, Error> {
        query::page(query, &self.0, after, limit.max(1))
    }

    /// All values that the index has objects for.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_values(&self, index: &str) -> Result<Vec<Arc<str>>, Error> {
        Ok(self.0.index_values(index)?.map(Arc::clone).collect())
    }
}

/// One state of a cache, borrowed: what it gives lives as long as the borrow.
///
/// A look-up by key goes to the cache's table and to the place of the object, and does not touch
/// the object itself.
pub struct View<'v, K>(&'v Version<K>);

impl<K> Clone for View<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for View<'_, K> {}

impl<K> fmt::Debug for View<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("View").field(self.0).finish()
    }
}

impl<'v, K> View<'v, K> {
    /// Number of objects.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Version of the state; empty before the first list.
    pub fn resource_version(self) -> &'v str {
        self.0.resource_version()
    }

    /// The object of `key`.
    pub fn get(self, key: &ObjectKey) -> Option<&'v Arc<K>> {
        self.0.get(key).map(|entry| &entry.object)
    }

    /// All objects.
    pub fn iter(self) -> impl Iterator<Item = &'v Arc<K>> {
        self.0.iter().map(|entry| &entry.object)
    }

    /// All keys.
    pub fn keys(self) -> impl Iterator<Item = &'v ObjectKey> {
        self.0.iter().map(|entry| &entry.key)
    }

    /// The objects for which the index gives `value`.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn by_index(
        self,
        index: &str,
        value: &str,
    ) -> Result<impl Iterator<Item = &'v Arc<K>> + use<'v, K>, Error> {
        let members = self.0.members(index, value)?.into_iter();
        let entries = members.flat_map(move |members| self.0.entries_of(members));
        Ok(entries.map(|entry| &entry.object))
    }

    /// Keys of the objects for which the index gives `value`.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_keys(
        self,
        index: &str,
        value: &str,
    ) -> Result<impl Iterator<Item = &'v ObjectKey> + use<'v, K>, Error> {
        let members = self.0.members(index, value)?.into_iter();
        let entries = members.flat_map(move |members| self.0.entries_of(members));
        Ok(entries.map(|entry| &entry.key))
    }

    /// How many objects the index gives `value` for. Costs the same whatever their number.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn count_by_index(self, index: &str, value: &str) -> Result<usize, Error> {
        self.0.count_by_index(index, value)
    }
}

fn list<K>(version: &Version<K>) -> Vec<Arc<K>> {
    share(version.iter(), version.len())
}

fn by_index<K>(version: &Version<K>, index: &str, value: &str) -> Result<Vec<Arc<K>>, Error> {
    let members = version.members(index, value)?;
    Ok(members.map_or_else(Vec::new, |members| {
        share(version.entries_of(members), members.len())
    }))
}

/// Objects that are looked at before the first of them is shared.
const AHEAD: usize = 64;

/// The objects of some entries, of which there are `len`.
///
/// A reference count far away in memory takes its time, and the processor waits for one before it
/// begins the next. Reading some of them first lets them all come nearer at once.
fn share<'a, K: 'a>(mut entries: impl Iterator<Item = &'a Entry<K>>, len: usize) -> Vec<Arc<K>> {
    let mut objects = Vec::with_capacity(len);
    if len > 1 {
        let mut ahead = Vec::with_capacity(len.min(AHEAD));
        while objects.len() < len {
            let next = entries.by_ref().take(AHEAD).map(|entry| &entry.object);
            ahead.extend(next);
            if ahead.is_empty() {
                break;
            }
            let counts = ahead.iter().map(|object| Arc::strong_count(object));
            std::hint::black_box(counts.fold(0, usize::wrapping_add));
            objects.extend(ahead.drain(..).map(Arc::clone));
        }
    } else {
        objects.extend(entries.map(|entry| Arc::clone(&entry.object)));
    }
    objects
}
