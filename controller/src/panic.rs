//! Catching the panic of a future, with the place and the backtrace.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

/// A caught panic; as an error it says what the panic said.
#[derive(Debug, thiserror::Error)]
#[error("reconcile panicked: {message}")]
pub(crate) struct Panic {
    pub(crate) message: String,
    /// File, line and column of the panic.
    pub(crate) location: String,
    pub(crate) backtrace: String,
}

/// Turns a panic while `future` is polled into `Err`; the future is not polled again.
pub(crate) fn catch<F: Future + Unpin>(future: F) -> CatchPanic<F> {
    install_hook();
    CatchPanic { future }
}

#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct CatchPanic<F> {
    future: F,
}

impl<F: Future + Unpin> Future for CatchPanic<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = Pin::new(&mut self.future);
        let armed = Armed::new();
        // The future is dropped, not used, after a panic: nothing half-changed is seen through it.
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.poll(cx)));
        drop(armed);
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(caught(&*payload))),
        }
    }
}

thread_local! {
    /// Whether a panic on this thread is one that [`CatchPanic`] will catch.
    static ARMED: Cell<bool> = const { Cell::new(false) };
    /// Place and backtrace of the last such panic, on its way from the hook to the catcher.
    static TRACE: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Marks the thread while it lives; nests.
struct Armed {
    before: bool,
}

impl Armed {
    fn new() -> Self {
        Self {
            before: ARMED.replace(true),
        }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        ARMED.set(self.before);
    }
}

/// A backtrace can only be taken where the panic starts, which is in the process' panic hook: the
/// hook that is there goes on to be called for every panic.
fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if ARMED.get() {
                TRACE.set(Some(trace(info)));
            }
            previous(info);
        }));
    });
}

fn trace(info: &PanicHookInfo<'_>) -> (String, String) {
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    (location, Backtrace::force_capture().to_string())
}

fn caught(payload: &(dyn Any + Send)) -> Panic {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned());
    // Empty after `resume_unwind`, which calls no hook.
    let (location, backtrace) = TRACE.take().unwrap_or_default();
    Panic {
        message,
        location,
        backtrace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_caught_with_message_place_and_backtrace() {
        let future = Box::pin(async {
            tokio::task::yield_now().await;
            panic!("no {}", "luck");
        });
        let result: Result<(), Panic> = catch(future).await;
        let panic = result.unwrap_err();
        assert_eq!(panic.to_string(), "reconcile panicked: no luck");
        assert!(panic.location.contains("panic.rs:"), "{}", panic.location);
        assert!(
            panic.backtrace.contains("a_panic_is_caught"),
            "{}",
            panic.backtrace
        );
        assert!(!ARMED.get());
    }

    #[tokio::test]
    async fn a_payload_without_text_and_without_hook_is_caught_too() {
        let future = Box::pin(async { panic::resume_unwind(Box::new(7)) });
        let result: Result<(), Panic> = catch(future).await;
        assert_eq!(result.unwrap_err().message, "a value that is no text");
    }

    #[tokio::test]
    async fn a_future_without_panic_is_untouched() {
        assert_eq!(catch(Box::pin(async { 7 })).await.unwrap(), 7);
    }
}
