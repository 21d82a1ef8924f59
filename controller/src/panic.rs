//! Catching a panic, of a future or of a call, with the place and the backtrace.

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

/// Turns a panic of `call` into `Err`. What `call` may have changed half is the caller's to judge.
pub(crate) fn guard<T>(call: impl FnOnce() -> T) -> Result<T, Box<Panic>> {
    install_hook();
    guarded(call)
}

fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Box<Panic>> {
    let armed = Armed::new();
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    drop(armed);
    result.map_err(caught)
}

#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct CatchPanic<F> {
    future: F,
}

impl<F: Future + Unpin> Future for CatchPanic<F> {
    type Output = Result<F::Output, Box<Panic>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = Pin::new(&mut self.future);
        // The future is dropped, not used, after a panic: nothing half-changed is seen through it.
        match guarded(|| future.poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

thread_local! {
    /// Whether a panic on this thread is one that [`guarded`] will catch.
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

fn caught(payload: Box<dyn Any + Send>) -> Box<Panic> {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned());
    // Empty after `resume_unwind`, which calls no hook.
    let (location, backtrace) = TRACE.take().unwrap_or_default();
    // It may be a value whose drop panics, and so may what that one throws: the second is leaked.
    if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    Box::new(Panic {
        message,
        location,
        backtrace,
    })
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
        let result: Result<(), Box<Panic>> = catch(future).await;
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
        let result: Result<(), Box<Panic>> = catch(future).await;
        assert_eq!(result.unwrap_err().message, "a value that is no text");
    }

    #[test]
    fn a_call_that_panics_by_a_value_whose_drop_panics_is_caught_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        let result: Result<(), Box<Panic>> = guard(|| panic::panic_any(Bomb));
        assert_eq!(result.unwrap_err().message, "a value that is no text");
        assert_eq!(guard(|| 7).unwrap(), 7);
    }

    #[tokio::test]
    async fn a_future_without_panic_is_untouched() {
        assert_eq!(catch(Box::pin(async { 7 })).await.unwrap(), 7);
    }
}
