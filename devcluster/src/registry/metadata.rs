//! Rules of `metadata` that hold for every kind.

use rand::seq::IndexedRandom as _;
use serde_json::{Map, Value};

use super::resource::{NameRule, Resource, metadata_mut, metadata_text};
use crate::schema::{ErrorKind, FieldError, names};

const GENERATED_SUFFIX: usize = 5;
const GENERATED_BASE: usize = 63 - GENERATED_SUFFIX;
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Which write checks the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write<'a> {
    Create,
    /// An update of this object.
    Update(&'a Value),
}

/// A name from `generateName`: the prefix, cut to fit, and five random characters.
pub(crate) fn generated_name(prefix: &str) -> String {
    let cut = (0..=GENERATED_BASE.min(prefix.len()))
        .rev()
        .find(|at| prefix.is_char_boundary(*at))
        .unwrap_or(0);
    let mut rng = rand::rng();
    let suffix = (0..GENERATED_SUFFIX).map(|_| {
        char::from(
            *SUFFIX_ALPHABET
                .choose(&mut rng)
                .expect("the alphabet is not empty"),
        )
    });
    prefix[..cut].chars().chain(suffix).collect()
}

/// Sets what the server decides about a new object and wipes what a client may not send.
pub(crate) fn prepare_create(resource: &Resource, object: &mut Value, stamp: &str) {
    let metadata = metadata_mut(object);
    for key in [
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
    ] {
        metadata.remove(key);
    }
    metadata.insert(
        "uid".to_owned(),
        Value::from(uuid::Uuid::new_v4().to_string()),
    );
    metadata.insert("creationTimestamp".to_owned(), Value::from(stamp));
    if resource.traits.generation {
        metadata.insert("generation".to_owned(), Value::from(1));
    }
    drop_empty(metadata);
}

/// Restores what an update may not change and drops what clients may not send.
pub(crate) fn prepare_update(object: &mut Value, old: &Value) {
    let kept = old.get("metadata").and_then(Value::as_object);
    let metadata = metadata_mut(object);
    metadata.remove("selfLink");
    for key in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "creationTimestamp",
        "generation",
    ] {
        match kept.and_then(|kept| kept.get(key)) {
            Some(value) => metadata.insert(key.to_owned(), value.clone()),
            None => metadata.remove(key),
        };
    }
    if metadata
        .get("uid")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .is_empty()
        && let Some(uid) = kept.and_then(|kept| kept.get("uid"))
    {
        metadata.insert("uid".to_owned(), uid.clone());
    }
    drop_empty(metadata);
}

/// Counts a change of the desired state.
pub(crate) fn count_generation(resource: &Resource, object: &mut Value, old: &Value) {
    if !resource.traits.generation {
        return;
    }
    let counted_metadata = |value: &Value, key: &str| value["metadata"][key].clone();
    let by_metadata = match &*resource.kind {
        "Deployment" => {
            counted_metadata(object, "annotations") != counted_metadata(old, "annotations")
        }
        "EndpointSlice" => counted_metadata(object, "labels") != counted_metadata(old, "labels"),
        _ => false,
    };
    if by_metadata || !wants_the_same(object, old, resource.status) {
        bump_generation(object);
    }
}

/// Whether two objects differ in metadata at most, and in the status where that is reported apart.
fn wants_the_same(a: &Value, b: &Value, ignores_status: bool) -> bool {
    let is_desired = |name: &str| match name {
        "metadata" | "apiVersion" | "kind" => false,
        "status" => !ignores_status,
        _ => true,
    };
    let count = |object: &Value| {
        let fields = object.as_object().into_iter().flatten();
        fields.filter(|(name, _)| is_desired(name)).count()
    };
    count(a) == count(b)
        && a.as_object()
            .into_iter()
            .flatten()
            .all(|(name, value)| !is_desired(name) || b.get(name) == Some(value))
}

