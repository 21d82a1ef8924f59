//! Cases 025–040: create.

use http::Method;
use serde_json::json;

use crate::{
    definitions::{definition, establish, widget},
    support::{Target, config_map},
};

#[tokio::test]
async fn case_025_the_server_decides_identity_and_times() {
    let t = Target::start().await;
    let mut body = config_map("a");
    for (key, value) in [
        ("uid", json!("11111111-1111-1111-1111-111111111111")),
        ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionGracePeriodSeconds", json!(7)),
    ] {
        body["metadata"][key] = value;
    }
    let created = t.post(t.config_maps(), &body).await;
    let metadata = &created.expect(201)["metadata"];
    assert_ne!(metadata["uid"], body["metadata"]["uid"]);
    assert_ne!(
        metadata["creationTimestamp"],
        body["metadata"]["creationTimestamp"]
    );
    assert!(
        metadata["creationTimestamp"]
            .as_str()
            .is_some_and(|text| text.ends_with('Z'))
    );
    assert!(metadata.get("deletionTimestamp").is_none(), "{created:?}");
    assert!(metadata.get("deletionGracePeriodSeconds").is_none());
    assert!(created.revision() > 0);
    assert_eq!(created.json["kind"], "ConfigMap");
}

#[tokio::test]
async fn case_026_a_taken_name_is_409() {
    let t = Target::start().await;
    t.config_map("a").await;
    let answer = t.post(t.config_maps(), &config_map("a")).await;
    let status = answer.refused(409, "AlreadyExists");
    assert_eq!(status["details"]["name"], "a");
    assert_eq!(status["details"]["kind"], "configmaps");
}

#[tokio::test]
async fn case_027_a_revision_may_not_be_sent() {
    let t = Target::start().await;
    let mut body = config_map("a");
    body["metadata"]["resourceVersion"] = json!("5");
    t.post(t.config_maps(), &body).await.expect(500);
    t.get(format!("{}/a", t.config_maps()))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn case_028_generated_names_are_cut_and_spelt_from_the_alphabet() {
    let t = Target::start().await;
    let prefix = "x".repeat(70);
    let body = json!({"metadata": {"generateName": prefix}});
    let created = t.post(t.config_maps(), &body).await;
    let name = created.expect(201)["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert_eq!(name.len(), 63);
    assert!(name.starts_with(&prefix[..58]));
    assert!(
        name[58..]
            .chars()
            .all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)),
        "{name}"
    );
}

#[tokio::test]
async fn case_029_some_name_is_required() {
    let t = Target::start().await;
    let answer = t.post(t.config_maps(), &json!({"metadata": {}})).await;
    answer.invalid("FieldValueRequired", "metadata.name");
}

#[tokio::test]
async fn case_030_metadata_that_breaks_rules() {
    let t = Target::start().await;
    let cases = [
        (
            json!({"name": "Bad_Name"}),
            "FieldValueInvalid",
            "metadata.name",
        ),
        (
            json!({"name": "a", "labels": {"k": "v v"}}),
            "FieldValueInvalid",
            "metadata.labels",
        ),
        (
            json!({"name": "a", "annotations": {"k": "x".repeat(257 * 1024)}}),
            "FieldValueTooLong",
            "metadata.annotations",
        ),
        (
            json!({"name": "a", "finalizers": ["plain"]}),
            "FieldValueInvalid",
            "metadata.finalizers[0]",
        ),
        (
            json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "name": "x", "uid": "u"}]}),
            "FieldValueRequired",
            "metadata.ownerReferences[0].kind",
        ),
    ];
    for (metadata, reason, field) in cases {
        let answer = t
            .post(t.config_maps(), &json!({"metadata": metadata}))
            .await;
        answer.invalid(reason, field);
    }
}

#[tokio::test]
async fn case_031_namespaces_of_body_and_path() {
    let t = Target::start().await;
    let mut body = config_map("a");
    body["metadata"]["namespace"] = json!("other");
    t.post(t.config_maps(), &body)
        .await
        .refused(400, "BadRequest");
    let name = crate::support::unique("role");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "namespace": "x"}, "rules": [],
    });
    let created = t
        .post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role)
        .await;
    assert!(created.expect(201)["metadata"].get("namespace").is_none());
}

#[tokio::test]
async fn case_032_owners() {
    let t = Target::start().await;
    let owner = |name: &str, controller: bool| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": name,
            "uid": format!("u-{name}"), "controller": controller,
        })
    };
    let with =
        |owners: serde_json::Value| json!({"metadata": {"name": "a", "ownerReferences": owners}});
    let two = t
        .post(
            t.config_maps(),
            &with(json!([owner("x", true), owner("y", true)])),
        )
        .await;
    two.invalid("FieldValueInvalid", "metadata.ownerReferences");
    let twice = t
        .post(
            t.config_maps(),
            &with(json!([owner("x", false), owner("x", false)])),
        )
        .await;
    let owners = twice.expect(201)["metadata"]["ownerReferences"]
        .as_array()
        .expect("owners")
        .clone();
    assert_eq!(owners.len(), 1);
    assert!(!twice.warnings().is_empty());
}

