//! Cases 063 and 125–137: custom resources.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{MERGE, Target, unique};

/// A definition of namespaced widgets with status and scale, in a group of the case's own.
pub(crate) fn definition() -> (Value, String) {
    let group = format!("{}.example.com", unique("g"));
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "default": {}, "properties": {
            "size": {"type": "integer", "minimum": 0},
            "color": {"type": "string", "enum": ["red", "blue"]},
            "mode": {"type": "string", "default": "auto"},
            "replicas": {"type": "integer"},
            "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
            "port": {"x-kubernetes-int-or-string": true},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 3, "items": {"type": "string"}},
            "maybe": {"type": "string", "nullable": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "box": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
            "locked": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "locked is immutable"},
            ]},
        }, "x-kubernetes-validations": [
            {"rule": "!has(self.size) || self.size < 100", "message": "size must stay below 100"},
        ]},
        "status": {"type": "object", "properties": {
            "phase": {"type": "string"}, "replicas": {"type": "integer"}, "selector": {"type": "string"},
        }},
    }});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector",
                }},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
            }],
        },
    });
    (definition, group)
}

pub(crate) fn widget(group: &str, name: &str) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": name}})
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn condition(definition: &Value, kind: &str) -> String {
    let conditions = definition["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let found = conditions
        .clone()
        .find(|condition| condition["type"] == kind);
    found
        .map(|condition| condition["status"].as_str().unwrap_or_default().to_owned())
        .unwrap_or_default()
}

/// Creates a definition and waits until it can be used.
pub(crate) async fn establish(t: &Target, definition: &Value) -> Value {
    t.post(DEFINITIONS, definition).await.expect(201);
    let name = definition["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{DEFINITIONS}/{name}");
    let established = t
        .until(&path, |answer| {
            condition(&answer.json, "Established") == "True"
        })
        .await;
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    let plural = definition["spec"]["names"]["plural"]
        .as_str()
        .unwrap_or_default();
    for version in definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        if version["served"] == true {
            let version = version["name"].as_str().unwrap_or_default();
            t.until(&format!("/apis/{group}/{version}/{plural}"), |answer| {
                answer.code == 200
            })
            .await;
        }
    }
    established.json
}

fn widgets_path(t: &Target, group: &str) -> String {
    format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace)
}

fn with_spec(group: &str, name: &str, spec: Value) -> Value {
    let mut body = widget(group, name);
    body["spec"] = spec;
    body
}

