//! The example on the embedded cluster, over HTTPS as it runs on any other.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use devcluster::DevCluster;
use informer::client::{ClientOptions, connect};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Api;
use kube_client::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube_core::ObjectMeta;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[path = "../../examples/configmap_mirror.rs"]
#[expect(dead_code, reason = "main is the example's")]
mod example;

const LABEL: &str = "example.dev/mirror";
const FINALIZER: &str = "example.dev/mirror-cleanup";

/// Polls until `found` gives something, for at most 20 s.
async fn eventually<T, Fut>(what: &str, found: impl Fn() -> Fut) -> T
where
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = found().await {
            return found;
        }
        assert!(Instant::now() < deadline, "did not come to be: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Configs(Api<ConfigMap>);

impl Configs {
    async fn create(&self, name: &str, labels: &[(&str, &str)], text: &str) {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..Default::default()
        };
        let data = Some([("text".to_owned(), text.to_owned())].into());
        let config = ConfigMap {
            metadata,
            data,
            ..Default::default()
        };
        self.0
            .create(&PostParams::default(), &config)
            .await
            .unwrap();
    }

    async fn patch(&self, name: &str, patch: Value) {
        self.0
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn get(&self, name: &str) -> Option<ConfigMap> {
        self.0.get_opt(name).await.unwrap()
    }

    /// Waits for `name` to hold `text`.
    async fn holds(&self, name: &str, text: &str) -> ConfigMap {
        eventually(&format!("{name} holds {text:?}"), || async {
            self.get(name)
                .await
                .filter(|config| text_of(config) == Some(text))
        })
        .await
    }

    async fn is_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), || async {
            self.get(name).await.is_none().then_some(())
        })
        .await;
    }

    async fn has_finalizers(&self, name: &str, expected: &[&str]) {
        eventually(&format!("{name} has finalizers {expected:?}"), || async {
            let finalizers = self
                .get(name)
                .await?
                .metadata
                .finalizers
                .unwrap_or_default();
            (finalizers == expected).then_some(())
        })
        .await;
    }
}

fn text_of(config: &ConfigMap) -> Option<&str> {
    config.data.as_ref()?.get("text").map(String::as_str)
}

fn passed<T>(result: Result<T, impl Debug>) -> T {
    result.unwrap()
}

#[tokio::test]
async fn the_example_mirrors_cleans_up_and_leaves_strangers_alone() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let options = ClientOptions {
        user_agent: "configmap-mirror".to_owned(),
        ..ClientOptions::default()
    };
    let client = connect(cluster.client_config().await.unwrap(), options).unwrap();
    let manager = example::mirror(client).unwrap();
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    let token = stop.clone();
    running.spawn(async move { manager.run(token).await });
    let configs = Configs(Api::namespaced(cluster.client(), "default"));

    // Somebody else's object under the name of a mirror.
    configs.create("taken-mirror", &[], "mine").await;
    configs.create("taken", &[(LABEL, "true")], "yours").await;

    configs.create("a", &[(LABEL, "true")], "one").await;
    let mirror = configs.holds("a-mirror", "one").await;
    let owner = controller::owners::controller_of(&mirror).expect("the source controls it");
    assert_eq!((&*owner.kind, &*owner.name), ("ConfigMap", "a"));
    assert_eq!(owner.block_owner_deletion, Some(true));
    configs.has_finalizers("a", &[FINALIZER]).await;

    configs
        .patch("a", json!({ "data": { "text": "two" } }))
        .await;
    configs.holds("a-mirror", "two").await;
    configs
        .patch("a-mirror", json!({ "data": { "text": "tampered" } }))
        .await;
    configs.holds("a-mirror", "two").await;
    configs.delete("a-mirror").await;
    configs.holds("a-mirror", "two").await;

    configs
        .patch("a", json!({ "metadata": { "labels": { LABEL: null } } }))
        .await;
    configs.is_gone("a-mirror").await;
    configs.has_finalizers("a", &[]).await;
    configs
        .patch("a", json!({ "metadata": { "labels": { LABEL: "true" } } }))
        .await;
    configs.holds("a-mirror", "two").await;
    configs.delete("a").await;
    configs.is_gone("a").await;
    assert!(
        configs.get("a-mirror").await.is_none(),
        "the mirror goes before its source"
    );

    configs.has_finalizers("taken", &[FINALIZER]).await;
    configs.delete("taken").await;
    configs.is_gone("taken").await;
    let stranger = configs
        .get("taken-mirror")
        .await
        .expect("not ours to delete");
    assert_eq!(text_of(&stranger), Some("mine"));

    stop.cancel();
    passed(passed(running.join_next().await.expect("one task")));
    // a: finalizer, mirror; two; restored; re-created; mirror and finalizer off; both on again;
    // both off again. taken: finalizer on and off.
    let writes = cluster
        .counters()
        .count(|key| key.user_agent == "configmap-mirror" && key.is_write() && key.code < 300);
    assert_eq!(
        writes,
        2 + 1 + 1 + 1 + 2 + 2 + 2 + 2,
        "no write without a reason"
    );
    cluster.shutdown().await;
}
