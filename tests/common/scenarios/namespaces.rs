//! An operator of chosen namespaces (O-03).

use std::path::Path;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role, RoleBinding};
use kube_client::Api;
use kube_client::core::params::PostParams;
use proxy_operator::CONFIG_MAP;
use proxy_operator::api::Proxy;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::common::operator::Operator;
use crate::common::scenarios::orphans::{self, Collecting};
use crate::common::world::{FLEET, World};
use crate::common::{fleet, manifests};

const ACCOUNT: &str = "narrow";
const OTHER: &str = "other";
/// Namespace of the operator.
const OPERATOR: &str = "proxy-operator";

fn parsed<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of that kind")
}

/// What the shipped role allows about objects in a namespace.
fn rules() -> Vec<PolicyRule> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/base/rbac.yaml");
    let text = std::fs::read_to_string(path).expect("the shipped role");
    let role = text
        .split("\n---")
        .find(|part| part.contains("kind: ClusterRole\n"));
    let role: ClusterRole = serde_saphyr::from_str(role.expect("it is there")).expect("a role");
    let of_cluster = ["namespaces", "customresourcedefinitions"];
    let mut rules = role.rules.unwrap_or_default();
    rules.retain(|rule| {
        let resources = rule.resources.iter().flatten();
        !resources
            .into_iter()
            .any(|one| of_cluster.contains(&&**one))
    });
    rules
}

/// A ServiceAccount that may do that in the fleet's namespace, and nothing elsewhere.
async fn allow_in_the_fleets_namespace(world: &World) {
    let post = PostParams::default();
    let (accounts, roles, bindings): (Api<ServiceAccount>, Api<Role>, Api<RoleBinding>) =
        (world.api(), world.api(), world.api());
    let account = json!({ "metadata": { "name": ACCOUNT } });
    accounts
        .create(&post, &parsed(account))
        .await
        .expect("an account");
    let role = json!({ "metadata": { "name": ACCOUNT }, "rules": rules() });
    roles.create(&post, &parsed(role)).await.expect("a role");
    let binding = json!({
        "metadata": { "name": ACCOUNT },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": FLEET }],
    });
    bindings
        .create(&post, &parsed(binding))
        .await
        .expect("a binding");
    // What the variant allows in the operator's own namespace: its Lease and ConfigMap, and to tell of it.
    let role = json!({ "metadata": { "name": ACCOUNT }, "rules": rules_at_home() });
    let own: Api<Role> = Api::namespaced(world.admin.clone(), OPERATOR);
    own.create(&post, &parsed(role)).await.expect("a role");
    let own: Api<RoleBinding> = Api::namespaced(world.admin.clone(), OPERATOR);
    let binding = json!({
        "metadata": { "name": ACCOUNT },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": FLEET }],
    });
    own.create(&post, &parsed(binding))
        .await
        .expect("a binding");
}

/// The rules of the base's Role, with what the variant of chosen namespaces adds to it.
fn rules_at_home() -> Vec<Value> {
    let is_role = |object: &Value| object["kind"] == "Role";
    let base = manifests::of_base("rbac.yaml");
    let role = base.iter().find(|object| is_role(object));
    let mut rules = role.expect("it is there")["rules"].as_array().cloned();
    let path = manifests::in_project("manifests/namespaced/kustomization.yaml");
    let text = std::fs::read_to_string(path).expect("the variant");
    let variant: Value = serde_saphyr::from_str(&text).expect("a kustomization");
    let patches = variant["patches"].as_array().expect("patches");
    for patch in patches.iter().filter(|patch| is_role(&patch["target"])) {
        let steps = patch["patch"].as_str().expect("a patch as a text");
        let steps: Vec<Value> = serde_saphyr::from_str(steps).expect("steps");
        for step in steps {
            assert_eq!(
                (&step["op"], &step["path"]),
                (&json!("add"), &json!("/rules/-"))
            );
            rules.get_or_insert_default().push(step["value"].clone());
        }
    }
    rules.unwrap_or_default()
}

pub(crate) async fn o03_an_operator_of_chosen_namespaces_needs_no_right_on_the_cluster(
    world: &World,
) {
    allow_in_the_fleets_namespace(world).await;
    let post = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(world.admin.clone());
    let other: Namespace = parsed(json!({ "metadata": { "name": OTHER } }));
    namespaces.create(&post, &other).await.expect("a namespace");
    let elsewhere: Api<Proxy> = Api::namespaced(world.admin.clone(), OTHER);
    let stray = elsewhere
        .create(&post, &fleet::managed("stray", &json!({})))
        .await;
    stray.expect("the Proxy is accepted");

    let kubeconfig = world.kubeconfig_of(FLEET, ACCOUNT).await;
    let flags = ["--namespaces", FLEET, "--cluster-id", "narrow"];
    let operator = Operator::start(&kubeconfig, &flags);
    fleet::put_secret(world, "boot", "user-data", "first").await;
    let addition = json!({ "cloudInit": { "secretRef": { "name": "boot" } } });
    fleet::create(world, &fleet::managed("one", &addition)).await;
    let before = fleet::ready(world, "one").await;
    // The watch of Secrets is one of this namespace, too.
    fleet::put_secret(world, "boot", "user-data", "second").await;
    fleet::replaced(world, "one", &before).await;
    fleet::delete(world, "one").await;
    fleet::gone(world, "one").await;
    let stray = elsewhere.get("stray").await.expect("it is still there");
    assert!(stray.status.is_none() && stray.metadata.finalizers.is_none());
    operator.kill().await;

    // An orphan, which a guard keeps while there is no Proxy, and which goes by its count: both are told.
    let orphan = orphans::put_pod(world, "narrow", "gone", "u-gone").await;
    let collecting = Collecting::start_with(&kubeconfig, "delete", &flags);
    collecting.is_guarded("no-proxies").await;
    let kept = orphans::event(world, orphans::HOME, "OrphansKept", CONFIG_MAP).await;
    assert_eq!(kept.type_.as_deref(), Some("Warning"));
    let log = collecting.operator.log();
    assert!(!log.contains("forbidden"), "{log}");
    collecting.operator.kill().await;
    let own = ["--namespaces", FLEET, "--min-age", "0s"];
    let (code, table, error) =
        orphans::gc_as(&kubeconfig, &[&["--dry-run"][..], &own].concat()).await;
    assert_eq!(code, Some(0), "{table}{error}");
    assert!(table.contains("1 may go: --count 1"), "{table}");
    let delete = ["--delete", "--count", "1", "--interval", "300ms"];
    let (code, said, error) = orphans::gc_as(&kubeconfig, &[&delete[..], &own].concat()).await;
    assert_eq!(code, Some(0), "{said}{error}");
    orphans::goes(world, &orphan).await;
    orphans::event(world, FLEET, "OrphanDeleted", "gone").await;
}
