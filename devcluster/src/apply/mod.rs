//! Server-side apply: who owns which fields of an object, and what follows from it.
//!
//! ```text
//!   tracker: managers, times, resets, conflicts as errors
//!      |
//!   ownership: how a write moves fields between managers
//!      |
//!   compare, merge, fields: walks over values by their types      managers, fields_v1: metadata.managedFields
//!      |                                                             |
//!   schema: which lists have keys, what is one piece              set, path: sets of paths
//! ```
//!
//! Everything here is a pure function of objects, schemas and a time; nothing is stored. It mirrors
//! structured-merge-diff and the field managers of the real server, down to the texts.

mod compare;
mod conflict;
mod fields;
mod fields_v1;
mod managers;
mod merge;
mod ownership;
mod path;
mod reconcile;
mod scale;
mod schema;
mod set;
#[cfg(test)]
mod tests;
mod tracker;
mod walk;

pub(crate) use managers::equal_but_for_times;
pub(crate) use ownership::Versions;
pub(crate) use scale::{Replicas, SCALE_VERSION};
pub(crate) use schema::{Schema, Type, built_in};
pub use tracker::FieldTracking;
pub(crate) use tracker::{Live, ResetFields, Tracker};
