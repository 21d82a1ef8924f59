//! Cloud-init and credentials.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube_client::core::params::{DeleteParams, ListParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::api::conditions::{ConditionType, Reason};
use serde_json::{Value, json};

use crate::common::operator::Operator;
use crate::common::page::{free_address, get};
use crate::common::pods::PodMonitor;
use crate::common::world::World;
use crate::common::{eventually, fleet, through};

fn from_secret(name: &str) -> Value {
    json!({ "cloudInit": { "secretRef": { "name": name } } })
}

pub(crate) async fn t07_other_bytes_replace_equal_bytes_do_not(world: &World) {
    let monitor = PodMonitor::start(world).await;
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    fleet::put_secret(world, "boot", "user-data", "first").await;
    fleet::create(world, &fleet::managed("one", &from_secret("boot"))).await;
    let first = fleet::ready(world, "one").await;

    let secrets: Api<Secret> = world.api();
    let relabel = json!({ "metadata": { "labels": { "touched": "yes" } } });
    secrets
        .patch(
            "boot",
            &Default::default(),
            &kube_client::core::params::Patch::Merge(relabel),
        )
        .await
        .expect("the Secret changes");
    fleet::put_secret(world, "boot", "user-data", "second").await;
    let second = fleet::replaced(world, "one", &first).await;
    assert_ne!(fleet::hash(&second), fleet::hash(&first));
    // Had the relabelled Secret replaced the pod as well, there would have been three.
    assert_eq!(monitor.ever(&second.uid().expect("a UID")), 2);
    monitor.assert_never_two();
}

pub(crate) async fn a_proxy_waits_for_its_secret_and_starts_when_it_comes(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &["--backoff-max", "2s"]);
    fleet::create(world, &fleet::managed("one", &from_secret("boot"))).await;
    let waiting = fleet::until(world, "one", "misses its Secret", |proxy| {
        fleet::reason(proxy, ConditionType::Provisioned) == Some(Reason::CloudInitError)
    })
    .await;
    let message = fleet::message(&waiting, ConditionType::Provisioned);
    assert!(message.contains("boot"), "{message}");
    assert!(fleet::all_pods(world).await.is_empty());

    fleet::put_secret(world, "boot", "other-key", "text").await;
    let waiting = fleet::until(world, "one", "misses the key", |proxy| {
        fleet::message(proxy, ConditionType::Provisioned).contains("user-data")
    })
    .await;
    let message = fleet::message(&waiting, ConditionType::Provisioned);
    assert!(!message.contains("text"), "content of a Secret: {message}");

    fleet::put_secret(world, "boot", "user-data", "text").await;
    fleet::ready(world, "one").await;
}

pub(crate) async fn a_deleted_secret_keeps_the_running_proxy_in_service(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &["--backoff-max", "2s"]);
    fleet::put_secret(world, "boot", "user-data", "text").await;
    fleet::create(world, &fleet::managed("one", &from_secret("boot"))).await;
    let before = fleet::ready(world, "one").await;
    let secrets: Api<Secret> = world.api();
    secrets
        .delete("boot", &DeleteParams::default())
        .await
        .expect("the Secret can be deleted");
    let after = fleet::until(world, "one", "says that its Secret is gone", |proxy| {
        fleet::reason(proxy, ConditionType::Synced) == Some(Reason::CloudInitError)
    })
    .await;
    assert!(
        fleet::is_ready(&after),
        "a deleted Secret takes no proxy out of service"
    );
    assert_eq!(fleet::instance(&after), fleet::instance(&before));
    fleet::answers(world, &after).await;
    fleet::put_secret(world, "boot", "user-data", "text").await;
    let healed = fleet::until(world, "one", "is in sync again", |proxy| {
        fleet::reason(proxy, ConditionType::Synced) == Some(Reason::InSync)
    })
    .await;
    assert_eq!(fleet::instance(&healed), fleet::instance(&before));
}

