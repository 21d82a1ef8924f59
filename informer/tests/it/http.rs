//! Requests and answers of the API server as a source, on a scripted wire.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use informer::source::{
    self, KubeSource, ListEnd, ListPart, ListRequest, ListVersion, ReadOptions,
};
use informer::source::{ListWatch, Scope, WatchEvent, WatchRequest};
use informer::{
    Cause, Error, Event, Factory, FactoryOptions, HandlerOptions, Informer, InformerOptions,
    MetadataOnly, OnMalformed, OnPanic,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_core::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Log, Written};
use crate::wire::{Answer, Wire, answer};

fn first_list() -> ListRequest {
    ListRequest {
        version: ListVersion::Any,
        limit: Some(500),
        continue_token: None,
    }
}

fn watch_from(version: &str) -> WatchRequest {
    WatchRequest {
        resource_version: version.to_owned(),
        timeout: Duration::from_secs(300),
        initial_events: false,
    }
}

/// Objects and end of a whole list.
type Listed<K> = (Vec<Result<K, Box<source::Malformed>>>, ListEnd);

async fn list_all<K>(source: &KubeSource<K>) -> Result<Listed<K>, source::Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    let mut parts = source.list(first_list());
    let mut all = Vec::new();
    while let Some(part) = parts.next().await {
        match part? {
            ListPart::Items(items) => all.extend(items),
            ListPart::End(end) => return Ok((all, end)),
        }
    }
    panic!("a list without an end");
}

#[tokio::test]
async fn i3_a_list_is_asked_for_and_read_with_its_head_before_or_behind_the_items() {
    for body in [
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"t"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#,
        r#"{"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"metadata":{"continue":"t","resourceVersion":"9"}}"#,
    ] {
        let wire = Wire::with([answer(200, body)]);
        let scope = Scope {
            namespace: Some("n".to_owned()),
            ..Scope::default()
        };
        let (items, end) = list_all::<ConfigMap>(&wire.source(scope)).await.unwrap();
        assert_eq!(items.len(), 2);
        assert_eq!(
            (end.resource_version.as_str(), end.continue_token.as_deref()),
            ("9", Some("t"))
        );
        assert_eq!(
            wire.uris(),
            ["/api/v1/namespaces/n/configmaps?limit=500&resourceVersion=0"]
        );
        assert_eq!(wire.header(0, "accept"), "application/json");
    }
}

