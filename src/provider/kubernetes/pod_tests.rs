use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::api::{Machine, Protocol, ProxySpec, defaults, spec_hash, validation};
use crate::provider::{CloudInit, Credentials, Redacted};

fn request(machine: Value) -> CreateRequest {
    let machine: Machine = serde_json::from_value(machine).expect("a machine");
    CreateRequest {
        owner: Owner {
            cluster_id: Arc::from("cluster-1"),
            uid: "6f9619ff-8b86-d011-b42d-00c04fc964ff".to_owned(),
            namespace: "crawl".to_owned(),
            proxy: "eu-1".to_owned(),
        },
        spec_hash: spec_hash(&ProxySpec::default(), None, None),
        attempt: 1,
        resent: false,
        machine,
        protocol: Protocol::Http,
        port: 3128,
        cloud_init: None,
        credentials: None,
        tags: BTreeMap::new(),
    }
}

fn built(request: &CreateRequest) -> Value {
    let pod = build_pod(request, Some("proxy:1")).expect("an image is there");
    serde_json::to_value(pod).expect("a pod")
}

#[test]
fn p10_the_pod_is_named_and_labelled_after_its_proxy() {
    let pod = built(&request(json!({})));
    assert_eq!(
        pod["metadata"]["name"],
        "px-6f9619ff-8b86-d011-b42d-00c04fc964ff"
    );
    assert_eq!(pod["metadata"]["namespace"], "crawl");
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["crawl.proxyoperator.dev/cluster"], "cluster-1");
    assert_eq!(
        labels["crawl.proxyoperator.dev/proxy-uid"],
        "6f9619ff-8b86-d011-b42d-00c04fc964ff"
    );
    assert_eq!(labels["crawl.proxyoperator.dev/proxy"], "eu-1");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "proxy-operator");
    let hash = labels["crawl.proxyoperator.dev/spec-hash"]
        .as_str()
        .expect("a text");
    assert!(hash.starts_with("v1-") && hash.len() == 43, "{hash}");
    assert_eq!(
        pod["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy", "name": "eu-1",
            "uid": "6f9619ff-8b86-d011-b42d-00c04fc964ff", "controller": true,
            "blockOwnerDeletion": true,
        }]),
    );
}

#[test]
fn p05_user_tags_become_labels_and_cannot_pass_for_the_operators() {
    let mut request = request(json!({}));
    request.tags = BTreeMap::from([
        ("team".to_owned(), "crawl".to_owned()),
        (LABEL_UID.to_owned(), "forged".to_owned()),
        (LABEL_MANAGED_BY.to_owned(), "forged".to_owned()),
    ]);
    let labels = &built(&request)["metadata"]["labels"];
    assert_eq!(labels["team"], "crawl");
    assert_eq!(labels[LABEL_UID], request.owner.uid);
    assert_eq!(labels[LABEL_MANAGED_BY], MANAGED_BY);
}

