//! Echo server.
