//! Informers against the embedded API server, over TLS on real sockets.

use std::path::PathBuf;

use devcluster::DevCluster;
use informer::{Cause, Error, Factory, FactoryOptions, Informer, InformerOptions, MetadataOnly};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::{Api, DeleteParams, PostParams};
use kube_core::DynamicObject;
use kube_core::discovery::ApiResource;
use tokio_util::sync::CancellationToken;

use crate::scenarios::*;

/// A cluster with a relay before it and a kubeconfig in a folder that goes with it.
struct World {
    cluster: DevCluster,
    relay: Relay,
    kubeconfig: PathBuf,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let cluster = DevCluster::builder().start().await.unwrap();
        let relay = Relay::start(cluster.address()).await;
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        cluster.write_kubeconfig(&kubeconfig).unwrap();
        Self {
            cluster,
            relay,
            kubeconfig,
            _folder: folder,
        }
    }

    async fn client(&self) -> kube_client::Client {
        connect(&self.kubeconfig, Some(&self.relay)).await
    }
}

async fn follows(watch_list: bool) {
    let world = World::start().await;
    let cluster = &world.cluster;
    let forget = async || cluster.store().trim_history();
    Box::pin(follows_the_server(
        cluster.address(),
        &world.kubeconfig,
        watch_list,
        forget,
    ))
    .await;
    let counters = cluster.counters();
    let watched = counters.count(|key| {
        key.verb == "watch" && key.resource == "configmaps" && key.user_agent == AGENT
    });
    assert!(
        watched >= 3,
        "{watched} watches under the name of this program"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informer_follows_the_server_by_list_and_watch() {
    follows(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informer_follows_the_server_by_streamed_lists() {
    follows(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metadata_informer_is_never_sent_secret_data() {
    let world = World::start().await;
    Box::pin(hides_secrets(world.cluster.address(), &world.kubeconfig)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i42_a_kind_that_appears_late_is_followed_and_its_absence_is_shown() {
    let world = World::start().await;
    let cluster = &world.cluster;
    let kind = ApiResource {
        group: "test.example.dev".to_owned(),
        version: "v1".to_owned(),
        api_version: "test.example.dev/v1".to_owned(),
        kind: "Thing".to_owned(),
        plural: "things".to_owned(),
    };
    let client = world.client().await;
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
    let world = World::start().await;
    let cluster = &world.cluster;
    let options = FactoryOptions {
        namespace: Some("default".to_owned()),
        ..FactoryOptions::default()
    };
    let factory = Factory::new(world.client().await, options);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_http2_all_watches_share_a_connection_and_survive_its_loss() {
    const INFORMERS: usize = 8;
    let world = World::start().await;
    let api: Api<ConfigMap> = Api::namespaced(world.cluster.client(), "default");
    for http2 in [false, true] {
        let name = if http2 { "second" } else { "first" };
        let client = connect_with(&world.kubeconfig, Some(&world.relay), http2).await;
        let running: Vec<_> = (0..INFORMERS)
            .map(|_| Informer::<ConfigMap>::new(client.clone(), InformerOptions::default()))
            .map(|informer| Running::start(informer.unwrap()))
            .collect();
        for one in &running {
            one.informer.synced().await;
        }
        let open = world.relay.connections();
        let want = if http2 { 1 } else { INFORMERS };
        assert!(open >= want && (!http2 || open == 1), "{open} connections");
        world.relay.cut(true).await;
        api.create(&PostParams::default(), &config_map(name, "x"))
            .await
            .unwrap();
        for one in &running {
            let key = informer::ObjectKey::namespaced("default", name);
            let lister = one.informer.lister();
            eventually("the object behind the cut", || async {
                lister.get(&key).is_some()
            })
            .await;
        }
        drop(running);
        world.relay.cut(true).await;
    }
}
