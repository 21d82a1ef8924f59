//! Request bodies in Kubernetes' protobuf encoding, decoded to JSON by a table of messages.
//!
//! Only requests: answers are always JSON, which every client lists as well.

mod table;
mod wire;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde_json::{Map, Number, Value};

use table::{Field, FieldKind, MessageId, Repeat};
use wire::{Reader, WireValue};

/// The media type of such bodies.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";
/// Messages inside messages that are followed; real objects need far fewer.
const MAX_DEPTH: usize = 64;

/// Why a body could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The body does not start as such bodies do.
    #[error("the body does not start with the protobuf prefix \"k8s\\x00\"")]
    Prefix,
    /// The bytes are cut or damaged.
    #[error("the protobuf body is damaged")]
    Damaged,
    /// The kind is not one that is sent in protobuf.
    #[error("no kind \"{kind}\" is known in protobuf for version \"{api_version}\": send JSON")]
    UnknownKind {
        /// `apiVersion` of the body.
        api_version: String,
        /// `kind` of the body.
        kind: String,
    },
}

impl From<wire::Damaged> for Error {
    fn from(_: wire::Damaged) -> Self {
        Self::Damaged
    }
}

/// Decodes an enveloped object. Unknown field numbers are skipped; fields that protobuf cannot leave out
/// are left out when they are empty, as in JSON.
///
/// # Errors
/// [`Error`] for anything that is not such an object.
pub(crate) fn decode(bytes: &[u8]) -> Result<Value, Error> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or(Error::Prefix)?;
    let mut api_version = String::new();
    let mut kind = String::new();
    let mut raw: &[u8] = &[];
    let mut reader = Reader::new(envelope);
    while let Some((number, value)) = reader.next()? {
        match (number, value) {
            (1, WireValue::Bytes(meta)) => {
                let mut reader = Reader::new(meta);
                while let Some((number, value)) = reader.next()? {
                    let text = value.text().unwrap_or_default();
                    match number {
                        1 => api_version = text,
                        2 => kind = text,
                        _ => {}
                    }
                }
            }
            (2, WireValue::Bytes(object)) => raw = object,
            _ => {}
        }
    }
    let Some(message) = table::message_of(&api_version, &kind) else {
        return Err(Error::UnknownKind { api_version, kind });
    };
    let mut object = Map::new();
    read_message(raw, message, &mut object, 0)?;
    object.insert("apiVersion".to_owned(), Value::from(api_version));
    object.insert("kind".to_owned(), Value::from(kind));
    Ok(Value::Object(object))
}

fn read_message(
    bytes: &[u8],
    message: MessageId,
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::Damaged);
    }
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        let Some(field) = table::field_of(message, number) else {
            continue;
        };
        if field.inline {
            if let (FieldKind::Message(inner), WireValue::Bytes(bytes)) = (&field.kind, wire) {
                read_message(bytes, *inner, object, depth + 1)?;
            }
            continue;
        }
        match field.repeat {
            Repeat::Map => {
                let WireValue::Bytes(entry) = wire else {
                    return Err(Error::Damaged);
                };
                let (key, value) = read_entry(entry, field, depth)?;
                if let Value::Object(map) = object
                    .entry(field.name.clone())
                    .or_insert_with(|| Value::Object(Map::new()))
                {
                    map.insert(key, value);
                }
            }
            Repeat::List => {
                let value = read_value(&wire, field, depth)?;
                if let Value::Array(list) = object
                    .entry(field.name.clone())
                    .or_insert_with(|| Value::Array(Vec::new()))
                {
                    list.push(value);
                }
            }
            Repeat::One => {
                let value = read_value(&wire, field, depth)?;
                if field.pointer || !is_empty(&value) {
                    object.insert(field.name.clone(), value);
                }
            }
        }
    }
    Ok(())
}

