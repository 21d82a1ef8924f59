//! Behaviour of whole informers, on a scripted source, a scripted HTTP service and a cluster.

mod cluster;
mod http;
mod model;
mod reflector;
mod shared;
mod stream;
mod support;
