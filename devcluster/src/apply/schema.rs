//! How values merge: which lists have keys, which structs are one piece.
//!
//! Compiled from OpenAPI schemas: those of the type table for built-in kinds, those of a definition for what
//! it defines. Both follow the same rules, which are those of the real server:
//! - `x-kubernetes-list-type` and `x-kubernetes-map-type` decide; lists without a mark are one piece (a
//!   `x-kubernetes-patch-strategy` of merge makes them keyed), structs and maps are not;
//! - what has no type takes any value: structs of it field by field, lists of it as one piece.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Map, Value};

use crate::types::{self, TypeRef};

/// A place in a [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TypeId(usize);

/// Anything, lists and structs of it as one piece.
const ANY_PIECE: TypeId = TypeId(0);
/// Anything, lists of it as one piece, structs field by field.
const ANY_FIELDS: TypeId = TypeId(1);

/// What values of a type may be.
#[derive(Clone, Debug, Default)]
struct Atom {
    scalar: Option<ScalarType>,
    list: Option<ListType>,
    map: Option<MapType>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarType {
    Number,
    Text,
    Flag,
    Any,
}

/// How the items of a list relate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Items {
    /// The list is one piece.
    Atomic,
    /// Each value is an item.
    Set,
    /// Items are known by these fields.
    Keyed(Vec<String>),
}

#[derive(Clone, Debug)]
pub(super) struct ListType {
    pub(super) items: Items,
    item: TypeId,
}

/// A struct, or a map.
#[derive(Clone, Debug)]
pub(super) struct MapType {
    fields: HashMap<String, FieldType>,
    /// The type of what is no declared field; without one there may be no other.
    others: Option<TypeId>,
    pub(super) atomic: bool,
}

#[derive(Clone, Debug)]
struct FieldType {
    id: TypeId,
    default: Option<Value>,
    /// What a typed object shows where the field is missing, if not nothing.
    absent: Option<Value>,
}

/// The types of one kind.
#[derive(Debug)]
pub(crate) struct Schema {
    atoms: Vec<Atom>,
    root: TypeId,
}

/// A type of a schema; cheap to copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Type<'a> {
    schema: &'a Schema,
    id: TypeId,
}

/// Which of the forms of a type a value has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form<'a> {
    Map(&'a MapType),
    Scalar(ScalarType),
    List(&'a ListType),
    /// The type allows no value.
    Nothing,
}

impl Form<'_> {
    /// Whether two forms of one type are the same.
    pub(super) fn is(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl Schema {
    /// The types of a definition's objects, from its `openAPIV3Schema`.
    pub(crate) fn custom(source: &Value) -> Self {
        let mut compiler = Compiler::new(false);
        let mut source = source.clone();
        add_identity(&mut source);
        let id = compiler.inline(&source, false);
        compiler.finish(id)
    }

    /// The type of whole objects.
    pub(crate) fn root(&self) -> Type<'_> {
        Type {
            schema: self,
            id: self.root,
        }
    }
}

/// The type of a built-in kind. Compiled for all kinds of a name at the first use.
pub(crate) fn built_in(ty: TypeRef) -> Type<'static> {
    static SCHEMAS: LazyLock<parking_lot::Mutex<HashMap<&'static str, &'static Schema>>> =
        LazyLock::new(parking_lot::Mutex::default);
    let schema = *SCHEMAS.lock().entry(ty.name()).or_insert_with(|| {
        let mut compiler = Compiler::new(true);
        let id = compiler.named(ty.name(), None);
        // One for each kind of the type table, for as long as the process lives.
        Box::leak(Box::new(compiler.finish(id)))
    });
    schema.root()
}

impl<'a> Type<'a> {
    fn atom(self) -> &'a Atom {
        &self.schema.atoms[self.id.0]
    }

    /// The form that a value has, or would have if it were one of the type's.
    pub(super) fn form(self, value: Option<&Value>) -> Form<'a> {
        let atom = self.atom();
        let scalar = atom.scalar.map(Form::Scalar);
        let list = atom.list.as_ref().map(Form::List);
        let map = atom.map.as_ref().map(Form::Map);
        let fitting = match value {
            None | Some(Value::Null) => None,
            Some(Value::Array(_)) => list,
            Some(Value::Object(_)) => map,
            Some(_) => scalar,
        };
        fitting.or(map).or(scalar).or(list).unwrap_or(Form::Nothing)
    }

    /// The type of a field, and whether it is declared; `None` where there may be none of that name.
    pub(super) fn field(self, map: &'a MapType, name: &str) -> Option<(Self, bool)> {
        let declared = map.fields.get(name).map(|field| field.id);
        let id = declared.or(map.others)?;
        Some((self.at(id), declared.is_some()))
    }

    /// The type of a list's items.
    pub(super) fn item(self, list: &'a ListType) -> Self {
        self.at(list.item)
    }

    /// The default of a key field of a keyed list.
    pub(super) fn key_default(self, list: &'a ListType, key: &str) -> Option<&'a Value> {
        let map = self.item(list).atom().map.as_ref()?;
        map.fields.get(key)?.default.as_ref()
    }

    /// The map form of the type, if it has one.
    pub(super) fn as_map(self) -> Option<&'a MapType> {
        self.atom().map.as_ref()
    }

    /// The list form of the type, if it has one.
    pub(super) fn as_list(self) -> Option<&'a ListType> {
        self.atom().list.as_ref()
    }

    fn at(self, id: TypeId) -> Self {
        Self {
            schema: self.schema,
            id,
        }
    }
}

