//! What can be wrong with a queue's options.

/// Why a queue could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another live queue of the registry has the name.
    #[error(
        "a queue named {name:?} exists already; give each queue its own name, or an empty one for \
         no metrics"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The number of shards is no power of two between 1 and 256.
    #[error("a queue cannot have {shards} shards; take a power of two from 1 to 256")]
    Shards {
        /// The number that was asked for.
        shards: usize,
    },
    /// The order policy needs to see all keys in one place.
    #[error("the order policy works on one shard only, not on {shards}; set `shards: 1`")]
    OrderNeedsOneShard {
        /// The number that was asked for.
        shards: usize,
    },
}
