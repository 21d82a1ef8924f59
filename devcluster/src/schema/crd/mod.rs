//! Defaults and validation of CustomResourceDefinition objects.

mod nodes;
mod version;

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};

use super::field_error::FieldError;
use super::{names, path};
use version::Placement;

/// Fills in singular, listKind, conversion and the stored version.
pub(crate) fn apply_defaults(definition: &mut Value) {
    let storage = versions(definition)
        .iter()
        .find(|version| version["storage"] == true)
        .and_then(|version| version["name"].as_str())
        .map(str::to_owned);
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec.insert("conversion".to_owned(), json!({"strategy": "None"}));
    }
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let missing = |names: &serde_json::Map<String, Value>, key: &str| {
            names
                .get(key)
                .and_then(Value::as_str)
                .is_none_or(str::is_empty)
        };
        if !kind.is_empty() && missing(names, "singular") {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if !kind.is_empty() && missing(names, "listKind") {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    let stored = definition
        .pointer("/status/storedVersions")
        .and_then(Value::as_array);
    if stored.is_none_or(Vec::is_empty)
        && let Some(storage) = storage
        && let Some(definition) = definition.as_object_mut()
    {
        let status = definition.entry("status").or_insert_with(|| json!({}));
        if let Some(status) = status.as_object_mut() {
            status.insert("storedVersions".to_owned(), json!([storage]));
        }
    }
}

/// Everything that is wrong with a created (`old` is `None`) or changed definition, after
/// [`apply_defaults`]; metadata is checked for the name's form only.
pub(crate) fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.is_none() {
        name(new, &mut errors);
    }
    spec(new, &mut errors);
    if let Some(old) = old {
        immutable(new, old, &mut errors);
    }
    names_syntax(
        &new["status"]["acceptedNames"],
        "status.acceptedNames",
        &mut errors,
    );
    stored_versions(new, &mut errors);
    approval(new, old, &mut errors);
    if new["spec"]["preserveUnknownFields"] == true {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
             spec.versions[*].schema instead",
        ));
    }
    errors
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn versions(definition: &Value) -> &[Value] {
    definition
        .pointer("/spec/versions")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn name(definition: &Value, errors: &mut Vec<FieldError>) {
    let spec = &definition["spec"];
    let name = text(&definition["metadata"], "name");
    for problem in names::dns_subdomain_problems(name) {
        errors.push(FieldError::invalid("metadata.name", name, problem));
    }
    if name != format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group")) {
        let detail = r#"must be spec.names.plural+"."+spec.group"#;
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
}

fn spec(definition: &Value, errors: &mut Vec<FieldError>) {
    let spec = &definition["spec"];
    let versions = versions(definition);
    let group = text(spec, "group");
    let problems = names::dns_subdomain_problems(group);
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !problems.is_empty() {
        errors.push(FieldError::invalid("spec.group", group, problems.join(",")));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        errors.push(FieldError::invalid("spec.group", group, detail));
    }
    one_of(
        "spec.scope",
        text(spec, "scope"),
        &["Cluster", "Namespaced"],
        errors,
    );

    for (index, version) in versions.iter().enumerate() {
        if version
            .pointer("/schema/openAPIV3Schema")
            .is_none_or(Value::is_null)
        {
            let at = format!("spec.versions[{index}].schema.openAPIV3Schema");
            errors.push(FieldError::required(at, ""));
        }
    }
    let placement = Placement::of(versions);
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = text(version, "name");
        let problems = names::dns_1035_label_problems(name).join(",");
        if !problems.is_empty() {
            let field = path::child(&at, "name");
            errors.push(FieldError::invalid(field, name, problems.as_str()));
            // The first version is also the definition's version in the server's own form.
            if index == 0 {
                errors.push(FieldError::invalid("spec.version", name, problems));
            }
        }
        version::own(version, &at, errors);
        if index == 0 || !placement.shared_all() {
            version::parts(version, index, &placement, errors);
        }
    }
    version_set(versions, &placement, errors);

    let names = &spec["names"];
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(names, key).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{key}"), ""));
        }
    }
    names_syntax(names, "spec.names", errors);
    conversion(&spec["conversion"], errors);
}

fn one_of(field: &str, value: &str, allowed: &[&str], errors: &mut Vec<FieldError>) {
    if value.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else if !allowed.contains(&value) {
        errors.push(FieldError::not_supported(field, value, allowed));
    }
}

/// Rules over all versions together.
fn version_set(versions: &[Value], placement: &Placement, errors: &mut Vec<FieldError>) {
    let shown = || version::internal_form(versions, placement);
    let mut refuse = |detail: &str| {
        let detail = format!("{}: {detail}", shown());
        errors.push(FieldError::new(
            super::ErrorKind::Invalid,
            "spec.versions",
            None,
            detail,
        ));
    };
    let unique: HashSet<&str> = versions
        .iter()
        .map(|version| text(version, "name"))
        .collect();
    if unique.len() != versions.len() {
        refuse("must contain unique version names");
    }
    if versions
        .iter()
        .filter(|version| version["storage"] == true)
        .count()
        != 1
    {
        refuse("must have exactly one version marked as storage version");
    }
}

