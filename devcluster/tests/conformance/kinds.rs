//! Cases 112–124: behaviour of built-in kinds.

use futures::future::join;
use http::Method;
use serde_json::json;

use crate::support::{MERGE, Target, names, pod, unique};

#[tokio::test]
async fn case_112_a_new_namespace() {
    let t = Target::start().await;
    let name = unique("fresh");
    let created = t
        .post("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
        .await;
    let namespace = created.expect(201);
    assert_eq!(
        namespace["metadata"]["labels"]["kubernetes.io/metadata.name"],
        name.as_str()
    );
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(namespace["status"]["phase"], "Active");
    let active = t
        .get("/api/v1/namespaces?fieldSelector=status.phase%3DActive")
        .await;
    assert!(names(active.expect(200)).contains(&name));
}

#[tokio::test]
async fn case_114_defaults_of_a_pod() {
    let t = Target::start().await;
    let created = t.post(t.core("pods"), &pod("p")).await;
    let pod = created.expect(201);
    for (path, expected) in [
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/dnsPolicy", json!("ClusterFirst")),
        ("/spec/terminationGracePeriodSeconds", json!(30)),
        ("/spec/schedulerName", json!("default-scheduler")),
        ("/spec/securityContext", json!({})),
        ("/spec/enableServiceLinks", json!(true)),
        ("/spec/priority", json!(0)),
        ("/spec/preemptionPolicy", json!("PreemptLowerPriority")),
        ("/spec/containers/0/imagePullPolicy", json!("IfNotPresent")),
        (
            "/spec/containers/0/terminationMessagePath",
            json!("/dev/termination-log"),
        ),
        ("/spec/containers/0/terminationMessagePolicy", json!("File")),
        ("/spec/containers/0/resources", json!({})),
        (
            "/spec/tolerations",
            json!([
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ]),
        ),
        (
            "/status",
            json!({"phase": "Pending", "qosClass": "BestEffort"}),
        ),
        ("/metadata/generation", json!(1)),
    ] {
        assert_eq!(pod.pointer(path), Some(&expected), "{path}");
    }
}

#[tokio::test]
async fn case_116_binding_and_eviction() {
    let t = Target::start().await;
    t.post(t.core("pods"), &pod("p")).await.expect(201);
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    });
    let path = t.core("pods/p/binding");
    let bound = t.post(&path, &binding).await;
    assert_eq!(bound.expect(201)["status"], "Success");
    let pod = t.get(t.core("pods/p")).await;
    assert_eq!(pod.json["spec"]["nodeName"], "n1");
    assert_eq!(pod.json["metadata"]["generation"], 1);
    let conditions = pod.json["status"]["conditions"]
        .as_array()
        .expect("conditions")
        .clone();
    assert!(
        conditions
            .iter()
            .any(|c| c["type"] == "PodScheduled" && c["status"] == "True")
    );
    t.post(&path, &binding).await.refused(409, "Conflict");
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    t.post(t.core("pods/p/eviction"), &eviction)
        .await
        .expect(201);
    let after = t.get(t.core("pods/p")).await;
    assert!(
        after.code == 404 || after.json["metadata"]["deletionTimestamp"].is_string(),
        "{after:?}"
    );
}

#[tokio::test]
async fn case_117_secrets() {
    let t = Target::start().await;
    let body = json!({"metadata": {"name": "s"}, "stringData": {"a": "text"}});
    let created = t.post(t.core("secrets"), &body).await;
    assert_eq!(created.expect(201)["data"]["a"], "dGV4dA==");
    assert!(created.json.get("stringData").is_none());
    assert_eq!(created.json["type"], "Opaque");
    let item = t.core("secrets/s");
    t.patch(&item, MERGE, &json!({"type": "example.com/x"}))
        .await
        .invalid("FieldValueInvalid", "type");
    t.patch(&item, MERGE, &json!({"immutable": true}))
        .await
        .expect(200);
    let change = json!({"data": {"a": "eA=="}});
    t.patch(&item, MERGE, &change)
        .await
        .invalid("FieldValueForbidden", "data");
}

