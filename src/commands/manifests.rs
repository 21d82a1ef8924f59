//! `manifests` prints what installs the operator: the objects of `manifests/base`, as they are
//! built into the program.

use clap::Args;
use serde_json::{Value, json};

use super::{Error, Output, print, print_json};
use crate::api;

/// The files of `manifests/base`, in the order in which they can be applied.
const FILES: [&str; 7] = [
    include_str!("../../manifests/base/namespace.yaml"),
    include_str!("../../manifests/base/serviceaccount.yaml"),
    include_str!("../../manifests/base/rbac.yaml"),
    include_str!("../../manifests/base/deployment.yaml"),
    include_str!("../../manifests/base/disruption-budget.yaml"),
    include_str!("../../manifests/base/services.yaml"),
    include_str!("../../manifests/base/network-policy.yaml"),
];
/// The line of the Deployment that names the image.
const IMAGE_LINE: &str = "image: proxy-operator\n";
/// What the image is called unless a flag names it.
const IMAGE: &str = concat!("proxy-operator:", env!("CARGO_PKG_VERSION"));

/// Flags of `manifests`.
#[derive(Debug, Args)]
pub struct ManifestsArgs {
    /// Image of the operator, with its registry and tag or digest.
    #[arg(long, value_name = "IMAGE", default_value = IMAGE, value_parser = crate::cli::image)]
    image: String,

    /// How the objects are written: text is YAML, json a List.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl ManifestsArgs {
    pub(crate) fn execute(&self) -> Result<(), Error> {
        let text = text(&self.image)?;
        match self.output {
            Output::Text => print(&text),
            Output::Json => {
                let items = parse(&text)?;
                print_json(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))
            }
        }
    }
}

/// Every object that installs the operator, the resource definition first.
///
/// # Errors
///
/// When the definition cannot be written, which there is no cause for.
pub fn objects(image: &str) -> Result<Vec<Value>, Error> {
    parse(&text(image)?)
}

fn text(image: &str) -> Result<String, Error> {
    let mut parts = vec![api::crd_yaml()?];
    let named = format!("image: {image}\n");
    parts.extend(FILES.map(|file| file.replace(IMAGE_LINE, &named)));
    Ok(parts.join("---\n"))
}

fn parse(text: &str) -> Result<Vec<Value>, Error> {
    serde_saphyr::from_multiple(text).map_err(|source| Error::Yaml {
        file: "manifests/base".to_owned(),
        source: Box::new(source),
    })
}
