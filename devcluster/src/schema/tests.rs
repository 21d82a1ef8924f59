//! Answers recorded from a kube-apiserver 1.37.2, replayed against this crate.

use serde_json::{Value, json};

use super::*;

/// Reason, field and message of errors, in an order that does not depend on map iteration.
fn told(errors: &[FieldError]) -> Vec<String> {
    let mut told: Vec<String> = errors.iter().map(|error| line(&error.cause())).collect();
    told.sort_unstable();
    told
}

fn recorded(causes: &Value) -> Vec<String> {
    let mut told: Vec<String> = causes.as_array().into_iter().flatten().map(line).collect();
    told.sort_unstable();
    told
}

fn line(cause: &Value) -> String {
    let part = |key: &str| cause[key].as_str().unwrap_or_default();
    format!("{} {} {}", part("reason"), part("field"), part("message"))
}

#[test]
fn c5_c6_custom_resources_are_refused_in_the_words_of_the_real_server() {
    let recording: Value =
        serde_json::from_str(include_str!("recordings/widgets.json")).unwrap();
    let schema = CompiledSchema::compile(&recording["schema"], "").unwrap();
    let object = |name: &Value, spec: &Value| {
        let mut object = json!({
            "apiVersion": "test.example.com/v1", "kind": "Widget",
            "metadata": {"name": name}, "spec": spec,
        });
        schema.prune(&mut object);
        schema.apply_defaults(&mut object);
        object
    };
    let cases = recording["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let new = object(&case["name"], &case["spec"]);
        let old = case.get("old").map(|old| object(&case["name"], old));
        let errors = schema.validate(&new, old.as_ref());
        assert_eq!(told(&errors), recorded(&case["causes"]), "{}", case["case"]);
        if let Some(message) = case.get("message") {
            let name = case["name"].as_str().unwrap();
            let text = invalid_message("test.example.com", "Widget", name, &errors);
            assert_eq!(message, &text, "{}", case["case"]);
        }
    }
}
