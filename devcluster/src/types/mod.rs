//! Module types.
