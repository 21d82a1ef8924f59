//! The types of the built-in kinds: decoding, unknown and duplicate fields, merge keys.
//!
//! `table.json` is made from the published OpenAPI documents by `examples/gen_types.rs`.

mod decode;
mod depth;
mod parse;
mod quantity;
mod table;

pub(crate) use decode::{decode, decode_metadata};
pub(crate) use depth::{MAX_DEPTH, depth};
pub(crate) use parse::parse_json;
pub(crate) use quantity::billionths;
pub(crate) use table::{Field, Shape, TypeRef, lookup, schema_of};
