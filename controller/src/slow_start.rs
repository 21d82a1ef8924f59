//! Slow start: many like calls in batches of 1, 2, 4, …, so that a fault shows on the first one.
//!
//! Creating 500 pods against a quota of 10 would be 490 refused calls in one blow. In batches that
//! double, a fault that meets each call alike costs as many calls as had succeeded before, and one
//! more. Mirrors kube-controller-manager's `slowStartBatch`.

use std::fmt;
use std::future::Future;

use futures::future::join_all;

/// Calls that did not all succeed.
#[derive(Debug)]
pub struct Halted<E> {
    /// How many succeeded.
    pub succeeded: usize,
    /// How many were not made, since one of an earlier batch had failed.
    pub skipped: usize,
    /// What the failed ones of the last batch reported, by index.
    pub errors: Vec<(usize, E)>,
}

impl<E: fmt::Display> fmt::Display for Halted<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            succeeded,
            skipped,
            errors,
        } = self;
        let failed = errors.len();
        write!(
            f,
            "{succeeded} calls succeeded, {failed} failed, {skipped} were skipped"
        )?;
        match errors.first() {
            Some((index, error)) => write!(f, "; call {index}: {error}"),
            None => Ok(()),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Halted<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.errors.first().and_then(|(_, error)| error.source())
    }
}

/// Calls `call` with each index below `count`, the first alone, then 2, 4, 8, … at the same time.
///
/// A batch in which a call fails is waited for; the batches after it are skipped. All calls run
/// within this future.
///
/// Cancellation safety: dropping the future drops the calls under way.
///
/// # Errors
/// [`Halted`], with what succeeded, failed and was skipped: `count` is their sum.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use controller::slow_start::slow_start;
///
/// // The sixth call fails: 1 + 2 + 4 are made, and 3 skipped.
/// let halted = slow_start(10, async |n| if n == 5 { Err("quota") } else { Ok(()) }).await.unwrap_err();
/// assert_eq!((halted.succeeded, halted.skipped), (6, 3));
/// # }
/// ```
pub async fn slow_start<E, Fut>(count: usize, call: impl Fn(usize) -> Fut) -> Result<(), Halted<E>>
where
    Fut: Future<Output = Result<(), E>>,
{
    slow_start_from(1, count, call).await
}

/// As [`slow_start`], with a first batch of `initial` calls; 0 counts as 1.
///
/// # Errors
/// Those of [`slow_start`].
pub async fn slow_start_from<E, Fut>(
    initial: usize,
    count: usize,
    call: impl Fn(usize) -> Fut,
) -> Result<(), Halted<E>>
where
    Fut: Future<Output = Result<(), E>>,
{
    let (mut start, mut size) = (0, initial.max(1));
    while start < count {
        let end = count.min(start.saturating_add(size));
        let results = join_all((start..end).map(&call)).await;
        let errors: Vec<_> = (start..end)
            .zip(results)
            .filter_map(|(index, result)| result.err().map(|error| (index, error)))
            .collect();
        if !errors.is_empty() {
            return Err(Halted {
                succeeded: end - errors.len(),
                skipped: count - end,
                errors,
            });
        }
        (start, size) = (end, size.saturating_mul(2));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Runs with the calls of `failing` refused; gives the result and the batches by their starts.
    async fn play(
        initial: usize,
        count: usize,
        failing: &[usize],
    ) -> (Result<(), Halted<usize>>, Vec<Vec<usize>>) {
        let batches = RefCell::new(Vec::<Vec<usize>>::new());
        let running = Cell::new(0);
        let result = slow_start_from(initial, count, |n| {
            let (batches, running) = (&batches, &running);
            async move {
                if running.get() == 0 {
                    batches.borrow_mut().push(Vec::new());
                }
                running.set(running.get() + 1);
                batches.borrow_mut().last_mut().unwrap().push(n);
                // All of a batch have begun before the first of them goes on.
                tokio::task::yield_now().await;
                running.set(running.get() - 1);
                if failing.contains(&n) { Err(n) } else { Ok(()) }
            }
        })
        .await;
        (result, batches.into_inner())
    }

    #[tokio::test]
    async fn k7_a_slow_start_of_10_with_the_6th_call_failing_tries_7_and_skips_the_rest() {
        let (result, batches) = play(1, 10, &[5]).await;
        let halted = result.unwrap_err();
        assert_eq!((halted.succeeded, halted.skipped), (6, 3));
        assert_eq!(halted.errors, [(5, 5)]);
        assert_eq!(batches.concat(), [0, 1, 2, 3, 4, 5, 6]);
    }

    type Case = (
        usize,
        usize,
        &'static [usize],
        &'static [usize],
        usize,
        usize,
    );

    #[tokio::test]
    async fn c76_batches_double_and_each_call_is_accounted_for() {
        // (initial, count, failing, sizes of batches, succeeded, skipped)
        let cases: [Case; 9] = [
            (1, 0, &[], &[], 0, 0),
            (1, 1, &[], &[1], 1, 0),
            (1, 10, &[], &[1, 2, 4, 3], 10, 0),
            (0, 3, &[], &[1, 2], 3, 0),
            (5, 30, &[], &[5, 10, 15], 30, 0),
            (100, 7, &[], &[7], 7, 0),
            (1, 500, &[0], &[1], 0, 499),
            (1, 10, &[1, 2], &[1, 2], 1, 7),
            (1, 10, &[9], &[1, 2, 4, 3], 9, 0),
        ];
        for (initial, count, failing, sizes, succeeded, skipped) in cases {
            let (result, batches) = play(initial, count, failing).await;
            let begun: Vec<_> = batches.iter().map(Vec::len).collect();
            assert_eq!(begun, sizes, "{count} from {initial}, failing {failing:?}");
            match result {
                Ok(()) => assert!(failing.is_empty() && succeeded == count),
                Err(halted) => {
                    assert_eq!((halted.succeeded, halted.skipped), (succeeded, skipped));
                    assert_eq!(halted.errors.len(), failing.len());
                    assert_eq!(succeeded + skipped + failing.len(), count);
                }
            }
        }
    }
}
