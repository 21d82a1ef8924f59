//! Whatever a client sends, it gets an answer that says what is wrong; nothing panics.

use devcluster::DevCluster;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube_client::{Client, client::Body};
use serde_json::{Value, json};

async fn ask(
    client: &Client,
    method: Method,
    path: &str,
    media: &str,
    body: Vec<u8>,
) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media)
        .body(Body::from(body))
        .expect("a sound request");
    let response = client.send(request).await.expect("an answer");
    let code = response.status().as_u16();
    let bytes = response
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// The places of a value, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(value, &format!("{at}/{key}"), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                places(value, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// One good object of each kind, with its collection.
fn objects() -> Vec<(String, Value)> {
    let metadata = json!({
        "name": "x", "generateName": "x-", "labels": {"a": "b"}, "annotations": {"a": "b"},
        "finalizers": ["a.b/c"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}],
    });
    let pod = json!({
        "restartPolicy": "Always", "nodeName": "n", "serviceAccountName": "s",
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}],
        "schedulingGates": [{"name": "a.b/c"}],
        "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
        "containers": [{
            "name": "c", "image": "i:1", "ports": [{"name": "web", "containerPort": 80}],
            "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "readinessProbe": {"httpGet": {"path": "/", "port": 80}},
        }],
    });
    let core = |plural: &str| format!("/api/v1/namespaces/default/{plural}");
    let with = |mut body: Value| {
        body["metadata"] = metadata.clone();
        body
    };
    vec![
        (
            core("configmaps"),
            with(json!({"data": {"a": "b"}, "binaryData": {"c": "eA=="}, "immutable": false})),
        ),
        (
            core("secrets"),
            with(json!({"type": "Opaque", "data": {"a": "eA=="}, "stringData": {"c": "d"}})),
        ),
        (
            core("serviceaccounts"),
            with(json!({"secrets": [{"name": "s"}]})),
        ),
        (
            core("pods"),
            with(json!({"spec": pod, "status": {"phase": "Running", "podIP": "1.2.3.4"}})),
        ),
        (
            core("events"),
            with(json!({
                "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "r",
                "message": "m", "type": "Normal", "count": 1, "source": {"component": "c"},
            })),
        ),
        (
            "/api/v1/namespaces".to_owned(),
            with(json!({"spec": {"finalizers": ["kubernetes"]}})),
        ),
        (
            "/api/v1/nodes".to_owned(),
            with(json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments".to_owned(),
            with(json!({"spec": {
                "replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "strategy": {"type": "RollingUpdate"},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod},
            }})),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(),
            with(
                json!({"spec": {"holderIdentity": "h", "renewTime": "2026-01-01T00:00:00.000000Z"}}),
            ),
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events".to_owned(),
            with(json!({
                "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "r", "note": "n",
                "type": "Normal", "action": "a", "reportingController": "c", "reportingInstance": "i",
                "eventTime": "2026-01-01T00:00:00.000000Z",
            })),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(),
            with(json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "User", "name": "u"}],
            })),
        ),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
            json!({"metadata": {"name": "as.b.c"}, "spec": {
                "group": "b.c", "scope": "Namespaced",
                "names": {"plural": "as", "singular": "a", "kind": "A", "shortNames": ["x"], "categories": ["all"]},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "default": {}, "properties": {
                            "a": {"type": "string", "enum": ["x"], "default": "x"},
                            "l": {"type": "array", "items": {"type": "integer"}},
                        }, "x-kubernetes-validations": [{"rule": "!has(self.a) || self.a == 'x'", "message": "m"}]},
                    }}},
                    "subresources": {"status": {}, "scale": {
                        "specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r",
                    }},
                    "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a"}],
                    "selectableFields": [{"jsonPath": ".spec.a"}],
                }],
            }}),
        ),
    ]
}

/// Each place of each object is replaced by values of every JSON type, for every kind of write.
#[tokio::test(flavor = "multi_thread")]
async fn no_replaced_value_makes_the_server_fail() {
    let cluster = DevCluster::builder()
        .start()
        .await
        .expect("the cluster starts");
    let client = cluster.client();
    let json_type = "application/json";
    let merge = "application/merge-patch+json";
    for (index, (collection, mut object)) in objects().into_iter().enumerate() {
        if object["metadata"]["name"] == "x" {
            object["metadata"]["name"] = json!(format!("x{index}"));
        }
        let created = ask(
            &client,
            Method::POST,
            &collection,
            json_type,
            object.to_string().into_bytes(),
        )
        .await;
        assert_eq!(created.0, 201, "{collection}: {}", created.1);
        let item = format!(
            "{collection}/{}",
            created.1["metadata"]["name"].as_str().unwrap_or_default()
        );
        let mut found = Vec::new();
        places(&object, "", &mut found);
        for place in found {
            for value in [
                json!(null),
                json!(-1),
                json!(1.5),
                json!("~"),
                json!([[]]),
                json!({"": {}}),
                json!(true),
            ] {
                let mut changed = object.clone();
                let Some(at) = changed.pointer_mut(&place) else {
                    continue;
                };
                *at = value.clone();
                let text = changed.to_string().into_bytes();
                let post = format!("{collection}?dryRun=All");
                let put = format!("{item}?dryRun=All");
                let status = format!("{item}/status?dryRun=All");
                for (method, path, media) in [
                    (Method::POST, &post, json_type),
                    (Method::PUT, &put, json_type),
                    (Method::PATCH, &put, merge),
                    (Method::PATCH, &status, merge),
                ] {
                    let (code, answer) =
                        ask(&client, method.clone(), path, media, text.clone()).await;
                    assert_ne!(
                        code, 500,
                        "{method} {path} with {place} = {value}: {answer}"
                    );
                    assert!(
                        code < 400 || answer["message"].is_string(),
                        "{method} {path}: {answer}"
                    );
                }
            }
        }
    }
    assert_eq!(cluster.counters().panics(), 0);
}

