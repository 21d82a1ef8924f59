//! Behaviour of whole informers, on a scripted source, a scripted HTTP service and a cluster.

#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod cluster;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod http;
mod model;
mod reflector;
mod shared;
mod stream;
mod support;
