//! Columns of custom resources.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::json_path::JsonPath;
use super::{Column, age, text_at};

/// One of `additionalPrinterColumns`, ready for use.
#[derive(Clone, Debug)]
pub(super) struct CustomColumn {
    column: Column,
    /// None if the path cannot be understood: the cells stay empty.
    path: Option<JsonPath>,
}

impl CustomColumn {
    pub(super) fn column(&self) -> Column {
        self.column.clone()
    }
}

/// The columns beside the name; Age alone if the definition names none.
pub(super) fn columns(source: Option<&Value>) -> Vec<CustomColumn> {
    let by_default = json!([{
        "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
    }]);
    let source = source
        .and_then(Value::as_array)
        .filter(|all| !all.is_empty());
    let source = source.or_else(|| by_default.as_array());
    source.into_iter().flatten().map(read).collect()
}

fn read(source: &Value) -> CustomColumn {
    let path = text_at(source, &["jsonPath"]);
    let description = match text_at(source, &["description"]) {
        "" => format!("Custom resource definition column (in JSONPath format): {path}"),
        text => text.to_owned(),
    };
    CustomColumn {
        column: Column {
            name: text_at(source, &["name"]).to_owned(),
            type_name: text_at(source, &["type"]).to_owned(),
            format: text_at(source, &["format"]).to_owned(),
            description,
            priority: source["priority"].as_i64().unwrap_or_default(),
        },
        path: JsonPath::parse(path),
    }
}

/// The name and one cell for each column.
pub(super) fn cells(columns: &[CustomColumn], object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![Value::from(text_at(object, &["metadata", "name"]))];
    cells.extend(columns.iter().map(|column| cell(column, object, now)));
    cells
}

fn cell(column: &CustomColumn, object: &Value, now: Timestamp) -> Value {
    let Some(value) = column.path.as_ref().and_then(|path| path.first(object)) else {
        return Value::Null;
    };
    match (column.column.type_name.as_str(), value) {
        ("string", Value::String(_)) => value.clone(),
        ("string", Value::Null) => Value::from("<nil>"),
        ("string", other) => Value::from(other.to_string()),
        (_, Value::Null) => Value::Null,
        ("integer", Value::Number(number)) => number
            .as_i64()
            .map_or_else(|| truncated(number.as_f64()), Value::from),
        ("number", Value::Number(number)) => number.as_f64().map_or(Value::Null, Value::from),
        ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) if text.parse::<Timestamp>().is_err() => {
            Value::from("<invalid>")
        }
        ("date", Value::String(text)) => Value::from(age::since(text, now)),
        _ => Value::Null,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the column is of whole numbers"
)]
fn truncated(number: Option<f64>) -> Value {
    number.map_or(Value::Null, |number| Value::from(number as i64))
}
