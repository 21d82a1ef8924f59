//! The handle of a cluster: clients with and without a socket, credentials, counters, the end.

use std::{sync::Arc, time::Duration};

use devcluster::{DevCluster, Error};
use futures::StreamExt as _;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{ConfigMap, Event, ServiceAccount};
use kube_client::{
    Api, Client, Config,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

async fn start() -> DevCluster {
    DevCluster::builder()
        .start()
        .await
        .expect("the cluster starts")
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}}))
        .expect("it was sound so far")
}

async fn client_of(kubeconfig: &str) -> Client {
    let config = Kubeconfig::from_yaml(kubeconfig).expect("it was sound so far");
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .expect("it was sound so far");
    config.default_retry = false;
    Client::try_from(config).expect("it was sound so far")
}

/// The typed client works the same over a socket and without one.
#[tokio::test]
async fn both_clients_see_the_same_objects() {
    let cluster = start().await;
    let inside: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let outside: Api<ConfigMap> = Api::default_namespaced(client_of(&cluster.kubeconfig()).await);
    let created = inside
        .create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap();
    let read = outside.get("a").await.unwrap();
    assert_eq!(read, created);
    let patch = Patch::Merge(json!({"data": {"k": "w"}}));
    outside
        .patch("a", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let list = inside.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items[0].data.as_ref().unwrap()["k"], "w");
    cluster.shutdown().await;
}

/// Hours of a watch pass in no time when the runtime's clock is paused.
#[tokio::test(start_paused = true)]
async fn the_in_process_client_runs_on_paused_time() {
    let cluster = start().await;
    let api: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let began = cluster.clock().now();
    let parameters = WatchParams {
        timeout: Some(3600),
        ..WatchParams::default()
    };
    let mut watch = std::pin::pin!(api.watch(&parameters, "0").await.unwrap());
    api.create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap();
    let mut added = 0;
    let mut bookmarks = 0;
    while let Some(event) = watch.next().await {
        match event.unwrap() {
            WatchEvent::Added(_) => added += 1,
            WatchEvent::Bookmark(_) => bookmarks += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(added, 1);
    assert!(
        (59..=62).contains(&bookmarks),
        "about one a minute, not {bookmarks}"
    );
    let passed = cluster.clock().now().duration_since(began);
    assert_eq!(passed.as_secs(), 3600);
}

#[tokio::test]
async fn a_service_account_is_known_by_its_token_and_counted_by_its_name() {
    let cluster = start().await;
    assert!(matches!(
        cluster.service_account_token("default", "robot"),
        Err(Error::NoServiceAccount { .. })
    ));
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client());
    let account = serde_json::from_value(json!({"metadata": {"name": "robot"}})).unwrap();
    accounts
        .create(&PostParams::default(), &account)
        .await
        .unwrap();
    let token = cluster.service_account_token("default", "robot").unwrap();
    let client = client_of(&cluster.kubeconfig_for(&token)).await;
    let before = cluster.counters();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap();
    api.create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap_err();
    api.list(&ListParams::default()).await.unwrap();
    let since = cluster.counters().since(&before);
    let user = "system:serviceaccount:default:robot";
    assert_eq!(since.writes_by(user), 1, "{since}");
    assert_eq!(since.count(|key| key.user == user && key.code == 409), 1);
    assert_eq!(since.count(|key| key.user == user && key.verb == "list"), 1);
    assert_eq!(
        cluster.request_log().last().unwrap().key.resource,
        "configmaps"
    );

    accounts.delete("robot", &Default::default()).await.unwrap();
    let refused = api.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(refused, kube_client::Error::Api(status) if status.code == 401));
}

#[tokio::test]
async fn the_kubeconfig_is_written_for_its_owner_alone() {
    let cluster = start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    cluster.write_kubeconfig(&path).unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        cluster.kubeconfig()
    );
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "no other file is left"
    );
    let missing = folder.path().join("none/config");
    assert!(matches!(
        cluster.write_kubeconfig(missing),
        Err(Error::Write { .. })
    ));
}

