//! Paths of fields as messages write them: `spec.ports[0].labels[key]`.

use std::fmt;

/// The path of a named field.
pub(crate) fn child(at: &str, name: &str) -> String {
    if at.is_empty() {
        name.to_owned()
    } else {
        format!("{at}.{name}")
    }
}

/// The path of a list item.
pub(crate) fn index(at: &str, index: usize) -> String {
    format!("{at}[{index}]")
}

/// The path of a map entry.
pub(crate) fn key(at: &str, key: &str) -> String {
    format!("{at}[{key}]")
}

/// The place of a value during a walk: written out only if there is something to say about it, which for
/// most values there is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    above: Option<&'a Place<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Start(&'a str),
    Child(&'a str),
    Member(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Place<'a> {
    /// Where a walk begins.
    pub(super) const fn start(at: &'a str) -> Self {
        Self {
            above: None,
            step: Step::Start(at),
        }
    }

    /// As [`child`].
    pub(super) const fn child(&'a self, name: &'a str) -> Self {
        self.below(Step::Child(name))
    }

    /// A field with a dot before it even at the beginning of a path.
    pub(super) const fn member(&'a self, name: &'a str) -> Self {
        self.below(Step::Member(name))
    }

    /// As [`index`].
    pub(super) const fn index(&'a self, index: usize) -> Self {
        self.below(Step::Index(index))
    }

    /// As [`key`].
    pub(super) const fn key(&'a self, key: &'a str) -> Self {
        self.below(Step::Key(key))
    }

    const fn below(&'a self, step: Step<'a>) -> Self {
        Self {
            above: Some(self),
            step,
        }
    }

    /// Whether its text is empty.
    pub(super) fn is_empty(&self) -> bool {
        match self.step {
            Step::Start(text) => text.is_empty(),
            Step::Child(name) => name.is_empty() && self.above.is_none_or(Self::is_empty),
            Step::Member(_) | Step::Index(_) | Step::Key(_) => false,
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            Step::Start(text) => f.write_str(text),
            Step::Child(name) if self.above.is_none_or(Self::is_empty) => f.write_str(name),
            Step::Child(name) | Step::Member(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_the_path_that_leads_to_it() {
        for start in ["", "status"] {
            let place = Place::start(start);
            assert_eq!(place.to_string(), start);
            assert_eq!(place.is_empty(), start.is_empty());
            let (a, path) = (place.child("a"), child(start, "a"));
            assert_eq!(a.to_string(), path);
            let (item, path) = (a.index(3), index(&path, 3));
            assert_eq!(item.to_string(), path);
            let (entry, path) = (item.key("k"), key(&path, "k"));
            assert_eq!(entry.to_string(), path);
            assert_eq!(entry.child("b").to_string(), child(&path, "b"));
            assert_eq!(place.member("m").to_string(), format!("{start}.m"));
        }
    }
}
