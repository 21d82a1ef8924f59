//! The type table, read from its file at the first use.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde_json::Value;

/// One type of the table; cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TypeRef(usize);

/// What a value of a type looks like in JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Anything at all.
    Any,
    /// A string of a format (empty if none).
    Text(String),
    /// true or false.
    Bool,
    /// A whole number, of 32 bits or else 64.
    Integer {
        /// Whether 32 bits must do.
        is_32_bit: bool,
    },
    /// A number.
    Number,
    /// A number of 32 bits or a string.
    IntOrString,
    /// An amount such as `100m` or `2Gi`, a string or a number.
    Quantity,
    /// Keys to values of a shape.
    Map(Box<Shape>),
    /// Items of a shape.
    List(Box<Shape>),
    /// An object with the fields of a type.
    Object(TypeRef),
    /// true, false or an object of a type (`JSONSchemaPropsOrBool`).
    BoolOr(TypeRef),
    /// An object of a type or a list of such (`JSONSchemaPropsOrArray`).
    ListOr(TypeRef),
}

/// One field of a type.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// What its values look like.
    pub(crate) shape: Shape,
    /// Whether the type demands the field.
    pub(crate) required: bool,
    /// Strategic merge: the key by which list items are matched.
    pub(crate) merge_key: Option<String>,
    /// Strategic merge: list items merge by key or, for scalars, by value.
    pub(crate) merges: bool,
}

#[derive(Debug)]
struct Type {
    name: String,
    fields: BTreeMap<String, Field>,
}

#[derive(Debug)]
struct Table {
    kinds: HashMap<(String, String), TypeRef>,
    types: Vec<Type>,
    schemas: serde_json::Map<String, Value>,
    object_meta: TypeRef,
}

impl TypeRef {
    /// The full name, e.g. `io.k8s.api.core.v1.Pod`.
    pub(crate) fn name(self) -> &'static str {
        &TABLE.types[self.0].name
    }

    /// The last part of the name, e.g. `Pod`.
    pub(crate) fn short_name(self) -> &'static str {
        self.name().rsplit('.').next().unwrap_or_default()
    }

    /// A field of the type.
    pub(crate) fn field(self, name: &str) -> Option<&'static Field> {
        TABLE.types[self.0].fields.get(name)
    }

    /// The name as the real server's language has it: package version and type.
    pub(super) fn go_name(self) -> String {
        let mut parts = self.name().rsplit('.');
        let name = parts.next().unwrap_or_default();
        let package = parts.next().unwrap_or_default();
        format!("{package}.{name}")
    }
}

/// The type of a built-in kind, e.g. (`apps/v1`, `Deployment`); `None` if it is not in the table.
pub(crate) fn lookup(api_version: &str, kind: &str) -> Option<TypeRef> {
    TABLE
        .kinds
        .get(&(api_version.to_owned(), kind.to_owned()))
        .copied()
}

/// The type of every object's `metadata`.
pub(super) fn object_meta() -> TypeRef {
    TABLE.object_meta
}

/// The schema of a type by its full name, references given as bare names.
pub(crate) fn schema_of(name: &str) -> Option<&'static Value> {
    TABLE.schemas.get(name)
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let file: Value = serde_json::from_str(include_str!("table.json"))
        .expect("the table is checked in and a test reads it");
    Table::read(file)
});

impl Table {
    fn read(mut file: Value) -> Self {
        let schemas = match file["types"].take() {
            Value::Object(types) => types,
            _ => serde_json::Map::new(),
        };
        let indexes: HashMap<&str, usize> = schemas
            .keys()
            .enumerate()
            .map(|(index, name)| (name.as_str(), index))
            .collect();
        let types = schemas
            .iter()
            .map(|(name, schema)| Type {
                name: name.clone(),
                fields: read_fields(schema, &schemas, &indexes),
            })
            .collect();
        let kinds = file["kinds"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|kind| {
                let text = |at: usize| kind.get(at).and_then(Value::as_str);
                let index = *indexes.get(text(2)?)?;
                Some(((text(0)?.to_owned(), text(1)?.to_owned()), TypeRef(index)))
            })
            .collect();
        let object_meta = indexes
            .get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
            .map(|index| TypeRef(*index))
            .expect("every kind of the table has metadata");
        Self {
            kinds,
            types,
            schemas,
            object_meta,
        }
    }
}

fn read_fields(
    schema: &Value,
    schemas: &serde_json::Map<String, Value>,
    indexes: &HashMap<&str, usize>,
) -> BTreeMap<String, Field> {
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|r| r == name));
    let Some(properties) = schema["properties"].as_object() else {
        return BTreeMap::new();
    };
    properties
        .iter()
        .map(|(name, property)| {
            let strategy = property["x-kubernetes-patch-strategy"]
                .as_str()
                .unwrap_or_default();
            let field = Field {
                shape: read_shape(property, schemas, indexes),
                required: is_required(name),
                merge_key: property["x-kubernetes-patch-merge-key"]
                    .as_str()
                    .map(str::to_owned),
                merges: strategy.split(',').any(|part| part == "merge"),
            };
            (name.clone(), field)
        })
        .collect()
}

