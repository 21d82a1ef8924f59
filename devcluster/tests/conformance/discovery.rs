//! Cases 001–012, 022 and 023: discovery, paths, who may ask.

use http::Method;
use serde_json::{Value, json};

use crate::{
    definitions::{definition, establish},
    support::{Target, config_map},
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn with<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    let found = list
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry[key] == name);
    found.unwrap_or_else(|| panic!("no {key} {name} in {list}"))
}

#[tokio::test]
async fn case_001_unaggregated_groups_and_versions() {
    let t = Target::start().await;
    let core = t.get("/api").await;
    assert_eq!(core.expect(200)["kind"], "APIVersions");
    assert_eq!(core.json["versions"], json!(["v1"]));
    let groups = t.get("/apis").await;
    assert_eq!(groups.expect(200)["kind"], "APIGroupList");
    let group = with(&groups.json["groups"], "name", "coordination.k8s.io");
    assert_eq!(
        group["preferredVersion"]["groupVersion"],
        "coordination.k8s.io/v1"
    );
}

#[tokio::test]
async fn case_002_aggregated_groups_with_etag() {
    let t = Target::start().await;
    let answer = t.ask(Method::GET, "/apis").accept(AGGREGATED).send().await;
    assert_eq!(answer.expect(200)["kind"], "APIGroupDiscoveryList");
    let media = answer.header("content-type");
    assert!(
        media.contains("as=APIGroupDiscoveryList") && media.contains("v=v2"),
        "{media}"
    );
    let etag = answer.header("etag").to_owned();
    assert!(!etag.is_empty());
    let again = t
        .ask(Method::GET, "/apis")
        .accept(AGGREGATED)
        .header("if-none-match", &etag);
    assert_eq!(again.send().await.code, 304);
}

