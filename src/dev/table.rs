//! The fleet as the server's own table: the columns that kubectl shows.

use http::{Request, header::ACCEPT};
use kube_client::Client;
use serde::Deserialize;
use serde_json::Value;

const PATH: &str = "/apis/crawl.proxyoperator.dev/v1alpha1/proxies";
const AS_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const GAP: usize = 3;

/// A table as text, header first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    column_definitions: Vec<Column>,
    #[serde(default)]
    rows: Option<Vec<Row>>,
}

#[derive(Debug, Deserialize)]
struct Column {
    name: String,
    #[serde(default)]
    priority: i32,
}

#[derive(Debug, Deserialize)]
struct Row {
    cells: Vec<Value>,
    object: Value,
}

/// Asks the API server for the table of all Proxies.
pub(super) async fn fetch(client: &Client) -> kube_client::Result<Table> {
    let request = Request::get(PATH)
        .header(ACCEPT, AS_TABLE)
        .body(Vec::new())
        .map_err(kube_client::Error::HttpError)?;
    client.request::<Answer>(request).await.map(Table::from)
}

impl From<Answer> for Table {
    fn from(answer: Answer) -> Self {
        let shown: Vec<bool> = answer
            .column_definitions
            .iter()
            .map(|column| column.priority == 0)
            .collect();
        let names = answer
            .column_definitions
            .iter()
            .filter(|column| column.priority == 0);
        let header = std::iter::once("NAMESPACE".to_owned())
            .chain(names.map(|column| column.name.to_uppercase()))
            .collect();
        let row = |row: Row| {
            let namespace = row.object["metadata"]["namespace"]
                .as_str()
                .unwrap_or_default();
            let cells = row.cells.iter().zip(&shown).filter(|(_, shown)| **shown);
            std::iter::once(namespace.to_owned())
                .chain(cells.map(|(cell, _)| text(cell)))
                .collect()
        };
        Self {
            header,
            rows: answer
                .rows
                .unwrap_or_default()
                .into_iter()
                .map(row)
                .collect(),
        }
    }
}

impl Table {
    /// The lines of the table, columns aligned, no space at the end of a line.
    pub(super) fn lines(&self) -> Vec<String> {
        let all = || std::iter::once(&self.header).chain(&self.rows);
        let widths: Vec<usize> = (0..self.header.len())
            .map(|i| {
                all()
                    .filter_map(|row| row.get(i))
                    .map(|c| c.chars().count())
                    .max()
            })
            .map(|width| width.unwrap_or(0) + GAP)
            .collect();
        all()
            .map(|row| {
                let cells = row
                    .iter()
                    .zip(&widths)
                    .map(|(cell, width)| format!("{cell:width$}"));
                cells.collect::<String>().trim_end().to_owned()
            })
            .collect()
    }
}

fn text(cell: &Value) -> String {
    match cell {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_and_wide_ones_left_out() {
        let answer: Answer = serde_json::from_value(json!({
            "columnDefinitions": [
                { "name": "Name", "type": "string" },
                { "name": "IP", "type": "string", "priority": 0 },
                { "name": "Zone", "type": "string", "priority": 1 },
                { "name": "Age", "type": "date" },
            ],
            "rows": [
                { "cells": ["edge-1", "127.64.0.1", "z", "3s"],
                  "object": { "metadata": { "namespace": "crawl" } } },
                { "cells": ["e", null, null, "12m"],
                  "object": { "metadata": { "namespace": "crawl" } } },
            ],
        }))
        .expect("a table");
        assert_eq!(
            Table::from(answer).lines(),
            [
                "NAMESPACE   NAME     IP           AGE",
                "crawl       edge-1   127.64.0.1   3s",
                "crawl       e                     12m",
            ]
        );
    }
}
