//! Module proxy.
