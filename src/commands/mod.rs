//! The subcommands that do one thing and end: `crd`, `manifests`, `validate`.
//!
//! Results go to stdout, as text or (`-o json`) as one JSON document; faults go to stderr.

mod crd;
mod manifests;
mod validate;

use std::io::Write as _;
use std::path::PathBuf;

use clap::ValueEnum;
use kube_client::Client;
use serde_json::Value;

use controller::informer::client::{self, ClientOptions, ConfigSource};

pub use crd::CrdArgs;
pub use manifests::{ManifestsArgs, objects};
pub use validate::ValidateArgs;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Address or credentials of the API server are missing or of no use.
    #[error("no access to a cluster; name one by --kubeconfig or KUBECONFIG")]
    Client(#[from] client::Error),
    /// The definition could not be applied.
    #[error(transparent)]
    Definition(#[from] crate::definition::Error),
    /// The definition cannot be written as YAML.
    #[error("write the CustomResourceDefinition")]
    Crd(#[from] crate::api::CrdError),
    /// Stdout does not take output.
    #[error("write to stdout")]
    Stdout(#[source] std::io::Error),
    /// A file cannot be read.
    #[error("read {file}; name a file, or - for stdin")]
    Read {
        /// The file.
        file: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is no YAML.
    #[error("{file} is no YAML")]
    Yaml {
        /// The file.
        file: String,
        /// Line, column and what is wrong there.
        source: Box<serde_saphyr::Error>,
    },
    /// Manifests were found wanting, and all of it was said.
    #[error("{invalid} of {all} Proxies would be refused; mend what is listed above")]
    Invalid {
        /// Those that would be refused.
        invalid: usize,
        /// All that were looked at.
        all: usize,
    },
    /// There was nothing to look at.
    #[error("no Proxy in {files}; name files that hold Proxies of crawl.proxyoperator.dev")]
    NoProxy {
        /// The files.
        files: String,
    },
}

/// How a result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For eyes; YAML where the result is objects.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

/// Where a command's cluster is.
#[derive(Debug, Default, clap::Args)]
pub struct ClusterArgs {
    /// Kubeconfig of the cluster; default is the cluster this process runs in, else KUBECONFIG or
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE", env = "PXO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

impl ClusterArgs {
    async fn client(&self) -> Result<Client, Error> {
        let source = ConfigSource {
            kubeconfig: self.kubeconfig.clone(),
            context: None,
        };
        let config = client::load_config(&source).await?;
        let mut options = ClientOptions::default();
        crate::USER_AGENT.clone_into(&mut options.user_agent);
        Ok(client::connect(config, options)?)
    }
}

pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Error::Stdout)
}

fn print_json(value: &Value) -> Result<(), Error> {
    print(&format!("{value:#}\n"))
}

#[cfg(test)]
mod tests;
