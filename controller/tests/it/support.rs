//! Scripted informers, scripted reconcilers, and the task that runs them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::{
    Action, Context, Controller, ControllerHandle, ControllerOptions, Error, Informer,
    InformerOptions, ObjectKey, ReconcileError, Reconciler,
};
use futures::future::BoxFuture;
use informer::source::WatchEvent;
use informer::source::scripted::{ListAnswer, Scripted, WatchFeed};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::Resource;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) type Answer = Result<Action, ReconcileError>;

pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("ns", name)
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Name of a controller that no other test of this process has.
pub(crate) fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", controller::Uuid::new_v4().simple())
}

pub(crate) fn config(name: &str, version: u32) -> ConfigMap {
    object(name, version)
}

pub(crate) fn object<K: Resource + Default>(name: &str, version: u32) -> K {
    let mut object = K::default();
    let meta = object.meta_mut();
    meta.namespace = Some("ns".to_owned());
    meta.name = Some(name.to_owned());
    meta.uid = Some(format!("uid-of-{name}"));
    meta.resource_version = Some(version.to_string());
    object
}

pub(crate) fn owned_by<K: Resource>(mut object: K, references: Vec<OwnerReference>) -> K {
    object.meta_mut().owner_references = Some(references);
    object
}

/// An informer over a script: one list, then one watch that the test feeds.
pub(crate) struct Scene<K> {
    pub(crate) informer: Informer<K>,
    pub(crate) script: Scripted<K>,
    pub(crate) feed: WatchFeed<K>,
}

impl<K> Scene<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Send + Sync + 'static,
{
    /// The list holds `objects`.
    pub(crate) fn listing(objects: Vec<K>) -> Self {
        let scene = Self::silent();
        scene.script.list(ListAnswer::all(objects, "1000"));
        scene
    }

    /// The list is not answered until the test scripts an answer.
    pub(crate) fn silent() -> Self {
        let script = Scripted::new();
        let feed = script.watch();
        let informer =
            Informer::from_source(&K::kind(&()), script.clone(), InformerOptions::default())
                .unwrap();
        Self {
            informer,
            script,
            feed,
        }
    }

    pub(crate) fn add(&self, object: K) {
        self.feed.send(WatchEvent::Added(object));
    }

    pub(crate) fn modify(&self, object: K) {
        self.feed.send(WatchEvent::Modified(object));
    }

    pub(crate) fn delete(&self, object: K) {
        self.feed.send(WatchEvent::Deleted(object));
    }
}

/// One call of a scripted reconciler.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) key: ObjectKey,
    /// Time since the reconciler was made.
    pub(crate) at: Duration,
    pub(crate) ctx: Context,
}

type Behaviour = dyn Fn(ObjectKey, Context, usize) -> BoxFuture<'static, Answer> + Send + Sync;

/// Records its calls and behaves as the test says.
#[derive(Clone)]
pub(crate) struct Scripting {
    start: Instant,
    calls: Arc<Mutex<Vec<Call>>>,
    behaviour: Arc<Behaviour>,
}

impl Scripting {
    /// `behaviour` gets key, context and the number of earlier calls with this key.
    pub(crate) fn new<F, Fut>(behaviour: F) -> Self
    where
        F: Fn(ObjectKey, Context, usize) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        let behaviour: Arc<Behaviour> =
            Arc::new(move |key, ctx, n| Box::pin(behaviour(key, ctx, n)));
        Self {
            start: Instant::now(),
            calls: Arc::default(),
            behaviour,
        }
    }

    /// Answers at once.
    pub(crate) fn answering(
        answer: impl Fn(&ObjectKey, usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |key, _, n| std::future::ready(answer(&key, n)))
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Milliseconds at which `name` was called.
    pub(crate) fn times(&self, name: &str) -> Vec<u128> {
        let of_key = |call: &Call| call.key == key(name);
        self.calls()
            .into_iter()
            .filter(of_key)
            .map(|call| call.at.as_millis())
            .collect()
    }

    /// Names in the order of the calls.
    pub(crate) fn names(&self) -> Vec<String> {
        self.calls()
            .iter()
            .map(|call| call.key.name().to_owned())
            .collect()
    }

    /// How often each key was called.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for name in self.names() {
            *counts.entry(name).or_default() += 1;
        }
        counts
    }
}

impl Reconciler for Scripting {
    async fn reconcile(&self, key: &ObjectKey, ctx: &Context) -> Answer {
        let earlier = {
            let mut calls = self.calls.lock().unwrap();
            let earlier = calls.iter().filter(|call| call.key == *key).count();
            let (key, ctx) = (key.clone(), ctx.clone());
            calls.push(Call {
                key,
                at: self.start.elapsed(),
                ctx,
            });
            earlier
        };
        (self.behaviour)(key.clone(), ctx.clone(), earlier).await
    }
}

/// A running controller over ConfigMaps.
pub(crate) struct Stage {
    pub(crate) scene: Scene<ConfigMap>,
    pub(crate) handle: ControllerHandle,
    stop: CancellationToken,
    informer: JoinSet<()>,
    controller: JoinSet<Result<(), Error>>,
}

impl Stage {
    /// Runs `reconciler` over the objects named.
    pub(crate) fn open(names: &[&str], reconciler: Scripting, options: ControllerOptions) -> Self {
        let objects = names.iter().map(|name| config(name, 1)).collect();
        Self::over(Scene::listing(objects), reconciler, options)
    }

    /// Runs `reconciler` over the objects of `scene`.
    pub(crate) fn over(
        scene: Scene<ConfigMap>,
        reconciler: Scripting,
        options: ControllerOptions,
    ) -> Self {
        let controller = Controller::builder(unique("stage"), reconciler)
            .for_object(&scene.informer)
            .options(options)
            .build()
            .unwrap();
        let handle = controller.handle();
        let stop = CancellationToken::new();
        let (mut informers, mut controllers) = (JoinSet::new(), JoinSet::new());
        let (informer, token) = (scene.informer.clone(), stop.clone());
        informers.spawn(async move { informer.run(token).await.unwrap() });
        controllers.spawn(controller.run(stop.clone()));
        Self {
            scene,
            handle,
            stop,
            informer: informers,
            controller: controllers,
        }
    }

    /// Tells the controller to stop.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Drops the running controller at its next await.
    pub(crate) async fn abort(&mut self) {
        self.controller.shutdown().await;
    }

    /// Stops, waits for the end and gives the controller's result.
    pub(crate) async fn close(mut self) -> Result<(), Error> {
        self.stop();
        let result = self.controller.join_next().await.unwrap().unwrap();
        while let Some(ended) = self.informer.join_next().await {
            ended.unwrap();
        }
        result
    }
}

/// Lets paused time pass; everything due until then has happened afterwards.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    // Whatever became due at the same moment runs before this task goes on.
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
