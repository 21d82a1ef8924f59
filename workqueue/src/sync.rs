//! The synchronisation primitives of the crate: real ones, or loom's under `--cfg loom`.

pub(crate) use std::sync::Arc;

#[cfg(not(loom))]
pub(crate) use crate::turn_lock::{TurnGuard, TurnLock};
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::{
    MutexGuard as TurnGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
/// Models know one kind of lock.
#[cfg(loom)]
pub(crate) type TurnLock<T> = Mutex<T>;

/// loom's mutex with the interface of `parking_lot`'s: no poison.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> TurnGuard<'_, T> {
        self.0
            .lock()
            .expect("a panic under the lock ends the model")
    }

    pub(crate) fn try_lock(&self) -> Option<TurnGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Keeps a value on cache lines of its own, so that neighbours do not slow each other down.
///
/// 128 bytes: processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