#[tokio::test]
async fn case_003_aggregated_core_resources() {
    let t = Target::start().await;
    let answer = t.ask(Method::GET, "/api").accept(AGGREGATED).send().await;
    let groups = answer.expect(200)["items"].clone();
    let core = groups
        .as_array()
        .and_then(|groups| groups.first())
        .expect("one group");
    assert!(
        core["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    );
    let config_maps = with(&core["versions"][0]["resources"], "resource", "configmaps");
    assert_eq!(config_maps["scope"], "Namespaced");
    assert_eq!(config_maps["shortNames"], json!(["cm"]));
    let verbs = config_maps["verbs"].as_array().expect("verbs");
    for verb in [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ] {
        assert!(verbs.contains(&json!(verb)), "{verb}");
    }
    let pods = with(&core["versions"][0]["resources"], "resource", "pods");
    let binding = with(&pods["subresources"], "subresource", "binding");
    assert_eq!(binding["responseKind"]["kind"], "Binding");
}

#[tokio::test]
async fn case_004_an_unknown_aggregated_version_falls_to_the_next_clause() {
    let t = Target::start().await;
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let answer = t
        .ask(Method::GET, "/apis")
        .accept(&format!("{beta},application/json"))
        .send()
        .await;
    assert_eq!(answer.expect(200)["kind"], "APIGroupList");
}

#[tokio::test]
async fn case_005_resources_of_a_group_version_with_subresources() {
    let t = Target::start().await;
    let answer = t.get("/apis/apps/v1").await;
    assert_eq!(answer.expect(200)["kind"], "APIResourceList");
    let resources = &answer.json["resources"];
    assert_eq!(
        with(resources, "name", "deployments")["singularName"],
        "deployment"
    );
    assert_eq!(
        with(resources, "name", "deployments/status")["kind"],
        "Deployment"
    );
    let scale = with(resources, "name", "deployments/scale");
    assert_eq!(
        (&scale["group"], &scale["version"], &scale["kind"]),
        (&json!("autoscaling"), &json!("v1"), &json!("Scale"))
    );
    let group = t.get("/apis/apps").await;
    assert_eq!(group.expect(200)["kind"], "APIGroup");
}

#[tokio::test]
async fn case_006_version_and_health() {
    let t = Target::start().await;
    assert_eq!(t.get("/version").await.expect(200)["minor"], "37");
    let ready = t.get("/readyz?verbose").await;
    ready.expect(200);
    assert!(ready.text.contains("[+]ping ok"), "{}", ready.text);
    let ping = t.get("/livez/ping").await;
    ping.expect(200);
    assert_eq!(ping.text.trim(), "ok");
}

#[tokio::test]
async fn case_007_openapi_names_the_patch_operation_of_each_kind() {
    let t = Target::start().await;
    let index = t.get("/openapi/v3").await;
    let url = &index.expect(200)["paths"]["api/v1"]["serverRelativeURL"];
    let url = url.as_str().expect("a URL");
    let document = t.get(url).await;
    document.expect(200);
    let item = &document.json["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"];
    let patch = &item["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"]["kind"], "ConfigMap",
        "{item}"
    );
    let parameters: Vec<&Value> = [&item["parameters"], &patch["parameters"]]
        .into_iter()
        .flat_map(|list| list.as_array().into_iter().flatten())
        .collect();
    for name in ["fieldValidation", "dryRun", "fieldManager", "force"] {
        assert!(
            parameters.iter().any(|parameter| parameter["name"] == name),
            "{name}"
        );
    }
}

#[tokio::test]
async fn case_008_a_stale_openapi_hash_is_redirected() {
    let t = Target::start().await;
    let answer = t.get("/openapi/v3/api/v1?hash=WRONG").await;
    answer.expect(301);
    assert!(answer.header("location").contains("hash="), "{answer:?}");
}

#[tokio::test]
async fn case_009_an_unknown_group_is_plain_text_404() {
    let t = Target::start().await;
    t.get("/apis/nope.example.com/v1/things")
        .await
        .plain_not_found();
}

#[tokio::test]
async fn case_010_an_unknown_resource_of_a_built_in_version_is_a_status() {
    let t = Target::start().await;
    t.get("/api/v1/nopes").await.refused(404, "NotFound");
}

#[tokio::test]
async fn case_011_methods_that_a_path_does_not_have() {
    let t = Target::start().await;
    t.put(t.config_maps(), &config_map("a"))
        .await
        .refused(405, "MethodNotAllowed");
    let item = format!("{}/a", t.config_maps());
    t.post(item, &config_map("a"))
        .await
        .refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn case_012_creating_in_all_namespaces_at_once() {
    let t = Target::start().await;
    t.post("/api/v1/configmaps", &config_map("a"))
        .await
        .refused(405, "MethodNotAllowed");
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widget =
        json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "w"}});
    t.post(format!("/apis/{group}/v1/widgets"), &widget)
        .await
        .plain_not_found();
}

#[tokio::test]
async fn case_022_browsers_get_indented_text() {
    let t = Target::start().await;
    t.config_map("a").await;
    let path = format!("{}/a", t.config_maps());
    let plain = t.get(&path).await;
    assert!(!plain.text.trim_end().contains('\n'));
    let pretty = t.get(format!("{path}?pretty=true")).await;
    assert!(pretty.text.contains("\n  \"kind\""), "{}", pretty.text);
}

#[tokio::test]
async fn case_023_credentials_decide() {
    let t = Target::start().await;
    let bad = t
        .ask(Method::GET, "/version")
        .anonymous()
        .header("authorization", "Bearer bad");
    bad.send().await.refused(401, "Unauthorized");
    let none = t.ask(Method::GET, t.config_maps()).anonymous().send().await;
    none.refused(403, "Forbidden");
    for word in ["system:anonymous", "list", "configmaps", &t.namespace] {
        assert!(none.text.contains(word), "{word} in {none:?}");
    }
    t.ask(Method::GET, "/version")
        .anonymous()
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn case_024_reviews_of_oneself() {
    let t = Target::start().await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = t
        .post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review)
        .await;
    let user = &answer.expect(201)["status"]["userInfo"];
    assert_eq!(user["username"], "admin", "{answer:?}");
    assert!(
        user["groups"]
            .as_array()
            .is_some_and(|groups| groups.contains(&json!("system:authenticated")))
    );
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": t.namespace}},
    });
    let answer = t
        .post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            &review,
        )
        .await;
    assert_eq!(answer.expect(201)["status"]["allowed"], true);
}