impl MapType {
    /// What a typed object shows for a field that it does not have.
    pub(super) fn absent(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)?.absent.as_ref()
    }

    /// The fields that a typed object shows even where it does not have them.
    pub(super) fn always_shown(&self) -> impl Iterator<Item = &str> {
        self.fields
            .iter()
            .filter(|(_, field)| field.absent.is_some())
            .map(|(name, _)| name.as_str())
    }

    /// Whether the map holds whatever comes, with no field declared.
    pub(super) fn is_free_form(&self) -> bool {
        self.fields.is_empty() && self.others == Some(ANY_FIELDS)
    }
}

/// Times, lists and pointers that typed objects show as null although no schema demands them.
const SHOWN_AS_NULL: [(&str, &str); 33] = [
    ("ClusterRole", "rules"),
    ("ContainerImage", "names"),
    ("ContainerStateRunning", "startedAt"),
    ("ContainerStateTerminated", "finishedAt"),
    ("ContainerStateTerminated", "startedAt"),
    ("CustomResourceDefinitionCondition", "lastTransitionTime"),
    ("CustomResourceDefinitionStatus", "conditions"),
    ("CustomResourceDefinitionStatus", "storedVersions"),
    ("DaemonSetCondition", "lastTransitionTime"),
    ("DeploymentCondition", "lastTransitionTime"),
    ("DeploymentCondition", "lastUpdateTime"),
    ("EndpointSlice", "endpoints"),
    ("EndpointSlice", "ports"),
    ("Event", "deprecatedFirstTimestamp"),
    ("Event", "deprecatedLastTimestamp"),
    ("Event", "eventTime"),
    ("Event", "firstTimestamp"),
    ("Event", "lastTimestamp"),
    ("EventSeries", "lastObservedTime"),
    ("GRPCAction", "service"),
    ("NamespaceCondition", "lastTransitionTime"),
    ("NodeCondition", "lastHeartbeatTime"),
    ("NodeCondition", "lastTransitionTime"),
    ("PersistentVolumeClaimCondition", "lastProbeTime"),
    ("PersistentVolumeClaimCondition", "lastTransitionTime"),
    ("PodCondition", "lastProbeTime"),
    ("PodCondition", "lastTransitionTime"),
    ("ProjectedVolumeSource", "sources"),
    ("ReplicaSetCondition", "lastTransitionTime"),
    ("ReplicationControllerCondition", "lastTransitionTime"),
    ("Role", "rules"),
    ("StatefulSetCondition", "lastTransitionTime"),
    ("TypedLocalObjectReference", "apiGroup"),
];

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

struct Compiler {
    atoms: Vec<Atom>,
    /// Types by name and by the relation that their place imposes.
    named: HashMap<(String, Option<bool>), TypeId>,
    /// Whether objects are typed ones, which show fields that were not set.
    typed: bool,
}

impl Compiler {
    fn new(typed: bool) -> Self {
        let any = |of: TypeId, atomic: bool| Atom {
            scalar: Some(ScalarType::Any),
            list: Some(ListType {
                items: Items::Atomic,
                item: ANY_PIECE,
            }),
            map: Some(MapType {
                fields: HashMap::new(),
                others: Some(of),
                atomic,
            }),
        };
        Self {
            atoms: vec![any(ANY_PIECE, true), any(ANY_FIELDS, false)],
            named: HashMap::new(),
            typed,
        }
    }

    fn finish(self, root: TypeId) -> Schema {
        Schema {
            atoms: self.atoms,
            root,
        }
    }

    fn add(&mut self, atom: Atom) -> TypeId {
        self.atoms.push(atom);
        TypeId(self.atoms.len() - 1)
    }

