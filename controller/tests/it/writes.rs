//! Finalizers, conflicts and own writes against the embedded API server.

use std::cell::Cell;
use std::time::Duration;

use controller::consistency::{Consistency, ConsistencyStore};
use controller::retry::{MaybeConflict, Steps};
use controller::{Informer, InformerOptions, ObjectKey, finalizer, retry_on_conflict};
use devcluster::DevCluster;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Api;
use kube_client::api::{DeleteParams, Patch, PatchParams, PostParams};
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

#[tokio::test]
async fn c71_a_finalizer_is_written_only_onto_the_state_the_decision_was_made_on() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
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
    cluster.shutdown().await;
}

#[tokio::test]
async fn c70_a_write_that_reads_anew_gets_past_a_conflict() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    created(&api, "a").await;
    let tries = Cell::new(0);
    let write = || async {
        tries.set(tries.get() + 1);
        let mut config = api.get("a").await?;
        if tries.get() < 3 {
            // Another writer comes in between.
            let other = json!({ "data": { "other": tries.get().to_string() } });
            api.patch("a", &PatchParams::default(), &Patch::Merge(other))
                .await?;
        }
        config
            .data
            .get_or_insert_default()
            .insert("own".to_owned(), "written".to_owned());
        api.replace("a", &PostParams::default(), &config).await
    };
    let written = retry_on_conflict(Steps::LIGHT, &CancellationToken::new(), write)
        .await
        .unwrap();
    assert_eq!(tries.get(), 3);
    let data = written.data.unwrap();
    assert_eq!((&*data["own"], &*data["other"]), ("written", "2"));
    cluster.shutdown().await;
}

#[tokio::test]
async fn k8_an_informer_reaches_the_own_write_and_clears_it() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let informer: Informer<ConfigMap> =
        Informer::new(cluster.client(), InformerOptions::default()).unwrap();
    let mut store = ConsistencyStore::new(Duration::from_secs(60));
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
    cluster.shutdown().await;
}
