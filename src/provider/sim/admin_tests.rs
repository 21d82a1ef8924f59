use axum::body::{Body, to_bytes};
use axum::http::{Request, header::CONTENT_TYPE};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::super::SimProvider;
use super::*;
use crate::provider::conformance::{owner, request};
use crate::provider::{Hint, Provider as _};

/// The control API over one world, which its provider `sim` works in.
struct Setup {
    routes: Router,
    sim: SimProvider,
}

fn setup() -> Setup {
    let world = World::new(Settings::default());
    let worlds = BTreeMap::from([("sim".to_owned(), world.clone())]);
    Setup {
        routes: routes(Arc::new(worlds)),
        sim: SimProvider::new(world),
    }
}

impl Setup {
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
        let request = Request::builder().method(method).uri(path);
        let request = match body {
            Some(body) => request
                .header(CONTENT_TYPE, "application/json")
                .body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        let request = request.expect("a request");
        let answer = self.routes.clone().oneshot(request).await.expect("answers");
        let code = answer.status().as_u16();
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        (code, String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn json(&self, path: &str) -> Value {
        let (code, text) = self.call("GET", path, None).await;
        assert_eq!(code, 200, "{path}: {text}");
        serde_json::from_str(&text).expect("JSON")
    }
}

#[tokio::test(start_paused = true)]
async fn p30_a_rule_from_outside_fails_the_calls_that_it_names() {
    let setup = setup();
    let rule = json!({
        "op": "create", "match": "proxy-u-1", "class": "quota", "reason": "capacity",
        "times": 1, "delay": "2s", "when": "before",
    });
    let (code, text) = setup.call("POST", "/sim/rules", Some(rule.clone())).await;
    assert_eq!(code, 201, "{text}");
    assert_eq!(setup.json("/sim/rules").await, json!([rule]));
    let began = tokio::time::Instant::now();
    let refused = setup.sim.create(&request("u-1")).await;
    assert_eq!(refused.expect_err("refused").reason(), Reason::Capacity);
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    setup.sim.create(&request("u-1")).await.expect("met once");
    assert_eq!(setup.json("/sim/rules").await, json!([]));
    assert_eq!(setup.json("/sim/calls").await["create"], 2);
}

#[tokio::test(start_paused = true)]
async fn p30_each_class_stands_for_its_plainest_reason() {
    for (class, want) in [
        ("not-found", Reason::Gone),
        ("quota", Reason::Quota),
        ("permanent", Reason::InvalidInput),
        ("transient", Reason::Unavailable),
    ] {
        let setup = setup();
        let rule = json!({ "class": class, "retryAfter": "10s" });
        setup.call("POST", "/sim/rules", Some(rule)).await;
        let error = setup.sim.find(&owner("u-1")).await.expect_err("refused");
        assert_eq!(error.reason(), want, "{class}");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(10)));
        let (code, _) = setup.call("DELETE", "/sim/rules", None).await;
        assert_eq!(code, 204);
        assert_eq!(setup.sim.find(&owner("u-1")).await, Ok(None));
    }
}

#[tokio::test(start_paused = true)]
async fn p30_a_machine_is_stopped_preempted_or_made_to_vanish_by_the_name_of_its_proxy() {
    for (fate, state) in [
        ("stop", Some("Stopped")),
        ("preempt", Some("Terminated")),
        ("vanish", None),
    ] {
        let setup = setup();
        setup.sim.create(&request("u-1")).await.expect("made");
        let path = format!("/sim/machines/default/proxy-u-1/{fate}");
        let (code, text) = setup.call("POST", &path, None).await;
        assert_eq!(code, 204, "{text}");
        let machines = setup.json("/sim/machines").await;
        assert_eq!(machines.pointer("/0/state").and_then(Value::as_str), state);
    }
}

