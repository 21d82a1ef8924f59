//! Finalizers, conflicts and own writes on both API servers.

use std::cell::Cell;
use std::time::Duration;

use controller::consistency::{Consistency, ConsistencyStore};
use controller::retry::{MaybeConflict, Steps};
use controller::{Informer, InformerOptions, ObjectKey, finalizer, retry_on_conflict};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube_client::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const OURS: &str = "example.dev/ours";
const THEIRS: &str = "example.dev/theirs";

async fn created(api: &Api<ConfigMap>, name: &str) -> ConfigMap {
    let mut config = ConfigMap::default();
    config.metadata.name = Some(name.to_owned());
    api.create(&PostParams::default(), &config).await.unwrap()
}

fn finalizers(object: &ConfigMap) -> Vec<&str> {
    object
        .metadata
        .finalizers
        .iter()
        .flatten()
        .map(String::as_str)
        .collect()
}

async fn finalizers_are_guarded(client: Client) {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let stale = created(&api, "a").await;
    let theirs = finalizer::add(&api, &stale, THEIRS)
        .await
        .unwrap()
        .expect("it was not there");

    let error = finalizer::add(&api, &stale, OURS).await.unwrap_err();
    assert!(error.is_conflict(), "{error:?}");
    let both = finalizer::add(&api, &theirs, OURS)
        .await
        .unwrap()
        .expect("it was not there");
    assert_eq!(
        finalizers(&both),
        [THEIRS, OURS],
        "the other writer's is kept"
    );
    assert!(finalizer::add(&api, &both, OURS).await.unwrap().is_none());

    api.delete("a", &DeleteParams::default()).await.unwrap();
    let dying = api.get("a").await.unwrap();
    let refused = finalizer::add(&api, &dying, "example.dev/late")
        .await
        .unwrap_err();
    assert!(
        matches!(refused, finalizer::Error::Terminating { .. }),
        "{refused}"
    );
    let error = finalizer::remove(&api, &both, OURS).await.unwrap_err();
    assert!(error.is_conflict(), "the deletion made it stale: {error:?}");
    let left = finalizer::remove(&api, &dying, OURS)
        .await
        .unwrap()
        .expect("it was there");
    assert_eq!(finalizers(&left), [THEIRS]);
    finalizer::remove(&api, &left, THEIRS)
        .await
        .unwrap()
        .expect("it was there");
    assert!(
        api.get_opt("a").await.unwrap().is_none(),
        "the last finalizer was off"
    );
    let gone = finalizer::remove(&api, &left, THEIRS).await.unwrap();
    assert!(
        gone.is_none(),
        "an object that is gone has nothing to remove"
    );
}

async fn a_write_that_reads_anew_gets_past_a_conflict(client: Client) {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    created(&api, "conflicting").await;
    let tries = Cell::new(0);
    let write = || async {
        tries.set(tries.get() + 1);
        let mut config = api.get("conflicting").await?;
        if tries.get() < 3 {
            // Another writer comes in between.
            let other = json!({ "data": { "other": tries.get().to_string() } });
            api.patch("conflicting", &PatchParams::default(), &Patch::Merge(other))
                .await?;
        }
        config
            .data
            .get_or_insert_default()
            .insert("own".to_owned(), "written".to_owned());
        api.replace("conflicting", &PostParams::default(), &config)
            .await
    };
    let written = retry_on_conflict(Steps::LIGHT, &CancellationToken::new(), write)
        .await
        .unwrap();
    assert_eq!(tries.get(), 3);
    let data = written.data.unwrap();
    assert_eq!((&*data["own"], &*data["other"]), ("written", "2"));
}

async fn an_informer_reaches_the_own_write(client: Client) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let informer: Informer<ConfigMap> = Informer::new(client, InformerOptions::default()).unwrap();
    let store = ConsistencyStore::new(Duration::from_secs(60));
    let configs = store.track("ConfigMap", informer.clone());

    let written = created(&api, "a").await;
    let (key, uid) = (
        ObjectKey::of(&written),
        written.metadata.uid.clone().unwrap(),
    );
    let version = written.metadata.resource_version.clone().unwrap();
    store.wrote(&key, &uid, configs, &version);
    let Consistency::Behind(lag) = store.check(&key, &uid) else {
        panic!("the informer has not even listed");
    };
    assert_eq!((&*lag.cache, lag.observed), ("ConfigMap", None));

    let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
    let (run, token) = (informer.clone(), stop.clone());
    running.spawn(async move { run.run(token).await });
    informer.synced().await;
    assert_eq!(store.check(&key, &uid), Consistency::Level);

    let patch = json!({ "data": { "text": "two" } });
    let patched = api
        .patch("a", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    let version = patched.metadata.resource_version.unwrap();
    store.wrote(&key, &uid, configs, &version);
    assert!(
        informer
            .lister()
            .wait_for_version(&version, Duration::from_secs(20))
            .await
    );
    assert_eq!(store.check(&key, &uid), Consistency::Level);
    assert!(store.is_empty());
    stop.cancel();
    running.join_all().await;
}

mod embedded {
    use devcluster::DevCluster;

    #[tokio::test]
    async fn c71_a_finalizer_is_written_only_onto_the_state_the_decision_was_made_on() {
        let cluster = DevCluster::builder().start().await.unwrap();
        Box::pin(super::finalizers_are_guarded(cluster.client())).await;
        cluster.shutdown().await;
    }

    #[tokio::test]
    async fn c70_a_write_that_reads_anew_gets_past_a_conflict() {
        let cluster = DevCluster::builder().start().await.unwrap();
        let client = cluster.client();
        Box::pin(super::a_write_that_reads_anew_gets_past_a_conflict(client)).await;
        cluster.shutdown().await;
    }

    #[tokio::test]
    async fn k8_an_informer_reaches_the_own_write_and_clears_it() {
        let cluster = DevCluster::builder().start().await.unwrap();
        Box::pin(super::an_informer_reaches_the_own_write(cluster.client())).await;
        cluster.shutdown().await;
    }
}

mod real {
    use crate::servers;

    #[tokio::test]
    async fn c70_c71_k8_writes_are_guarded_and_seen() {
        let Some((_cluster, client)) = servers::real().await else {
            return;
        };
        Box::pin(super::finalizers_are_guarded(client.clone())).await;
        Box::pin(super::a_write_that_reads_anew_gets_past_a_conflict(
            client.clone(),
        ))
        .await;
        Box::pin(super::an_informer_reaches_the_own_write(client)).await;
    }
}
