//! Cases 057–077: watches.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::support::{MERGE, PARTIAL, TABLE, Target, config_map, pod, unique};

#[tokio::test]
async fn case_057_watch_from_a_list_sees_added_modified_deleted_in_order() {
    let t = Target::start().await;
    let start = t.get(t.config_maps()).await.revision();
    let mut watch = t
        .watch(format!(
            "{}?watch=1&resourceVersion={start}",
            t.config_maps()
        ))
        .await;
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    t.patch(&item, MERGE, &json!({"data": {"k": "w"}}))
        .await
        .expect(200);
    t.delete(&item).await.expect(200);
    let mut last = start;
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        let event = watch.next().await;
        assert_eq!((event.kind.as_str(), event.name()), (kind, "a"));
        assert_eq!(event.object["kind"], "ConfigMap");
        assert_eq!(event.object["apiVersion"], "v1");
        assert!(event.revision() > last, "{event:?} after {last}");
        last = event.revision();
    }
}

#[tokio::test]
async fn case_058_watch_without_revision_starts_with_what_exists() {
    let t = Target::start().await;
    t.config_map("b").await;
    t.config_map("a").await;
    let mut watch = t.watch(format!("{}?watch=true", t.config_maps())).await;
    for name in ["a", "b"] {
        let event = watch.next().await;
        assert_eq!((event.kind.as_str(), event.name()), ("ADDED", name));
    }
    t.config_map("c").await;
    assert_eq!(watch.next().await.name(), "c");
}

#[tokio::test]
async fn case_059_watch_from_zero_with_bookmarks_marks_the_end_of_the_state() {
    let t = Target::start().await;
    t.config_map("a").await;
    let query = "watch=1&resourceVersion=0&allowWatchBookmarks=true";
    let mut watch = t.watch(format!("{}?{query}", t.config_maps())).await;
    let added = watch.next().await;
    assert_eq!((added.kind.as_str(), added.name()), ("ADDED", "a"));
    let bookmark = watch.next().await;
    assert_eq!(bookmark.kind, "BOOKMARK");
    let annotations = &bookmark.object["metadata"]["annotations"];
    assert_eq!(
        annotations["k8s.io/initial-events-end"], "true",
        "{bookmark:?}"
    );
    assert!(bookmark.revision() >= added.revision());
    assert_eq!(bookmark.object["kind"], "ConfigMap");
}

