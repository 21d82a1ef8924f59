//! The scenarios of `benches/peers` for the crates of this project.
//!
//! `bench` is an executable that `benches/peers/run-peers --extra` takes; see `benches/README.md`.

mod index;
mod informer;
mod key;
mod limit;
mod measure;
mod memory;
mod proxy;
mod reconcile;
mod replayd;
mod scale;
mod workqueue;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::{collections::HashMap, fmt, str::FromStr};

pub use index::run as run_index;
pub use informer::run as run_informer;
pub use reconcile::run as run_reconcile;
pub use scale::run as run_scale;
pub use workqueue::{SCENARIOS, run};

/// Why a run did not take place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// This side has no counterpart for the combination.
    Unsupported(String),
    /// The command line is wrong.
    Usage(String),
    /// The run began and did not come to its end.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(what) => write!(f, "there is no {what} here"),
            Self::Usage(what) | Self::Failed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

/// Options of the form `--name value` or `--name=value`.
#[derive(Debug, Clone, Default)]
pub struct Args(HashMap<String, String>);

impl Args {
    /// Reads the words of a command line.
    ///
    /// # Errors
    /// If a word that should be an option does not begin with `--`, or its value is missing.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Error> {
        let mut args = HashMap::new();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                return Err(Error::Usage(format!(
                    "{word} is not an option; write --NAME VALUE"
                )));
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, words.next()),
            };
            let value = value.ok_or_else(|| Error::Usage(format!("--{name} needs a value")))?;
            args.insert(name.to_owned(), value);
        }
        Ok(Self(args))
    }

    /// Sets an option.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    /// The value of an option.
    ///
    /// # Errors
    /// If the value is not understood.
    pub fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T, Error> {
        match self.0.get(name) {
            None => Ok(default),
            Some(value) => value
                .parse()
                .map_err(|_| Error::Usage(format!("--{name} {value} is not understood"))),
        }
    }
}
