//! Makes `src/protobuf/table.json` from the `.proto` files and Go types of Kubernetes' modules.
//!
//! ```text
//! cargo run -p devcluster --example gen_protobuf -- K8S_IO_MODULES VERSION \
//!     devcluster/src/protobuf/table.json
//! ```
//!
//! `K8S_IO_MODULES` holds the modules `api@VERSION`, `apimachinery@VERSION` and
//! `apiextensions-apiserver@VERSION`. The `.proto` files give numbers and types of fields; the Go types
//! give what they do not say: names in JSON, which fields are optional by pointer, which are inlined.

use std::collections::{BTreeMap, BTreeSet};
use std::{env, fs, path::Path};

use serde_json::{Value, json};

/// Module, folder and short name of each package.
const PACKAGES: [(&str, &str, &str); 14] = [
    ("api", "core/v1", "core.v1"),
    ("api", "apps/v1", "apps.v1"),
    ("api", "autoscaling/v1", "autoscaling.v1"),
    ("api", "coordination/v1", "coordination.v1"),
    ("api", "events/v1", "events.v1"),
    ("api", "rbac/v1", "rbac.v1"),
    ("api", "authentication/v1", "authentication.v1"),
    ("api", "authorization/v1", "authorization.v1"),
    ("api", "policy/v1", "policy.v1"),
    ("apimachinery", "pkg/apis/meta/v1", "meta.v1"),
    ("apimachinery", "pkg/runtime", "runtime"),
    ("apimachinery", "pkg/api/resource", "resource"),
    ("apimachinery", "pkg/util/intstr", "intstr"),
    (
        "apiextensions-apiserver",
        "pkg/apis/apiextensions/v1",
        "apiextensions.v1",
    ),
];

/// The kinds whose bodies are decoded, by apiVersion.
const KINDS: [(&str, &str, &[&str]); 9] = [
    (
        "v1",
        "core.v1",
        &[
            "Binding",
            "ConfigMap",
            "Event",
            "Namespace",
            "Node",
            "Pod",
            "Secret",
            "ServiceAccount",
        ],
    ),
    ("apps/v1", "apps.v1", &["Deployment"]),
    ("autoscaling/v1", "autoscaling.v1", &["Scale"]),
    ("coordination.k8s.io/v1", "coordination.v1", &["Lease"]),
    ("events.k8s.io/v1", "events.v1", &["Event"]),
    (
        "rbac.authorization.k8s.io/v1",
        "rbac.v1",
        &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
    ),
    (
        "authentication.k8s.io/v1",
        "authentication.v1",
        &["SelfSubjectReview", "TokenRequest", "TokenReview"],
    ),
    (
        "authorization.k8s.io/v1",
        "authorization.v1",
        &[
            "LocalSubjectAccessReview",
            "SelfSubjectAccessReview",
            "SubjectAccessReview",
        ],
    ),
    (
        "apiextensions.k8s.io/v1",
        "apiextensions.v1",
        &["CustomResourceDefinition"],
    ),
];

/// A field of a message.
struct Field {
    number: u32,
    name: String,
    kind: String,
    flags: String,
}

/// What the Go types say of a field.
struct GoField {
    json: String,
    pointer: bool,
    inline: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [modules, version, out] = arguments.as_slice() else {
        return Err("usage: gen_protobuf K8S_IO_MODULES VERSION OUT".into());
    };
    let mut messages = BTreeMap::new();
    for (module, folder, package) in PACKAGES {
        let folder = Path::new(modules)
            .join(format!("{module}@{version}"))
            .join(folder);
        let go = go_fields(&folder)?;
        let proto = fs::read_to_string(folder.join("generated.proto"))?;
        messages.extend(proto_messages(&proto, package, &go));
    }
    let mut kinds = vec![json!([
        "meta.k8s.io/v1",
        "DeleteOptions",
        "meta.v1.DeleteOptions"
    ])];
    kinds.push(json!(["policy/v1", "Eviction", "policy.v1.Eviction"]));
    for (api_version, package, names) in KINDS {
        for name in names {
            kinds.push(json!([api_version, name, format!("{package}.{name}")]));
        }
    }
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> = kinds
        .iter()
        .filter_map(|kind| kind[2].as_str())
        .map(str::to_owned)
        .collect();
    while let Some(name) = open.pop() {
        if let Some(fields) = messages.get(&name)
            && reached.insert(name)
        {
            open.extend(fields.iter().map(|field: &Field| field.kind.clone()));
        }
    }
    let table: BTreeMap<&String, Value> = messages
        .iter()
        .filter(|(name, _)| reached.contains(*name))
        .map(|(name, fields)| {
            let rows: Vec<Value> = fields
                .iter()
                .map(|f| json!([f.number, f.name, f.kind, f.flags]))
                .collect();
            (name, Value::Array(rows))
        })
        .collect();
    let lines: Vec<String> = table
        .iter()
        .map(|(name, rows)| format!("{}:{rows}", json!(name)))
        .collect();
    let text = format!(
        "{{\"kinds\":{},\"messages\":{{\n{}\n}}}}\n",
        Value::Array(kinds),
        lines.join(",\n")
    );
    fs::write(out, text)?;
    Ok(())
}