#[tokio::test]
async fn case_033_a_missing_namespace_is_404() {
    let t = Target::start().await;
    let answer = t
        .post("/api/v1/namespaces/none-such/configmaps", &config_map("a"))
        .await;
    let status = answer.refused(404, "NotFound");
    assert_eq!(status["details"]["kind"], "namespaces");
}

#[tokio::test]
async fn case_034_bodies_of_another_kind_or_of_none() {
    let t = Target::start().await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
    t.post(t.config_maps(), &secret)
        .await
        .refused(400, "BadRequest");
    let mut other = config_map("a");
    other["apiVersion"] = json!("v2");
    t.post(t.config_maps(), &other)
        .await
        .refused(400, "BadRequest");
    let broken = t
        .ask(Method::POST, t.config_maps())
        .body("application/json", "{\"a\":");
    broken.send().await.refused(400, "BadRequest");
}

#[tokio::test]
async fn case_035_the_type_may_be_left_out_for_built_in_kinds() {
    let t = Target::start().await;
    let created = t
        .post(t.config_maps(), &json!({"metadata": {"name": "a"}}))
        .await;
    assert_eq!(created.expect(201)["kind"], "ConfigMap");
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    let mut body = widget(&group, "w");
    body.as_object_mut().expect("an object").remove("kind");
    t.post(widgets, &body).await.refused(400, "BadRequest");
}

#[tokio::test]
async fn case_036_unknown_fields_of_a_deployment() {
    let t = Target::start().await;
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", t.namespace);
    let body = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "replicaz": 1, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                "containers": [{"name": "c", "image": "i:1", "imagee": "x"}],
            }},
        }})
    };
    let warned = t.post(&path, &body("a")).await;
    warned.expect(201);
    let warnings = warned.warnings().join("\n");
    assert!(
        warnings.contains("unknown field") && warnings.contains("spec.replicaz"),
        "{warnings}"
    );
    assert!(
        warnings.contains("spec.template.spec.containers[0].imagee"),
        "{warnings}"
    );
    assert!(warned.json["spec"].get("replicaz").is_none());
    let strict = t
        .post(format!("{path}?fieldValidation=Strict"), &body("b"))
        .await;
    strict.refused(400, "BadRequest");
    assert!(strict.text.contains("spec.replicaz"), "{strict:?}");
    let ignored = t
        .post(format!("{path}?fieldValidation=Ignore"), &body("c"))
        .await;
    ignored.expect(201);
    assert!(ignored.warnings().is_empty());
    t.post(format!("{path}?fieldValidation=x"), &body("d"))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn case_037_a_key_twice() {
    let t = Target::start().await;
    let text =
        |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"a":"1","a":"2"}}}}"#);
    let strict = t
        .ask(
            Method::POST,
            format!("{}?fieldValidation=Strict", t.config_maps()),
        )
        .body("application/json", text("a"));
    let strict = strict.send().await;
    strict.refused(400, "BadRequest");
    assert!(strict.text.contains("duplicate field"), "{strict:?}");
    let warned = t
        .ask(Method::POST, t.config_maps())
        .body("application/json", text("b"))
        .send()
        .await;
    assert_eq!(warned.expect(201)["data"]["a"], "2");
    assert!(
        warned.warnings().join(" ").contains("duplicate field"),
        "{:?}",
        warned.warnings()
    );
}

#[tokio::test]
async fn case_038_a_dry_run_leaves_no_trace() {
    let t = Target::start().await;
    let before = t.get(t.config_maps()).await.revision();
    let answer = t
        .post(format!("{}?dryRun=All", t.config_maps()), &config_map("a"))
        .await;
    let metadata = &answer.expect(201)["metadata"];
    assert!(metadata["uid"].is_string());
    assert!(metadata.get("resourceVersion").is_none(), "{answer:?}");
    t.get(format!("{}/a", t.config_maps()))
        .await
        .refused(404, "NotFound");
    if t.is_embedded() {
        assert_eq!(t.get(t.config_maps()).await.revision(), before);
    }
    t.post(format!("{}?dryRun=x", t.config_maps()), &config_map("a"))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn case_039_a_body_over_three_mebibytes_is_413() {
    let t = Target::start().await;
    let mut body = config_map("a");
    body["data"]["k"] = json!("x".repeat(3_300_000));
    t.post(t.config_maps(), &body)
        .await
        .refused(413, "RequestEntityTooLarge");
}

#[tokio::test]
async fn case_040_a_long_field_manager_is_422() {
    let t = Target::start().await;
    let path = format!("{}?fieldManager={}", t.config_maps(), "x".repeat(129));
    t.post(path, &config_map("a"))
        .await
        .invalid("FieldValueTooLong", "fieldManager");
}
