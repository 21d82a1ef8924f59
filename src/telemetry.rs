//! Logs: format, filter, where they go.
//!
//! Fields that lines about a Proxy carry: `proxy`, `uid`, `generation`, `provider`, `instance`,
//! and from the enclosing span the id of the reconcile. Info is a change made or a state entered,
//! so a settled fleet logs nothing at info. Secrets have a type without a readable `Debug`
//! ([`Redacted`](crate::provider::Redacted)) and cannot get here.

use std::fmt;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// For eyes.
    Text,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Text => "text",
        })
    }
}

/// Why logging did not start.
#[derive(Debug, thiserror::Error)]
#[error("start logging")]
pub struct Error(#[source] tracing_subscriber::util::TryInitError);

/// Sends the log of this process to stderr from now on.
///
/// # Errors
///
/// If the process logs already.
pub fn init(format: LogFormat, filter: EnvFilter) -> Result<(), Error> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    match format {
        LogFormat::Json => {
            // The list of spans holds the current one, too.
            builder
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .finish()
                .try_init()
        }
        LogFormat::Text => builder.finish().try_init(),
    }
    .map_err(Error)
}
