//! Manifests that the Proxy resource refuses or takes, as data for every server and for the checks in Rust.

use serde_json::{Value, json};

/// A manifest that is refused.
pub(crate) struct Refused {
    /// Number of the rule, or C-01 for a limit of the schema.
    pub(crate) rule: &'static str,
    /// What is wrong with it.
    pub(crate) what: &'static str,
    /// The object that the manifest replaces; without it the manifest is created.
    pub(crate) old: Option<Value>,
    /// The manifest.
    pub(crate) manifest: Value,
    /// Every refusal: the field and a part of the text.
    pub(crate) refusals: &'static [(&'static str, &'static str)],
}

/// A Proxy of the name `name`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers build the spec in place"
)]
fn proxy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "crawl.proxyoperator.dev/v1alpha1",
        "kind": "Proxy",
        "metadata": { "name": name, "namespace": "default" },
        "spec": spec,
    })
}

/// A good Managed spec with further fields.
fn managed(more: Value) -> Value {
    merged(json!({ "provider": "kubernetes" }), more)
}

/// A good External spec with further fields.
fn external(more: Value) -> Value {
    let endpoint = json!({ "host": "proxy.example.com", "port": 3128 });
    merged(json!({ "mode": "External", "endpoint": endpoint }), more)
}

fn external_at(host: &str) -> Value {
    json!({ "mode": "External", "endpoint": { "host": host, "port": 3128 } })
}

fn checking(urls: &[&str]) -> Value {
    managed(json!({ "healthCheck": { "urls": urls } }))
}

fn tagged(key: &str, value: &str) -> Value {
    managed(json!({ "tags": { key: value } }))
}

fn merged(mut base: Value, more: Value) -> Value {
    if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
        base.extend(more);
    }
    base
}

const HOST_ONLY: &[(&str, &str)] = &[(
    "spec.endpoint.host",
    "spec.endpoint.host must be a host only, without scheme, path, space or brackets; \
     write for example proxy.example.com, 192.0.2.7 or 2001:db8::7",
)];
const HOST_FORM: &[(&str, &str)] = &[(
    "spec.endpoint.host",
    "spec.endpoint.host must be a DNS name, an IPv4 address or a bare IPv6 address; \
     write the port in spec.endpoint.port",
)];
const ONE_SOURCE: &[(&str, &str)] = &[(
    "spec.cloudInit",
    "spec.cloudInit must have exactly one source; \
     write either spec.cloudInit.inline or spec.cloudInit.secretRef",
)];
const WEB_URL: &[(&str, &str)] = &[(
    "spec.healthCheck.urls[0]",
    "spec.healthCheck.urls must begin with http:// or https:// and a host; \
     write for example https://check.example.com/ip",
)];
const TAG_KEY: &[(&str, &str)] = &[(
    "spec.tags",
    "spec.tags must have keys that match ^[a-z]([a-z0-9_-]{0,61}[a-z0-9])?$; \
     write for example crawl-team",
)];

