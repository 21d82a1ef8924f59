//! Cases 041–056: lists and their selectors.

use serde_json::json;

use crate::{
    definitions::{definition, establish, widget},
    support::{MERGE, Target, names, pod},
};

#[tokio::test]
async fn case_041_items_of_built_in_lists_carry_no_type() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let list = t.get(t.config_maps()).await;
    assert_eq!(list.expect(200)["kind"], "ConfigMapList");
    assert!(list.json["items"][0].get("kind").is_none());
    assert!(list.revision() >= crate::support::revision(&created));
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    t.post(&widgets, &widget(&group, "w")).await.expect(201);
    let list = t.get(&widgets).await;
    assert_eq!(list.expect(200)["kind"], "WidgetList");
    assert_eq!(list.json["items"][0]["kind"], "Widget");
}

#[tokio::test]
async fn case_042_a_missing_namespace_lists_nothing() {
    let t = Target::start().await;
    let list = t.get("/api/v1/namespaces/none-such/configmaps").await;
    assert_eq!(list.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn case_043_pages_show_one_moment() {
    let t = Target::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        t.config_map(name).await;
    }
    let mut page = t.get(format!("{}?limit=2", t.config_maps())).await;
    assert_eq!(page.expect(200)["metadata"]["remainingItemCount"], 3);
    let revision = page.revision();
    let mut seen = names(&page.json);
    while let Some(token) = page.json["metadata"]["continue"].as_str() {
        t.config_map(&format!("late-{}", seen.len())).await;
        t.patch(
            format!("{}/e", t.config_maps()),
            MERGE,
            &json!({"data": {"k": token}}),
        )
        .await
        .expect(200);
        page = t
            .get(format!("{}?limit=2&continue={token}", t.config_maps()))
            .await;
        page.expect(200);
        assert_eq!(page.revision(), revision);
        seen.extend(names(&page.json));
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn case_044_a_selected_page_does_not_count_the_rest() {
    let t = Target::start().await;
    for name in ["a", "b", "c"] {
        t.config_map(name).await;
        let labels = json!({"metadata": {"labels": {"on": "yes"}}});
        t.patch(format!("{}/{name}", t.config_maps()), MERGE, &labels)
            .await
            .expect(200);
    }
    let page = t
        .get(format!(
            "{}?limit=2&labelSelector=on%3Dyes",
            t.config_maps()
        ))
        .await;
    let metadata = &page.expect(200)["metadata"];
    assert!(metadata.get("remainingItemCount").is_none());
    assert!(metadata["continue"].is_string());
}

#[tokio::test]
async fn case_045_any_state_comes_whole() {
    let t = Target::start().await;
    for name in ["a", "b", "c"] {
        t.config_map(name).await;
    }
    let path = format!("{}?limit=2&resourceVersion=0", t.config_maps());
    let list = t.until(&path, |list| names(&list.json).len() == 3).await;
    assert!(list.json["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn case_046_bad_continue_tokens() {
    let t = Target::start().await;
    for name in ["a", "b"] {
        t.config_map(name).await;
    }
    let path = t.config_maps();
    t.get(format!("{path}?continue=garbage"))
        .await
        .refused(400, "BadRequest");
    let page = t.get(format!("{path}?limit=1")).await;
    let token = page.json["metadata"]["continue"]
        .as_str()
        .expect("a token")
        .to_owned();
    t.get(format!("{path}?continue={token}&resourceVersion=5"))
        .await
        .refused(400, "BadRequest");
    let query = format!("continue={token}&resourceVersion=5&resourceVersionMatch=Exact");
    t.get(format!("{path}?{query}"))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn case_047_a_token_from_before_the_compaction_is_410_and_can_go_on() {
    let t = Target::start().await;
    let Some(cluster) = &t.embedded else { return };
    for name in ["a", "b", "c"] {
        t.config_map(name).await;
    }
    let page = t.get(format!("{}?limit=1", t.config_maps())).await;
    let token = page.json["metadata"]["continue"]
        .as_str()
        .expect("a token")
        .to_owned();
    t.delete(format!("{}/b", t.config_maps())).await.expect(200);
    cluster.compact();
    let gone = t
        .get(format!("{}?limit=1&continue={token}", t.config_maps()))
        .await;
    let token = gone.refused(410, "Expired")["metadata"]["continue"]
        .as_str()
        .expect("a token");
    let rest = t
        .get(format!("{}?limit=5&continue={token}", t.config_maps()))
        .await;
    rest.expect(200);
    assert_eq!(names(&rest.json), ["c"]);
}

#[tokio::test]
async fn case_048_an_exact_revision_shows_that_moment() {
    let t = Target::start().await;
    let first = crate::support::revision(&t.config_map("a").await);
    t.config_map("b").await;
    let query = format!("resourceVersion={first}&resourceVersionMatch=Exact");
    let list = t.get(format!("{}?{query}", t.config_maps())).await;
    list.expect(200);
    assert_eq!(names(&list.json), ["a"]);
    assert_eq!(list.revision(), first);
    if let Some(cluster) = &t.embedded {
        cluster.compact();
        t.get(format!("{}?{query}", t.config_maps()))
            .await
            .refused(410, "Expired");
    }
}

#[tokio::test]
async fn case_049_options_that_do_not_go_together() {
    let t = Target::start().await;
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersion=1&resourceVersionMatch=Foo",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "sendInitialEvents=true",
    ] {
        t.get(format!("{}?{query}", t.config_maps()))
            .await
            .refused(422, "Invalid");
    }
}

#[tokio::test]
async fn case_050_options_that_are_no_numbers() {
    let t = Target::start().await;
    for query in ["resourceVersion=abc", "limit=abc"] {
        t.get(format!("{}?{query}", t.config_maps()))
            .await
            .refused(400, "BadRequest");
    }
}

#[tokio::test]
async fn case_051_a_future_revision_is_awaited_then_504() {
    let t = Target::start().await;
    t.config_map("a").await;
    let future = t.get(t.config_maps()).await.revision() + 100_000;
    let query = format!("resourceVersion={future}&resourceVersionMatch=NotOlderThan");
    let list = t.get(format!("{}?{query}", t.config_maps())).await;
    let item = t
        .get(format!("{}/a?resourceVersion={future}", t.config_maps()))
        .await;
    for answer in [list, item] {
        let status = answer.refused(504, "Timeout");
        assert_eq!(
            status["details"]["causes"][0]["reason"],
            "ResourceVersionTooLarge"
        );
        assert_eq!(status["details"]["retryAfterSeconds"], 1);
        assert_eq!(answer.header("retry-after"), "1");
    }
}

#[tokio::test]
async fn case_052_label_selectors() {
    let t = Target::start().await;
    for (name, labels) in [
        ("a", json!({"k": "1"})),
        ("b", json!({"k": "2"})),
        ("c", json!({"other": "x"})),
    ] {
        let body = json!({"metadata": {"name": name, "labels": labels}});
        t.post(t.config_maps(), &body).await.expect(201);
    }
    for (selector, expected) in [
        ("k=1", vec!["a"]),
        ("k==1", vec!["a"]),
        ("k!=1", vec!["b", "c"]),
        ("k%20in%20(1,2)", vec!["a", "b"]),
        ("k%20notin%20(1)", vec!["b", "c"]),
        ("k", vec!["a", "b"]),
        ("!k", vec!["c"]),
        ("k%3E1", vec!["b"]),
        ("k%3C2,k", vec!["a"]),
    ] {
        let list = t
            .get(format!("{}?labelSelector={selector}", t.config_maps()))
            .await;
        list.expect(200);
        assert_eq!(names(&list.json), expected, "{selector}");
    }
    t.get(format!("{}?labelSelector=a%3D(", t.config_maps()))
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn case_053_field_selectors_on_metadata() {
    let t = Target::start().await;
    for name in ["a", "b"] {
        t.config_map(name).await;
    }
    let of = |selector: &str| format!("{}?fieldSelector={selector}", t.config_maps());
    assert_eq!(
        names(t.get(of("metadata.name%3Da")).await.expect(200)),
        ["a"]
    );
    assert_eq!(
        names(t.get(of("metadata.name!%3Da")).await.expect(200)),
        ["b"]
    );
    let everywhere = format!(
        "/api/v1/configmaps?fieldSelector=metadata.namespace%3D{}",
        t.namespace
    );
    assert_eq!(names(t.get(everywhere).await.expect(200)), ["a", "b"]);
    t.get(of("spec.foo%3Dx")).await.refused(400, "BadRequest");
}

#[tokio::test]
async fn case_054_field_selectors_of_kinds() {
    let t = Target::start().await;
    t.post(t.core("pods"), &pod("free")).await.expect(201);
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = json!("n1");
    t.post(t.core("pods"), &bound).await.expect(201);
    let of = |selector: &str| format!("{}?fieldSelector={selector}", t.core("pods"));
    assert_eq!(
        names(t.get(of("spec.nodeName%3Dn1")).await.expect(200)),
        ["bound"]
    );
    assert_eq!(
        names(t.get(of("spec.nodeName%3D")).await.expect(200)),
        ["free"]
    );
    assert_eq!(
        names(t.get(of("status.phase%3DPending")).await.expect(200)),
        ["bound", "free"]
    );
    let secret = json!({"metadata": {"name": "s"}, "type": "example.com/x"});
    t.post(t.core("secrets"), &secret).await.expect(201);
    let typed = format!("{}?fieldSelector=type%3Dexample.com/x", t.core("secrets"));
    assert_eq!(names(t.get(typed).await.expect(200)), ["s"]);
}

#[tokio::test]
async fn case_055_selectable_fields_of_custom_resources() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    for (name, color) in [("a", "red"), ("b", "blue")] {
        let mut body = widget(&group, name);
        body["spec"] = json!({"color": color});
        t.post(&widgets, &body).await.expect(201);
    }
    let of = |selector: &str| format!("{widgets}?fieldSelector={selector}");
    assert_eq!(
        names(t.get(of("spec.color%3Dred")).await.expect(200)),
        ["a"]
    );
    let mut watch = t
        .watch(format!("{}&watch=1", of("spec.color%3Dblue")))
        .await;
    assert_eq!(watch.next().await.name(), "b");
    t.get(of("spec.size%3D1")).await.refused(400, "BadRequest");
}

#[tokio::test]
async fn case_056_order_across_pages_and_namespaces() {
    let t = Target::start().await;
    let other = t.new_namespace().await;
    let mark = json!({"case": t.namespace});
    let mut expected = Vec::new();
    for namespace in [&t.namespace, &other] {
        for name in ["b", "a", "a-b", "a.b"] {
            let body = json!({"metadata": {"name": name, "labels": mark}});
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            t.post(path, &body).await.expect(201);
            expected.push(format!("{namespace}/{name}"));
        }
    }
    expected.sort();
    let base = format!(
        "/api/v1/configmaps?labelSelector=case%3D{}&limit=3",
        t.namespace
    );
    let mut found = Vec::new();
    let mut page = t.get(&base).await;
    loop {
        for item in page.expect(200)["items"].as_array().into_iter().flatten() {
            let text = |key: &str| {
                item["metadata"][key]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            found.push(format!("{}/{}", text("namespace"), text("name")));
        }
        let Some(token) = page.json["metadata"]["continue"].as_str() else {
            break;
        };
        page = t.get(format!("{base}&continue={token}")).await;
    }
    assert_eq!(found, expected);
}
