//! Answers recorded from a kube-apiserver 1.37.2, replayed against this crate.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

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

/// Replays the cases of a recording of custom resources; gives those that differ.
fn replay(recording: &str, group: &str, version: &str, kind: &str) -> Vec<String> {
    let recording: Value = serde_json::from_str(recording).unwrap();
    let schema = CompiledSchema::compile(&recording["schema"], "").unwrap();
    let object = |name: &Value, spec: &Value| {
        let mut object = json!({
            "apiVersion": format!("{group}/{version}"), "kind": kind,
            "metadata": {"name": name}, "spec": spec,
        });
        schema.prune(&mut object);
        schema.apply_defaults(&mut object);
        object
    };
    let cases = recording["cases"].as_array().unwrap();
    assert!(cases.len() > 30);
    let mut differing = Vec::new();
    for case in cases {
        let new = object(&case["name"], &case["spec"]);
        let old = case.get("old").map(|old| object(&case["name"], old));
        let errors = schema.validate(&new, old.as_ref());
        let (ours, theirs) = (told(&errors), recorded(&case["causes"]));
        if ours != theirs {
            differing.push(format!("{}:\n  {ours:#?}\n  {theirs:#?}", case["case"]));
        }
        if let Some(message) = case.get("message").and_then(Value::as_str) {
            let name = case["name"].as_str().unwrap();
            let text = invalid_message(group, kind, name, &errors);
            if message != text {
                differing.push(format!("{}:\n  {text}\n  {message}", case["case"]));
            }
        }
        if let Some(result) = case.get("result")
            && *result != new["spec"]
        {
            differing.push(format!("{}:\n  {}\n  {result}", case["case"], new["spec"]));
        }
    }
    differing
}