#[tokio::test]
async fn case_063_a_watch_from_before_the_definition_is_410() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let mut watch = t
        .watch(format!(
            "{}?watch=1&resourceVersion=1",
            widgets_path(&t, &group)
        ))
        .await;
    let event = watch.next().await;
    assert_eq!(event.kind, "ERROR");
    assert_eq!(
        (&event.object["code"], &event.object["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert_eq!(event.object["kind"], "Status");
    assert_eq!(watch.next_or_end(Duration::from_secs(10)).await, None);
}

#[tokio::test]
async fn case_125_a_definition_is_established_served_and_taken_away() {
    let t = Target::start().await;
    let (definition, group) = definition();
    let established = establish(&t, &definition).await;
    assert_eq!(established["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(condition(&established, "NamesAccepted"), "True");
    assert_eq!(
        established["status"]["acceptedNames"]["listKind"],
        "WidgetList"
    );
    assert_eq!(established["spec"]["names"]["singular"], "widget");
    t.until(&format!("/apis/{group}/v1"), |answer| {
        answer.code == 200 && answer.json["resources"][0]["name"] == "widgets"
    })
    .await;
    t.until("/apis", |answer| answer.text.contains(&group))
        .await;
    let widgets = widgets_path(&t, &group);
    t.post(&widgets, &widget(&group, "w")).await.expect(201);
    t.delete(format!("{DEFINITIONS}/widgets.{group}"))
        .await
        .expect(200);
    let gone = t.until(&widgets, |answer| answer.code == 404).await;
    gone.plain_not_found();
}

#[tokio::test]
async fn case_126_definitions_that_break_rules() {
    let t = Target::start().await;
    type Edit = fn(&mut Value);
    let edits: [(&str, Edit); 4] = [
        ("metadata.name", |d| {
            d["metadata"]["name"] = json!("wrong.name")
        }),
        ("spec.versions[0].schema.openAPIV3Schema", |d| {
            d["spec"]["versions"][0]
                .as_object_mut()
                .expect("a version")
                .remove("schema");
        }),
        ("spec.versions", |d| {
            let mut second = d["spec"]["versions"][0].clone();
            second["name"] = json!("v2");
            d["spec"]["versions"]
                .as_array_mut()
                .expect("versions")
                .push(second);
        }),
        (
            "spec.validation.openAPIV3Schema.properties[spec].properties[size].type",
            |d| {
                let schema = &mut d["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
                schema["properties"]["spec"]["properties"]["size"]
                    .as_object_mut()
                    .expect("size")
                    .remove("type");
            },
        ),
    ];
    for (field, edit) in edits {
        let (mut definition, _) = definition();
        edit(&mut definition);
        let answer = t.post(DEFINITIONS, &definition).await;
        let status = answer.refused(422, "Invalid");
        let causes = status["details"]["causes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        assert!(
            causes.iter().any(|cause| cause["field"] == field),
            "{field}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn case_127_a_taken_short_name_is_not_accepted_until_it_is_free() {
    let t = Target::start().await;
    let (first, group) = definition();
    establish(&t, &first).await;
    let mut second = first.clone();
    second["metadata"]["name"] = json!(format!("gadgets.{group}"));
    second["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget", "shortNames": ["wd"]});
    t.post(DEFINITIONS, &second).await.expect(201);
    let path = format!("{DEFINITIONS}/gadgets.{group}");
    t.until(&path, |answer| {
        condition(&answer.json, "NamesAccepted") == "False"
    })
    .await;
    t.delete(format!("{DEFINITIONS}/widgets.{group}"))
        .await
        .expect(200);
    t.until(&path, |answer| {
        condition(&answer.json, "NamesAccepted") == "True"
    })
    .await;
}

#[tokio::test]
async fn case_128_defaults_on_create_on_read_and_in_watches() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    let created = t.post(&widgets, &widget(&group, "w")).await;
    assert_eq!(created.expect(201)["spec"]["mode"], "auto");
    let later = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/level",
        "value": {"type": "integer", "default": 7},
    }]);
    let path = format!("{DEFINITIONS}/widgets.{group}");
    t.patch(&path, crate::support::JSON_PATCH, &later)
        .await
        .expect(200);
    let read = t
        .until(&format!("{widgets}/w"), |answer| {
            answer.json["spec"]["level"] == 7
        })
        .await;
    assert_eq!(
        read.revision(),
        created.revision(),
        "reading writes nothing"
    );
    let mut watch = t.watch(format!("{widgets}?watch=1")).await;
    assert_eq!(watch.next().await.object["spec"]["level"], 7);
    assert_eq!(t.get(&widgets).await.json["items"][0]["spec"]["level"], 7);
}

#[tokio::test]
async fn case_129_unknown_fields_are_pruned() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    let body = with_spec(&group, "w", json!({"sizze": 1, "free": {"x": {"y": 1}}}));
    let created = t.post(&widgets, &body).await;
    assert!(created.expect(201)["spec"].get("sizze").is_none());
    assert_eq!(created.json["spec"]["free"]["x"]["y"], 1);
    assert!(
        created.warnings().join(" ").contains("spec.sizze"),
        "{:?}",
        created.warnings()
    );
    let strict = t
        .post(format!("{widgets}?fieldValidation=Strict"), &body)
        .await;
    strict.refused(400, "BadRequest");
    assert!(strict.text.contains("spec.sizze"), "{strict:?}");
}

#[tokio::test]
async fn case_129_metadata_of_custom_resources_is_typed() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    let with = |metadata: Value| {
        let mut body = widget(&group, "w");
        body["metadata"] = metadata;
        body
    };
    for metadata in [json!({"name": 5}), json!({"name": "w", "labels": {"x": 1}})] {
        t.post(&widgets, &with(metadata))
            .await
            .refused(400, "BadRequest");
    }
    let metadata = json!({"name": "w", "foo": "x", "annotations": {"k": null}});
    let created = t.post(&widgets, &with(metadata)).await;
    let metadata = &created.expect(201)["metadata"];
    assert!(metadata.get("foo").is_none());
    assert_eq!(metadata["annotations"], json!({"k": ""}));
    assert!(
        created.warnings().join(" ").contains("metadata.foo"),
        "{:?}",
        created.warnings()
    );
    let other = t
        .patch(format!("{widgets}/w"), MERGE, &json!({"kind": "Other"}))
        .await;
    other.invalid("FieldValueInvalid", "kind");
}

