//! G-03: what keeps a whole cycle from deleting anything.

use std::fmt;
use std::time::Duration;

/// What keeps a whole cycle from deleting anything.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// The stored cluster id is another one, or there is none.
    ClusterId {
        /// Namespace and name of the ConfigMap that keeps it.
        store: Box<str>,
        /// What it says.
        stored: Option<Box<str>>,
        /// The id of this process.
        own: Box<str>,
    },
    /// The API server does not know Proxies.
    DefinitionMissing,
    /// The Proxies, or the stored cluster id, could not be read in full.
    Unread(Box<str>),
    /// The caches of this process are not filled.
    NotSynced,
    /// The API server did not answer some time ago.
    ServerUnreachable {
        /// For how long it has answered since.
        calm: Duration,
        /// For how long it should have.
        wanted: Duration,
    },
    /// There is no Proxy at all, and there are instances.
    NoProxies {
        /// How many instances there are.
        instances: usize,
    },
    /// More orphans than a mishap explains.
    TooMany {
        /// How many orphans there are.
        orphans: usize,
        /// How many there may be: 3, or a fifth of the instances if that is more.
        limit: usize,
    },
}

impl Guard {
    /// A short lower-case word, for metrics and logs.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self {
            Self::ClusterId { .. } => "cluster-id",
            Self::DefinitionMissing => "definition-missing",
            Self::Unread(_) => "unread",
            Self::NotSynced => "not-synced",
            Self::ServerUnreachable { .. } => "server-unreachable",
            Self::NoProxies { .. } => "no-proxies",
            Self::TooMany { .. } => "too-many",
        }
    }

    /// Whether it judges by numbers alone, which somebody who counted may know better.
    #[must_use]
    pub fn yields_to_a_count(&self) -> bool {
        matches!(self, Self::NoProxies { .. } | Self::TooMany { .. })
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterId { store, stored, own } => match stored {
                Some(stored) => write!(
                    f,
                    "ConfigMap {store} says that the cluster id is {stored}, not {own}; start with \
                     the stored one"
                ),
                None => write!(
                    f,
                    "ConfigMap {store} does not say which cluster id is in use; a start of the \
                     operator writes {own} there"
                ),
            },
            Self::DefinitionMissing => f.write_str(
                "the API server does not know Proxies; is their definition gone, or is it the \
                 wrong server?",
            ),
            Self::Unread(cause) => write!(f, "what is live could not be read in full: {cause}"),
            Self::NotSynced => f.write_str("the caches are not filled yet"),
            Self::ServerUnreachable { calm, wanted } => write!(
                f,
                "the API server has answered without a break for {}s only, not for {}s",
                calm.as_secs(),
                wanted.as_secs()
            ),
            Self::NoProxies { instances } => write!(
                f,
                "there is no Proxy at all, and the providers list instances: {instances}; if that is \
                 right, look at them with `proxy-operator gc --dry-run` and run `proxy-operator gc \
                 --delete` with the count that it tells"
            ),
            Self::TooMany { orphans, limit } => write!(
                f,
                "{orphans} orphans are more than {limit}; look at them with `proxy-operator gc \
                 --dry-run`, and if they may go run `proxy-operator gc --delete --count {orphans}`"
            ),
        }
    }
}
