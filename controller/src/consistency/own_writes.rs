//! The own writes of one controller: noticed where they are made, asked for before the next run.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use informer::{ObjectKey, kind_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{DynamicObject, Resource};

use super::store::{Standing, standing};
use super::{Cache, Consistency, ConsistencyStore, Lag, ObservedVersion, Tracked};
use crate::Context;

/// What a controller has written, key by key, and the caches that have to show it.
///
/// A [`Controller`](crate::Controller) has one and asks it by itself. A test that calls a reconciler
/// with a cache of its own does the same by [`context`](Self::context).
pub struct OwnWrites {
    store: ConsistencyStore,
    /// Replaced whole, so that no lock is held while a cache is asked.
    caches: RwLock<Arc<[Known]>>,
    /// Whether anything was ever noted: most controllers' caches keep up, and pay nothing.
    noted: AtomicBool,
}

#[derive(Clone)]
struct Known {
    cache: Arc<dyn Cache>,
    id: Tracked,
    /// Whether it has the objects that the keys stand for.
    has_owners: bool,
}

/// So that a cache is tracked through a pointer.
struct Version(Arc<dyn Cache>);

impl ObservedVersion for Version {
    fn observed_version(&self) -> Option<Arc<str>> {
        self.0.observed_version()
    }
}

impl fmt::Debug for OwnWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnWrites")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl OwnWrites {
    /// Without caches; a write is waited for at most `cap`.
    #[must_use]
    pub fn new(cap: Duration) -> Self {
        Self {
            store: ConsistencyStore::new(cap),
            caches: RwLock::default(),
            noted: AtomicBool::new(false),
        }
    }

    /// Compares writes of its kind with `cache`.
    pub fn track(&self, cache: impl Cache) {
        self.add(Arc::new(cache), false);
    }

    /// As [`track`](Self::track), for the cache that has the objects the keys stand for: a record
    /// ends when the one of its key is gone or another one.
    pub fn track_owners(&self, cache: impl Cache) {
        self.add(Arc::new(cache), true);
    }

    fn add(&self, cache: Arc<dyn Cache>, has_owners: bool) {
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = caches.to_vec();
        let identity = cache.identity();
        let same = |known: &&mut Known| identity.is_some() && known.cache.identity() == identity;
        match all.iter_mut().find(same) {
            Some(known) => known.has_owners |= has_owners,
            None => all.push(Known {
                id: self.store.track(cache.kind(), Version(Arc::clone(&cache))),
                cache,
                has_owners,
            }),
        }
        *caches = all.into();
    }

    fn caches(&self) -> Arc<[Known]> {
        // Replaced whole, so a panic elsewhere leaves it usable.
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&caches)
    }

    /// Notes that the reconcile of `key` wrote `object`, as the server answered with it.
    ///
    /// Without effect if no tracked cache will show the object, or if all that will show this
    /// version already.
    pub fn wrote<K: Resource + 'static>(&self, key: &ObjectKey, object: &K) {
        if let Some(kind) = kind_of(object) {
            self.note(key, &kind, object.meta());
        }
    }

    fn note(&self, key: &ObjectKey, kind: &str, written: &ObjectMeta) {
        let version = written.resource_version.as_deref().unwrap_or_default();
        if version.is_empty() {
            return;
        }
        let caches = self.caches();
        let of_owners = owner_kind(&caches) == Some(kind);
        for known in caches.iter() {
            let Known { cache, id, .. } = known;
            if cache.kind() != kind || !cache.will_show(written) {
                continue;
            }
            let observed = cache.observed_version();
            if standing(observed.as_deref(), version) == Standing::Reached {
                continue;
            }
            self.noted.store(true, Ordering::Release);
            let has_owners = known.has_owners && of_owners;
            if has_owners && ObjectKey::from_meta(written).as_ref() == Some(key) {
                let uid = written.uid.as_deref().unwrap_or_default();
                self.store.wrote_itself(key, uid, *id, version);
            } else {
                let present = || owner_uid(&caches, key).into();
                let uid = self.store.uid(key).unwrap_or_else(present);
                self.store.wrote(key, &uid, *id, version);
            }
        }
    }

    /// Tells whether the caches have reached the writes of `key`, and forgets what they have reached.
    #[must_use]
    pub fn check(&self, key: &ObjectKey) -> Consistency {
        if !self.noted.load(Ordering::Acquire) || self.store.uid(key).is_none() {
            return Consistency::Level;
        }
        let caches = self.caches();
        self.store.check(key, &owner_uid(&caches, key))
    }

    /// The context of a first run of `key` now, whose writes are noted here: what a worker does
    /// before it calls a reconciler, for tests that call one themselves.
    ///
    /// # Errors
    /// [`Lag`] if the key must not run yet.
    pub fn context(self: &Arc<Self>, key: &ObjectKey) -> Result<Context, Box<Lag>> {
        let stale = match self.check(key) {
            Consistency::Level => None,
            Consistency::Behind(lag) => return Err(Box::new(lag)),
            Consistency::Overdue(lag) => Some(lag),
        };
        Ok(Context::default().of(Run::new(self, key), stale))
    }

    /// Keys with writes that a cache does not show, by how far it is behind: those that must not run
    /// now. The one that has waited longest comes first. Looks at all writes that are not known to be
    /// reached.
    #[must_use]
    pub fn held_back(&self) -> Vec<(ObjectKey, Lag)> {
        self.store.behind()
    }

    /// Number of keys with writes that are not known to be reached.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }
}

