//! The definition of the Proxy resource and what it refuses, on both API servers.

mod definition;
