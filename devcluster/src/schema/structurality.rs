//! The rules that make a schema structural.

use super::field_error::FieldError;
use super::path;
use super::structural::{Additional, Checks, Pattern, Schema, property_path};

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Every breach of the structural rules, sorted by text.
pub(super) fn problems(schema: &Schema, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    spine(schema, Level::Root, at, &mut errors);
    complete(&schema.checks, Some(schema), at, at, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

fn spine(schema: &Schema, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    if schema.type_name == "array" && schema.items.is_none() {
        errors.push(FieldError::required(
            path::child(at, "items"),
            "must be specified",
        ));
    }
    if let Some(items) = &schema.items {
        spine(items, Level::Item, &path::child(at, "items"), errors);
    }
    for (name, property) in &schema.properties {
        spine(property, Level::Field, &property_path(at, name), errors);
    }
    if let Some(additional) = &schema.additional {
        let at = path::child(at, "additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&at, "must not be used at the root"));
        }
        if let Additional::Of(of) = additional {
            spine(of, Level::Field, &at, errors);
        }
    }
    extensions(schema, at, errors);
    let skip_any_of = is_int_or_string_pair(&schema.checks.any_of);
    let skip_first = schema
        .checks
        .all_of
        .first()
        .is_some_and(|f| is_int_or_string_pair(&f.checks.any_of));
    junctors(&schema.checks, skip_any_of, skip_first, at, errors);
    types(schema, level, at, errors);
    metadata(schema, level, at, errors);
}

fn extensions(schema: &Schema, at: &str, errors: &mut Vec<FieldError>) {
    let clash = "must be false if x-kubernetes-int-or-string is true";
    if schema.int_or_string && schema.preserve_unknown {
        let field = path::child(at, "x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(field, true, clash));
    }
    if schema.int_or_string && schema.embedded {
        let field = path::child(at, "x-kubernetes-embedded-resource");
        errors.push(FieldError::invalid(field, true, clash));
    }
    if schema.embedded && schema.additional.is_some() {
        errors.push(FieldError::forbidden(
            path::child(at, "additionalProperties"),
            "must not be used if x-kubernetes-embedded-resource is set",
        ));
    }
    if schema.embedded && !schema.preserve_unknown && schema.properties.is_empty() {
        errors.push(FieldError::required(
            path::child(at, "properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without \
             x-kubernetes-preserve-unknown-fields",
        ));
    }
}

fn types(schema: &Schema, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    let field = path::child(at, "type");
    if schema.embedded && schema.type_name != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if schema.type_name.is_empty() {
            FieldError::required(&field, detail)
        } else {
            FieldError::invalid(&field, schema.type_name.as_str(), detail)
        });
    } else if schema.type_name.is_empty() && !schema.int_or_string && !schema.preserve_unknown {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&field, detail));
    }
    if level == Level::Root && !schema.type_name.is_empty() && schema.type_name != "object" {
        let detail = "must be object at the root";
        errors.push(FieldError::invalid(
            &field,
            schema.type_name.as_str(),
            detail,
        ));
    }
}

fn metadata(schema: &Schema, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    let checked = level == Level::Root || schema.embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(property) = schema.properties.get(name).filter(|_| checked)
            && property.type_name != "string"
        {
            let field = path::child(&property_path(at, name), "type");
            errors.push(FieldError::invalid(
                field,
                property.type_name.as_str(),
                "must be string",
            ));
        }
    }
    let Some(metadata) = schema.properties.get("metadata") else {
        return;
    };
    let at = property_path(at, "metadata");
    if checked && metadata.type_name != "object" {
        let field = path::child(&at, "type");
        errors.push(FieldError::invalid(
            field,
            metadata.type_name.as_str(),
            "must be object",
        ));
    }
    let only_names = metadata
        .properties
        .keys()
        .all(|name| matches!(name.as_str(), "name" | "generateName"));
    let plain = only_names
        && metadata.items.is_none()
        && metadata.additional.is_none()
        && !metadata.nullable
        && !metadata.preserve_unknown
        && !metadata.embedded
        && !metadata.int_or_string
        && metadata.rules.is_empty()
        && metadata.map_type.is_none()
        && !metadata.title
        && !metadata.description
        && metadata.checks.is_empty();
    if level == Level::Root && !plain {
        errors.push(FieldError::forbidden(
            at,
            "must not specify anything other than name and generateName, but metadata is \
             implicitly specified",
        ));
    }
}

