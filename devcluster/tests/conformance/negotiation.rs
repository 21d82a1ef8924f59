//! Cases 013–020: forms of answers and bodies.

use std::io::Read as _;

use flate2::read::GzDecoder;
use http::Method;
use serde_json::{Value, json};

use crate::{
    definitions::{definition, establish, widget},
    support::{JSON_PATCH, MERGE, PARTIAL, PARTIAL_LIST, PROTOBUF, STRATEGIC, TABLE, Target, pod},
};

#[tokio::test]
async fn case_013_a_form_that_is_not_offered_is_406() {
    let t = Target::start().await;
    let answer = t
        .ask(Method::GET, t.config_maps())
        .accept("application/xml")
        .send()
        .await;
    answer.refused(406, "NotAcceptable");
}

#[tokio::test]
async fn case_014_the_first_servable_clause_is_taken() {
    let t = Target::start().await;
    t.config_map("a").await;
    let accept = format!("application/xml, {PARTIAL}");
    let path = format!("{}/a", t.config_maps());
    let answer = t.ask(Method::GET, path).accept(&accept).send().await;
    let object = answer.expect(200);
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(object["apiVersion"], "meta.k8s.io/v1");
    assert!(object.get("data").is_none());
}

#[tokio::test]
async fn case_015_lists_of_metadata() {
    let t = Target::start().await;
    t.config_map("a").await;
    let list = t
        .ask(Method::GET, t.config_maps())
        .accept(PARTIAL_LIST)
        .send()
        .await;
    assert_eq!(list.expect(200)["kind"], "PartialObjectMetadataList");
    assert_eq!(list.json["items"][0]["kind"], "PartialObjectMetadata");
    let wrong = t
        .ask(Method::GET, t.config_maps())
        .accept(PARTIAL)
        .send()
        .await;
    wrong.refused(406, "NotAcceptable");
}

