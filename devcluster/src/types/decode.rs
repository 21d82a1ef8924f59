//! Decoding of request bodies of built-in kinds: wrong types refused, unknown fields dropped.

use std::fmt;

use base64::Engine as _;
use serde_json::{Map, Value};

use super::quantity;
use super::table::{Field, Shape, TypeRef, object_meta};

/// A field of a request body that the type does not have; it was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownField {
    /// Its path, e.g. `spec.containers[0].imag`.
    pub(crate) path: String,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown field \"{}\"", self.path)
    }
}

/// A value of the wrong JSON type for a built-in field; the text is the real server's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct DecodeError {
    message: String,
}

/// Checks and cuts `object` to its type: unknown fields are dropped and returned, and what stands
/// for absence is dropped (nulls; empty lists and maps of optional fields).
///
/// # Errors
/// The first value of the wrong JSON type (a 400, whatever the field validation).
pub(crate) fn decode(ty: TypeRef, object: &mut Value) -> Result<Vec<UnknownField>, DecodeError> {
    let mut decoder = Decoder {
        unknown: Vec::new(),
    };
    let place = Place {
        ty,
        json_path: "",
        go_path: "",
    };
    match object {
        Value::Object(fields) => decoder.fields(place, fields)?,
        other => return Err(mismatch(other, place, "", &ty.go_name())),
    }
    Ok(decoder.unknown)
}

/// Checks and cuts the `metadata` of an object whose kind is not of the table; as [`decode`] does.
///
/// # Errors
/// The first value of the wrong JSON type (a 400, whatever the field validation).
pub(crate) fn decode_metadata(object: &mut Value) -> Result<Vec<UnknownField>, DecodeError> {
    let Some(metadata) = object
        .get_mut("metadata")
        .filter(|metadata| !metadata.is_null())
    else {
        return Ok(Vec::new());
    };
    let mut unknown = decode(object_meta(), metadata)?;
    for field in &mut unknown {
        field.path.insert_str(0, "metadata.");
    }
    Ok(unknown)
}

struct Decoder {
    unknown: Vec<UnknownField>,
}

/// The innermost struct that holds a value, and the two paths that messages use.
#[derive(Clone, Copy)]
struct Place<'a> {
    ty: TypeRef,
    /// With indexes, as unknown fields are named.
    json_path: &'a str,
    /// Without indexes, as type errors name fields.
    go_path: &'a str,
}

impl Decoder {
    fn fields(
        &mut self,
        place: Place<'_>,
        fields: &mut Map<String, Value>,
    ) -> Result<(), DecodeError> {
        let mut dropped = Vec::new();
        for (name, value) in fields.iter_mut() {
            let json_path = join(place.json_path, name);
            let Some(field) = place.ty.field(name) else {
                self.unknown.push(UnknownField { path: json_path });
                dropped.push(name.clone());
                continue;
            };
            if value.is_null() && field.shape != Shape::Any {
                dropped.push(name.clone());
                continue;
            }
            let go_path = join(place.go_path, name);
            let below = Place {
                ty: place.ty,
                json_path: &json_path,
                go_path: &go_path,
            };
            self.value(&field.shape, value, below)?;
            if stands_for_absence(field, value) {
                dropped.push(name.clone());
            }
        }
        for name in dropped {
            fields.remove(&name);
        }
        Ok(())
    }

    fn value(
        &mut self,
        shape: &Shape,
        value: &mut Value,
        place: Place<'_>,
    ) -> Result<(), DecodeError> {
        let wrong = |value: &Value| Err(mismatch(value, place, place.go_path, &go_type(shape)));
        match (shape, &mut *value) {
            (Shape::Any, _) => Ok(()),
            (Shape::Text(format), Value::String(text)) => text_format(format, text),
            (Shape::Bool | Shape::BoolOr(_), Value::Bool(_)) => Ok(()),
            (Shape::Number, Value::Number(_)) => Ok(()),
            (Shape::Integer { is_32_bit }, Value::Number(number)) => {
                let fits = number
                    .as_i64()
                    .is_some_and(|n| !*is_32_bit || i32::try_from(n).is_ok());
                if fits { Ok(()) } else { wrong(value) }
            }
            (Shape::IntOrString, Value::String(_)) => Ok(()),
            (Shape::IntOrString, Value::Number(number)) => {
                let fits = number.as_i64().is_some_and(|n| i32::try_from(n).is_ok());
                if fits { Ok(()) } else { wrong(value) }
            }
            (Shape::Quantity, Value::String(text)) => {
                stored_quantity(text).map(|stored| *text = stored)
            }
            (Shape::Quantity, Value::Number(number)) => {
                let stored = stored_quantity(&number.to_string())?;
                *value = Value::String(stored);
                Ok(())
            }
            (Shape::Map(of), Value::Object(entries)) => {
                for (key, value) in entries {
                    let path = join(place.json_path, key);
                    if value.is_null() {
                        *value = zero(of);
                        continue;
                    }
                    // Keys of maps are no fields: type errors leave them out.
                    self.value(
                        of,
                        value,
                        Place {
                            json_path: &path,
                            ..place
                        },
                    )?;
                }
                Ok(())
            }
            (Shape::List(of), Value::Array(items)) => self.items(of, items, place),
            (Shape::ListOr(ty), Value::Array(items)) => {
                self.items(&Shape::Object(*ty), items, place)
            }
            (Shape::Object(ty) | Shape::BoolOr(ty) | Shape::ListOr(ty), Value::Object(fields)) => {
                self.fields(Place { ty: *ty, ..place }, fields)
            }
            _ => wrong(value),
        }
    }