fn names_syntax(names: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let label = |value: &str| names::dns_1035_label_problems(value).join(",");
    for (key, mixed_case) in [
        ("plural", false),
        ("singular", false),
        ("kind", true),
        ("listKind", true),
    ] {
        let value = text(names, key);
        let problems = label(&if mixed_case {
            value.to_lowercase()
        } else {
            value.to_owned()
        });
        if value.is_empty() || problems.is_empty() {
            continue;
        }
        let detail = if mixed_case {
            format!("may have mixed case, but should otherwise match: {problems}")
        } else {
            problems
        };
        errors.push(FieldError::invalid(path::child(at, key), value, detail));
    }
    let mut each = |key: &str| {
        for (index, value) in names[key].as_array().into_iter().flatten().enumerate() {
            let value = value.as_str().unwrap_or_default();
            let problems = label(value);
            if !problems.is_empty() {
                let field = path::index(&path::child(at, key), index);
                errors.push(FieldError::invalid(field, value, problems));
            }
        }
    };
    each("shortNames");
    each("categories");
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(
            path::child(at, "listKind"),
            kind,
            detail,
        ));
    }
}

fn conversion(conversion: &Value, errors: &mut Vec<FieldError>) {
    if conversion.is_null() {
        return;
    }
    let at = "spec.conversion";
    let strategy = text(conversion, "strategy");
    one_of(
        &path::child(at, "strategy"),
        strategy,
        &["None", "Webhook"],
        errors,
    );
    let webhook = &conversion["webhook"];
    let config = &webhook["clientConfig"];
    let reviews = webhook["conversionReviewVersions"]
        .as_array()
        .map_or(0, Vec::len);
    if strategy == "Webhook" {
        if config.is_null() {
            let detail = "required when strategy is set to Webhook";
            errors.push(FieldError::required(
                path::child(at, "webhookClientConfig"),
                detail,
            ));
        }
        if reviews == 0 {
            errors.push(FieldError::required(
                path::child(at, "conversionReviewVersions"),
                "",
            ));
        }
        if !config.is_null() && reviews > 0 {
            errors.push(FieldError::forbidden(
                path::child(at, "strategy"),
                "conversion webhooks are not called by this server: use strategy None",
            ));
        }
        return;
    }
    let detail = "should not be set when strategy is not set to Webhook";
    if !config.is_null() {
        errors.push(FieldError::forbidden(
            path::child(at, "webhookClientConfig"),
            detail,
        ));
    }
    if reviews > 0 {
        errors.push(FieldError::forbidden(
            path::child(at, "conversionReviewVersions"),
            detail,
        ));
    }
}

fn immutable(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let established = old["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Established" && c["status"] == "True");
    let always = ["/group", "/names/plural"];
    let once_established = ["/scope", "/names/kind"];
    let fixed = once_established
        .iter()
        .filter(|_| established)
        .chain(&always);
    for pointer in fixed {
        let (was, is) = (old["spec"].pointer(pointer), new["spec"].pointer(pointer));
        if was != is {
            let field = format!("spec{}", pointer.replace('/', "."));
            let value = is.cloned().unwrap_or_else(|| "".into());
            errors.push(FieldError::invalid(field, value, "field is immutable"));
        }
    }
}

fn stored_versions(definition: &Value, errors: &mut Vec<FieldError>) {
    let at = "status.storedVersions";
    let stored = &definition["status"]["storedVersions"];
    let names: Vec<&str> = stored
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if names.is_empty() {
        let detail = "must have at least one stored version";
        errors.push(FieldError::invalid(at, stored.clone(), detail));
        return;
    }
    let versions = versions(definition);
    for version in versions.iter().filter(|version| version["storage"] == true) {
        let name = text(version, "name");
        if !names.contains(&name) {
            let detail = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(at, stored.clone(), detail));
        }
    }
    let known: BTreeSet<&str> = versions
        .iter()
        .map(|version| text(version, "name"))
        .collect();
    for (index, name) in names
        .iter()
        .enumerate()
        .filter(|(_, name)| !known.contains(*name))
    {
        errors.push(FieldError::invalid(
            path::index(at, index),
            *name,
            format!(
                "missing from spec.versions; {name} was previously a storage version, and must \
                 remain in spec.versions until a storage migration ensures no data remains \
                 persisted in {name} and removes {name} from status.storedVersions"
            ),
        ));
    }
}

const APPROVAL: &str = "api-approved.kubernetes.io";
const APPROVAL_RULES: &str = "https://github.com/kubernetes/enhancements/pull/1111";

/// Groups of the community need its approval, named by an annotation.
fn approval(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let group = text(&new["spec"], "group");
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.ends_with(&format!(".{domain}")));
    let annotation =
        |definition: &Value| text(&definition["metadata"]["annotations"], APPROVAL).to_owned();
    if !is_protected
        || old.is_some_and(|old| approves(&annotation(old)) == approves(&annotation(new)))
    {
        return;
    }
    let value = annotation(new);
    let field = path::key("metadata.annotations", APPROVAL);
    match approves(&value) {
        Some(true) => {}
        None => errors.push(FieldError::required(
            field,
            format!("protected groups must have approval annotation \"{APPROVAL}\", see {APPROVAL_RULES}"),
        )),
        Some(false) => errors.push(FieldError::invalid(
            field,
            value,
            format!(
                "protected groups must have approval annotation \"{APPROVAL}\" with either a URL \
                 or a reason starting with \"unapproved\", see {APPROVAL_RULES}"
            ),
        )),
    }
}

/// Whether the annotation approves or bypasses approval; none if it is missing.
fn approves(annotation: &str) -> Option<bool> {
    if annotation.is_empty() {
        return None;
    }
    let is_url = annotation.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
    });
    Some(annotation.starts_with("unapproved") || is_url)
}
