//! Makes `src/types/table.json` from Kubernetes' published OpenAPI v3 documents.
//!
//! ```text
//! cargo run -p devcluster --example gen_types -- KUBERNETES_SOURCE/api/openapi-spec/v3 \
//!     devcluster/src/types/table.json
//! ```
//!
//! The table holds every schema that a listed kind reaches, as in the documents except that
//! descriptions are cut to their first sentence.

use std::collections::{BTreeMap, BTreeSet};
use std::{env, fs, path::Path};

use serde_json::{Map, Value, json};

/// Documents and the kinds taken from each; all kinds of a document if none is named.
const SOURCES: [(&str, &[&str]); 10] = [
    (
        "api__v1",
        &[
            "Binding",
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "Namespace",
            "Node",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "Service",
            "ServiceAccount",
        ],
    ),
    ("apis__apps__v1", &[]),
    ("apis__coordination.k8s.io__v1", &["Lease"]),
    ("apis__events.k8s.io__v1", &["Event"]),
    ("apis__rbac.authorization.k8s.io__v1", &[]),
    (
        "apis__apiextensions.k8s.io__v1",
        &["CustomResourceDefinition"],
    ),
    ("apis__authentication.k8s.io__v1", &[]),
    ("apis__authorization.k8s.io__v1", &[]),
    ("apis__policy__v1", &["Eviction", "PodDisruptionBudget"]),
    ("apis__discovery.k8s.io__v1", &["EndpointSlice"]),
];

/// Types that requests and answers of every group use.
const SHARED: [&str; 6] = [
    "DeleteOptions",
    "Status",
    "WatchEvent",
    "Scale",
    "TokenRequest",
    "Eviction",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(source), Some(target)) = (arguments.next(), arguments.next()) else {
        return Err("give the folder of the documents and the file to write".into());
    };
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    let mut kinds: BTreeMap<(String, String), String> = BTreeMap::new();
    for (document, listed) in SOURCES {
        let file = Path::new(&source).join(format!("{document}_openapi.json"));
        let document: Value = serde_json::from_slice(&fs::read(file)?)?;
        let schemas = document["components"]["schemas"]
            .as_object()
            .ok_or("no schemas")?;
        for (name, schema) in schemas {
            known.insert(name.clone(), schema.clone());
            let Some(marks) = schema["x-kubernetes-group-version-kind"].as_array() else {
                continue;
            };
            for mark in marks {
                let text = |key: &str| mark[key].as_str().unwrap_or_default().to_owned();
                let (group, version, kind) = (text("group"), text("version"), text("kind"));
                let is_shared = SHARED.contains(&kind.as_str()) && marks.len() > 1;
                let base = kind.strip_suffix("List").unwrap_or(&kind);
                let is_listed = listed.is_empty() || listed.contains(&base);
                if (!is_listed && !SHARED.contains(&kind.as_str()))
                    || (is_shared && !(group.is_empty() && version == "v1"))
                {
                    continue;
                }
                let api_version = if group.is_empty() {
                    version
                } else {
                    format!("{group}/{version}")
                };
                kinds.insert((api_version, kind), name.clone());
                wanted.insert(name.clone());
            }
        }
    }
    let mut table = Map::new();
    while let Some(name) = wanted.pop_first() {
        if table.contains_key(&name) {
            continue;
        }
        let mut schema = known
            .get(&name)
            .ok_or_else(|| format!("no schema {name}"))?
            .clone();
        let mut references = BTreeSet::new();
        compact(&mut schema, &mut references);
        wanted.extend(references);
        table.insert(name, schema);
    }
    let kinds: Vec<Value> = kinds
        .into_iter()
        .map(|((api_version, kind), name)| json!([api_version, kind, name]))
        .collect();
    // One type a line keeps changes readable.
    let types: Vec<String> = table
        .iter()
        .map(|(name, schema)| format!("{}:{schema}", json!(name)))
        .collect();
    let kinds: Vec<String> = kinds.iter().map(Value::to_string).collect();
    let text = format!(
        "{{\"kinds\":[\n{}\n],\"types\":{{\n{}\n}}}}\n",
        kinds.join(",\n"),
        types.join(",\n")
    );
    fs::write(target, text)?;
    Ok(())
}

/// Shortens descriptions, drops marks of kinds (the list has them) and notes references.
fn compact(value: &mut Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-group-version-kind");
            // The documents wrap a reference that has a description; the table need not.
            if let Some(Value::Array(all)) = fields.get("allOf")
                && let [only] = all.as_slice()
                && let Some(reference) = only.get("$ref").cloned()
            {
                fields.remove("allOf");
                fields.insert("$ref".to_owned(), reference);
            }
            if let Some(Value::String(reference)) = fields.get_mut("$ref") {
                *reference = reference.rsplit('/').next().unwrap_or_default().to_owned();
                references.insert(reference.clone());
            }
            if let Some(Value::String(description)) = fields.get_mut("description") {
                *description = first_sentence(description);
            }
            for value in fields.values_mut() {
                compact(value, references);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| compact(item, references)),
        _ => {}
    }
}

fn first_sentence(text: &str) -> String {
    let text = text.split('\n').next().unwrap_or_default();
    let end = text.find(". ").map_or(text.len(), |at| at + 1);
    let sentence = &text[..end];
    match sentence.char_indices().nth(160) {
        Some((cut, _)) => format!("{}…", sentence[..cut].trim_end()),
        None => sentence.to_owned(),
    }
}