#[tokio::test]
async fn a_list_without_items_is_empty() {
    for rest in [
        r#""items":null"#,
        r#""items":[]"#,
        r#""kind":"ConfigMapList""#,
        r#""items":null,"kind":"ConfigMapList""#,
        // A definition may name the list otherwise.
        r#""kind":"ConfigMaps","items":[]"#,
    ] {
        let body = format!(r#"{{"metadata":{{"resourceVersion":"9"}},{rest}}}"#);
        let wire = Wire::with([answer(200, &body)]);
        let (items, end) = list_all::<ConfigMap>(&wire.source(Scope::default()))
            .await
            .unwrap();
        assert!(items.is_empty() && end.resource_version == "9");
    }
}

#[tokio::test]
async fn r13_i7_what_is_no_list_is_refused_and_not_taken_for_an_empty_one() {
    let cases = [
        (
            r#""kind":"Table","rows":[]"#,
            "a Table instead of a list of objects",
        ),
        (
            r#""kind":"Status","status":"Success""#,
            "a Status instead of a list of objects",
        ),
        (
            r#""kind":"ConfigMap","data":{}"#,
            "a ConfigMap instead of a list of objects",
        ),
        (
            r#""kind":"ConfigMap","items":null"#,
            "a ConfigMap instead of a list of objects",
        ),
        (
            r#""data":{}"#,
            "a value without kind and items instead of a list of objects",
        ),
        (
            r#""kind":"ConfigMapList","items":{}"#,
            "`items` of the list is not an array",
        ),
        (r#""items":7"#, "`items` of the list is not an array"),
        (r#""items":"[]""#, "`items` of the list is not an array"),
    ];
    for (rest, want) in cases {
        let body = format!(r#"{{"metadata":{{"resourceVersion":"9"}},{rest}}}"#);
        let wire = Wire::with([answer(200, &body)]);
        let source = wire.source::<ConfigMap>(Scope::default());
        let error = list_all(&source).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("unusable answer: {want}"),
            "{rest}"
        );
    }
}

#[tokio::test]
async fn r18_one_bad_object_of_a_thousand_is_reported_with_name_and_path() {
    let mut items: Vec<String> = (0..1000)
        .map(|at| {
            format!(r#"{{"metadata":{{"name":"o{at}","namespace":"n"}},"data":{{"k":"v"}}}}"#)
        })
        .collect();
    items[500] =
        r#"{"metadata":{"name":"bad","namespace":"n"},"data":{"k":{"secret":1}}}"#.to_owned();
    let body = format!(
        r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{}]}}"#,
        items.join(",")
    );
    let frames: String = items
        .iter()
        .map(|item| format!("{{\"type\":\"ADDED\",\"object\":{item}}}\n"))
        .collect();
    let wire = Wire::with([answer(200, &body), answer(200, &frames)]);
    let source = wire.source::<ConfigMap>(Scope::default());
    let (listed, _) = list_all(&source).await.unwrap();
    let mut watched = Vec::new();
    let mut stream = source.watch(watch_from("9")).await.unwrap();
    while let Some(batch) = stream.next().await {
        watched.extend(batch.unwrap().into_iter().map(|event| match event {
            WatchEvent::Added(object) => Ok(object),
            WatchEvent::Malformed(malformed) => Err(malformed),
            other => panic!("{other:?}"),
        }));
    }
    for read in [listed, watched] {
        let (good, bad): (Vec<_>, Vec<_>) = read.into_iter().partition(Result::is_ok);
        assert_eq!((good.len(), bad.len()), (999, 1));
        let text = bad[0].as_ref().unwrap_err().to_string();
        assert_eq!(
            text,
            "ConfigMap n/bad cannot be read at `data.k`: found map, expected a string"
        );
    }
}

#[tokio::test]
async fn i6_the_text_of_an_unreadable_object_is_kept_on_demand_and_never_printed() {
    let bad = r#"{"metadata":{"name":"bad","namespace":"n","resourceVersion":"3"},"data":{"k":["hunter2"]}}"#;
    let list = format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{bad}]}}"#);
    for (on_malformed, kept) in [(OnMalformed::Skip, None), (OnMalformed::KeepRaw, Some(bad))] {
        let wire = Wire::with([answer(200, &list)]);
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let texts = Arc::clone(&told);
        let options = InformerOptions {
            watch_list: false,
            on_malformed,
            error_handler: Some(Arc::new(move |error| {
                texts.lock().push(format!("{error} {error:?}"));
            })),
            ..InformerOptions::default()
        };
        let informer: Informer<ConfigMap> = Informer::new(wire.client(), options).unwrap();
        let mut task = JoinSet::new();
        let running = informer.clone();
        task.spawn(async move { running.run(CancellationToken::new()).await });
        informer.synced().await;
        let malformed = informer.malformed();
        assert_eq!(malformed.len(), 1);
        let raw = malformed[0].raw.as_ref();
        assert_eq!(raw.map(informer::source::RawObject::text), kept);
        let shown = format!("{malformed:?} {} {:?}", malformed[0], told.lock());
        assert!(
            shown.contains("n/bad") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
    // What does not fit a metadata informer may be a whole secret.
    let wire = Wire::with([answer(200, &list)]);
    let read = ReadOptions {
        keep_raw: true,
        ..ReadOptions::default()
    };
    let source =
        KubeSource::<MetadataOnly<Secret>>::new(wire.client(), &(), Scope::default(), read);
    let whole = r#"{"metadata":{"resourceVersion":"9"},"items":[{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"}}]}"#;
    wire.answers.lock().clear();
    wire.answers.lock().push_back(answer(200, whole));
    let (items, _) = list_all(&source).await.unwrap();
    assert_eq!(items[0].as_ref().unwrap_err().raw, None);
}

#[tokio::test]
async fn i33_the_status_counts_before_any_frame() {
    let expired =
        r#"{"kind":"Status","status":"Failure","reason":"Expired","code":410,"message":"too old"}"#;
    let throttled = Answer {
        retry_after: Some(7),
        ..answer(429, "slow down")
    };
    let wire = Wire::with([
        answer(410, expired),
        throttled,
        answer(502, "<html>bad</html>"),
    ]);
    let source = wire.source::<ConfigMap>(Scope::default());
    let mut failures = Vec::new();
    for _ in 0..3 {
        let error = source.watch(watch_from("9")).await.err().expect("refused");
        failures.push((error.to_string(), error.retry_after()));
    }
    assert_eq!(
        failures,
        [
            ("server answered 410 Expired: too old".to_owned(), None),
            (
                "server answered 429 TooManyRequests: slow down".to_owned(),
                Some(Duration::from_secs(7))
            ),
            (
                "server answered 502 BadGateway: <html>bad</html>".to_owned(),
                None
            ),
        ]
    );
    assert_eq!(wire.header(0, "accept-encoding"), "identity");
}

#[tokio::test]
async fn i33_a_refusal_keeps_its_class_though_something_has_compressed_its_text() {
    let cases = [
        (410, Cause::Expired, None),
        (404, Cause::NotFound, None),
        (429, Cause::Throttled, Some(7)),
        (503, Cause::Unavailable, None),
        (200, Cause::Protocol, None),
    ];
    for (code, want, retry_after) in cases {
        let compressed = || Answer {
            retry_after,
            encoding: Some("gzip"),
            ..answer(code, "\u{1f}\u{8b} no text")
        };
        let wire = Wire::with([compressed(), compressed()]);
        let source = wire.source::<ConfigMap>(Scope::default());
        let list = list_all::<ConfigMap>(&source).await.unwrap_err();
        let watch = source.watch(watch_from("9")).await.err().expect("refused");
        for error in [list, watch] {
            assert!(error.to_string().contains("gzip"), "{error}");
            let wait = retry_after.map(|seconds| Duration::from_secs(u64::from(seconds)));
            assert_eq!(error.retry_after(), wait, "{code}");
            let cause = informer::ReflectorError::List(error).cause();
            assert_eq!(cause, want, "{code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i39_a_watch_that_ends_at_any_byte_of_its_only_event_is_resumed_without_a_list() {
    let list = r#"{"metadata":{"resourceVersion":"9"},"items":[]}"#;
    let frame = concat!(
        r#"{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"n","#,
        r#""uid":"u","resourceVersion":"10"},"data":{"k":"\n{"}}}"#,
        "\n"
    );
    for at in 0..=frame.len() {
        let watch = |body: &str, open| Answer {
            delay: Duration::from_secs(2),
            open,
            ..answer(200, body)
        };
        let wire = Wire::with([
            answer(200, list),
            watch(&frame[..at], false),
            watch(if at == frame.len() { "" } else { frame }, true),
        ]);
        let options = InformerOptions {
            watch_list: false,
            ..InformerOptions::default()
        };
        let informer: Informer<ConfigMap> = Informer::new(wire.client(), options).unwrap();
        let mut task = JoinSet::new();
        let running = informer.clone();
        task.spawn(async move { running.run(CancellationToken::new()).await });
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(informer.lister().list().len(), 1, "{at}");
        let stats = informer.stats();
        assert_eq!(
            (stats.lists, stats.watches, stats.errors),
            (1, 2, 0),
            "{at}"
        );
    }
}

#[tokio::test]
async fn a_status_printed_over_lines_in_a_watch_is_one_error() {
    let body = "{\n  \"kind\": \"Status\",\n  \"status\": \"Failure\",\n  \"reason\": \"Gone\",\n  \"code\": 410\n}\n";
    let wire = Wire::with([answer(200, body)]);
    let source = wire.source::<ConfigMap>(Scope::default());
    let mut stream = source.watch(watch_from("9")).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "server answered 410 Gone: ");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn i5_objects_are_there_before_the_answer_is_complete() {
    const ITEMS: usize = 4000;
    let items: Vec<_> = (0..ITEMS)
        .map(|at| format!(r#"{{"metadata":{{"name":"o{at}","uid":"{at}"}}}}"#))
        .collect();
    let head = format!(
        r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{},{{"met"#,
        items.join(",")
    );
    let wire = Wire::with([Answer {
        open: true,
        ..answer(200, &head)
    }]);
    let source = wire.source::<ConfigMap>(Scope::default());
    let mut parts = source.list(first_list());
    let Some(Ok(ListPart::Items(items))) = parts.next().await else {
        panic!("items first")
    };
    assert!((1..ITEMS).contains(&items.len()), "{} items", items.len());
}

#[tokio::test]
async fn i6_an_object_above_16_mib_is_named_and_the_rest_of_its_list_is_there() {
    let begin = r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"big","namespace":"n","uid":"u","resourceVersion":"7"},"data":{"k":""#;
    let mebibyte = Bytes::from(vec![b'x'; 1 << 20]);
    let end = Bytes::from_static(br#""}},{"metadata":{"name":"b"}}]}"#);
    let chunks = [Bytes::from_static(begin.as_bytes())]
        .into_iter()
        .chain(std::iter::repeat_n(mebibyte, 17))
        .chain([end]);
    let wire = Wire::with([Answer {
        chunks: chunks.collect(),
        ..answer(200, "")
    }]);
    let source = wire.source(Scope::default());
    let (items, end) = list_all::<ConfigMap>(&source).await.unwrap();
    assert_eq!(end.resource_version, "9");
    let [Ok(a), Err(big), Ok(b)] = &items[..] else {
        panic!("{} items", items.len())
    };
    let name = |object: &ConfigMap| object.metadata.name.clone().unwrap();
    assert_eq!((name(a), name(b)), ("a".to_owned(), "b".to_owned()));
    assert_eq!(
        big.key.as_ref().map(ToString::to_string).as_deref(),
        Some("n/big")
    );
    assert_eq!(
        (big.uid.as_deref(), big.resource_version.as_deref()),
        (Some("u"), Some("7"))
    );
    assert!(big.problem.contains("above 16777216 none is read"), "{big}");
}

#[tokio::test]
async fn a_list_that_breaks_off_is_an_error() {
    let body = r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}}"#;
    let wire = Wire::with([answer(200, body)]);
    let error = list_all::<ConfigMap>(&wire.source(Scope::default()))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("in the middle of the list"),
        "{error}"
    );
}

#[tokio::test]
async fn i102_a_metadata_informer_asks_for_metadata_alone_and_holds_no_secret() {
    let applied = r#""kubectl.kubernetes.io/last-applied-configuration":"{\"data\":\"hunter2\"}""#;
    let partial = |name: &str, version: u32| {
        format!(
            r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"name":"{name}","namespace":"n","uid":"{name}","resourceVersion":"{version}","annotations":{{{applied},"keep":"this"}},"managedFields":[{{"manager":"hunter2"}}]}}}}"#
        )
    };
    let list = format!(
        r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"9"}},"items":[{}]}}"#,
        partial("a", 1)
    );
    let frame = format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", partial("b", 10));
    let wire = Wire::with([
        answer(200, &list),
        Answer {
            open: true,
            ..answer(200, &frame)
        },
    ]);
    let options = InformerOptions {
        watch_list: false,
        ..InformerOptions::default()
    };
    let informer: Informer<MetadataOnly<Secret>> = Informer::new(wire.client(), options).unwrap();
    let (send, mut told) = tokio::sync::mpsc::channel(8);
    informer
        .add_handler("names", move |event: &Event<MetadataOnly<Secret>>| {
            send.try_send(format!("{} {event:?}", event.key())).unwrap();
        })
        .unwrap();
    let stop = CancellationToken::new();
    let mut task = JoinSet::new();
    let (running, token) = (informer.clone(), stop.clone());
    task.spawn(async move { running.run(token).await });
    let events = [told.recv().await.unwrap(), told.recv().await.unwrap()];
    assert!(events[0].starts_with("n/a") && events[1].starts_with("n/b"));
    for text in events {
        assert!(!text.contains("hunter2") && text.contains("keep"), "{text}");
    }
    stop.cancel();
    task.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(informer.status().kind, "Secret");
    let form =
        |list: &str| format!("application/json;as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1");
    assert_eq!(wire.header(0, "accept"), form("List"));
    assert_eq!(wire.header(1, "accept"), form(""));
    assert!(wire.uris()[1].starts_with("/api/v1/secrets?watch=true&allowWatchBookmarks=true"));
}

