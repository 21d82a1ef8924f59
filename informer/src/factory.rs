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
use kube_core::{DynamicObject, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::panic_text;
use crate::{Error, Informer, InformerOptions, Synced, wait_for_cache_sync};

/// What all informers of a factory begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactoryOptions {
    /// Namespace to look at; `None` for all.
    pub namespace: Option<String>,
    /// How often handlers get every object again; zero is never.
    pub resync: Duration,
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

/// What tells informers apart.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Typed(TypeId),
    /// Group, version and plural.
    Dynamic(String, String, String),
}

struct Member {
    informer: Box<dyn Any + Send>,
    synced: Arc<dyn Synced>,
    run: Box<dyn Fn(CancellationToken) -> BoxFuture<'static, Result<(), Error>> + Send>,
    started: bool,
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
        self.stop.cancel();
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
    /// [`Error::InvalidOption`] names an option that cannot work.
    pub fn informer<K>(&self) -> Result<Informer<K>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.informer_with(|_| {})
    }

    /// The informer of a kind; the call that makes it may change its options, later ones not.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names an option that cannot work.
    pub fn informer_with<K>(
        &self,
        tweak: impl FnOnce(&mut InformerOptions<K>),
    ) -> Result<Informer<K>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.get_or_make(Key::Typed(TypeId::of::<K>()), &(), tweak)
    }

    /// The informer of a kind that is known at run time, over untyped objects.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names an option that cannot work.
    pub fn dynamic(&self, kind: &ApiResource) -> Result<Informer<DynamicObject>, Error> {
        let key = Key::Dynamic(
            kind.group.clone(),
            kind.version.clone(),
            kind.plural.clone(),
        );
        self.get_or_make(key, kind, |_| {})
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
        let mut state = self.state.lock();
        if let Some(member) = state.members.get(&key)
            && let Some(informer) = member.informer.downcast_ref::<Informer<K>>()
        {
            return Ok(informer.clone());
        }
        let mut options = InformerOptions {
            namespace: self.options.namespace.clone(),
            resync: self.options.resync,
            ..InformerOptions::default()
        };
        tweak(&mut options);
        let informer = Informer::for_kind(self.client.clone(), kind, options)?;
        let run = informer.clone();
        let member = Member {
            informer: Box::new(informer.clone()),
            synced: Arc::new(informer.clone()),
            run: Box::new(move |stop| {
                let informer = run.clone();
                Box::pin(async move { informer.run(stop).await })
            }),
            started: false,
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
            return Err(Error::Stopped {
                informer: "a factory".to_owned(),
            });
        }
        let failures = Arc::clone(&state.failures);
        for member in state.members.values_mut().filter(|member| !member.started) {
            member.started = true;
            let run = (member.run)(self.stop.child_token());
            let (failures, name) = (Arc::clone(&failures), member.synced.name());
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
            });
        }
        Ok(())
    }

    /// Waits until all started informers have synced, or `stop`; tells for each by its name
    /// whether it has. Informers that share a name, such as one of whole objects and one of their
    /// metadata, have if all of them have. Cancel-safe.
    pub async fn wait_for_cache_sync(&self, stop: &CancellationToken) -> BTreeMap<String, bool> {
        let started: Vec<_> = {
            let state = self.state.lock();
            let started = state.members.values().filter(|member| member.started);
            started.map(|member| Arc::clone(&member.synced)).collect()
        };
        let all: Vec<_> = started.iter().map(AsRef::as_ref).collect();
        // Those that are missing show as such below.
        drop(wait_for_cache_sync(stop, &all).await);
        let mut by_name = BTreeMap::new();
        for one in started {
            *by_name.entry(one.name()).or_insert(true) &= one.has_synced();
        }
        by_name
    }

    /// Ends all informers and waits for them; nothing can be started afterwards.
    ///
    /// # Errors
    /// Those with which informers ended by themselves, a panic as [`Error::Panicked`].
    pub async fn shutdown(&self) -> Result<(), Vec<Error>> {
        let failures = {
            let mut state = self.state.lock();
            state.shut_down = true;
            Arc::clone(&state.failures)
        };
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let failures = std::mem::take(&mut *failures.lock());
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }
}