/// Manifests that break an admission rule, at least one for each of V1–V13.
pub(crate) fn refused_by_rules() -> Vec<Refused> {
    let new = |rule, what, spec, refusals| Refused {
        rule,
        what,
        old: None,
        manifest: proxy("refused", spec),
        refusals,
    };
    let mut cases = vec![
        new(
            "V1",
            "Managed without a provider",
            json!({ "mode": "Managed" }),
            &[(
                "spec.provider",
                "spec.provider is required when spec.mode is Managed; \
                write the name of a configured provider, such as kubernetes",
            )],
        ),
        new(
            "V1",
            "neither mode nor provider",
            json!({}),
            &[(
                "spec.provider",
                "spec.provider is required when spec.mode is Managed",
            )],
        ),
        new(
            "V1",
            "an explicit null for the provider",
            json!({ "provider": null }),
            &[(
                "spec.provider",
                "spec.provider is required when spec.mode is Managed",
            )],
        ),
        new(
            "V2",
            "External without an endpoint",
            json!({ "mode": "External" }),
            &[(
                "spec.endpoint",
                "spec.endpoint is required when spec.mode is External; \
                write the host and port of the proxy",
            )],
        ),
        new(
            "V3",
            "External with a provider",
            external(json!({ "provider": "kubernetes" })),
            &[(
                "spec.provider",
                "spec.provider is not allowed when spec.mode is External; \
                remove it, or set spec.mode to Managed",
            )],
        ),
        new(
            "V3",
            "External with a machine",
            external(json!({ "machine": { "zone": "eu-1a" } })),
            &[(
                "spec.machine",
                "spec.machine is not allowed when spec.mode is External",
            )],
        ),
        new(
            "V3",
            "External with user data",
            external(json!({ "cloudInit": { "inline": "#cloud-config" } })),
            &[(
                "spec.cloudInit",
                "spec.cloudInit is not allowed when spec.mode is External",
            )],
        ),
        new(
            "V3",
            "External with a rotation",
            external(json!({ "rotation": { "nonce": "1" } })),
            &[(
                "spec.rotation",
                "spec.rotation is not allowed when spec.mode is External",
            )],
        ),
        new(
            "V3",
            "External with a port",
            external(json!({ "port": 3128 })),
            &[(
                "spec.port",
                "spec.port is not allowed when spec.mode is External; \
                write the port in spec.endpoint.port",
            )],
        ),
        new(
            "V3",
            "External with everything that is Managed's",
            external(json!({
                "provider": "gce", "port": 1, "machine": {}, "rotation": {},
                "cloudInit": { "inline": "a" },
            })),
            &[
                ("spec.provider", "spec.provider is not allowed"),
                ("spec.machine", "spec.machine is not allowed"),
                ("spec.cloudInit", "spec.cloudInit is not allowed"),
                ("spec.rotation", "spec.rotation is not allowed"),
                ("spec.port", "spec.port is not allowed"),
            ],
        ),
        new(
            "V4",
            "Managed with an endpoint",
            managed(json!({ "endpoint": { "host": "192.0.2.7", "port": 3128 } })),
            &[(
                "spec.endpoint",
                "spec.endpoint is not allowed when spec.mode is Managed; \
                remove it, or set spec.mode to External",
            )],
        ),
        new(
            "V5",
            "user data from two sources",
            managed(json!({ "cloudInit": { "inline": "a", "secretRef": { "name": "b" } } })),
            ONE_SOURCE,
        ),
        new(
            "V5",
            "user data from no source",
            managed(json!({ "cloudInit": {} })),
            ONE_SOURCE,
        ),
        new(
            "V6",
            "a machine that is pod and virtual machine",
            managed(json!({ "machine": { "kubernetes": {}, "gce": {} } })),
            &[(
                "spec.machine",
                "spec.machine must not have both kubernetes and gce; \
                keep the one that spec.provider uses",
            )],
        ),
        new(
            "V8",
            "a timeout above the interval",
            managed(json!({ "healthCheck": { "timeoutSeconds": 20, "intervalSeconds": 15 } })),
            &[(
                "spec.healthCheck.timeoutSeconds",
                "spec.healthCheck.timeoutSeconds is 20, more \
                than spec.healthCheck.intervalSeconds, which is 15; \
                write a shorter timeout or a longer interval",
            )],
        ),
        new(
            "V8",
            "an interval below the default timeout",
            managed(json!({ "healthCheck": { "intervalSeconds": 5 } })),
            &[(
                "spec.healthCheck.timeoutSeconds",
                "spec.healthCheck.timeoutSeconds is 10, more \
                than spec.healthCheck.intervalSeconds, which is 5",
            )],
        ),
        new(
            "V9",
            "certificates for a proxy without TLS",
            managed(json!({ "tls": { "insecureSkipVerify": true } })),
            &[(
                "spec.tls",
                "spec.tls is only allowed when spec.protocol is https; \
                remove it, or set spec.protocol to https",
            )],
        ),
        new(
            "V9",
            "certificates for socks5",
            external(json!({ "protocol": "socks5", "tls": {} })),
            &[(
                "spec.tls",
                "spec.tls is only allowed when spec.protocol is https",
            )],
        ),
        new(
            "V10",
            "a tag of the operator",
            tagged("pxo-uid", "a"),
            &[(
                "spec.tags",
                "spec.tags must not have keys that begin with pxo-, \
                which the operator uses itself; write another prefix",
            )],
        ),
        new(
            "C-01",
            "a tag key with capitals",
            tagged("PXO_x", "a"),
            TAG_KEY,
        ),
        new(
            "C-01",
            "a tag key that starts with a digit",
            tagged("1a", "a"),
            TAG_KEY,
        ),
        new(
            "C-01",
            "a tag key that ends with a hyphen",
            tagged("a-", "a"),
            TAG_KEY,
        ),
        new(
            "C-01",
            "a tag key with a slash",
            tagged("example.com/a", "a"),
            TAG_KEY,
        ),
        new(
            "C-01",
            "a tag key of 64 characters",
            tagged(&"k".repeat(64), "a"),
            TAG_KEY,
        ),
        new("C-01", "a tag key that is empty", tagged("", "a"), TAG_KEY),
        new(
            "V11",
            "a host with a scheme",
            external_at("http://1.2.3.4"),
            HOST_ONLY,
        ),
        new(
            "V11",
            "a host with a path",
            external_at("proxy.example.com/x"),
            HOST_ONLY,
        ),
        new(
            "V11",
            "a host with a space",
            external_at("proxy example"),
            HOST_ONLY,
        ),
        new(
            "V11",
            "a host with a line break",
            external_at("proxy.example.com\n"),
            HOST_ONLY,
        ),
        new(
            "V11",
            "an IPv6 address in brackets",
            external_at("[2001:db8::7]"),
            HOST_ONLY,
        ),
        new(
            "V11",
            "a host with a port",
            external_at("192.0.2.7:3128"),
            HOST_FORM,
        ),
        new(
            "V11",
            "a host with a user",
            external_at("user@proxy.example.com"),
            HOST_FORM,
        ),
        new(
            "V11",
            "an IPv6 address with a zone",
            external_at("fe80::1%eth0"),
            HOST_FORM,
        ),
        new(
            "V11",
            "an IPv4 address in IPv6 form",
            external_at("::ffff:192.0.2.7"),
            HOST_FORM,
        ),
        new(
            "V11",
            "a host that ends with a hyphen",
            external_at("proxy-"),
            HOST_FORM,
        ),
        new(
            "V12",
            "a check URL of another scheme",
            checking(&["ftp://example.com/"]),
            WEB_URL,
        ),
        new(
            "V12",
            "a check URL without a scheme",
            checking(&["example.com/ip"]),
            WEB_URL,
        ),
        new(
            "V12",
            "a check URL without a host",
            checking(&["http:///ip"]),
            WEB_URL,
        ),
        new(
            "V12",
            "check URLs with user and password",
            checking(&[
                "https://example.com/a@b",
                "https://user:hunter2@example.com/",
            ]),
            &[(
                "spec.healthCheck.urls[1]",
                "spec.healthCheck.urls must not carry a user name \
                or password; remove what stands between // and @",
            )],
        ),
    ];
    cases.push(Refused {
        rule: "V7",
        what: "another provider while Managed",
        old: Some(proxy("refused", managed(json!({})))),
        manifest: proxy("refused", json!({ "provider": "gce" })),
        refusals: &[(
            "spec.provider",
            "spec.provider cannot change while spec.mode stays Managed; \
            write the former provider, or delete the Proxy and create it anew",
        )],
    });
    cases.push(Refused {
        rule: "V13",
        what: "a name of 64 characters",
        old: None,
        manifest: proxy(&"n".repeat(64), managed(json!({}))),
        refusals: &[(
            "metadata.name",
            "metadata.name must have at most 63 characters, \
            since it becomes a label of the machine; write a shorter name",
        )],
    });
    cases
}

