//! Cases 093–100 and what else belongs to server-side apply: owners of fields, conflicts, scale, resets.

use http::Method;
use serde_json::{Value, json};

use crate::{
    definitions::{establish, widget},
    support::{Answer, MERGE, Target, config_map, pod, revision, unique},
};

const APPLY: &str = "application/apply-patch+yaml";

/// Applies a configuration; `query` starts with the manager.
async fn apply(t: &Target, path: &str, query: &str, config: &Value) -> Answer {
    t.patch(format!("{path}?fieldManager={query}"), APPLY, config)
        .await
}

fn configuration(name: &str, data: impl Into<Value>) -> Value {
    let data = data.into();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// The entries of an object as manager, operation, subresource and fields, in their order.
fn owners(object: &Value) -> Vec<(String, String, String, Value)> {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array();
    entries
        .into_iter()
        .flatten()
        .map(|entry| {
            assert_eq!(entry["fieldsType"], "FieldsV1");
            (
                text(entry, "manager"),
                text(entry, "operation"),
                text(entry, "subresource"),
                entry["fieldsV1"].clone(),
            )
        })
        .collect()
}

/// The fields that a manager owns by an operation.
fn owned(object: &Value, manager: &str, operation: &str) -> Value {
    owners(object)
        .into_iter()
        .find(|(name, by, _, _)| name == manager && by == operation)
        .map_or(Value::Null, |(_, _, _, fields)| fields)
}

/// The fields and the texts of a conflict's causes, sorted.
#[track_caller]
fn conflicts(answer: &Answer) -> Vec<(String, String)> {
    let status = answer.refused(409, "Conflict");
    let causes = status["details"]["causes"].as_array().cloned();
    let mut found: Vec<(String, String)> = causes
        .unwrap_or_default()
        .iter()
        .map(|cause| {
            assert_eq!(cause["reason"], "FieldManagerConflict");
            let text = |key: &str| cause[key].as_str().unwrap_or_default().to_owned();
            (text("field"), text("message"))
        })
        .collect();
    found.sort();
    found
}

fn conflict(field: &str, message: &str) -> (String, String) {
    (field.to_owned(), message.to_owned())
}

/// A definition of widgets whose spec has every way to merge, in a group of the case's own.
fn merging_definition() -> (Value, String) {
    let group = format!("{}.example.com", unique("m"));
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer"},
            "mode": {"type": "string", "default": "auto"},
            "note": {"type": "string"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"},
                }}},
            "atom": {"type": "object", "x-kubernetes-map-type": "atomic",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            "list": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }},
        "status": {"type": "object", "properties": {
            "phase": {"type": "string"}, "replicas": {"type": "integer"},
        }},
    }});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                }},
            }],
        },
    });
    (definition, group)
}

/// Makes the definition and gives the path of its objects and its group.
async fn merging(t: &Target) -> (String, String) {
    let (definition, group) = merging_definition();
    establish(t, &definition).await;
    (
        format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace),
        group,
    )
}

fn spec(group: &str, spec: Value) -> Value {
    let mut object = widget(group, "w");
    object["spec"] = spec;
    object
}

#[tokio::test]
async fn case_093_an_apply_creates_and_repeated_changes_nothing() {
    let t = Target::start().await;
    let item = format!("{}/a", t.config_maps());
    let mut config = configuration("a", json!({"k": "v"}));
    config["metadata"]["labels"] = json!({"x": "y"});
    let created = apply(&t, &item, "m", &config).await;
    created.expect(201);
    let fields = json!({"f:data": {"f:k": {}}, "f:metadata": {"f:labels": {"f:x": {}}}});
    let entry = ("m".to_owned(), "Apply".to_owned(), String::new(), fields);
    assert_eq!(owners(&created.json), [entry]);
    assert!(created.json["metadata"]["managedFields"][0]["time"].is_string());
    let again = apply(&t, &item, "m", &config).await;
    again.expect(200);
    assert_eq!(again.json, created.json);
    let dry = apply(
        &t,
        &item,
        "m&dryRun=All",
        &configuration("a", json!({"k": "w"})),
    )
    .await;
    assert_eq!(dry.expect(200)["data"]["k"], "w");
    assert_eq!(t.get(&item).await.json, created.json);
    let other = format!("{}/b", t.config_maps());
    let dry = apply(&t, &other, "m&dryRun=All", &configuration("b", json!({}))).await;
    dry.expect(201);
    t.get(&other).await.refused(404, "NotFound");
}

