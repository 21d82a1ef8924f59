//! Paths of fields as messages write them: `spec.ports[0].labels[key]`.

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