/// Whether JSON leaves a value out that is no pointer.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn read_entry(entry: &[u8], field: &Field, depth: usize) -> Result<(String, Value), Error> {
    let mut key = String::new();
    let mut value = empty_value(&field.kind);
    let mut reader = Reader::new(entry);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => key = wire.text()?,
            2 => value = read_value(&wire, field, depth)?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn empty_value(kind: &FieldKind) -> Value {
    match kind {
        FieldKind::Text | FieldKind::Bytes => Value::from(""),
        FieldKind::Bool => Value::Bool(false),
        FieldKind::Integer | FieldKind::Double => Value::from(0),
        FieldKind::Message(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

fn read_value(wire: &WireValue<'_>, field: &Field, depth: usize) -> Result<Value, Error> {
    Ok(match &field.kind {
        FieldKind::Text => Value::from(wire.text()?),
        FieldKind::Bool => Value::Bool(wire.integer()? != 0),
        FieldKind::Integer => Value::from(wire.integer()?),
        FieldKind::Double => Number::from_f64(wire.double()?).map_or(Value::Null, Value::Number),
        FieldKind::Bytes => Value::from(STANDARD.encode(wire.bytes()?)),
        FieldKind::Time => read_time(wire.bytes()?, "%Y-%m-%dT%H:%M:%SZ")?,
        FieldKind::MicroTime => read_time(wire.bytes()?, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        FieldKind::Quantity => Value::from(wrapped(wire.bytes()?, 1)?.unwrap_or_default()),
        FieldKind::Json => match only_bytes(wire.bytes()?, 1)? {
            Some(raw) => serde_json::from_slice(raw).map_err(|_| Error::Damaged)?,
            None => Value::Null,
        },
        FieldKind::IntOrString => read_int_or_string(wire.bytes()?)?,
        FieldKind::Texts => read_texts(wire.bytes()?)?,
        FieldKind::OneOf { choice, list } => {
            read_one_of(wire.bytes()?, *choice, list.as_deref(), depth)?
        }
        FieldKind::Message(message) => {
            let mut object = Map::new();
            read_message(wire.bytes()?, *message, &mut object, depth + 1)?;
            Value::Object(object)
        }
    })
}

/// Seconds and nanoseconds since 1970; a message without both is "no time".
fn read_time(bytes: &[u8], format: &str) -> Result<Value, Error> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => seconds = value.integer()?,
            2 => nanos = value.integer()?,
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| Error::Damaged)?;
    let time = Timestamp::new(seconds, nanos).map_err(|_| Error::Damaged)?;
    strtime::format(format, time)
        .map(Value::from)
        .map_err(|_| Error::Damaged)
}

fn read_int_or_string(bytes: &[u8]) -> Result<Value, Error> {
    let (mut kind, mut integer, mut text) = (0, 0, String::new());
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => kind = value.integer()?,
            2 => integer = value.integer()?,
            3 => text = value.text()?,
            _ => {}
        }
    }
    Ok(if kind == 0 {
        Value::from(integer)
    } else {
        Value::from(text)
    })
}

/// A list of texts that is a message of its own.
fn read_texts(bytes: &[u8]) -> Result<Value, Error> {
    let mut texts = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.next()? {
        if number == 1 {
            texts.push(Value::from(value.text()?));
        }
    }
    Ok(Value::Array(texts))
}

/// A schema, or what may stand for it: a flag, or a list.
fn read_one_of(
    bytes: &[u8],
    schema: MessageId,
    list: Option<&FieldKind>,
    depth: usize,
) -> Result<Value, Error> {
    let mut flag = false;
    let mut items = Vec::new();
    let mut reader = Reader::new(bytes);
    // A flag comes first, a schema second; with a list it is the other way round.
    let schema_number = if list.is_some() { 1 } else { 2 };
    while let Some((number, value)) = reader.next()? {
        if number == schema_number {
            let mut object = Map::new();
            read_message(value.bytes()?, schema, &mut object, depth + 1)?;
            return Ok(Value::Object(object));
        }
        match list {
            Some(FieldKind::Text) => items.push(Value::from(value.text()?)),
            Some(_) => {
                let mut object = Map::new();
                read_message(value.bytes()?, schema, &mut object, depth + 1)?;
                items.push(Value::Object(object));
            }
            None => flag = value.integer()? != 0,
        }
    }
    Ok(if list.is_some() {
        Value::Array(items)
    } else {
        Value::Bool(flag)
    })
}

fn only_bytes(bytes: &[u8], wanted: u32) -> Result<Option<&[u8]>, Error> {
    let mut found = None;
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.next()? {
        if number == wanted {
            found = Some(value.bytes()?);
        }
    }
    Ok(found)
}

fn wrapped(bytes: &[u8], wanted: u32) -> Result<Option<String>, Error> {
    let Some(text) = only_bytes(bytes, wanted)? else {
        return Ok(None);
    };
    String::from_utf8(text.to_vec())
        .map(Some)
        .map_err(|_| Error::Damaged)
}

#[cfg(test)]
mod tests;