#[tokio::test]
async fn case_016_pods_as_a_table() {
    let t = Target::start().await;
    t.post(t.core("pods"), &pod("p")).await.expect(201);
    let table = t
        .ask(Method::GET, t.core("pods"))
        .accept(TABLE)
        .send()
        .await;
    assert_eq!(table.expect(200)["kind"], "Table");
    let columns: Vec<&str> = table.json["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .filter(|column| column["priority"] == 0)
        .map(|column| column["name"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(columns, ["Name", "Ready", "Status", "Restarts", "Age"]);
    let row = &table.json["rows"][0];
    assert_eq!(row["cells"][0], "p");
    assert_eq!(row["cells"][1], "0/1");
    assert_eq!(row["cells"][2], "Pending");
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let bad = t
        .ask(Method::GET, format!("{}?includeObject=bad", t.core("pods")))
        .accept(TABLE);
    bad.send().await.refused(400, "BadRequest");
}

#[tokio::test]
async fn case_017_custom_columns_are_typed() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    let mut full = widget(&group, "full");
    full["spec"] = json!({"size": 3});
    t.post(&widgets, &full).await.expect(201);
    t.post(&widgets, &widget(&group, "none")).await.expect(201);
    let table = t.ask(Method::GET, &widgets).accept(TABLE).send().await;
    let columns = table.expect(200)["columnDefinitions"]
        .as_array()
        .expect("columns")
        .clone();
    let at = columns
        .iter()
        .position(|column| column["name"] == "Size")
        .expect("the column");
    assert_eq!(columns[at]["type"], "integer");
    assert_eq!(table.json["rows"][0]["cells"][at], 3);
    assert!(table.json["rows"][1]["cells"][at].is_null());
}

#[tokio::test]
async fn case_018_large_lists_and_objects_are_compressed_on_demand() {
    let t = Target::start().await;
    let large = "large enough to be worth it ".repeat(3000);
    for name in ["a", "b"] {
        let object = json!({"metadata": {"name": name}, "data": {"k": large, "l": large}});
        t.post(t.config_maps(), &object).await.expect(201);
    }
    let list = t.config_maps();
    let cases = [
        (list.clone(), "gzip", true),
        (format!("{list}?limit=1"), "deflate, gzip", true),
        (format!("{list}/a"), "gzip", true),
        (list.clone(), "identity", false),
        (format!("{list}?labelSelector=none"), "gzip", false),
    ];
    for (path, accepted, compressed) in cases {
        let ask = t.ask(Method::GET, &*path);
        let answer = ask.header("accept-encoding", accepted).send().await;
        assert_eq!(answer.code, 200, "{path}");
        assert_eq!(
            answer.header("content-encoding") == "gzip",
            compressed,
            "{path} {accepted}"
        );
        if compressed {
            assert!(answer.header("vary").contains("Accept-Encoding"), "{path}");
            let mut text = String::new();
            let mut decoder = GzDecoder::new(&answer.bytes[..]);
            decoder
                .read_to_string(&mut text)
                .expect("one member of UTF-8");
            let sent: Value = serde_json::from_str(&text).expect("JSON");
            let plain = t.get(&*path).await;
            assert_eq!(sent, *plain.expect(200), "{path}");
        }
    }
    let path = format!("{list}?watch=true&resourceVersion=0");
    let mut watch = t
        .ask(Method::GET, path)
        .header("accept-encoding", "gzip")
        .watch()
        .await;
    assert_eq!(
        watch.next().await.kind,
        "ADDED",
        "it can be read as it comes"
    );
}

#[tokio::test]
async fn case_019_bodies_of_unknown_types() {
    let t = Target::start().await;
    let post = t
        .ask(Method::POST, t.config_maps())
        .body("text/plain", "x")
        .send()
        .await;
    post.refused(415, "UnsupportedMediaType");
    t.config_map("a").await;
    let path = format!("{}/a", t.config_maps());
    let patch = t
        .ask(Method::PATCH, path)
        .body("application/json", "{}")
        .send()
        .await;
    patch.refused(415, "UnsupportedMediaType");
}

#[tokio::test]
async fn case_020_custom_resources_have_no_strategic_patch() {
    let t = Target::start().await;
    let (definition, group) = definition();
    establish(&t, &definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{}/widgets", t.namespace);
    t.post(&widgets, &widget(&group, "w")).await.expect(201);
    let answer = t.patch(format!("{widgets}/w"), STRATEGIC, &json!({})).await;
    answer.refused(415, "UnsupportedMediaType");
    for media in [JSON_PATCH, MERGE, "application/apply-patch+yaml"] {
        assert!(answer.text.contains(media), "{answer:?}");
    }
}

#[tokio::test]
async fn case_021_bodies_in_yaml_and_protobuf_are_as_in_json() {
    let t = Target::start().await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\ndata:\n  a: |\n    b\n";
    let answer = t
        .ask(Method::POST, t.config_maps())
        .body("application/yaml", yaml)
        .send()
        .await;
    assert_eq!(answer.expect(201)["data"]["a"], "b\n");
    let post = |body: Vec<u8>| {
        t.ask(Method::POST, t.config_maps())
            .body(PROTOBUF, body)
            .send()
    };
    let entry = [field(1, b"k"), field(2, b"v")].concat();
    let object = [field(1, &field(1, b"binary")), field(2, &entry)].concat();
    let answer = post(enveloped("ConfigMap", &object)).await;
    assert_eq!(answer.expect(201)["data"], json!({"k": "v"}));
    assert_eq!(answer.json["metadata"]["name"], "binary");
    post(b"k8s\0\xff".to_vec()).await.refused(400, "BadRequest");
}

/// A length-delimited field of fewer than 128 bytes.
pub(crate) fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("the content is short");
    [&[number << 3 | 2, length], content].concat()
}

/// An object of the core group in its protobuf envelope.
pub(crate) fn enveloped(kind: &str, object: &[u8]) -> Vec<u8> {
    let meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, object)].concat()
}