/// The kind that the keys stand for. Where several kinds share their names, it is the first: an object
/// of another kind has a UID of its own, which says nothing of the first one's.
fn owner_kind(caches: &[Known]) -> Option<&str> {
    let first = caches.iter().find(|known| known.has_owners)?;
    Some(first.cache.kind())
}

/// UID of the object that `key` stands for; empty if no cache of its kind has one.
fn owner_uid(caches: &[Known], key: &ObjectKey) -> String {
    let kind = owner_kind(caches);
    let mut owners = caches
        .iter()
        .filter(|known| known.has_owners && Some(known.cache.kind()) == kind);
    owners
        .find_map(|known| known.cache.uid(key))
        .unwrap_or_default()
}

/// Kind and group of an object, as [`Cache::kind`] names them; none if only its API knows.
fn kind_of<K: Resource + 'static>(object: &K) -> Option<Cow<'static, str>> {
    // A type that stands for one kind needs nothing to tell it.
    if let Some(nothing) = (&() as &dyn Any).downcast_ref::<K::DynamicType>() {
        return Some(kind_name::<K>(nothing).into());
    }
    let types = (object as &dyn Any)
        .downcast_ref::<DynamicObject>()?
        .types
        .as_ref()?;
    let group = types.api_version.split_once('/').map(|(group, _)| group);
    Some(match group {
        None => types.kind.clone().into(),
        Some(group) => format!("{}.{group}", types.kind).into(),
    })
}

/// A run of a key, by whose name writes are noted; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    writes: Arc<OwnWrites>,
    key: ObjectKey,
}

tokio::task_local! {
    /// The run that this task is in.
    static RUN: Run;
}

impl Run {
    pub(crate) fn new(writes: &Arc<OwnWrites>, key: &ObjectKey) -> Self {
        Self {
            writes: Arc::clone(writes),
            key: key.clone(),
        }
    }

    pub(crate) fn wrote<K: Resource + 'static>(&self, object: &K) {
        self.writes.wrote(&self.key, object);
    }

    /// `future`, during which [`notice`] knows of this run.
    pub(crate) fn during<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        RUN.scope(self, future)
    }
}

