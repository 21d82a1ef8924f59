//! The fake cloud as a client meets it: over HTTP, byte by byte.

use std::time::Duration;

use bytes::Bytes;
use fake_gce::{Answer, FakeGce, Op, Refusal, Rule, Settings, Status};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

const ZONE: &str = "europe-west1-b";
const ID: &str = "7e0b3a6c-0b5f-5b62-9a3f-2f6a6b2d7c11";

struct Cloud {
    fake: FakeGce,
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>,
}

impl Cloud {
    async fn start(settings: Settings) -> Self {
        Self {
            fake: FakeGce::start(settings).await.expect("a free port"),
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    async fn try_call(
        &self,
        method: Method,
        path: &str,
        body: Value,
    ) -> Result<(u16, Value), String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.fake.endpoint()))
            .body(Full::new(Bytes::from(body.to_string())))
            .expect("a request");
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        Ok((
            status,
            serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
        ))
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        self.try_call(method, path, body).await.expect("an answer")
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let path = format!("/compute/v1/projects/test-project/{path}");
        self.call(Method::GET, &path, Value::Null).await
    }

    async fn insert(&self, name: &str, request_id: &str) -> (u16, Value) {
        self.call(Method::POST, &insert_path(request_id), vm(name))
            .await
    }

    async fn delete(&self, name: &str) -> (u16, Value) {
        let path = format!("/compute/v1/projects/test-project/zones/{ZONE}/instances/{name}");
        self.call(Method::DELETE, &path, Value::Null).await
    }

    async fn status(&self, name: &str) -> Option<String> {
        let (status, vm) = self.get(&format!("zones/{ZONE}/instances/{name}")).await;
        (status == 200).then(|| vm["status"].as_str().expect("a status").to_owned())
    }

    async fn until(&self, what: &str, done: impl AsyncFn() -> bool) {
        let end = tokio::time::Instant::now() + Duration::from_secs(20);
        while !done().await {
            assert!(tokio::time::Instant::now() < end, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn insert_path(request_id: &str) -> String {
    let query = if request_id.is_empty() {
        String::new()
    } else {
        format!("?requestId={request_id}")
    };
    format!("/compute/v1/projects/test-project/zones/{ZONE}/instances{query}")
}

fn vm(name: &str) -> Value {
    json!({
        "name": name, "machineType": format!("zones/{ZONE}/machineTypes/e2-micro"),
        "labels": { "pxo-cluster": "c1" },
        "disks": [{ "boot": true, "initializeParams": { "sourceImage": "global/images/debian" } }],
        "networkInterfaces": [{ "network": "global/networks/default", "accessConfigs": [{}] }],
        "scheduling": { "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE" },
    })
}

#[tokio::test]
async fn a_vm_is_provisioned_runs_with_an_address_stops_and_goes() {
    let cloud = Cloud::start(Settings::default()).await;
    let (status, operation) = cloud.insert("px-1", "").await;
    assert_eq!(
        (status, &operation["operationType"]),
        (200, &json!("insert"))
    );
    assert_eq!(cloud.status("px-1").await.as_deref(), Some("PROVISIONING"));
    cloud
        .until("it runs", async || {
            cloud.status("px-1").await.as_deref() == Some("RUNNING")
        })
        .await;
    let name = operation["name"].as_str().expect("a name");
    let (_, ended) = cloud.get(&format!("zones/{ZONE}/operations/{name}")).await;
    assert_eq!(
        (&ended["status"], &ended["error"]),
        (&json!("DONE"), &Value::Null)
    );
    let (_, shown) = cloud.get(&format!("zones/{ZONE}/instances/px-1")).await;
    assert_eq!(shown["id"], operation["targetId"]);
    assert!(shown["networkInterfaces"][0]["accessConfigs"][0]["natIP"].is_string());
    assert_eq!(cloud.delete("px-1").await.0, 200);
    assert_eq!(cloud.status("px-1").await.as_deref(), Some("STOPPING"));
    let (status, refused) = cloud.delete("px-1").await;
    assert_eq!(status, 403, "deletions that overlap: {refused}");
    cloud
        .until("it is gone", async || cloud.status("px-1").await.is_none())
        .await;
    assert_eq!(cloud.delete("px-1").await.0, 404);
}

#[tokio::test]
async fn a_request_id_brings_back_its_operation_and_a_taken_name_is_refused() {
    let cloud = Cloud::start(Settings::default()).await;
    let (_, first) = cloud.insert("px-1", ID).await;
    let (status, again) = cloud.insert("px-1", ID).await;
    assert_eq!((status, &again["name"]), (200, &first["name"]));
    let (status, refused) = cloud.insert("px-1", "").await;
    assert_eq!(status, 409);
    assert_eq!(refused["error"]["errors"][0]["reason"], "alreadyExists");
    assert_eq!(cloud.fake.world().inserted(), 1);
    assert_eq!(cloud.insert("px-2", "no-uuid").await.0, 400);
}

#[tokio::test]
async fn a_list_has_pages_filters_and_zones_that_do_not_answer() {
    let cloud = Cloud::start(Settings {
        page: 2,
        ..Settings::default()
    })
    .await;
    let world = cloud.fake.world();
    for n in 0..5 {
        let zone = if n % 2 == 0 { ZONE } else { "us-central1-a" };
        let cluster = if n == 4 { "c2" } else { "c1" };
        world.put(zone, &format!("px-{n}"), &[("pxo-cluster", cluster)]);
    }
    let list = async || {
        let (mut names, mut token, mut pages) = (Vec::new(), String::new(), 0);
        let unreachable = loop {
            let path =
                format!("aggregated/instances?filter=labels.pxo-cluster%3Dc1&maxResults=10{token}");
            let (status, page) = cloud.get(&path).await;
            assert_eq!(status, 200, "{page}");
            pages += 1;
            for (_, scope) in page["items"].as_object().expect("scopes") {
                let instances = scope["instances"].as_array().into_iter().flatten();
                names.extend(instances.map(|vm| vm["name"].as_str().expect("a name").to_owned()));
            }
            let silent = page["unreachables"].as_array().cloned().unwrap_or_default();
            match page["nextPageToken"].as_str() {
                Some(next) => token = format!("&pageToken={}", next.replace('|', "%7C")),
                None => break silent,
            }
        };
        names.sort();
        (names, pages, unreachable.len())
    };
    let all = ["px-0", "px-1", "px-2", "px-3"].map(str::to_owned).to_vec();
    assert_eq!(list().await, (all, 2, 0));
    world.set_unreachable([ZONE]);
    assert_eq!(
        list().await,
        (["px-1", "px-3"].map(str::to_owned).to_vec(), 1, 1)
    );
    assert_eq!(
        cloud.get(&format!("zones/{ZONE}/instances/px-0")).await.0,
        503
    );
    world.set_partial_lists(false);
    assert_eq!(cloud.get("aggregated/instances").await.0, 503);
}

#[tokio::test]
async fn rules_refuse_reset_and_fail_operations_before_or_after_the_effect() {
    let cloud = Cloud::start(Settings::default()).await;
    let world = cloud.fake.world();
    let refusal = Refusal::new(503, "backendError", "Backend Error").with_error_info("UNAVAILABLE");
    world.add_rule(Rule::once(Op::Insert, Answer::Refuse(refusal)));
    world.add_rule(Rule::once(Op::Insert, Answer::Reset).after_effect());
    let (status, refused) = cloud.insert("px-1", ID).await;
    assert_eq!(status, 503);
    assert_eq!(refused["error"]["details"][0]["reason"], "UNAVAILABLE");
    assert!(world.machines().is_empty(), "before the effect");
    let reset = cloud
        .try_call(Method::POST, &insert_path(ID), vm("px-1"))
        .await;
    assert!(reset.is_err(), "{reset:?}");
    assert_eq!(world.machines().len(), 1, "after the effect");

    let (code, message) = (
        "ZONE_RESOURCE_POOL_EXHAUSTED".to_owned(),
        "none left".to_owned(),
    );
    let fail = Answer::FailOperation {
        code,
        message,
        status: 503,
    };
    world.add_rule(Rule::once(Op::Insert, fail).matching("px-2"));
    let (status, operation) = cloud.insert("px-2", "").await;
    assert_eq!(status, 200);
    assert_eq!(cloud.status("px-2").await.as_deref(), Some("PROVISIONING"));
    cloud
        .until("it failed", async || cloud.status("px-2").await.is_none())
        .await;
    let name = operation["name"].as_str().expect("a name");
    let (_, ended) = cloud.get(&format!("zones/{ZONE}/operations/{name}")).await;
    assert_eq!(
        ended["error"]["errors"][0]["code"],
        "ZONE_RESOURCE_POOL_EXHAUSTED"
    );
    assert_eq!(ended["httpErrorStatusCode"], 503);
}

#[tokio::test]
async fn a_test_preempts_stops_and_hides_vms_and_sees_every_call() {
    let hidden_for = Duration::from_millis(200);
    let cloud = Cloud::start(Settings {
        hidden_for,
        quota: Some(2),
        ..Settings::default()
    })
    .await;
    let world = cloud.fake.world();
    cloud.insert("px-1", ID).await;
    assert_eq!(cloud.status("px-1").await, None, "it does not show yet");
    cloud
        .until("it shows", async || cloud.status("px-1").await.is_some())
        .await;
    cloud.insert("px-2", "").await;
    let (status, refused) = cloud.insert("px-3", "").await;
    assert_eq!(
        (status, &refused["error"]["details"][0]["reason"]),
        (403, &json!("QUOTA_EXCEEDED"))
    );
    assert!(world.stop("px-2") && world.preempt("px-1") && !world.preempt("px-9"));
    assert_eq!(world.named("px-2")[0].status, Status::Terminated);
    cloud
        .until("it was taken", async || world.named("px-1").is_empty())
        .await;
    let calls = world.take_calls();
    assert_eq!(
        (calls[0].op, calls[0].request_id.as_deref()),
        (Op::Insert, Some(ID))
    );
    assert!(world.take_calls().is_empty());
}

#[tokio::test]
async fn another_process_steers_it_over_http() {
    let cloud = Cloud::start(Settings::default()).await;
    let rule = json!({ "op": "get", "answer": { "refuse": { "status": 429, "message": "slow" } }, "times": 1 });
    assert_eq!(cloud.call(Method::POST, "/fake/rules", rule).await.0, 200);
    assert_eq!(
        cloud.get(&format!("zones/{ZONE}/instances/px-1")).await.0,
        429
    );
    cloud.insert("px-1", "").await;
    let (_, all) = cloud
        .call(Method::GET, "/fake/instances", Value::Null)
        .await;
    assert_eq!(all[0]["name"], "px-1");
    assert_eq!(
        cloud
            .call(Method::POST, "/fake/instances/px-1/vanish", Value::Null)
            .await
            .0,
        200
    );
    assert_eq!(cloud.status("px-1").await, None);
    assert_eq!(
        cloud
            .call(Method::POST, "/fake/rules", json!({ "ops": 1 }))
            .await
            .0,
        400
    );
}
