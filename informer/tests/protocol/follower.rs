//! An informer under observation: its cache, a handler's view, its failures.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use devcluster::faults::{Action, Rule};
use informer::{Cause, Event, Informer, InformerOptions, ReflectorBackoff};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Client;
use kube_client::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_core::Resource;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::world::{Agent, World};

/// Longest time for anything to come true.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Polls until the probe gives `Ok`, for at most `limit`.
pub(crate) async fn eventually<T, F>(limit: Duration, what: &str, probe: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(reason) if tokio::time::Instant::now() >= deadline => {
                panic!("not within {limit:?}: {what}; last seen: {reason}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// `Ok` where it holds.
pub(crate) fn holds(holds: bool) -> Result<(), String> {
    holds
        .then_some(())
        .ok_or_else(|| "it does not hold".to_owned())
}

pub(crate) fn config_map(name: &str, value: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.data = Some([("k".to_owned(), value.to_owned())].into());
    object
}

pub(crate) async fn create(api: &Api<ConfigMap>, name: &str, value: &str) {
    let object = config_map(name, value);
    api.create(&PostParams::default(), &object).await.unwrap();
}

pub(crate) async fn set(api: &Api<ConfigMap>, name: &str, value: &str) {
    let patch = Patch::Merge(serde_json::json!({"data": {"k": value}}));
    api.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

pub(crate) async fn delete(api: &Api<ConfigMap>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

/// What identifies a state of an object: its resource version.
fn version(object: &impl Resource) -> String {
    object.meta().resource_version.clone().unwrap_or_default()
}

/// A handler's picture: versions by name, and what did not fit.
#[derive(Clone, Default)]
pub(crate) struct View(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    versions: BTreeMap<String, String>,
    deletions: u64,
    problems: Vec<String>,
}

impl View {
    pub(crate) fn handler<K: Resource + 'static>(
        &self,
    ) -> impl Fn(&Event<K>) + Send + Sync + 'static {
        let view = self.clone();
        move |event| {
            let seen = &mut *view.0.lock();
            let name = event.key().name().to_owned();
            let fits = match event {
                Event::Added { object, .. } => seen
                    .versions
                    .insert(name.clone(), version(&**object))
                    .is_none(),
                Event::Updated { old, new } => {
                    let before = seen.versions.insert(name.clone(), version(&**new));
                    before == Some(version(&**old))
                }
                Event::Deleted { .. } => {
                    seen.deletions += 1;
                    seen.versions.remove(&name).is_some()
                }
            };
            if !fits {
                seen.problems.push(name);
            }
        }
    }

    /// How often something was told that does not follow from what was told before.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.0.lock().problems.clone()
    }

    pub(crate) fn deletions(&self) -> u64 {
        self.0.lock().deletions
    }

    pub(crate) fn versions(&self) -> BTreeMap<String, String> {
        self.0.lock().versions.clone()
    }
}

/// Options for tests: short waits.
pub(crate) fn quick<K>(world: &World) -> InformerOptions<K> {
    InformerOptions {
        namespace: Some(world.namespace.clone()),
        backoff: ReflectorBackoff {
            base: Duration::from_millis(5),
            max: Duration::from_millis(500),
            ..ReflectorBackoff::default()
        },
        open_timeout: LIMIT,
        ..InformerOptions::default()
    }
}

/// An informer that runs until this is dropped.
pub(crate) struct Running<K> {
    pub(crate) informer: Informer<K>,
    _task: JoinSet<()>,
}

impl<K: Resource + Send + Sync + 'static> Running<K> {
    pub(crate) fn start(informer: Informer<K>) -> Self {
        let mut task = JoinSet::new();
        let run = informer.clone();
        task.spawn(async move { run.run(CancellationToken::new()).await.unwrap() });
        Self {
            informer,
            _task: task,
        }
    }
}

/// An informer of the scenario's config maps with a handler, and the server to compare them with.
pub(crate) struct Follower {
    pub(crate) informer: Informer<ConfigMap>,
    pub(crate) view: View,
    failures: Arc<Mutex<Vec<(Cause, String)>>>,
    agent: Agent,
    _running: Running<ConfigMap>,
}

impl Follower {
    /// Starts through the proxy; `change` says what differs from [`quick`].
    pub(crate) fn start(
        world: &World,
        change: impl FnOnce(&mut InformerOptions<ConfigMap>),
    ) -> Self {
        Self::start_as(world, Agent::new(), change)
    }

    pub(crate) fn start_as(
        world: &World,
        agent: Agent,
        change: impl FnOnce(&mut InformerOptions<ConfigMap>),
    ) -> Self {
        let client = world.client(&agent);
        Self::run(world, client, agent, change)
    }

    /// Starts at the server itself.
    pub(crate) fn start_direct(
        world: &World,
        change: impl FnOnce(&mut InformerOptions<ConfigMap>),
    ) -> Self {
        Self::run(world, world.direct_client(), Agent::new(), change)
    }

    fn run(
        world: &World,
        client: Client,
        agent: Agent,
        change: impl FnOnce(&mut InformerOptions<ConfigMap>),
    ) -> Self {
        let failures: Arc<Mutex<Vec<(Cause, String)>>> = Arc::default();
        let told = Arc::clone(&failures);
        let mut options = quick(world);
        options.error_handler = Some(Arc::new(move |error| {
            told.lock().push((error.cause(), format!("{error:?}")));
        }));
        change(&mut options);
        let informer = Informer::new(client, options).unwrap();
        let view = View::default();
        informer.add_handler("view", view.handler()).unwrap();
        Self {
            view,
            failures,
            agent,
            _running: Running::start(informer.clone()),
            informer,
        }
    }

    /// A fault rule for this one's watches.
    pub(crate) fn watches(&self, action: impl Into<Action>) -> Rule {
        Rule::new(action).verb("watch").user_agent(&self.agent.0)
    }

    /// Classes of all failures so far.
    pub(crate) fn causes(&self) -> Vec<Cause> {
        let failures = self.failures.lock();
        failures.iter().map(|(cause, _)| *cause).collect()
    }

    /// Failures of other classes, in their own words.
    pub(crate) fn failures_beside(&self, known: Cause) -> Vec<String> {
        let failures = self.failures.lock();
        let others = failures.iter().filter(|(cause, _)| *cause != known);
        others.map(|(_, text)| text.clone()).collect()
    }

    pub(crate) fn lists(&self) -> u64 {
        self.informer.stats().lists
    }

    /// Versions in the cache by name.
    pub(crate) fn cached(&self) -> BTreeMap<String, String> {
        versions(self.informer.lister().list().iter().map(|object| &**object))
    }

    /// Waits until the cache and the handler's view are the server's state, and everything that the handler
    /// was told followed from what it had been told before.
    pub(crate) async fn agrees(&self, world: &World, what: &str) {
        let api = world.api::<ConfigMap>();
        eventually(LIMIT, what, async || {
            let listed = api.list(&ListParams::default()).await;
            let listed = listed.map_err(|error| error.to_string())?;
            let (want, have) = (versions(&listed.items), self.cached());
            let told = self.view.versions();
            if self.informer.has_synced() && want == have && have == told {
                return Ok(());
            }
            let status = self.informer.status();
            Err(format!(
                "server has {}, cache {}, handler {}; {}; {status:?}",
                want.len(),
                have.len(),
                told.len(),
                difference(&want, &have)
            ))
        })
        .await;
        assert_eq!(self.view.problems(), Vec::<String>::new(), "{what}");
    }
}

pub(crate) fn versions<'a, K: Resource + 'a>(
    objects: impl IntoIterator<Item = &'a K>,
) -> BTreeMap<String, String> {
    let entry = |object: &K| {
        (
            object.meta().name.clone().unwrap_or_default(),
            version(object),
        )
    };
    objects.into_iter().map(entry).collect()
}

/// The first entries that differ.
pub(crate) fn difference(
    want: &BTreeMap<String, String>,
    have: &BTreeMap<String, String>,
) -> String {
    let names: std::collections::BTreeSet<_> = want.keys().chain(have.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| want.get(*name) != have.get(*name));
    let show = |name: &String| format!("{name}: {:?} not {:?}", have.get(name), want.get(name));
    differ.take(3).map(show).collect::<Vec<_>>().join(", ")
}
