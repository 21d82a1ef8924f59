//! Transport: TLS, connections, paths, content negotiation, response bodies.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod path;
pub(crate) mod query;
pub(crate) mod response;
pub(crate) mod server;
pub(crate) mod tls;
