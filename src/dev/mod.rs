//! The subcommand `dev`: everything on an embedded development cluster, in one process.
//!
//! It starts the cluster, applies the CRD and the sample fleet of `manifests/samples/`, and runs
//! the operator against it as it would run anywhere: by a kubeconfig with the token of its
//! ServiceAccount, over HTTPS. Then it either shows the fleet until it is stopped, or
//! (`--once`) walks through the life of the fleet as a script and proves each step.
//!
//! | File | Holds |
//! |---|---|
//! | `stage` | what runs: cluster, nodes, echo server, External proxy, operator; start and stop |
//! | `fleet` | the sample fleet: apply, read, change |
//! | `visit` | requests through a proxy, and what the echo server saw |
//! | `script` | `--once` |
//! | `live`, `table` | the view for eyes |
//! | `console` | lines on stdout |

mod console;
mod error;
mod fleet;
mod folder;
mod live;
mod script;
mod stage;
mod table;
mod visit;

use std::path::PathBuf;

use controller::Signals;
use tracing_subscriber::EnvFilter;

pub use error::Error;

use console::Console;
use folder::Folder;
use stage::Stage;

/// Flags of `dev`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Walk through the life of the fleet as a script, then exit: 0 if every step was proven.
    ///
    /// Steps: bring the fleet up, send requests through it, rotate a Secret and wait for the
    /// replacement, delete a pod and wait for the recovery, delete the fleet.
    #[arg(long)]
    once: bool,

    /// Folder for the kubeconfigs and the operator's log; default is a fresh temporary one.
    ///
    /// It is made if need be; the files in it go when dev ends.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the subcommand until it is done or SIGINT or SIGTERM arrives.
///
/// The log of this process goes to `operator.log` in the folder. Whatever was started is stopped
/// when this returns, also after an error; a dropped future stops it without order.
///
/// # Errors
///
/// [`Error`]: something did not start, or with `--once` a step was not proven.
pub async fn run(args: Args) -> Result<(), Error> {
    let signals = Signals::install().map_err(|error| Error::Signals(Box::new(error)))?;
    let folder = Folder::create(args.dir)?;
    folder.log_to_file(crate::telemetry::without_bodies(EnvFilter::new("info")))?;
    let mut console = Console::new();
    let mut stage = Stage::build(folder, &mut console).await?;
    let stop = signals.stop();
    let outcome = tokio::select! {
        biased;
        () = stop.cancelled() => if args.once { Err(Error::Interrupted) } else { Ok(()) },
        outcome = async {
            stage.raise(&mut console).await?;
            if args.once {
                script::run(&mut stage, &mut console).await
            } else {
                live::run(&mut stage, &mut console).await
            }
        } => outcome,
    };
    let failed = matches!(&outcome, Err(error) if !matches!(error, Error::Interrupted));
    let tail = failed.then(|| stage.folder().log_tail());
    let stopped = stage.shutdown().await;
    if let Some(tail) = tail {
        console.line(&tail)?;
    }
    outcome.and(stopped)
}