#[tokio::test]
async fn case_060_streaming_list_ends_with_the_marked_bookmark() {
    let t = Target::start().await;
    let query =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = t.watch(format!("{}?{query}", t.config_maps())).await;
    let first = watch.next().await;
    assert_eq!(first.kind, "BOOKMARK", "nothing exists: {first:?}");
    assert_eq!(
        first.object["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    t.config_map("a").await;
    let mut watch = t.watch(format!("{}?{query}", t.config_maps())).await;
    assert_eq!(watch.next().await.name(), "a");
    assert_eq!(watch.next().await.kind, "BOOKMARK");
}

#[tokio::test]
async fn case_061_initial_events_need_the_match_and_the_match_needs_them() {
    let t = Target::start().await;
    for query in [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
    ] {
        t.get(format!("{}?watch=1&{query}", t.config_maps()))
            .await
            .refused(422, "Invalid");
    }
}

#[tokio::test]
async fn case_062_watch_without_initial_events_shows_only_what_comes() {
    let t = Target::start().await;
    t.config_map("old").await;
    let query = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut watch = t.watch(format!("{}?{query}", t.config_maps())).await;
    t.config_map("new").await;
    assert_eq!(watch.next().await.name(), "new");
}

#[tokio::test]
async fn case_065_watch_of_a_future_revision_waits_for_it() {
    let t = Target::start().await;
    let now = t.get(t.config_maps()).await.revision();
    let query = format!("watch=1&resourceVersion={}", now + 1000);
    let mut watch = t.watch(format!("{}?{query}", t.config_maps())).await;
    t.config_map("early").await;
    assert!(watch.is_silent().await);
}

#[tokio::test]
async fn case_066_label_selector_crossing_is_seen_as_added_and_deleted() {
    let t = Target::start().await;
    t.config_map("a").await;
    let query = "watch=1&labelSelector=on%3Dyes";
    let mut watch = t.watch(format!("{}?{query}", t.config_maps())).await;
    let item = format!("{}/a", t.config_maps());
    let on = t
        .patch(
            &item,
            MERGE,
            &json!({"metadata": {"labels": {"on": "yes"}}}),
        )
        .await;
    let event = watch.next().await;
    assert_eq!(event.kind, "ADDED");
    assert_eq!(event.revision(), on.revision());
    t.patch(&item, MERGE, &json!({"data": {"k": "x"}}))
        .await
        .expect(200);
    assert_eq!(watch.next().await.kind, "MODIFIED");
    let off = t
        .patch(&item, MERGE, &json!({"metadata": {"labels": {"on": null}}}))
        .await;
    let event = watch.next().await;
    assert_eq!(event.kind, "DELETED");
    assert_eq!(
        event.object["metadata"]["labels"]["on"], "yes",
        "the old content"
    );
    assert_eq!(event.revision(), off.revision(), "the new revision");
}

#[tokio::test]
async fn case_067_field_selector_crossing_on_pods() {
    let t = Target::start().await;
    let pods = t.core("pods");
    let mut watch = t
        .watch(format!(
            "{pods}?watch=1&fieldSelector=status.phase%3DRunning"
        ))
        .await;
    t.post(&pods, &pod("p")).await.expect(201);
    let status = format!("{pods}/p/status");
    t.patch(&status, MERGE, &json!({"status": {"phase": "Running"}}))
        .await
        .expect(200);
    assert_eq!(watch.next().await.kind, "ADDED");
    t.patch(&status, MERGE, &json!({"status": {"phase": "Failed"}}))
        .await
        .expect(200);
    let event = watch.next().await;
    assert_eq!((event.kind.as_str(), event.name()), ("DELETED", "p"));
    assert_eq!(event.object["status"]["phase"], "Running");
}

#[tokio::test]
async fn case_068_watch_timeout_ends_the_stream_cleanly() {
    let t = Target::start().await;
    let mut watch = t
        .watch(format!("{}?watch=1&timeoutSeconds=1", t.config_maps()))
        .await;
    assert_eq!(watch.next_or_end(Duration::from_secs(4)).await, None);
}

#[tokio::test]
async fn case_069_a_bookmark_comes_before_the_timeout() {
    let t = Target::start().await;
    let start = t.get(t.config_maps()).await.revision();
    let query =
        format!("watch=1&timeoutSeconds=5&allowWatchBookmarks=true&resourceVersion={start}");
    let mut watch = t.watch(format!("{}?{query}", t.config_maps())).await;
    // A write of another kind moves the revision, a consistent list tells the kind of it.
    t.post(t.core("secrets"), &json!({"metadata": {"name": "s"}}))
        .await
        .expect(201);
    let listed = t.get(t.config_maps()).await.revision();
    let mut newest = 0;
    while let Some(event) = watch.next_or_end(Duration::from_secs(8)).await {
        assert_eq!(event.kind, "BOOKMARK", "{event:?}");
        newest = event.revision();
    }
    assert!(newest >= listed, "{newest} < {listed}");
}

#[tokio::test]
async fn case_070_watch_of_one_name_by_selector_and_by_path() {
    let t = Target::start().await;
    // A name for each, since a cache of the server's may still show what was deleted just now.
    let by_selector = format!(
        "{}?watch=1&fieldSelector=metadata.name%3Dx",
        t.config_maps()
    );
    let by_path = format!("/api/v1/watch/namespaces/{}/configmaps/y", t.namespace);
    for (path, name) in [(by_selector, "x"), (by_path, "y")] {
        let mut watch = t.watch(path).await;
        t.config_map(&format!("beside-{name}")).await;
        t.config_map(name).await;
        assert_eq!(watch.next().await.name(), name);
        assert!(watch.is_silent().await);
    }
}

#[tokio::test]
async fn case_071_metadata_watch_shows_partial_objects_and_bookmarks() {
    let t = Target::start().await;
    t.config_map("a").await;
    let path = format!(
        "{}?watch=1&resourceVersion=0&allowWatchBookmarks=true",
        t.config_maps()
    );
    let mut watch = t.ask(Method::GET, path).accept(PARTIAL).watch().await;
    for kind in ["ADDED", "BOOKMARK"] {
        let event = watch.next().await;
        assert_eq!(event.kind, kind);
        assert_eq!(event.object["kind"], "PartialObjectMetadata", "{event:?}");
        assert_eq!(event.object["apiVersion"], "meta.k8s.io/v1");
        assert!(event.object.get("data").is_none());
    }
}

#[tokio::test]
async fn case_072_table_watch_tells_the_columns_once() {
    let t = Target::start().await;
    t.config_map("a").await;
    let path = format!("{}?watch=1", t.config_maps());
    let mut watch = t.ask(Method::GET, path).accept(TABLE).watch().await;
    let first = watch.next().await;
    assert_eq!(first.object["kind"], "Table", "{first:?}");
    assert!(
        !first.object["columnDefinitions"]
            .as_array()
            .expect("columns")
            .is_empty()
    );
    t.config_map("b").await;
    let second = watch.next().await;
    assert!(
        second.object["columnDefinitions"]
            .as_array()
            .is_none_or(Vec::is_empty),
        "{second:?}"
    );
    assert_eq!(second.object["rows"][0]["cells"][0], "b");
}

#[tokio::test]
async fn case_073_bad_revision_is_500_and_a_revision_serves_other_kinds() {
    let t = Target::start().await;
    let answer = t
        .get(format!("{}?watch=1&resourceVersion=abc", t.config_maps()))
        .await;
    answer.expect(500);
    t.config_map("a").await;
    let revision = t.get(t.config_maps()).await.revision();
    let secrets = t.core("secrets");
    let mut watch = t
        .watch(format!("{secrets}?watch=1&resourceVersion={revision}"))
        .await;
    t.post(&secrets, &json!({"metadata": {"name": "s"}}))
        .await
        .expect(201);
    assert_eq!(watch.next().await.name(), "s");
}

#[tokio::test]
async fn case_073_a_forgotten_history_is_410() {
    let t = Target::start().await;
    let Some(cluster) = &t.embedded else { return };
    let start = t.get(t.config_maps()).await.revision();
    t.config_map("a").await;
    let path = format!("{}?watch=1&resourceVersion={start}", t.config_maps());
    assert_eq!(t.watch(&path).await.next().await.name(), "a");
    cluster.trim_history();
    let event = t.watch(&path).await.next().await;
    assert_eq!(
        (event.kind.as_str(), &event.object["code"]),
        ("ERROR", &json!(410))
    );
    let now = t.get(t.config_maps()).await.revision();
    let mut watch = t
        .watch(format!("{}?watch=1&resourceVersion={now}", t.config_maps()))
        .await;
    t.config_map("b").await;
    assert_eq!(watch.next().await.name(), "b");
}

#[tokio::test]
async fn case_074_watch_of_a_missing_namespace_sees_later_objects() {
    let t = Target::start().await;
    let name = unique("later");
    let config_maps = format!("/api/v1/namespaces/{name}/configmaps");
    let mut watch = t.watch(format!("{config_maps}?watch=1")).await;
    t.post("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
        .await
        .expect(201);
    t.post(&config_maps, &config_map("a")).await.expect(201);
    assert_eq!(watch.next().await.name(), "a");
}

#[tokio::test]
async fn case_075_all_watchers_see_the_same_sequence() {
    const WATCHERS: usize = 100;
    const WRITES: usize = 200;
    let t = Target::start().await;
    let start = t.get(t.config_maps()).await.revision();
    let path = format!("{}?watch=1&resourceVersion={start}", t.config_maps());
    let mut watches = Vec::new();
    for _ in 0..WATCHERS {
        watches.push(t.watch(&path).await);
    }
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    for n in 1..WRITES {
        t.patch(&item, MERGE, &json!({"data": {"n": n.to_string()}}))
            .await
            .expect(200);
    }
    let mut sequences = Vec::new();
    for watch in &mut watches {
        let mut sequence = Vec::new();
        for _ in 0..WRITES {
            sequence.push(watch.next().await);
        }
        sequences.push(sequence);
    }
    assert!(sequences.iter().all(|sequence| *sequence == sequences[0]));
    assert!(
        sequences[0]
            .windows(2)
            .all(|pair| pair[0].revision() < pair[1].revision())
    );
}

#[tokio::test]
async fn case_077_a_write_that_changes_nothing_makes_no_event() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let start = t.get(t.config_maps()).await.revision();
    let mut watch = t
        .watch(format!(
            "{}?watch=1&resourceVersion={start}",
            t.config_maps()
        ))
        .await;
    let put = t.put(&item, &created).await;
    put.expect(200);
    assert_eq!(
        put.json["metadata"]["resourceVersion"],
        created["metadata"]["resourceVersion"]
    );
    let patch = t.patch(&item, MERGE, &json!({"data": {"k": "v"}})).await;
    assert_eq!(
        patch.json["metadata"]["resourceVersion"],
        created["metadata"]["resourceVersion"]
    );
    assert!(watch.is_silent().await);
}
