//! Which objects of a collection a list, watch or deletecollection means.

use super::Call;
use crate::{
    error::{ApiError, ApiResult},
    registry::Resource,
    selector::{FieldSelector, LabelSelector},
    store::{Key, Scope, StoredObject},
};

/// The objects that a request means.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    namespace: Option<String>,
    one: Option<Key>,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    /// Reads namespace, name and selectors of a request.
    pub(super) fn parse(call: &Call) -> ApiResult<Self> {
        let label_text = call.query.text("labelSelector").unwrap_or_default();
        let field_text = call.query.text("fieldSelector").unwrap_or_default();
        let resource = &call.resource;
        let labels = LabelSelector::parse(label_text).map_err(ApiError::bad_request)?;
        let fields = FieldSelector::parse(field_text).map_err(ApiError::bad_request)?;
        for requirement in fields.requirements() {
            if !supports(resource, &requirement.field) {
                let field = &requirement.field;
                // Kinds without fields of their own name those that every kind has.
                let plain = resource.selectable.is_empty() && !resource.is_custom();
                return Err(ApiError::bad_request(if plain {
                    format!(
                        "\"{field}\" is not a known field selector: only \"metadata.name\", \
                         \"metadata.namespace\""
                    )
                } else {
                    format!("field label not supported: {field}")
                }));
            }
        }
        let path_name = call.path.name.as_deref();
        let wanted = fields.exact("metadata.name");
        if let (Some(name), Some(wanted)) = (path_name, wanted)
            && name != wanted
        {
            return Err(ApiError::bad_request(format!(
                "both a name (\"{name}\") and a different metadata.name selector (\"{wanted}\") were given"
            )));
        }
        let namespace = call.namespace().map(str::to_owned);
        let one = path_name
            .or(wanted)
            .filter(|_| namespace.is_some() || !resource.namespaced)
            .map(|name| Key::new(namespace.as_deref(), name));
        Ok(Self {
            namespace,
            one,
            labels,
            fields,
        })
    }

    pub(super) fn scope(&self) -> Scope<'_> {
        match (&self.one, &self.namespace) {
            (Some(key), _) => Scope::One(key),
            (None, Some(namespace)) => Scope::Namespace(namespace),
            (None, None) => Scope::All,
        }
    }

    /// Whether every object of the scope is meant.
    pub(super) fn is_whole_scope(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object of the scope is meant.
    pub(super) fn matches(&self, resource: &Resource, key: &Key, object: &StoredObject) -> bool {
        self.labels.matches(object.labels.as_ref())
            && self
                .fields
                .matches(|field| resource.field(key, object, field))
    }
}

fn supports(resource: &Resource, field: &str) -> bool {
    match field {
        "metadata.name" => true,
        "metadata.namespace" => resource.namespaced,
        _ => resource.selectable.iter().any(|known| &**known == field),
    }
}
