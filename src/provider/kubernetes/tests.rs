use std::sync::Arc;
use std::time::Duration;

use devcluster::DevCluster;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube_client::Api;
use kube_core::params::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::KubernetesProvider;
use crate::provider::conformance::{
    FORGED_LABELS, life_of_an_instance, owner, request, request_with_data,
    tags_of_users_forge_no_owner,
};
use crate::provider::{Class, Creation, Hint, Provider, Reason};

struct World {
    _cluster: DevCluster,
    provider: KubernetesProvider,
    pods: Api<Pod>,
    secrets: Api<Secret>,
}

async fn world() -> World {
    let cluster = DevCluster::builder()
        .start()
        .await
        .expect("a cluster in this process");
    let client = cluster.client();
    let provider = KubernetesProvider::new(client.clone(), Some(Arc::from("proxy:1")));
    let pods = Api::namespaced(client.clone(), "default");
    let secrets = Api::namespaced(client, "default");
    World {
        _cluster: cluster,
        provider,
        pods,
        secrets,
    }
}

fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "main", "image": "other:1" }] },
    }))
    .expect("a pod")
}

#[tokio::test]
async fn p07_pods_live_as_every_instance_does() {
    let world = world().await;
    // A pod without a node goes at once.
    life_of_an_instance(&world.provider, async || {}).await;
}

#[tokio::test]
async fn t84_tags_of_users_do_not_change_whose_a_pod_is() {
    let world = world().await;
    tags_of_users_forge_no_owner(&world.provider, &FORGED_LABELS).await;
}

#[tokio::test]
async fn a_provider_of_some_namespaces_lists_these_one_after_the_other_and_no_other() {
    let world = world().await;
    let client = world._cluster.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let spaces = ["a", "b", "c"].map(str::to_owned);
    for name in &spaces {
        let space = serde_json::from_value(json!({ "metadata": { "name": name } }));
        let space = space.expect("a namespace");
        namespaces
            .create(&PostParams::default(), &space)
            .await
            .expect("made");
        let mut wanted = request(&format!("u-{name}"));
        name.clone_into(&mut wanted.owner.namespace);
        world.provider.create(&wanted).await.expect("made");
    }
    let some = KubernetesProvider::new(client, None).within(&spaces[..2]);
    let (mut seen, mut token, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let page = some.list_by_tag("cluster-1", token.as_deref()).await;
        let page = page.expect("lists");
        seen.extend(page.instances.into_iter().map(|one| one.owner.namespace));
        pages += 1;
        token = page.next;
        if token.is_none() {
            break;
        }
    }
    assert_eq!((seen, pages), (vec!["a".to_owned(), "b".to_owned()], 2));
}

#[tokio::test]
async fn t45_a_strangers_pod_is_neither_adopted_nor_reported_nor_deleted() {
    let world = world().await;
    let request = request("u-1");
    let name = request.owner.instance_name();
    let stranger = world
        .pods
        .create(&PostParams::default(), &pod(&name))
        .await
        .expect("made");
    let error = world
        .provider
        .create(&request)
        .await
        .expect_err("the name is taken");
    assert_eq!(
        (error.class(), error.reason()),
        (Class::Permanent, Reason::NameCollision)
    );
    assert_eq!(world.provider.find(&request.owner).await, Ok(None));
    let id = super::pod::provider_id("default", &name);
    let error = world
        .provider
        .get(&id, &request.owner, &Hint::default())
        .await
        .expect_err("a stranger's");
    assert!(error.is_not_found());
    let uid = crate::provider::Incarnation::new(stranger.metadata.uid.expect("set"));
    assert_eq!(
        world.provider.delete(&id, &request.owner, &uid).await,
        Ok(())
    );
    assert!(world.pods.get_opt(&name).await.expect("readable").is_some());
}

