//! Crash points: places where a test lets the process die.
//!
//! [`arm`] chooses one; when the code comes by `point` there, the process aborts at once, as a
//! SIGKILL would end it. Compiled with debug assertions, with the feature `testing` or for the unit
//! tests of any build: in a release image `point` is empty and nothing can arm it.

use std::fmt;
use std::str::FromStr;

/// A place between two effects of the reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cp {
    /// Before the create call.
    Cp1,
    /// The create was accepted, its answer is lost.
    Cp2,
    /// The create was answered, the annotation is not written.
    Cp3,
    /// The annotation is written, the status is not.
    Cp4,
    /// The status of a create is written.
    Cp5,
    /// Replacement: the instance is gone, the annotation is new, the id is not cleared.
    Cp6,
    /// Replacement, stop or deletion: the delete was accepted, the status is not written.
    Cp7,
    /// Deletion: the instance is gone, the finalizer is still there.
    Cp8,
    /// Deletion: the finalizer is gone, the status is not written.
    Cp9,
    /// The finalizer was added.
    Cp10,
}

impl Cp {
    /// All of them, in the order of a Proxy's life.
    pub const ALL: [Cp; 10] = [
        Cp::Cp1,
        Cp::Cp2,
        Cp::Cp3,
        Cp::Cp4,
        Cp::Cp5,
        Cp::Cp6,
        Cp::Cp7,
        Cp::Cp8,
        Cp::Cp9,
        Cp::Cp10,
    ];

    /// The name on the command line, `CP1` to `CP10`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Cp::Cp1 => "CP1",
            Cp::Cp2 => "CP2",
            Cp::Cp3 => "CP3",
            Cp::Cp4 => "CP4",
            Cp::Cp5 => "CP5",
            Cp::Cp6 => "CP6",
            Cp::Cp7 => "CP7",
            Cp::Cp8 => "CP8",
            Cp::Cp9 => "CP9",
            Cp::Cp10 => "CP10",
        }
    }
}

impl fmt::Display for Cp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no crash point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no crash point; want one of CP1 to CP10")]
pub struct Unknown;

impl FromStr for Cp {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        Cp::ALL
            .into_iter()
            .find(|cp| cp.as_str().eq_ignore_ascii_case(text))
            .ok_or(Unknown)
    }
}

#[cfg(any(test, debug_assertions, feature = "testing"))]
mod armed {
    use std::sync::OnceLock;

    use super::Cp;

    static ARMED: OnceLock<Cp> = OnceLock::new();

    /// Chooses where this process dies. The first call counts, for the life of the process.
    pub fn arm(cp: Cp) {
        let chosen = *ARMED.get_or_init(|| cp);
        tracing::warn!(crash_at = %chosen, "this process aborts at its crash point");
    }

    pub(crate) fn point(cp: Cp) {
        #[cfg(test)]
        super::here::point(cp);
        if ARMED.get() == Some(&cp) {
            tracing::warn!(crash_at = %cp, "crash point reached");
            std::process::abort();
        }
    }
}

#[cfg(any(test, debug_assertions, feature = "testing"))]
pub use armed::arm;
#[cfg(any(test, debug_assertions, feature = "testing"))]
pub(crate) use armed::point;

/// Crash points of a process that a test plays on its own thread: whoever comes by unwinds, and
/// nothing of it goes on.
#[cfg(test)]
pub(crate) mod here {
    use std::cell::Cell;

    use super::Cp;

    thread_local! {
        static DOOM: Cell<Option<Cp>> = const { Cell::new(None) };
    }

    /// What a death unwinds with.
    pub(crate) struct Died;

    /// Chooses where the next death on this thread is.
    pub(crate) fn doom(cp: Cp) {
        DOOM.set(Some(cp));
    }

    pub(super) fn point(cp: Cp) {
        if DOOM.get() == Some(cp) {
            DOOM.set(None);
            std::panic::resume_unwind(Box::new(Died));
        }
    }
}

/// Nothing, in a build without crash points.
#[cfg(not(any(test, debug_assertions, feature = "testing")))]
pub(crate) fn point(_: Cp) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crash_point_is_found_by_its_name() {
        for cp in Cp::ALL {
            assert_eq!(cp.to_string().parse(), Ok(cp));
        }
        assert_eq!("CP11".parse::<Cp>(), Err(Unknown));
    }

    /// Also in a build whose image has no crash points.
    #[test]
    fn a_doomed_thread_dies_once_at_its_point_and_at_no_other() {
        here::doom(Cp::Cp3);
        point(Cp::Cp2);
        let death = std::panic::catch_unwind(|| point(Cp::Cp3)).expect_err("it dies");
        assert!(death.is::<here::Died>());
        point(Cp::Cp3);
    }
}
