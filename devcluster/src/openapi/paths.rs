//! Paths and operations of a resource.

use serde_json::{Map, Value, json};

use super::ResourceDocument;
use super::schemas::{Names, reference};

/// Adds the paths of a resource: collections, item and subresources.
pub(super) fn add(paths: &mut Map<String, Value>, resource: &ResourceDocument<'_>, names: &Names) {
    let root = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let everywhere = format!("{root}/{}", resource.plural);
    let collection = if resource.namespaced {
        paths.insert(everywhere, all_namespaces(resource, names));
        format!("{root}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        everywhere
    };
    let item = format!("{collection}/{{name}}");
    for subresource in resource.subresources {
        paths.insert(
            format!("{item}/{subresource}"),
            subresource_path(resource, names, subresource),
        );
    }
    paths.insert(collection, collection_path(resource, names));
    paths.insert(item, item_path(resource, names));
}

fn all_namespaces(resource: &ResourceDocument<'_>, names: &Names) -> Value {
    let mut path = Map::new();
    if resource.verbs.contains(&"list") {
        path.insert("get".to_owned(), list(resource, names, "ForAllNamespaces"));
    }
    path.insert("parameters".to_owned(), list_parameters());
    Value::Object(path)
}

fn collection_path(resource: &ResourceDocument<'_>, names: &Names) -> Value {
    let mut path = Map::new();
    let kind = resource.kind;
    if resource.verbs.contains(&"list") {
        path.insert("get".to_owned(), list(resource, names, ""));
    }
    if resource.verbs.contains(&"create") {
        let operation = Operation {
            action: "post",
            id: format!("create{}{kind}", scope(resource)),
            description: format!("create a {kind}"),
            parameters: write_parameters(false),
            body: Some(body(&names.object)),
            answer: &names.object,
            codes: &["200", "201", "202"],
        };
        path.insert(
            "post".to_owned(),
            operation.build(resource, resource.mark(kind)),
        );
    }
    if resource.verbs.contains(&"deletecollection") {
        let operation = Operation {
            action: "deletecollection",
            id: format!("deletecollection{}{kind}", scope(resource)),
            description: format!("delete collection of {kind}"),
            parameters: delete_parameters(),
            body: Some(body(&names.delete_options)),
            answer: &names.status,
            codes: &["200"],
        };
        path.insert(
            "delete".to_owned(),
            operation.build(resource, resource.mark(kind)),
        );
    }
    path.insert("parameters".to_owned(), path_parameters(resource, false));
    Value::Object(path)
}

fn item_path(resource: &ResourceDocument<'_>, names: &Names) -> Value {
    let kind = resource.kind;
    let mut path = object_operations(resource, names, &names.object, kind, "");
    if resource.verbs.contains(&"delete") {
        let operation = Operation {
            action: "delete",
            id: format!("delete{}{kind}", scope(resource)),
            description: format!("delete a {kind}"),
            parameters: delete_parameters(),
            body: Some(body(&names.delete_options)),
            answer: &names.status,
            codes: &["200", "202"],
        };
        path.insert(
            "delete".to_owned(),
            operation.build(resource, resource.mark(kind)),
        );
    }
    path.insert("parameters".to_owned(), path_parameters(resource, true));
    Value::Object(path)
}

fn subresource_path(resource: &ResourceDocument<'_>, names: &Names, subresource: &str) -> Value {
    let mut title = subresource.to_owned();
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let (object, kind) = match subresource {
        "scale" => (&names.scale, "Scale"),
        _ => (&names.object, resource.kind),
    };
    let mut path = object_operations(resource, names, object, kind, &title);
    path.insert("parameters".to_owned(), path_parameters(resource, true));
    Value::Object(path)
}

/// GET, PUT and PATCH of one object or of its subresource.
fn object_operations(
    resource: &ResourceDocument<'_>,
    names: &Names,
    object: &str,
    kind: &str,
    subresource: &str,
) -> Map<String, Value> {
    let owner = resource.kind;
    let id = |verb: &str| format!("{verb}{}{owner}{subresource}", scope(resource));
    let what = match subresource {
        "" => owner.to_owned(),
        name => format!("{} of the specified {owner}", name.to_lowercase()),
    };
    let mark = if kind == "Scale" {
        json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    } else {
        resource.mark(kind)
    };
    let operations = [
        (
            "get",
            "get",
            Operation {
                action: "get",
                id: id("read"),
                description: format!("read the specified {what}"),
                parameters: json!([]),
                body: None,
                answer: object,
                codes: &["200"],
            },
        ),
        (
            "put",
            "update",
            Operation {
                action: "put",
                id: id("replace"),
                description: format!("replace the specified {what}"),
                parameters: write_parameters(false),
                body: Some(body(object)),
                answer: object,
                codes: &["200", "201"],
            },
        ),
        (
            "patch",
            "patch",
            Operation {
                action: "patch",
                id: id("patch"),
                description: format!("partially update the specified {what}"),
                parameters: write_parameters(true),
                body: Some(patch_body(resource, names)),
                answer: object,
                codes: &["200", "201"],
            },
        ),
    ];
    operations
        .into_iter()
        .filter(|(_, verb, _)| resource.verbs.contains(verb))
        .map(|(method, _, operation)| (method.to_owned(), operation.build(resource, mark.clone())))
        .collect()
}

fn list(resource: &ResourceDocument<'_>, names: &Names, suffix: &str) -> Value {
    let kind = resource.kind;
    let scope = if suffix.is_empty() {
        scope(resource)
    } else {
        base(resource)
    };
    let operation = Operation {
        action: "list",
        id: format!("list{scope}{kind}{suffix}"),
        description: format!("list or watch objects of kind {kind}"),
        parameters: if suffix.is_empty() {
            list_parameters()
        } else {
            json!([])
        },
        body: None,
        answer: &names.list,
        codes: &["200"],
    };
    operation.build(resource, resource.mark(kind))
}

struct Operation<'a> {
    action: &'static str,
    id: String,
    description: String,
    parameters: Value,
    body: Option<Value>,
    answer: &'a str,
    codes: &'static [&'static str],
}

