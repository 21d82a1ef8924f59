//! Least rights (O-03, T87): what the shipped roles allow is enough, and each of their verbs is needed.
//!
//! Every right of the shipped manifest is taken away in turn. An operator that then goes through the whole life of
//! a Proxy must be refused exactly this verb, and say so in its log; one that is refused nothing needs it not.

use std::time::Duration;

use devcluster::faults::{Action, Rule};
use futures::StreamExt as _;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube_client::Api;
use kube_client::core::params::{DeleteParams, PostParams};
use proxy_operator::operations::LEASE;
use proxy_operator::{CLUSTER_ID_KEY, CONFIG_MAP};
use serde_json::{Value, json};

use crate::common::eventually::eventually;
use crate::common::operator::Operator;
use crate::common::world::{OPERATOR, OPERATOR_USER, World};
use crate::common::{fleet, manifests};

/// How long an operator without a right may take to meet its refusal.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);
/// Embedded servers at a time.
const AT_A_TIME: usize = 3;

/// One verb on one resource, as a shipped role allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Right {
    /// Which of the objects of the manifest, which of its rules, which verb of the rule.
    place: (usize, usize, usize),
    verb: String,
    group: String,
    /// With the subresource, if it is one: `proxies/status`.
    resource: String,
    /// The only object that it is about, if there is one.
    name: Option<String>,
}

/// The words of servers that refuse it.
impl Right {
    fn refusal(&self) -> String {
        if self.resource == "proxies/finalizers" {
            // Not asked by the operator itself: the server asks when a pod names its owner.
            return "cannot set blockOwnerDeletion".to_owned();
        }
        format!("cannot {} resource \"{}\"", self.verb, self.resource)
    }

    /// Whether it is about who of several operators works.
    fn is_of_election(&self) -> bool {
        self.resource == "leases"
    }

    /// Whether it is about what the operator keeps in its own namespace.
    fn is_at_home(&self) -> bool {
        matches!(self.resource.as_str(), "leases" | "configmaps")
    }

    /// Whether it is about a first list, which a server that can stream it is never asked for. (Proxies are listed
    /// all the same, by each look for orphans.)
    fn is_of_a_plain_list(&self) -> bool {
        self.resource == "secrets" && self.verb == "list"
    }
}

