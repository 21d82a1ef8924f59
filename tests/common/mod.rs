//! What every end-to-end test needs: an API server with simulated nodes, the operator as a process, and the
//! scenarios, which are the same on the embedded and on the real API server.

pub mod eventually;
pub mod fleet;
pub mod operator;
pub mod pods;
pub mod scenarios;
pub mod through;
pub mod world;
