//! The subcommand `dev`: everything on an embedded development cluster, in one process.
//!
//! It starts the cluster, applies the CRD and the sample fleet of `manifests/samples/`, and runs
//! the operator against it as it would run anywhere: by a kubeconfig with the token of its
//! ServiceAccount, over HTTPS. Then it either shows the fleet until it is stopped, or
//! (`--once`) walks through the life of the fleet as a script and proves each step. Machines are
//! pods of simulated nodes, or (`--provider sim`) those of a simulated cloud that really serve.
//! `--scene` plays one hard moment instead.
//!
//! | File | Holds |
//! |---|---|
//! | `stage` | what runs: cluster, machines, echo server, External proxy, operator; start and stop |
//! | `machines`, `socks` | pods or simulated machines, and the proxies of the latter |
//! | `fleet` | the sample fleet: apply, read, change |
//! | `visit` | requests through a proxy, and what the echo server saw |
//! | `script` | `--once` |
//! | `scenes` | `--scene` |
//! | `live`, `table` | the view for eyes |
//! | `console` | lines on stdout |

mod console;
mod error;
mod fleet;
mod folder;
mod live;
mod machines;
mod scenes;
mod script;
mod socks;
mod stage;
mod table;
mod visit;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::CommandFactory as _;
use clap::error::ErrorKind;
use controller::Signals;
use tracing_subscriber::EnvFilter;

pub use error::Error;

use crate::provider::sim::Settings;

use console::Console;
use folder::Folder;
use machines::Choice;
use scenes::Scene;
use stage::{Setting, Stage};

/// Flags of `dev`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Walk through the life of the fleet as a script, then exit: 0 if every step was proven.
    ///
    /// Steps: bring the fleet up, send requests through it, rotate a Secret and wait for the
    /// replacement, delete a machine and wait for the recovery, delete the fleet. With --scene:
    /// the steps of the scene.
    #[arg(long)]
    once: bool,

    /// What machines are: pods of simulated nodes (default), or machines of a simulated cloud.
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<Choice>,

    /// Play one hard moment, on a simulated cloud: a quota that is used up, a crash of the operator,
    /// the rotation of a Secret that many Proxies share.
    #[arg(long, value_name = "SCENE")]
    scene: Option<Scene>,

    /// Loopback address of the control API of the simulated cloud; default is a free port.
    #[arg(long, value_name = "ADDRESS", value_parser = crate::cli::loopback)]
    sim_admin: Option<SocketAddr>,

    /// Folder for the kubeconfigs and the operator's log; default is a fresh temporary one.
    ///
    /// It is made if need be; the files in it go when dev ends.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Args {
    /// The stage that the flags ask for.
    fn setting(&self) -> Result<Setting, clap::Error> {
        let wants_cloud = self.scene.is_some() || self.sim_admin.is_some();
        let choice = match (self.provider, wants_cloud) {
            (Some(Choice::Kubernetes), true) => {
                return Err(crate::cli::Args::command().error(
                    ErrorKind::ArgumentConflict,
                    "--scene and --sim-admin are of use with --provider sim alone; leave --provider \
                     out",
                ));
            }
            (None, true) => Choice::Sim,
            (provider, _) => provider.unwrap_or_default(),
        };
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Setting {
            choice,
            cloud: self.scene.map_or_else(Settings::default, Scene::cloud),
            admin: self.sim_admin.unwrap_or(anywhere),
        })
    }
}

/// Runs the subcommand until it is done or SIGINT or SIGTERM arrives.
///
/// The log of this process goes to `operator.log` in the folder. Whatever was started is stopped
/// when this returns, also after an error; a dropped future stops it without order.
///
/// # Errors
///
/// [`Error`]: something did not start, or with `--once` or `--scene` a step was not proven. Flags
/// that do not go together end the process with exit code 2.
pub async fn run(args: Args) -> Result<(), Error> {
    let setting = args.setting().unwrap_or_else(|error| error.exit());
    let signals = Signals::install().map_err(|error| Error::Signals(Box::new(error)))?;
    let folder = Folder::create(args.dir)?;
    folder.log_to_file(crate::telemetry::without_bodies(EnvFilter::new("info")))?;
    let mut console = Console::new();
    let mut stage = Stage::build(folder, setting, &mut console).await?;
    let stop = signals.stop();
    let outcome = tokio::select! {
        biased;
        () = stop.cancelled() => if args.once { Err(Error::Interrupted) } else { Ok(()) },
        outcome = async {
            stage.prepare(&mut console).await?;
            match args.scene {
                Some(scene) => scene.play(&mut stage, &mut console).await?,
                None => stage.raise(&mut console).await?,
            }
            match (args.once, args.scene) {
                (true, Some(_)) => Ok(()),
                (true, None) => script::run(&mut stage, &mut console).await,
                (false, _) => live::run(&mut stage, &mut console).await,
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