    fn items(
        &mut self,
        of: &Shape,
        items: &mut [Value],
        place: Place<'_>,
    ) -> Result<(), DecodeError> {
        for (index, item) in items.iter_mut().enumerate() {
            let path = format!("{}[{index}]", place.json_path);
            if item.is_null() {
                *item = zero(of);
                continue;
            }
            self.value(
                of,
                item,
                Place {
                    json_path: &path,
                    ..place
                },
            )?;
        }
        Ok(())
    }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() {
        name.to_owned()
    } else {
        format!("{at}.{name}")
    }
}

/// Whether the real server's types cannot tell the value from an absent one.
fn stands_for_absence(field: &Field, value: &Value) -> bool {
    !field.required
        && match (&field.shape, value) {
            (Shape::List(_), Value::Array(items)) => items.is_empty(),
            (Shape::Map(_), Value::Object(entries)) => entries.is_empty(),
            _ => false,
        }
}

/// What null stands for in a list or map.
fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Text(_) => Value::String(String::new()),
        Shape::Quantity => Value::String("0".to_owned()),
        Shape::Bool => Value::Bool(false),
        Shape::Integer { .. } | Shape::Number | Shape::IntOrString => Value::from(0),
        Shape::Object(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

fn text_format(format: &str, text: &mut String) -> Result<(), DecodeError> {
    match format {
        "byte" => {
            let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            base64::engine::general_purpose::STANDARD
                .decode(&plain)
                .map(|_| *text = plain)
                .map_err(|error| {
                    let at = match error {
                        base64::DecodeError::InvalidByte(at, _) => at,
                        base64::DecodeError::InvalidLastSymbol { offset, .. } => offset,
                        _ => text.len(),
                    };
                    refuse(format!("illegal base64 data at input byte {at}"))
                })
        }
        "date-time" if text.parse::<k8s_openapi::jiff::Timestamp>().is_err() => {
            Err(refuse(format!(
                "parsing time \"{text}\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"{text}\" \
                 as \"2006\""
            )))
        }
        _ => Ok(()),
    }
}

fn stored_quantity(text: &str) -> Result<String, DecodeError> {
    quantity::canonical(text).map_err(|error| refuse(error.to_string()))
}

fn refuse(message: String) -> DecodeError {
    DecodeError { message }
}

fn mismatch(value: &Value, place: Place<'_>, go_path: &str, wanted: &str) -> DecodeError {
    let is_integer_field = wanted.starts_with("int");
    let found = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        // A number of the wrong size or form is shown, one in the place of another type is not.
        Value::Number(number) if is_integer_field => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    refuse(if go_path.is_empty() {
        format!("json: cannot unmarshal {found} into Go value of type {wanted}")
    } else {
        let holder = place.ty.short_name();
        format!(
            "json: cannot unmarshal {found} into Go struct field {holder}.{go_path} of type {wanted}"
        )
    })
}

fn go_type(shape: &Shape) -> String {
    match shape {
        Shape::Any => "interface {}".to_owned(),
        Shape::Text(format) if format == "byte" => "[]uint8".to_owned(),
        Shape::Text(format) if format == "date-time" => "string".to_owned(),
        Shape::Text(_) | Shape::Quantity => "string".to_owned(),
        Shape::Bool => "bool".to_owned(),
        Shape::Integer { is_32_bit: true } | Shape::IntOrString => "int32".to_owned(),
        Shape::Integer { is_32_bit: false } => "int64".to_owned(),
        Shape::Number => "float64".to_owned(),
        Shape::Map(of) => format!("map[string]{}", go_type(of)),
        Shape::List(of) => format!("[]{}", go_type(of)),
        Shape::Object(ty) | Shape::BoolOr(ty) | Shape::ListOr(ty) => ty.go_name(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::lookup;
    use super::*;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "the cases build it in place")]
    fn pod(spec: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec})
    }

    /// Texts recorded from a kube-apiserver 1.37.2.
    #[test]
    fn w9_wrong_types_are_refused_in_the_words_of_the_real_server() {
        let cases = [
            (
                ("v1", "Pod"),
                pod(json!({"containers": [{"ports": [{"containerPort": "x"}]}]})),
                "json: cannot unmarshal string into Go struct field \
                 ContainerPort.spec.containers.ports.containerPort of type int32",
            ),
            (
                ("apps/v1", "Deployment"),
                json!({"spec": {"replicas": "x"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas \
                 of type int32",
            ),
            (
                ("v1", "ConfigMap"),
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of \
                 type string",
            ),
            (
                ("v1", "ConfigMap"),
                json!({"metadata": {"labels": []}}),
                "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of \
                 type map[string]string",
            ),
            (
                ("v1", "ConfigMap"),
                json!({"immutable": "x"}),
                "json: cannot unmarshal string into Go struct field ConfigMap.immutable of type \
                 bool",
            ),
            (
                ("v1", "ConfigMap"),
                json!({"metadata": "x"}),
                "json: cannot unmarshal string into Go struct field ConfigMap.metadata of type \
                 v1.ObjectMeta",
            ),
            (
                ("v1", "Pod"),
                pod(json!({"containers": {"name": "a"}})),
                "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of \
                 type []v1.Container",
            ),
            (
                ("v1", "Pod"),
                pod(json!({"containers": ["a"]})),
                "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of \
                 type v1.Container",
            ),
            (
                ("v1", "Pod"),
                pod(json!({"terminationGracePeriodSeconds": 1.5})),
                "json: cannot unmarshal number 1.5 into Go struct field \
                 PodSpec.spec.terminationGracePeriodSeconds of type int64",
            ),
            (
                ("v1", "Pod"),
                pod(json!({"containers": [{"ports": [{"containerPort": 99_999_999_999_i64}]}]})),
                "json: cannot unmarshal number 99999999999 into Go struct field \
                 ContainerPort.spec.containers.ports.containerPort of type int32",
            ),
            (
                ("v1", "Pod"),
                pod(json!({"containers": [{"resources": {"limits": {"cpu": "x"}}}]})),
                "quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                ("v1", "Pod"),
                json!({"metadata": {"creationTimestamp": "y"}}),
                "parsing time \"y\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"y\" as \
                 \"2006\"",
            ),
            (
                ("v1", "Secret"),
                json!({"data": {"a": "%%"}}),
                "illegal base64 data at input byte 0",
            ),
        ];
        for ((version, kind), mut object, text) in cases {
            let ty = lookup(version, kind).unwrap();
            let error = decode(ty, &mut object).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn w8_unknown_fields_are_dropped_and_named() {
        let ty = lookup("v1", "Pod").unwrap();
        let mut object = json!({
            "metadata": {"name": "x", "labels": {"a": null}, "annotations": {}},
            "foo": 1,
            "spec": {
                "containers": [
                    {"name": "a", "zz": 1, "command": [], "resources": {"limits": {"cpu": 1}}},
                ],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "nodeSelector": null,
            },
        });
        let unknown = decode(ty, &mut object).unwrap();
        let texts: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "unknown field \"foo\"",
                "unknown field \"spec.containers[0].zz\""
            ]
        );
        assert_eq!(
            object,
            json!({
                "metadata": {"name": "x", "labels": {"a": ""}},
                "spec": {
                    "containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            })
        );
    }

    /// Texts recorded from a kube-apiserver 1.37.2.
    #[test]
    fn m5_the_metadata_of_custom_resources_is_decoded_as_that_of_all_objects() {
        let mut object = json!({"metadata": {"name": "a", "foo": 1, "labels": null,
            "annotations": {"a": null}}});
        let unknown = decode_metadata(&mut object).unwrap();
        assert_eq!(unknown.len(), 1);
        assert_eq!(unknown[0].to_string(), "unknown field \"metadata.foo\"");
        assert_eq!(
            object,
            json!({"metadata": {"name": "a", "annotations": {"a": ""}}})
        );
        let cases = [
            (
                json!({"labels": {"a": 1}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
            ),
            (
                json!({"labels": []}),
                "json: cannot unmarshal array into Go struct field ObjectMeta.labels of type \
                 map[string]string",
            ),
            (
                json!("x"),
                "json: cannot unmarshal string into Go value of type v1.ObjectMeta",
            ),
        ];
        for (metadata, text) in cases {
            let error = decode_metadata(&mut json!({"metadata": metadata})).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn schemas_inside_definitions_are_decoded_too() {
        let ty = lookup("apiextensions.k8s.io/v1", "CustomResourceDefinition").unwrap();
        let mut object = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
            "type": "object",
            "properties": {"a": {"typ": "string", "default": {"any": [1]}, "enum": ["x", null]}},
            "additionalProperties": {"nope": 1},
        }}}]}});
        let unknown = decode(ty, &mut object).unwrap();
        let paths: Vec<&str> = unknown.iter().map(|field| field.path.as_str()).collect();
        let at = "spec.versions[0].schema.openAPIV3Schema";
        assert_eq!(
            paths,
            [
                format!("{at}.additionalProperties.nope"),
                format!("{at}.properties.a.typ")
            ]
        );
        let kept = &object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["a"];
        assert_eq!(kept["default"], json!({"any": [1]}));
    }
}