#[test]
fn c5_c6_custom_resources_are_refused_in_the_words_of_the_real_server() {
    let recording = include_str!("recordings/widgets.json");
    let differing = replay(recording, "test.example.com", "v1", "Widget");
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// The rules V1–V13 of the Proxy resource, its limits and its defaults.
#[test]
fn c6_proxies_are_refused_and_defaulted_as_by_the_real_server() {
    let recording = include_str!("recordings/proxies.json");
    let differing = replay(recording, "crawl.proxyoperator.dev", "v1alpha1", "Proxy");
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// A message without what this crate words differently: positions within a rule, the parser's
/// and the regular expression engine's sentences, and schemas in the server's internal form.
fn without_foreign_words(line: &str) -> String {
    let line = line.split("\n | ").next().unwrap_or_default();
    if let Some(at) = line.find(": Syntax error") {
        return line[..at]
            .rsplit_once("ERROR")
            .map_or(line, |(head, _)| head)
            .to_owned();
    }
    let mut text = line.to_owned();
    if let (Some(start), Some(end)) = (text.find("ERROR: <input>:"), text.rfind(": ")) {
        text.replace_range(start..end + 2, "");
    }
    for (from, to) in [("[{\"Name\"", "]: must"), ("{\"", ": only [")] {
        if let (Some(start), Some(end)) = (text.find(from), text.rfind(to)) {
            text.replace_range(start..end, "…");
        }
    }
    match text.find("isn't: ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

#[test]
fn c2_definitions_are_refused_in_the_words_of_the_real_server() {
    let recording: Value =
        serde_json::from_str(include_str!("recordings/definitions.json")).unwrap();
    let cases = recording.as_array().unwrap();
    assert!(cases.len() > 60);
    let mut differing = Vec::new();
    for case in cases {
        let mut definition = case["definition"].clone();
        crd::apply_defaults(&mut definition);
        let errors = crd::validate(&definition, None);
        let cut = |lines: Vec<String>| -> Vec<String> {
            let mut lines: Vec<String> = lines
                .iter()
                .map(|line| without_foreign_words(line))
                .collect();
            lines.sort_unstable();
            lines
        };
        let (ours, theirs) = (cut(told(&errors)), cut(recorded(&case["causes"])));
        if ours != theirs {
            differing.push(format!("{}:\n  {ours:#?}\n  {theirs:#?}", case["case"]));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Rules at and beyond the limits of cost, on lists and maps without and with bounds.
#[test]
fn c6_expensive_rules_are_refused_with_the_factor_of_the_real_server() {
    let recording: Value = serde_json::from_str(include_str!("recordings/costs.json")).unwrap();
    let mut differing = Vec::new();
    for case in recording.as_array().unwrap() {
        let at = "spec.validation.openAPIV3Schema";
        let errors = CompiledSchema::compile(&case["schema"], at)
            .err()
            .unwrap_or_default();
        let (ours, theirs) = (told(&errors), recorded(&case["causes"]));
        if ours != theirs {
            differing.push(format!("{}:\n  {ours:#?}\n  {theirs:#?}", case["case"]));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Any JSON of a few levels, with names that schemas and resources give a meaning.
fn any_json() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z(.]{0,6}".prop_map(Value::from),
        Just(json!("object")),
        Just(json!("array")),
        Just(json!("string")),
    ];
    scalar.prop_recursive(4, 64, 6, |inner| {
        let name = prop_oneof![
            Just("type"),
            Just("properties"),
            Just("items"),
            Just("additionalProperties"),
            Just("default"),
            Just("anyOf"),
            Just("not"),
            Just("pattern"),
            Just("x-kubernetes-validations"),
            Just("rule"),
            Just("x-kubernetes-list-type"),
            Just("spec"),
            Just("metadata"),
            Just("a"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((name, inner), 0..6).prop_map(|fields| {
                let fields = fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(fields.collect::<Map<_, _>>())
            }),
        ]
    })
}

/// A schema that is structural, and what may be an object of it.
fn schema_and_object() -> impl Strategy<Value = (Value, Value)> {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "x", "maxLength": 3},
        "spec": {"type": "object", "default": {}, "properties": {
            "a": {"type": "integer", "default": 1},
            "items": {"type": "array", "items": {"type": "object", "properties": {
                "type": {"type": "string", "default": "t"}}}},
            "default": {"type": "object", "additionalProperties": {"type": "string"}},
            "rule": {"x-kubernetes-preserve-unknown-fields": true},
        }},
    }});
    any_json().prop_map(move |object| (schema.clone(), object))
}

/// What a rule says of a list of `n` numbers.
fn judged_with(rule: &str, n: usize) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {"l": {"type": "array", "maxItems": 100_000, "items": {"type": "integer"}}},
        "x-kubernetes-validations": [{"rule": rule}],
    }}});
    let schema = CompiledSchema::compile(&schema, "").unwrap();
    told(&schema.validate(&json!({"spec": {"l": vec![1; n]}}), None))
}

/// The evaluator copies lists: what costs the real server a step for each item costs it one for
/// each pair of items.
#[test]
fn c6_a_rule_that_would_copy_for_minutes_is_refused_before_it_runs() {
    let quadratic = [
        "self.l.map(x, x).size() >= 0",
        "self.l.filter(x, x > 0).size() >= 0",
        "self.l.map(x, 1).size() >= 0",
        "self.l.all(x, self.l.size() > 0)",
        "self.l.all(x, self.l[0] == x)",
    ];
    for rule in quadratic {
        assert_eq!(judged_with(rule, 300), Vec::<String>::new(), "{rule}");
        let told = judged_with(rule, 50_000);
        assert!(
            matches!(told.as_slice(), [one] if one.contains("spec") && one.contains("budget")),
            "{rule}: {told:?}"
        );
    }
    let linear = "self.l.all(x, x > 0)";
    assert_eq!(judged_with(linear, 50_000), Vec::<String>::new());
}

