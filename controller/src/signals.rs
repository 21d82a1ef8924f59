//! SIGTERM and SIGINT as a stop token.

use std::io;

use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

/// Why the process can't listen for signals.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Called outside of a tokio runtime.
    #[error("signals can only be listened for inside a tokio runtime")]
    NoRuntime,
    /// The operating system refused a handler.
    #[error("install the handler of {signal}")]
    Install {
        /// Name of the signal.
        signal: &'static str,
        /// What the system reported.
        #[source]
        source: io::Error,
    },
}

/// Listener for the signals that ask a process to end; dropping it stops listening.
///
/// After the drop the signals stay caught and have no effect, since a handler can't be taken
/// back: keep this value until the process ends.
#[derive(Debug)]
pub struct Signals {
    stop: CancellationToken,
    _listener: JoinSet<()>,
}

impl Signals {
    /// Listens for SIGTERM and SIGINT: the first cancels [`stop`](Self::stop), the second ends
    /// the process at once with exit code 1.
    ///
    /// The listener is a task of its own, so the second signal works while a stop hangs, as long
    /// as one worker thread of the runtime is free.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside of a tokio runtime, [`Error::Install`] if the system refuses.
    pub fn install() -> Result<Self, Error> {
        if Handle::try_current().is_err() {
            return Err(Error::NoRuntime);
        }
        let terminate = open("SIGTERM", SignalKind::terminate())?;
        let interrupt = open("SIGINT", SignalKind::interrupt())?;
        let stop = CancellationToken::new();
        let mut listener = JoinSet::new();
        listener.spawn(listen(terminate, interrupt, stop.clone()));
        Ok(Self {
            stop,
            _listener: listener,
        })
    }

    /// Token that the first signal cancels.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }
}

fn open(name: &'static str, kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|source| Error::Install {
        signal: name,
        source,
    })
}

async fn listen(mut terminate: Signal, mut interrupt: Signal, stop: CancellationToken) {
    let name = next(&mut terminate, &mut interrupt).await;
    info!(
        signal = name,
        "stopping; a second signal ends the process at once"
    );
    stop.cancel();
    let name = next(&mut terminate, &mut interrupt).await;
    error!(
        signal = name,
        "second signal: the process ends without waiting"
    );
    std::process::exit(1);
}

/// Waits for either signal. Both branches are cancel-safe: a signal stays pending until received.
async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_a_runtime_it_is_an_error() {
        assert!(matches!(Signals::install(), Err(Error::NoRuntime)));
    }
}
