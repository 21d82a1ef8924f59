//! Faults on demand, restarts, and the proxy that puts faults before any server.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::time::Duration;

use devcluster::DevCluster;
use devcluster::faults::{Action, Cut, FaultProxy, Faults, Rule, WatchAction};
use devcluster::kubelet::Delay;
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::client::Body;
use kube_client::core::params::{ListParams, PostParams};
use kube_client::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn cluster() -> DevCluster {
    DevCluster::builder().start().await.unwrap()
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap()
}

async fn create(client: &Client, name: &str) -> Result<ConfigMap, kube_client::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &config_map(name)).await
}

async fn names(client: &Client) -> Result<Vec<String>, kube_client::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let listed = api.list(&ListParams::default()).await?;
    Ok(listed
        .items
        .into_iter()
        .filter_map(|object| object.metadata.name)
        .collect())
}

/// An open watch of the config maps, as bytes.
struct Watch(Body);

impl Watch {
    async fn open(client: &Client, query: &str) -> Self {
        let uri = format!("{CONFIG_MAPS}?watch=true&{query}");
        let request = Request::get(uri).body(Body::empty()).unwrap();
        let response = client.send(request).await.unwrap();
        assert!(response.status().is_success(), "{}", response.status());
        Self(response.into_body())
    }

    /// What comes within a second of the clock, and how it ended if it did.
    async fn read(&mut self) -> (String, Option<&'static str>) {
        let mut text = Vec::new();
        let until = Instant::now() + SECOND;
        let end = loop {
            match tokio::time::timeout_at(until, self.0.frame()).await {
                Err(_) => break None,
                Ok(None) => break Some("clean"),
                Ok(Some(Err(_))) => break Some("reset"),
                Ok(Some(Ok(frame))) => text.extend_from_slice(&frame.into_data().unwrap()),
            }
        };
        (String::from_utf8(text).unwrap(), end)
    }

