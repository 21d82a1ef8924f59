//! Module openapi.