#[tokio::test]
async fn case_130_values_that_break_the_schema() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    let cases = [
        (json!({"size": "x"}), "FieldValueTypeInvalid", "spec.size"),
        (
            json!({"color": "green"}),
            "FieldValueNotSupported",
            "spec.color",
        ),
        (json!({"size": -1}), "FieldValueInvalid", "spec.size"),
        (json!({"code": "A1"}), "FieldValueInvalid", "spec.code"),
        (json!({"code": "abcdef"}), "FieldValueTooLong", "spec.code"),
        (json!({"box": {}}), "FieldValueRequired", "spec.box.a"),
        (
            json!({"tags": ["a", "b", "c", "d"]}),
            "FieldValueTooMany",
            "spec.tags",
        ),
    ];
    for (spec, reason, field) in cases {
        let answer = t
            .post(&widgets, &with_spec(&group, "w", spec.clone()))
            .await;
        answer.invalid(reason, field);
    }
}

#[tokio::test]
async fn case_131_int_or_string_nullable_and_sets() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    for (name, port) in [("number", json!(80)), ("text", json!("http"))] {
        let created = t
            .post(&widgets, &with_spec(&group, name, json!({"port": port})))
            .await;
        assert_eq!(created.expect(201)["spec"]["port"], port);
    }
    let nulls = with_spec(
        &group,
        "nulls",
        json!({"maybe": null, "mode": null, "code": null}),
    );
    let created = t.post(&widgets, &nulls).await;
    let spec = &created.expect(201)["spec"];
    assert_eq!(spec.get("maybe"), Some(&Value::Null), "{created:?}");
    assert_eq!(spec["mode"], "auto");
    assert!(spec.get("code").is_none());
    let twice = with_spec(&group, "twice", json!({"tags": ["a", "a"]}));
    t.post(&widgets, &twice)
        .await
        .invalid("FieldValueDuplicate", "spec.tags[1]");
}

#[tokio::test]
async fn case_132_rules() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    let big = t
        .post(&widgets, &with_spec(&group, "big", json!({"size": 100})))
        .await;
    big.invalid("FieldValueInvalid", "spec");
    assert!(big.text.contains("size must stay below 100"), "{big:?}");
    t.post(&widgets, &with_spec(&group, "w", json!({"locked": "a"})))
        .await
        .expect(201);
    let item = format!("{widgets}/w");
    let changed = t
        .patch(&item, MERGE, &json!({"spec": {"locked": "b"}}))
        .await;
    changed.invalid("FieldValueInvalid", "spec.locked");
    t.patch(&item, MERGE, &json!({"spec": {"size": 5}}))
        .await
        .expect(200);
    let (mut bad, _) = self::definition();
    let schema = &mut bad["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["x-kubernetes-validations"][0]["rule"] = json!("self.nope ==");
    t.post(DEFINITIONS, &bad).await.refused(422, "Invalid");
}

