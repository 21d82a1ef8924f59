use serde_json::json;

use super::*;

fn spec(value: Value) -> ProxySpec {
    serde_json::from_value(value).expect("a readable spec")
}

fn canonical(value: Value) -> String {
    canonical_json(&input(&spec(value), None, None))
}

fn hash(value: Value) -> SpecHash {
    spec_hash(&spec(value), None, None)
}

fn pod_spec() -> Value {
    json!({
        "provider": "kubernetes",
        "protocol": "socks5",
        "machine": {
            "image": "registry.example/squid:6",
            "diskSizeGiB": 20,
            "kubernetes": {
                "args": ["-N", ""],
                "resources": { "limits": { "memory": "128Mi", "cpu": 1 } },
                "tolerations": [{}],
            },
        },
        "tags": { "team": "crawl", "a": "" },
        "rotation": { "nonce": "2", "maxAgeSeconds": 600 },
    })
}

#[test]
fn r09_golden_canonical_texts() {
    let cases = [
        (
            json!({ "provider": "kubernetes" }),
            r#"{"port":3128,"provider":"kubernetes"}"#,
        ),
        (
            json!({ "provider": "gce", "protocol": "socks5" }),
            r#"{"port":1080,"protocol":"socks5","provider":"gce"}"#,
        ),
        (
            pod_spec(),
            concat!(
                r#"{"machine":{"diskSizeGiB":20,"image":"registry.example/squid:6","#,
                r#""kubernetes":{"args":["-N",""],"resources":{"limits":{"cpu":"1","#,
                r#""memory":"128Mi"}},"tolerations":[{}]}},"port":1080,"protocol":"socks5","#,
                r#""provider":"kubernetes","rotation":{"nonce":"2"},"#,
                r#""tags":{"a":"","team":"crawl"}}"#,
            ),
        ),
        (
            json!({ "provider": "gce", "machine": {
                "spot": true, "publicIP": false, "gce": { "networkTier": "STANDARD" },
            } }),
            concat!(
                r#"{"machine":{"gce":{"networkTier":"STANDARD"},"publicIP":false,"spot":true},"#,
                r#""port":3128,"provider":"gce"}"#,
            ),
        ),
        // Quotes, control characters and letters beyond ASCII stand as JSON has them.
        (
            json!({ "provider": "sim", "rotation": { "nonce": "ä\"\\\n" } }),
            r#"{"port":3128,"provider":"sim","rotation":{"nonce":"ä\"\\\n"}}"#,
        ),
    ];
    for (given, expected) in cases {
        assert_eq!(canonical(given.clone()), expected, "{given}");
    }
}

#[test]
fn r09_golden_vectors() {
    let cloud_init = b"#cloud-config\n".as_slice();
    let credentials = Credentials {
        username: b"crawler",
        password: b"s3cret",
    };
    let least = json!({ "provider": "kubernetes" });
    let cases = [
        (
            spec_hash(&spec(least.clone()), None, None),
            "v1:309dd9dadb62531bef25737875a9c9c4b4c2a47601fb36cf556e40100faef413",
        ),
        (
            spec_hash(&spec(least.clone()), Some(cloud_init), None),
            "v1:561553d54e86ad14da35a87732f1fe6dfca15a39db5e317cf4aad137844a5111",
        ),
        (
            spec_hash(&spec(least), None, Some(credentials)),
            "v1:c053793b4444ec1561e4210b9e94e1e2dbe1cf8a25126ff20fbfdc4f3ae1078c",
        ),
        (
            spec_hash(&spec(pod_spec()), Some(cloud_init), Some(credentials)),
            "v1:b0eb176a37030d80fc3343ac0201f5925544d61a5a081825135be7ffcddcab5a",
        ),
    ];
    for (computed, golden) in cases {
        assert_eq!(computed.annotation(), golden);
        let digits = golden.strip_prefix("v1:").expect("version and digits");
        assert_eq!(computed.tag(), format!("v1-{}", &digits[..40]));
    }
}

#[test]
fn r09_defaults_and_absent_fields_do_not_change_the_hash() {
    let least = hash(json!({ "provider": "gce" }));
    for same in [
        json!({ "protocol": "http" }),
        json!({ "port": 3128 }),
        json!({ "machine": {} }),
        json!({ "machine": { "diskSizeGiB": 10, "spot": false, "publicIP": true } }),
        json!({ "machine": { "gce": { "network": "default", "networkTier": "PREMIUM" } } }),
        json!({ "machine": { "kubernetes": { "args": [], "nodeSelector": {}, "tolerations": [] } } }),
        json!({ "tags": {} }),
        json!({ "rotation": { "nonce": "" } }),
        json!({ "cloudInit": { "inline": "text that only its bytes count for" } }),
    ] {
        let mut value = same.clone();
        value["provider"] = json!("gce");
        assert_eq!(hash(value), least, "{same}");
    }
}

