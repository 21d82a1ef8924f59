//! Work on many pieces by a few workers.

use std::{
    any::Any,
    future::Future,
    num::NonZeroUsize,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::task::JoinSet;

/// A piece that has panicked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{panics} of the workers ended in a panic, the first one with: {message}")]
pub struct PiecePanicked {
    /// How many workers.
    pub panics: usize,
    /// The first panic's message, if it was text.
    pub message: String,
}

/// Calls `piece` with each index below `pieces` once, by up to `workers` tasks at a time.
///
/// A worker takes `chunk` indices at once and works on them in order; there are no more workers
/// than chunks. When `stop` is ready no further chunk is begun, and the call returns when those
/// begun are done. Dropping the future aborts all workers. A worker whose piece panics ends, with
/// the rest of its chunk undone; the others go on.
///
/// ```
/// use std::{num::NonZeroUsize, sync::{Arc, atomic::{AtomicUsize, Ordering}}};
/// use workqueue::parallelize_until;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), workqueue::PiecePanicked> {
/// let sum = Arc::new(AtomicUsize::new(0));
/// let n = |n| NonZeroUsize::new(n).expect("not zero");
/// let add = {
///     let sum = Arc::clone(&sum);
///     move |index| {
///         let sum = Arc::clone(&sum);
///         async move { _ = sum.fetch_add(index, Ordering::Relaxed) }
///     }
/// };
/// parallelize_until(std::future::pending(), n(4), 100, n(10), add).await?;
/// assert_eq!(sum.load(Ordering::Relaxed), 4950);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If a piece has panicked.
pub async fn parallelize_until<F, Fut>(
    stop: impl Future<Output = ()>,
    workers: NonZeroUsize,
    pieces: usize,
    chunk: NonZeroUsize,
    piece: F,
) -> Result<(), PiecePanicked>
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let chunks = pieces.div_ceil(chunk.get());
    let shared = Arc::new((piece, AtomicUsize::new(0), AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for _ in 0..workers.get().min(chunks) {
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            let (piece, next, stopped) = &*shared;
            while !stopped.load(Ordering::Relaxed) {
                let chunk_index = next.fetch_add(1, Ordering::Relaxed);
                if chunk_index >= chunks {
                    break;
                }
                let begin = chunk_index * chunk.get();
                for index in begin..begin.saturating_add(chunk.get()).min(pieces) {
                    piece(index).await;
                }
            }
        });
    }
    let mut stop = pin!(stop);
    let mut panics = Vec::new();
    loop {
        let joined = tokio::select! {
            biased;
            joined = tasks.join_next() => joined,
            () = &mut stop, if !shared.2.load(Ordering::Relaxed) => {
                shared.2.store(true, Ordering::Relaxed);
                continue;
            }
        };
        match joined {
            None => break,
            Some(Ok(())) => {}
            Some(Err(error)) => panics.extend(error.try_into_panic().map(|p| message(&*p)).ok()),
        }
    }
    match panics.first() {
        None => Ok(()),
        Some(first) => Err(PiecePanicked {
            panics: panics.len(),
            message: first.clone(),
        }),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;

    fn n(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).unwrap()
    }

    #[tokio::test]
    async fn q25_each_index_runs_once_whatever_the_chunk() {
        for chunk in [1, 10, 100, 999, 1000, 1001] {
            let seen = Arc::new((0..1000).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
            let tasks = Arc::new(Mutex::new(std::collections::HashSet::new()));
            let piece = {
                let (seen, tasks) = (Arc::clone(&seen), Arc::clone(&tasks));
                move |index: usize| {
                    seen[index].fetch_add(1, Ordering::Relaxed);
                    tasks.lock().insert(tokio::task::id());
                    tokio::task::yield_now()
                }
            };
            parallelize_until(std::future::pending(), n(10), 1000, n(chunk), piece)
                .await
                .unwrap();
            assert!(
                seen.iter().all(|n| n.load(Ordering::Relaxed) == 1),
                "chunk {chunk}"
            );
            assert_eq!(
                tasks.lock().len(),
                10.min(1000_usize.div_ceil(chunk)),
                "chunk {chunk}"
            );
        }
    }

    #[tokio::test]
    async fn w16_no_pieces_are_no_work() {
        let piece = |_| std::future::ready(());
        assert_eq!(
            parallelize_until(std::future::pending(), n(4), 0, n(1), piece).await,
            Ok(())
        );
    }

    #[tokio::test]
    async fn w16_stop_hands_out_nothing_more_and_waits_for_what_was_begun() {
        let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (stop, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let piece = {
            let (begun, done) = (Arc::clone(&begun), Arc::clone(&done));
            let (stop, go_on) = (Arc::clone(&stop), Arc::clone(&go_on));
            move |_| {
                let (begun, done) = (Arc::clone(&begun), Arc::clone(&done));
                let (stop, go_on) = (Arc::clone(&stop), Arc::clone(&go_on));
                async move {
                    if begun.fetch_add(1, Ordering::Relaxed) == 1 {
                        stop.notify_one();
                    }
                    go_on.notified().await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let stopped = {
            let go_on = Arc::clone(&go_on);
            async move {
                stop.notified().await;
                go_on.notify_waiters();
            }
        };
        parallelize_until(stopped, n(2), 100, n(1), piece)
            .await
            .unwrap();
        assert_eq!(begun.load(Ordering::Relaxed), 2);
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn w16_a_panic_is_reported_and_the_other_pieces_run() {
        let ran = Arc::new(AtomicUsize::new(0));
        let piece = {
            let ran = Arc::clone(&ran);
            move |index| {
                assert_ne!(index, 3, "piece three");
                ran.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now()
            }
        };
        let result = parallelize_until(std::future::pending(), n(2), 10, n(1), piece).await;
        let error = result.unwrap_err();
        assert_eq!(error.panics, 1);
        assert!(error.message.contains("piece three"), "{error}");
        assert_eq!(ran.load(Ordering::Relaxed), 9);
    }
}
