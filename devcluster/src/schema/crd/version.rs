//! What one version of a definition says: schema, columns, selectable fields, subresources.
//!
//! The real server keeps what is the same in all versions once, at the top, and its errors name
//! the fields of that form; [`Placement`] tells where that is.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{nodes, text};
use crate::schema::field_error::{ErrorKind, FieldError};
use crate::schema::structural::Schema;
use crate::schema::{CompiledSchema, path};

/// Which parts are equal in all versions, and so reported at the top.
pub(super) struct Placement {
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl Placement {
    pub(super) fn of(versions: &[Value]) -> Self {
        let shared = |key: &str| {
            versions.first().is_some_and(|first| {
                let value = first.get(key).unwrap_or(&Value::Null);
                versions
                    .iter()
                    .all(|version| version.get(key).unwrap_or(&Value::Null) == value)
            })
        };
        Self {
            schema: shared("schema"),
            subresources: shared("subresources"),
            columns: shared("additionalPrinterColumns"),
            selectable: shared("selectableFields"),
        }
    }

    /// Whether the first version stands for all in every part.
    pub(super) fn shared_all(&self) -> bool {
        self.schema && self.subresources && self.columns && self.selectable
    }
}

/// Checks what only the version itself can hold.
pub(super) fn own(version: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else {
        return;
    };
    let field = path::child(at, "deprecationWarning");
    let mut refuse = |detail: &str| errors.push(FieldError::invalid(&field, warning, detail));
    if version["deprecated"] != true {
        refuse("can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        refuse("must be <= 256 characters long");
    }
    if warning.is_empty() {
        refuse("must not be an empty string");
    }
    if let Some(at) = warning.find(char::is_control) {
        refuse(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at \
             index {at}"
        ));
    }
}

/// Checks schema, subresources, columns and selectable fields; shared ones with version 0 only.
pub(super) fn parts(
    version: &Value,
    index: usize,
    placement: &Placement,
    errors: &mut Vec<FieldError>,
) {
    let own = format!("spec.versions[{index}]");
    let place = |shared: bool, top: &str, below: &str| match (shared, index) {
        (true, 0) => Some(path::child("spec", top)),
        (true, _) => None,
        (false, _) => Some(path::child(&own, below)),
    };
    let source = version
        .pointer("/schema/openAPIV3Schema")
        .filter(|schema| !schema.is_null());
    if let (Some(at), Some(source)) = (place(placement.schema, "validation", "schema"), source) {
        let has_status = !version["subresources"]["status"].is_null();
        schema(
            source,
            &path::child(&at, "openAPIV3Schema"),
            has_status,
            errors,
        );
    }
    if let Some(at) = place(placement.subresources, "subresources", "subresources") {
        scale(&version["subresources"]["scale"], &at, errors);
    }
    let key = "additionalPrinterColumns";
    if let Some(at) = place(placement.columns, key, key) {
        for (index, column) in version[key].as_array().into_iter().flatten().enumerate() {
            printer_column(column, &path::index(&at, index), errors);
        }
    }
    let key = "selectableFields";
    if let (Some(at), Some(source)) = (place(placement.selectable, key, key), source) {
        selectable_fields(&version[key], &Schema::parse(source), &at, errors);
    }
}

fn schema(source: &Value, at: &str, has_status: bool, errors: &mut Vec<FieldError>) {
    let before = errors.len();
    if has_status {
        nodes::root_beside_status(source, at, errors);
    }
    if source["nullable"] == true {
        let field = path::child(at, "nullable");
        errors.push(FieldError::forbidden(
            field,
            "nullable cannot be true at the root",
        ));
    }
    let compiled = CompiledSchema::compile(source, at);
    let mut found = Vec::new();
    nodes::check(source, at, &mut found);
    match compiled {
        Ok(_) => errors.extend(found),
        // Rules are judged on schemas that are sound, so their errors give way to others.
        Err(faults) => {
            let rules_only = faults
                .iter()
                .all(|fault| fault.field.contains("x-kubernetes-val"));
            if !rules_only {
                errors.extend(faults);
                errors.extend(found);
            } else if found.is_empty() && errors.len() == before {
                errors.extend(faults);
            } else {
                errors.extend(found);
            }
        }
    }
}

fn scale(scale: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if scale.is_null() {
        return;
    }
    let at = format!("{at}.scale");
    let paths = [
        (
            "specReplicasPath",
            &[".spec."][..],
            "should be a json path under .spec",
            true,
        ),
        (
            "statusReplicasPath",
            &[".status."][..],
            "should be a json path under .status",
            true,
        ),
        (
            "labelSelectorPath",
            &[".spec.", ".status."][..],
            "should be a json path under either .spec or .status",
            false,
        ),
    ];
    for (key, roots, detail, required) in paths {
        let value = text(scale, key);
        let field = format!("{at}.{key}");
        if value.is_empty() {
            if required {
                errors.push(FieldError::required(field, ""));
            }
        } else if !value.starts_with('.') {
            let detail = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(field, value, detail));
        } else if !roots.iter().any(|root| value.starts_with(root)) {
            errors.push(FieldError::invalid(field, value, detail));
        }
    }
}

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];