#[tokio::test]
async fn case_094_a_value_of_another_manager_is_a_conflict_until_forced() {
    let t = Target::start().await;
    let item = format!("{}/a", t.config_maps());
    apply(
        &t,
        &item,
        "m",
        &configuration("a", json!({"k": "v", "l": "v"})),
    )
    .await
    .expect(201);
    let wanted = configuration("a", json!({"k": "w"}));
    let refused = apply(&t, &item, "n", &wanted).await;
    assert_eq!(
        conflicts(&refused),
        [conflict(".data.k", "conflict with \"m\"")]
    );
    assert_eq!(
        refused.json["message"],
        "Apply failed with 1 conflict: conflict with \"m\": .data.k"
    );
    let both = apply(
        &t,
        &item,
        "n",
        &configuration("a", json!({"k": "w", "l": "w"})),
    )
    .await;
    assert_eq!(
        both.refused(409, "Conflict")["message"],
        "Apply failed with 2 conflicts: conflicts with \"m\":\n- .data.k\n- .data.l"
    );
    let forced = apply(&t, &item, "n&force=true", &wanted).await;
    assert_eq!(forced.expect(200)["data"], json!({"k": "w", "l": "v"}));
    assert_eq!(
        owned(&forced.json, "m", "Apply"),
        json!({"f:data": {"f:l": {}}})
    );
    assert_eq!(
        owned(&forced.json, "n", "Apply"),
        json!({"f:data": {"f:k": {}}})
    );
}

#[tokio::test]
async fn case_095_a_shared_value_goes_with_its_last_owner() {
    let t = Target::start().await;
    let item = format!("{}/a", t.config_maps());
    let both = configuration("a", json!({"k": "v"}));
    apply(&t, &item, "m", &both).await.expect(201);
    let shared = apply(&t, &item, "n", &both).await;
    let fields = json!({"f:data": {"f:k": {}}});
    assert_eq!(owned(shared.expect(200), "m", "Apply"), fields);
    assert_eq!(owned(&shared.json, "n", "Apply"), fields);
    let none = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let one = apply(&t, &item, "m", &none).await;
    assert_eq!(one.expect(200)["data"], json!({"k": "v"}));
    assert_eq!(owners(&one.json).len(), 1);
    let gone = apply(&t, &item, "n", &none).await;
    assert_eq!(gone.expect(200).get("data"), None);
    assert_eq!(gone.json["metadata"].get("managedFields"), None);
}

#[tokio::test]
async fn case_096_items_of_a_list_belong_to_who_applied_them() {
    let t = Target::start().await;
    let (widgets, group) = merging(&t).await;
    let item = format!("{widgets}/w");
    let config = |fields: Value| spec(&group, fields);
    let first = json!({
        "ports": [{"port": 80, "name": "web"}, {"port": 53, "protocol": "UDP"}], "tags": ["a", "b"],
        "labels": {"x": "1", "y": "1"}, "atom": {"a": "1"}, "list": ["p"],
    });
    let created = apply(&t, &item, "m", &config(first)).await;
    assert_eq!(
        owned(created.expect(201), "m", "Apply"),
        json!({"f:spec": {
            "f:atom": {}, "f:labels": {"f:x": {}, "f:y": {}}, "f:list": {},
            "f:ports": {
                "k:{\"port\":53,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}},
                "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}},
            },
            "f:tags": {"v:\"a\"": {}, "v:\"b\"": {}},
        }})
    );
    let more = json!({"ports": [{"port": 8080}], "tags": ["c"], "labels": {"z": "1"}});
    let added = apply(&t, &item, "n", &config(more)).await;
    assert_eq!(added.expect(200)["spec"]["tags"], json!(["a", "b", "c"]));
    let refused = apply(
        &t,
        &item,
        "n",
        &config(json!({"atom": {"b": "1"}, "list": ["q"]})),
    )
    .await;
    let by_m = "conflict with \"m\"";
    assert_eq!(
        conflicts(&refused),
        [conflict(".spec.atom", by_m), conflict(".spec.list", by_m)]
    );
    let less = json!({"ports": [{"port": 80, "name": "web"}], "tags": ["b"], "labels": {"x": "1"}});
    let pruned = apply(&t, &item, "m", &config(less)).await;
    assert_eq!(
        pruned.expect(200)["spec"],
        json!({
            "mode": "auto", "tags": ["b", "c"], "labels": {"x": "1", "z": "1"},
            "ports": [{"port": 80, "protocol": "TCP", "name": "web"}, {"port": 8080, "protocol": "TCP"}],
        })
    );
    let key = apply(
        &t,
        &item,
        "n",
        &config(json!({"ports": [{"port": 80, "name": "other"}]})),
    )
    .await;
    let field = ".spec.ports[port=80,protocol=\"TCP\"].name";
    assert_eq!(conflicts(&key), [conflict(field, by_m)]);
    // Two items of one key cannot be told apart: a failure of the server, as it sees it.
    let twice = json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]});
    apply(&t, &item, "n", &config(twice)).await.refused(500, "");
}

