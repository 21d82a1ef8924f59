//! Defaults and validation of CustomResourceDefinition objects.

use serde_json::Value;

use super::FieldError;

/// Fills in singular, listKind, conversion and the like.
pub(crate) fn apply_defaults(definition: &mut Value) {
    unimplemented!("{definition}")
}

/// Everything that is wrong with a created (`old` is `None`) or changed definition.
pub(crate) fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    unimplemented!("{new} {old:?}")
}
