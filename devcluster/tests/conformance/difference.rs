//! Where the embedded cluster may answer otherwise than a real kube-apiserver, and why.

use crate::support::Target;

/// A difference that is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Server-side apply is not offered, so lists of patch types lack it.
    NoApply,
    /// Request bodies in protobuf are refused with 415.
    NoProtobuf,
    /// A definition's CREATE may be answered at once: the real server waits two seconds.
    NoCreateDelay,
    /// Kinds that are not served.
    FewerKinds,
}

impl Difference {
    /// Why it is allowed.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NoApply => "ownership of fields is not tracked",
            Self::NoProtobuf => "clients that are served send JSON",
            Self::NoCreateDelay => "one process needs no time for caches of others to catch up",
            Self::FewerKinds => "only kinds with a user in the project are in the table",
        }
    }
}

/// Whether a check that the difference touches must be left out; says so.
pub(crate) fn allowed(target: &Target, difference: Difference) -> bool {
    if target.is_embedded() {
        eprintln!("left out on the embedded cluster: {difference:?} ({})", difference.reason());
    }
    target.is_embedded()
}
