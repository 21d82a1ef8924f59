//! What holds against every API server, with what it needs: a relay to cut, clients, a view.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use informer::client::{self, ClientOptions, ConfigSource};
use informer::{Event, Informer, InformerOptions, MetadataOnly};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_client::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube_core::Resource;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How the clients of tests name themselves.
pub(crate) const AGENT: &str = "informer-test/1";

/// A TCP relay before the cluster whose connections can be cut and kept away.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<Mutex<Gate>>,
    _task: JoinSet<()>,
}

/// What the connections of one spell between two cuts share.
#[derive(Clone)]
struct Gate {
    cut: CancellationToken,
    open: bool,
    connections: TaskTracker,
}

impl Gate {
    fn new(open: bool) -> Self {
        Self {
            cut: CancellationToken::new(),
            open,
            connections: TaskTracker::new(),
        }
    }
}

impl Relay {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(Gate::new(true)));
        let shared = Arc::clone(&state);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let (mut inbound, _) = listener.accept().await.unwrap();
                let gate = shared.lock().clone();
                if !gate.open {
                    continue;
                }
                gate.connections.spawn(async move {
                    let Ok(mut outbound) = TcpStream::connect(target).await else {
                        return;
                    };
                    tokio::select! {
                        biased;
                        () = gate.cut.cancelled() => {}
                        _ = tokio::io::copy_bidirectional(&mut inbound, &mut outbound) => {}
                    }
                });
            }
        });
        Self {
            address,
            state,
            _task: task,
        }
    }

    /// Connections that are open now.
    pub(crate) fn connections(&self) -> usize {
        self.state.lock().connections.len()
    }

    /// Ends all connections, so that nothing more comes through them; new ones come through only if `open`.
    pub(crate) async fn cut(&self, open: bool) {
        let before = std::mem::replace(&mut *self.state.lock(), Gate::new(open));
        before.cut.cancel();
        before.connections.close();
        before.connections.wait().await;
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

pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within 60 s: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A client of this crate's own stack for the cluster of a kubeconfig, through the relay if any.
pub(crate) async fn connect(kubeconfig: &Path, relay: Option<&Relay>) -> kube_client::Client {
    connect_with(kubeconfig, relay, false).await
}

/// As [`connect`], by HTTP/2 if asked for.
pub(crate) async fn connect_with(
    kubeconfig: &Path,
    relay: Option<&Relay>,
    http2: bool,
) -> kube_client::Client {
    let source = ConfigSource {
        kubeconfig: Some(kubeconfig.to_owned()),
        context: None,
    };
    let mut config = client::load_config(&source).await.unwrap();
    if let Some(relay) = relay {
        config.cluster_url = format!("https://{}", relay.address).parse().unwrap();
    }
    let options = ClientOptions {
        user_agent: AGENT.to_owned(),
        http2,
        ..ClientOptions::default()
    };
    client::connect(config, options).unwrap()
}

pub(crate) fn config_map(name: &str, value: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.data = Some([("k".to_owned(), value.to_owned())].into());
    object
}

pub(crate) async fn set(api: &Api<ConfigMap>, name: &str, value: &str) {
    let patch = Patch::Merge(serde_json::json!({"data": {"k": value}}));
    api.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// What the object says.
fn value(object: &ConfigMap) -> String {
    let said = object.data.as_ref().and_then(|data| data.get("k"));
    said.cloned().unwrap_or_default()
}

/// Objects as told, and events that did not fit.
type Seen = (BTreeMap<String, String>, Vec<String>);

/// A handler's picture.
#[derive(Clone, Default)]
pub(crate) struct View(Arc<Mutex<Seen>>);

impl View {
    pub(crate) fn handler(&self) -> impl Fn(&Event<ConfigMap>) + Send + Sync + 'static {
        let view = self.clone();
        move |event| {
            let (values, problems) = &mut *view.0.lock();
            let name = event.key().name().to_owned();
            let fits = match event {
                Event::Added { object, .. } => values.insert(name, value(object)).is_none(),
                Event::Updated { new, .. } => values.insert(name, value(new)).is_some(),
                Event::Deleted { .. } => values.remove(&name).is_some(),
            };
            if !fits {
                problems.push(format!("{event:?}"));
            }
        }
    }

    fn values(&self) -> BTreeMap<String, String> {
        let (values, problems) = &*self.0.lock();
        assert_eq!(problems, &Vec::<String>::new());
        values.clone()
    }
}

/// Changes, a cut that is resumed, and changes that the server has forgotten after `forget`: in
/// the end the cache, its index and a handler's view are those of the server.
pub(crate) async fn follows_the_server(
    address: SocketAddr,
    kubeconfig: &Path,
    watch_list: bool,
    forget: impl AsyncFnOnce(),
) {
    let relay = Relay::start(address).await;
    let admin = connect(kubeconfig, None).await;
    let api: Api<ConfigMap> = Api::namespaced(admin, "default");
    for at in 0..30 {
        let object = config_map(&format!("o{at}"), "first");
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    let view = View::default();
    let options = InformerOptions {
        namespace: Some("default".to_owned()),
        watch_list,
        ..InformerOptions::default()
    };
    let client = connect(kubeconfig, Some(&relay)).await;
    let informer = Informer::new(client, options).unwrap();
    informer
        .add_index("value", |object: &ConfigMap| {
            object
                .data
                .iter()
                .flat_map(|data| data.values().cloned())
                .collect()
        })
        .unwrap();
    informer.add_handler("view", view.handler()).unwrap();
    let running = Running::start(informer);
    let lister = running.informer.lister();
    let same = || async {
        let Ok(listed) = api.list(&Default::default()).await else {
            return false;
        };
        let want: BTreeMap<_, _> = listed
            .items
            .iter()
            .map(|object| (object.metadata.name.clone().unwrap(), value(object)))
            .collect();
        let stored = lister.list();
        let as_listed = |object: &Arc<ConfigMap>| {
            let version = &object.metadata.resource_version;
            listed.items.iter().any(|other| {
                other.metadata.resource_version == *version && other.data == object.data
            })
        };
        stored.len() == want.len() && stored.iter().all(as_listed) && view.values() == want
    };
    eventually("the first state", same).await;
    assert_eq!(running.informer.stats().lists, 1);

    api.create(&PostParams::default(), &config_map("new", "second"))
        .await
        .unwrap();
    set(&api, "o1", "second").await;
    api.delete("o2", &DeleteParams::default()).await.unwrap();
    eventually("changes by the watch", same).await;
    assert_eq!(lister.by_index("value", "second").unwrap().len(), 2);

    let watches = running.informer.stats().watches;
    relay.cut(true).await;
    set(&api, "o3", "third").await;
    api.delete("o4", &DeleteParams::default()).await.unwrap();
    eventually("changes behind a cut", same).await;
    assert!(running.informer.stats().watches > watches);
    assert_eq!(
        running.informer.stats().lists,
        1,
        "a cut is resumed, not listed"
    );

    relay.cut(false).await;
    set(&api, "o5", "fourth").await;
    api.delete("o6", &DeleteParams::default()).await.unwrap();
    api.create(&PostParams::default(), &config_map("newer", "fourth"))
        .await
        .unwrap();
    api.delete("o7", &DeleteParams::default()).await.unwrap();
    api.create(&PostParams::default(), &config_map("o7", "reborn"))
        .await
        .unwrap();
    forget().await;
    relay.cut(true).await;
    eventually("changes that the server has forgotten", same).await;
    assert!(
        running.informer.stats().lists > 1,
        "only a list could find them"
    );
    set(&api, "o8", "last").await;
    eventually("the watch after it", same).await;
}

/// Values planted in secrets reach neither cache nor handlers of an informer on metadata.
pub(crate) async fn hides_secrets(address: SocketAddr, kubeconfig: &Path) {
    let relay = Relay::start(address).await;
    let admin = connect(kubeconfig, None).await;
    let api: Api<Secret> = Api::namespaced(admin, "default");
    let secret = |name: &str| -> Secret {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"stringData\":\"planted\"}"
            }},
            "stringData": {"password": "planted"}
        }))
        .unwrap()
    };
    api.create(&PostParams::default(), &secret("first"))
        .await
        .unwrap();
    let client = connect(kubeconfig, Some(&relay)).await;
    let informer: Informer<MetadataOnly<Secret>> =
        Informer::new(client, InformerOptions::default()).unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let texts = Arc::clone(&told);
    informer
        .add_handler("texts", move |event: &Event<MetadataOnly<Secret>>| {
            texts.lock().push(format!("{} {event:?}", event.key()));
        })
        .unwrap();
    let running = Running::start(informer);
    running.informer.synced().await;
    api.create(&PostParams::default(), &secret("second"))
        .await
        .unwrap();
    eventually("both secrets", || async { told.lock().len() == 2 }).await;
    let dump = format!("{:?} {:?}", told.lock(), running.informer.lister().list());
    assert!(dump.contains("default/first") && dump.contains("default/second"));
    for planted in ["planted", "cGxhbnRlZA", "last-applied"] {
        assert!(!dump.contains(planted), "{dump}");
    }
    assert!(running.informer.lister().list()[0].metadata().uid.is_some());
}
