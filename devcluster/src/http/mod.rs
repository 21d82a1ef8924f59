//! Transport: TLS, connections, paths, content negotiation, response bodies, compression.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod compress;
pub(crate) mod path;
pub(crate) mod query;
pub(crate) mod response;
pub(crate) mod server;
pub(crate) mod tls;
