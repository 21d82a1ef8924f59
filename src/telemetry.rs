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

/// The client library logs an answer that it cannot read in full, and the answer to a read of a
/// Secret is the Secret. What it logs is in the errors that it returns, too.
pub(crate) fn without_bodies(filter: EnvFilter) -> EnvFilter {
    ["kube_client::client=off", "kube_client::client::tls=warn"]
        .into_iter()
        .fold(filter, |filter, directive| {
            filter.add_directive(directive.parse().expect("a directive"))
        })
}

/// Sends the log of this process to stderr from now on.
///
/// # Errors
///
/// If the process logs already.
pub fn init(format: LogFormat, filter: EnvFilter) -> Result<(), Error> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(without_bodies(filter))
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_the_client_library_cannot_read_is_not_logged_at_any_level() {
        for filter in ["info", "trace", "kube_client=trace"] {
            let lines = Lines::default();
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter(without_bodies(EnvFilter::new(filter)))
                .with_writer({
                    let lines = lines.clone();
                    move || lines.clone()
                })
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(target: "kube_client::client", "hunter2");
                tracing::warn!(target: "kube_client::client::tls", "stale roots");
            });
            let text = String::from_utf8(lines.0.lock().expect("not poisoned").clone());
            let text = text.expect("text");
            assert!(!text.contains("hunter2"), "{filter}: {text}");
            assert!(text.contains("stale roots"), "{filter}: {text}");
        }
    }
}
