//! Cases 082–086: patches.

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::support::{JSON_PATCH, MERGE, STRATEGIC, Target, pod};

#[tokio::test]
async fn case_082_merge_patch() {
    let t = Target::start().await;
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let patch = json!({"data": {"k": null, "n": "1"}, "metadata": {"labels": {"a": "b"}}});
    let answer = t.patch(&item, MERGE, &patch).await;
    assert_eq!(answer.expect(200)["data"], json!({"n": "1"}));
    assert_eq!(answer.json["metadata"]["labels"]["a"], "b");
    let typed = t.patch(&item, MERGE, &json!({"data": {"n": 1}})).await;
    typed.invalid("FieldValueInvalid", "patch");
    let broken = t.ask(Method::PATCH, &item).body(MERGE, "[1").send().await;
    broken.refused(400, "BadRequest");
    t.patch(format!("{}/none", t.config_maps()), MERGE, &json!({}))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn case_083_json_patch() {
    let t = Target::start().await;
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let good = json!([
        {"op": "test", "path": "/data/k", "value": "v"},
        {"op": "add", "path": "/data/n", "value": "1"},
        {"op": "remove", "path": "/data/k"},
    ]);
    let answer = t.patch(&item, JSON_PATCH, &good).await;
    assert_eq!(answer.expect(200)["data"], json!({"n": "1"}));
    let failing = [
        json!([{"op": "test", "path": "/data/n", "value": "2"}]),
        json!([{"op": "remove", "path": "/data/none"}]),
    ];
    for patch in failing {
        t.patch(&item, JSON_PATCH, &patch).await.expect(422);
    }
    let test = json!({"op": "test", "path": "/data/n", "value": "1"});
    let many = Value::Array(vec![test; 10_001]);
    t.patch(&item, JSON_PATCH, &many)
        .await
        .refused(413, "RequestEntityTooLarge");
}

#[tokio::test]
async fn case_084_concurrent_patches_are_not_lost() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    t.patch(&item, MERGE, &json!({"data": {"x": "y"}}))
        .await
        .expect(200);
    let stale = json!({
        "metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"z": "z"},
    });
    t.patch(&item, MERGE, &stale).await.refused(409, "Conflict");
    let patches = (0..20).map(|n| {
        let (t, item) = (&t, &item);
        async move {
            t.patch(item, MERGE, &json!({"data": {format!("n{n}"): "1"}}))
                .await
                .expect(200)
                .clone()
        }
    });
    join_all(patches).await;
    let data = t.get(&item).await.json["data"].clone();
    for n in 0..20 {
        assert_eq!(data[format!("n{n}")], "1");
    }
}

fn two_containers(name: &str) -> Value {
    let mut body = pod(name);
    body["spec"]["containers"] = json!([
        {"name": "a", "image": "i:1", "ports": [{"containerPort": 80, "name": "web"}]},
        {"name": "b", "image": "i:1"},
    ]);
    body
}

#[tokio::test]
async fn case_085_strategic_merge_of_lists_by_key() {
    let t = Target::start().await;
    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", t.namespace);
    let body = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": two_containers("x")["spec"]},
    }});
    t.post(&deployments, &body).await.expect(201);
    let item = format!("{deployments}/d");
    let containers = |list: Value| json!({"spec": {"template": {"spec": {"containers": list}}}});
    let image = t
        .patch(
            &item,
            STRATEGIC,
            &containers(json!([{"name": "b", "image": "i:2"}])),
        )
        .await;
    let spec = &image.expect(200)["spec"]["template"]["spec"];
    assert_eq!(spec["containers"][0]["image"], "i:1");
    assert_eq!(spec["containers"][1]["image"], "i:2");
    let ports = json!([{"name": "a", "ports": [{"containerPort": 81}, {"containerPort": 80, "name": "http"}]}]);
    let merged = t.patch(&item, STRATEGIC, &containers(ports)).await;
    let ports = merged.expect(200)["spec"]["template"]["spec"]["containers"][0]["ports"].clone();
    assert_eq!(ports.as_array().map(Vec::len), Some(2), "{ports}");
    assert!(
        ports
            .as_array()
            .expect("ports")
            .iter()
            .any(|port| port["name"] == "http")
    );
    let gone = containers(json!([{"name": "b", "$patch": "delete"}]));
    let answer = t.patch(&item, STRATEGIC, &gone).await;
    let left = answer.expect(200)["spec"]["template"]["spec"]["containers"]
        .as_array()
        .cloned();
    assert_eq!(left.map(|list| list.len()), Some(1));
}

#[tokio::test]
async fn case_086_strategic_directives() {
    let t = Target::start().await;
    let body = json!({
        "metadata": {"name": "a", "labels": {"x": "1", "y": "2"}, "finalizers": ["a/b", "c/d"]},
        "data": {"k": "v"},
    });
    t.post(t.config_maps(), &body).await.expect(201);
    let item = format!("{}/a", t.config_maps());
    let label = t
        .patch(
            &item,
            STRATEGIC,
            &json!({"metadata": {"labels": {"x": null}}}),
        )
        .await;
    assert_eq!(label.expect(200)["metadata"]["labels"], json!({"y": "2"}));
    let fewer = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}});
    let answer = t.patch(&item, STRATEGIC, &fewer).await;
    assert_eq!(answer.expect(200)["metadata"]["finalizers"], json!(["c/d"]));
    t.patch(&item, MERGE, &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);

    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", t.namespace);
    let body = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": two_containers("x")["spec"]},
    }});
    t.post(&deployments, &body).await.expect(201);
    let order = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "b", "image": "i:9"}],
    }}}});
    let answer = t.patch(format!("{deployments}/d"), STRATEGIC, &order).await;
    let containers = &answer.expect(200)["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["name"], "b");
    assert_eq!(containers[0]["image"], "i:9");
    assert_eq!(containers[1]["name"], "a");
}
