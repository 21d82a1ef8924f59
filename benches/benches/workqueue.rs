//! All scenarios of the work queue, one after the other: `cargo bench -p benches`.
//!
//! `WORKQUEUE_BENCH_SCALE` (default 0.1) scales the sizes. For figures to be compared with other
//! libraries take `benches/peers/run-peers`, which gives each run a process of its own.

use benches::{Args, Error, SCENARIOS, run};

fn main() -> Result<(), Error> {
    let scale = std::env::var("WORKQUEUE_BENCH_SCALE").unwrap_or_else(|_| "0.1".to_owned());
    for series in ["workqueue", "limit"] {
        for scenario in SCENARIOS {
            let args = Args::default()
                .with("scenario", scenario)
                .with("scale", &scale)
                .with("series", series);
            match run(&args) {
                Ok(()) | Err(Error::Unsupported(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
