//! The `fieldPath` of a rule: a JSON path of fields and map keys below the rule's node.

use crate::schema::structural::Schema;

/// Checks `source` against the schema and returns it in the form of field errors.
pub(super) fn normalize(source: &str, schema: &Schema) -> Result<String, String> {
    let mut normalized = String::new();
    let mut schema = schema;
    let mut rest = source;
    while !rest.is_empty() {
        let (name, tail) = if let Some(tail) = rest.strip_prefix('.') {
            let end = tail.find(['.', '[']).unwrap_or(tail.len());
            let (name, tail) = tail.split_at(end);
            if name.is_empty() {
                return Err("unexpected end of JSON path".to_owned());
            }
            (name.to_owned(), tail)
        } else if let Some(tail) = rest.strip_prefix('[') {
            quoted_key(tail)?
        } else {
            return Err(format!("expected [ or . but got: {rest}"));
        };
        let next = if schema.properties.is_empty() {
            normalized = format!("{normalized}[{name}]");
            schema.additional_schema()
        } else {
            let dot = if normalized.is_empty() { "" } else { "." };
            normalized = format!("{normalized}{dot}{name}");
            schema.properties.get(&name)
        };
        schema = next.ok_or("does not refer to a valid field")?;
        rest = tail;
    }
    Ok(normalized)
}

/// The key of `'key']…` and what follows it.
fn quoted_key(text: &str) -> Result<(String, &str), String> {
    let inner = text
        .strip_prefix('\'')
        .ok_or_else(|| format!("expected single quoted string but got {text}"))?;
    let mut key = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' => {
                let tail = &inner[at + 1..];
                return match tail.strip_prefix(']') {
                    Some(tail) => Ok((key, tail)),
                    None => Err(format!("expected ] but got {tail}")),
                };
            }
            '\\' => match chars.next() {
                Some((_, c @ ('\'' | '\\'))) => key.push(c),
                Some((_, 'n')) => key.push('\n'),
                Some((_, 't')) => key.push('\t'),
                Some((_, 'r')) => key.push('\r'),
                Some((_, c)) => {
                    return Err(format!("invalid string literal: invalid escape char \\{c}"));
                }
                None => break,
            },
            c => key.push(c),
        }
    }
    Err("unexpected end of JSON path".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c6_field_paths_follow_the_schema() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "object", "properties": {"b.c": {"type": "string"}}},
            "m": {"type": "object", "additionalProperties": {"type": "string"}},
        }}));
        let good = [
            (".a", "a"),
            (".a['b.c']", "a.b.c"),
            (".m.k", "m[k]"),
            (".m['k']", "m[k]"),
        ];
        for (source, normalized) in good {
            assert_eq!(
                normalize(source, &schema).as_deref(),
                Ok(normalized),
                "{source}"
            );
        }
        for bad in ["a", ".nope", ".a.b", ".a[0]", ".a['b.c", "."] {
            assert!(normalize(bad, &schema).is_err(), "{bad}");
        }
    }
}
