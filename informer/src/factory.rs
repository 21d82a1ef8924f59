//! One informer for each kind, started and stopped together.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube_core::discovery::ApiResource;
use kube_core::{DynamicObject, ObjectMeta, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::panic_text;
use crate::synced::Gate;
use crate::{
    Cut, Error, Informer, InformerOptions, Lister, MetadataOnly, Synced, Transform, metrics,
};

/// Changes the metadata of every object before it is stored, whatever its kind.
pub type MetadataTransform = Arc<dyn Fn(&mut ObjectMeta) + Send + Sync>;

/// What a read does where nobody asked for an informer of its kind yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissingInformer {
    /// It makes and starts one.
    #[default]
    Start,
    /// It fails with [`Error::NoInformer`], so that no read begins to cache a whole kind unseen.
    Fail,
}

/// What all informers of a factory begin with.
#[derive(Clone)]
pub struct FactoryOptions {
    /// Name under which all of them keep metrics, those of metadata and of dynamic objects with
    /// `-metadata` and `-dynamic` behind it, and those of a Rust type that is not named as its kind
    /// with the type's name; `None` for no metrics.
    pub name: Option<String>,
    /// Where metrics are read.
    pub registry: metrics::Registry,
    /// Namespace to look at; `None` for all.
    pub namespace: Option<String>,
    /// Label selector.
    pub label_selector: Option<String>,
    /// Field selector.
    pub field_selector: Option<String>,
    /// Parts of objects that are left out while reading.
    pub cut: Cut,
    /// How often handlers get every object again; zero is never.
    pub resync: Duration,
    /// Each informer's period is longer or shorter by up to this part of it, from 0 to 1 (others
    /// are refused), so that not all kinds come at once.
    pub resync_jitter: f64,
    /// Changes metadata before it is stored, before the transform of the informer itself.
    pub metadata_transform: Option<MetadataTransform>,
    /// What a read by [`Factory::lister`] does where there is no informer.
    pub on_missing_informer: OnMissingInformer,
}

impl Default for FactoryOptions {
    /// All namespaces, no selectors, no metrics, no resync, reads that start informers.
    fn default() -> Self {
        Self {
            name: None,
            registry: metrics::Registry::global(),
            namespace: None,
            label_selector: None,
            field_selector: None,
            cut: Cut::default(),
            resync: Duration::ZERO,
            resync_jitter: 0.0,
            metadata_transform: None,
            on_missing_informer: OnMissingInformer::default(),
        }
    }
}

impl fmt::Debug for FactoryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FactoryOptions")
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("resync", &self.resync)
            .finish_non_exhaustive()
    }
}

impl FactoryOptions {
    /// The same options with the resync that controller-runtime has: every 10 hours, up to a
    /// tenth earlier or later.
    #[must_use]
    pub fn with_slow_resync(self) -> Self {
        Self {
            resync: Duration::from_secs(10 * 3600),
            resync_jitter: 0.1,
            ..self
        }
    }

    /// What an informer of `K` begins with.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a jitter that is no part.
    fn informer<K: Resource + 'static>(&self, form: &str) -> Result<InformerOptions<K>, Error> {
        let jitter = self.resync_jitter;
        if !(0.0..=1.0).contains(&jitter) {
            return Err(Error::InvalidOption {
                option: "resync_jitter",
                problem: format!("{jitter} is no part of the period: write 0 to 1"),
            });
        }
        let factor = 1.0 + jitter * (2.0 * rand::random::<f64>() - 1.0);
        let resync = Duration::try_from_secs_f64(self.resync.as_secs_f64() * factor);
        let transform = self.metadata_transform.clone();
        Ok(InformerOptions {
            name: self.name.as_ref().map(|name| format!("{name}{form}")),
            registry: self.registry.clone(),
            namespace: self.namespace.clone(),
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            cut: self.cut,
            // What is too long to express is never due in any case.
            resync: resync.unwrap_or(Duration::MAX),
            transform: transform.map(|transform| -> Transform<K> {
                Arc::new(move |object: &mut K| {
                    transform(object.meta_mut());
                    Ok(())
                })
            }),
            ..InformerOptions::default()
        })
    }
}