fn texts(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

/// Every right of the shipped roles.
fn rights(roles: &[Value]) -> Vec<Right> {
    let mut rights = Vec::new();
    for (n, object) in roles.iter().enumerate() {
        for (at, rule) in object["rules"].as_array().into_iter().flatten().enumerate() {
            let names = texts(&rule["resourceNames"]);
            for (group, resource) in texts(&rule["apiGroups"]).iter().flat_map(|group| {
                texts(&rule["resources"])
                    .into_iter()
                    .map(move |one| (group, one))
            }) {
                for (verb_at, verb) in texts(&rule["verbs"]).into_iter().enumerate() {
                    rights.push(Right {
                        place: (n, at, verb_at),
                        verb,
                        group: group.clone(),
                        resource: resource.clone(),
                        name: names.first().cloned(),
                    });
                }
            }
        }
    }
    rights
}

/// The role that a right stands in, without it.
fn without(roles: &[Value], right: &Right) -> Value {
    let (object, rule, verb) = right.place;
    let mut role = roles[object].clone();
    let rules = role["rules"].as_array_mut().expect("a role has rules");
    let verbs = rules[rule]["verbs"]
        .as_array_mut()
        .expect("a rule has verbs");
    verbs.remove(verb);
    // The API server takes no rule without a verb.
    if verbs.is_empty() {
        rules.remove(rule);
    }
    role
}

/// Writes a role and waits until the server decides by it.
async fn put(world: &World, role: &Value, right: &Right, allowed: bool) {
    manifests::apply(&world.admin, role, false).await;
    let reviews: Api<SubjectAccessReview> = Api::all(world.admin.clone());
    let mut parts = right.resource.splitn(2, '/');
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(OPERATOR_USER.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.clone()),
                group: Some(right.group.clone()),
                resource: parts.next().map(str::to_owned),
                subresource: parts.next().map(str::to_owned),
                name: right.name.clone(),
                namespace: right.is_at_home().then(|| OPERATOR.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    eventually(REFUSED_WITHIN, "the role is in force", || async {
        let answer = reviews.create(&PostParams::default(), &review).await;
        let status = answer.expect("an answer").status.expect("a verdict");
        if status.allowed == allowed {
            Ok(())
        } else {
            Err(format!("{right:?} allowed: {}", status.allowed))
        }
    })
    .await;
}

fn start(world: &World, election: bool) -> Operator {
    let mut flags = vec![
        "--drift-poll",
        "300ms",
        "--backoff-base",
        "100ms",
        "--backoff-max",
        "1s",
    ];
    // Without the wait for a calm, which would be told in the place of a list that is refused.
    flags.extend(["--gc-interval", "500ms", "--gc-calm", "0s"]);
    flags.extend(["--leader-elect-namespace", OPERATOR]);
    if election {
        flags.push("--leader-elect");
        flags.extend(["--leader-elect-lease-duration", "3s"]);
        flags.extend(["--leader-elect-renew-deadline", "2s"]);
        flags.extend(["--leader-elect-retry-period", "200ms"]);
    }
    Operator::start(&world.operator_kubeconfig(), &flags)
}

/// The whole life of a Proxy: made with user data and credentials, changed, deleted.
async fn life(world: &World, name: &str) {
    let spec = |text: &str| {
        json!({
            "cloudInit": { "inline": format!("#cloud-config\n# {text}\n") },
            "auth": { "secretRef": { "name": "login" } },
        })
    };
    fleet::create(world, &fleet::managed(name, &spec("first"))).await;
    let first = fleet::ready(world, name).await;
    fleet::edit(world, name, &json!({ "spec": spec("second") })).await;
    fleet::replaced(world, name, &first).await;
    fleet::delete(world, name).await;
    fleet::gone(world, name).await;
}

async fn remove(world: &World, api_version: &str, kind: &str, name: &str) {
    let object = json!({ "apiVersion": api_version, "kind": kind,
        "metadata": { "name": name, "namespace": OPERATOR } });
    let place = manifests::place(&world.admin, &manifests::dynamic(&object));
    if place.get_opt(name).await.expect("an answer").is_some() {
        let deleted = place.delete(name, &DeleteParams::default()).await;
        drop(deleted.expect("it is there"));
    }
}

/// Brings about what the right is for: a Lease or an id of the cluster that is not there yet, or another id than the
/// one in use.
async fn occasion(world: &World, right: &Right) {
    match right.resource.as_str() {
        "leases" => remove(world, "coordination.k8s.io/v1", "Lease", LEASE).await,
        "configmaps" => remove(world, "v1", "ConfigMap", CONFIG_MAP).await,
        _ => {}
    }
    if right.resource == "configmaps" && right.verb == "update" {
        let other = json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": CONFIG_MAP, "namespace": OPERATOR },
            "data": { CLUSTER_ID_KEY: "another" } });
        manifests::apply(&world.admin, &other, false).await;
    }
}

async fn credentials(world: &World) {
    let login = json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "login", "namespace": crate::common::world::FLEET },
        "stringData": { "username": "crawler", "password": "sample" } });
    manifests::apply(&world.admin, &login, false).await;
}

