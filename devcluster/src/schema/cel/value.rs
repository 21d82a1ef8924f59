//! Values of custom resources as CEL sees them.
//!
//! Only what the schema knows is visible; names that are no CEL identifiers are escaped as the
//! real server escapes them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Program, Value as CelValue};
use serde_json::{Number, Value};

use super::environment;
use super::needs::Needs;
use crate::schema::formats;
use crate::schema::structural::Schema;

/// The escaped form of a field name, or none if CEL cannot name it.
pub(super) fn escape(name: &str) -> Option<Cow<'_, str>> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(Cow::Owned(format!("__{name}__")));
    }
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    if name.bytes().all(is_plain) && !name.contains("__") {
        return Some(Cow::Borrowed(name));
    }
    let mut escaped = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some(tail) = rest.strip_prefix("__") {
            escaped.push_str("__underscores__");
            rest = tail;
            continue;
        }
        match c {
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => escaped.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    Some(Cow::Owned(escaped))
}

const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// As much of `value` under its schema as is looked at; `is_root` makes apiVersion, kind and the object's
/// name visible.
pub(super) fn convert(schema: &Schema, value: &Value, is_root: bool, needs: &Needs) -> CelValue {
    let whole = |schema: &Schema, value: &Value| {
        convert(schema, value, schema.embedded, &Needs::Everything)
    };
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(flag) => CelValue::Bool(*flag),
        Value::Number(number) => convert_number(schema, number),
        Value::String(text) => convert_text(schema, text),
        Value::Array(items) => {
            let items: Vec<CelValue> = match schema.items.as_deref() {
                Some(of) => items.iter().map(|item| whole(of, item)).collect(),
                None => Vec::new(),
            };
            CelValue::List(Arc::new(items))
        }
        Value::Object(fields) => {
            let mut map = HashMap::with_capacity(fields.len());
            if let Some(of) = schema.additional_schema() {
                for (name, value) in fields {
                    map.insert(key(name), whole(of, value));
                }
                return CelValue::Map(Map { map: Arc::new(map) });
            }
            for (name, value) in fields {
                if let (Some(property), Some(name)) = (schema.properties.get(name), escape(name))
                    && needs.include(&name)
                {
                    map.insert(key(&name), whole(property, value));
                }
            }
            if is_root {
                insert_type_and_name(&mut map, value);
            }
            CelValue::Map(Map { map: Arc::new(map) })
        }
    }
}

/// `value` as the optional that `oldSelf` is under `optionalOldSelf`.
pub(super) fn optional(value: Option<CelValue>) -> CelValue {
    static NONE: LazyLock<Program> = LazyLock::new(|| constant_program("optional.none()"));
    static SOME: LazyLock<Program> = LazyLock::new(|| constant_program("optional.of(x)"));
    match value {
        None => evaluate(&NONE, None),
        Some(value) => evaluate(&SOME, Some(value)),
    }
    .unwrap_or(CelValue::Null)
}

fn key(name: &str) -> Key {
    Key::String(Arc::new(name.to_owned()))
}

fn insert_type_and_name(map: &mut HashMap<Key, CelValue>, object: &Value) {
    let text = |value: &Value| {
        value
            .as_str()
            .map(|s| CelValue::String(Arc::new(s.to_owned())))
    };
    for name in ["apiVersion", "kind"] {
        if let Some(value) = object.get(name).and_then(text) {
            map.insert(key(name), value);
        }
    }
    if let Some(metadata) = object.get("metadata") {
        let names: HashMap<Key, CelValue> = ["name", "generateName"]
            .into_iter()
            .filter_map(|name| Some((key(name), metadata.get(name).and_then(text)?)))
            .collect();
        map.insert(
            key("metadata"),
            CelValue::Map(Map {
                map: Arc::new(names),
            }),
        );
    }
}

fn convert_number(schema: &Schema, number: &Number) -> CelValue {
    let float = number.as_f64().unwrap_or(f64::NAN);
    match (schema.type_name.as_str(), number.as_i64()) {
        ("number", _) => CelValue::Float(float),
        (_, Some(integer)) => CelValue::Int(integer),
        // A whole number in float form, such as 1.0, is an integer of the schema all the same.
        ("integer", None) => CelValue::Int(whole(float)),
        (_, None) => CelValue::Float(float),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "out of range saturates, as intended"
)]
fn whole(float: f64) -> i64 {
    float as i64
}

fn convert_text(schema: &Schema, text: &str) -> CelValue {
    static DURATION: LazyLock<Program> = LazyLock::new(|| constant_program("duration(x)"));
    static TIMESTAMP: LazyLock<Program> = LazyLock::new(|| constant_program("timestamp(x)"));
    let plain = || CelValue::String(Arc::new(text.to_owned()));
    if schema.int_or_string || schema.type_name != "string" {
        return plain();
    }
    match schema.checks.format.as_str() {
        "byte" => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_or_else(|_| plain(), |bytes| CelValue::Bytes(Arc::new(bytes))),
        "date" => {
            let midnight = CelValue::String(Arc::new(format!("{text}T00:00:00Z")));
            evaluate(&TIMESTAMP, Some(midnight)).unwrap_or_else(plain)
        }
        "date-time" => evaluate(&TIMESTAMP, Some(plain())).unwrap_or_else(plain),
        "duration" => formats::duration_nanos(text)
            .and_then(|nanos| {
                let text = CelValue::String(Arc::new(format!("{nanos}ns")));
                evaluate(&DURATION, Some(text))
            })
            .unwrap_or_else(plain),
        _ => plain(),
    }
}

fn constant_program(source: &str) -> Program {
    Program::compile(source).expect("a constant that parses")
}

fn evaluate(program: &Program, x: Option<CelValue>) -> Option<CelValue> {
    environment::with(|base| {
        let mut context = base.new_inner_scope();
        if let Some(x) = x {
            context.add_variable_from_value("x", x);
        }
        program.execute(&context).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c6_names_are_escaped_as_the_real_server_does() {
        let cases = [
            ("replicas", Some("replicas")),
            ("my_field", Some("my_field")),
            ("a__b", Some("a__underscores__b")),
            ("foo-bar", Some("foo__dash__bar")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("namespace", Some("__namespace__")),
            ("0a", None),
            ("a b", None),
            ("é", None),
        ];
        for (name, escaped) in cases {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }
}
