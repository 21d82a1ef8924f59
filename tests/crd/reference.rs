//! `docs/proxy.md` says what the code says.
//!
//! Its tables stand between a marker and `<!-- end -->`; with `BLESS=1` these tests write them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use proxy_operator::api::conditions::TABLE;
use proxy_operator::api::rules::{self, Text};
use proxy_operator::api::validation::validate;
use proxy_operator::api::{self, Phase, Proxy};
use serde_json::Value;

/// Blessing reads and writes one file from several tests.
static FILE: Mutex<()> = Mutex::new(());

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/proxy.md")
}

fn text() -> String {
    std::fs::read_to_string(path()).expect("the document is there")
}

fn table_equals(marker: &str, table: &str) {
    let _alone = FILE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let text = text();
    let start = format!("<!-- {marker} -->\n");
    let (before, rest) = text.split_once(&start).expect("the marker is there");
    let (present, after) = rest.split_once("<!-- end -->").expect("the table ends");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path(), format!("{before}{start}{table}<!-- end -->{after}"))
            .expect("written");
    } else {
        assert!(
            present == table,
            "run this test with BLESS=1 to write {}",
            path().display()
        );
    }
}

#[test]
fn the_document_lists_the_rules() {
    let mut table = "| rule | field | what the refusal says |\n|---|---|---|\n".to_owned();
    for rule in rules::ALL {
        let text = match rule.text {
            Text::Fixed(text) => text.to_owned(),
            Text::Computed(expression) => {
                let text = expression
                    .split('\'')
                    .nth(1)
                    .expect("a text with places for values");
                text.replace("%d", "…")
            }
        };
        writeln!(table, "| {} | `{}` | {text} |", rule.id, rule.field()).expect("a String");
    }
    table_equals("rules", &table);
}

#[test]
fn the_document_lists_the_conditions() {
    let mut table = "| condition | status | reasons |\n|---|---|---|\n".to_owned();
    for (kind, status, reasons) in TABLE {
        let reasons: Vec<_> = reasons.iter().map(|reason| reason.as_str()).collect();
        writeln!(table, "| {kind} | {status} | {} |", reasons.join(", ")).expect("a String");
    }
    table_equals("conditions", &table);
}

#[test]
fn the_document_lists_the_fields() {
    let version = api::crd().spec.versions.remove(0);
    let root = version
        .schema
        .and_then(|schema| schema.open_api_v3_schema)
        .expect("a schema");
    let mut table =
        "| field | type and limits | default | meaning |\n|---|---|---|---|\n".to_owned();
    for name in ["spec", "status"] {
        let fields = root.properties.as_ref().expect("fields");
        rows(name, &fields[name], &mut table);
    }
    table_equals("fields", &table);
}

/// A row for each field below this one; an object of fields has no row of its own.
fn rows(path: &str, schema: &JSONSchemaProps, table: &mut String) {
    if let Some(fields) = &schema.properties {
        for (name, field) in fields {
            rows(&format!("{path}.{name}"), field, table);
        }
        return;
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items
        && item.properties.is_some()
    {
        rows(&format!("{path}[]"), item, table);
        return;
    }
    let default = schema
        .default
        .as_ref()
        .map(|value| format!("`{}`", value.0))
        .unwrap_or_default();
    let meaning = schema
        .description
        .as_deref()
        .expect("every field is described");
    let kind = kind(schema).replace('|', "\\|");
    writeln!(table, "| `{path}` | {kind} | {default} | {meaning} |").expect("a String");
}

fn kind(schema: &JSONSchemaProps) -> String {
    if schema.x_kubernetes_int_or_string == Some(true) {
        return "quantity".to_owned();
    }
    if let Some(words) = &schema.enum_ {
        let words: Vec<_> = words.iter().map(|word| format!("`{}`", word.0)).collect();
        return words.join(", ").replace("`\"\"`", "empty").replace('"', "");
    }
    match schema.type_.as_deref() {
        Some("array") => {
            let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items else {
                panic!("items")
            };
            let most = schema.max_items.expect("every list is bounded");
            format!("list of at most {most}: {}", kind(item))
        }
        Some("object") => {
            let Some(JSONSchemaPropsOrBool::Schema(value)) = &schema.additional_properties else {
                panic!("an object has fields or is a map")
            };
            let most = schema.max_properties.expect("every map is bounded");
            format!("map of at most {most}: {}", kind(value))
        }
        Some("string") if schema.format.is_some() => "time".to_owned(),
        Some("string") => {
            let most = schema.max_length.expect("every text is bounded");
            format!("text of at most {most}")
        }
        Some("integer") => match (schema.minimum, schema.maximum) {
            (Some(least), Some(most)) => format!("{least}–{most}"),
            (Some(least), None) => format!("at least {least}"),
            _ => "whole number".to_owned(),
        },
        Some("boolean") => "true or false".to_owned(),
        other => panic!("a field of type {other:?}"),
    }
}

#[test]
fn the_documents_examples_break_no_rule() {
    let text = text();
    let examples: Vec<_> = text.split("```yaml\n").skip(1).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let example = example.split("```").next().expect("an example ends");
        let value: Value = serde_saphyr::from_str(example).expect("valid YAML");
        let proxy: Proxy = serde_json::from_value(value).expect("a Proxy");
        assert_eq!(validate(&proxy), [], "{example}");
    }
}

#[test]
fn the_document_names_every_phase_and_annotation() {
    let text = text();
    let phases = [
        Phase::Pending,
        Phase::Provisioning,
        Phase::Verifying,
        Phase::Ready,
        Phase::Unhealthy,
        Phase::Replacing,
        Phase::Deleting,
        Phase::Failed,
    ];
    let names = phases.map(Phase::as_str).into_iter().chain([
        api::FINALIZER,
        api::SPEC_HASH_ANNOTATION,
        api::RETRY_ANNOTATION,
        api::SKIP_REPLACEMENT_ANNOTATION,
        api::ABANDON_INSTANCE_ANNOTATION,
    ]);
    for name in names {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}
