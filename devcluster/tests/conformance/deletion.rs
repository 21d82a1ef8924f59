//! Cases 101–113: deletion.

use http::Method;
use serde_json::json;

use crate::{
    definitions::{definition, establish, widget},
    negotiation::{enveloped, field},
    support::{MERGE, PROTOBUF, Target, config_map, names, pod},
};

#[tokio::test]
async fn case_101_the_answer_of_a_deletion() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let answer = t.delete(&item).await;
    let status = answer.expect(200);
    assert_eq!(
        (&status["kind"], &status["status"]),
        (&json!("Status"), &json!("Success"))
    );
    assert_eq!(status["details"]["kind"], "configmaps");
    assert_eq!(status["details"]["uid"], created["metadata"]["uid"]);
    assert!(status.get("code").is_none());
    t.delete(&item).await.refused(404, "NotFound");
    t.post(t.core("pods"), &pod("p")).await.expect(201);
    assert_eq!(t.delete(t.core("pods/p")).await.expect(200)["kind"], "Pod");
}

#[tokio::test]
async fn case_102_finalizers_hold_an_object() {
    let t = Target::start().await;
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.post(t.config_maps(), &body).await.expect(201);
    let start = t.get(t.config_maps()).await.revision();
    let mut watch = t
        .watch(format!(
            "{}?watch=1&resourceVersion={start}",
            t.config_maps()
        ))
        .await;
    let item = format!("{}/a", t.config_maps());
    let marked = t.delete(&item).await;
    let metadata = &marked.expect(200)["metadata"];
    assert_eq!(marked.json["kind"], "ConfigMap");
    assert!(metadata["deletionTimestamp"].is_string());
    assert_eq!(metadata["deletionGracePeriodSeconds"], 0);
    let again = t.delete(&item).await;
    again.expect(200);
    assert_eq!(again.revision(), marked.revision());
    t.patch(&item, MERGE, &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    t.get(&item).await.refused(404, "NotFound");
    let mut last = marked.revision();
    assert_eq!(watch.next().await.kind, "MODIFIED");
    let event = watch.next().await;
    assert_eq!(event.kind, "DELETED");
    assert!(event.revision() > last);
    last = event.revision();
    assert!(t.get(t.config_maps()).await.revision() >= last);
}

#[tokio::test]
async fn case_103_while_an_object_is_deleted() {
    let t = Target::start().await;
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.post(t.config_maps(), &body).await.expect(201);
    let item = format!("{}/a", t.config_maps());
    t.delete(&item).await.expect(200);
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    t.patch(&item, MERGE, &more)
        .await
        .invalid("FieldValueForbidden", "metadata.finalizers");
    let taken = t.post(t.config_maps(), &config_map("a")).await;
    taken.refused(409, "AlreadyExists");
    assert!(taken.text.contains("being deleted"), "{taken:?}");
    t.patch(&item, MERGE, &json!({"metadata": {"finalizers": []}}))
        .await
        .expect(200);
}

#[tokio::test]
async fn case_104_preconditions() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    for preconditions in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let options = json!({"preconditions": preconditions});
        t.delete_with(&item, &options)
            .await
            .refused(409, "Conflict");
    }
    let options = json!({"preconditions": {
        "uid": created["metadata"]["uid"], "resourceVersion": created["metadata"]["resourceVersion"],
    }});
    t.delete_with(&item, &options).await.expect(200);
}

