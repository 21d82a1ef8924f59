//! Serves a fake Compute Engine API beside an operator, until it is stopped.
//!
//! Its one line of output is the endpoint. How to steer it from outside stands in `src/admin.rs`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use fake_gce::{FakeGce, Settings};

/// A Compute Engine API on this machine, without credentials, bills or machines.
#[derive(Debug, Parser)]
struct Args {
    /// Address to serve.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The only project.
    #[arg(long, default_value = "test-project")]
    project: String,
    /// Its zones.
    #[arg(long, value_delimiter = ',')]
    zones: Vec<String>,
    /// Milliseconds that a VM takes to run.
    #[arg(long, default_value_t = 2000)]
    boot: u64,
    /// Milliseconds that a VM takes to go.
    #[arg(long, default_value_t = 1000)]
    deletion: u64,
    /// Most VMs at a time.
    #[arg(long)]
    quota: Option<usize>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the last word of the program")]
            {
                eprintln!("error: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let mut settings = Settings {
        project: args.project,
        boot: Duration::from_millis(args.boot),
        deletion: Duration::from_millis(args.deletion),
        quota: args.quota,
        ..Settings::default()
    };
    if !args.zones.is_empty() {
        settings.zones = args.zones;
    }
    let fake = FakeGce::listen(settings, args.listen).await?;
    writeln!(std::io::stdout(), "{}", fake.endpoint())?;
    tokio::signal::ctrl_c().await?;
    fake.shutdown().await;
    Ok(())
}
