//! OpenAPI v3: the index and one document for each group version.
//!
//! kubectl reads the PATCH operation of a kind to decide on validation and patch type, and the
//! schemas for `explain`; both must be true to what the server does.

mod paths;
mod schemas;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha512};

/// What a document says about one resource.
#[derive(Clone, Debug)]
pub(crate) struct ResourceDocument<'a> {
    /// API group; empty for core.
    pub(crate) group: &'a str,
    /// API version.
    pub(crate) version: &'a str,
    /// Kind of the objects.
    pub(crate) kind: &'a str,
    /// Resource name in paths.
    pub(crate) plural: &'a str,
    /// Whether paths carry a namespace.
    pub(crate) namespaced: bool,
    /// Verbs of discovery (`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`,
    /// `deletecollection`).
    pub(crate) verbs: &'a [&'a str],
    /// Subresources with GET, PUT and PATCH, e.g. `status`.
    pub(crate) subresources: &'a [&'a str],
    /// `openAPIV3Schema` of a custom resource; `None` takes the type table's schema.
    pub(crate) schema: Option<&'a Value>,
}

impl ResourceDocument<'_> {
    fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The mark by which clients find the kind of an operation or schema.
    fn mark(&self, kind: &str) -> Value {
        json!({"group": self.group, "version": self.version, "kind": kind})
    }
}

/// The answer of `/openapi/v3`: from each path (`api/v1`, `apis/apps/v1`) and the hash of its
/// document.
pub(crate) fn index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let paths: Map<String, Value> = documents
        .into_iter()
        .map(|(path, hash)| {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path.to_owned(), json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({ "paths": paths })
}

/// The document of one group version; all `resources` have that group and version.
pub(crate) fn group_version_document(resources: &[ResourceDocument<'_>]) -> Value {
    let mut all_paths = Map::new();
    let mut components = schemas::Components::default();
    for resource in resources {
        let names = components.add_resource(resource);
        paths::add(&mut all_paths, resource, &names);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.37.2"},
        "paths": all_paths,
        "components": {
            "schemas": components.into_schemas(),
            "securitySchemes": {"BearerToken": {
                "type": "apiKey",
                "description": "Bearer Token authentication",
                "name": "authorization",
                "in": "header",
            }},
        },
        "security": [{"BearerToken": []}],
    })
}

/// The hash by which the index names a document: upper-case hex of the SHA-512 of its content,
/// or of what determines it.
pub(crate) fn hash(document: &[u8]) -> String {
    Sha512::digest(document)
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERBS: [&str; 8] = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ];

    fn config_maps() -> ResourceDocument<'static> {
        ResourceDocument {
            group: "",
            version: "v1",
            kind: "ConfigMap",
            plural: "configmaps",
            namespaced: true,
            verbs: &VERBS,
            subresources: &[],
            schema: None,
        }
    }

    /// Every reference in a document must lead to one of its components.
    fn assert_closed(document: &Value) {
        fn walk<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| walk(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| walk(value, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        walk(document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(
                document["components"]["schemas"].get(name).is_some(),
                "{name}"
            );
        }
    }

    #[test]
    fn u6_the_index_names_each_document_with_its_hash() {
        assert_eq!(
            index([("api/v1", "AB"), ("apis/apps/v1", "CD")]),
            json!({"paths": {
                "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=AB"},
                "apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=CD"},
            }})
        );
        let hash = hash(b"x");
        assert_eq!(hash.len(), 128);
        assert!(
            hash.bytes()
                .all(|b| b.is_ascii_digit() || b.is_ascii_uppercase())
        );
    }

    #[test]
    fn case_007_the_patch_of_a_config_map_says_what_kubectl_asks_for() {
        let document = group_version_document(&[config_maps()]);
        let item = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"];
        let patch = &item["patch"];
        assert_eq!(patch["x-kubernetes-action"], "patch");
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "", "version": "v1", "kind": "ConfigMap"})
        );
        let parameters: Vec<&str> = patch["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        assert_eq!(
            parameters,
            ["dryRun", "fieldManager", "fieldValidation", "force"]
        );
        let content = &patch["requestBody"]["content"];
        assert!(
            content
                .get("application/strategic-merge-patch+json")
                .is_some()
        );
        let schema = &document["components"]["schemas"]["io.k8s.api.core.v1.ConfigMap"];
        assert_eq!(
            schema["x-kubernetes-group-version-kind"][0]["kind"],
            "ConfigMap"
        );
        assert_eq!(schema["properties"]["data"]["type"], "object");
        assert_closed(&document);
    }

    #[test]
    fn u7_a_custom_resource_has_its_own_schema_and_no_strategic_patch() {
        let schema = json!({"type": "object", "description": "A widget.", "properties": {
            "spec": {"type": "object", "properties": {
                "port": {"x-kubernetes-int-or-string": true},
                "tags": {"type": "object", "additionalProperties": {"type": "string"}}}},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
        }});
        let widgets = ResourceDocument {
            group: "test.example.com",
            version: "v1",
            kind: "Widget",
            plural: "widgets",
            namespaced: true,
            verbs: &VERBS,
            subresources: &["status"],
            schema: Some(&schema),
        };
        let document = group_version_document(&[widgets]);
        let base = "/apis/test.example.com/v1/namespaces/{namespace}/widgets/{name}";
        let patch = &document["paths"][base]["patch"];
        let content = patch["requestBody"]["content"].as_object().unwrap();
        assert!(content.contains_key("application/merge-patch+json"));
        assert!(!content.contains_key("application/strategic-merge-patch+json"));
        assert!(document["paths"].get(format!("{base}/status")).is_some());
        assert!(
            document["paths"]
                .get("/apis/test.example.com/v1/widgets")
                .is_some()
        );
        let schema = &document["components"]["schemas"]["com.example.test.v1.Widget"];
        assert_eq!(schema["description"], "A widget.");
        assert_eq!(
            schema["x-kubernetes-group-version-kind"],
            json!([{"group": "test.example.com", "version": "v1", "kind": "Widget"}])
        );
        assert_eq!(
            schema["properties"]["metadata"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert_eq!(schema["properties"]["kind"]["type"], "string");
        let list = &document["components"]["schemas"]["com.example.test.v1.WidgetList"];
        assert_eq!(
            list["properties"]["items"]["items"]["$ref"],
            "#/components/schemas/com.example.test.v1.Widget"
        );
        assert_closed(&document);
    }

    #[test]
    fn u6_every_kind_of_the_type_table_has_a_closed_document() {
        let kinds = [
            ("", "v1", "Pod", "pods"),
            ("", "v1", "Node", "nodes"),
            ("apps", "v1", "Deployment", "deployments"),
            ("coordination.k8s.io", "v1", "Lease", "leases"),
            ("events.k8s.io", "v1", "Event", "events"),
            (
                "apiextensions.k8s.io",
                "v1",
                "CustomResourceDefinition",
                "customresourcedefinitions",
            ),
            (
                "rbac.authorization.k8s.io",
                "v1",
                "ClusterRole",
                "clusterroles",
            ),
        ];
        for (group, version, kind, plural) in kinds {
            let resource = ResourceDocument {
                group,
                version,
                kind,
                plural,
                subresources: &["status", "scale"],
                ..config_maps()
            };
            assert_closed(&group_version_document(&[resource]));
        }
    }
}
