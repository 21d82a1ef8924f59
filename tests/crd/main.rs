//! The definition of the Proxy resource and what it refuses, on both API servers.

mod agreement;
mod bad_input;
mod cases;
mod definition;
mod manifests;
mod reference;
mod servers;
