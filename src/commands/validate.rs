//! `validate -f` says what an API server would refuse, without one.

use std::io::Read as _;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use super::{Error, Output, print, print_json};
use crate::api::limits::{self, Checker};
use crate::api::validation::Violation;

/// Flags of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// File with manifests in YAML or JSON, - for stdin; may be given again. Objects of other
    /// kinds are passed over.
    #[arg(long = "filename", short, value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<String>,

    /// How the result is written.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// One manifest of a Proxy and what is wrong with it.
struct Finding {
    file: String,
    /// Position in the file, from 1.
    document: usize,
    name: String,
    faults: Vec<Violation>,
}

impl ValidateArgs {
    pub(crate) fn execute(&self) -> Result<(), Error> {
        let checker = Checker::default();
        let mut findings = Vec::new();
        for file in &self.files {
            let documents = read(file)?.into_iter().flat_map(unlisted);
            for (n, manifest) in documents.enumerate() {
                if limits::is_proxy(&manifest) {
                    findings.push(Finding {
                        file: file.clone(),
                        document: n + 1,
                        name: name(&manifest),
                        faults: checker.check(&manifest),
                    });
                }
            }
        }
        match self.output {
            Output::Text => print(&findings.iter().map(Finding::lines).collect::<String>())?,
            Output::Json => {
                let items: Vec<_> = findings.iter().map(Finding::json).collect();
                print_json(&json!({ "proxies": items }))?;
            }
        }
        let (all, invalid) = (
            findings.len(),
            findings.iter().filter(|one| !one.faults.is_empty()).count(),
        );
        match (all, invalid) {
            (0, _) => Err(Error::NoProxy {
                files: self.files.join(", "),
            }),
            (_, 0) => Ok(()),
            _ => Err(Error::Invalid { invalid, all }),
        }
    }
}

impl Finding {
    fn lines(&self) -> String {
        let place = format!("{}: document {}: {}", self.file, self.document, self.name);
        if self.faults.is_empty() {
            return format!("{place}: valid\n");
        }
        let lines = self
            .faults
            .iter()
            .map(|fault| format!("{place}: {fault}\n"));
        lines.collect()
    }

    fn json(&self) -> Value {
        let faults = self.faults.iter().map(
            |fault| json!({ "rule": fault.rule, "field": fault.field, "message": fault.message }),
        );
        json!({
            "file": self.file, "document": self.document, "name": self.name,
            "valid": self.faults.is_empty(), "faults": faults.collect::<Vec<_>>(),
        })
    }
}

fn read(file: &str) -> Result<Vec<Value>, Error> {
    let text = if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(Path::new(file))
    };
    let text = text.map_err(|source| Error::Read {
        file: file.to_owned(),
        source,
    })?;
    serde_saphyr::from_multiple(&text).map_err(|source| Error::Yaml {
        file: file.to_owned(),
        source: Box::new(source),
    })
}

/// The objects of a List, or the object itself.
fn unlisted(manifest: Value) -> Vec<Value> {
    match manifest {
        Value::Object(mut fields) if fields.get("kind").is_some_and(|kind| kind == "List") => {
            match fields.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        other => vec![other],
    }
}

fn name(manifest: &Value) -> String {
    let metadata = &manifest["metadata"];
    let name = metadata["name"]
        .as_str()
        .or(metadata["generateName"].as_str());
    let name = name.unwrap_or("(no name)");
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}
