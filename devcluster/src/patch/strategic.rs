//! Strategic merge patch.

use serde_json::Value;

use super::PatchError;
use crate::types::TypeRef;

/// Applies a strategic merge patch to an object of type `ty` and returns the result.
///
/// # Errors
/// [`PatchError::Malformed`] for a bad directive or a list item without its merge key.
pub(crate) fn strategic(target: &Value, patch: &Value, ty: TypeRef) -> Result<Value, PatchError> {
    unimplemented!("{target} {patch} {ty:?}")
}
