//! What the server knows of one resource: a row of the strategy table, or a version of a definition.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{custom::CustomVersion, hooks::Hooks};
use crate::{
    error::{ApiError, Named},
    printers::Printer,
    schema::FieldError,
    store::{Collection, Draft, StoredObject, field_text},
    types::{self, TypeRef},
};

/// The behaviours in which kinds differ without needing code.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traits {
    /// PUT without a resourceVersion overwrites.
    pub(crate) unconditional_update: bool,
    /// PUT of a missing object creates it.
    pub(crate) create_on_update: bool,
    /// DELETE answers with the object instead of a Status.
    pub(crate) delete_returns_object: bool,
    /// `metadata.generation` counts changes of the desired state.
    pub(crate) generation: bool,
    /// Deletion never adds propagation finalizers.
    pub(crate) no_propagation: bool,
    /// A status that is sent with a new object is kept.
    pub(crate) status_on_create: bool,
    /// A write of the status leaves labels and annotations alone.
    pub(crate) status_keeps_metadata: bool,
}

/// Which names objects may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// DNS subdomain, at most 253 bytes.
    #[default]
    Subdomain,
    /// DNS label, at most 63 bytes.
    Label,
    /// Anything that is one segment of a path.
    PathSegment,
}

/// Where `/scale` finds its fields, as dotted paths from the object.
#[derive(Clone, Debug)]
pub(crate) struct ScalePaths {
    pub(crate) spec_replicas: String,
    pub(crate) status_replicas: String,
    /// A text, or a LabelSelector.
    pub(crate) label_selector: Option<String>,
}

/// A question that is answered and not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// Who am I?
    SelfSubject,
    /// Whose token is this?
    Token,
    /// May somebody do that?
    Access,
    /// What may I do there?
    Rules,
}

/// Where the body of a resource comes from.
pub(crate) enum Content {
    /// A built-in kind; without a type its fields are stored as they come.
    BuiltIn(Option<TypeRef>),
    /// A version of a CustomResourceDefinition.
    Custom(Box<CustomVersion>),
}

/// The shape of objects that are stored in the form of the resource's own version.
pub(crate) const BUILT_IN_SHAPE: u64 = 0;

/// One resource of one group version.
pub(crate) struct Resource {
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) plural: Arc<str>,
    pub(crate) singular: Arc<str>,
    pub(crate) kind: Arc<str>,
    pub(crate) list_kind: Arc<str>,
    pub(crate) short_names: Vec<Arc<str>>,
    pub(crate) categories: Vec<Arc<str>>,
    pub(crate) namespaced: bool,
    pub(crate) traits: Traits,
    /// Whether `/status` exists, so that the main resource leaves the status alone.
    pub(crate) status: bool,
    /// Present when `/scale` exists.
    pub(crate) scale: Option<ScalePaths>,
    /// Further subresources, e.g. `binding`.
    pub(crate) extra: &'static [&'static str],
    pub(crate) name_rule: NameRule,
    /// Fields that selectors may name beside `metadata.name` and `metadata.namespace`.
    pub(crate) selectable: Vec<Arc<str>>,
    pub(crate) hooks: Hooks,
    pub(crate) content: Content,
    /// Objects with this shape are served as they are stored; all others pass through `from_storage`.
    pub(crate) shape: u64,
    pub(crate) collection: Arc<Collection>,
    /// Cancelled when another entry takes this one's place: its watches end.
    pub(crate) retired: CancellationToken,
    pub(crate) printer: OnceLock<Printer>,
    /// Objects are questions: they can only be created, and are answered.
    pub(crate) review: Option<Review>,
}

