//! `bench workqueue --scenario NAME --key string|struct --scale FACTOR [--series SERIES]`
//!
//! `bench informer --url URL --n N --mode list|watchlist --decode typed-json|metadata|dynamic
//! --events M --paced-events L --rate R [--series SERIES]`
//!
//! `bench handlers --url URL --n N --decode DECODE --handlers H --events M`
//!
//! `bench index --n N`
//!
//! `bench reconcile --url URL --n N --mode list|watchlist --concurrency C --events M
//! --paced-events L --rate R`
//!
//! `bench scale --scenario create|restart|rotation|all [--n N] [--workers W] [--rest SECONDS]
//! [--operator PATH]`

use std::process::ExitCode;

use benches::{Args, Error};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let result = match words.next().as_deref() {
        Some("workqueue") => Args::parse(words).and_then(|args| benches::run(&args)),
        Some(bench @ ("informer" | "handlers")) => {
            Args::parse(words).and_then(|args| benches::run_informer(bench, &args))
        }
        Some("index") => Args::parse(words).and_then(|args| benches::run_index(&args)),
        Some("reconcile") => Args::parse(words).and_then(|args| benches::run_reconcile(&args)),
        Some("scale") => Args::parse(words).and_then(|args| benches::run_scale(&args)),
        Some(other) => Err(Error::Unsupported(other.to_owned())),
        None => Err(Error::Usage(
            "which bench? There are: workqueue, informer, handlers, index, reconcile, scale"
                .to_owned(),
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(
                clippy::print_stderr,
                reason = "standard output belongs to the figures"
            )]
            {
                eprintln!("{error}");
            }
            // The peers' convention: 3 is "no counterpart", anything else a failure.
            ExitCode::from(if matches!(error, Error::Unsupported(_)) {
                3
            } else {
                2
            })
        }
    }
}
