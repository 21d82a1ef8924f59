//! Rules of roles and subjects of bindings.

use serde_json::{Map, Value};

use super::Access;
use crate::auth::User;

const ALL: &str = "*";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    urls: Vec<String>,
}

/// What binds a role to subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    name: String,
    /// `None`: in the whole cluster.
    pub(super) namespace: Option<String>,
    pub(super) role_kind: String,
    pub(super) role_name: String,
    subjects: Vec<Subject>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    let list = value[key].as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Rule {
    pub(super) fn read(rule: &Value) -> Self {
        Self {
            verbs: texts(rule, "verbs"),
            groups: texts(rule, "apiGroups"),
            resources: texts(rule, "resources"),
            names: texts(rule, "resourceNames"),
            urls: texts(rule, "nonResourceURLs"),
        }
    }

    /// The rule as it is written.
    pub(super) fn source(&self) -> Value {
        let parts = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ];
        let parts = parts.into_iter().filter(|(_, list)| !list.is_empty());
        let parts = parts.map(|(key, list)| (key.to_owned(), Value::from(list.clone())));
        Value::Object(parts.collect::<Map<_, _>>())
    }

    /// Whether the rule allows an access.
    pub(super) fn allows(&self, access: &Access<'_>) -> bool {
        let verb = self
            .verbs
            .iter()
            .any(|verb| verb == ALL || verb == access.verb);
        if access.resource.is_empty() {
            return verb && self.urls.iter().any(|url| covers(url, access.path));
        }
        verb && self
            .groups
            .iter()
            .any(|group| group == ALL || group == access.group)
            && self
                .resources
                .iter()
                .any(|resource| names(resource, access))
            && (self.names.is_empty() || self.names.iter().any(|name| name == access.name))
    }
}

/// Whether an entry of `resources` names a resource: `*`, `plural`, `plural/sub` or `*/sub`.
fn names(entry: &str, access: &Access<'_>) -> bool {
    if entry == ALL {
        return true;
    }
    match entry.split_once('/') {
        None => access.subresource.is_empty() && entry == access.resource,
        Some((resource, subresource)) => {
            (resource == ALL || resource == access.resource)
                && !access.subresource.is_empty()
                && subresource == access.subresource
        }
    }
}

/// Whether an entry of `nonResourceURLs` covers a path: it is it, or starts it up to a `*`.
fn covers(url: &str, path: &str) -> bool {
    url == path
        || url
            .strip_suffix('*')
            .is_some_and(|start| path.starts_with(start))
}

impl Binding {
    pub(super) fn read(binding: &Value) -> Self {
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        Self {
            name: text(&binding["metadata"], "name"),
            namespace: binding["metadata"]["namespace"].as_str().map(str::to_owned),
            role_kind: text(&binding["roleRef"], "kind"),
            role_name: text(&binding["roleRef"], "name"),
            subjects: subjects
                .map(|subject| Subject {
                    kind: text(subject, "kind"),
                    name: text(subject, "name"),
                    namespace: text(subject, "namespace"),
                })
                .collect(),
        }
    }

    /// The first subject that a user is, described.
    pub(super) fn subject_of(&self, user: &User) -> Option<String> {
        let own = self.namespace.as_deref().unwrap_or_default();
        let found = self.subjects.iter().find(|subject| match &*subject.kind {
            "User" => subject.name == user.name,
            "Group" => user.groups.contains(&subject.name),
            "ServiceAccount" => {
                let namespace = subject.namespace_or(own);
                !namespace.is_empty()
                    && user.name.strip_prefix(ACCOUNT_PREFIX)
                        == Some(&*format!("{namespace}:{}", subject.name))
            }
            _ => false,
        })?;
        let name = match &*found.kind {
            "ServiceAccount" => format!("{}/{}", found.name, found.namespace_or(own)),
            _ => found.name.clone(),
        };
        Some(format!("{} \"{name}\"", found.kind))
    }

    /// The binding and what it binds, as reasons name them.
    pub(super) fn described(&self, subject: &str) -> String {
        let Self {
            role_kind,
            role_name,
            name,
            ..
        } = self;
        let binding = match &self.namespace {
            None => format!("ClusterRoleBinding \"{name}\""),
            Some(namespace) => format!("RoleBinding \"{name}/{namespace}\""),
        };
        format!("{binding} of {role_kind} \"{role_name}\" to {subject}")
    }
}

