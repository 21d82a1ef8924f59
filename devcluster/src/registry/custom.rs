//! Resources that CustomResourceDefinitions define.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::{Arc, OnceLock},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    hooks::Hooks,
    resource::{Content, NameRule, Resource, ScalePaths, Traits},
};
use crate::{
    apply,
    schema::{CompiledSchema, FieldError},
    store::Store,
};

/// What one version of a definition adds to a resource.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    /// Name of the definition.
    pub(crate) definition: String,
    /// The definition is being deleted: no new objects.
    pub(crate) terminating: bool,
    pub(crate) schema: Arc<CompiledSchema>,
    /// The schema of the version that objects are stored in; defaults on read are its.
    pub(crate) storage_schema: Arc<CompiledSchema>,
    /// How objects of all versions merge, by `apiVersion`.
    pub(crate) types: Arc<BTreeMap<String, apply::Schema>>,
    /// The schema as written, for OpenAPI.
    pub(crate) schema_source: Value,
    /// `additionalPrinterColumns` of the version.
    pub(crate) columns: Option<Value>,
    /// Told to everybody who uses this version.
    pub(crate) deprecation: Option<String>,
    /// The version that objects are stored in.
    pub(crate) storage_api_version: String,
    /// The shape of objects written now.
    pub(crate) storage_shape: u64,
}

/// The resources of the served versions of a definition whose names were accepted.
///
/// # Errors
/// The problems of a schema that does not compile; validation of the definition refuses such a one, so only
/// a definition that was stored before can have it.
pub(crate) fn resources(
    definition: &Value,
    store: &Store,
) -> Result<Vec<Arc<Resource>>, Vec<FieldError>> {
    let spec = &definition["spec"];
    let versions = spec["versions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let storage = versions.iter().find(|version| version["storage"] == true);
    let storage_name = storage
        .map(|version| text(version, "name"))
        .unwrap_or_default();
    let mut schemas: Vec<Arc<CompiledSchema>> = Vec::new();
    let mut types = BTreeMap::new();
    for (index, version) in versions.iter().enumerate() {
        let source = version
            .pointer("/schema/openAPIV3Schema")
            .unwrap_or(&Value::Null);
        let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
        schemas.push(Arc::new(CompiledSchema::compile(source, &path)?));
        let api_version = format!("{}/{}", text(spec, "group"), text(version, "name"));
        types.insert(api_version, apply::Schema::custom(source));
    }
    let types = Arc::new(types);
    let stored = versions
        .iter()
        .position(|version| version["storage"] == true);
    let Some(storage_schema) = stored.and_then(|index| schemas.get(index)) else {
        return Ok(Vec::new());
    };
    Ok(versions
        .iter()
        .zip(&schemas)
        .filter(|(version, _)| version["served"] == true)
        .map(|(version, schema)| {
            let schemas = Schemas {
                own: Arc::clone(schema),
                storage: Arc::clone(storage_schema),
                types: Arc::clone(&types),
            };
            Arc::new(resource(definition, version, schemas, storage_name, store))
        })
        .collect())
}

/// The schemas of a version, and of those that it shares its objects with.
struct Schemas {
    own: Arc<CompiledSchema>,
    storage: Arc<CompiledSchema>,
    types: Arc<BTreeMap<String, apply::Schema>>,
}

fn resource(
    definition: &Value,
    version: &Value,
    schemas: Schemas,
    storage_version: &str,
    store: &Store,
) -> Resource {
    let spec = &definition["spec"];
    let group = text(spec, "group");
    // Accepted names only: a short name that clashes is not served.
    let accepted = &definition["status"]["acceptedNames"];
    let list = |value: &Value| -> Vec<Arc<str>> {
        let texts = value.as_array().into_iter().flatten();
        texts.filter_map(Value::as_str).map(Arc::from).collect()
    };
    let schema_source = version
        .pointer("/schema/openAPIV3Schema")
        .cloned()
        .unwrap_or_default();
    let name = text(version, "name");
    let uid = definition["metadata"]["uid"].as_str().unwrap_or_default();
    let shape = |version: &str| shape(uid, &definition["spec"], version);
    let plural = text(accepted, "plural");
    let kind = text(accepted, "kind");
    let scale = version
        .pointer("/subresources/scale")
        .map(|scale| ScalePaths {
            spec_replicas: text(scale, "specReplicasPath").to_owned(),
            status_replicas: text(scale, "statusReplicasPath").to_owned(),
            label_selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
        });
    let selectable = version["selectableFields"].as_array().into_iter().flatten();
    let selectable = selectable
        .filter_map(|field| field["jsonPath"].as_str())
        .map(|path| Arc::from(path.trim_start_matches('.')))
        .collect();
    let deprecation = (version["deprecated"] == true).then(|| {
        version["deprecationWarning"].as_str().map_or_else(
            || format!("{group}/{name} {kind} is deprecated"),
            str::to_owned,
        )
    });
    Resource {
        group: group.into(),
        version: name.into(),
        plural: plural.into(),
        singular: text(accepted, "singular").into(),
        kind: kind.into(),
        list_kind: text(accepted, "listKind").into(),
        short_names: list(&accepted["shortNames"]),
        categories: list(&accepted["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        traits: Traits {
            generation: true,
            ..Traits::default()
        },
        status: version.pointer("/subresources/status").is_some(),
        scale,
        extra: &[],
        name_rule: NameRule::Subdomain,
        selectable,
        hooks: Hooks::NONE,
        shape: shape(name),
        collection: store.collection(&format!("{group}/{plural}")),
        retired: CancellationToken::new(),
        printer: OnceLock::new(),
        review: None,
        content: Content::Custom(Box::new(CustomVersion {
            definition: definition["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            terminating: !definition["metadata"]["deletionTimestamp"].is_null(),
            schema: schemas.own,
            storage_schema: schemas.storage,
            types: schemas.types,
            schema_source,
            columns: version
                .get("additionalPrinterColumns")
                .filter(|c| c.is_array())
                .cloned(),
            deprecation,
            storage_api_version: format!("{group}/{storage_version}"),
            storage_shape: shape(storage_version),
        })),
    }
}

/// Names the form of objects: the version and everything that defaults and pruning depend on.
fn shape(uid: &str, spec: &Value, version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (uid, spec["versions"].to_string(), version).hash(&mut hasher);
    hasher.finish()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}