/// Adds one to `metadata.generation`, if the object counts it.
pub(crate) fn bump_generation(object: &mut Value) {
    let metadata = metadata_mut(object);
    if let Some(generation) = metadata
        .get("generation")
        .and_then(Value::as_i64)
        .filter(|n| *n > 0)
    {
        metadata.insert("generation".to_owned(), Value::from(generation + 1));
    }
}

/// Optional fields with nothing in them are left out.
fn drop_empty(metadata: &mut Map<String, Value>) {
    metadata.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        Value::Number(number) => number.as_i64() != Some(0) || number.is_f64(),
        Value::Bool(_) => true,
    });
}

/// `metadata.finalizers`.
pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Replaces `metadata.finalizers`.
pub(crate) fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    let metadata = metadata_mut(object);
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), Value::from(finalizers.to_vec()));
    }
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    !metadata_text(object, "deletionTimestamp").is_empty()
}

/// Drops owner references that occur twice and says so.
pub(crate) fn dedup_owners(object: &mut Value) -> Option<String> {
    let owners = metadata_mut(object)
        .get_mut("ownerReferences")?
        .as_array_mut()?;
    let mut seen: Vec<Value> = Vec::new();
    let mut repeated: Vec<String> = Vec::new();
    for owner in owners.drain(..) {
        if seen.contains(&owner) {
            repeated.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        } else {
            seen.push(owner);
        }
    }
    *owners = seen;
    (!repeated.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, \
             and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            repeated.join(", ")
        )
    })
}

/// What is questionable about finalizers: names without a domain.
pub(crate) fn finalizer_warnings(object: &Value) -> Vec<String> {
    finalizers(object)
        .into_iter()
        .filter(|name| !is_known_or_qualified(name))
        .map(|name| {
            let form = if name.contains('.') {
                "name including a path (/)"
            } else {
                "name"
            };
            format!(
                "metadata.finalizers: \"{name}\": prefer a domain-qualified finalizer {form} \
                 to avoid accidental conflicts with other finalizer writers"
            )
        })
        .collect()
}

fn is_known_or_qualified(finalizer: &str) -> bool {
    finalizer.contains('/') || matches!(finalizer, "kubernetes" | "orphan" | "foregroundDeletion")
}

/// Everything that is wrong with an object's metadata, in the order of its fields.
pub(crate) fn validate(resource: &Resource, object: &Value, write: Write<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let metadata = object.get("metadata").and_then(Value::as_object);
    let field = |key: &str| metadata.and_then(|metadata| metadata.get(key));
    let text = |key: &str| field(key).and_then(Value::as_str).unwrap_or_default();

    if field("generation")
        .and_then(Value::as_i64)
        .is_some_and(|n| n < 0)
    {
        let value = field("generation").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            "metadata.generation",
            value,
            "must be greater than or equal to 0",
        ));
    }
    if write == Write::Create {
        validate_name(
            resource.name_rule,
            text("generateName"),
            text("name"),
            &mut errors,
        );
        let namespace = text("namespace");
        if resource.namespaced && !namespace.is_empty() {
            for problem in names::dns_label_problems(namespace) {
                errors.push(FieldError::invalid(
                    "metadata.namespace",
                    namespace,
                    problem,
                ));
            }
        }
    }
    validate_annotations(field("annotations"), &mut errors);
    validate_labels(field("labels"), &mut errors);
    validate_owners(field("ownerReferences"), &mut errors);
    for name in finalizers(object) {
        for problem in names::label_key_problems(name) {
            errors.push(FieldError::invalid("metadata.finalizers", name, problem));
        }
    }
    // Definitions and what they define take any qualified name.
    if !resource.is_custom() && &*resource.group != "apiextensions.k8s.io" {
        for (index, name) in finalizers(object).into_iter().enumerate() {
            if !is_known_or_qualified(name) {
                errors.push(FieldError::invalid(
                    format!("metadata.finalizers[{index}]"),
                    name,
                    "name is neither a standard finalizer name nor is it fully qualified",
                ));
            }
        }
    }
    if let Write::Update(old) = write {
        validate_update(object, old, &mut errors);
    }
    errors
}

