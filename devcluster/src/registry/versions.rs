//! The versions of a resource's objects, for the ownership of fields.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    hooks,
    resource::{Content, Resource, set_type},
};
use crate::{
    apply::{Type, Versions, built_in},
    types,
};

const CORE: &str = "v1";
const EVENTS: &str = "events.k8s.io/v1";

impl Versions for Resource {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        match &self.content {
            Content::BuiltIn(ty) if self.api_version() == api_version => ty.map(built_in),
            // Events are the one kind of two groups.
            Content::BuiltIn(_)
                if &*self.kind == "Event" && matches!(api_version, CORE | EVENTS) =>
            {
                types::lookup(api_version, "Event").map(built_in)
            }
            Content::BuiltIn(_) => None,
            Content::Custom(custom) => custom
                .types
                .get(api_version)
                .map(crate::apply::Schema::root),
        }
    }

    fn convert<'v>(&self, object: &'v Value, api_version: &str) -> Cow<'v, Value> {
        if object["apiVersion"] == api_version {
            return Cow::Borrowed(object);
        }
        let mut converted = object.clone();
        match (&self.content, object["apiVersion"].as_str(), api_version) {
            (Content::Custom(_), _, to) => set_type(&mut converted, to, &self.kind),
            (Content::BuiltIn(_), Some(CORE), EVENTS) => hooks::events_from_core(&mut converted),
            (Content::BuiltIn(_), Some(EVENTS), CORE) => hooks::events_to_core(&mut converted),
            // An object that is not made yet says nothing of its version.
            (Content::BuiltIn(_), _, _) => {}
        }
        Cow::Owned(converted)
    }
}