/// Runs an operator without one right until it says that it was refused it; what else happened, if it never was.
async fn is_needed(world: &World, right: &Right, name: &str) -> Result<(), String> {
    occasion(world, right).await;
    let operator = start(world, right.is_of_election());
    let before = operator.log().len();
    let refusal = right.refusal();
    let refused = async {
        // JSON escapes the quotes of what it quotes.
        while !operator.log()[before..]
            .replace('\\', "")
            .contains(&refusal)
        {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    let outcome = tokio::select! {
        biased;
        () = refused => Ok(()),
        () = life(world, name) => Err(format!("a Proxy lives its whole life without {right:?}")),
        () = tokio::time::sleep(REFUSED_WITHIN) => {
            Err(format!("never refused {right:?}: {}", &operator.log()[before..]))
        }
    };
    operator.kill().await;
    outcome
}

/// What the embedded server refused the operator.
fn refusals(world: &World) -> Vec<(String, String)> {
    let cluster = world.embedded_cluster().expect("an embedded one");
    let counters = cluster.counters();
    let mut refused: Vec<_> = counters
        .requests()
        .filter(|(key, _)| key.code == 403 && key.user == OPERATOR_USER)
        .map(|(key, _)| {
            let resource = match key.subresource.as_str() {
                "" => key.resource.clone(),
                sub => format!("{}/{sub}", key.resource),
            };
            (key.verb.clone(), resource)
        })
        .collect();
    refused.sort();
    refused.dedup();
    refused
}

#[tokio::test(flavor = "multi_thread")]
async fn t87_under_exactly_the_shipped_roles_nothing_is_refused() {
    let world = World::embedded().await;
    credentials(&world).await;
    let operator = start(&world, true);
    life(&world, "one").await;
    assert_eq!(refusals(&world), []);
    assert!(!operator.log().contains("forbidden"), "{}", operator.log());
    operator.kill().await;
    world.shutdown().await;
}

/// O-03, one verb less, on the embedded server, which counts what it refuses.
#[tokio::test(flavor = "multi_thread")]
async fn o03_each_verb_of_the_shipped_roles_is_needed_and_its_lack_is_named() {
    let roles = manifests::of_base("rbac.yaml");
    // The embedded server has no admission that asks about finalizers; the real one of the test below has.
    let asked = |right: &Right| right.resource != "proxies/finalizers";
    let rights: Vec<_> = rights(&roles).into_iter().filter(asked).collect();
    assert!(rights.len() >= 20, "{rights:?}");
    let roles = &roles;
    let faults = futures::stream::iter(rights).map(|right| async move {
        let world = World::embedded().await;
        credentials(&world).await;
        put(&world, &without(roles, &right), &right, false).await;
        let cluster = world.embedded_cluster().expect("an embedded one");
        let _no_streams = right.is_of_a_plain_list().then(|| {
            let refused = Rule::new(Action::status(422, "Invalid")).verb("watch");
            let streamed = refused.query("sendInitialEvents", Some("true"));
            cluster.faults().add(streamed)
        });
        let needed = is_needed(&world, &right, "one").await;
        let refused = refusals(&world);
        world.shutdown().await;
        needed?;
        let expected = [(right.verb.clone(), right.resource.clone())];
        if refused == expected {
            Ok(())
        } else {
            Err(format!("without {right:?} refused were {refused:?}"))
        }
    });
    let outcomes: Vec<Result<(), String>> = faults.buffer_unordered(AT_A_TIME).collect().await;
    let faults: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

mod real {
    use super::*;

    /// T87 and O-03 on one real server: a right is taken away, missed, and given back.
    #[tokio::test(flavor = "multi_thread")]
    async fn t87_the_real_server_refuses_nothing_until_a_verb_is_taken_away() {
        let Some(world) = World::real().await else {
            return crate::common::skipped("no real API server");
        };
        credentials(&world).await;
        let operator = start(&world, true);
        life(&world, "zero").await;
        assert!(!operator.log().contains("forbidden"), "{}", operator.log());
        operator.kill().await;

        let roles = manifests::of_base("rbac.yaml");
        let mut faults = Vec::new();
        let asked = |right: &&Right| !right.is_of_a_plain_list();
        for (n, right) in rights(&roles)
            .iter()
            .enumerate()
            .filter(|(_, right)| asked(right))
        {
            put(&world, &without(&roles, right), right, false).await;
            if let Err(fault) = is_needed(&world, right, &format!("p{n}")).await {
                faults.push(fault);
            }
            put(&world, &roles[right.place.0], right, true).await;
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));

        // With all of them back, what was left half done is done.
        let proxies: Api<proxy_operator::api::Proxy> = world.api();
        let all = kube_client::core::params::ListParams::default();
        let _operator = start(&world, false);
        for proxy in proxies.list(&all).await.expect("a list").items {
            let name = proxy.metadata.name.expect("a name");
            if proxy.metadata.deletion_timestamp.is_none() {
                fleet::delete(&world, &name).await;
            }
            fleet::gone(&world, &name).await;
        }
        assert!(fleet::all_pods(&world).await.is_empty());
        world.shutdown().await;
    }
}
