//! The roles that are there from the start where roles decide.

use serde_json::{Value, json};

const AUTHENTICATED: &str = "system:authenticated";
const HEALTH: [&str; 5] = ["/livez", "/readyz", "/healthz", "/version", "/version/"];

/// The default ClusterRoles that the served kinds need.
pub(crate) fn roles() -> Vec<Value> {
    let reads = |urls: Vec<&str>| json!([{"verbs": ["get"], "nonResourceURLs": urls}]);
    let documents = [
        "/openapi",
        "/openapi/*",
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
    ];
    [
        (
            "cluster-admin",
            json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]),
        ),
        (
            "system:discovery",
            reads(HEALTH.into_iter().chain(documents).collect()),
        ),
        ("system:public-info-viewer", reads(HEALTH.to_vec())),
        (
            "system:basic-user",
            json!([
                {
                    "verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
                    "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                },
                {
                    "verbs": ["create"], "apiGroups": ["authentication.k8s.io"],
                    "resources": ["selfsubjectreviews"],
                },
            ]),
        ),
    ]
    .into_iter()
    .map(|(name, rules)| json!({"metadata": metadata(name), "rules": rules}))
    .collect()
}

/// The default ClusterRoleBindings of these roles.
pub(crate) fn bindings() -> Vec<Value> {
    [
        ("cluster-admin", vec!["system:masters"]),
        ("system:discovery", vec![AUTHENTICATED]),
        (
            "system:public-info-viewer",
            vec![AUTHENTICATED, "system:unauthenticated"],
        ),
        ("system:basic-user", vec![AUTHENTICATED]),
    ]
    .into_iter()
    .map(|(name, groups)| {
        let subjects: Vec<Value> = groups
            .into_iter()
            .map(|group| {
                json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group})
            })
            .collect();
        json!({
            "metadata": metadata(name), "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        })
    })
    .collect()
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    })
}