/// The messages of a `.proto` file under their short names.
fn proto_messages(
    text: &str,
    package: &str,
    go: &BTreeMap<(String, u32), GoField>,
) -> BTreeMap<String, Vec<Field>> {
    let mut messages = BTreeMap::new();
    let mut current: Option<(String, Vec<Field>)> = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix("message ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            current = Some((name.to_owned(), Vec::new()));
        } else if line == "}" {
            if let Some((name, fields)) = current.take() {
                messages.insert(format!("{package}.{name}"), fields);
            }
        } else if let Some((message, fields)) = &mut current
            && let Some(mut field) = proto_field(line, package)
        {
            if let Some(known) = go.get(&(message.clone(), field.number)) {
                if !known.json.is_empty() {
                    field.name.clone_from(&known.json);
                }
                if known.pointer {
                    field.flags.push('p');
                }
                if known.inline {
                    field.flags.push('i');
                }
            }
            fields.push(field);
        }
    }
    messages
}

/// `optional T name = 1;`, `repeated T name = 1;` or `map<string, T> name = 1;`.
fn proto_field(line: &str, package: &str) -> Option<Field> {
    let line = line.strip_suffix(';')?;
    let (declaration, number) = line.rsplit_once(" = ")?;
    let (head, name) = declaration.rsplit_once(' ')?;
    let (flags, kind) = if let Some(rest) = head.strip_prefix("map<") {
        ("m", rest.strip_suffix('>')?.split_once(", ")?.1)
    } else if let Some(kind) = head.strip_prefix("repeated ") {
        ("r", kind)
    } else {
        ("", head.strip_prefix("optional ")?)
    };
    Some(Field {
        number: number.parse().ok()?,
        name: name.to_owned(),
        kind: short_type(kind, package),
        flags: flags.to_owned(),
    })
}

fn short_type(kind: &str, package: &str) -> String {
    const SCALARS: [&str; 7] = [
        "string", "bool", "int32", "int64", "double", "bytes", "float",
    ];
    if SCALARS.contains(&kind) {
        return kind.to_owned();
    }
    let Some(full) = kind.strip_prefix(".k8s.io.") else {
        return format!("{package}.{kind}");
    };
    let parts: Vec<&str> = full.split('.').collect();
    match parts.as_slice() {
        [.., "runtime", name] => format!("runtime.{name}"),
        [.., "resource", name] => format!("resource.{name}"),
        [.., "intstr", name] => format!("intstr.{name}"),
        [.., group, version, name] => format!("{group}.{version}.{name}"),
        _ => full.to_owned(),
    }
}

/// The tagged fields of the Go structs of a folder, by struct and field number.
fn go_fields(
    folder: &Path,
) -> Result<BTreeMap<(String, u32), GoField>, Box<dyn std::error::Error>> {
    let mut fields = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if !name.ends_with(".go") || name.ends_with("_test.go") || name.starts_with("generated") {
            continue;
        }
        let mut current = String::new();
        for line in fs::read_to_string(&path)?.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["type", name, "struct", "{"] = words.as_slice() {
                current = (*name).to_owned();
            }
            let (Some(json), Some(protobuf)) = (tag(line, "json"), tag(line, "protobuf")) else {
                continue;
            };
            let Some(number) = protobuf
                .split(',')
                .nth(1)
                .and_then(|text| text.parse().ok())
            else {
                continue;
            };
            let declaration = line.split('`').next().unwrap_or_default();
            let kind = declaration.split_whitespace().last().unwrap_or_default();
            let field = GoField {
                json: json.split(',').next().unwrap_or_default().to_owned(),
                pointer: kind.starts_with('*'),
                // An embedded struct without a name of its own.
                inline: json.is_empty() || json.contains(",inline"),
            };
            fields.insert((current.clone(), number), field);
        }
    }
    Ok(fields)
}

fn tag<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{key}:\""))?;
    rest.split_once('"').map(|(value, _)| value)
}
