//! Simulated nodes against API servers: the embedded one, and the real one where it is built.

mod embedded;
mod real;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod support;