fn is_int_or_string_pair(any_of: &[Schema]) -> bool {
    matches!(any_of, [first, second] if first.is_only_type("integer") && second.is_only_type("string"))
}

fn junctors(
    checks: &Checks,
    skip_any_of: bool,
    skip_first_all_of: bool,
    at: &str,
    errors: &mut Vec<FieldError>,
) {
    if !skip_any_of {
        each_nested(&checks.any_of, "anyOf", at, |schema, at| {
            nested(schema, false, at, errors)
        });
    }
    for (index, schema) in checks.all_of.iter().enumerate() {
        let skip = skip_first_all_of && index == 0;
        let at = path::index(&path::child(at, "allOf"), index);
        nested(schema, skip, &at, errors);
    }
    each_nested(&checks.one_of, "oneOf", at, |schema, at| {
        nested(schema, false, at, errors)
    });
    if let Some(not) = &checks.not {
        nested(not, false, &path::child(at, "not"), errors);
    }
    if let Some(Pattern {
        source,
        compiled: Err(error),
    }) = &checks.pattern
    {
        errors.push(FieldError::invalid(
            path::child(at, "pattern"),
            source.as_str(),
            format!("must be a valid regular expression, but isn't: {error}"),
        ));
    }
}

fn each_nested(schemas: &[Schema], keyword: &str, at: &str, mut visit: impl FnMut(&Schema, &str)) {
    for (index, schema) in schemas.iter().enumerate() {
        visit(schema, &path::index(&path::child(at, keyword), index));
    }
}