#[tokio::test]
async fn case_096_containers_merge_by_name_and_ports_by_number_and_protocol() {
    let t = Target::start().await;
    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", t.namespace);
    let item = format!("{deployments}/d");
    let config = |containers: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}},
        }})
    };
    let ports = json!([{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}]);
    let both =
        json!([{"name": "x", "image": "i:1", "ports": ports}, {"name": "y", "image": "i:1"}]);
    let created = apply(&t, &item, "m", &config(both)).await;
    let containers =
        |answer: &Answer| answer.json["spec"]["template"]["spec"]["containers"].clone();
    let fields = owned(created.expect(201), "m", "Apply");
    let of_x = &fields["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"x\"}"];
    assert_eq!(
        *of_x,
        json!({".": {}, "f:image": {}, "f:name": {}, "f:ports": {
            "k:{\"containerPort\":53,\"protocol\":\"UDP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}},
            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}},
        }})
    );
    assert_eq!(fields["f:spec"]["f:selector"], json!({}));
    let image = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "x", "image": "i:2"}, {"name": "y", "image": "i:1"},
    ]}}}});
    let set = t
        .patch(format!("{item}?fieldManager=u"), MERGE, &image)
        .await;
    set.expect(200);
    let only_x = json!([{"name": "x", "image": "i:2"}]);
    let fewer = apply(&t, &item, "m", &config(only_x)).await;
    fewer.expect(200);
    assert_eq!(containers(&fewer).as_array().map(Vec::len), Some(1));
    assert_eq!(containers(&fewer)[0].get("ports"), None);
    let stale = apply(
        &t,
        &item,
        "m",
        &config(json!([{"name": "x", "image": "i:1"}])),
    )
    .await;
    let field = ".spec.template.spec.containers[name=\"x\"].image";
    assert_eq!(
        conflicts(&stale),
        [conflict(field, "conflict with \"u\" using apps/v1")]
    );
}

#[tokio::test]
async fn case_097_a_conflict_with_an_update_names_its_version() {
    let t = Target::start().await;
    t.post(
        format!("{}?fieldManager=kubectl-create", t.config_maps()),
        &config_map("a"),
    )
    .await
    .expect(201);
    let item = format!("{}/a", t.config_maps());
    let refused = apply(&t, &item, "m", &configuration("a", json!({"k": "w"}))).await;
    assert_eq!(
        conflicts(&refused),
        [conflict(
            ".data.k",
            "conflict with \"kubectl-create\" using v1"
        )]
    );
}