#[test]
fn c6_rules_of_one_node_see_what_each_of_them_names() {
    let text = json!({ "type": "string", "maxLength": 10 });
    let schema = json!({
        "type": "object",
        "properties": {
            "a": text, "b": text, "my-name": text,
            "at": { "type": "string", "format": "date-time" },
            "list": { "type": "array", "maxItems": 5, "items": text },
        },
        "x-kubernetes-validations": [
            { "rule": "self.a != 'bad'", "messageExpression": "'a was ' + oldSelf.a" },
            { "rule": "self.b == oldSelf.b", "messageExpression": "'b was ' + oldSelf.b" },
            {
                "rule": "!oldSelf.hasValue() || oldSelf.value().a != self.a",
                "optionalOldSelf": true, "messageExpression": "'a stays ' + self.a",
            },
            { "rule": "self.my__dash__name.matches('^[a-z]+$')", "message": "lower case" },
            { "rule": "self.at > timestamp('2020-01-01T00:00:00Z')", "message": "too old" },
            { "rule": "self.list.all(x, x.matches(self.b) && type(x) == string)", "message": "list" },
        ],
    });
    let schema = CompiledSchema::compile(&schema, "schema").expect("it compiles");
    let object = |a: &str, b: &str| {
        json!({
            "a": a, "b": b, "my-name": "x", "at": "2026-01-01T00:00:00Z", "list": ["b", "bb"],
        })
    };
    let old = object("1", "b");
    assert_eq!(told(&schema.validate(&old, None)), [""; 0]);
    let told_of = |new: &Value| -> Vec<String> {
        let told = told(&schema.validate(new, Some(&old)));
        let last = |line: &String| line.rsplit(": ").next().unwrap_or_default().to_owned();
        let mut details: Vec<String> = told.iter().map(last).collect();
        details.sort_unstable();
        details
    };
    assert_eq!(told_of(&object("2", "b")), [""; 0]);
    assert_eq!(told_of(&object("bad", "b")), ["a was 1"]);
    assert_eq!(told_of(&object("1", "b")), ["a stays 1"]);
    assert_eq!(told_of(&object("2", "bb")), ["b was b", "list"]);
    let mut wrong = object("2", "b");
    wrong["my-name"] = json!("X");
    wrong["at"] = json!("2019-01-01T00:00:00Z");
    wrong["list"] = json!(["c"]);
    assert_eq!(told_of(&wrong), ["list", "lower case", "too old"]);
}

#[test]
fn c6_a_rule_that_would_overflow_the_stack_does_not_compile() {
    let n = 20_000;
    let endless = [
        format!("{} > 0", vec!["1"; n].join("+")),
        format!("self{} == 1", ".l".repeat(n)),
        format!("self{} == 1", "[0]".repeat(n)),
        format!("{} in []", vec!["1"; n].join(" in ")),
        format!("{}1{} > 0", "(".repeat(n), ")".repeat(n)),
    ];
    for rule in endless {
        let schema = json!({"type": "object", "properties": {"spec": {
            "type": "object", "x-kubernetes-validations": [{"rule": rule}],
        }}});
        let errors = CompiledSchema::compile(&schema, "").unwrap_err();
        let told = told(&errors);
        assert!(told[0].contains("recursion limit"), "{:.300}", told[0]);
    }
}

proptest! {
    #[test]
    fn no_definition_and_no_schema_can_cause_a_panic(schema in any_json(), object in any_json()) {
        let mut definition = json!({"spec": {"versions": [{"schema": {
            "openAPIV3Schema": schema.clone()}}]}, "status": object.clone()});
        crd::apply_defaults(&mut definition);
        prop_assert!(!crd::validate(&definition, Some(&object)).is_empty());
        if let Ok(schema) = CompiledSchema::compile(&schema, "s") {
            let mut object = object;
            schema.prune(&mut object);
            schema.apply_defaults(&mut object);
            schema.validate(&object, Some(&object));
        }
    }

    #[test]
    fn pruning_and_defaulting_twice_is_as_good_as_once((schema, object) in schema_and_object()) {
        let schema = CompiledSchema::compile(&schema, "").unwrap();
        let mut once = object;
        schema.prune(&mut once);
        schema.apply_defaults(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(schema.prune(&mut twice), Vec::<String>::new());
        schema.apply_defaults(&mut twice);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn what_did_not_change_is_not_refused((schema, object) in schema_and_object()) {
        let schema = CompiledSchema::compile(&schema, "").unwrap();
        prop_assert_eq!(schema.validate(&object, Some(&object)), Vec::new());
    }
}
