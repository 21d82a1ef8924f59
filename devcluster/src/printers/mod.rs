//! Server-side printing: the columns and rows of `as=Table` answers.

mod age;
mod built_in;
mod custom;
mod json_path;
mod pod;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use custom::CustomColumn;

/// What a row of a table carries beside its cells (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    /// Nothing.
    None,
    /// The object's metadata, as a PartialObjectMetadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// How a Table is to be made.
#[derive(Clone, Debug)]
pub(crate) struct TableOptions {
    /// `apiVersion` of the Table, e.g. `meta.k8s.io/v1`.
    pub(crate) api_version: String,
    /// What each row carries.
    pub(crate) include_object: IncludeObject,
    /// Whether `columnDefinitions` is filled (false after the first event of a watch).
    pub(crate) headers: bool,
    /// The time by which ages are told.
    pub(crate) now: Timestamp,
}

/// The columns of one kind and how to fill them.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    columns: Vec<Column>,
    rows: Rows,
}

#[derive(Clone, Debug)]
enum Rows {
    BuiltIn(fn(&Value, Timestamp) -> Vec<Value>),
    Custom(Vec<CustomColumn>),
}

/// One entry of `columnDefinitions`.
#[derive(Clone, Debug)]
struct Column {
    name: String,
    type_name: String,
    format: String,
    description: String,
    priority: i64,
}

impl Column {
    fn new(name: &str, type_name: &str, description: &str) -> Self {
        Self {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            format: String::new(),
            description: description.to_owned(),
            priority: 0,
        }
    }

    /// The column of the object's name, by which clients find the object.
    fn name() -> Self {
        let format = "name".to_owned();
        Self {
            format,
            ..Self::new("Name", "string", "Name of the object.")
        }
    }

    fn wide(self) -> Self {
        Self {
            priority: 1,
            ..self
        }
    }

    fn definition(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.type_name,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }
}

impl Printer {
    /// The printer of a built-in kind; kinds without one of their own get Name and Created At.
    pub(crate) fn built_in(group: &str, kind: &str) -> Self {
        let (columns, rows) = built_in::columns_and_rows(group, kind);
        Self {
            columns,
            rows: Rows::BuiltIn(rows),
        }
    }

    /// The printer of a custom resource by the version's `additionalPrinterColumns`.
    pub(crate) fn custom(additional_printer_columns: Option<&Value>) -> Self {
        let custom = custom::columns(additional_printer_columns);
        let mut columns = vec![Column::name()];
        columns.extend(custom.iter().map(CustomColumn::column));
        Self {
            columns,
            rows: Rows::Custom(custom),
        }
    }

    /// The Table of `objects`. `list_metadata` is the list's `metadata`; for one object, its
    /// resource version alone.
    pub(crate) fn table(
        &self,
        objects: &[&Value],
        list_metadata: Value,
        options: &TableOptions,
    ) -> Value {
        let definitions: Option<Vec<Value>> = options
            .headers
            .then(|| self.columns.iter().map(Column::definition).collect());
        let rows: Vec<Value> = objects
            .iter()
            .map(|object| self.row(object, options))
            .collect();
        let mut table = json!({
            "kind": "Table",
            "apiVersion": options.api_version,
            "columnDefinitions": definitions,
            "rows": rows,
        });
        table["metadata"] = list_metadata;
        table
    }

    fn row(&self, object: &Value, options: &TableOptions) -> Value {
        let cells = match &self.rows {
            Rows::BuiltIn(cells) => cells(object, options.now),
            Rows::Custom(columns) => custom::cells(columns, object, options.now),
        };
        let mut row = json!({"cells": cells});
        if matches!(self.rows, Rows::BuiltIn(_))
            && let Some(condition) = pod::finished_condition(object)
        {
            row["conditions"] = json!([condition]);
        }
        match options.include_object {
            IncludeObject::None => {}
            IncludeObject::Metadata => {
                row["object"] = json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": options.api_version,
                    "metadata": object["metadata"],
                });
            }
            IncludeObject::Object => row["object"] = object.clone(),
        }
        row
    }
}