#[tokio::test]
async fn case_098_configurations_that_are_refused() {
    let t = Target::start().await;
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let good = configuration("a", json!({"k": "v"}));
    let unnamed = t.patch(&item, APPLY, &good).await;
    unnamed.invalid("FieldValueRequired", "fieldManager");
    let mut owners = good.clone();
    owners["metadata"]["managedFields"] = json!([{}]);
    let mut version = good.clone();
    version["apiVersion"] = json!("v2");
    let mut kind = good.clone();
    kind["kind"] = json!("Secret");
    let mut name = good.clone();
    name["metadata"]["name"] = json!("b");
    for bad in [owners, version, kind, name, json!({"data": {}}), json!([1])] {
        apply(&t, &item, "m", &bad).await.refused(400, "BadRequest");
    }
    let broken = t
        .ask(Method::PATCH, format!("{item}?fieldManager=m"))
        .body(APPLY, "{a: [1")
        .send()
        .await;
    broken.refused(400, "BadRequest");
    t.patch(format!("{item}?force=true"), MERGE, &json!({}))
        .await
        .invalid("FieldValueForbidden", "force");
    // What does not fit the type is a failure of the server, as it sees it.
    for (data, problem) in [
        (
            json!({"k": 1}),
            ".data.k: expected string, got &value.valueUnstructured{Value:1}",
        ),
        (json!(["k"]), ".data: expected map, got &{[k]}"),
    ] {
        let answer = apply(&t, &item, "m", &configuration("a", data)).await;
        assert_eq!(
            answer.refused(500, "")["message"],
            format!("failed to create typed patch object (/a; /v1, Kind=ConfigMap): {problem}")
        );
    }
    let mut unknown = good.clone();
    unknown["foo"] = json!({"a": 1});
    let answer = apply(&t, &item, "m", &unknown).await;
    let text = answer.refused(500, "")["message"]
        .as_str()
        .unwrap_or_default();
    assert!(
        text.ends_with(": .foo: field not declared in schema"),
        "{text}"
    );
    for media in [
        "application/apply-patch+json",
        "application/apply-patch+cbor",
    ] {
        let answer = t
            .patch(format!("{item}?fieldManager=m"), media, &good)
            .await;
        answer.refused(415, "UnsupportedMediaType");
    }
}

#[tokio::test]
async fn case_098_versions_and_uids_in_a_configuration() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let with = |name: &str, key: &str, value: &str| {
        let mut config = configuration(name, json!({"n": "1"}));
        config["metadata"][key] = json!(value);
        config
    };
    let stale = apply(&t, &item, "m", &with("a", "resourceVersion", "1")).await;
    stale.refused(409, "Conflict");
    let version = revision(&created).to_string();
    let fresh = apply(&t, &item, "m", &with("a", "resourceVersion", &version)).await;
    assert_eq!(fresh.expect(200)["data"], json!({"k": "v", "n": "1"}));
    apply(&t, &item, "m", &with("a", "uid", "other"))
        .await
        .invalid("FieldValueInvalid", "metadata.uid");
    let absent = format!("{}/b", t.config_maps());
    apply(&t, &absent, "m", &with("b", "uid", "other"))
        .await
        .refused(409, "Conflict");
    apply(&t, &absent, "m", &with("b", "resourceVersion", "1"))
        .await
        .expect(201);
    // An object that is to be made needs its name; one that exists has it.
    let mut nameless = configuration("c", json!({"n": "1"}));
    nameless["metadata"] = json!({});
    apply(&t, &format!("{}/c", t.config_maps()), "m", &nameless)
        .await
        .refused(400, "BadRequest");
    apply(&t, &item, "m", &nameless).await.expect(200);
}

#[tokio::test]
async fn case_098_keys_that_stand_twice_in_a_configuration() {
    let t = Target::start().await;
    let yaml =
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: \"1\"\n  k: \"2\"\n";
    let send = |query: &str| {
        let path = format!("{}/a?fieldManager=m{query}", t.config_maps());
        t.ask(Method::PATCH, path).body(APPLY, yaml).send()
    };
    send("&fieldValidation=Strict")
        .await
        .refused(400, "BadRequest");
    let warned = send("").await;
    assert_eq!(warned.expect(201)["data"]["k"], "2");
    assert_eq!(
        warned.warnings(),
        ["299 - \"line 7: key \\\"k\\\" already set in map\""]
    );
    let silent = send("&fieldValidation=Ignore").await;
    silent.expect(200);
    assert_eq!(silent.warnings(), [""; 0]);
}