/// Manifests that break a limit of the schema.
pub(crate) fn refused_by_limits() -> Vec<Refused> {
    let new = |what, spec, refusals| Refused {
        rule: "C-01",
        what,
        old: None,
        manifest: proxy("refused", spec),
        refusals,
    };
    let many_tags: serde_json::Map<String, Value> =
        (0..33).map(|n| (format!("t{n}"), json!("a"))).collect();
    vec![
        new(
            "no port 0",
            managed(json!({ "port": 0 })),
            &[("spec.port", "greater than or equal to 1")],
        ),
        new(
            "no port 70000",
            managed(json!({ "port": 70000 })),
            &[("spec.port", "less than or equal to 65535")],
        ),
        new(
            "no other mode",
            json!({ "mode": "Foreign" }),
            &[("spec.mode", "supported values: \"Managed\", \"External\"")],
        ),
        new(
            "no other protocol",
            managed(json!({ "protocol": "ftp" })),
            &[(
                "spec.protocol",
                "supported values: \"http\", \"https\", \"socks5\"",
            )],
        ),
        new(
            "no provider with capitals",
            managed(json!({ "provider": "GCE" })),
            &[("spec.provider", "should match")],
        ),
        new(
            "no tag value with capitals",
            tagged("team", "Crawl"),
            &[("spec.tags.team", "should match")],
        ),
        new(
            "no more than 32 tags",
            managed(json!({ "tags": many_tags })),
            &[("spec.tags", "must have at most 32 items")],
        ),
        new(
            "no more than three check URLs",
            checking(&["http://a", "http://b", "http://c", "http://d"]),
            &[("spec.healthCheck.urls", "must have at most 3 items")],
        ),
        new(
            "no interval below five seconds",
            managed(json!({ "healthCheck": { "intervalSeconds": 4, "timeoutSeconds": 1 } })),
            &[(
                "spec.healthCheck.intervalSeconds",
                "greater than or equal to 5",
            )],
        ),
        new(
            "no disk below 10 GiB",
            managed(json!({ "machine": { "diskSizeGiB": 9 } })),
            &[("spec.machine.diskSizeGiB", "greater than or equal to 10")],
        ),
        new(
            "no user data above 64 KiB",
            managed(json!({ "cloudInit": { "inline": "a".repeat(65537) } })),
            &[("spec.cloudInit.inline", "65536")],
        ),
        new(
            "no quantity in words",
            managed(json!({ "machine": { "kubernetes": {
                "resources": { "limits": { "cpu": "plenty" } },
            } } })),
            &[(
                "spec.machine.kubernetes.resources.limits.cpu",
                "should match",
            )],
        ),
        new(
            "no country of three letters",
            managed(json!({ "location": { "country": "DEU" } })),
            &[("spec.location.country", "2")],
        ),
        new(
            "no rotation faster than ten minutes",
            managed(json!({ "rotation": { "maxAgeSeconds": 599 } })),
            &[(
                "spec.rotation.maxAgeSeconds",
                "greater than or equal to 600",
            )],
        ),
        new(
            "no endpoint without a port",
            json!({ "mode": "External", "endpoint": { "host": "192.0.2.7" } }),
            &[("spec.endpoint.port", "Required value")],
        ),
        new(
            "no user data of a Secret without a name",
            managed(json!({ "cloudInit": { "secretRef": {} } })),
            &[("spec.cloudInit.secretRef.name", "Required value")],
        ),
    ]
}