pub(crate) async fn inline_cloud_init_lives_and_dies_with_the_pod(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &[]);
    let inline = json!({ "cloudInit": { "inline": "#cloud-config\n" } });
    fleet::create(world, &fleet::managed("one", &inline)).await;
    let before = fleet::ready(world, "one").await;
    let secrets: Api<Secret> = world.api();
    let own = format!("px-{}-ci", before.uid().expect("a UID"));
    let secret = secrets.get(&own).await.expect("the owned Secret");
    assert_eq!(secret.owner_references().len(), 1);
    let edit = json!({ "spec": { "cloudInit": { "inline": "#cloud-config\nruncmd: []\n" } } });
    fleet::edit(world, "one", &edit).await;
    let after = fleet::replaced(world, "one", &before).await;
    assert_ne!(fleet::hash(&after), fleet::hash(&before));
    let data = secrets
        .get(&own)
        .await
        .expect("the owned Secret")
        .data
        .unwrap_or_default();
    assert_eq!(data["user-data"].0, b"#cloud-config\nruncmd: []\n");
    fleet::delete(world, "one").await;
    fleet::gone(world, "one").await;
    // The real server's garbage collector does not run here, so the operator itself must have removed it.
    let left = secrets
        .list(&ListParams::default())
        .await
        .expect("Secrets can be listed");
    assert!(
        left.items.is_empty(),
        "{:?}",
        left.items
            .iter()
            .map(ResourceExt::name_any)
            .collect::<Vec<_>>()
    );
}

pub(crate) async fn credentials_are_asked_of_clients_and_stand_in_no_log(world: &World) {
    const PASSWORD: &str = "pa55-planted-9f2c";
    let operator = Operator::start(&world.operator_kubeconfig(), &[]);
    let secrets: Api<Secret> = world.api();
    let login: Secret = serde_json::from_value(json!({
        "metadata": { "name": "login" },
        "stringData": { "username": "crawler", "password": PASSWORD }
    }))
    .expect("a Secret");
    secrets
        .create(&Default::default(), &login)
        .await
        .expect("the Secret is accepted");
    let auth = json!({ "auth": { "secretRef": { "name": "login" } } });
    fleet::create(world, &fleet::managed("one", &auth)).await;
    let proxy = fleet::ready(world, "one").await;
    let status = proxy.status.as_ref().expect("a status");
    let endpoint = status.endpoint.as_ref().expect("an endpoint");
    let address = format!("{}:{}", endpoint.host, endpoint.port);
    let refused = through::plain(&address, world.echo.address()).await;
    assert!(
        refused.is_err_and(|answer| answer.contains(" 407 ")),
        "no entry without credentials"
    );
    let login = fleet::create(world, &fleet::managed("two", &from_secret("login"))).await;
    fleet::until(world, &login.name_any(), "misses its key", |proxy| {
        fleet::reason(proxy, ConditionType::Provisioned) == Some(Reason::CloudInitError)
    })
    .await;
    let everything = format!(
        "{}{}{}",
        operator.log(),
        serde_json::to_string(&fleet::get(world, "one").await).expect("JSON"),
        serde_json::to_string(&fleet::get(world, "two").await).expect("JSON"),
    );
    assert!(!everything.contains(PASSWORD));
    eventually::eventually(fleet::STEP, "the log is written", || async {
        if operator.log().is_empty() {
            Err("empty".to_owned())
        } else {
            Ok(())
        }
    })
    .await;
}

/// Values that a user planted, each into another place.
const PLANTED: [&str; 5] = [
    "planted-cloud-init-4b1d",
    "planted-user-name-77e0",
    "planted-password-c3a9",
    "planted-by-kubectl-apply-51f8",
    "planted-beside-bad-bytes-e602",
];

/// Makes the Secret as `kubectl apply` does: with a copy of all of it in an annotation.
async fn apply(world: &World, name: &str, data: &[(&str, &[u8])]) {
    let secrets: Api<Secret> = world.api();
    let data: std::collections::BTreeMap<_, _> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec())))
        .collect();
    let mut secret = Secret {
        data: Some(data),
        ..Secret::default()
    };
    secret.metadata.name = Some(name.to_owned());
    let copy = serde_json::to_string(&secret).expect("JSON");
    let key = "kubectl.kubernetes.io/last-applied-configuration".to_owned();
    secret.metadata.annotations = Some([(key, copy)].into());
    secrets
        .create(&Default::default(), &secret)
        .await
        .expect("the Secret is accepted");
}

