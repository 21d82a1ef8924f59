//! The harness for users' tests: paused time, the embedded cluster, the record of writes.

use std::time::Duration;

use controller::testing::Harness;
use controller::{
    Action, Context, Controller, Informer, Lister, Manager, ObjectKey, ReconcileError, Reconciler,
};
use devcluster::DevCluster;
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Api;
use kube_client::api::{Patch, PatchParams, PostParams};
use kube_core::Status;
use serde_json::json;

use crate::support::{config, ms, unique};

/// Labels each ConfigMap once.
struct Labels {
    configs: Lister<ConfigMap>,
    api: Api<ConfigMap>,
}

impl Reconciler for Labels {
    async fn reconcile(&self, key: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
        let labelled = |config: &ConfigMap| config.metadata.labels.is_some();
        if self
            .configs
            .get(key)
            .is_some_and(|config| !labelled(&config))
        {
            let patch = Patch::Merge(json!({ "metadata": { "labels": { "seen": "yes" } } }));
            self.api
                .patch(key.name(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(Action::RequeueAfter(Duration::from_secs(3600)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_harness_records_writes_refuses_as_told_and_passes_hours_in_no_time() {
    let cluster = DevCluster::builder().start().await.unwrap();
    let direct: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let mut harness = Harness::over(cluster.client());
    let configs = Informer::new(harness.client(), Default::default()).unwrap();
    let labels = Labels {
        configs: configs.lister(),
        api: Api::namespaced(harness.client(), "default"),
    };
    let controller = Controller::builder(unique("labels"), labels)
        .for_object(&configs)
        .build()
        .unwrap();
    let handle = controller.handle();
    let manager = Manager::default()
        .add_informer(&configs)
        .add_controller(controller);
    harness.run(manager);

    harness.refuse_next(Status::failure("not now", "InternalError").with_code(500));
    let mut fresh = config("a", 1);
    fresh.metadata.namespace = None;
    (fresh.metadata.uid, fresh.metadata.resource_version) = (None, None);
    direct.create(&PostParams::default(), &fresh).await.unwrap();
    harness.pass(ms(1000)).await;
    let path = "/api/v1/namespaces/default/configmaps/a";
    let writes = harness.writes_to(path);
    let seen: Vec<_> = writes
        .iter()
        .map(|write| (write.to_string(), write.status))
        .collect();
    assert_eq!(
        seen,
        [
            (
                format!("PATCH {path}"),
                Some(StatusCode::INTERNAL_SERVER_ERROR)
            ),
            (format!("PATCH {path}"), Some(StatusCode::OK)),
        ]
    );
    assert_eq!(writes[1].method, Method::PATCH);
    assert_eq!(writes[1].body["metadata"]["labels"]["seen"], "yes");
    assert_eq!(
        harness.take_writes().len(),
        2,
        "the test's own is not there"
    );

    let before = handle.metrics().requeue_after;
    harness.pass(Duration::from_secs(3 * 3600)).await;
    assert!(
        harness.writes().is_empty(),
        "nothing to do, three times over"
    );
    let after = handle.metrics().requeue_after;
    assert!(after >= before + 3, "{before} to {after}");
    let found = harness.until("a third run", || (after > 2).then_some(after));
    assert_eq!(found.await, after);
    harness.stop().await.unwrap();
}