    /// A type of the type table, compiled once, so that types may contain themselves.
    fn named(&mut self, name: &str, atomic: Option<bool>) -> TypeId {
        let key = (name.to_owned(), atomic);
        if let Some(id) = self.named.get(&key) {
            return *id;
        }
        let id = self.add(Atom::default());
        self.named.insert(key, id);
        let mut atom = match name.rsplit('.').next().unwrap_or_default() {
            "Quantity" => Atom {
                scalar: Some(ScalarType::Any),
                ..Atom::default()
            },
            "RawExtension" => self.atoms[ANY_PIECE.0].clone(),
            short => match types::schema_of(name) {
                Some(schema) => self.atom(schema, false, short),
                None => self.atoms[ANY_FIELDS.0].clone(),
            },
        };
        if let (Some(map), Some(atomic)) = (&mut atom.map, atomic) {
            map.atomic = atomic;
        }
        self.atoms[id.0] = atom;
        id
    }

    fn inline(&mut self, schema: &Value, keeps_unknown: bool) -> TypeId {
        let atom = self.atom(schema, keeps_unknown, "");
        self.add(atom)
    }

    /// The type that stands in a place of a schema: a named one, or one of its own.
    fn place(&mut self, schema: &Value, keeps_unknown: bool) -> TypeId {
        match schema["$ref"].as_str() {
            Some(name) => self.named(name, map_relation(schema)),
            None => self.inline(schema, keeps_unknown),
        }
    }

    fn atom(&mut self, schema: &Value, keeps_unknown: bool, name: &str) -> Atom {
        // Below a place that keeps what it does not know, everything does.
        let keeps_unknown = keeps_unknown || schema["x-kubernetes-preserve-unknown-fields"] == true;
        let scalar = |scalar| Atom {
            scalar: Some(scalar),
            ..Atom::default()
        };
        match schema["type"].as_str() {
            Some("object") => Atom {
                map: Some(self.map(schema, keeps_unknown, name)),
                ..Atom::default()
            },
            Some("array") => Atom {
                list: Some(self.list(schema, keeps_unknown)),
                ..Atom::default()
            },
            Some("string") => match schema["format"].as_str() {
                None | Some("" | "byte") => scalar(ScalarType::Text),
                Some(_) => scalar(ScalarType::Any),
            },
            Some("integer" | "number") => scalar(ScalarType::Number),
            Some("boolean") => scalar(ScalarType::Flag),
            _ => Atom {
                scalar: Some(ScalarType::Any),
                list: Some(self.list(schema, keeps_unknown)),
                map: Some(self.map(schema, keeps_unknown, name)),
            },
        }
    }

    fn list(&mut self, schema: &Value, keeps_unknown: bool) -> ListType {
        let item = match schema.get("items") {
            Some(items) if items["x-kubernetes-embedded-resource"] == true => {
                let mut items = items.clone();
                add_identity(&mut items);
                self.place(&items, keeps_unknown)
            }
            Some(items) => self.place(items, keeps_unknown),
            None => ANY_PIECE,
        };
        ListType {
            items: list_relation(schema),
            item,
        }
    }

    fn map(&mut self, schema: &Value, keeps_unknown: bool, name: &str) -> MapType {
        let no_fields = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&no_fields);
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut fields = HashMap::with_capacity(properties.len());
        for (field, property) in properties {
            let id = if property["x-kubernetes-embedded-resource"] == true {
                let mut property = property.clone();
                add_identity(&mut property);
                self.place(&property, keeps_unknown)
            } else {
                self.place(property, keeps_unknown)
            };
            let absent = if self.typed {
                shown_when_absent(name, field, property, required.contains(&field.as_str()))
            } else {
                None
            };
            let default = property.get("default").filter(|v| !v.is_null()).cloned();
            fields.insert(
                field.clone(),
                FieldType {
                    id,
                    default,
                    absent,
                },
            );
        }
        let others = match &schema["additionalProperties"] {
            Value::Null if keeps_unknown || properties.is_empty() => Some(ANY_FIELDS),
            Value::Bool(true) => Some(ANY_FIELDS),
            of @ Value::Object(_) => Some(self.place(of, keeps_unknown)),
            _ => None,
        };
        MapType {
            fields,
            others,
            atomic: map_relation(schema) == Some(true),
        }
    }
}

/// Fields whose zero default is one of the API, not the sign of a field that is always shown.
const LEFT_OUT: [(&str, &str); 4] = [
    ("FileKeySelector", "optional"),
    ("LocalObjectReference", "name"),
    ("ReplicationControllerSpec", "minReadySeconds"),
    ("ScaleSpec", "replicas"),
];