fn nested(schema: &Schema, skip_any_of: bool, at: &str, errors: &mut Vec<FieldError>) {
    junctors(&schema.checks, skip_any_of, false, at, errors);
    if let Some(items) = &schema.items {
        nested(items, false, &path::child(at, "items"), errors);
    }
    for (name, property) in &schema.properties {
        nested(property, false, &property_path(at, name), errors);
    }
    let forbidden = [
        (
            !schema.type_name.is_empty(),
            "type",
            "must be empty to be structural",
        ),
        (
            matches!(schema.additional, Some(Additional::Of(_))),
            "additionalProperties",
            "must be undefined to be structural",
        ),
        (
            schema.default.is_some(),
            "default",
            "must be undefined to be structural",
        ),
        (schema.title, "title", "must be empty to be structural"),
        (
            schema.description,
            "description",
            "must be empty to be structural",
        ),
        (
            schema.nullable,
            "nullable",
            "must be false to be structural",
        ),
        (
            schema.preserve_unknown,
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        (
            schema.embedded,
            "x-kubernetes-embedded-resource",
            "must be false to be structural",
        ),
        (
            schema.int_or_string,
            "x-kubernetes-int-or-string",
            "must be false to be structural",
        ),
        (
            !schema.list_map_keys.is_empty(),
            "x-kubernetes-list-map-keys",
            "must be empty to be structural",
        ),
        (
            schema.list_type.is_some(),
            "x-kubernetes-list-type",
            "must be undefined to be structural",
        ),
        (
            schema.map_type.is_some(),
            "x-kubernetes-map-type",
            "must be undefined to be structural",
        ),
        (
            !schema.rules.is_empty(),
            "x-kubernetes-validations",
            "must be empty to be structural",
        ),
    ];
    for (is_set, keyword, detail) in forbidden {
        if is_set {
            errors.push(FieldError::forbidden(path::child(at, keyword), detail));
        }
    }
    if schema.properties.contains_key("metadata") {
        errors.push(FieldError::forbidden(
            property_path(at, "metadata"),
            "must not be specified in a nested context",
        ));
    }
}

/// Every nested check must have a counterpart on the spine.
fn complete(
    checks: &Checks,
    spine: Option<&Schema>,
    at: &str,
    nested_at: &str,
    errors: &mut Vec<FieldError>,
) {
    if let Some(not) = &checks.not {
        complete_nested(not, spine, at, &path::child(nested_at, "not"), errors);
    }
    let junctors = [
        ("allOf", &checks.all_of),
        ("anyOf", &checks.any_of),
        ("oneOf", &checks.one_of),
    ];
    for (keyword, schemas) in junctors {
        each_nested(schemas, keyword, nested_at, |schema, nested_at| {
            complete_nested(schema, spine, at, nested_at, errors);
        });
    }
}

fn complete_nested(
    nested: &Schema,
    spine: Option<&Schema>,
    at: &str,
    nested_at: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(spine) = spine else {
        errors.push(FieldError::required(
            at,
            format!("because it is defined in {nested_at}"),
        ));
        return;
    };
    complete(&nested.checks, Some(spine), at, nested_at, errors);
    if let Some(items) = &nested.items {
        let (at, nested_at) = (path::child(at, "items"), path::child(nested_at, "items"));
        complete_nested(items, spine.items.as_deref(), &at, &nested_at, errors);
    }
    for (name, property) in &nested.properties {
        let (at, nested_at) = (property_path(at, name), property_path(nested_at, name));
        complete_nested(
            property,
            spine.properties.get(name),
            &at,
            &nested_at,
            errors,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c2_schemas_that_are_not_structural_are_named() {
        let cases = [
            (
                json!({}),
                vec!["type: Required value: must not be empty at the root"],
            ),
            (
                json!({"type": "array", "items": {"type": "string"}}),
                vec![r#"type: Invalid value: "array": must be object at the root"#],
            ),
            (
                json!({"type": "object", "properties": {"a": {}}}),
                vec![
                    "properties[a].type: Required value: must not be empty for specified object \
                     fields",
                ],
            ),
            (
                json!({"type": "object", "properties": {"l": {"type": "array"}}}),
                vec!["properties[l].items: Required value: must be specified"],
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                vec!["additionalProperties: Forbidden: must not be used at the root"],
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object",
                    "properties": {"labels": {"type": "object"}}}}}),
                vec![
                    "properties[metadata]: Forbidden: must not specify anything other than name \
                     and generateName, but metadata is implicitly specified",
                ],
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string"}},
                    "anyOf": [{"type": "object"}, {"properties": {"b": {"minLength": 1}}}]}),
                vec![
                    "anyOf[0].type: Forbidden: must be empty to be structural",
                    "properties[b]: Required value: because it is defined in \
                     anyOf[1].properties[b]",
                ],
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
                vec!["properties[a].pattern: Invalid value: \"(\": must be a valid regular"],
            ),
        ];
        for (schema, expected) in cases {
            let found: Vec<String> = problems(&Schema::parse(&schema), "")
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(found.len(), expected.len(), "{schema}: {found:?}");
            for (text, start) in found.iter().zip(expected) {
                assert!(text.starts_with(start), "{schema}: {text}");
            }
        }
    }

    #[test]
    fn c2_int_or_string_and_plain_metadata_are_structural() {
        let schema = json!({"type": "object", "properties": {
            "metadata": {"type": "object", "properties": {
                "name": {"type": "string", "maxLength": 63}}},
            "p": {"x-kubernetes-int-or-string": true,
                "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^a$"},
            "any": {"x-kubernetes-preserve-unknown-fields": true},
        }});
        assert_eq!(problems(&Schema::parse(&schema), ""), []);
    }
}