fn printer_column(column: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if text(column, "name").is_empty() {
        errors.push(FieldError::required(path::child(at, "name"), ""));
    }
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    match text(column, "type") {
        "" => errors.push(FieldError::required(path::child(at, "type"), types)),
        known if COLUMN_TYPES.contains(&known) => {}
        other => errors.push(FieldError::invalid(path::child(at, "type"), other, types)),
    }
    let format = text(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(FieldError::invalid(
            path::child(at, "format"),
            format,
            detail,
        ));
    }
    let field = path::child(at, "JSONPath");
    match text(column, "jsonPath") {
        "" => errors.push(FieldError::required(field, "")),
        simple if simple.starts_with('.') => {}
        other => {
            let detail = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(field, other, detail));
        }
    }
}

/// The most fields that a version may make selectable.
const MAX_SELECTABLE_FIELDS: i64 = 8;

fn selectable_fields(fields: &Value, schema: &Schema, at: &str, errors: &mut Vec<FieldError>) {
    let mut unique = BTreeSet::new();
    for (index, field) in fields.as_array().into_iter().flatten().enumerate() {
        let at = path::child(&path::index(at, index), "jsonPath");
        let source = text(field, "jsonPath");
        if source.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let names = match field_names(source) {
            Ok(names) => names,
            Err(problem) => {
                let detail = format!("is an invalid path: {problem}");
                errors.push(FieldError::invalid(at, source, detail));
                continue;
            }
        };
        let found = names
            .iter()
            .try_fold(schema, |schema, name| schema.properties.get(*name));
        let Some(found) = found else {
            let detail = "is an invalid path: does not refer to a valid field";
            errors.push(FieldError::invalid(at, source, detail));
            continue;
        };
        if names.first() == Some(&"metadata") {
            let detail = "must not point to fields in metadata";
            errors.push(FieldError::invalid(&at, source, detail));
        }
        if !matches!(found.type_name.as_str(), "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string \
                          fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&at, source, detail));
        }
        if !unique.insert(names.join(".")) {
            errors.push(FieldError::duplicate(at, source));
        }
    }
    let count = i64::try_from(unique.len()).unwrap_or(i64::MAX);
    if count > MAX_SELECTABLE_FIELDS {
        errors.push(FieldError::too_many(at, count, MAX_SELECTABLE_FIELDS));
    }
}

/// The names of a path of plain fields.
fn field_names(source: &str) -> Result<Vec<&str>, String> {
    if source.contains('[') {
        return Err("array notation is not allowed".to_owned());
    }
    let rest = source
        .strip_prefix('.')
        .ok_or_else(|| format!("expected [ or . but got: {source}"))?;
    Ok(rest.split('.').collect())
}

/// The versions as errors show them: the real server's own form, shared parts left out.
pub(super) fn internal_form(versions: &[Value], placement: &Placement) -> String {
    let quoted = |value: &Value| value.to_string();
    let part = |shared: bool, version: &Value, key: &str| {
        if shared {
            Value::Null
        } else {
            version.get(key).cloned().unwrap_or(json!(null))
        }
    };
    let shown: Vec<String> = versions
        .iter()
        .map(|version| {
            format!(
                "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\
                 \"DeprecationWarning\":{},\"Schema\":{},\"Subresources\":{},\
                 \"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
                quoted(&version["name"]),
                version["served"] == true,
                version["storage"] == true,
                version["deprecated"] == true,
                quoted(&version["deprecationWarning"]),
                part(placement.schema, version, "schema"),
                part(placement.subresources, version, "subresources"),
                part(placement.columns, version, "additionalPrinterColumns"),
                part(placement.selectable, version, "selectableFields"),
            )
        })
        .collect();
    format!("[{}]", shown.join(","))
}

/// An error that shows the refused schema as it was sent.
pub(super) fn whole_schema_error(at: &str, schema: &Value, detail: &str) -> FieldError {
    FieldError::new(ErrorKind::Invalid, at, None, format!("{schema}: {detail}"))
}