#[test]
fn r09_what_is_not_the_machine_does_not_change_the_hash() {
    let least = hash(json!({ "provider": "gce" }));
    for same in [
        json!({ "healthCheck": { "urls": ["http://example.com"], "timeoutSeconds": 3 } }),
        json!({ "lease": { "maxConcurrent": 9 } }),
        json!({ "location": { "country": "DE" } }),
        json!({ "rotation": { "maxAgeSeconds": 600 } }),
        json!({ "paused": true }),
    ] {
        let mut value = same.clone();
        value["provider"] = json!("gce");
        assert_eq!(hash(value), least, "{same}");
    }
}

#[test]
fn r09_whatever_makes_another_machine_changes_the_hash() {
    let cloud_init =
        |text: &'static str| spec_hash(&ProxySpec::default(), Some(text.as_bytes()), None);
    let login = |username: &'static str, password: &'static str| {
        let credentials = Credentials {
            username: username.as_bytes(),
            password: password.as_bytes(),
        };
        spec_hash(&ProxySpec::default(), None, Some(credentials))
    };
    let all = [
        hash(json!({})),
        hash(json!({ "provider": "gce" })),
        hash(json!({ "protocol": "https" })),
        hash(json!({ "protocol": "socks5" })),
        hash(json!({ "port": 8080 })),
        hash(json!({ "machine": { "size": "small" } })),
        hash(json!({ "machine": { "image": "small" } })),
        hash(json!({ "machine": { "spot": true } })),
        hash(json!({ "machine": { "publicIP": false } })),
        hash(json!({ "machine": { "kubernetes": { "command": ["a"] } } })),
        hash(json!({ "machine": { "kubernetes": { "args": ["a"] } } })),
        hash(json!({ "machine": { "kubernetes": { "args": ["a", ""] } } })),
        hash(json!({ "tags": { "a": "" } })),
        hash(json!({ "tags": { "a": "b" } })),
        hash(json!({ "rotation": { "nonce": "1" } })),
        cloud_init(""),
        cloud_init("a"),
        login("a", "b"),
        login("ab", ""),
        login("", "ab"),
    ];
    for (n, one) in all.iter().enumerate() {
        for other in &all[n + 1..] {
            assert_ne!(one, other);
        }
    }
}

#[test]
fn r09_a_hash_read_back_from_a_tag_stands_in_the_annotation() {
    let wanted = hash(pod_spec());
    let other = hash(json!({}));
    let from_tag = SpecHash::from_tag(&wanted.tag()).expect("a tag written here");
    assert_eq!(
        from_tag.annotation(),
        wanted.annotation()[.."v1:".len() + 40]
    );
    assert_eq!(from_tag.tag(), wanted.tag());
    assert_eq!(wanted.annotation().parse(), Ok(wanted.clone()));

    assert_eq!(wanted.compare(&wanted.annotation()), Comparison::Same);
    assert_eq!(wanted.compare(&from_tag.annotation()), Comparison::Same);
    assert_eq!(from_tag.compare(&wanted.annotation()), Comparison::Same);
    assert_eq!(wanted.compare(&other.annotation()), Comparison::Differs);
    assert_eq!(from_tag.compare(&other.annotation()), Comparison::Differs);
}

#[test]
fn r10_another_version_is_no_reason_to_replace() {
    let wanted = hash(json!({}));
    let digits = "0".repeat(64);
    for recorded in [
        format!("v2:{digits}"),
        format!("v0:{digits}"),
        format!("v10:{}", &digits[..40]),
        format!("v1-{digits}"),
        format!("v1:{}", &digits[..39]),
        format!("v1:{digits}0"),
        format!("v1:{}", "A".repeat(64)),
        format!("v1:{}", "ä".repeat(40)),
        format!("1:{digits}"),
        "v1:".to_owned(),
        "nonsense".to_owned(),
        String::new(),
    ] {
        assert_eq!(
            wanted.compare(&recorded),
            Comparison::OtherVersion,
            "{recorded}"
        );
    }
    assert_eq!(wanted.compare(&format!("v1:{digits}")), Comparison::Differs);
}

#[test]
fn a_tag_is_a_label_value() {
    let tag = hash(json!({})).tag();
    assert!(
        tag.len() <= 63 && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
        "{tag}"
    );
}

#[test]
fn credentials_do_not_show() {
    let shown = format!(
        "{:?}",
        Credentials {
            username: b"crawler",
            password: b"hunter2"
        }
    );
    assert!(
        !shown.contains("crawler") && !shown.contains("hunter2"),
        "{shown}"
    );
}