impl Operation<'_> {
    fn build(self, resource: &ResourceDocument<'_>, mark: Value) -> Value {
        let answers: Map<String, Value> = self
            .codes
            .iter()
            .map(|code| {
                let description = match *code {
                    "200" => "OK",
                    "201" => "Created",
                    _ => "Accepted",
                };
                let content = json!({"application/json": {"schema": reference(self.answer)}});
                let answer = json!({"description": description, "content": content});
                ((*code).to_owned(), answer)
            })
            .chain([("401".to_owned(), json!({"description": "Unauthorized"}))])
            .collect();
        let mut operation = json!({
            "description": self.description,
            "operationId": self.id,
            "tags": [tag(resource)],
            "parameters": self.parameters,
            "responses": answers,
            "x-kubernetes-action": self.action,
        });
        operation["x-kubernetes-group-version-kind"] = mark;
        if let Some(body) = self.body {
            operation["requestBody"] = body;
        }
        operation
    }
}

fn capitalized(text: &str) -> String {
    let mut text = text.to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// Group and version as operation ids begin: `CoreV1`, `AppsV1`.
fn base(resource: &ResourceDocument<'_>) -> String {
    let group = match resource.group {
        "" => "core".to_owned(),
        group => group.split('.').map(capitalized).collect(),
    };
    format!("{}{}", capitalized(&group), capitalized(resource.version))
}

fn scope(resource: &ResourceDocument<'_>) -> String {
    let namespaced = if resource.namespaced {
        "Namespaced"
    } else {
        ""
    };
    format!("{}{namespaced}", base(resource))
}

fn tag(resource: &ResourceDocument<'_>) -> String {
    let group = if resource.group.is_empty() {
        "core"
    } else {
        resource.group
    };
    format!(
        "{}_{}",
        group.split('.').next().unwrap_or(group),
        resource.version
    )
}

fn body(schema: &str) -> Value {
    json!({"content": {"application/json": {"schema": reference(schema)}}})
}

/// The patch types that the server takes: strategic merge needs a built-in type.
fn patch_body(resource: &ResourceDocument<'_>, names: &Names) -> Value {
    let mut types = vec![
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    if resource.schema.is_none() {
        types.push("application/strategic-merge-patch+json");
    }
    let content: Map<String, Value> = types
        .into_iter()
        .map(|media_type| {
            (
                media_type.to_owned(),
                json!({"schema": reference(&names.patch)}),
            )
        })
        .collect();
    json!({"required": true, "content": content})
}

fn query(name: &str, type_name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "in": "query",
        "description": description,
        "schema": {"type": type_name, "uniqueItems": true},
    })
}

fn write_parameters(is_patch: bool) -> Value {
    let mut parameters = vec![
        query(
            "dryRun",
            "string",
            "When All, the change is checked but not stored.",
        ),
        query(
            "fieldManager",
            "string",
            "Name of who makes the change, at most 128 characters.",
        ),
        query(
            "fieldValidation",
            "string",
            "What to do about unknown and duplicate fields: Ignore, Warn or Strict.",
        ),
    ];
    if is_patch {
        parameters.push(query(
            "force",
            "boolean",
            "Takes fields over from other managers; for apply patches only.",
        ));
    }
    Value::Array(parameters)
}

fn delete_parameters() -> Value {
    json!([
        query(
            "dryRun",
            "string",
            "When All, the deletion is checked but not done."
        ),
        query(
            "gracePeriodSeconds",
            "integer",
            "Seconds before the object is deleted."
        ),
        query(
            "propagationPolicy",
            "string",
            "Orphan, Background or Foreground."
        ),
    ])
}

fn list_parameters() -> Value {
    json!([
        query(
            "allowWatchBookmarks",
            "boolean",
            "Asks for events of type BOOKMARK."
        ),
        query("continue", "string", "Token of the next page."),
        query(
            "fieldSelector",
            "string",
            "Restricts the objects by their fields."
        ),
        query(
            "labelSelector",
            "string",
            "Restricts the objects by their labels."
        ),
        query("limit", "integer", "Most objects of a page."),
        query(
            "resourceVersion",
            "string",
            "State to list, or to watch from."
        ),
        query(
            "resourceVersionMatch",
            "string",
            "How resourceVersion binds a list."
        ),
        query(
            "sendInitialEvents",
            "boolean",
            "Begins a watch with the present state."
        ),
        query(
            "timeoutSeconds",
            "integer",
            "Ends the call, whatever happens."
        ),
        query("watch", "boolean", "Watches instead of listing."),
    ])
}

fn path_parameters(resource: &ResourceDocument<'_>, is_item: bool) -> Value {
    let in_path = |name: &str, description: &str| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "schema": {"type": "string", "uniqueItems": true},
        })
    };
    let mut parameters = Vec::new();
    if is_item {
        parameters.push(in_path("name", &format!("name of the {}", resource.kind)));
    }
    if resource.namespaced {
        parameters.push(in_path("namespace", "namespace of the object"));
    }
    parameters.push(query(
        "pretty",
        "string",
        "If 'true', then the output is pretty printed.",
    ));
    Value::Array(parameters)
}
