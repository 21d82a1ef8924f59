//! Module schema.
