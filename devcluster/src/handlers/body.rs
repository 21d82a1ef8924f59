//! Decoding of request bodies.

use http::header;
use serde_json::Value;

use super::{
    Call,
    options::{FieldValidation, WriteOptions},
};
use crate::{
    error::{ApiError, ApiResult},
    protobuf,
    registry::{Resource, resource::set_type},
    types,
};

const ACCEPTED: &[&str] = &["application/json", "application/yaml", protobuf::MEDIA_TYPE];

/// A body as JSON and the paths of keys that it had twice.
struct Parsed {
    value: Value,
    duplicates: Vec<String>,
}

/// The media type of the body, without parameters; JSON when none is named.
pub(super) fn media_type(call: &Call) -> &str {
    let text = call.header(header::CONTENT_TYPE).unwrap_or_default();
    match text.split(';').next().unwrap_or_default().trim() {
        "" => "application/json",
        media => media,
    }
}

fn parse(call: &Call) -> ApiResult<Parsed> {
    match media_type(call) {
        "application/json" => {
            let (value, duplicates) = types::parse_json(&call.body).map_err(|error| {
                ApiError::bad_request(format!(
                    "couldn't get version/kind; json parse error: {error}"
                ))
            })?;
            Ok(Parsed {
                value,
                duplicates: duplicates.into_iter().map(|field| field.path).collect(),
            })
        }
        "application/yaml" => Ok(Parsed {
            value: yaml(&call.body)?,
            duplicates: Vec::new(),
        }),
        protobuf::MEDIA_TYPE => {
            let value = protobuf::decode(&call.body)
                .map_err(|error| ApiError::bad_request(error.to_string()))?;
            // Messages may hold JSON texts, each of which may be as deep as JSON may be.
            if types::depth(&value) > types::MAX_DEPTH {
                let limit = types::MAX_DEPTH;
                return Err(ApiError::bad_request(format!(
                    "the body nests deeper than {limit} lists and objects"
                )));
            }
            Ok(Parsed {
                value,
                duplicates: Vec::new(),
            })
        }
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

/// A YAML document, and what it says of keys that stand twice in one map; the last one counts.
pub(super) struct Document {
    pub(super) value: Value,
    pub(super) duplicates: Vec<String>,
}

/// Parses a YAML document (JSON is one) that may hold a key twice.
pub(super) fn yaml_document(bytes: &[u8]) -> ApiResult<Document> {
    let plain = serde_json::from_slice::<&serde_json::value::RawValue>(bytes)
        .is_ok()
        .then(|| types::parse_json(bytes).ok())
        .flatten();
    if let Some((value, duplicates)) = plain
        && duplicates.is_empty()
    {
        return Ok(Document {
            value,
            duplicates: Vec::new(),
        });
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ApiError::bad_request(format!("the YAML body is not UTF-8: {error}")))?;
    let options =
        serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    let value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        ApiError::bad_request(format!("error converting YAML to JSON: {error}"))
    })?;
    if types::depth(&value) > types::MAX_DEPTH {
        let limit = types::MAX_DEPTH;
        return Err(ApiError::bad_request(format!(
            "the body nests deeper than {limit} lists and objects"
        )));
    }
    let strict = serde_saphyr::from_str::<Value>(text);
    let duplicates = match strict
        .as_ref()
        .map_err(serde_saphyr::Error::without_snippet)
    {
        Err(serde_saphyr::Error::DuplicateMappingKey { key, location }) => vec![format!(
            "line {}: key \"{}\" already set in map",
            location.line(),
            key.as_deref().unwrap_or_default()
        )],
        _ => Vec::new(),
    };
    Ok(Document { value, duplicates })
}

/// Parses a YAML document.
pub(super) fn yaml(bytes: &[u8]) -> ApiResult<Value> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ApiError::bad_request(format!("the YAML body is not UTF-8: {error}")))?;
    serde_saphyr::from_str(text)
        .map_err(|error| ApiError::bad_request(format!("error converting YAML to JSON: {error}")))
}

/// The body as it is, of whatever kind.
pub(super) fn decode_any(call: &Call) -> ApiResult<Value> {
    let value = parse(call)?.value;
    if value.is_object() {
        Ok(value)
    } else {
        Err(no_object(&value))
    }
}

/// The body as an object of a kind that a subresource takes; its type may be left out.
pub(super) fn decode_as(call: &Call, api_version: &str, kind: &str) -> ApiResult<Value> {
    let mut value = decode_any(call)?;
    let sent = value["kind"].as_str().unwrap_or_default();
    if !sent.is_empty() && sent != kind {
        return Err(ApiError::bad_request(format!(
            "the body must be {kind}, not {sent}"
        )));
    }
    set_type(&mut value, api_version, kind);
    if let Some(ty) = types::lookup(api_version, kind) {
        types::decode(ty, &mut value).map_err(|error| {
            ApiError::bad_request(format!(
                "{kind} in version \"{api_version}\" cannot be handled as a {kind}: {error}"
            ))
        })?;
    }
    Ok(value)
}

/// The body as an object of the resource: cut to its fields, with defaults. What it does not know is
/// refused, warned of or ignored by the options.
pub(super) fn decode(call: &mut Call, options: WriteOptions) -> ApiResult<Value> {
    let Parsed {
        mut value,
        duplicates,
    } = parse(call)?;
    if !value.is_object() {
        return Err(no_object(&value));
    }
    check_type(&call.resource, &mut value)?;
    let unknown = call.resource.normalise(&mut value)?;
    let problems = problems(&unknown, &duplicates);
    match options.field_validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => call.warnings.extend(problems),
        FieldValidation::Strict if problems.is_empty() => {}
        FieldValidation::Strict => {
            let Resource { kind, version, .. } = &*call.resource;
            return Err(ApiError::bad_request(format!(
                "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {}",
                problems.join(", ")
            )));
        }
    }
    Ok(value)
}

/// The texts for unknown and repeated fields.
pub(super) fn problems(unknown: &[String], duplicates: &[String]) -> Vec<String> {
    let unknown = unknown
        .iter()
        .map(|path| format!("unknown field \"{path}\""));
    let duplicates = duplicates
        .iter()
        .map(|path| format!("duplicate field \"{path}\""));
    unknown.chain(duplicates).collect()
}

fn no_object(value: &Value) -> ApiError {
    ApiError::bad_request(format!(
        "couldn't get version/kind; json parse error: the body must be a JSON object, not {value}"
    ))
}

/// Checks that kind and version are those of the resource; a built-in kind may leave them out.
fn check_type(resource: &Resource, value: &mut Value) -> ApiResult<()> {
    let kind = value["kind"].as_str().unwrap_or_default();
    let version = value["apiVersion"].as_str().unwrap_or_default();
    if resource.is_custom() {
        if kind.is_empty() {
            return Err(ApiError::bad_request(format!(
                "Object 'Kind' is missing in '{value}'"
            )));
        }
        if version.is_empty() {
            return Err(ApiError::bad_request(format!(
                "Object 'apiVersion' is missing in '{value}'"
            )));
        }
    }
    let expected = resource.api_version();
    if !version.is_empty() && version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if !kind.is_empty() && *kind != *resource.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}: the kind in the data does not match",
            resource.version, resource.kind
        )));
    }
    set_type(value, &expected, &resource.kind);
    Ok(())
}
