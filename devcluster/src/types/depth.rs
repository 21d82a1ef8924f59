//! How deep values nest.

use serde_json::Value;

/// The most lists and objects that a value may nest. The JSON parser reads no deeper, so a value beyond
/// it could be stored but never be read again.
pub(crate) const MAX_DEPTH: usize = 127;

/// The lists and objects that nest in a value, itself included; 0 for a scalar.
pub(crate) fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        _ => return 0,
    };
    1 + below.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_too_deep_is_what_the_parser_reads() {
        for n in [1, 5, MAX_DEPTH, MAX_DEPTH + 1] {
            let text = format!("{}{}", "[".repeat(n), "]".repeat(n));
            match serde_json::from_str::<Value>(&text) {
                Ok(value) => assert_eq!(depth(&value), n),
                Err(_) => assert!(n > MAX_DEPTH, "{n}"),
            }
        }
        let text = "{\"a\":{},\"b\":[[1]]}";
        assert_eq!(depth(&serde_json::from_str(text).unwrap()), 3);
    }
}
