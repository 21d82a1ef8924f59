//! Behaviour of whole informers on a scripted source and on a scripted wire.

#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod endings;
mod factory;
mod filtered;
mod foreign;
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
mod reflector;
mod shared;
mod silence;
mod stream;
mod support;
mod unreadable;
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
mod wire;