impl Resource {
    /// What can be done with objects of the resource, in alphabetical order.
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        match self.review {
            Some(_) => &["create"],
            None => &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ],
        }
    }

    /// `v1` or `group/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// How errors name the resource.
    pub(crate) fn named(&self) -> Named<'_> {
        Named {
            group: &self.group,
            plural: &self.plural,
        }
    }

    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.content, Content::Custom(_))
    }

    pub(crate) fn custom(&self) -> Option<&CustomVersion> {
        match &self.content {
            Content::Custom(custom) => Some(custom),
            Content::BuiltIn(_) => None,
        }
    }

    /// The type of a built-in kind.
    pub(crate) fn builtin_type(&self) -> Option<TypeRef> {
        match &self.content {
            Content::BuiltIn(ty) => *ty,
            Content::Custom(_) => None,
        }
    }

    /// Whether a list's items carry kind and apiVersion.
    pub(crate) fn typed_items(&self) -> bool {
        self.is_custom()
    }

    pub(crate) fn printer(&self) -> &Printer {
        self.printer.get_or_init(|| match &self.content {
            Content::BuiltIn(_) => Printer::built_in(&self.group, &self.kind),
            Content::Custom(custom) => Printer::custom(custom.columns.as_ref()),
        })
    }

    /// The 422 of an object that breaks rules.
    pub(crate) fn invalid(&self, name: &str, errors: &[FieldError]) -> ApiError {
        ApiError::invalid(&self.group, &self.kind, name, errors)
    }

    /// Cuts a decoded body to what the kind knows and fills in defaults. Returns the paths of unknown
    /// fields, which were dropped.
    ///
    /// # Errors
    /// 400 when a built-in field has the wrong JSON type.
    pub(crate) fn normalise(&self, object: &mut Value) -> Result<Vec<String>, ApiError> {
        // Who owns what is judged apart; `[]` there says something, which decoding would lose.
        let entries = taken_entries(object);
        let unknown = self.normalise_fields(object);
        if let Some(entries) = entries {
            metadata_mut(object).insert("managedFields".to_owned(), entries);
        }
        unknown
    }

    fn normalise_fields(&self, object: &mut Value) -> Result<Vec<String>, ApiError> {
        let unreadable = |error: &dyn std::fmt::Display| {
            ApiError::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: {error}",
                self.kind, self.version, self.kind
            ))
        };
        match &self.content {
            Content::BuiltIn(ty) => {
                let unknown = match ty {
                    Some(ty) => types::decode(*ty, object).map_err(|error| unreadable(&error))?,
                    None => Vec::new(),
                };
                (self.hooks.default)(object);
                Ok(unknown.into_iter().map(|field| field.path).collect())
            }
            Content::Custom(custom) => {
                let of_metadata =
                    types::decode_metadata(object).map_err(|error| unreadable(&error))?;
                let mut unknown: Vec<String> =
                    of_metadata.into_iter().map(|field| field.path).collect();
                unknown.extend(custom.schema.prune(object));
                custom.schema.apply_defaults(object);
                Ok(unknown)
            }
        }
    }

    /// An object of this resource, ready for the store.
    pub(crate) fn draft(&self, mut value: Value) -> Draft {
        if let Some(conversion) = self.hooks.conversion {
            (conversion.to_storage)(&mut value);
        }
        let mut shape = self.shape;
        if let Some(custom) = self.custom() {
            if self.shape != custom.storage_shape {
                set_type(&mut value, &custom.storage_api_version, &self.kind);
                custom.storage_schema.prune(&mut value);
                custom.storage_schema.apply_defaults(&mut value);
            }
            shape = custom.storage_shape;
        } else if self.hooks.conversion.is_some() {
            shape = BUILT_IN_SHAPE;
        }
        let fields = self
            .selectable
            .iter()
            .map(|path| (Arc::clone(path), field_text(&value, path)))
            .collect();
        Draft {
            value,
            fields,
            shape,
        }
    }

    /// A stored object in this resource's version.
    pub(crate) fn read(&self, stored: &StoredObject) -> Value {
        let mut value = stored.value();
        if stored.shape != self.shape {
            self.convert_from_storage(&mut value);
        }
        value
    }

    /// Brings an object of another shape into this resource's form.
    fn convert_from_storage(&self, value: &mut Value) {
        if let Some(conversion) = self.hooks.conversion {
            (conversion.from_storage)(value);
        }
        if let Some(custom) = self.custom() {
            // As the real server: defaults come from the stored version, the asked one only prunes.
            custom.storage_schema.prune(value);
            custom.storage_schema.apply_defaults(value);
            set_type(value, &self.api_version(), &self.kind);
            custom.schema.prune(value);
        }
    }

    /// The text of a field of a stored object, as this resource's selectors name it.
    pub(crate) fn field<'a>(
        &self,
        key: &'a crate::store::Key,
        stored: &'a StoredObject,
        path: &str,
    ) -> std::borrow::Cow<'a, str> {
        match path {
            "metadata.name" => key.name().into(),
            "metadata.namespace" => key.namespace().unwrap_or_default().into(),
            _ => match self.hooks.conversion {
                Some(conversion) => stored.field((conversion.field)(path)),
                None => stored.field(path),
            },
        }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({}.{})", self.named(), self.version)
    }
}

/// Sets `apiVersion` and `kind`.
pub(crate) fn set_type(value: &mut Value, api_version: &str, kind: &str) {
    if let Some(object) = value.as_object_mut() {
        object.insert("apiVersion".to_owned(), Value::from(api_version));
        object.insert("kind".to_owned(), Value::from(kind));
    }
}

/// The object's `metadata`, made when it is missing.
pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let metadata = &mut value["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata
        .as_object_mut()
        .expect("it was just made an object")
}

/// Takes `metadata.managedFields` out, if it is what it should be: a list of objects.
fn taken_entries(object: &mut Value) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let sound = metadata
        .get("managedFields")?
        .as_array()?
        .iter()
        .all(Value::is_object);
    if sound {
        metadata.remove("managedFields")
    } else {
        None
    }
}

/// A text of the object's `metadata`; "" when missing.
pub(crate) fn metadata_text<'a>(value: &'a Value, key: &str) -> &'a str {
    value
        .get("metadata")
        .and_then(|metadata| metadata.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}