    /// Type and name of each event that comes within a second; bookmarks have no name.
    async fn events(&mut self) -> Vec<String> {
        let (text, _) = self.read().await;
        let event = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap();
            let kind = event["type"].as_str().unwrap().to_owned();
            let object = &event["object"];
            let ends = &object["metadata"]["annotations"]["k8s.io/initial-events-end"];
            match (object["metadata"]["name"].as_str(), ends.as_str()) {
                (Some(name), _) => format!("{kind} {name}"),
                (None, Some(_)) => format!("{kind} end"),
                (None, None) => format!("{kind} {}", object["code"]),
            }
        };
        text.lines().map(event).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn f2_requests_are_refused_delayed_and_held_by_rule() {
    let cluster = cluster().await;
    let client = cluster.client();
    let faults = cluster.faults();
    let refusal = Action::status(503, "ServiceUnavailable")
        .message("not now")
        .retry_after(7);
    let refused = faults.add(
        Rule::new(refusal)
            .verb("list")
            .resource("configmaps")
            .at_most(1),
    );
    let kube_client::Error::Api(status) = names(&client).await.unwrap_err() else {
        panic!("a status")
    };
    assert_eq!(
        (status.code, &*status.reason, &*status.message),
        (503, "ServiceUnavailable", "not now")
    );
    assert_eq!(status.details.unwrap().retry_after_seconds, 7);
    assert!(names(&client).await.is_ok());
    assert_eq!((refused.hits(), refused.seen()), (1, 2));

    let late = faults.add(Rule::new(Action::Latency(Delay::Fixed(5 * SECOND))).verb("create"));
    let began = Instant::now();
    create(&client, "late").await.unwrap();
    assert_eq!(began.elapsed(), 5 * SECOND);
    drop(late);

    let stalled = faults.add(Rule::new(Action::Stall).verb("create"));
    let mut creating = Box::pin(create(&client, "stalled"));
    assert!(
        tokio::time::timeout(60 * SECOND, creating.as_mut())
            .await
            .is_err()
    );
    drop(stalled);
    creating.await.unwrap();
    // A storm of conflicts is a refusal that ends.
    let _storm = faults.add(
        Rule::new(Action::status(409, "Conflict"))
            .verb("create")
            .at_most(3),
    );
    let mut tries = 1;
    while create(&client, "stormy").await.is_err() {
        tries += 1;
    }
    assert_eq!(tries, 4);
}

#[tokio::test]
async fn case_138_a_reset_after_the_commit_leaves_the_object_and_one_before_it_does_not() {
    let cluster = cluster().await;
    let client = Client::try_from(cluster.client_config().await.unwrap()).unwrap();
    for (action, exists) in [(Action::ResetBefore, false), (Action::ResetAfter, true)] {
        let rule = Rule::new(action).verb("create").resource("configmaps");
        let guard = cluster.faults().add(rule);
        assert!(!matches!(
            create(&client, "torn").await,
            Ok(_) | Err(kube_client::Error::Api(_))
        ));
        assert_eq!(guard.hits(), 1);
        drop(guard);
        assert_eq!(!names(&client).await.unwrap().is_empty(), exists);
    }
    let again = create(&client, "torn").await;
    assert!(matches!(again, Err(kube_client::Error::Api(status)) if status.is_already_exists()));
}

#[tokio::test(start_paused = true)]
async fn f2_bodies_are_cut_short_and_slowed_down() {
    let cluster = cluster().await;
    let client = cluster.client();
    create(&client, "a").await.unwrap();
    let read = async || {
        let request = Request::get(CONFIG_MAPS).body(Body::empty()).unwrap();
        let body = client.send(request).await.unwrap().into_body();
        body.collect().await.map(|body| body.to_bytes().len())
    };
    let whole = read().await.unwrap();
    let cut = cluster
        .faults()
        .add(Rule::new(Action::Truncate(20)).verb("list"));
    assert!(read().await.is_err());
    drop(cut);
    let _slow = cluster
        .faults()
        .add(Rule::new(Action::Slow(100)).verb("list"));
    let began = Instant::now();
    assert_eq!(read().await.unwrap(), whole);
    let wanted = Duration::from_secs_f64(whole as f64 / 100.0);
    assert!(
        began.elapsed().abs_diff(wanted) < SECOND / 10,
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn f3_events_of_open_watches_are_held_delayed_and_left_out_in_order() {
    let cluster = cluster().await;
    let client = cluster.client();
    let faults = cluster.faults();
    let on_watches = |action: WatchAction| Rule::new(action).resource("configmaps");
    let mut watch = Watch::open(&client, "resourceVersion=0&allowWatchBookmarks=true").await;
    assert_eq!(watch.events().await, ["BOOKMARK end"]);

    let stall = faults.add(on_watches(WatchAction::Stall));
    create(&client, "a").await.unwrap();
    create(&client, "b").await.unwrap();
    assert!(watch.events().await.is_empty());
    assert_eq!(stall.hits(), 1, "the watch that was open");
    drop(stall);
    assert_eq!(watch.events().await, ["ADDED a", "ADDED b"]);

    let delay = faults.add(on_watches(WatchAction::Delay(3 * SECOND)));
    assert!(watch.events().await.is_empty());
    create(&client, "c").await.unwrap();
    create(&client, "d").await.unwrap();
    assert!(watch.events().await.is_empty());
    tokio::time::advance(SECOND * 3 / 2).await;
    assert_eq!(watch.events().await, ["ADDED c", "ADDED d"]);
    drop(delay);

    let _quiet = faults.add(on_watches(WatchAction::DropBookmarks));
    assert!(watch.events().await.is_empty());
    tokio::time::advance(60 * SECOND).await;
    assert!(watch.events().await.is_empty(), "a bookmark was due");
    create(&client, "e").await.unwrap();
    assert_eq!(watch.events().await, ["ADDED e"]);
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut streamed = Watch::open(&client, state).await;
    assert_eq!(streamed.events().await.last().unwrap(), "BOOKMARK end");
    drop(_quiet);
    let _endless = faults.add(on_watches(WatchAction::DropInitialEventsEnd));
    let mut streamed = Watch::open(&client, state).await;
    assert_eq!(streamed.events().await.last().unwrap(), "ADDED e");
}

#[tokio::test(start_paused = true)]
async fn f3_watches_end_by_rule_cleanly_broken_or_with_an_error() {
    let cluster = cluster().await;
    let client = cluster.client();
    let faults = cluster.faults();
    let cut = |how, after| Rule::new(WatchAction::Cut { how, after }).at_most(1);
    let from_now = format!("resourceVersion={}", cluster.store().revision());
    for (how, end) in [(Cut::Clean, "clean"), (Cut::Reset, "reset")] {
        let mut watch = Watch::open(&client, &from_now).await;
        assert_eq!(watch.read().await, (String::new(), None));
        let _now = faults.add(cut(how, 0));
        assert_eq!(watch.read().await, (String::new(), Some(end)));
    }
    create(&client, "a").await.unwrap();
    let _midst = faults.add(cut(Cut::Reset, 13));
    let mut watch = Watch::open(&client, &from_now).await;
    assert_eq!(
        watch.read().await,
        (r#"{"type":"ADDE"#.to_owned(), Some("reset"))
    );
    let mut watch = Watch::open(&client, &from_now).await;
    assert_eq!(watch.events().await, ["ADDED a"], "the rule is used up");

    let rising = faults.add(Rule::new(WatchAction::CutRising(Cut::Clean)));
    for length in 0..4 {
        if length > 0 {
            watch = Watch::open(&client, &from_now).await;
        }
        let (text, end) = watch.read().await;
        assert_eq!((text.len(), end), (length, Some("clean")));
    }
    drop(rising);

    let second = faults.add(Rule::new(WatchAction::cut(Cut::Clean)).nth(2));
    let mut watch = Watch::open(&client, "resourceVersion=0").await;
    assert_eq!(watch.events().await, ["ADDED a"]);
    create(&client, "b").await.unwrap();
    assert_eq!(watch.events().await, ["ADDED b"]);
    assert_eq!(
        (second.seen(), second.hits()),
        (1, 0),
        "a watch counts once"
    );
    let mut other = Watch::open(&client, "resourceVersion=0").await;
    assert_eq!(other.read().await, (String::new(), Some("clean")));
    drop(second);

    let _error = faults.add(Rule::new(WatchAction::Error(Action::status(
        410, "Expired",
    ))));
    assert_eq!(watch.events().await, ["ERROR 410"]);
    assert_eq!(watch.read().await, (String::new(), Some("clean")));
}

#[tokio::test]
async fn f3_a_connection_is_asked_to_end_and_finishes_its_streams() {
    let cluster = DevCluster::builder()
        .plain_http(true)
        .start()
        .await
        .unwrap();
    let socket = tokio::net::TcpStream::connect(cluster.address())
        .await
        .unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, hyper_util::rt::TokioIo::new(socket))
            .await
            .unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection);
    let _away = cluster.faults().add(Rule::new(Action::GoAway).at_most(1));
    let request = Request::get("http://localhost/version")
        .body(String::new())
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    let ended = tokio::time::timeout(10 * SECOND, tasks.join_next())
        .await
        .unwrap();
    assert!(ended.unwrap().unwrap().is_ok(), "it ends without an error");
    assert!(sender.is_closed());
}

#[tokio::test]
async fn case_139_a_restart_keeps_port_objects_and_revisions_and_begins_its_history_anew() {
    let mut cluster = cluster().await;
    let client = Client::try_from(cluster.client_config().await.unwrap()).unwrap();
    let before = create(&client, "a").await.unwrap();
    let version = before.metadata.resource_version.clone().unwrap();
    create(&client, "b").await.unwrap();
    let mut watch = Watch::open(&client, &format!("resourceVersion={version}")).await;
    assert_eq!(watch.events().await, ["ADDED b"]);
    let in_process = cluster.client();
    let mut inner = Watch::open(&in_process, &format!("resourceVersion={version}")).await;
    assert_eq!(inner.events().await, ["ADDED b"]);

    cluster.take_down().await;
    assert_eq!(watch.read().await, (String::new(), Some("reset")));
    assert_eq!(inner.read().await, (String::new(), Some("clean")));
    assert!(names(&client).await.is_err() && names(&in_process).await.is_err());
    let nobody = tokio::net::TcpStream::connect(cluster.address()).await;
    assert_eq!(
        nobody.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );

    cluster.restart().await.unwrap();
    assert_eq!(names(&client).await.unwrap(), ["a", "b"]);
    let mut watch = Watch::open(&client, &format!("resourceVersion={version}")).await;
    assert_eq!(watch.events().await, ["ERROR 410"]);
    let newest = cluster.store().revision();
    let mut watch = Watch::open(&client, &format!("resourceVersion={newest}")).await;
    let after = create(&client, "c").await.unwrap();
    assert_eq!(watch.events().await, ["ADDED c"]);
    assert!(
        after
            .metadata
            .resource_version
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > newest
    );
}

#[tokio::test]
async fn f4_the_history_of_one_kind_is_forgotten_and_others_stay() {
    let cluster = cluster().await;
    let client = cluster.client();
    let before = format!("resourceVersion={}", cluster.store().revision());
    create(&client, "a").await.unwrap();
    for (collection, first) in [("/secrets", "ADDED a"), ("/configmaps", "ERROR 410")] {
        cluster.store().trim_history_of(collection);
        let mut watch = Watch::open(&client, &before).await;
        assert_eq!(watch.events().await, [first], "{collection}");
    }
}

#[tokio::test]
async fn a_proxy_puts_the_same_rules_before_another_server() {
    let cluster = cluster().await;
    let upstream = Client::try_from(cluster.client_config().await.unwrap()).unwrap();
    let proxy = FaultProxy::start(upstream).await.unwrap();
    let config = kube_client::Config::new(proxy.url().parse().unwrap());
    let client = Client::try_from(config).unwrap();
    create(&client, "a").await.unwrap();
    assert_eq!(names(&client).await.unwrap(), ["a"]);
    let mut watch = Watch::open(&client, "resourceVersion=0").await;
    assert_eq!(watch.events().await, ["ADDED a"]);
    let faults: &Faults = proxy.faults();
    let guard = faults.add(Rule::new(WatchAction::cut(Cut::Reset)).at_most(1));
    assert_eq!(watch.read().await, (String::new(), Some("reset")));
    guard.struck(1).await;
    drop(guard);
    // The server's own answer to another question.
    let _asks =
        faults.add(Rule::new(Action::Query("limit".to_owned(), "abc".to_owned())).verb("list"));
    assert!(
        matches!(names(&client).await, Err(kube_client::Error::Api(status)) if status.code == 400)
    );
    drop(cluster);
    let gone = async || {
        matches!(
            create(&client, "b").await,
            Err(kube_client::Error::Api(_)) | Ok(_)
        )
    };
    while gone().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.shutdown().await;
}
