//! Behaviour of whole informers: on a scripted source, on a scripted wire, on the embedded API
//! server and, where it is built, on a real one.

#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod cluster;
mod factory;
mod filtered;
mod http;
mod in_place;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod keyed;
mod lister;
mod metrics;
mod model;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod mutation;
mod namespaces;
mod origin;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod paging;
mod readme;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod real;
mod reflector;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod scenarios;
mod shared;
mod stream;
mod support;
mod unreadable;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod wire;
