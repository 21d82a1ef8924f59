//! The definition itself: its files, its names, its bounds.

use std::path::{Path, PathBuf};

use proxy_operator::api;
use serde_json::{Value, json};

/// For kustomize and for helm, which takes definitions from within the chart alone.
fn files() -> [PathBuf; 2] {
    ["crds", "charts/proxy-operator/crds"].map(|folder| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(folder)
            .join("proxies.crawl.proxyoperator.dev.yaml")
    })
}

/// Set `BLESS=1` to write the files instead of comparing them.
#[test]
fn the_files_in_crds_and_in_the_chart_equal_the_code() {
    let text = api::crd_yaml().expect("a definition can be written");
    for file in files() {
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, &text).expect("the folder is there");
        }
        let present = std::fs::read_to_string(&file).expect("the file is there");
        assert!(
            present == text,
            "run this test with BLESS=1 to write {}",
            file.display()
        );
    }
}

/// A part of the schema of `status`, by the path of a field such as `latch.generation`.
fn of_status(path: &str) -> Value {
    let definition = serde_json::to_value(api::crd()).expect("plain texts");
    let root = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
    let below = path.replace('.', "/properties/");
    let found = definition.pointer(&format!("{root}/properties/{below}"));
    found.cloned().unwrap_or_default()
}

#[test]
fn c07_the_status_has_each_field_in_its_type() {
    for (path, kind) in [
        ("phase", "string"),
        ("observedGeneration", "integer"),
        ("provider", "string"),
        ("providerID", "string"),
        ("instanceUID", "string"),
        ("operation", "string"),
        ("createAttempts", "integer"),
        ("attemptOpen", "boolean"),
        ("failureStreak", "integer"),
        ("ip", "string"),
        ("endpoint.host", "string"),
        ("endpoint.port", "integer"),
        ("endpoint.protocol", "string"),
        ("conditions", "array"),
        ("latch.generation", "integer"),
        ("latch.inputHash", "string"),
        ("latch.retryNonce", "string"),
        ("health.state", "string"),
        ("health.exitIP", "string"),
        ("health.latencyMsP50", "integer"),
        ("health.successRatioPercent", "integer"),
        ("health.lastTransitionTime", "string"),
        ("health.lastError.class", "string"),
        ("health.lastError.message", "string"),
        ("replacements.count24h", "integer"),
        ("replacements.lastTime", "string"),
        ("replacements.lastReason", "string"),
    ] {
        assert_eq!(of_status(path)["type"], kind, "status.{path}");
    }
    // Conditions are one for each type, and say of which generation they speak.
    let conditions = of_status("conditions");
    assert_eq!(conditions["x-kubernetes-list-type"], "map");
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
    let of_each = &conditions["items"]["properties"];
    assert_eq!(of_each["observedGeneration"]["type"], "integer");
    assert_eq!(of_status("health.lastError.message")["maxLength"], 256.0);
}

#[test]
fn c09_finalizer_and_annotations_have_their_names_and_are_documented() {
    let text = include_str!("../../docs/proxy.md");
    for (name, want) in [
        (api::FINALIZER, "instance-cleanup"),
        (api::SPEC_HASH_ANNOTATION, "spec-hash"),
        (api::RETRY_ANNOTATION, "retry"),
        (api::SKIP_REPLACEMENT_ANNOTATION, "skip-replacement"),
        (api::ABANDON_INSTANCE_ANNOTATION, "abandon-instance"),
    ] {
        assert_eq!(name, format!("{}/{want}", api::GROUP));
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}
