//! The checks in Rust decide like the rules of the definition.

use kube_cel::Validator;
use proptest::prelude::*;
use proxy_operator::api::limits::Checker;
use proxy_operator::api::rules;
use proxy_operator::api::validation::{Violation, validate, validate_update};
use proxy_operator::api::{self, Proxy};
use serde_json::{Value, json};

use crate::cases;

fn read(manifest: &Value) -> Proxy {
    serde_json::from_value(manifest.clone()).expect("the types can read what breaks only a rule")
}

fn violations(old: Option<&Value>, manifest: &Value) -> Vec<Violation> {
    let new = read(manifest);
    let changed = old
        .map(|old| validate_update(&read(old), &new))
        .unwrap_or_default();
    validate(&new).into_iter().chain(changed).collect()
}

/// The schema without the rule of V13, for which kube-cel has no optional `oldSelf`.
fn schema() -> Value {
    let version = api::crd().spec.versions.remove(0);
    let schema = version.schema.and_then(|schema| schema.open_api_v3_schema);
    let mut schema = schema.expect("the version has a schema");
    schema.x_kubernetes_validations = None;
    serde_json::to_value(schema).expect("plain texts")
}

/// What the definition's expressions say about an object with its defaults.
fn expressions(schema: &Value, object: &Value) -> Vec<String> {
    let read = serde_json::to_value(read(object)).expect("plain texts");
    match Validator::new().validate(schema, &read, None) {
        Ok(()) => Vec::new(),
        Err(errors) => errors
            .into_vec()
            .into_iter()
            .map(|error| error.message)
            .collect(),
    }
}

#[test]
fn c02_the_checks_in_rust_refuse_with_the_same_field_and_text() {
    for case in cases::refused_by_rules() {
        let found = violations(case.old.as_ref(), &case.manifest);
        let is_named = |(field, text): &(&str, &str)| {
            found
                .iter()
                .any(|violation| violation.field == *field && violation.message.contains(text))
        };
        let what = format!("{} {}: {found:?}", case.rule, case.what);
        assert!(case.refusals.iter().all(is_named), "{what}");
        assert_eq!(found.len(), case.refusals.len(), "{what}");
        assert!(
            found.iter().all(|violation| violation.rule == case.rule),
            "{what}"
        );
    }
}

#[test]
fn c02_the_checks_in_rust_take_what_the_rules_take() {
    for (what, manifest) in cases::accepted() {
        assert_eq!(violations(None, &manifest), [], "{what}");
    }
    for (what, old, new) in cases::accepted_changes() {
        assert_eq!(violations(Some(&old), &new), [], "{what}");
    }
}

/// `validate -f` says what the servers of `servers.rs` say about the same manifests.
#[test]
fn c02_limits_and_rules_are_refused_offline_with_the_servers_fields_and_texts() {
    let checker = Checker::default();
    let cases = cases::refused_by_rules()
        .into_iter()
        .chain(cases::refused_by_limits());
    for case in cases.filter(|case| case.old.is_none()) {
        let found = checker.check(&case.manifest);
        let is_named = |(field, text): &(&str, &str)| {
            found
                .iter()
                .any(|violation| violation.field == *field && violation.message.contains(text))
        };
        let what = format!("{} {}: {found:?}", case.rule, case.what);
        assert!(case.refusals.iter().all(is_named), "{what}");
        assert_eq!(found.len(), case.refusals.len(), "{what}");
    }
    for (what, manifest) in cases::accepted() {
        assert_eq!(checker.check(&manifest), [], "{what}");
    }
}