pub(crate) async fn no_byte_of_a_secret_is_in_any_output(world: &World) {
    let metrics = free_address();
    let at = metrics.to_string();
    let flags = [
        "--log",
        "trace",
        "--metrics-address",
        &at,
        "--backoff-max",
        "1s",
    ];
    let mut operator = Operator::start(&world.operator_kubeconfig(), &flags);
    let [boot, user, password, applied, beside] = PLANTED.map(str::as_bytes);
    fleet::put_secret(world, "boot", "user-data", PLANTED[0]).await;
    apply(
        world,
        "login",
        &[("username", user), ("password", password)],
    )
    .await;
    apply(world, "applied", &[("user-data", applied)]).await;
    let bad = [beside, &[0xff]].concat();
    apply(world, "bad", &[("user-data", &bad), ("password", boot)]).await;
    let with_login = |name: &str| {
        let mut spec = from_secret(name);
        spec["auth"] = json!({ "secretRef": { "name": "login" } });
        spec
    };
    // Two that come up, three that do not: a value that is no text, a key and a Secret that are missing.
    fleet::create(world, &fleet::managed("one", &with_login("boot"))).await;
    fleet::create(world, &fleet::managed("two", &with_login("applied"))).await;
    for (name, secret) in [("three", "bad"), ("four", "login"), ("five", "nowhere")] {
        fleet::create(world, &fleet::managed(name, &with_login(secret))).await;
    }
    let first = fleet::ready(world, "one").await;
    fleet::ready(world, "two").await;
    for name in ["three", "four", "five"] {
        fleet::until(world, name, "says what is wrong with its Secret", |proxy| {
            fleet::reason(proxy, ConditionType::Provisioned) == Some(Reason::CloudInitError)
        })
        .await;
    }
    // A rotation, and a Secret that goes while its Proxy runs.
    fleet::put_secret(world, "boot", "user-data", &PLANTED[0].repeat(2)).await;
    fleet::replaced(world, "one", &first).await;
    let secrets: Api<Secret> = world.api();
    secrets
        .delete("applied", &DeleteParams::default())
        .await
        .expect("the Secret can be deleted");
    fleet::until(world, "two", "says that its Secret is gone", |proxy| {
        fleet::reason(proxy, ConditionType::Synced) == Some(Reason::CloudInitError)
    })
    .await;

    let mut outputs = Vec::new();
    for page in ["/metrics", "/debug/state"] {
        let text = get(metrics, page).await.expect("it serves");
        outputs.push((page.to_owned(), text));
    }
    let events: Api<Event> = world.api();
    let events = eventually::eventually(fleet::STEP, "Events tell of it", || async {
        let all = events.list(&ListParams::default()).await;
        let text = serde_json::to_string(&all.expect("a list")).expect("JSON");
        if text.contains("CloudInitError") {
            Ok(text)
        } else {
            Err(text)
        }
    })
    .await;
    outputs.push(("Events".to_owned(), events));
    for name in ["one", "two", "three", "four", "five"] {
        let proxy = serde_json::to_string(&fleet::get(world, name).await).expect("JSON");
        outputs.push((format!("Proxy {name}"), proxy));
    }
    for pod in fleet::all_pods(world).await {
        outputs.push((
            "a pod".to_owned(),
            serde_json::to_string(&pod).expect("JSON"),
        ));
    }
    assert_eq!(operator.terminate(Duration::from_secs(30)).await, Some(0));
    let log = operator.log();
    assert!(log.contains("TRACE"), "the log has every level");
    outputs.push(("the log".to_owned(), log));
    for (what, text) in outputs {
        for value in PLANTED {
            for form in [value.to_owned(), STANDARD.encode(value)] {
                // The last group of an encoding depends on what follows.
                let form = &form[..form.len() / 4 * 4 - 4];
                if let Some(at) = text.find(form) {
                    let from = text.floor_char_boundary(at.saturating_sub(300));
                    panic!(
                        "{value} is in {what}: {}",
                        &text[from..text.floor_char_boundary(at + 100)]
                    );
                }
            }
        }
    }
}
