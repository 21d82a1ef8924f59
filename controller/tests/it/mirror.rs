//! The example on the embedded cluster.