#[tokio::test]
async fn t46_a_pod_that_is_still_going_holds_up_the_next_one_for_two_seconds() {
    let world = world().await;
    let request = request("u-1");
    let name = request.owner.instance_name();
    world.provider.create(&request).await.expect("made");
    let hold = json!({ "metadata": { "finalizers": ["example.dev/hold"] } });
    let patch = Patch::Merge(&hold);
    world
        .pods
        .patch(&name, &PatchParams::default(), &patch)
        .await
        .expect("held");
    world
        .pods
        .delete(&name, &DeleteParams::default())
        .await
        .expect("accepted");
    let error = world
        .provider
        .create(&request)
        .await
        .expect_err("still going");
    assert_eq!(
        (error.class(), error.reason()),
        (Class::Transient, Reason::BeingDeleted)
    );
    assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    let found = world
        .provider
        .find(&request.owner)
        .await
        .expect("readable")
        .expect("there");
    assert!(found.deleting);
}

#[tokio::test]
async fn p11_the_secret_of_inline_data_comes_changes_and_goes_with_its_pod() {
    let world = world().await;
    let data = async || {
        let name = format!("{}-ci", owner("u-1").instance_name());
        let secret = world.secrets.get_opt(&name).await.expect("readable")?;
        let bytes = secret.data.expect("data")["user-data"].0.clone();
        Some(String::from_utf8(bytes).expect("text"))
    };
    let first = world
        .provider
        .create(&request_with_data("u-1", "one"))
        .await
        .expect("made");
    assert_eq!(data().await.as_deref(), Some("one"));
    // The pod vanishes by another hand and leaves the Secret behind.
    let name = owner("u-1").instance_name();
    world
        .pods
        .delete(&name, &DeleteParams::default())
        .await
        .expect("gone");
    assert_eq!(data().await.as_deref(), Some("one"));
    let second = world
        .provider
        .create(&request_with_data("u-1", "two"))
        .await
        .expect("made");
    assert!(matches!(second, Creation::Created(_)));
    assert_ne!(second.instance().incarnation, first.instance().incarnation);
    assert_eq!(data().await.as_deref(), Some("two"));

    let instance = second.instance();
    let deleted = world
        .provider
        .delete(&instance.id, &owner("u-1"), &instance.incarnation)
        .await;
    assert_eq!(deleted, Ok(()));
    assert_eq!(data().await, None);
}

#[tokio::test]
async fn p11_a_strangers_secret_under_the_name_is_a_collision() {
    let world = world().await;
    let name = format!("{}-ci", owner("u-1").instance_name());
    let secret: Secret =
        serde_json::from_value(json!({ "metadata": { "name": name } })).expect("a Secret");
    world
        .secrets
        .create(&PostParams::default(), &secret)
        .await
        .expect("made");
    let error = world
        .provider
        .create(&request_with_data("u-1", "one"))
        .await
        .expect_err("taken");
    assert_eq!(error.reason(), Reason::NameCollision);
    assert!(
        world
            .pods
            .get_opt(&owner("u-1").instance_name())
            .await
            .expect("readable")
            .is_none()
    );
}

#[tokio::test]
async fn p13_a_pod_that_the_server_refuses_is_a_permanent_error_in_its_words() {
    let world = world().await;
    let mut request = request("u-1");
    request
        .tags
        .insert("team".to_owned(), "no label value".to_owned());
    let error = world
        .provider
        .create(&request)
        .await
        .expect_err("an impossible label");
    assert_eq!(
        (error.class(), error.code()),
        (Class::Permanent, Some(422)),
        "{error}"
    );
}

#[tokio::test]
async fn a_provider_id_of_something_else_is_not_taken_for_gone() {
    let world = world().await;
    let id = crate::provider::ProviderId::new("gce://project/zone/name");
    let error = world
        .provider
        .get(&id, &owner("u-1"), &Hint::default())
        .await
        .expect_err("no pod's id");
    assert_eq!(error.class(), Class::Transient);
    assert!(
        error.message().contains("kubernetes://namespace/pod"),
        "{error}"
    );
}