#[tokio::test]
async fn case_121_events_have_two_versions() {
    let t = Target::start().await;
    let events = t.core("events");
    let wrong = json!({
        "metadata": {"name": "w"}, "involvedObject": {"kind": "Pod", "namespace": "elsewhere", "name": "p"},
    });
    t.post(&events, &wrong).await.refused(422, "Invalid");
    let body = json!({
        "metadata": {"name": "e"}, "reason": "R", "message": "m", "type": "Normal", "count": 1,
        "involvedObject": {"kind": "Pod", "namespace": t.namespace, "name": "p"},
        "source": {"component": "test"},
    });
    t.post(&events, &body).await.expect(201);
    let modern = format!("/apis/events.k8s.io/v1/namespaces/{}/events", t.namespace);
    let event = t.get(format!("{modern}/e")).await;
    assert_eq!(event.expect(200)["apiVersion"], "events.k8s.io/v1");
    assert_eq!(event.json["regarding"]["name"], "p");
    assert_eq!(event.json["note"], "m");
    for (path, selector) in [
        (&events, "involvedObject.name"),
        (&modern, "regarding.name"),
    ] {
        let found = t.get(format!("{path}?fieldSelector={selector}%3Dp")).await;
        assert_eq!(names(found.expect(200)), ["e"], "{selector}");
        let none = t.get(format!("{path}?fieldSelector={selector}%3Dq")).await;
        assert!(names(none.expect(200)).is_empty());
    }
}

#[tokio::test]
async fn case_123_tokens_of_service_accounts() {
    let t = Target::start().await;
    let accounts = t.core("serviceaccounts");
    t.post(&accounts, &json!({"metadata": {"name": "sa"}}))
        .await
        .expect(201);
    let request = |seconds: i64| {
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        })
    };
    let path = format!("{accounts}/sa/token");
    let issued = t.post(&path, &request(3600)).await;
    let token = issued.expect(201)["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    assert_eq!(token.split('.').count(), 3);
    let bearer = format!("Bearer {token}");
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
    });
    let reviewed = t
        .post("/apis/authentication.k8s.io/v1/tokenreviews", &review)
        .await;
    let status = &reviewed.expect(201)["status"];
    assert_eq!(status["authenticated"], true, "{reviewed:?}");
    assert_eq!(
        status["user"]["username"],
        format!("system:serviceaccount:{}:sa", t.namespace)
    );
    let version = t
        .ask(Method::GET, "/version")
        .anonymous()
        .header("authorization", &bearer);
    version.send().await.expect(200);
    t.post(&path, &request(60))
        .await
        .invalid("FieldValueInvalid", "spec.expirationSeconds");
    t.delete(format!("{accounts}/sa")).await.expect(200);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let after = t
            .ask(Method::GET, "/version")
            .anonymous()
            .header("authorization", &bearer);
        let after = after.send().await;
        if after.code == 401 {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "the token outlives its account"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn case_124_leases_keep_micro_times_and_one_of_two_wins() {
    let t = Target::start().await;
    let leases = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
        t.namespace
    );
    let time = "2026-01-31T08:09:10.123456Z";
    let body =
        json!({"metadata": {"name": "l"}, "spec": {"renewTime": time, "holderIdentity": "a"}});
    let created = t.post(&leases, &body).await.expect(201).clone();
    assert_eq!(created["spec"]["renewTime"], time);
    let item = format!("{leases}/l");
    let take = |holder: &str| {
        let mut body = created.clone();
        body["spec"]["holderIdentity"] = json!(holder);
        body
    };
    let (x, y) = (take("x"), take("y"));
    let (first, second) = join(t.put(&item, &x), t.put(&item, &y)).await;
    let mut codes = [first.code, second.code];
    codes.sort_unstable();
    assert_eq!(codes, [200, 409]);
}
