//! Module patch.