#[tokio::test]
async fn case_099_the_status_has_owners_of_its_own() {
    let t = Target::start().await;
    let (widgets, group) = merging(&t).await;
    let item = format!("{widgets}/w");
    apply(&t, &item, "m", &spec(&group, json!({"note": "n"})))
        .await
        .expect(201);
    let mut status = spec(&group, json!({"note": "other"}));
    status["metadata"]["labels"] = json!({"a": "b"});
    status["status"] = json!({"phase": "up"});
    let applied = apply(&t, &format!("{item}/status"), "s", &status).await;
    let fields = json!({"f:status": {"f:phase": {}}});
    assert_eq!(applied.expect(200)["status"], json!({"phase": "up"}));
    assert_eq!(applied.json["spec"]["note"], "n");
    assert_eq!(applied.json["metadata"].get("labels"), None);
    let entry = (
        "s".to_owned(),
        "Apply".to_owned(),
        "status".to_owned(),
        fields,
    );
    assert!(owners(&applied.json).contains(&entry), "{applied:?}");
    // The main resource cannot touch the status, so nobody owns it by that.
    let mut main = spec(&group, json!({"note": "n"}));
    main["status"] = json!({"phase": "down"});
    let main = apply(&t, &item, "m", &main).await;
    assert_eq!(main.expect(200)["status"]["phase"], "up");
    assert_eq!(
        owned(&main.json, "m", "Apply"),
        json!({"f:spec": {"f:note": {}}})
    );
    let mut other = widget(&group, "w");
    other["status"] = json!({"phase": "down"});
    let refused = apply(&t, &format!("{item}/status"), "r", &other).await;
    assert_eq!(
        conflicts(&refused),
        [conflict(
            ".status.phase",
            "conflict with \"s\" with subresource \"status\""
        )]
    );
    let absent = apply(
        &t,
        &format!("{widgets}/none/status"),
        "s",
        &widget(&group, "none"),
    )
    .await;
    absent.refused(404, "NotFound");
}

#[tokio::test]
async fn case_100_an_update_takes_what_it_changes() {
    let t = Target::start().await;
    let item = format!("{}/a", t.config_maps());
    let config = configuration("a", json!({"k": "v", "l": "v"}));
    apply(&t, &item, "m", &config).await.expect(201);
    let patch = json!({"data": {"k": "w"}});
    let patched = t
        .patch(format!("{item}?fieldManager=u"), MERGE, &patch)
        .await;
    assert_eq!(
        owned(patched.expect(200), "m", "Apply"),
        json!({"f:data": {"f:l": {}}})
    );
    assert_eq!(
        owned(&patched.json, "u", "Update"),
        json!({"f:data": {"f:k": {}}})
    );
    let refused = apply(&t, &item, "m", &config).await;
    assert_eq!(
        conflicts(&refused),
        [conflict(".data.k", "conflict with \"u\" using v1")]
    );
    let patched = t.patch(&item, MERGE, &json!({"data": {"l": null}})).await;
    assert_eq!(owners(patched.expect(200)).len(), 1);
    // A change that changes nothing moves nothing.
    let same = t.patch(&item, MERGE, &json!({"data": {"k": "w"}})).await;
    assert_eq!(same.json, patched.json);
}

