//! Cases 078–081 and 087–092: updates, status, generation, scale.

use serde_json::{Value, json};

use crate::{
    definitions::{definition, establish, widget},
    support::{MERGE, Target, config_map, pod},
};

#[tokio::test]
async fn case_078_an_update_names_the_version_it_replaces() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let mut body = created.clone();
    body["data"]["k"] = json!("w");
    let updated = t.put(&item, &body).await;
    assert_eq!(updated.expect(200)["data"]["k"], "w");
    assert!(updated.revision() > crate::support::revision(&created));
    body["data"]["k"] = json!("x");
    let stale = t.put(&item, &body).await;
    let status = stale.refused(409, "Conflict");
    assert_eq!(status["details"]["name"], "a");
    assert_eq!(status["details"]["kind"], "configmaps");
}

#[tokio::test]
async fn case_079_an_update_without_a_version() {
    let t = Target::start().await;
    t.config_map("a").await;
    let mut body = config_map("a");
    body["data"]["k"] = json!("w");
    t.put(format!("{}/a", t.config_maps()), &body)
        .await
        .expect(200);
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    t.post(&widgets, &widget(&group, "w")).await.expect(201);
    let answer = t.put(format!("{widgets}/w"), &widget(&group, "w")).await;
    answer.invalid("FieldValueInvalid", "metadata.resourceVersion");
}

#[tokio::test]
async fn case_080_an_update_of_a_missing_object() {
    let t = Target::start().await;
    t.put(format!("{}/a", t.config_maps()), &config_map("a"))
        .await
        .refused(404, "NotFound");
    let leases = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
        t.namespace
    );
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}});
    t.put(format!("{leases}/l"), &lease).await.expect(201);
    let mut bound = json!({"metadata": {"name": "m", "uid": "some"}});
    bound["spec"] = json!({});
    t.put(format!("{leases}/m"), &bound)
        .await
        .refused(409, "Conflict");
}

#[tokio::test]
async fn case_081_identity_does_not_change() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let mut other = created.clone();
    other["metadata"]["uid"] = json!("11111111-1111-1111-1111-111111111111");
    t.put(&item, &other).await.refused(409, "Conflict");
    let uid = json!({"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}});
    t.patch(&item, MERGE, &uid)
        .await
        .invalid("FieldValueInvalid", "metadata.uid");
    let name = json!({"metadata": {"name": "b"}});
    t.patch(&item, MERGE, &name)
        .await
        .refused(400, "BadRequest");
    t.put(&item, &config_map("b"))
        .await
        .refused(400, "BadRequest");
}

async fn widgets(t: &Target) -> (String, String) {
    let (definition, group) = definition();
    establish(t, &definition).await;
    (
        format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace),
        group,
    )
}

fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"]
        .as_i64()
        .unwrap_or_default()
}

#[tokio::test]
async fn case_087_status_and_main_resource_keep_apart() {
    let t = Target::start().await;
    let (widgets, group) = widgets(&t).await;
    let created = t.post(&widgets, &widget(&group, "w")).await;
    let mut body = created.expect(201).clone();
    body["spec"] = json!({"size": 9});
    body["metadata"]["labels"] = json!({"a": "b"});
    body["status"] = json!({"phase": "Up"});
    let status = t.put(format!("{widgets}/w/status"), &body).await;
    let object = status.expect(200);
    assert_eq!(object["status"]["phase"], "Up");
    assert!(object["spec"].get("size").is_none(), "{status:?}");
    assert!(object["metadata"].get("labels").is_none());
    assert_eq!(generation(object), 1);
    let mut body = object.clone();
    body["status"] = json!({"phase": "Down"});
    body["spec"] = json!({"size": 9});
    let main = t.put(format!("{widgets}/w"), &body).await;
    assert_eq!(main.expect(200)["status"]["phase"], "Up");
    assert_eq!(main.json["spec"]["size"], 9);
}