#[tokio::test]
async fn measurements_can_do_without_tls() {
    let cluster = DevCluster::builder()
        .plain_http(true)
        .start()
        .await
        .expect("it starts");
    assert!(cluster.url().starts_with("http://"));
    let api: Api<ConfigMap> = Api::default_namespaced(client_of(&cluster.kubeconfig()).await);
    api.create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_deleted_default_account_comes_back() {
    let cluster = start().await;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        if let Some(account) = accounts.get_opt("default").await.unwrap()
            && seen.insert(account.metadata.uid.unwrap())
        {
            accounts
                .delete("default", &Default::default())
                .await
                .unwrap();
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "seen so far: {seen:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn other_machines_must_be_asked_for() {
    let refused = DevCluster::builder()
        .listen("0.0.0.0:0".parse().unwrap())
        .start()
        .await;
    assert!(matches!(refused, Err(Error::Remote(_))));
}

#[tokio::test]
async fn a_stop_ends_watches_cleanly_and_frees_the_port() {
    let cluster = start().await;
    let address = cluster.address();
    let api: Api<ConfigMap> = Api::default_namespaced(client_of(&cluster.kubeconfig()).await);
    let mut watch = std::pin::pin!(api.watch(&WatchParams::default(), "0").await.unwrap());
    // The bookmark that ends the state: the watch is at rest.
    assert!(matches!(
        watch.next().await,
        Some(Ok(WatchEvent::Bookmark(_)))
    ));
    cluster.shutdown().await;
    assert!(watch.next().await.is_none(), "no error, just the end");
    DevCluster::builder()
        .listen(address)
        .start()
        .await
        .expect("the port is free");
}

#[tokio::test]
async fn peers_that_never_speak_do_not_delay_a_stop() {
    for plain in [false, true] {
        let cluster = DevCluster::builder()
            .plain_http(plain)
            .start()
            .await
            .expect("it was sound so far");
        let silent = tokio::net::TcpStream::connect(cluster.address())
            .await
            .expect("it listens");
        // Connections are accepted in order, so this one's answer says that the other is held.
        let client = client_of(&cluster.kubeconfig()).await;
        client
            .apiserver_version()
            .await
            .expect("it was sound so far");
        drop(client);
        tokio::time::timeout(Duration::from_secs(6), cluster.shutdown())
            .await
            .expect("the stop waits for nobody who has not asked for anything");
        drop(silent);
    }
}

#[tokio::test]
async fn dropping_the_handle_stops_the_cluster() {
    let cluster = start().await;
    let client = client_of(&cluster.kubeconfig()).await;
    client.apiserver_version().await.unwrap();
    drop(cluster);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let answer = tokio::time::timeout(Duration::from_secs(5), client.apiserver_version()).await;
        if matches!(answer, Ok(Err(_))) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "still served");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn events_go_an_hour_after_they_were_last_written() {
    let cluster = start().await;
    let events: Api<Event> = Api::default_namespaced(cluster.client());
    let body = |name: &str| -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": name}, "reason": "R",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        }))
        .expect("an event")
    };
    for name in ["once", "again"] {
        events
            .create(&PostParams::default(), &body(name))
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let patch = Patch::Merge(json!({"count": 2}));
    events
        .patch("again", &PatchParams::default(), &patch)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1801)).await;
    assert!(events.get_opt("once").await.unwrap().is_none());
    assert!(events.get_opt("again").await.unwrap().is_some());
    tokio::time::sleep(Duration::from_secs(1801)).await;
    assert!(events.get_opt("again").await.unwrap().is_none());
}