fn validate_name(rule: NameRule, generate: &str, name: &str, errors: &mut Vec<FieldError>) {
    let problems = |text: &str| match rule {
        NameRule::Subdomain => names::dns_subdomain_problems(text),
        NameRule::Label => names::dns_label_problems(text),
        NameRule::PathSegment => path_segment_problems(text),
    };
    if !generate.is_empty() {
        // The suffix follows: a trailing dash or dot is no problem.
        let shown = match rule {
            NameRule::PathSegment => generate.to_owned(),
            _ => format!("{}a", generate.trim_end_matches('-')),
        };
        for problem in problems(&shown) {
            errors.push(FieldError::invalid(
                "metadata.generateName",
                generate,
                problem,
            ));
        }
    }
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
        return;
    }
    for problem in problems(name) {
        errors.push(FieldError::invalid("metadata.name", name, problem));
    }
}

fn path_segment_problems(text: &str) -> Vec<String> {
    match text {
        "." | ".." => return vec![format!("may not be '{text}'")],
        _ => {}
    }
    ['/', '%']
        .into_iter()
        .filter(|c| text.contains(*c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

fn validate_labels(labels: Option<&Value>, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        for problem in names::label_key_problems(key) {
            errors.push(FieldError::invalid(
                "metadata.labels",
                key.as_str(),
                problem,
            ));
        }
        let value = value.as_str().unwrap_or_default();
        for problem in names::label_value_problems(value) {
            errors.push(FieldError::invalid("metadata.labels", value, problem));
        }
    }
}

fn validate_annotations(annotations: Option<&Value>, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        for problem in names::label_key_problems(&key.to_lowercase()) {
            errors.push(FieldError::invalid(
                "metadata.annotations",
                key.as_str(),
                problem,
            ));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long("metadata.annotations", 256 * 1024));
    }
}

fn validate_owners(owners: Option<&Value>, errors: &mut Vec<FieldError>) {
    let mut controller: Option<&str> = None;
    for (index, owner) in owners
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let at = format!("metadata.ownerReferences[{index}]");
        let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default();
        for key in ["apiVersion", "kind", "name", "uid"] {
            if text(key).is_empty() {
                errors.push(FieldError::required(
                    format!("{at}.{key}"),
                    "must not be empty",
                ));
            }
        }
        if text("apiVersion") == "v1" && text("kind") == "Event" {
            errors.push(FieldError::invalid(
                at.clone(),
                owner.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            match controller {
                Some(first) => errors.push(FieldError::invalid(
                    "metadata.ownerReferences",
                    owners.cloned().unwrap_or_default(),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}",
                        text("name")
                    ),
                )),
                None => controller = Some(text("name")),
            }
        }
    }
}

fn validate_update(object: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if is_deleting(old) {
        let before = finalizers(old);
        let added: Vec<&str> = finalizers(object)
            .into_iter()
            .filter(|name| !before.contains(name))
            .collect();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|name| format!("\"{name}\"")).collect();
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    list.join(", ")
                ),
            ));
        }
    }
    for key in ["name", "namespace", "uid"] {
        let (new, old) = (metadata_text(object, key), metadata_text(old, key));
        if new != old {
            errors.push(FieldError::new(
                ErrorKind::Invalid,
                format!("metadata.{key}"),
                Some(Value::from(new)),
                "field is immutable",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_are_cut_to_fit_and_use_the_safe_alphabet() {
        for (prefix, length) in [("a-", 7), (&*"x".repeat(70), 63), ("", 5)] {
            let name = generated_name(prefix);
            assert_eq!(name.len(), length, "{name}");
            let suffix = &name.as_bytes()[name.len() - GENERATED_SUFFIX..];
            assert!(suffix.iter().all(|c| SUFFIX_ALPHABET.contains(c)), "{name}");
        }
    }

    #[test]
    fn path_segments_may_hold_colons_but_no_slash() {
        assert!(path_segment_problems("system:node").is_empty());
        assert_eq!(
            path_segment_problems("a/b%"),
            ["may not contain '/'", "may not contain '%'"]
        );
        assert_eq!(path_segment_problems(".."), ["may not be '..'"]);
    }
}