impl Subject {
    fn namespace_or<'a>(&'a self, own: &'a str) -> &'a str {
        if self.namespace.is_empty() {
            own
        } else {
            &self.namespace
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn access<'a>(
        verb: &'a str,
        resource: &'a str,
        subresource: &'a str,
        name: &'a str,
    ) -> Access<'a> {
        Access {
            verb,
            group: "apps",
            resource,
            subresource,
            namespace: "ns",
            name,
            path: "",
        }
    }

    #[test]
    fn rules_allow_what_they_name() {
        let rule = |rule: Value| Rule::read(&rule);
        let get = ["get"];
        let cases = [
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["deployments"]}),
                access("get", "deployments", "", "d"),
                true,
            ),
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["deployments"]}),
                access("list", "deployments", "", ""),
                false,
            ),
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["deployments"]}),
                access("get", "deployments", "scale", "d"),
                false,
            ),
            (
                json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
                access("get", "deployments", "scale", "d"),
                true,
            ),
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["deployments/scale"]}),
                access("get", "deployments", "scale", "d"),
                true,
            ),
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["*/scale"]}),
                access("get", "deployments", "scale", "d"),
                true,
            ),
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["*/scale"]}),
                access("get", "deployments", "", "d"),
                false,
            ),
            (
                json!({"verbs": get, "apiGroups": [""], "resources": ["deployments"]}),
                access("get", "deployments", "", "d"),
                false,
            ),
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["d"]}),
                access("get", "deployments", "", "d"),
                true,
            ),
            (
                json!({"verbs": get, "apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["d"]}),
                access("get", "deployments", "", "e"),
                false,
            ),
            (
                json!({"verbs": get, "nonResourceURLs": ["*"]}),
                access("get", "deployments", "", ""),
                false,
            ),
        ];
        for (source, access, expected) in cases {
            assert_eq!(
                rule(source.clone()).allows(&access),
                expected,
                "{source} {access:?}"
            );
            assert_eq!(rule(source.clone()).source(), source);
        }
    }

    #[test]
    fn paths_are_covered_whole_or_up_to_a_star() {
        for (url, path, expected) in [
            ("/metrics", "/metrics", true),
            ("/metrics", "/metrics/x", false),
            ("/api/*", "/api/v1", true),
            ("/api/*", "/api", false),
            ("*", "/anything", true),
        ] {
            let rule = Rule::read(&json!({"verbs": ["get"], "nonResourceURLs": [url]}));
            let access = Access {
                verb: "get",
                path,
                ..Access::default()
            };
            assert_eq!(rule.allows(&access), expected, "{url} {path}");
        }
    }

    #[test]
    fn subjects_are_users_groups_and_accounts() {
        let user = User {
            name: "system:serviceaccount:ns:sa".to_owned(),
            uid: String::new(),
            groups: vec!["system:serviceaccounts".to_owned()],
        };
        let binding = |namespace: Option<&str>, subject: Value| {
            Binding::read(&json!({
                "metadata": {"name": "b", "namespace": namespace}, "subjects": [subject],
                "roleRef": {"kind": "Role", "name": "r"},
            }))
        };
        let cases = [
            (
                Some("ns"),
                json!({"kind": "ServiceAccount", "name": "sa"}),
                Some("ServiceAccount \"sa/ns\""),
            ),
            (None, json!({"kind": "ServiceAccount", "name": "sa"}), None),
            (
                None,
                json!({"kind": "ServiceAccount", "name": "sa", "namespace": "ns"}),
                Some("ServiceAccount \"sa/ns\""),
            ),
            (
                Some("ns"),
                json!({"kind": "ServiceAccount", "name": "sa", "namespace": "other"}),
                None,
            ),
            (
                None,
                json!({"kind": "User", "name": "system:serviceaccount:ns:sa"}),
                Some("User \"system:serviceaccount:ns:sa\""),
            ),
            (
                None,
                json!({"kind": "Group", "name": "system:serviceaccounts"}),
                Some("Group \"system:serviceaccounts\""),
            ),
            (
                None,
                json!({"kind": "Group", "name": "system:masters"}),
                None,
            ),
        ];
        for (namespace, subject, expected) in cases {
            let found = binding(namespace, subject.clone()).subject_of(&user);
            assert_eq!(found.as_deref(), expected, "{namespace:?} {subject}");
        }
        assert_eq!(
            binding(Some("ns"), json!({})).described("User \"u\""),
            "RoleBinding \"b/ns\" of Role \"r\" to User \"u\""
        );
    }
}