#[tokio::test]
async fn case_088_generation_counts_changes_of_what_is_wanted() {
    let t = Target::start().await;
    let (widgets, group) = widgets(&t).await;
    let item = format!("{widgets}/w");
    let created = t.post(&widgets, &widget(&group, "w")).await;
    assert_eq!(generation(created.expect(201)), 1);
    let spec = t.patch(&item, MERGE, &json!({"spec": {"size": 2}})).await;
    assert_eq!(generation(spec.expect(200)), 2);
    let label = t
        .patch(&item, MERGE, &json!({"metadata": {"labels": {"a": "b"}}}))
        .await;
    assert_eq!(generation(label.expect(200)), 2);
    let status = t
        .patch(
            format!("{item}/status"),
            MERGE,
            &json!({"status": {"phase": "x"}}),
        )
        .await;
    assert_eq!(generation(status.expect(200)), 2);

    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", t.namespace);
    t.post(&deployments, &deployment("d")).await.expect(201);
    let annotated = json!({"metadata": {"annotations": {"a": "b"}}});
    let answer = t.patch(format!("{deployments}/d"), MERGE, &annotated).await;
    assert_eq!(generation(answer.expect(200)), 2);
    assert!(
        t.config_map("c").await["metadata"]
            .get("generation")
            .is_none()
    );
}

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
    }})
}

#[tokio::test]
async fn case_089_a_status_is_not_taken_at_creation() {
    let t = Target::start().await;
    let (widgets, group) = widgets(&t).await;
    let mut body = widget(&group, "w");
    body["status"] = json!({"phase": "Up"});
    let created = t.post(&widgets, &body).await;
    assert!(created.expect(201).get("status").is_none(), "{created:?}");
}

#[tokio::test]
async fn case_090_scale_of_a_custom_resource() {
    let t = Target::start().await;
    let (widgets, group) = widgets(&t).await;
    let mut body = widget(&group, "w");
    body["spec"] = json!({"replicas": 1});
    let created = t.post(&widgets, &body).await.expect(201).clone();
    let path = format!("{widgets}/w/scale");
    let scale = t.get(&path).await;
    assert_eq!(scale.expect(200)["kind"], "Scale");
    assert_eq!(scale.json["spec"]["replicas"], 1);
    let mut wanted = scale.json.clone();
    wanted["spec"]["replicas"] = json!(3);
    let scaled = t.put(&path, &wanted).await;
    assert_eq!(scaled.expect(200)["spec"]["replicas"], 3);
    let object = t.get(format!("{widgets}/w")).await;
    assert_eq!(object.json["spec"]["replicas"], 3);
    assert_eq!(generation(&object.json), generation(&created) + 1);
    t.put(&path, &wanted).await.refused(409, "Conflict");
    wanted["metadata"]
        .as_object_mut()
        .expect("metadata")
        .remove("resourceVersion");
    wanted["spec"]["replicas"] = json!(-1);
    t.put(&path, &wanted).await.refused(422, "Invalid");
}

#[tokio::test]
async fn case_091_scale_of_a_deployment_by_merge_patch() {
    let t = Target::start().await;
    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", t.namespace);
    t.post(&deployments, &deployment("d")).await.expect(201);
    let path = format!("{deployments}/d/scale");
    let scaled = t
        .patch(&path, MERGE, &json!({"spec": {"replicas": 4}}))
        .await;
    assert_eq!(scaled.expect(200)["kind"], "Scale");
    assert_eq!(scaled.json["spec"]["replicas"], 4);
    assert_eq!(scaled.json["status"]["selector"], "a=b");
}

#[tokio::test]
async fn case_092_a_dry_update_changes_nothing() {
    let t = Target::start().await;
    let mut body = t.config_map("a").await;
    let before = body["metadata"]["resourceVersion"].clone();
    let item = format!("{}/a", t.config_maps());
    body["data"]["k"] = json!("w");
    let answer = t.put(format!("{item}?dryRun=All"), &body).await;
    assert_eq!(answer.expect(200)["data"]["k"], "w");
    assert_eq!(answer.json["metadata"]["resourceVersion"], before);
    assert_eq!(t.get(&item).await.json["data"]["k"], "v");
}

#[tokio::test]
async fn case_115_what_may_change_in_a_pod() {
    let t = Target::start().await;
    let mut with_volume = pod("p");
    with_volume["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let created = t
        .post(t.core("pods"), &with_volume)
        .await
        .expect(201)
        .clone();
    let item = t.core("pods/p");
    let mut image = created.clone();
    image["spec"]["containers"][0]["image"] = json!("example.com/i:2");
    let updated = t.put(&item, &image).await;
    assert_eq!(generation(updated.expect(200)), 2);
    let mut volume = updated.json.clone();
    volume["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/x"}}]);
    t.put(&item, &volume).await.refused(422, "Invalid");
    let status = json!({"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}});
    let answer = t.patch(format!("{item}/status"), MERGE, &status).await;
    assert_eq!(answer.expect(200)["status"]["phase"], "Running");
    assert!(answer.json["spec"].get("activeDeadlineSeconds").is_none());
}