#[tokio::test]
async fn m10_who_writes_owns_what_was_set_and_defaulted() {
    let t = Target::start().await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}});
    let fields_of = |answer: &Answer| {
        let all = owners(answer.expect(201));
        assert_eq!(all.len(), 1, "{answer:?}");
        assert_eq!((&*all[0].0, &*all[0].1), ("conformance", "Update"));
        all[0].3.clone()
    };
    let created = t.post(t.core("secrets"), &secret).await;
    assert_eq!(
        fields_of(&created),
        json!({"f:data": {".": {}, "f:a": {}}, "f:type": {}})
    );
    let mut body = pod("p");
    body["spec"]["containers"][0]["env"] = json!([{"name": "E", "value": "1"}]);
    body["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let created = t.post(t.core("pods"), &body).await;
    assert_eq!(
        fields_of(&created),
        json!({"f:spec": {
            "f:containers": {"k:{\"name\":\"c\"}": {
                ".": {}, "f:env": {".": {}, "k:{\"name\":\"E\"}": {".": {}, "f:name": {}, "f:value": {}}},
                "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {},
                "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
            }},
            "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {},
            "f:securityContext": {}, "f:terminationGracePeriodSeconds": {},
            "f:volumes": {".": {}, "k:{\"name\":\"v\"}": {".": {}, "f:emptyDir": {}, "f:name": {}}},
        }})
    );
    let event = json!({
        "metadata": {"name": "e"}, "reason": "r",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": t.namespace},
    });
    let created = t.post(t.core("events"), &event).await;
    assert_eq!(
        fields_of(&created),
        json!({"f:involvedObject": {}, "f:reason": {}})
    );
    let account = t
        .post(
            t.core("serviceaccounts"),
            &json!({"metadata": {"name": "a"}}),
        )
        .await;
    assert_eq!(account.expect(201)["metadata"].get("managedFields"), None);
    let system = t.get("/api/v1/namespaces/kube-system").await;
    let label = json!({"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}});
    assert_eq!(owned(system.expect(200), "kube-apiserver", "Update"), label);
}

#[tokio::test]
async fn m10_custom_resources_and_definitions_have_owners() {
    let t = Target::start().await;
    let (definition, group) = merging_definition();
    let established = establish(&t, &definition).await;
    let kinds = json!({
        ".": {}, "f:lastTransitionTime": {}, "f:message": {}, "f:reason": {}, "f:status": {}, "f:type": {},
    });
    let server = owners(&established)
        .into_iter()
        .find(|(name, _, part, _)| name == "kube-apiserver" && part == "status")
        .map(|(_, _, _, fields)| fields);
    assert_eq!(
        server,
        Some(json!({"f:status": {
            "f:acceptedNames": {"f:kind": {}, "f:listKind": {}, "f:plural": {}, "f:singular": {}},
            "f:conditions": {
                "k:{\"type\":\"Established\"}": kinds, "k:{\"type\":\"NamesAccepted\"}": kinds,
            },
        }}))
    );
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    let mut body = spec(
        &group,
        json!({"replicas": 1, "free": {"a": {"b": [1]}}, "ports": [{"port": 1}], "atom": {"a": "1"}}),
    );
    body["status"] = json!({"phase": "x"});
    let created = t.post(&widgets, &body).await;
    assert_eq!(
        owned(created.expect(201), "conformance", "Update"),
        json!({"f:spec": {
            ".": {}, "f:atom": {}, "f:free": {".": {}, "f:a": {".": {}, "f:b": {}}}, "f:mode": {},
            "f:ports": {".": {}, "k:{\"port\":1,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}}},
            "f:replicas": {},
        }})
    );
}

#[tokio::test]
async fn m10_eleven_updaters_are_ten() {
    let t = Target::start().await;
    t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    for n in 0..10 {
        let patch = json!({"data": {format!("n{n}"): "1"}});
        let path = format!("{item}?fieldManager=m{n}");
        t.patch(path, MERGE, &patch).await.expect(200);
    }
    let all = owners(&t.get(&item).await.json);
    assert_eq!(all.len(), 10);
    let ancient = all
        .iter()
        .find(|(name, _, _, _)| name == "ancient-changes")
        .map(|(_, _, _, fields)| fields["f:data"].as_object().map_or(0, |data| data.len()));
    // The case's own create counts `.` and `k`, one more manager adds its field.
    assert_eq!(ancient, Some(3), "{all:?}");
}

#[tokio::test]
async fn m10_owners_can_be_set_and_forgotten() {
    let t = Target::start().await;
    let created = t.config_map("a").await;
    let item = format!("{}/a", t.config_maps());
    let mut body = created.clone();
    body["metadata"]["managedFields"][0]["manager"] = json!("renamed");
    let renamed = t.put(&item, &body).await;
    assert_eq!(owners(renamed.expect(200))[0].0, "renamed");
    // Entries that make no sense change nothing.
    let mut senseless = renamed.json.clone();
    senseless["metadata"]["managedFields"][0]["operation"] = json!("Delete");
    let kept = t.put(&item, &senseless).await;
    assert_eq!(owners(kept.expect(200)), owners(&renamed.json));
    let mut none = kept.json.clone();
    none["metadata"]
        .as_object_mut()
        .expect("an object has metadata")
        .remove("managedFields");
    let kept = t.put(&item, &none).await;
    assert_eq!(owners(kept.expect(200)), owners(&renamed.json));
    for reset in [json!([{}]), json!([])] {
        let patch = json!({"metadata": {"managedFields": reset}});
        let forgotten = t.patch(&item, MERGE, &patch).await;
        assert_eq!(forgotten.expect(200)["metadata"].get("managedFields"), None);
        let untracked = t.patch(&item, MERGE, &json!({"data": {"n": "1"}})).await;
        assert_eq!(untracked.expect(200)["metadata"].get("managedFields"), None);
        // The first apply finds an owner for all that was there.
        let refused = apply(&t, &item, "m", &configuration("a", json!({"k": "x"}))).await;
        let field = conflict(".data.k", "conflict with \"before-first-apply\" using v1");
        assert_eq!(conflicts(&refused), [field]);
        let applied = apply(&t, &item, "m", &configuration("a", json!({"k": "v"}))).await;
        assert_eq!(
            owned(applied.expect(200), "before-first-apply", "Update"),
            json!({"f:data": {".": {}, "f:k": {}, "f:n": {}}})
        );
    }
}

#[tokio::test]
async fn p7_kubectl_applies_over_what_it_applied_on_its_own_side() {
    let t = Target::start().await;
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let config = configuration("a", json!({"k": "v"}));
    let mut body = config.clone();
    body["metadata"]["annotations"] = json!({annotation: config.to_string()});
    t.post(
        format!("{}?fieldManager=kubectl-client-side-apply", t.config_maps()),
        &body,
    )
    .await
    .expect(201);
    let item = format!("{}/a", t.config_maps());
    let new = configuration("a", json!({"k": "w"}));
    let other = apply(&t, &item, "someone", &new).await;
    other.refused(409, "Conflict");
    let applied = apply(&t, &item, "kubectl", &new).await;
    assert_eq!(applied.expect(200)["data"]["k"], "w");
    let noted = applied.json["metadata"]["annotations"][annotation]
        .as_str()
        .unwrap_or_default();
    assert_eq!(serde_json::from_str::<Value>(noted).ok(), Some(new));
}

#[tokio::test]
async fn w6_a_scale_has_owners_too() {
    let t = Target::start().await;
    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", t.namespace);
    let body = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]},
    }});
    t.post(&deployments, &body).await.expect(201);
    let item = format!("{deployments}/d");
    let replicas = json!({"f:spec": {"f:replicas": {}}});
    let by_scale = |object: &Value| -> Vec<(String, String, Value)> {
        let all = owners(object).into_iter();
        all.filter(|(_, _, part, _)| part == "scale")
            .map(|(name, by, _, fields)| (name, by, fields))
            .collect()
    };
    let patch = json!({"spec": {"replicas": 3}});
    t.patch(format!("{item}/scale?fieldManager=u"), MERGE, &patch)
        .await
        .expect(200);
    let scaled = t.get(&item).await.json;
    let expected = ("u".to_owned(), "Update".to_owned(), replicas.clone());
    assert_eq!(by_scale(&scaled), [expected]);
    let main = owned(&scaled, "conformance", "Update");
    assert!(main["f:spec"].get("f:replicas").is_none(), "{main}");
    let config = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 4},
    });
    let refused = apply(&t, &format!("{item}/scale"), "s", &config).await;
    let message = "conflict with \"u\" with subresource \"scale\" using autoscaling/v1";
    assert_eq!(conflicts(&refused), [conflict(".spec.replicas", message)]);
    let forced = apply(&t, &format!("{item}/scale"), "s&force=true", &config).await;
    assert_eq!(forced.expect(200)["spec"]["replicas"], 4);
    let expected = ("s".to_owned(), "Apply".to_owned(), replicas);
    assert_eq!(by_scale(&t.get(&item).await.json), [expected]);
}

#[tokio::test]
async fn case_093_applies_at_once_lose_nothing() {
    let t = Target::start().await;
    let item = format!("{}/a", t.config_maps());
    let all = (0..20).map(|n| {
        let (t, item) = (&t, &item);
        async move {
            let config = configuration("a", json!({format!("n{n}"): "1"}));
            let answer = apply(t, item, &format!("m{n}"), &config).await;
            assert!(matches!(answer.code, 200 | 201), "{answer:?}");
            answer.code
        }
    });
    let codes = futures::future::join_all(all).await;
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1);
    let object = t.get(&item).await.json;
    assert_eq!(object["data"].as_object().map(|data| data.len()), Some(20));
    assert_eq!(owners(&object).len(), 20);
}
