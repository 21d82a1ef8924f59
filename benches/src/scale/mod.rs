//! The operator's own figures on large fleets: `bench scale --scenario NAME --n N`.
//!
//! Two processes, as in a cluster: this one holds the embedded API server, applies the fleet and
//! follows every event of it; the other is the shipped binary, `proxy-operator run`, over HTTPS.
//!
//! | Scenario | What is measured |
//! |---|---|
//! | `create` | from the first create to the last Ready, what bounds it, and the operator at rest |
//! | `restart` | a new operator over a fleet on pods: start to first reconcile, and its writes |
//! | `rotation` | a Secret that all Proxies share changes: how many are out of service at once |
//! | `all` | `create` with 10,000 and 100,000, `restart` with 10,000, `rotation` with 1,000 |

mod board;
mod cluster;
mod create;
mod operator;
mod report;
mod restart;
mod rotation;
mod spent;

use std::path::PathBuf;
use std::time::Duration;

use crate::{Args, Error};

use report::Report;

/// Bytes.
const MIB: f64 = 1024.0 * 1024.0;

/// What the command line asks for.
#[derive(Clone, Debug)]
struct Options {
    /// Proxies.
    n: usize,
    /// Workers of the operator.
    workers: usize,
    /// The operator's binary.
    operator: PathBuf,
    /// How long the settled operator is watched.
    rest: Duration,
}

/// Runs the scenario and prints its figures, one JSON line each.
///
/// # Errors
/// A bad option; the operator ended or did not get done in time; a goal was missed.
pub fn run(args: &Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Runtime::new().map_err(failed("start a runtime"))?;
    runtime.block_on(scenarios(args))
}

async fn scenarios(args: &Args) -> Result<(), Error> {
    let scenario = args.get("scenario", "all".to_owned())?;
    let options = |n| -> Result<Options, Error> {
        Ok(Options {
            n: args.get("n", n)?,
            workers: args.get("workers", 32)?,
            operator: operator_binary(args)?,
            rest: Duration::from_secs(args.get("rest", 30)?),
        })
    };
    let mut report = Report::default();
    match &*scenario {
        "create" => drop(create::run(&options(10_000)?, &mut report).await?),
        "restart" => restart::run(&options(10_000)?, &mut report).await?,
        "rotation" => rotation::run(&options(1_000)?, &mut report).await?,
        "all" => {
            let small = Options {
                n: 10_000,
                ..options(10_000)?
            };
            let large = Options {
                n: 100_000,
                ..small.clone()
            };
            let rotated = Options {
                n: 1_000,
                ..small.clone()
            };
            let of_small = create::run(&small, &mut report).await?;
            restart::run(&small, &mut report).await?;
            rotation::run(&rotated, &mut report).await?;
            let of_large = create::run(&large, &mut report).await?;
            create::slope(&small, of_small, &large, of_large, &mut report);
        }
        other => return Err(Error::Unsupported(format!("scenario {other}"))),
    }
    report.verdict()
}

/// The one that was built beside this program, unless another is named.
fn operator_binary(args: &Args) -> Result<PathBuf, Error> {
    let beside = std::env::current_exe()
        .map_err(failed("find this program"))?
        .with_file_name("proxy-operator");
    let path: PathBuf = args.get("operator", beside)?;
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::Usage(format!(
            "there is no {}; build it with `cargo build --release -p proxy-operator`, or name one \
             by --operator PATH",
            path.display()
        )))
    }
}

/// Wraps an error with what was tried.
fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
    let what = what.to_owned();
    move |error| Error::Failed(format!("{what}: {error}"))
}
