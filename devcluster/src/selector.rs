//! Selectors.