fn read_shape(
    schema: &Value,
    schemas: &serde_json::Map<String, Value>,
    indexes: &HashMap<&str, usize>,
) -> Shape {
    if let Some(name) = schema["$ref"].as_str() {
        return read_reference(name, schemas, indexes);
    }
    match schema["type"].as_str() {
        Some("string") => Shape::Text(schema["format"].as_str().unwrap_or_default().to_owned()),
        Some("boolean") => Shape::Bool,
        Some("integer") => Shape::Integer {
            is_32_bit: schema["format"] == "int32",
        },
        Some("number") => Shape::Number,
        Some("array") => Shape::List(Box::new(read_shape(&schema["items"], schemas, indexes))),
        Some("object") if schema["additionalProperties"].is_object() => {
            let of = read_shape(&schema["additionalProperties"], schemas, indexes);
            Shape::Map(Box::new(of))
        }
        _ => Shape::Any,
    }
}

fn read_reference(
    name: &str,
    schemas: &serde_json::Map<String, Value>,
    indexes: &HashMap<&str, usize>,
) -> Shape {
    let Some(schema) = schemas.get(name) else {
        return Shape::Any;
    };
    let of_schema_props = || {
        let (package, _) = name.rsplit_once('.')?;
        indexes
            .get(format!("{package}.JSONSchemaProps").as_str())
            .copied()
            .map(TypeRef)
    };
    match name.rsplit('.').next().unwrap_or_default() {
        "IntOrString" => return Shape::IntOrString,
        "Quantity" => return Shape::Quantity,
        "JSONSchemaPropsOrBool" => {
            return of_schema_props().map_or(Shape::Any, Shape::BoolOr);
        }
        "JSONSchemaPropsOrArray" => {
            return of_schema_props().map_or(Shape::Any, Shape::ListOr);
        }
        _ => {}
    }
    let is_struct = schema["properties"]
        .as_object()
        .is_some_and(|all| !all.is_empty());
    match (is_struct, indexes.get(name), schema["type"].as_str()) {
        (true, Some(index), _) => Shape::Object(TypeRef(*index)),
        // A type without fields is an object that must be empty, such as a marker.
        (false, Some(index), Some("object"))
            if schema["additionalProperties"].is_null()
                && !name.ends_with("FieldsV1")
                && !name.ends_with("RawExtension") =>
        {
            Shape::Object(TypeRef(*index))
        }
        _ => read_shape(schema, schemas, indexes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a4_every_served_kind_has_a_type_and_every_reference_a_target() {
        let kinds = [
            ("v1", "Pod"),
            ("v1", "Namespace"),
            ("v1", "Node"),
            ("v1", "Secret"),
            ("v1", "ConfigMap"),
            ("v1", "ServiceAccount"),
            ("v1", "Event"),
            ("v1", "Binding"),
            ("v1", "DeleteOptions"),
            ("apps/v1", "Deployment"),
            ("coordination.k8s.io/v1", "Lease"),
            ("events.k8s.io/v1", "Event"),
            ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            ("authentication.k8s.io/v1", "TokenRequest"),
            ("autoscaling/v1", "Scale"),
            ("policy/v1", "Eviction"),
        ];
        for (version, kind) in kinds {
            let ty = lookup(version, kind).unwrap_or_else(|| panic!("{version} {kind}"));
            assert!(
                !TABLE.types[ty.0].fields.is_empty() || kind == "Status",
                "{kind}"
            );
        }
        for name in TABLE.schemas.keys() {
            assert!(schema_of(name).is_some());
        }
        assert_eq!(lookup("v1", "Nope"), None);
    }

    #[test]
    fn p3_merge_keys_and_strategies_are_known() {
        let pod = lookup("v1", "Pod").unwrap();
        let Shape::Object(spec) = pod.field("spec").unwrap().shape else {
            panic!()
        };
        let containers = spec.field("containers").unwrap();
        assert_eq!(containers.merge_key.as_deref(), Some("name"));
        assert!(containers.merges);
        assert_eq!(spec.short_name(), "PodSpec");
        assert!(!spec.field("tolerations").unwrap().merges);
        assert_eq!(
            spec.field("volumes").unwrap().merge_key.as_deref(),
            Some("name")
        );
        let Shape::Object(meta) = pod.field("metadata").unwrap().shape else {
            panic!()
        };
        assert!(meta.field("finalizers").unwrap().merges);
        assert_eq!(
            meta.field("ownerReferences").unwrap().merge_key.as_deref(),
            Some("uid")
        );
        assert_eq!(
            meta.field("creationTimestamp").unwrap().shape,
            Shape::Text("date-time".into())
        );
    }
}
