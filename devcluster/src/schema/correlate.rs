//! Which part of the old object is the former self of a part of the new one.

use serde_json::{Map, Value};

use super::structural::Schema;

/// The former value of a field that the schema knows.
pub(super) fn field<'a>(schema: &Schema, old: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    schema.field(name)?;
    old?.get(name)
}

/// The former items of a list of type `map`, by their keys; other lists have none.
pub(super) struct Items<'a> {
    schema: &'a Schema,
    old: Option<&'a Vec<Value>>,
}

impl<'a> Items<'a> {
    pub(super) fn new(schema: &'a Schema, old: Option<&'a Value>) -> Self {
        let is_map = schema.list_type.as_deref() == Some("map");
        Self {
            schema,
            old: old.and_then(Value::as_array).filter(|_| is_map),
        }
    }

    /// The former self of `item`.
    pub(super) fn of(&self, item: &Value) -> Option<&'a Value> {
        let item = item.as_object()?;
        self.old?.iter().find(|old| {
            old.as_object().is_some_and(|old| {
                self.schema
                    .list_map_keys
                    .iter()
                    .all(|key| self.key(old, key) == self.key(item, key))
            })
        })
    }

    fn key<'v>(&'v self, item: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
        let default = || {
            self.schema
                .items
                .as_deref()?
                .properties
                .get(key)?
                .default
                .as_ref()
        };
        item.get(key).or_else(default)
    }
}
