//! Waiting for what must become true, with a bound and an explanation.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

const PAUSE: Duration = Duration::from_millis(25);

/// Polls `probe` until it gives `Ok`, for at most `limit`.
///
/// # Panics
/// After `limit`, with `what` and the last reason that `probe` gave.
pub(crate) async fn eventually<T, F>(limit: Duration, what: &str, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let deadline = Instant::now() + limit;
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(reason) if Instant::now() >= deadline => {
                panic!("not within {limit:?}: {what}; last seen: {reason}")
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