#[test]
fn p10_the_pod_passes_the_restricted_security_level_and_mounts_no_token() {
    let pod = built(&request(json!({})));
    let spec = &pod["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["enableServiceLinks"], false);
    assert_eq!(spec["restartPolicy"], "Always");
    assert_eq!(spec["terminationGracePeriodSeconds"], 30);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        spec["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let container = &spec["containers"][0]["securityContext"];
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["runAsUser"], 65532);
    assert_eq!(container["runAsNonRoot"], true);
    assert_eq!(container["capabilities"], json!({ "drop": ["ALL"] }));
    assert_eq!(container["seccompProfile"]["type"], "RuntimeDefault");
    for absent in ["hostNetwork", "hostPID", "hostIPC", "volumes"] {
        assert!(spec.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn p10_the_container_has_the_named_port_a_readiness_probe_and_no_liveness_probe() {
    let mut request = request(json!({}));
    request.port = 8888;
    request.protocol = Protocol::Socks5;
    let pod = built(&request);
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["image"], "proxy:1");
    assert_eq!(
        container["ports"],
        json!([{ "name": "proxy", "containerPort": 8888, "protocol": "TCP" }]),
    );
    assert_eq!(container["readinessProbe"]["tcpSocket"]["port"], "proxy");
    assert_eq!(container["readinessProbe"]["periodSeconds"], 5);
    assert!(container.get("livenessProbe").is_none());
    assert_eq!(
        container["resources"],
        json!({ "requests": { "cpu": "50m", "memory": "64Mi" },
                "limits": { "cpu": "500m", "memory": "128Mi" } }),
    );
    assert_eq!(
        container["env"],
        json!([{ "name": "PROXY_PORT", "value": "8888" },
               { "name": "PROXY_PROTOCOL", "value": "socks5" }]),
    );
}

#[test]
fn p10_settings_of_the_machine_win_over_the_defaults() {
    let pod = built(&request(json!({
        "image": "own:2",
        "kubernetes": {
            "command": ["/proxy"], "args": ["--port", "$(PROXY_PORT)"],
            "resources": { "limits": { "cpu": "1" } },
            "nodeSelector": { "pool": "proxies" },
            "tolerations": [{ "key": "proxies", "operator": "Exists" }],
            "serviceAccountName": "proxy", "priorityClassName": "low", "runtimeClassName": "vm",
        },
    })));
    let spec = &pod["spec"];
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "own:2");
    assert_eq!(container["command"], json!(["/proxy"]));
    assert_eq!(container["args"], json!(["--port", "$(PROXY_PORT)"]));
    assert_eq!(container["resources"], json!({ "limits": { "cpu": "1" } }));
    assert_eq!(spec["nodeSelector"], json!({ "pool": "proxies" }));
    assert_eq!(
        spec["tolerations"],
        json!([{ "key": "proxies", "operator": "Exists" }])
    );
    assert_eq!(spec["serviceAccountName"], "proxy");
    assert_eq!(spec["priorityClassName"], "low");
    assert_eq!(spec["runtimeClassName"], "vm");
}

#[test]
fn p10_without_any_image_the_error_names_the_flag() {
    let error = build_pod(&request(json!({})), None).expect_err("no image");
    assert_eq!(error.reason(), Reason::NotConfigured);
    assert!(error.message().contains("--default-proxy-image"), "{error}");
    assert!(error.message().contains("spec.machine.image"), "{error}");
}

#[test]
fn p11_user_data_of_a_secret_is_mounted_from_that_secret() {
    let mut request = request(json!({}));
    let source = SecretKey {
        name: "boot".to_owned(),
        key: "script".to_owned(),
    };
    let bytes = Redacted::new(b"echo secret-word".to_vec());
    request.cloud_init = Some(CloudInit {
        bytes,
        source: Some(source),
    });
    let pod = built(&request);
    assert_eq!(
        pod["spec"]["volumes"][0]["secret"],
        json!({ "secretName": "boot", "defaultMode": 0o444,
                "items": [{ "key": "script", "path": "user-data" }] }),
    );
    assert_eq!(
        pod["spec"]["containers"][0]["volumeMounts"],
        json!([{ "name": "cloud-init", "mountPath": "/etc/proxy-operator/cloud-init",
                 "readOnly": true }]),
    );
    assert!(
        !pod.to_string().contains("secret-word"),
        "content belongs into the Secret alone"
    );
    assert_eq!(build_inline_secret(&request), None);
}

#[test]
fn p11_inline_user_data_goes_into_an_owned_secret_that_never_changes() {
    let mut request = request(json!({}));
    let bytes = Redacted::new(b"echo secret-word".to_vec());
    request.cloud_init = Some(CloudInit {
        bytes,
        source: None,
    });
    let secret = build_inline_secret(&request).expect("there is data to carry");
    let name = format!("{}-ci", request.owner.instance_name());
    assert_eq!(secret.metadata.name.as_deref(), Some(name.as_str()));
    assert_eq!(secret.immutable, Some(true));
    assert_eq!(
        secret.data.expect("data")["user-data"].0,
        b"echo secret-word"
    );
    assert_eq!(
        secret.metadata.owner_references.expect("owned")[0].uid,
        request.owner.uid
    );
    let pod = build_pod(&request, Some("proxy:1")).expect("an image is there");
    assert_eq!(inline_secret_of(&pod), Some(name.as_str()));
    assert!(
        !serde_json::to_string(&pod)
            .expect("a pod")
            .contains("secret-word")
    );
}

#[test]
fn p11_credentials_reach_the_container_by_reference_alone() {
    let mut request = request(json!({}));
    let of = |key: &str| SecretKey {
        name: "users".to_owned(),
        key: key.to_owned(),
    };
    request.credentials = Some(Credentials {
        username: Redacted::new(b"me".to_vec()),
        password: Redacted::new(b"secret-word".to_vec()),
        username_source: of("username"),
        password_source: of("password"),
    });
    let pod = built(&request);
    let env = pod["spec"]["containers"][0]["env"]
        .as_array()
        .expect("a list");
    assert_eq!(
        env[3],
        json!({ "name": "PROXY_PASSWORD", "valueFrom": { "secretKeyRef":
            { "name": "users", "key": "password", "optional": false } } }),
    );
    assert_eq!(env[2]["name"], "PROXY_USERNAME");
    assert!(!pod.to_string().contains("secret-word"));
}

/// The Proxies of docs/images.md by name, each as the request that it leads to.
fn templates() -> Vec<CreateRequest> {
    let text = include_str!("../../../docs/images.md");
    let blocks = text
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next());
    blocks
        .map(|block| {
            let proxy: Proxy =
                serde_saphyr::from_str(block.expect("a block ends")).expect("a Proxy");
            assert_eq!(
                validation::validate(&proxy),
                [],
                "{:?}",
                proxy.metadata.name
            );
            let spec = &proxy.spec;
            let mut request = request(json!({}));
            request.owner.proxy = proxy.metadata.name.clone().expect("a name");
            request.machine = defaults::resolved_machine(spec).into_owned();
            request.protocol = spec.protocol;
            request.port = defaults::resolved_port(spec);
            let inline = spec
                .cloud_init
                .as_ref()
                .and_then(|data| data.inline.clone());
            request.cloud_init = inline.map(|text| CloudInit {
                bytes: Redacted::new(text.into_bytes()),
                source: None,
            });
            request.credentials = spec.auth.as_ref().map(|auth| {
                let of = |key: &str| SecretKey {
                    name: auth.secret_ref.name.clone(),
                    key: key.to_owned(),
                };
                Credentials {
                    username: Redacted::new(b"me".to_vec()),
                    password: Redacted::new(b"word".to_vec()),
                    username_source: of(&auth.secret_ref.username_key),
                    password_source: of(&auth.secret_ref.password_key),
                }
            });
            request
        })
        .collect()
}

#[test]
fn p11_the_documented_templates_give_these_containers() {
    let data = "/etc/proxy-operator/cloud-init/user-data";
    let want = [
        (
            "microsocks",
            1080,
            json!([
                "microsocks",
                "-i",
                "0.0.0.0",
                "-p",
                "$(PROXY_PORT)",
                "-u",
                "$(PROXY_USERNAME)",
                "-P",
                "$(PROXY_PASSWORD)"
            ]),
        ),
        (
            "gost",
            3128,
            json!(["-L=$(PROXY_PROTOCOL)://$(PROXY_USERNAME):$(PROXY_PASSWORD)@:$(PROXY_PORT)"]),
        ),
        ("three-proxy", 3128, json!(["3proxy", data])),
        ("tinyproxy", 8888, json!(["tinyproxy", "-d", "-c", data])),
        ("squid", 3128, json!(["squid", "-N", "-f", data])),
    ];
    let templates = templates();
    assert_eq!(templates.len(), want.len());
    for (request, (name, port, line)) in templates.iter().zip(want) {
        assert_eq!(request.owner.proxy, name);
        let pod = built(request);
        let container = &pod["spec"]["containers"][0];
        let part = |field: &str| container[field].as_array().cloned().unwrap_or_default();
        let mut found = part("command");
        found.extend(part("args"));
        assert_eq!(Value::from(found), line, "{name}");
        assert_eq!(container["ports"][0]["containerPort"], port, "{name}");
        // What an argument names is there: a variable of the container, or the mounted file.
        let text = line.to_string();
        for used in [
            "PROXY_PORT",
            "PROXY_PROTOCOL",
            "PROXY_USERNAME",
            "PROXY_PASSWORD",
        ] {
            let is_set = part("env").iter().any(|variable| variable["name"] == used);
            assert!(is_set || !text.contains(used), "{name} uses {used}");
        }
        assert_eq!(
            text.contains(data),
            !part("volumeMounts").is_empty(),
            "{name}"
        );
        // A configuration in the user data names the port that the pod says it has.
        if let Some(config) = &request.cloud_init {
            let config = String::from_utf8_lossy(config.bytes.expose()).into_owned();
            assert!(config.contains(&port.to_string()), "{name}: {config}");
        }
    }
}
