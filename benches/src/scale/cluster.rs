//! The embedded cluster of this process, and the fleet that is applied to it.

use std::path::PathBuf;
use std::time::Duration;

use devcluster::DevCluster;
use devcluster::kubelet::{Addressing, Kubelet, KubeletHandle, KubeletOptions};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{Request, header::CONTENT_TYPE};
use kube_client::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::failed;
use crate::Error;

/// Namespace of the fleet.
const NAMESPACE: &str = "scale";
/// The Proxies of that namespace.
pub(super) const PROXIES: &str = "/apis/crawl.proxyoperator.dev/v1alpha1/namespaces/scale/proxies";
const CRD: &str = include_str!("../../../crds/proxies.crawl.proxyoperator.dev.yaml");
/// Creates under way at the same time.
const AT_ONCE: usize = 32;
/// Pods of one simulated node.
const PODS_PER_NODE: usize = 500;
/// How the operator begins its User-Agent.
const OPERATOR: &str = "proxy-operator/";

/// A cluster with the definition applied; its files go with it.
pub(super) struct Cluster {
    cluster: DevCluster,
    client: Client,
    folder: TempDir,
    nodes: Option<KubeletHandle>,
}

impl Cluster {
    /// Starts it and waits until Proxies are served.
    pub(super) async fn start() -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
        let cluster = DevCluster::builder()
            .start()
            .await
            .map_err(failed("start the cluster"))?;
        let client = cluster.client();
        let this = Self {
            cluster,
            client,
            folder,
            nodes: None,
        };
        this.cluster
            .write_kubeconfig(this.kubeconfig())
            .map_err(failed("write the kubeconfig"))?;
        let definition: Value =
            serde_saphyr::from_str(CRD).map_err(failed("read the definition"))?;
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        this.create(definitions, &definition).await?;
        let namespace = json!({ "metadata": { "name": NAMESPACE } });
        this.create("/api/v1/namespaces", &namespace).await?;
        for _ in 0..200 {
            let list = Request::get(PROXIES)
                .body(Vec::new())
                .map_err(failed("ask for Proxies"))?;
            if this.client.request::<IgnoredAny>(list).await.is_ok() {
                return Ok(this);
            }
            sleep(Duration::from_millis(50)).await;
        }
        Err(Error::Failed("Proxies are not served".to_owned()))
    }

    /// Adds nodes for so many pods, which start and stop at once and serve nothing.
    pub(super) async fn add_nodes(&mut self, pods: usize) -> Result<(), Error> {
        let options = KubeletOptions {
            nodes: pods / PODS_PER_NODE + 1,
            pods_per_node: PODS_PER_NODE,
            start_delay: Duration::ZERO.into(),
            stop_delay: Duration::ZERO.into(),
            proxy: false,
            addressing: Addressing::Virtual,
            ..KubeletOptions::default()
        };
        let nodes = Kubelet::start(self.client.clone(), options)
            .await
            .map_err(failed("start nodes"))?;
        self.nodes = Some(nodes);
        Ok(())
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Writes a file beside the kubeconfig.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).map_err(failed("write a file"))?;
        Ok(path)
    }

    /// Requests of the operator so far, and those of them that may have changed something other
    /// than Events and Leases.
    pub(super) fn operator_requests(&self) -> (u64, u64) {
        let counters = self.cluster.counters();
        let all = counters.count(|key| key.user_agent.starts_with(OPERATOR));
        let writes = counters.count(|key| {
            let aside = matches!(&*key.resource, "events" | "leases");
            key.user_agent.starts_with(OPERATOR) && key.is_write() && !aside
        });
        (all, writes)
    }

    async fn create(&self, path: &str, object: &Value) -> Result<(), Error> {
        let body = serde_json::to_vec(object).map_err(failed("write an object"))?;
        let request = Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(failed("ask for a create"))?;
        let created = self.client.request::<IgnoredAny>(request).await;
        created.map(drop).map_err(failed("create an object"))
    }

    /// Creates `n` Proxies of that spec.
    pub(super) async fn apply(&self, n: usize, spec: &Value) -> Result<(), Error> {
        let create = |i: usize| async move {
            let proxy = json!({
                "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
                "metadata": { "name": format!("proxy-{i:06}") },
                "spec": spec,
            });
            self.create(PROXIES, &proxy).await
        };
        stream::iter(0..n)
            .map(create)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await
    }

    /// Creates the Secret, or replaces what is in it.
    pub(super) async fn put_secret(&self, name: &str, text: &str) -> Result<(), Error> {
        let secrets = format!("/api/v1/namespaces/{NAMESPACE}/secrets");
        let secret = json!({
            "metadata": { "name": name }, "stringData": { "user-data": text },
        });
        let body = serde_json::to_vec(&secret).map_err(failed("write a Secret"))?;
        let request = Request::patch(format!("{secrets}/{name}"))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(body)
            .map_err(failed("ask for a change"))?;
        match self.client.request::<IgnoredAny>(request).await {
            Err(kube_client::Error::Api(answer)) if answer.code == 404 => {
                self.create(&secrets, &secret).await
            }
            answer => answer.map(drop).map_err(failed("change a Secret")),
        }
    }

    pub(super) async fn shutdown(self) {
        if let Some(nodes) = self.nodes {
            nodes.shutdown().await;
        }
        self.cluster.shutdown().await;
    }
}
