//! Bodies as typed clients send them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A length-delimited field.
fn bytes(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend_from_slice(content);
    out
}

fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn enveloped(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let meta = [bytes(1, api_version), bytes(2, kind)].concat();
    [
        MAGIC.to_vec(),
        bytes(1, meta),
        bytes(2, object),
        bytes(3, ""),
        bytes(4, ""),
    ]
    .concat()
}

fn named(name: &str) -> Vec<u8> {
    // The creation time cannot be left out: it is an empty message.
    bytes(1, [bytes(1, name), bytes(2, ""), bytes(8, "")].concat())
}

#[test]
fn a_config_map_is_as_its_json() {
    let entry = [bytes(1, "k"), bytes(2, "v")].concat();
    let binary = [bytes(1, "b"), bytes(2, [0xff])].concat();
    let object = [named("c"), bytes(2, entry), bytes(3, binary), varint(4, 0)].concat();
    let decoded = decode(&enveloped("v1", "ConfigMap", &object)).unwrap();
    assert_eq!(
        decoded,
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
            "data": {"k": "v"}, "binaryData": {"b": "/w=="}, "immutable": false,
        })
    );
}

#[test]
fn inlined_messages_quantities_and_ports_of_a_pod() {
    // volumes: name and an inlined source with emptyDir.
    let volume = [bytes(1, "tmp"), bytes(2, bytes(2, ""))].concat();
    let port = [varint(2, 0), varint(3, 80), bytes(4, "TCP")].concat();
    let limit = [bytes(1, "cpu"), bytes(2, bytes(1, "100m"))].concat();
    let resources = bytes(1, limit);
    // readinessProbe: the inlined handler with httpGet { path, port }.
    let get = [bytes(1, "/ready"), bytes(2, varint(2, 80))].concat();
    let probe = bytes(1, bytes(2, get));
    let container = [
        bytes(1, "c"),
        bytes(2, "i:1"),
        bytes(6, port),
        bytes(8, resources),
        bytes(11, probe),
    ]
    .concat();
    let spec = [
        bytes(1, volume),
        bytes(2, container),
        varint(4, 0),
        varint(11, 0),
    ]
    .concat();
    let object = [named("p"), bytes(2, spec), bytes(3, "")].concat();
    let decoded = decode(&enveloped("v1", "Pod", &object)).unwrap();
    assert_eq!(
        decoded["spec"],
        json!({
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "containers": [{
                "name": "c", "image": "i:1", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "100m"}},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 80}},
            }],
            // Optional by pointer: zero is a value; the host's network is not.
            "terminationGracePeriodSeconds": 0,
        })
    );
    assert_eq!(decoded["status"], json!({}));
}

#[test]
fn leases_keep_microseconds() {
    let time = [
        vec![1 << 3, 0x80, 0xb9, 0xc5, 0xcb, 0x06],
        vec![2 << 3, 0xc0, 0x84, 0x3d],
    ]
    .concat();
    let spec = [bytes(1, "holder"), bytes(4, time)].concat();
    let decoded = decode(&enveloped(
        "coordination.k8s.io/v1",
        "Lease",
        &[named("l"), bytes(2, spec)].concat(),
    ));
    let renewed = decoded.unwrap()["spec"]["renewTime"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(renewed.ends_with(".001000Z"), "{renewed}");
}

#[test]
fn delete_options_are_known_in_every_group() {
    let options = [varint(1, 5), bytes(4, "Foreground")].concat();
    for version in ["v1", "meta.k8s.io/v1", "apps/v1"] {
        let decoded = decode(&enveloped(version, "DeleteOptions", &options)).unwrap();
        assert_eq!(decoded["gracePeriodSeconds"], 5);
        assert_eq!(decoded["propagationPolicy"], "Foreground");
    }
}

#[test]
fn bad_bodies_are_refused_with_the_cause() {
    let unknown = decode(&enveloped("example.com/v1", "Widget", b""));
    assert!(matches!(unknown, Err(Error::UnknownKind { .. })));
    assert_eq!(decode(b"{}"), Err(Error::Prefix));
    let whole = enveloped("v1", "ConfigMap", &named("c"));
    assert_eq!(decode(&whole[..whole.len() - 8]), Err(Error::Damaged));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let _outcome = decode(&enveloped("v1", "Pod", &noise));
        let _outcome = decode(&[MAGIC, &noise].concat());
        let definition = enveloped("apiextensions.k8s.io/v1", "CustomResourceDefinition", &noise);
        let _outcome = decode(&definition);
    }
}
