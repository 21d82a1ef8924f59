//! A Compute Engine API in this process, for tests: plain HTTP on loopback, no credentials asked.
//!
//! Behind the address stands a state machine, not a list of canned answers: VMs are provisioned,
//! staged, run, stop and go; inserts and deletes are zonal operations that take their time; a
//! request id brings back the operation that it began. [`Rule`]s let calls fail in the ways that
//! the cloud has, before or after their effect, in the shapes that it answers with ([`Refusal`]).
//!
//! ```text
//!  client ──HTTP──▶ server ─▶ rules (fail, delay, cut?) ─▶ World ─▶ VMs, operations, request ids
//!                     ▲                                      ▲
//!              /fake/… (steer it from another process)   World's methods (from this one)
//! ```
//!
//! What it serves, under `/compute/v1/projects/PROJECT`: `instances` insert, get, delete and
//! aggregatedList, and `operations` get of a zone.
//!
//! Guarantees:
//!
//! - A name is taken once in a zone, from the moment an insert is accepted until the VM is gone.
//! - What happened to a VM is decided by time alone; no background task changes anything.
//! - Names, labels, metadata and request ids are refused by the cloud's rules.
//!
//! Not guaranteed: quotas per region or family (there is one number of VMs), disks and networks as
//! resources of their own, the order of keys in answers.

mod admin;
mod answer;
mod filter;
mod machine;
mod operation;
mod rules;
mod server;
mod settings;
mod validate;
mod world;

pub use answer::{Answer, Refusal};
pub use machine::Status;
pub use rules::{Op, Rule, When};
pub use server::{Error, FakeGce};
pub use settings::Settings;
pub use world::{Call, Seen, World};
