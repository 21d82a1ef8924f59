//! `crd` prints the resource definition, `crd apply` brings it into a cluster (O-08).

use clap::{Args, Subcommand};
use serde_json::json;

use super::{ClusterArgs, Error, Output, print, print_json};
use crate::{api, definition};

/// Flags of `crd`.
#[derive(Debug, Default, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CrdArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// How the definition is written; text is YAML.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the definition into a cluster by server-side apply and wait until it is served.
    ///
    /// Refuses what would lose something: a definition that is newer than this program, and one
    /// that serves a version which this program does not know while objects are stored in it.
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
struct ApplyArgs {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Let the API server check it and keep nothing.
    #[arg(long)]
    dry_run: bool,

    /// How the result is written.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl CrdArgs {
    pub(crate) async fn execute(self) -> Result<(), Error> {
        match self.action {
            Some(Action::Apply(args)) => args.execute().await,
            None => match self.output {
                Output::Text => print(&api::crd_yaml()?),
                Output::Json => print_json(&json!(api::crd())),
            },
        }
    }
}

impl ApplyArgs {
    async fn execute(self) -> Result<(), Error> {
        let client = self.cluster.client().await?;
        let applied = definition::apply(&client, self.dry_run).await?;
        let (name, result) = (definition::NAME, applied.as_str());
        match self.output {
            Output::Text => {
                let dry = if self.dry_run { " (dry run)" } else { "" };
                print(&format!("customresourcedefinition/{name} {result}{dry}\n"))
            }
            Output::Json => print_json(&json!({
                "name": name, "result": result, "dryRun": self.dry_run,
            })),
        }
    }
}