/// Manifests that are taken; each with what it shows.
pub(crate) fn accepted() -> Vec<(&'static str, Value)> {
    vec![
        ("the least Managed", proxy("ok", managed(json!({})))),
        ("the least External", proxy("ok", external(json!({})))),
        (
            "a name of 63 characters",
            proxy(&"n".repeat(63), managed(json!({}))),
        ),
        ("an IPv4 address", proxy("ok", external_at("192.0.2.7"))),
        (
            "a bare IPv6 address",
            proxy("ok", external_at("2001:db8::7")),
        ),
        (
            "a host name with a final dot",
            proxy("ok", external_at("proxy.example.com.")),
        ),
        ("a host name of one letter", proxy("ok", external_at("a"))),
        (
            "a timeout equal to the interval",
            proxy(
                "ok",
                managed(json!({
                    "healthCheck": { "timeoutSeconds": 15, "intervalSeconds": 15 },
                })),
            ),
        ),
        (
            "a check URL in capitals, with an @ in its path and query",
            proxy(
                "ok",
                checking(&[
                    "HTTPS://example.com/a@b",
                    "http://[2001:db8::7]:8080/?q=a@b",
                    "http://example.com",
                ]),
            ),
        ),
        (
            "certificates for https",
            proxy(
                "ok",
                external(json!({
                    "protocol": "https",
                    "tls": { "serverName": "proxy.example.com", "caSecretRef": { "name": "ca" } },
                })),
            ),
        ),
        (
            "tags at their limits",
            proxy(
                "ok",
                managed(json!({ "tags": {
            "a": "", "pxo": "a", "pxo_uid": "1", ("k".repeat(63)): "v".repeat(63), "a-b_c1": "0",
        } })),
            ),
        ),
        (
            "every field of a pod",
            proxy(
                "ok",
                managed(json!({
                    "port": 8080,
                    "protocol": "socks5",
                    "auth": { "secretRef": { "name": "proxy-login" } },
                    "cloudInit": { "secretRef": { "name": "user-data", "key": "squid.conf" } },
                    "machine": {
                        "image": "registry.example/squid:6", "zone": "eu-1a", "region": "eu-1",
                        "kubernetes": {
                            "command": ["/usr/sbin/squid"], "args": ["-N", ""],
                            "resources": {
                                "requests": { "cpu": "50m", "memory": "64Mi" },
                                "limits": { "cpu": 1, "memory": "1.5Gi" },
                            },
                            "nodeSelector": { "example.com/pool": "Proxies" },
                            "tolerations": [
                                { "operator": "Exists" },
                                { "key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute",
                                  "tolerationSeconds": 30 },
                            ],
                            "serviceAccountName": "proxy", "priorityClassName": "low",
                            "runtimeClassName": "gvisor",
                        },
                    },
                    "location": { "country": "DE", "region": "eu", "city": "Köln" },
                    "rotation": { "maxAgeSeconds": 600, "nonce": "2" },
                    "healthCheck": {
                        "disabled": true, "urls": ["https://example.com/ip"], "method": "HEAD",
                        "expectedStatus": [204], "bodyContains": "ip", "intervalSeconds": 60,
                        "timeoutSeconds": 5, "successThreshold": 1, "failureThreshold": 1,
                        "startupGraceSeconds": 0, "maxLatencyMilliseconds": 900, "exitIP": "RequireOwn",
                        "requireAuth": true,
                        "unhealthyPolicy": { "action": "None", "afterSeconds": 60, "maxPerDay": 1 },
                    },
                    "lease": {
                        "disabled": true, "maxConcurrent": 5, "weight": 2, "maxTTLSeconds": 60,
                        "cooldownSeconds": 1, "perTarget": { "maxConcurrent": 1, "cooldownSeconds": 2 },
                        "drainSeconds": 0,
                    },
                    "paused": true,
                })),
            ),
        ),
        (
            "every field of a virtual machine",
            proxy(
                "ok",
                json!({
                    "provider": "gce-eu",
                    "cloudInit": { "inline": "#cloud-config\n" },
                    "machine": {
                        "size": "e2-micro", "image": "projects/debian-cloud/global/images/family/debian-13",
                        "zone": "europe-west3-a", "diskSizeGiB": 1024, "spot": true, "publicIP": false,
                        "gce": {
                            "network": "crawl", "subnetwork": "crawl-eu", "networkTags": ["proxy"],
                            "networkTier": "STANDARD", "diskType": "pd-balanced",
                            "serviceAccountEmail": "proxy@example.iam.gserviceaccount.com",
                            "scopes": ["https://www.googleapis.com/auth/logging.write"],
                            "minCpuPlatform": "Intel Ice Lake",
                        },
                    },
                }),
            ),
        ),
    ]
}

/// Changes that are taken: the object before and after, each with what it shows.
pub(crate) fn accepted_changes() -> Vec<(&'static str, Value, Value)> {
    let managed_one = proxy("ok", managed(json!({})));
    let external_one = proxy("ok", external(json!({})));
    let other_provider = proxy("ok", json!({ "provider": "gce" }));
    let larger = proxy("ok", managed(json!({ "machine": { "size": "large" } })));
    vec![
        (
            "Managed becomes External",
            managed_one.clone(),
            external_one.clone(),
        ),
        (
            "External becomes Managed with any provider",
            external_one,
            other_provider,
        ),
        ("another size while Managed", managed_one, larger),
    ]
}
