//! The panic of a handler that may not be survived, on its way out of the run.

use std::any::Any;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Takes the first such panic from wherever a handler runs to where the informer ends.
#[derive(Debug, Default)]
pub(super) struct Crash {
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    happened: CancellationToken,
}

impl Crash {
    /// A handler panicked. Of several panics the first counts.
    pub(super) fn report(&self, panic: Box<dyn Any + Send>) {
        let mut first = self.panic.lock();
        if first.is_none() {
            *first = Some(panic);
        }
        drop(first);
        self.happened.cancel();
    }

    /// Resolves once there was such a panic. Cancel-safe.
    pub(super) async fn happened(&self) {
        self.happened.cancelled().await;
    }

    /// The panic, if there was one and nobody took it.
    pub(super) fn take(&self) -> Option<Box<dyn Any + Send>> {
        self.panic.lock().take()
    }
}
