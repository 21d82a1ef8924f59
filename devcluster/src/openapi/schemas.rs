//! Component schemas: the type table's, and those of custom resources.

use serde_json::{Map, Value, json};

use super::ResourceDocument;
use crate::types;

const REFERENCE: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The names of the schemas of a resource.
pub(super) struct Names {
    pub(super) object: String,
    pub(super) list: String,
    pub(super) scale: String,
    pub(super) status: String,
    pub(super) delete_options: String,
    pub(super) patch: String,
}

/// A reference to a component.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("{REFERENCE}{name}")})
}

/// The schemas of one document, each with everything that it refers to.
#[derive(Default)]
pub(super) struct Components {
    schemas: Map<String, Value>,
}

impl Components {
    pub(super) fn into_schemas(self) -> Map<String, Value> {
        self.schemas
    }

    /// Adds the schemas of a resource and of all that its operations take and give.
    pub(super) fn add_resource(&mut self, resource: &ResourceDocument<'_>) -> Names {
        let (object, list) = match resource.schema {
            Some(schema) => self.add_custom(resource, schema),
            None => self.add_built_in(resource),
        };
        let scale = "io.k8s.api.autoscaling.v1.Scale";
        let needs_scale = resource.subresources.contains(&"scale");
        let shared = [
            (format!("{META}.Status"), true),
            (format!("{META}.DeleteOptions"), true),
            (scale.to_owned(), needs_scale),
        ];
        for (name, _) in shared.iter().filter(|(_, needed)| *needed) {
            self.add_from_table(name);
        }
        let patch = format!("{META}.Patch");
        self.schemas.entry(&patch).or_insert_with(|| {
            json!({
                "type": "object",
                "description": "Patch is provided to give a concrete name and type to the \
                                Kubernetes PATCH request body.",
            })
        });
        Names {
            object,
            list,
            scale: scale.to_owned(),
            status: format!("{META}.Status"),
            delete_options: format!("{META}.DeleteOptions"),
            patch,
        }
    }

    fn add_built_in(&mut self, resource: &ResourceDocument<'_>) -> (String, String) {
        let api_version = resource.api_version();
        let list_kind = format!("{}List", resource.kind);
        let name_of = |kind: &str| types::lookup(&api_version, kind).map(types::TypeRef::name);
        let object = match name_of(resource.kind) {
            Some(name) => self.add_marked(resource, name, resource.kind),
            None => self.add_untyped(resource, resource.kind),
        };
        let list = match name_of(&list_kind) {
            Some(name) => self.add_marked(resource, name, &list_kind),
            None => self.add_list(resource, &object),
        };
        (object, list)
    }

    fn add_marked(&mut self, resource: &ResourceDocument<'_>, name: &str, kind: &str) -> String {
        self.add_from_table(name);
        if let Some(schema) = self.schemas.get_mut(name) {
            schema["x-kubernetes-group-version-kind"] = json!([resource.mark(kind)]);
        }
        name.to_owned()
    }

    /// A built-in kind without a type in the table: any object.
    fn add_untyped(&mut self, resource: &ResourceDocument<'_>, kind: &str) -> String {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        self.add_custom_object(resource, kind, schema)
    }

    fn add_custom(&mut self, resource: &ResourceDocument<'_>, schema: &Value) -> (String, String) {
        let object = self.add_custom_object(resource, resource.kind, schema.clone());
        let list = self.add_list(resource, &object);
        (object, list)
    }

    fn add_custom_object(
        &mut self,
        resource: &ResourceDocument<'_>,
        kind: &str,
        mut schema: Value,
    ) -> String {
        self.add_from_table(&format!("{META}.ObjectMeta"));
        if let Some(fields) = schema.as_object_mut() {
            let properties = fields.entry("properties").or_insert_with(|| json!({}));
            if let Some(properties) = properties.as_object_mut() {
                for (name, description) in TYPE_META {
                    let text = json!({"type": "string", "description": description});
                    properties.insert(name.to_owned(), text);
                }
                let metadata = json!({
                    "description": "Standard object's metadata.",
                    "allOf": [reference(&format!("{META}.ObjectMeta"))],
                });
                properties.insert("metadata".to_owned(), metadata);
            }
            fields.insert(
                "x-kubernetes-group-version-kind".to_owned(),
                json!([resource.mark(kind)]),
            );
        }
        let name = custom_name(resource, kind);
        self.schemas.insert(name.clone(), schema);
        name
    }

    fn add_list(&mut self, resource: &ResourceDocument<'_>, object: &str) -> String {
        self.add_from_table(&format!("{META}.ListMeta"));
        let kind = format!("{}List", resource.kind);
        let mut properties = Map::new();
        for (name, description) in TYPE_META {
            properties.insert(
                name.to_owned(),
                json!({"type": "string", "description": description}),
            );
        }
        properties.insert(
            "metadata".to_owned(),
            json!({
                "description": "Standard list metadata.",
                "allOf": [reference(&format!("{META}.ListMeta"))],
            }),
        );
        properties.insert(
            "items".to_owned(),
            json!({
                "type": "array",
                "description": format!("List of {}.", resource.plural),
                "items": reference(object),
            }),
        );
        let schema = json!({
            "type": "object",
            "description": format!("{kind} is a list of {}", resource.kind),
            "required": ["items"],
            "properties": properties,
            "x-kubernetes-group-version-kind": [resource.mark(&kind)],
        });
        let name = custom_name(resource, &kind);
        self.schemas.insert(name.clone(), schema);
        name
    }

    fn add_from_table(&mut self, name: &str) {
        let mut missing = vec![name.to_owned()];
        while let Some(name) = missing.pop() {
            if self.schemas.contains_key(&name) {
                continue;
            }
            let mut schema = types::schema_of(&name)
                .cloned()
                .unwrap_or_else(|| json!({}));
            expand_references(&mut schema, &mut missing);
            self.schemas.insert(name, schema);
        }
    }
}

const TYPE_META: [(&str, &str); 2] = [
    ("apiVersion", "Version of the schema of this object."),
    ("kind", "The REST resource that this object represents."),
];

/// `com.example.test.v1.Widget` for a Widget of `test.example.com/v1`.
fn custom_name(resource: &ResourceDocument<'_>, kind: &str) -> String {
    let mut parts: Vec<&str> = resource
        .group
        .rsplit('.')
        .filter(|part| !part.is_empty())
        .collect();
    parts.extend([resource.version, kind]);
    parts.join(".")
}

/// Makes the table's bare names references within the document, and notes them. A reference
/// excludes other keywords beside it, so those take it into an `allOf`.
fn expand_references(value: &mut Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for value in fields.values_mut() {
                expand_references(value, found);
            }
            let name = match fields.get("$ref") {
                Some(Value::String(name)) => name.clone(),
                _ => return,
            };
            let link = reference(&name);
            found.push(name);
            fields.remove("$ref");
            if fields.is_empty() {
                *value = link;
            } else {
                fields.insert("allOf".to_owned(), json!([link]));
            }
        }
        Value::Array(items) => {
            for item in items {
                expand_references(item, found);
            }
        }
        _ => {}
    }
}