#[test]
fn c02_every_rule_has_a_refused_manifest() {
    let cases = cases::refused_by_rules();
    for rule in rules::ALL {
        let text = match rule.text {
            rules::Text::Fixed(text) => text,
            rules::Text::Computed(_) => "write a shorter timeout or a longer interval",
        };
        let shows = |refusals: &[(&str, &str)]| {
            refusals
                .iter()
                .any(|(_, part)| text.contains(part) || part.contains(text))
        };
        let shown = cases
            .iter()
            .any(|case| case.rule == rule.id && shows(case.refusals));
        assert!(shown, "{} {}", rule.id, rule.field());
    }
    for number in 1..=13 {
        assert!(
            rules::ALL
                .iter()
                .any(|rule| rule.id == format!("V{number}")),
            "V{number}"
        );
    }
}

#[test]
fn c03_every_text_starts_with_its_field_and_ends_with_advice() {
    for rule in rules::ALL {
        let text = match rule.text {
            rules::Text::Fixed(text) => text,
            rules::Text::Computed(expression) => expression.trim_start_matches('\''),
        };
        let field = rule.field().replace("[]", "");
        assert!(
            text.starts_with(&format!("{field} ")),
            "{}: {text}",
            rule.id
        );
        let advice = text
            .split_once("; ")
            .map(|(_, advice)| advice)
            .unwrap_or_default();
        let verbs = ["write ", "remove ", "keep ", "set "];
        assert!(
            verbs.iter().any(|verb| advice.starts_with(verb)),
            "{}: {text}",
            rule.id
        );
    }
}

/// Short texts out of the characters that the rules are about.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z0-9:./@\\[\\]?#_ -]{0,12}",
        "(http|https|HTTP|ftp|x)?(:|:/|://|//)?[a-z@:/?#. ]{0,8}",
        "[0-9a-f:.]{1,12}",
        "[a-z]([a-z0-9_-]{0,70})",
        "(pxo|pxo-|px)[a-z-]{0,3}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn c02_rust_and_cel_agree_on_any_text(host in text(), url in text(), key in text()) {
        let schema = schema();
        for spec in [
            json!({ "mode": "External", "endpoint": { "host": host, "port": 1 } }),
            json!({ "provider": "sim", "healthCheck": { "urls": [url] } }),
            json!({ "provider": "sim", "tags": { key: "" } }),
        ] {
            let object = json!({
                "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
                "metadata": { "name": "any" }, "spec": spec,
            });
            let mut by_cel = expressions(&schema, &object);
            let mut by_rust: Vec<_> =
                violations(None, &object).into_iter().map(|violation| violation.message).collect();
            by_cel.sort_unstable();
            by_rust.sort_unstable();
            prop_assert_eq!(by_cel, by_rust, "{}", object);
        }
    }

    #[test]
    fn c02_rust_and_cel_agree_on_any_combination_of_fields(
        is_external in any::<bool>(),
        present in proptest::collection::vec(any::<bool>(), 10),
        timeout in 1_u32..20,
        interval in 5_u32..20,
    ) {
        let schema = schema();
        let fields = [
            ("provider", json!("sim")),
            ("endpoint", json!({ "host": "a", "port": 1 })),
            ("port", json!(1)),
            ("machine", json!({ "kubernetes": {}, "gce": {} })),
            ("machine", json!({ "kubernetes": {} })),
            ("cloudInit", json!({})),
            ("cloudInit", json!({ "inline": "a" })),
            ("rotation", json!({})),
            ("tls", json!({})),
            ("protocol", json!("https")),
        ];
        let mut spec = json!({
            "mode": if is_external { "External" } else { "Managed" },
            "healthCheck": { "timeoutSeconds": timeout, "intervalSeconds": interval },
        });
        for ((name, value), _) in fields.into_iter().zip(present).filter(|(_, present)| *present) {
            spec[name] = value;
        }
        let object = json!({
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
            "metadata": { "name": "any" }, "spec": spec,
        });
        let mut by_cel = expressions(&schema, &object);
        let mut by_rust: Vec<_> =
            violations(None, &object).into_iter().map(|violation| violation.message).collect();
        by_cel.sort_unstable();
        by_rust.sort_unstable();
        prop_assert_eq!(by_cel, by_rust, "{}", object);
    }
}
