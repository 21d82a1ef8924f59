//! What one proxy has done, as numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A reading of a proxy's counters; each only grows, except `open_connections`.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ProxyCounters {
            $($(#[$doc])+ pub $name: u64,)+
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)+
        }

        impl Counters {
            /// Reads every counter; the values are not of one instant.
            pub(super) fn snapshot(&self) -> ProxyCounters {
                ProxyCounters { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Client connections and tunnels open now.
    open_connections,
    /// Client connections accepted.
    connections,
    /// Absolute-form requests answered by a target.
    forwarded,
    /// Tunnels opened by `CONNECT`.
    tunnels,
    /// Answers of `/healthz`.
    health_checks,
    /// Requests refused with 407.
    refused_auth,
    /// Requests refused because the target is not allowed.
    refused_target,
    /// Requests refused because they are no proxy requests or malformed.
    refused_request,
    /// Requests that failed on the way to the target (resolve, connect, answer).
    failed_upstream,
    /// Errors made on purpose.
    injected_errors,
    /// Bytes read from clients.
    bytes_in,
    /// Bytes written to clients.
    bytes_out,
}

/// Adds one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