/// A create that is checked while its namespace goes must not leave an object that nobody owns.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_outlives_its_namespace() {
    let cluster = start().await;
    let client = cluster.client();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    for round in 0..40 {
        let name = format!("round-{round}");
        let body = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces
            .create(&PostParams::default(), &body)
            .await
            .unwrap();
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &name);
        let mut creators = tokio::task::JoinSet::new();
        for creator in 0..4 {
            let config_maps = config_maps.clone();
            creators.spawn(async move {
                for n in 0.. {
                    let created = config_maps
                        .create(
                            &PostParams::default(),
                            &config_map(&format!("c-{creator}-{n}")),
                        )
                        .await;
                    match created {
                        Err(kube_client::Error::Api(status)) if status.code == 404 => return,
                        Ok(_) | Err(_) => tokio::task::yield_now().await,
                    }
                }
            });
        }
        namespaces.delete(&name, &Default::default()).await.unwrap();
        while let Some(ended) = creators.join_next().await {
            ended.expect("a creator ends when the namespace is gone");
        }
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let left = config_maps.list(&Default::default()).await.unwrap().items;
            if left.is_empty() {
                break;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{name} has left {} objects",
                left.len()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A deleted namespace takes its contents along, whatever their kind.
#[tokio::test]
async fn a_namespace_is_emptied_and_goes() {
    let cluster = start().await;
    let client = cluster.client();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let body = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &body)
        .await
        .unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "n");
    let mut held = config_map("held");
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    config_maps
        .create(&PostParams::default(), &held)
        .await
        .unwrap();
    config_maps
        .create(&PostParams::default(), &config_map("plain"))
        .await
        .unwrap();
    namespaces.delete("n", &Default::default()).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let holds = |conditions: &[k8s_openapi::api::core::v1::NamespaceCondition]| {
        conditions
            .iter()
            .any(|c| c.type_ == "NamespaceFinalizersRemaining" && c.status == "True")
    };
    loop {
        let namespace = namespaces.get("n").await.unwrap();
        let conditions = namespace
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        if config_maps.get_opt("plain").await.unwrap().is_none() && holds(&conditions) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    config_maps
        .patch("held", &PatchParams::default(), &free)
        .await
        .unwrap();
    while namespaces.get_opt("n").await.unwrap().is_some() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads a watch over one protocol until it ends.
async fn frames(cluster: &DevCluster, protocol: &[u8], query: &str) -> Vec<u8> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(cluster.ca_certificate().as_bytes())
        .expect("it was sound so far");
    roots.add(ca).expect("it was sound so far");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("it was sound so far")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let socket = TcpStream::connect(cluster.address())
        .await
        .expect("it was sound so far");
    let name = ServerName::try_from("localhost").expect("it was sound so far");
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .expect("it was sound so far");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
    let uri = format!(
        "{}/api/v1/namespaces/default/configmaps?{query}",
        cluster.url()
    );
    let request = Request::builder()
        .method(Method::GET)
        .uri(uri)
        .header(header::HOST, "localhost")
        .header(
            header::AUTHORIZATION,
            format!("Bearer {}", cluster.admin_token()),
        )
        .body(Empty::<bytes::Bytes>::new())
        .expect("it was sound so far");
    let mut connections = tokio::task::JoinSet::new();
    let response = if protocol == b"h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("it was sound so far");
        connections.spawn(async move { connection.await.is_ok() });
        sender
            .send_request(request)
            .await
            .expect("it was sound so far")
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("it was sound so far");
        connections.spawn(async move { connection.await.is_ok() });
        sender
            .send_request(request)
            .await
            .expect("it was sound so far")
    };
    response
        .into_body()
        .collect()
        .await
        .expect("it was sound so far")
        .to_bytes()
        .to_vec()
}

#[tokio::test]
async fn case_076_both_protocols_carry_the_same_frames() {
    let cluster = start().await;
    let api: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let start = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    for n in 0..50 {
        api.create(&PostParams::default(), &config_map(&format!("c{n}")))
            .await
            .unwrap();
    }
    let query = format!("watch=1&timeoutSeconds=1&resourceVersion={start}");
    let (old, new) = tokio::join!(
        frames(&cluster, b"http/1.1", &query),
        frames(&cluster, b"h2", &query)
    );
    assert_eq!(old, new);
    assert_eq!(old.iter().filter(|byte| **byte == b'\n').count(), 50);
}