#[tokio::test]
async fn case_133_versions_of_one_object() {
    let t = Target::start().await;
    let (mut definition, group) = definition();
    let mut beta = definition["spec"]["versions"][0].clone();
    beta["name"] = json!("v1beta1");
    beta["storage"] = json!(false);
    beta["deprecated"] = json!(true);
    let spec = &mut beta["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec.as_object_mut().expect("properties").remove("size");
    spec["old"] = json!({"type": "string", "default": "yes"});
    beta["additionalPrinterColumns"] = json!([]);
    beta.as_object_mut()
        .expect("a version")
        .remove("selectableFields");
    beta["schema"]["openAPIV3Schema"]["properties"]["spec"]
        .as_object_mut()
        .expect("spec")
        .remove("x-kubernetes-validations");
    let mut alpha = beta.clone();
    alpha["name"] = json!("v1alpha1");
    alpha["served"] = json!(false);
    let versions = definition["spec"]["versions"]
        .as_array_mut()
        .expect("versions");
    versions.extend([beta, alpha]);
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    t.post(&widgets, &with_spec(&group, "w", json!({"size": 3})))
        .await
        .expect(201);
    let path = format!("/apis/{group}/v1beta1/namespaces/{}/widgets/w", t.namespace);
    let read = t.get(&path).await;
    assert_eq!(read.expect(200)["apiVersion"], format!("{group}/v1beta1"));
    assert!(read.json["spec"].get("size").is_none(), "{read:?}");
    assert_eq!(read.json["spec"]["mode"], "auto");
    assert!(
        read.json["spec"].get("old").is_none(),
        "defaults on read are those of the stored version"
    );
    assert!(
        read.warnings().join(" ").contains("deprecated"),
        "{:?}",
        read.warnings()
    );
    let unserved = format!("/apis/{group}/v1alpha1/namespaces/{}/widgets", t.namespace);
    t.get(unserved).await.plain_not_found();
}

#[tokio::test]
async fn case_134_a_change_of_the_definition_ends_its_watches() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    let created = t.post(&widgets, &widget(&group, "w")).await;
    created.expect(201);
    let mut watch = t
        .watch(format!(
            "{widgets}?watch=1&resourceVersion={}",
            created.revision()
        ))
        .await;
    let later = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/extra",
        "value": {"type": "string"},
    }]);
    let path = format!("{DEFINITIONS}/widgets.{group}");
    t.patch(&path, crate::support::JSON_PATCH, &later)
        .await
        .expect(200);
    assert_eq!(watch.next_or_end(Duration::from_secs(15)).await, None);
    let mut watch = t.watch(format!("{widgets}?watch=1")).await;
    assert_eq!(watch.next().await.name(), "w");
}

#[tokio::test]
async fn case_135_deletion_of_a_definition_takes_its_instances_along() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    t.post(&widgets, &widget(&group, "plain")).await.expect(201);
    let mut held = widget(&group, "held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.post(&widgets, &held).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.{group}");
    t.delete(&path).await.expect(200);
    t.until(&path, |answer| {
        condition(&answer.json, "Terminating") == "True"
    })
    .await;
    t.until(&format!("{widgets}/plain"), |answer| answer.code == 404)
        .await;
    let refused = t.post(&widgets, &widget(&group, "late")).await;
    assert!(matches!(refused.code, 403 | 405), "{refused:?}");
    let free = json!({"metadata": {"finalizers": null}});
    t.patch(format!("{widgets}/held"), MERGE, &free)
        .await
        .expect(200);
    t.until(&path, |answer| answer.code == 404).await;
}

#[tokio::test]
async fn case_136_updates_of_a_definition() {
    let t = Target::start().await;
    let (definition, group) = definition();
    let established = establish(&t, &definition).await;
    let path = format!("{DEFINITIONS}/widgets.{group}");
    t.put(&path, &definition)
        .await
        .invalid("FieldValueInvalid", "metadata.resourceVersion");
    let mut renamed = established.clone();
    renamed["spec"]["versions"][0]["name"] = json!("v2");
    t.put(&path, &renamed).await.refused(422, "Invalid");
    let mut current = t.get(&path).await.expect(200).clone();
    current
        .as_object_mut()
        .expect("a definition")
        .remove("status");
    current["metadata"]["labels"] = json!({"a": "b"});
    let updated = t.put(&path, &current).await;
    assert_eq!(condition(updated.expect(200), "Established"), "True");
}

#[tokio::test]
async fn case_137_instances_can_be_made_at_once() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = widgets_path(&t, &group);
    for n in 0..10 {
        t.post(&widgets, &widget(&group, &format!("w{n}")))
            .await
            .expect(201);
    }
}
