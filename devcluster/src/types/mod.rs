//! The types of the built-in kinds: decoding, unknown and duplicate fields, merge keys.

use std::fmt;

use serde_json::Value;

/// One type of the table; cheap to copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeRef(usize);

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

/// A key that occurred twice in one JSON object of a request body; the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DuplicateField {
    /// Its path, e.g. `metadata.labels.a`.
    pub(crate) path: String,
}

impl fmt::Display for DuplicateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "duplicate field \"{}\"", self.path)
    }
}

/// A value of the wrong JSON type for a built-in field; the text is the real server's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct DecodeError {
    message: String,
}

/// The type of a built-in kind, e.g. (`apps/v1`, `Deployment`); `None` if it is not in the table.
pub(crate) fn lookup(api_version: &str, kind: &str) -> Option<TypeRef> {
    unimplemented!("{api_version} {kind}")
}

/// Checks and cuts `object` to its type: unknown fields are dropped and returned, nulls dropped.
///
/// # Errors
/// The first value of the wrong JSON type (a 400, whatever the field validation).
pub(crate) fn decode(ty: TypeRef, object: &mut Value) -> Result<Vec<UnknownField>, DecodeError> {
    unimplemented!("{ty:?} {object}")
}

/// Parses JSON and reports keys that occur twice in one object; the last one counts.
///
/// # Errors
/// The syntax error.
pub(crate) fn parse_json(bytes: &[u8]) -> Result<(Value, Vec<DuplicateField>), serde_json::Error> {
    unimplemented!("{bytes:?}")
}
