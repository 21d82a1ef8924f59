//! Behaviour of built-in kinds as pure functions on JSON, called by the generic handlers.

pub(crate) mod binding;
mod config;
pub(crate) mod definition;
mod event;
mod namespace;
mod node;
mod pod;
mod resources;
mod workload;

use serde_json::{Map, Value};

use crate::schema::FieldError;

pub(super) use config::{CONFIG_MAP, SECRET};
pub(super) use definition::DEFINITION;
pub(super) use event::{
    CORE_EVENT, EVENT, from_storage as events_from_core, to_storage as events_to_core,
};
pub(super) use namespace::NAMESPACE;
pub(super) use node::NODE;
pub(super) use pod::POD;
pub(super) use workload::{DEPLOYMENT, ROLE_BINDING};

/// What a kind does beside being stored. Every hook is pure; the default does nothing.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// Fills in defaults of a decoded object.
    pub(crate) default: fn(&mut Value),
    /// Sets what the server decides about a new object.
    pub(crate) prepare_create: fn(&mut Value),
    /// Restores what an update of the main resource may not touch, given the stored object.
    pub(crate) prepare_update: fn(&mut Value, &Value),
    /// The same for an update of the status; spec and identity are already restored.
    pub(crate) prepare_status: fn(&mut Value, &Value),
    /// Everything that is wrong with a created (`None`) or updated object.
    pub(crate) validate: fn(&Value, Option<&Value>) -> Vec<FieldError>,
    /// Why an object may not be deleted at all.
    pub(crate) deny_delete: fn(&Value) -> Option<&'static str>,
    /// Marks an object whose deletion begins.
    pub(crate) begin_delete: fn(&mut Value, &str),
    /// Whether an object that is being deleted must stay for a reason beside finalizers and grace.
    pub(crate) holds_deletion: fn(&Value) -> bool,
    /// Seconds that a deletion leaves the object, given the object and the request's wish.
    pub(crate) grace: Option<fn(&Value, Option<i64>) -> i64>,
    /// How this version differs from the stored one.
    pub(crate) conversion: Option<Conversion>,
}

/// Conversion between a version and the stored one.
#[derive(Clone, Copy)]
pub(crate) struct Conversion {
    pub(crate) to_storage: fn(&mut Value),
    pub(crate) from_storage: fn(&mut Value),
    /// The stored name of a selectable field.
    pub(crate) field: fn(&str) -> &str,
}

impl Hooks {
    /// A kind that is stored and nothing else.
    pub(crate) const NONE: Self = Self {
        default: |_| {},
        prepare_create: |_| {},
        prepare_update: |_, _| {},
        prepare_status: |_, _| {},
        validate: |_, _| Vec::new(),
        deny_delete: |_| None,
        begin_delete: |_, _| {},
        holds_deletion: |_| false,
        grace: None,
        conversion: None,
    };
}

/// Sets a member that is missing, null or an empty text.
pub(super) fn set_default(object: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let missing = match object.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if missing {
        object.insert(key.to_owned(), value.into());
    }
}

/// The object at a key, made when it is missing.
pub(super) fn object_mut<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let member = &mut value[key];
    if !member.is_object() {
        *member = Value::Object(Map::new());
    }
    member.as_object_mut().expect("it was just made an object")
}

/// Members of a list of objects; nothing where there is no list.
pub(super) fn entries<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value
        .pointer(path)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// The same, for changing them.
pub(super) fn entries_mut<'a>(
    value: &'a mut Value,
    path: &str,
) -> impl Iterator<Item = &'a mut Value> {
    value
        .pointer_mut(path)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// The text at a JSON pointer; "" when there is none.
pub(super) fn text_at<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
