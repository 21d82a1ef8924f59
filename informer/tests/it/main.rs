//! Behaviour of whole informers: on a scripted source, on a scripted wire, on the embedded API
//! server and, where it is built, on a real one.

#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod cluster;
mod filtered;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod http;
mod keyed;
mod lister;
mod metrics;
mod model;
mod mutation;
mod origin;
mod paging;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod real;
mod reflector;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod scenarios;
mod shared;
mod stream;
mod support;
mod unreadable;
