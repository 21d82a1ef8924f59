//! Simulated nodes against API servers: the embedded one, and the real one where it is built.

mod embedded;
mod real;
mod support;

mod scenarios;