#[tokio::test(start_paused = true)]
async fn p30_settings_change_while_the_cloud_runs() {
    let setup = setup();
    let change = json!({
        "quota": 1, "deletion": "1h", "callsPerSecond": 100, "unreachable": ["far"],
        "hiddenFor": "3s", "boot": "10s",
    });
    let (code, text) = setup.call("PATCH", "/sim/settings", Some(change)).await;
    assert_eq!(code, 200, "{text}");
    assert_eq!(
        setup.json("/sim/settings").await,
        json!({
            "boot": "10s", "deletion": "1h", "hiddenFor": "3s", "quota": 1,
            "callsPerSecond": 100, "unreachable": ["far"],
        })
    );
    let made = setup
        .sim
        .create(&request("u-1"))
        .await
        .expect("room for one");
    let refused = setup.sim.create(&request("u-2")).await;
    assert_eq!(refused.expect_err("no room").reason(), Reason::Quota);
    let page = setup
        .sim
        .list_by_tag("cluster-1", None)
        .await
        .expect("lists");
    assert_eq!(page.unreachable, ["far"]);

    let instance = made.instance();
    let owner = owner("u-1");
    tokio::time::advance(Duration::from_secs(10)).await;
    setup
        .sim
        .delete(&instance.id, &owner, &instance.incarnation)
        .await
        .expect("accepted");
    tokio::time::advance(Duration::from_secs(1799)).await;
    let seen = setup.sim.get(&instance.id, &owner, &Hint::default()).await;
    assert!(seen.expect("it goes slowly").deleting);

    let lifted = json!({ "quota": null, "callsPerSecond": null, "unreachable": [] });
    setup.call("PATCH", "/sim/settings", Some(lifted)).await;
    setup.sim.create(&request("u-2")).await.expect("no limit");
    assert_eq!(
        setup.json("/sim/settings").await["deletion"],
        "1h",
        "what is absent stays"
    );
}

#[tokio::test(start_paused = true)]
async fn p30_what_is_not_there_or_cannot_be_read_is_answered_with_what_is_wrong() {
    let setup = setup();
    assert_eq!(setup.json("/").await, json!(["sim"]));
    for (method, path, body, code, part) in [
        ("GET", "/cloud/rules", None, 404, "there are: sim"),
        (
            "POST",
            "/sim/machines/default/a/stop",
            None,
            404,
            "default/a",
        ),
        ("POST", "/sim/machines/default/a/melt", None, 400, "melt"),
        (
            "POST",
            "/sim/rules",
            Some(json!({ "opp": "get" })),
            422,
            "opp",
        ),
        (
            "POST",
            "/sim/rules",
            Some(json!({ "op": "melt" })),
            422,
            "melt",
        ),
        (
            "POST",
            "/sim/rules",
            Some(json!({ "delay": "-1s" })),
            422,
            "delay",
        ),
        (
            "POST",
            "/sim/rules",
            Some(json!({ "class": "quota", "reason": "gone" })),
            422,
            "not-found",
        ),
        (
            "PATCH",
            "/sim/settings",
            Some(json!({ "quota": -1 })),
            422,
            "quota",
        ),
        ("PUT", "/sim/settings", None, 405, ""),
    ] {
        let (answered, text) = setup.call(method, path, body).await;
        assert_eq!(answered, code, "{method} {path}: {text}");
        assert!(text.contains(part), "{method} {path}: {text}");
    }
}

#[tokio::test]
async fn p30_the_control_api_is_served_on_loopback_alone() {
    let outside = "0.0.0.0:0".parse().expect("an address");
    let refused = Admin::bind(outside, BTreeMap::new()).await;
    let refused = refused.expect_err("others could reach it");
    assert!(refused.to_string().contains("0.0.0.0:0"), "{refused}");
    let inside = "127.0.0.1:0".parse().expect("an address");
    let admin = Admin::bind(inside, BTreeMap::new()).await.expect("bound");
    assert!(admin.address().port() > 0);
    let stop = CancellationToken::new();
    stop.cancel();
    admin.run(stop).await.expect("it ends when asked");
}