#[tokio::test]
async fn a_whole_secret_sent_to_a_metadata_informer_is_refused_unseen() {
    let body = r#"{"metadata":{"resourceVersion":"9"},"items":[{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"},"data":{"k":"aHVudGVyMg=="}}]}"#;
    let wire = Wire::with([answer(200, body)]);
    let (items, _) = list_all::<MetadataOnly<Secret>>(&wire.source(Scope::default()))
        .await
        .unwrap();
    let malformed = items[0].as_ref().unwrap_err();
    assert_eq!(malformed.path, "kind");
    assert!(!format!("{malformed:?}").contains("aHVu"));
}

#[tokio::test]
async fn a_server_that_nobody_runs_is_refused_and_named_so() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let config = kube_client::Config::new(format!("http://{address}").parse().unwrap());
    let client =
        informer::client::connect(config, informer::client::ClientOptions::default()).unwrap();
    let informer: Informer<ConfigMap> = Informer::new(client, InformerOptions::default()).unwrap();
    let stop = CancellationToken::new();
    let mut task = JoinSet::new();
    let (running, token) = (informer.clone(), stop.clone());
    task.spawn(async move { running.run(token).await });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while informer.status().last_error.is_none() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        informer.status().last_error.map(|(cause, _)| cause),
        Some(Cause::Refused)
    );
    stop.cancel();
    task.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i40_a_stop_ends_a_hanging_list_and_a_wait_within_100_ms_of_real_time() {
    for listens in [true, false] {
        let mut shortest = Duration::MAX;
        // A machine that is busy with something else may be late once, not each time.
        for _ in 0..5 {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            // A server that takes the call and never answers, or none, after which there is a wait.
            let listener = listens.then_some(listener);
            let config = kube_client::Config::new(format!("http://{address}").parse().unwrap());
            let client = informer::client::connect(config, Default::default()).unwrap();
            let informer: Informer<ConfigMap> =
                Informer::new(client, InformerOptions::default()).unwrap();
            let stop = CancellationToken::new();
            let mut task = JoinSet::new();
            let (running, token) = (informer.clone(), stop.clone());
            task.spawn(async move { running.run(token).await });
            let _connection = match &listener {
                Some(listener) => Some(listener.accept().await.unwrap()),
                None => {
                    while informer.status().last_error.is_none() {
                        tokio::task::yield_now().await;
                    }
                    None
                }
            };
            let began = tokio::time::Instant::now();
            stop.cancel();
            task.join_next().await.unwrap().unwrap().unwrap();
            shortest = shortest.min(began.elapsed());
            assert!(informer.is_stopped());
        }
        assert!(
            shortest < Duration::from_millis(100),
            "{listens}: {shortest:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_factory_tells_of_an_informer_that_panicked_and_of_one_that_has_not_synced() {
    let list = r#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"a"}}]}"#;
    let wire = Wire::with([answer(200, list)]);
    let factory = Factory::new(wire.client(), FactoryOptions::default());
    let configs = factory
        .informer_with::<ConfigMap>(|options| options.watch_list = false)
        .unwrap();
    let crash = HandlerOptions {
        on_panic: OnPanic::Crash,
        ..HandlerOptions::default()
    };
    let handler = |_: &Event<ConfigMap>| panic!("for all to see");
    configs.add_handler_with("crash", handler, crash).unwrap();
    factory.start().unwrap();
    configs.synced().await;
    // Same name, and no answer to its list.
    factory.informer::<MetadataOnly<ConfigMap>>().unwrap();
    factory.start().unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    let synced = factory.wait_for_cache_sync(&stop).await;
    assert_eq!(synced, [("ConfigMap".to_owned(), false)].into());
    let failures = factory.shutdown().await.unwrap_err();
    assert!(
        matches!(&failures[..], [Error::Panicked { informer, message }]
            if informer == "ConfigMap" && message == "for all to see"),
        "{failures:?}"
    );
}

/// A kubeconfig whose user has a credential plugin: a script that gives a token that has expired,
/// and with a file `fails` beside it fails with `SECRET` in all that it prints.
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
fn with_plugin(directory: &std::path::Path) -> kube_client::config::Kubeconfig {
    const EXPIRED: &str = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"SECRET-first","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;
    let script = directory.join("login");
    let shown = script.display();
    let text = format!(
        "if [ -e '{}' ]; then echo SECRET-out; echo SECRET-err >&2; exit 3; fi\necho '{EXPIRED}'\n",
        directory.join("fails").display()
    );
    std::fs::write(&script, text).unwrap();
    let kubeconfig = format!(
        "clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n\
         users: [{{name: u, user: {{exec: {{\
         apiVersion: client.authentication.k8s.io/v1, command: sh, args: ['{shown}', SECRET-arg], \
         env: [{{name: TOKEN, value: SECRET-env}}], interactiveMode: Never}}}}}}]\n"
    );
    kube_client::config::Kubeconfig::from_yaml(&kubeconfig).unwrap()
}

#[tokio::test]
async fn i41_what_a_credential_plugin_prints_stands_in_no_error_log_or_status() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::TRACE);
    let directory = tempfile::tempdir().unwrap();
    let options = kube_client::config::KubeConfigOptions::default();
    let kubeconfig = with_plugin(directory.path());
    let config = kube_client::Config::from_custom_kubeconfig(kubeconfig, &options);
    let client = informer::client::connect(config.await.unwrap(), Default::default()).unwrap();
    std::fs::write(directory.path().join("fails"), "").unwrap();
    let informer: Informer<ConfigMap> = Informer::new(client, InformerOptions::default()).unwrap();
    let errors = Log::default();
    let told = errors.clone();
    informer
        .set_error_handler(Arc::new(move |error| {
            told.push(format!("{error} {error:?} {:?}", error.cause()));
        }))
        .unwrap();
    let mut task = JoinSet::new();
    let running = informer.clone();
    task.spawn(async move { running.run(CancellationToken::new()).await });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while informer.status().last_error.is_none() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (cause, text) = informer.status().last_error.expect("the plugin fails");
    assert_eq!(cause, Cause::Unauthorized);
    assert!(
        text.contains("the credential plugin `sh` failed with exit status: 3"),
        "{text}"
    );
    let everything = format!("{text} {:?} {}", errors.take(), written.text());
    assert!(everything.contains("list or watch failed"), "it was logged");
    assert!(!everything.contains("SECRET"), "{everything}");

    let kubeconfig = with_plugin(directory.path());
    let config = kube_client::Config::from_custom_kubeconfig(kubeconfig, &options);
    let client = informer::client::connect(config.await.unwrap(), Default::default());
    let error = client.err().expect("the plugin fails");
    let text = format!("{error:?} {}", std::error::Error::source(&error).unwrap());
    assert!(text.contains("the credential plugin `sh` failed"), "{text}");
    assert!(!text.contains("SECRET"), "{text}");

    let broken = directory.path().join("kubeconfig");
    std::fs::write(&broken, "users: SECRET-token").unwrap();
    let source = informer::client::ConfigSource {
        kubeconfig: Some(broken),
        context: None,
    };
    let error = informer::client::load_config(&source).await.unwrap_err();
    let text = format!(
        "{error:?} {error} {}",
        std::error::Error::source(&error).unwrap()
    );
    assert!(text.contains("no kubeconfig at line 1"), "{text}");
    assert!(!text.contains("SECRET"), "{text}");
}
