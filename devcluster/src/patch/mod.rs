//! Patches: JSON merge patch, JSON patch and strategic merge patch, as pure functions.

mod strategic;

use json_patch::PatchOperation;
use serde_json::Value;

use crate::types::{MAX_DEPTH, depth};

pub(crate) use strategic::strategic;

/// The most operations that a JSON patch may have.
pub(crate) const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// The most bytes, as JSON, that the `copy` operations of one patch may add: a few of them that each
/// double the object would else outgrow any memory.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Why a patch was not applied.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PatchError {
    /// The patch is not of the form its type demands: the request is bad (400).
    #[error("{0}")]
    Malformed(String),
    /// The patch has too many operations (413).
    #[error(
        "The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {0}"
    )]
    TooManyOperations(usize),
    /// The patch is well-formed but does not fit the object (422); the cause is for the log, the
    /// real server keeps it to itself.
    #[error("the server rejected our request due to an error in our request")]
    Unprocessable(String),
    /// The patch has a part that cannot be carried out; the real server takes this for a failure
    /// of its own (500).
    #[error("{0}")]
    Failed(String),
}

/// Applies a JSON merge patch (RFC 7386): null removes, objects merge, all else replaces.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    json_patch::merge(target, patch);
}

/// Applies a JSON patch (RFC 6902) wholly or not at all.
///
/// # Errors
/// [`PatchError::Malformed`] if `patch` is no list of objects, [`PatchError::Unprocessable`] if an
/// operation is unknown or fails (also a `test`), nests deeper than [`MAX_DEPTH`] or copies add more
/// than [`MAX_COPIED_BYTES`]; `target` is then unchanged.
pub(crate) fn json(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if let Some(operations) = patch.as_array()
        && operations.len() > MAX_JSON_PATCH_OPERATIONS
    {
        return Err(PatchError::TooManyOperations(operations.len()));
    }
    let is_list = patch
        .as_array()
        .is_some_and(|all| all.iter().all(Value::is_object));
    let operations: json_patch::Patch = serde_json::from_value(patch.clone()).map_err(|error| {
        if is_list {
            PatchError::Unprocessable(error.to_string())
        } else {
            PatchError::Malformed(format!("error decoding patch: {error}"))
        }
    })?;
    // Patched on a copy: undoing in place is not exact for moves over existing keys.
    let mut patched = target.clone();
    let mut copied = 0;
    for operation in operations.iter() {
        if let PatchOperation::Copy(copy) = operation
            && let Some(source) = patched.pointer(copy.from.as_str())
        {
            copied += source.to_string().len();
            if copied > MAX_COPIED_BYTES {
                return Err(PatchError::Unprocessable(format!(
                    "copies add more than {MAX_COPIED_BYTES} bytes"
                )));
            }
        }
        if reach(operation, &patched) > MAX_DEPTH {
            return Err(PatchError::Unprocessable(format!(
                "the patch nests deeper than {MAX_DEPTH} lists and objects"
            )));
        }
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation))
            .map_err(|error| PatchError::Unprocessable(error.to_string()))?;
    }
    *target = patched;
    Ok(())
}

/// How deep what an operation puts in place reaches.
fn reach(operation: &PatchOperation, target: &Value) -> usize {
    let (path, below) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Copy(copy) => (&copy.path, target.pointer(copy.from.as_str())),
        PatchOperation::Move(step) => (&step.path, target.pointer(step.from.as_str())),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return 0,
    };
    path.as_str().matches('/').count() + below.map_or(0, depth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_removes_nulls_and_sets_nested() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        merge(
            &mut target,
            &json!({"a": {"b": null, "d": {"e": null, "f": 1}}, "l": [3]}),
        );
        assert_eq!(target, json!({"a": {"c": 2, "d": {"f": 1}}, "l": [3]}));
    }

    #[test]
    fn json_patch_applies_wholly_or_not_at_all() {
        let mut target = json!({"a": 1, "l": [1]});
        json(
            &mut target,
            &json!([
                {"op": "test", "path": "/a", "value": 1},
                {"op": "add", "path": "/l/-", "value": 2},
                {"op": "remove", "path": "/a"},
            ]),
        )
        .unwrap();
        assert_eq!(target, json!({"l": [1, 2]}));

        let failing = [
            json!([{"op": "add", "path": "/x", "value": 1}, {"op": "remove", "path": "/nope"}]),
            json!([{"op": "test", "path": "/l", "value": []}]),
            json!([{"op": "odd", "path": "/l"}]),
        ];
        for patch in failing {
            let before = target.clone();
            assert!(matches!(
                json(&mut target, &patch),
                Err(PatchError::Unprocessable(_))
            ));
            assert_eq!(target, before);
        }
        assert!(matches!(
            json(&mut target, &json!({"a": 1})),
            Err(PatchError::Malformed(_))
        ));
        let doubling = Value::Array(vec![
            json!({"op": "copy", "from": "/l", "path": "/l/-"});
            64
        ]);
        assert!(matches!(
            json(&mut target, &doubling),
            Err(PatchError::Unprocessable(_))
        ));
        let nested = (0..100).fold(json!(0), |below, _| json!([below]));
        let deep = json!([
            {"op": "add", "path": "/d", "value": nested},
            {"op": "copy", "from": "/d", "path": format!("/d{}", "/0".repeat(60))},
        ]);
        assert!(matches!(
            json(&mut target, &deep),
            Err(PatchError::Unprocessable(_))
        ));
        let many = Value::Array(vec![
            json!({"op": "test", "path": "/l/0", "value": 1});
            MAX_JSON_PATCH_OPERATIONS + 1
        ]);
        assert_eq!(
            json(&mut target, &many),
            Err(PatchError::TooManyOperations(10_001))
        );
    }
}