/// Makes informers, each kind once, so that everything in a process shares one cache of a kind.
///
/// [`Factory::start`] may be called again and again: it starts what was asked for since. The
/// tasks belong to the factory; [`Factory::shutdown`] ends them and waits, dropping the factory
/// ends them without waiting.
pub struct Factory {
    client: kube_client::Client,
    options: FactoryOptions,
    stop: CancellationToken,
    tasks: TaskTracker,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: HashMap<Key, Member>,
    failures: Arc<Mutex<Vec<Error>>>,
    shut_down: bool,
}

impl State {
    /// The informer of `key`, if there is one.
    ///
    /// # Errors
    /// [`Error::Stopped`] if there can be none any more.
    fn known<K>(&self, key: &Key) -> Result<Option<Informer<K>>, Error>
    where
        K: Resource + Send + Sync + 'static,
    {
        let member = self.members.get(key);
        let informer = member.and_then(|member| member.informer.downcast_ref::<Informer<K>>());
        match informer {
            Some(informer) => Ok(Some(informer.clone())),
            None if self.shut_down => Err(stopped("a factory")),
            None => Ok(None),
        }
    }
}

/// What tells informers apart.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Typed(TypeId),
    Dynamic {
        /// Group, version and plural.
        kind: [String; 3],
        /// Of the metadata alone.
        metadata: bool,
    },
}

struct Member {
    informer: Box<dyn Any + Send>,
    synced: Arc<dyn Synced>,
    run: Box<dyn Fn(CancellationToken) -> BoxFuture<'static, Result<(), Error>> + Send>,
    /// Ends one that never started.
    give_up: Arc<dyn Fn() + Send + Sync>,
    /// Ends this informer alone.
    stop: CancellationToken,
    started: bool,
    /// Its task has ended, in whatever way.
    ended: Arc<Gate>,
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let names: Vec<_> = state
            .members
            .values()
            .map(|member| member.synced.name())
            .collect();
        f.debug_struct("Factory")
            .field("informers", &names)
            .finish_non_exhaustive()
    }
}

impl Drop for Factory {
    fn drop(&mut self) {
        self.close();
    }
}

fn stopped(informer: &str) -> Error {
    Error::Stopped {
        informer: informer.to_owned(),
    }
}

fn dynamic_key(kind: &ApiResource, metadata: bool) -> Key {
    let kind = [&kind.group, &kind.version, &kind.plural].map(Clone::clone);
    Key::Dynamic { kind, metadata }
}

/// What the name of an informer's metrics has behind that of its factory.
fn form<K: Resource>(key: &Key, kind: &K::DynamicType) -> String {
    match key {
        Key::Dynamic {
            metadata: false, ..
        } => "-dynamic".to_owned(),
        Key::Dynamic { metadata: true, .. } => "-dynamic-metadata".to_owned(),
        Key::Typed(_) if K::metadata_api() => "-metadata".to_owned(),
        Key::Typed(_) => {
            let name = std::any::type_name::<K>();
            let path = name.split('<').next().unwrap_or(name);
            let own = path.rsplit("::").next().unwrap_or(path);
            if own == K::kind(kind) {
                String::new()
            } else {
                format!("-{own}")
            }
        }
    }
}

/// One transform behind the other.
fn both<K: 'static>(
    first: Option<Transform<K>>,
    second: Option<Transform<K>>,
) -> Option<Transform<K>> {
    match (first, second) {
        (Some(first), Some(second)) => Some(Arc::new(move |object: &mut K| {
            first(object)?;
            second(object)
        })),
        (first, second) => first.or(second),
    }
}

impl Factory {
    /// A factory without informers. Makes no request.
    pub fn new(client: kube_client::Client, options: FactoryOptions) -> Self {
        Self {
            client,
            options,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            state: Mutex::default(),
        }
    }

