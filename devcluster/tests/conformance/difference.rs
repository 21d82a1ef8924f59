//! Where the embedded cluster may answer otherwise than a real kube-apiserver, and why.

use crate::support::Target;

/// A difference that is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Server-side apply is not offered, so lists of patch types lack it.
    NoApply,
}

impl Difference {
    /// Why it is allowed.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NoApply => "ownership of fields is not tracked",
        }
    }
}

/// Whether a check that the difference touches must be left out; says so.
#[expect(
    clippy::print_stderr,
    reason = "a check that is left out is told to whoever reads the run"
)]
pub(crate) fn allowed(target: &Target, difference: Difference) -> bool {
    if target.is_embedded() {
        eprintln!(
            "left out on the embedded cluster: {difference:?} ({})",
            difference.reason()
        );
    }
    target.is_embedded()
}
