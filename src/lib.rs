//! Under construction.
pub mod api;