/// Notes a write of this crate's functions, if the task is in a run.
pub(crate) fn notice<K: Resource + 'static>(object: &K) {
    // Outside of a reconcile there is nobody to hold back.
    let _ = RUN.try_with(|run| run.wrote(object));
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use informer::MetadataOnly;
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube_core::TypeMeta;
    use serde_json::json;

    use super::*;

    /// A cache of ConfigMaps that shows one object under any key.
    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<(u32, Option<&'static str>)>>);

    impl Shown {
        fn show(&self, version: u32, uid: Option<&'static str>) {
            *self.0.lock().unwrap() = (version, uid);
        }
    }

    impl ObservedVersion for Shown {
        fn observed_version(&self) -> Option<Arc<str>> {
            Some(self.0.lock().unwrap().0.to_string().into())
        }
    }

    impl Cache for Shown {
        fn kind(&self) -> &str {
            "ConfigMap"
        }

        fn uid(&self, _: &ObjectKey) -> Option<String> {
            self.0.lock().unwrap().1.map(str::to_owned)
        }

        fn will_show(&self, _: &ObjectMeta) -> bool {
            true
        }

        fn identity(&self) -> Option<usize> {
            Some(Arc::as_ptr(&self.0).addr())
        }
    }

    fn config(version: u32) -> ConfigMap {
        let mut config = ConfigMap::default();
        config.metadata.resource_version = Some(version.to_string());
        config
    }

    fn world() -> (Arc<OwnWrites>, Shown, ObjectKey) {
        let (writes, shown) = (
            Arc::new(OwnWrites::new(Duration::from_secs(10))),
            Shown::default(),
        );
        shown.show(10, Some("u"));
        writes.track_owners(shown.clone());
        (writes, shown, ObjectKey::namespaced("ns", "a"))
    }

    fn is_behind(writes: &OwnWrites, key: &ObjectKey) -> bool {
        matches!(writes.check(key), Consistency::Behind(_))
    }

    #[test]
    fn k8_a_kind_is_known_by_its_type_or_by_what_a_dynamic_object_says() {
        assert_eq!(kind_of(&ConfigMap::default()).as_deref(), Some("ConfigMap"));
        assert_eq!(
            kind_of(&Deployment::default()).as_deref(),
            Some("Deployment.apps")
        );
        let metadata = MetadataOnly::<Secret>::new(ObjectMeta::default());
        assert_eq!(kind_of(&metadata).as_deref(), Some("Secret"));
        for (api_version, kind, expected) in [
            ("v1", "Pod", "Pod"),
            ("example.dev/v1", "Site", "Site.example.dev"),
        ] {
            let mut object: DynamicObject = serde_json::from_value(json!({})).unwrap();
            assert_eq!(kind_of(&object), None);
            object.types = Some(TypeMeta {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
            });
            assert_eq!(kind_of(&object).as_deref(), Some(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn k8_only_what_a_cache_has_yet_to_show_is_noted() {
        let (writes, shown, key) = world();
        writes.wrote(&key, &config(10));
        writes.wrote(&key, &Secret::default());
        writes.wrote(&key, &ConfigMap::default());
        assert!(
            writes.is_empty(),
            "shown already, of another kind, without a version"
        );
        writes.wrote(&key, &config(11));
        assert!(is_behind(&writes, &key));
        assert_eq!(
            writes.check(&ObjectKey::namespaced("ns", "b")),
            Consistency::Level
        );
        shown.show(11, Some("u"));
        assert_eq!(writes.check(&key), Consistency::Level);
        assert!(writes.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn k8_a_record_ends_with_the_object_of_its_key() {
        for gone in [None, Some("another")] {
            let (writes, shown, key) = world();
            writes.wrote(&key, &config(12));
            shown.show(11, gone);
            assert_eq!(writes.check(&key), Consistency::Level, "{gone:?}");
            assert!(writes.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn k8_a_record_ends_with_the_object_of_its_key_whichever_scope_has_it() {
        for gone in [None, Some("another")] {
            let (writes, first, key) = world();
            first.show(10, None);
            let second = Shown::default();
            second.show(10, Some("u"));
            writes.track_owners(second.clone());
            writes.wrote(&key, &config(12));
            second.show(11, Some("u"));
            assert!(is_behind(&writes, &key));
            second.show(11, gone);
            assert_eq!(writes.check(&key), Consistency::Level, "{gone:?}");
            assert!(writes.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn k8_an_object_made_anew_behind_a_cache_of_a_second_scope_is_waited_for() {
        let (writes, first, key) = world();
        first.show(30, None);
        let second = Shown::default();
        second.show(10, Some("u"));
        writes.track_owners(second.clone());
        let mut successor = config(20);
        successor.metadata = ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some("a".to_owned()),
            uid: Some("successor".to_owned()),
            ..successor.metadata
        };
        writes.wrote(&key, &successor);
        assert!(is_behind(&writes, &key), "it shows the one before");
        second.show(20, Some("successor"));
        assert_eq!(writes.check(&key), Consistency::Level);
    }

    #[tokio::test(start_paused = true)]
    async fn k8_a_cache_tracked_twice_counts_once_and_has_the_owners_if_one_says_so() {
        let (shown, key) = (Shown::default(), ObjectKey::namespaced("ns", "a"));
        shown.show(10, Some("u"));
        for owners_first in [true, false] {
            let writes = Arc::new(OwnWrites::new(Duration::from_secs(10)));
            if owners_first {
                writes.track_owners(shown.clone());
            }
            writes.track(shown.clone());
            if !owners_first {
                writes.track_owners(shown.clone());
            }
            assert_eq!(writes.caches().len(), 1);
            writes.wrote(&key, &config(12));
            assert!(is_behind(&writes, &key));
            shown.show(11, Some("another"));
            assert_eq!(writes.check(&key), Consistency::Level, "the owner is gone");
            shown.show(10, Some("u"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn k8_an_object_made_anew_behind_the_cache_is_waited_for() {
        let (writes, shown, key) = world();
        // The cache shows `u`; the write went to its successor.
        let mut successor = config(20);
        successor.metadata = ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some("a".to_owned()),
            uid: Some("successor".to_owned()),
            ..successor.metadata
        };
        writes.wrote(&key, &successor);
        writes.wrote(&key, &config(15));
        for (version, uid) in [(15, Some("u")), (18, None), (19, Some("successor"))] {
            shown.show(version, uid);
            assert!(
                is_behind(&writes, &key),
                "{version}: the write is not shown"
            );
        }
        for (version, uid) in [(20, Some("successor")), (21, Some("third")), (22, None)] {
            shown.show(version, uid);
            assert_eq!(writes.check(&key), Consistency::Level, "{version}");
            assert!(writes.is_empty());
            // The next case begins with the same write.
            shown.show(10, Some("u"));
            writes.wrote(&key, &successor);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn k8_what_is_written_before_the_object_is_shown_counts_when_it_comes() {
        let (writes, shown, key) = world();
        shown.show(10, None);
        writes.wrote(&key, &config(12));
        shown.show(11, Some("u"));
        assert!(is_behind(&writes, &key), "noted under no UID");
        shown.show(11, Some("another"));
        assert_eq!(writes.check(&key), Consistency::Level, "it was of `u`");
    }

    #[tokio::test(start_paused = true)]
    async fn k8_objects_of_a_second_kind_under_the_same_names_leave_the_record_alone() {
        let (writes, shown, key) = world();
        let second = Shown::default();
        second.show(10, Some("of the second kind"));
        writes.track_owners(second.clone());
        writes.wrote(&key, &config(15));
        second.show(15, Some("of the second kind"));
        let mut other = config(16);
        other.metadata.namespace = Some("ns".to_owned());
        other.metadata.name = Some("a".to_owned());
        other.metadata.uid = Some("u".to_owned());
        writes.wrote(&key, &other);
        second.show(16, Some("of the second kind"));
        assert!(is_behind(&writes, &key), "the first cache has seen 10");
        shown.show(16, Some("u"));
        assert_eq!(writes.check(&key), Consistency::Level);
    }

    #[tokio::test(start_paused = true)]
    async fn k8_looks_come_closer_at_first_and_none_lies_beyond_the_cap() {
        let (writes, _, key) = world();
        writes.wrote(&key, &config(11));
        let (mut looks, began) = (0, tokio::time::Instant::now());
        while let Consistency::Behind(lag) = writes.check(&key) {
            looks += 1;
            tokio::time::advance(lag.look_again()).await;
        }
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        assert!((10..=20).contains(&looks), "{looks}");
        let context = writes.context(&key).unwrap();
        let lag = context.stale().expect("past the cap");
        assert_eq!((&*lag.written, lag.observed.as_deref()), ("11", Some("10")));
    }

    #[tokio::test(start_paused = true)]
    async fn k8_a_write_is_noticed_within_a_run_and_nowhere_else() {
        let (writes, _, key) = world();
        let context = writes.context(&key).unwrap();
        notice(&config(11));
        assert!(writes.is_empty(), "no run");
        context.noticing(async { notice(&config(11)) }).await;
        assert!(is_behind(&writes, &key));
        let Err(lag) = writes.context(&key) else {
            panic!("it must not run");
        };
        assert_eq!(lag.remaining, Duration::from_secs(10));
        let other = ObjectKey::namespaced("ns", "b");
        writes.context(&other).unwrap().wrote(&config(12));
        assert!(is_behind(&writes, &other), "told by the context");
        Context::default()
            .noticing(async { notice(&config(13)) })
            .await;
        assert_eq!(writes.len(), 2, "a plain context has nowhere to note it");
    }
}