/// The text at a path of field names; empty if it is absent or no string.
fn text_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter()
        .try_fold(value, |value, name| value.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The items of the list at a path of field names.
fn list_at<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    path.iter()
        .try_fold(value, |value, name| value.get(name))
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The whole number at a path of field names; 0 if it is absent.
fn number_at(value: &Value, path: &[&str]) -> i64 {
    path.iter()
        .try_fold(value, |value, name| value.get(name))
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(include_object: IncludeObject, headers: bool) -> TableOptions {
        TableOptions {
            api_version: "meta.k8s.io/v1".to_owned(),
            include_object,
            headers,
            now: "2024-01-01T01:00:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn n8_rows_carry_what_was_asked_for_and_only_the_first_event_has_columns() {
        let printer = Printer::built_in("", "ConfigMap");
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "b"},
            "metadata": {"name": "c", "creationTimestamp": "2024-01-01T00:00:00Z"}});
        let metadata = json!({"resourceVersion": "7"});
        let table = printer.table(
            &[&object],
            metadata.clone(),
            &options(IncludeObject::Metadata, true),
        );
        assert_eq!(table["metadata"], metadata);
        assert_eq!(table["columnDefinitions"][0]["name"], "Name");
        assert_eq!(table["columnDefinitions"][0]["format"], "name");
        assert_eq!(table["rows"][0]["cells"], json!(["c", 1, "60m"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["rows"][0]["object"]["metadata"]["name"], "c");

        let bare = printer.table(
            &[&object],
            metadata.clone(),
            &options(IncludeObject::None, false),
        );
        assert_eq!(bare["columnDefinitions"], Value::Null);
        assert_eq!(bare["rows"][0].get("object"), None);

        let whole = printer.table(&[&object], metadata, &options(IncludeObject::Object, true));
        assert_eq!(whole["rows"][0]["object"], object);
    }

    #[test]
    fn n9_a_kind_without_a_printer_has_name_and_created_at() {
        let printer = Printer::built_in("rbac.authorization.k8s.io", "Role");
        let object = json!({"metadata": {"name": "x",
            "creationTimestamp": "2024-01-01T00:00:00Z"}});
        let table = printer.table(
            &[&object],
            json!({}),
            &options(IncludeObject::Metadata, true),
        );
        assert_eq!(table["columnDefinitions"][1]["name"], "Created At");
        assert_eq!(
            table["rows"][0]["cells"],
            json!(["x", "2024-01-01T00:00:00Z"])
        );
    }

    #[test]
    fn n9_custom_columns_are_typed_and_absent_values_null() {
        let columns = json!([
            {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
            {"name": "N", "type": "integer", "jsonPath": ".spec.n"},
            {"name": "F", "type": "number", "jsonPath": ".spec.n"},
            {"name": "B", "type": "boolean", "jsonPath": ".spec.b"},
            {"name": "Ready", "type": "string",
                "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "priority": 1},
            {"name": "Gone", "type": "string", "jsonPath": ".status.gone"},
            {"name": "Map", "type": "string", "jsonPath": ".spec.map"},
            {"name": "Wrong", "type": "integer", "jsonPath": ".spec.mode"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            {"name": "Bad", "type": "date", "jsonPath": ".spec.mode"},
        ]);
        let object = json!({
            "metadata": {"name": "x", "creationTimestamp": "2024-01-01T00:58:00Z"},
            "spec": {"mode": "M", "n": 3, "b": true, "map": {"k": [1]}},
            "status": {"conditions": [
                {"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let printer = Printer::custom(Some(&columns));
        let table = printer.table(&[&object], json!({}), &options(IncludeObject::None, true));
        assert_eq!(
            table["rows"][0]["cells"],
            json!([
                "x",
                "M",
                3,
                3.0,
                true,
                "True",
                null,
                "{\"k\":[1]}",
                null,
                "2m",
                "<invalid>"
            ])
        );
        assert_eq!(table["columnDefinitions"][5]["priority"], 1);
        assert_eq!(
            table["columnDefinitions"][1]["description"],
            "Custom resource definition column (in JSONPath format): .spec.mode"
        );
        let by_default = Printer::custom(None);
        let table = by_default.table(&[&object], json!({}), &options(IncludeObject::None, true));
        assert_eq!(table["rows"][0]["cells"], json!(["x", "2m"]));
    }

    /// Tables recorded from a kube-apiserver 1.37.2.
    #[test]
    fn n9_columns_and_cells_are_those_of_the_real_server() {
        let recording: Value =
            serde_json::from_str(include_str!("recordings/tables.json")).unwrap();
        let cases = recording.as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let kind = case["kind"].as_str().unwrap();
            let printer = Printer::built_in(case["group"].as_str().unwrap(), kind);
            let options = TableOptions {
                now: case["now"].as_str().unwrap().parse().unwrap(),
                ..options(IncludeObject::None, true)
            };
            let table = printer.table(&[&case["object"]], json!({}), &options);
            let columns: Vec<Value> = table["columnDefinitions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|c| json!([c["name"], c["type"], c["format"], c["priority"]]))
                .collect();
            assert_eq!(Value::from(columns), case["columns"], "{kind}");
            let row = &table["rows"][0];
            assert_eq!(
                row["cells"], case["cells"],
                "{kind} {}",
                case["object"]["metadata"]
            );
            assert_eq!(row["conditions"], case["conditions"], "{kind}");
        }
    }
}