    /// The informer of a kind, made at the first call.
    ///
    /// For metadata alone ask for [`MetadataOnly<K>`](crate::MetadataOnly), which is a kind of
    /// its own.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names an option that cannot work; [`Error::NameTaken`] where another
    /// Rust type of the same name has an informer of the kind, which then needs another name by
    /// [`Factory::informer_with`]; [`Error::Stopped`] after [`Factory::shutdown`], for a kind that
    /// nobody asked for before.
    pub fn informer<K>(&self) -> Result<Informer<K>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.informer_with(|_| {})
    }

    /// The informer of a kind; the call that makes it may change its options, later ones not. `tweak`
    /// may ask this factory for other informers.
    ///
    /// # Errors
    /// As those of [`Factory::informer`].
    pub fn informer_with<K>(
        &self,
        tweak: impl FnOnce(&mut InformerOptions<K>),
    ) -> Result<Informer<K>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.get_or_make(Key::Typed(TypeId::of::<K>()), &(), tweak)
    }

    /// Read access to the cache of a kind, once it has synced. Where nobody asked for its informer
    /// yet, [`FactoryOptions::on_missing_informer`] decides. Starts this informer, and no other that
    /// its owner may still be setting up. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::NoInformer`] by that option; [`Error::Stopped`] after [`Factory::shutdown`] and
    /// if the informer ended before it synced; those of [`Factory::informer`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn lister<K>(&self) -> Result<Lister<K>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.started::<K>(Key::Typed(TypeId::of::<K>()), &()).await
    }

    /// As [`Factory::lister`], over a kind that is known at run time.
    ///
    /// # Errors
    /// As those of [`Factory::lister`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn dynamic_lister(&self, kind: &ApiResource) -> Result<Lister<DynamicObject>, Error> {
        self.started(dynamic_key(kind, false), kind).await
    }

    /// Takes the informer of a kind out of the factory, stops it and waits for its end: its handlers
    /// are dropped, and it does not run again, if it did. Its cache is freed with the last handle on
    /// it. Whoever asks for the kind again gets a new informer.
    ///
    /// Returns whether there was one. Cancel-safe: the removal goes on.
    pub async fn remove<K>(&self) -> bool
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        self.remove_member(&Key::Typed(TypeId::of::<K>())).await
    }

    /// As [`Factory::remove`], of a kind that is known at run time.
    pub async fn remove_dynamic(&self, kind: &ApiResource) -> bool {
        self.remove_member(&dynamic_key(kind, false)).await
    }

    /// As [`Factory::remove`], of the metadata of a kind that is known at run time.
    pub async fn remove_dynamic_metadata(&self, kind: &ApiResource) -> bool {
        self.remove_member(&dynamic_key(kind, true)).await
    }

    /// The informer of a kind that is known at run time, over untyped objects.
    ///
    /// # Errors
    /// As those of [`Factory::informer`].
    pub fn dynamic(&self, kind: &ApiResource) -> Result<Informer<DynamicObject>, Error> {
        self.dynamic_with(kind, |_| {})
    }

    /// As [`Factory::dynamic`]; the call that makes the informer may change its options, later ones
    /// not.
    ///
    /// # Errors
    /// As those of [`Factory::informer`].
    pub fn dynamic_with(
        &self,
        kind: &ApiResource,
        tweak: impl FnOnce(&mut InformerOptions<DynamicObject>),
    ) -> Result<Informer<DynamicObject>, Error> {
        self.get_or_make(dynamic_key(kind, false), kind, tweak)
    }

    /// The informer of the metadata alone of a kind that is known at run time.
    ///
    /// # Errors
    /// As those of [`Factory::informer`].
    pub fn dynamic_metadata(
        &self,
        kind: &ApiResource,
    ) -> Result<Informer<MetadataOnly<DynamicObject>>, Error> {
        self.dynamic_metadata_with(kind, |_| {})
    }

    /// As [`Factory::dynamic_metadata`]; the call that makes the informer may change its options,
    /// later ones not.
    ///
    /// # Errors
    /// As those of [`Factory::informer`].
    pub fn dynamic_metadata_with(
        &self,
        kind: &ApiResource,
        tweak: impl FnOnce(&mut InformerOptions<MetadataOnly<DynamicObject>>),
    ) -> Result<Informer<MetadataOnly<DynamicObject>>, Error> {
        self.get_or_make(dynamic_key(kind, true), kind, tweak)
    }

    async fn started<K>(&self, key: Key, kind: &K::DynamicType) -> Result<Lister<K>, Error>
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        let fail = self.options.on_missing_informer == OnMissingInformer::Fail;
        if fail && !self.state.lock().members.contains_key(&key) {
            return Err(Error::NoInformer {
                kind: K::kind(kind).into_owned(),
            });
        }
        let informer: Informer<K> = self.get_or_make(key.clone(), kind, |_| {})?;
        let ended = {
            let mut state = self.state.lock();
            if state.shut_down {
                return Err(stopped("a factory"));
            }
            let failures = Arc::clone(&state.failures);
            // Another call may have removed it in between.
            let member = state.members.get_mut(&key);
            let member = member.ok_or_else(|| stopped(informer.name()))?;
            self.start_member(member, failures);
            Arc::clone(&member.ended)
        };
        tokio::select! {
            biased;
            () = informer.synced() => Ok(informer.lister()),
            () = ended.wait() => Err(stopped(informer.name())),
            () = self.stop.cancelled() => Err(stopped(informer.name())),
        }
    }

    async fn remove_member(&self, key: &Key) -> bool {
        let Some(member) = self.state.lock().members.remove(key) else {
            return false;
        };
        member.stop.cancel();
        let (started, ended) = (member.started, Arc::clone(&member.ended));
        if !started {
            (member.give_up)();
        }
        drop(member);
        if started {
            ended.wait().await;
        }
        true
    }

    fn get_or_make<K>(
        &self,
        key: Key,
        kind: &K::DynamicType,
        tweak: impl FnOnce(&mut InformerOptions<K>),
    ) -> Result<Informer<K>, Error>
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        if let Some(known) = self.state.lock().known(&key)? {
            return Ok(known);
        }
        // The caller's code may ask this factory for informers.
        let mut options = self.options.informer(&form::<K>(&key, kind))?;
        let of_all = options.transform.take();
        tweak(&mut options);
        options.transform = both(of_all, options.transform);
        let mut state = self.state.lock();
        if let Some(known) = state.known(&key)? {
            return Ok(known);
        }
        let informer = Informer::for_kind(self.client.clone(), kind, options)?;
        let (run, unstarted) = (informer.clone(), informer.clone());
        let member = Member {
            informer: Box::new(informer.clone()),
            synced: Arc::new(informer.clone()),
            run: Box::new(move |stop| {
                let informer = run.clone();
                Box::pin(async move { informer.run(stop).await })
            }),
            give_up: Arc::new(move || unstarted.give_up()),
            stop: self.stop.child_token(),
            started: false,
            ended: Arc::new(Gate::new()),
        };
        state.members.insert(key, member);
        Ok(informer)
    }

    /// Starts the informers that were asked for since the last call. Does not wait for them.
    ///
    /// # Errors
    /// [`Error::Stopped`] after [`Factory::shutdown`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.shut_down {
            return Err(stopped("a factory"));
        }
        let failures = Arc::clone(&state.failures);
        for member in state.members.values_mut() {
            self.start_member(member, Arc::clone(&failures));
        }
        Ok(())
    }

    /// Starts an informer, unless it has started.
    fn start_member(&self, member: &mut Member, failures: Arc<Mutex<Vec<Error>>>) {
        if std::mem::replace(&mut member.started, true) {
            return;
        }
        let run = (member.run)(member.stop.clone());
        let name = member.synced.name();
        let over = Arc::clone(&member.ended);
        self.tasks.spawn(async move {
            let ended = AssertUnwindSafe(run).catch_unwind().await;
            let outcome = ended.unwrap_or_else(|panic| {
                let message = panic_text(&*panic).to_owned();
                Err(Error::Panicked {
                    informer: name,
                    message,
                })
            });
            if let Err(error) = outcome {
                tracing::error!(%error, "an informer ended");
                failures.lock().push(error);
            }
            over.open();
        });
    }

    /// Waits until all started informers have synced or ended, or `stop`; tells for each by its
    /// name whether it has synced. Informers that share a name, such as one of whole objects and one of their
    /// metadata, have if all of them have. Cancel-safe.
    pub async fn wait_for_cache_sync(&self, stop: &CancellationToken) -> BTreeMap<String, bool> {
        let started: Vec<_> = {
            let state = self.state.lock();
            let started = state.members.values().filter(|member| member.started);
            let parts = started.map(|member| (&member.synced, &member.ended));
            let parts = parts.map(|(synced, ended)| (Arc::clone(synced), Arc::clone(ended)));
            parts.collect()
        };
        let all = started.iter().map(|(synced, ended)| async {
            tokio::select! {
                () = synced.synced() => {}
                () = ended.wait() => {}
            }
        });
        tokio::select! {
            biased;
            _ = futures::future::join_all(all) => {}
            () = stop.cancelled() => {}
        }
        let mut by_name = BTreeMap::new();
        for (one, _) in started {
            *by_name.entry(one.name()).or_insert(true) &= one.has_synced();
        }
        by_name
    }

    /// Tells all informers to end; those that never started have ended then.
    fn close(&self) {
        let unstarted: Vec<_> = {
            let mut state = self.state.lock();
            state.shut_down = true;
            let members = state.members.values();
            let unstarted = members.filter(|member| !member.started);
            unstarted
                .map(|member| Arc::clone(&member.give_up))
                .collect()
        };
        self.stop.cancel();
        // Their handlers may hold what asks this factory.
        for give_up in unstarted {
            give_up();
        }
    }

    /// Ends all informers, also those that never started, and waits for them; nothing can be made or
    /// started afterwards.
    ///
    /// # Errors
    /// Those with which informers ended by themselves, a panic as [`Error::Panicked`].
    pub async fn shutdown(&self) -> Result<(), Vec<Error>> {
        self.close();
        self.tasks.close();
        self.tasks.wait().await;
        let failures = Arc::clone(&self.state.lock().failures);
        let failures = std::mem::take(&mut *failures.lock());
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn i106_a_slow_resync_comes_every_ten_hours_at_different_times() {
        let options = FactoryOptions::default().with_slow_resync();
        let periods: Vec<_> = (0..100)
            .map(|_| options.informer::<ConfigMap>("").unwrap().resync.as_secs())
            .collect();
        assert!(
            periods
                .iter()
                .all(|period| (9 * 3600..=11 * 3600).contains(period))
        );
        assert!(
            periods
                .iter()
                .any(|period| period.abs_diff(10 * 3600) > 600)
        );
        let never = FactoryOptions::default().informer::<ConfigMap>("").unwrap();
        assert_eq!(never.resync, Duration::ZERO, "off unless asked for");
    }

    #[test]
    fn i106_a_period_beyond_all_time_is_kept_and_a_jitter_that_is_no_part_is_refused() {
        for (jitter, allowed) in [
            (0.0, true),
            (1.0, true),
            (-0.1, false),
            (1.1, false),
            (f64::NAN, false),
            (f64::INFINITY, false),
        ] {
            let options = FactoryOptions {
                resync: Duration::MAX,
                resync_jitter: jitter,
                ..FactoryOptions::default()
            };
            match options.informer::<ConfigMap>("") {
                Ok(options) => assert!(allowed && !options.resync.is_zero(), "{jitter}"),
                Err(Error::InvalidOption { option, .. }) => {
                    assert_eq!((option, allowed), ("resync_jitter", false), "{jitter}");
                }
                Err(error) => panic!("{jitter}: {error}"),
            }
        }
    }
}