#[tokio::test]
async fn bodies_of_subresources_and_options_are_checked() {
    let cluster = DevCluster::builder()
        .start()
        .await
        .expect("the cluster starts");
    let client = cluster.client();
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    let account = json!({"metadata": {"name": "s"}});
    for (plural, body) in [("pods", pod), ("serviceaccounts", account)] {
        let path = format!("/api/v1/namespaces/default/{plural}");
        let created = ask(
            &client,
            Method::POST,
            &path,
            "application/json",
            body.to_string().into_bytes(),
        );
        assert_eq!(created.await.0, 201);
    }
    let base = "/api/v1/namespaces/default";
    let bodies: [&[u8]; 8] = [
        b"",
        b"[]",
        b"\"x\"",
        b"{\"spec\":\"x\"}",
        b"{\"spec\":{\"audiences\":5}}",
        b"{\"target\":[]}",
        b"{\"deleteOptions\":7}",
        b"\xff\xfe",
    ];
    for body in bodies {
        for (method, path) in [
            (Method::POST, format!("{base}/pods/p/binding")),
            (Method::POST, format!("{base}/pods/p/eviction?dryRun=All")),
            (Method::POST, format!("{base}/serviceaccounts/s/token")),
            (Method::PUT, format!("{base}/pods/p")),
            (Method::PATCH, format!("{base}/pods/p")),
            (Method::DELETE, format!("{base}/pods/p?dryRun=All")),
            (
                Method::PUT,
                "/api/v1/namespaces/default/finalize".to_owned(),
            ),
        ] {
            let (code, answer) = ask(
                &client,
                method.clone(),
                &path,
                "application/json",
                body.to_vec(),
            )
            .await;
            assert_ne!(code, 500, "{method} {path} with {body:?}: {answer}");
        }
    }
    for query in [
        "timeoutSeconds=18446744073709551615",
        "limit=9223372036854775807",
        "continue=%00",
        "timeout=9e99s",
    ] {
        let path = format!("{base}/pods?{query}");
        let (code, answer) = ask(&client, Method::GET, &path, "application/json", Vec::new()).await;
        assert_ne!(code, 500, "{query}: {answer}");
    }
    assert_eq!(cluster.counters().panics(), 0);
}

/// What could be stored but never be read again would also stop whatever cleans up after it.
#[tokio::test]
async fn patches_cannot_nest_an_object_beyond_what_can_be_read() {
    let cluster = DevCluster::builder()
        .start()
        .await
        .expect("the cluster starts");
    let client = cluster.client();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "anys.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": "anys", "kind": "Any"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }}],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let objects = "/apis/example.com/v1/anys";
    let object =
        json!({"apiVersion": "example.com/v1", "kind": "Any", "metadata": {"name": "a"}, "x": 0});
    let post = async |path: &str, body: &Value| {
        let body = body.to_string().into_bytes();
        ask(&client, Method::POST, path, "application/json", body)
            .await
            .0
    };
    assert_eq!(post(definitions, &definition).await, 201);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while post(objects, &object).await != 201 {
        assert!(tokio::time::Instant::now() < deadline, "it is never served");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let nested = (0..100).fold(json!(0), |below, _| json!([below]));
    let item = format!("{objects}/a");
    for (n, expected) in [(1, 200), (2, 422), (150, 422)] {
        let operations: Vec<Value> = (0..n)
            .map(|n| {
                let path = format!("/x{}", "/0".repeat(100 * n));
                json!({"op": "replace", "path": path, "value": nested})
            })
            .collect();
        let body = Value::Array(operations).to_string().into_bytes();
        let media = "application/json-patch+json";
        let (code, answer) = ask(&client, Method::PATCH, &item, media, body).await;
        assert_eq!(code, expected, "{n} operations: {answer}");
    }
    let (code, _) = ask(&client, Method::DELETE, &item, "", Vec::new()).await;
    assert_eq!(code, 200);
    assert_eq!(cluster.counters().panics(), 0);
}

#[tokio::test]
async fn what_a_subresource_refuses_leaves_no_trace() {
    let cluster = DevCluster::builder()
        .start()
        .await
        .expect("the cluster starts");
    let client = cluster.client();
    let base = "/api/v1/namespaces/default";
    let ask_json = async |method: Method, path: String, body: Value| {
        let body = body.to_string().into_bytes();
        ask(&client, method, &path, "application/json", body).await
    };
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    let (_, before) = ask_json(Method::POST, format!("{base}/pods"), pod).await;
    let stale = json!({
        "metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "of-a-predecessor"}},
    });
    let (code, _) = ask_json(Method::POST, format!("{base}/pods/p/eviction"), stale).await;
    assert_eq!(code, 409);
    let (_, after) = ask_json(Method::GET, format!("{base}/pods/p"), json!({})).await;
    assert_eq!(after, before);

    let account = json!({"metadata": {"name": "s"}});
    ask_json(Method::POST, format!("{base}/serviceaccounts"), account).await;
    let bound =
        json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}});
    let path = format!("{base}/serviceaccounts/s/token");
    let (code, answer) = ask_json(Method::POST, path, bound).await;
    assert_eq!(code, 422);
    assert_eq!(
        answer["details"]["causes"][0]["field"],
        "spec.boundObjectRef"
    );
    assert!(answer["status"]["token"].is_null());
}