/// What the real server's typed objects show for a field that was not set: fields that are not left out
/// when empty have a zero value, which the schemas give as their default; structs are there with nothing in
/// them.
fn shown_when_absent(of: &str, field: &str, property: &Value, required: bool) -> Option<Value> {
    let default = &property["default"];
    let is_zero = match default {
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(flag) => !flag,
        Value::Null | Value::Array(_) => false,
    };
    if is_zero && !LEFT_OUT.contains(&(of, field)) {
        return Some(default.clone());
    }
    let shown = required || SHOWN_AS_NULL.contains(&(of, field));
    shown.then_some(Value::Null)
}

/// Whether a struct or map is marked as one piece, or as none.
fn map_relation(schema: &Value) -> Option<bool> {
    match schema["x-kubernetes-map-type"].as_str()? {
        "atomic" => Some(true),
        "granular" => Some(false),
        _ => None,
    }
}

fn list_relation(schema: &Value) -> Items {
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => return Items::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let keys = keys.into_iter().flatten().filter_map(Value::as_str);
            return Items::Keyed(keys.map(str::to_owned).collect());
        }
        Some(_) => return Items::Atomic,
        None => {}
    }
    match schema["x-kubernetes-patch-strategy"].as_str() {
        Some("merge" | "merge,retainKeys") => {
            match schema["x-kubernetes-patch-merge-key"].as_str() {
                Some(key) => Items::Keyed(vec![key.to_owned()]),
                None => Items::Set,
            }
        }
        _ => Items::Atomic,
    }
}

/// Declares what every object has: its type and its metadata.
fn add_identity(schema: &mut Value) {
    if !schema["properties"].is_object() {
        schema["properties"] = Value::Object(Map::new());
    }
    let properties = &mut schema["properties"];
    properties["metadata"] = serde_json::json!({"$ref": OBJECT_META});
    for text in ["apiVersion", "kind"] {
        properties[text] = serde_json::json!({"type": "string"});
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod_list(path: &[&str]) -> Items {
        let mut ty = built_in(types::lookup("v1", "Pod").unwrap());
        for name in path {
            ty = match ty.form(None) {
                Form::Map(map) => ty.field(map, name).unwrap().0,
                Form::List(list) => {
                    let item = ty.item(list);
                    let map = item.as_map().unwrap();
                    item.field(map, name).unwrap().0
                }
                other => panic!("{name} below {other:?}"),
            };
        }
        ty.as_list().unwrap().items.clone()
    }

    #[test]
    fn p4_lists_of_built_in_kinds_have_their_keys() {
        let keyed = |keys: &[&str]| Items::Keyed(keys.iter().map(|k| (*k).to_owned()).collect());
        let cases: [(&[&str], Items); 6] = [
            (&["spec", "containers"], keyed(&["name"])),
            (
                &["spec", "containers", "ports"],
                keyed(&["containerPort", "protocol"]),
            ),
            (&["spec", "containers", "command"], Items::Atomic),
            (&["spec", "tolerations"], Items::Atomic),
            (&["metadata", "finalizers"], Items::Set),
            (&["metadata", "ownerReferences"], keyed(&["uid"])),
        ];
        for (path, expected) in cases {
            assert_eq!(pod_list(path), expected, "{path:?}");
        }
    }

    #[test]
    fn typed_objects_show_structs_and_needed_fields_that_were_not_set() {
        let pod = built_in(types::lookup("v1", "Pod").unwrap());
        let map = pod.as_map().unwrap();
        assert_eq!(map.absent("spec"), Some(&json!({})));
        assert_eq!(map.absent("kind"), None);
        let spec = pod.field(map, "spec").unwrap().0.as_map().unwrap();
        assert_eq!(spec.absent("containers"), Some(&Value::Null));
        assert_eq!(spec.absent("volumes"), None);
        let custom = Schema::custom(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        }}));
        let map = custom.root().as_map().unwrap();
        assert_eq!(map.always_shown().count(), 0);
        assert!(custom.root().field(map, "nope").is_none());
    }

    #[test]
    fn what_keeps_unknown_fields_does_so_all_the_way_down() {
        let schema = Schema::custom(&json!({"type": "object", "properties": {"free": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}},
        }}}));
        let root = schema.root();
        let (free, _) = root.field(root.as_map().unwrap(), "free").unwrap();
        let (a, declared) = free.field(free.as_map().unwrap(), "a").unwrap();
        assert!(declared);
        let (other, declared) = a.field(a.as_map().unwrap(), "other").unwrap();
        assert!(!declared);
        assert!(other.as_map().unwrap().is_free_form());
    }
}