#[tokio::test]
async fn case_105_propagation() {
    let t = Target::start().await;
    for (name, policy, finalizer) in [
        ("a", "Foreground", Some("foregroundDeletion")),
        ("b", "Orphan", Some("orphan")),
        ("c", "Background", None),
    ] {
        t.config_map(name).await;
        let item = format!("{}/{name}", t.config_maps());
        t.delete_with(&item, &json!({"propagationPolicy": policy}))
            .await
            .expect(200);
        let left = t.get(&item).await;
        match finalizer {
            Some(finalizer) => {
                assert_eq!(
                    left.expect(200)["metadata"]["finalizers"],
                    json!([finalizer])
                );
                t.patch(&item, MERGE, &json!({"metadata": {"finalizers": null}}))
                    .await
                    .expect(200);
            }
            None => drop(left.refused(404, "NotFound")),
        }
    }
    t.config_map("d").await;
    let item = format!("{}/d", t.config_maps());
    for options in [
        json!({"propagationPolicy": "Foo"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
    ] {
        t.delete_with(&item, &options).await.refused(422, "Invalid");
    }
}

#[tokio::test]
async fn case_106_deletion_counts_as_a_generation() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    let mut body = widget(&group, "w");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.post(&widgets, &body).await.expect(201);
    let marked = t.delete(format!("{widgets}/w")).await;
    assert_eq!(marked.expect(200)["metadata"]["generation"], 2);
    let free = json!({"metadata": {"finalizers": null}});
    t.patch(format!("{widgets}/w"), MERGE, &free)
        .await
        .expect(200);
    t.get(format!("{widgets}/w")).await.refused(404, "NotFound");
}

#[tokio::test]
async fn case_107_deletion_of_what_selectors_match() {
    let t = Target::start().await;
    for (name, on) in [("a", "yes"), ("b", "no"), ("c", "yes")] {
        let body = json!({"metadata": {"name": name, "labels": {"on": on}}});
        t.post(t.config_maps(), &body).await.expect(201);
    }
    let answer = t
        .delete(format!("{}?labelSelector=on%3Dyes", t.config_maps()))
        .await;
    assert_eq!(answer.expect(200)["kind"], "ConfigMapList");
    assert_eq!(names(&answer.json), ["a", "c"]);
    let left = t.get(format!("{}?labelSelector=on", t.config_maps())).await;
    assert_eq!(names(&left.json), ["b"]);
    t.delete("/api/v1/configmaps")
        .await
        .refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn case_108_a_dry_deletion_deletes_nothing() {
    let t = Target::start().await;
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    t.delete(format!("{item}?dryRun=All")).await.expect(200);
    t.delete_with(&item, &json!({"dryRun": ["All"]}))
        .await
        .expect(200);
    t.get(&item).await.expect(200);
}

#[tokio::test]
async fn case_109_options_in_protobuf_are_honoured() {
    let t = Target::start().await;
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let options = enveloped("DeleteOptions", &field(4, b"Orphan"));
    t.ask(Method::DELETE, &item)
        .body(PROTOBUF, options)
        .send()
        .await
        .expect(200);
    let left = t.get(&item).await;
    assert_eq!(
        left.expect(200)["metadata"]["finalizers"],
        json!(["orphan"])
    );
    let free = json!({"metadata": {"finalizers": null}});
    t.patch(&item, MERGE, &free).await.expect(200);
}

#[tokio::test]
async fn case_110_the_end_of_a_namespace() {
    let t = Target::start().await;
    let path = format!("/api/v1/namespaces/{}", t.namespace);
    let answer = t.delete(&path).await;
    assert_eq!(answer.expect(200)["kind"], "Namespace");
    assert_eq!(answer.json["status"]["phase"], "Terminating");
    let refused = t.post(t.config_maps(), &config_map("a")).await;
    let status = refused.refused(403, "Forbidden");
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    let mut namespace = t.get(&path).await.expect(200).clone();
    namespace["spec"] = json!({"finalizers": []});
    t.put(format!("{path}/finalize"), &namespace)
        .await
        .expect(200);
    t.get(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn case_111_some_namespaces_stay() {
    let t = Target::start().await;
    t.delete("/api/v1/namespaces/default")
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn case_113_grace_of_pods() {
    let t = Target::start().await;
    t.post(t.core("pods"), &pod("free")).await.expect(201);
    t.delete(t.core("pods/free")).await.expect(200);
    t.get(t.core("pods/free")).await.refused(404, "NotFound");

    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = json!("n1");
    t.post(t.core("pods"), &bound).await.expect(201);
    let item = t.core("pods/bound");
    let first = t.delete(&item).await;
    let metadata = first.expect(200)["metadata"].clone();
    assert_eq!(metadata["deletionGracePeriodSeconds"], 30);
    assert_eq!(metadata["generation"], 2);
    let shortened = t
        .delete_with(&item, &json!({"gracePeriodSeconds": 5}))
        .await;
    assert_eq!(
        shortened.expect(200)["metadata"]["deletionGracePeriodSeconds"],
        5
    );
    let time = |value: &serde_json::Value| -> k8s_openapi::jiff::Timestamp {
        value.as_str().unwrap_or_default().parse().expect("a time")
    };
    let moved = time(&metadata["deletionTimestamp"])
        .duration_since(time(&shortened.json["metadata"]["deletionTimestamp"]));
    assert!((23..=27).contains(&moved.as_secs()), "{moved:?}");
    let longer = t
        .delete_with(&item, &json!({"gracePeriodSeconds": 60}))
        .await;
    assert_eq!(
        longer.expect(200)["metadata"]["deletionGracePeriodSeconds"],
        5
    );
    t.delete_with(&item, &json!({"gracePeriodSeconds": 0}))
        .await
        .expect(200);
    t.get(&item).await.refused(404, "NotFound");
}
