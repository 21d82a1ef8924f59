//! Informers against the embedded API server, over TLS on real sockets.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use devcluster::DevCluster;
use informer::client::{self, ClientOptions, ConfigSource};
use informer::{
    Cause, Error, Event, Factory, FactoryOptions, Informer, InformerOptions, MetadataOnly,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_client::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube_core::discovery::ApiResource;
use kube_core::{DynamicObject, Resource};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const AGENT: &str = "informer-test/1";

/// A TCP relay before the cluster whose connections can be cut and kept away.
struct Relay {
    address: SocketAddr,
    state: Arc<Mutex<(CancellationToken, bool)>>,
    _task: JoinSet<()>,
}

impl Relay {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new((CancellationToken::new(), true)));
        let shared = Arc::clone(&state);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut inbound, _) = listener.accept().await.unwrap();
                let (cut, open) = shared.lock().clone();
                if !open {
                    continue;
                }
                connections.spawn(async move {
                    let Ok(mut outbound) = TcpStream::connect(target).await else {
                        return;
                    };
                    tokio::select! {
                        () = cut.cancelled() => {}
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

    /// Ends all connections; new ones come through only if `open`.
    fn cut(&self, open: bool) {
        let mut state = self.state.lock();
        state.0.cancel();
        *state = (CancellationToken::new(), open);
    }
}

/// An informer that runs until this is dropped.
struct Running<K> {
    informer: Informer<K>,
    _task: JoinSet<()>,
}

impl<K: Resource + Send + Sync + 'static> Running<K> {
    fn start(informer: Informer<K>) -> Self {
        let mut task = JoinSet::new();
        let run = informer.clone();
        task.spawn(async move { run.run(CancellationToken::new()).await.unwrap() });
        Self {
            informer,
            _task: task,
        }
    }
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within 30 s: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A client of this crate's own stack, through the relay, made from a kubeconfig file.
async fn connect(cluster: &DevCluster, relay: &Relay) -> kube_client::Client {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    cluster.write_kubeconfig(&path).unwrap();
    let source = ConfigSource {
        kubeconfig: Some(path),
        context: None,
    };
    let mut config = client::load_config(&source).await.unwrap();
    config.cluster_url = format!("https://{}", relay.address).parse().unwrap();
    let options = ClientOptions {
        user_agent: AGENT.to_owned(),
        ..ClientOptions::default()
    };
    client::connect(config, options).unwrap()
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.data = Some([("k".to_owned(), value.to_owned())].into());
    object
}

async fn set(api: &Api<ConfigMap>, name: &str, value: &str) {
    let patch = Patch::Merge(serde_json::json!({"data": {"k": value}}));
    api.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Objects as told, and events that did not fit.
type Seen = (BTreeMap<String, String>, Vec<String>);

/// A handler's picture.
#[derive(Clone, Default)]
struct View(Arc<Mutex<Seen>>);

impl View {
    fn handler(&self) -> impl Fn(&Event<ConfigMap>) + Send + Sync + 'static {
        let view = self.clone();
        move |event| {
            let (values, problems) = &mut *view.0.lock();
            let name = event.key().name().to_owned();
            let value = |object: &ConfigMap| {
                object
                    .data
                    .as_ref()
                    .and_then(|data| data.get("k").cloned())
                    .unwrap_or_default()
            };
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

/// Requests by this crate's client for config maps, as `(lists, watches)`.
fn requests(cluster: &DevCluster, resource: &str) -> (u64, u64) {
    let counters = cluster.counters();
    let of = |verb: &str| {
        counters
            .count(|key| key.verb == verb && key.resource == resource && key.user_agent == AGENT)
    };
    (of("list"), of("watch"))
}

async fn follows_the_server(watch_list: bool) {
    let cluster = DevCluster::builder().start().await.unwrap();
    let relay = Relay::start(cluster.address()).await;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
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
    let informer = Informer::new(connect(&cluster, &relay).await, options).unwrap();
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
        let listed = api.list(&Default::default()).await.unwrap();
        let want: BTreeMap<_, _> = listed
            .items
            .iter()
            .map(|object| {
                let value = object.data.as_ref().map(|data| data["k"].clone());
                (
                    object.metadata.name.clone().unwrap(),
                    value.unwrap_or_default(),
                )
            })
            .collect();
        let stored = lister.list();
        stored.len() == want.len()
            && stored
                .iter()
                .all(|object| listed.items.iter().any(|other| other == &**object))
            && view.values() == want
    };
    eventually("the first state", same).await;
    let (lists, watches) = requests(&cluster, "configmaps");
    assert_eq!(lists, u64::from(!watch_list));

    api.create(&PostParams::default(), &config_map("new", "second"))
        .await
        .unwrap();
    set(&api, "o1", "second").await;
    api.delete("o2", &DeleteParams::default()).await.unwrap();
    eventually("changes by the watch", same).await;
    assert_eq!(lister.by_index("value", "second").unwrap().len(), 2);

    // A cut with changes behind it is resumed, without a list.
    relay.cut(true);
    set(&api, "o3", "third").await;
    api.delete("o4", &DeleteParams::default()).await.unwrap();
    eventually("changes behind a cut", same).await;
    let after = requests(&cluster, "configmaps");
    assert_eq!(after.0, lists, "resumed");
    assert!(after.1 > watches);

    // Changes that the server has forgotten by the time it can be reached are found by a list.
    relay.cut(false);
    set(&api, "o5", "fourth").await;
    api.delete("o6", &DeleteParams::default()).await.unwrap();
    api.create(&PostParams::default(), &config_map("newer", "fourth"))
        .await
        .unwrap();
    api.delete("o7", &DeleteParams::default()).await.unwrap();
    api.create(&PostParams::default(), &config_map("o7", "reborn"))
        .await
        .unwrap();
    cluster.compact();
    relay.cut(true);
    eventually("changes behind a compaction", same).await;
    set(&api, "o8", "last").await;
    eventually("the watch after it", same).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informer_follows_the_server_by_list_and_watch() {
    follows_the_server(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informer_follows_the_server_by_streamed_lists() {
    follows_the_server(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metadata_informer_is_never_sent_secret_data() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let relay = Relay::start(cluster.address()).await;
    let api: Api<Secret> = Api::namespaced(cluster.client(), "default");
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
    let client = connect(&cluster, &relay).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i42_a_kind_that_appears_late_is_followed_and_its_absence_is_shown() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let relay = Relay::start(cluster.address()).await;
    let kind = ApiResource {
        group: "test.example.dev".to_owned(),
        version: "v1".to_owned(),
        api_version: "test.example.dev/v1".to_owned(),
        kind: "Thing".to_owned(),
        plural: "things".to_owned(),
    };
    let client = connect(&cluster, &relay).await;
    let options = InformerOptions::<DynamicObject>::default();
    let informer = Informer::for_kind(client, &kind, options).unwrap();
    let running = Running::start(informer);
    eventually("the failure to show", || async {
        running
            .informer
            .status()
            .last_error
            .is_some_and(|(cause, _)| cause == Cause::NotFound)
    })
    .await;
    let definition: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "things.test.example.dev"},
            "spec": {
                "group": "test.example.dev", "scope": "Namespaced",
                "names": {"kind": "Thing", "plural": "things", "singular": "thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}
                }}}]
            }
        }))
        .unwrap();
    Api::all(cluster.client())
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    running.informer.synced().await;
    let things: Api<DynamicObject> = Api::namespaced_with(cluster.client(), "default", &kind);
    let mut thing = DynamicObject::new("one", &kind);
    thing.data = serde_json::json!({"spec": {"n": 5}});
    eventually("the kind to be served", || async {
        things.create(&PostParams::default(), &thing).await.is_ok()
    })
    .await;
    let lister = running.informer.lister();
    eventually("the object", || async { lister.list().len() == 1 }).await;
    assert_eq!(lister.list()[0].data["spec"]["n"], 5);
    assert_eq!(running.informer.status().kind, "Thing.test.example.dev");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h15_a_factory_shares_typed_dynamic_and_metadata_informers() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let relay = Relay::start(cluster.address()).await;
    let options = FactoryOptions {
        namespace: Some("default".to_owned()),
        ..FactoryOptions::default()
    };
    let factory = Factory::new(connect(&cluster, &relay).await, options);
    let kind = ApiResource::erase::<ConfigMap>(&());
    let typed = factory
        .informer_with::<ConfigMap>(|options| options.label_selector = Some("seen=yes".to_owned()))
        .unwrap();
    let again = factory.informer::<ConfigMap>().unwrap();
    let dynamic = factory.dynamic(&kind).unwrap();
    factory.start().unwrap();
    factory.start().unwrap();
    let stop = CancellationToken::new();
    let synced = factory.wait_for_cache_sync(&stop).await;
    assert_eq!(synced.len(), 2, "{synced:?}");
    assert!(synced.values().all(|synced| *synced));

    let late = factory.informer::<MetadataOnly<ConfigMap>>().unwrap();
    factory.start().unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let mut seen = config_map("seen", "first");
    seen.metadata.labels = Some([("seen".to_owned(), "yes".to_owned())].into());
    api.create(&PostParams::default(), &seen).await.unwrap();
    api.create(&PostParams::default(), &config_map("other", "first"))
        .await
        .unwrap();
    let elsewhere: Api<ConfigMap> = Api::namespaced(cluster.client(), "kube-system");
    elsewhere
        .create(&PostParams::default(), &config_map("elsewhere", "first"))
        .await
        .unwrap();
    let counts = || {
        (
            typed.lister().list().len(),
            dynamic.status().objects,
            late.status().objects,
        )
    };
    eventually("both objects of the namespace", || async {
        counts() == (1, 2, 2)
    })
    .await;
    assert_eq!(again.status().objects, 1, "one cache for one kind");
    let object = &dynamic.lister().list()[0];
    assert_eq!(object.types.as_ref().unwrap().kind, "ConfigMap");
    set(&api, "seen", "second").await;
    eventually("the update", || async {
        typed
            .lister()
            .list()
            .iter()
            .any(|object| object.data.as_ref().unwrap()["k"] == "second")
    })
    .await;
    api.delete("seen", &DeleteParams::default()).await.unwrap();
    eventually("the deletion", || async { counts() == (0, 1, 1) }).await;

    factory.shutdown().await.unwrap();
    assert!(typed.is_stopped() && dynamic.is_stopped() && late.is_stopped());
    assert!(matches!(factory.start(), Err(Error::Stopped { .. })));
}
