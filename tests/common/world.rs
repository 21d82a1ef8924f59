//! One API server with simulated nodes, prepared as an administrator prepares a cluster for the operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use devcluster::DevCluster;
use devcluster::echo::{EchoHandle, EchoServer};
use devcluster::kubelet::{Kubelet, KubeletHandle, KubeletOptions};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::core::params::PostParams;
use kube_client::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube_client::{Api, Client, Config};
use realcluster::RealCluster;

use super::eventually::eventually;

/// The namespace that the scenarios put their fleets into.
pub(crate) const FLEET: &str = "fleet";
/// The user that the operator's requests are counted under.
pub(crate) const OPERATOR_USER: &str = "system:serviceaccount:proxy-operator:proxy-operator";
const OPERATOR: &str = "proxy-operator";

enum Server {
    Embedded(Box<DevCluster>),
    Real(Box<RealCluster>),
}

/// An API server with the CRD, the shipped role, a token for the operator, simulated nodes and an echo server.
pub(crate) struct World {
    /// A cluster administrator's client, over HTTPS.
    pub(crate) admin: Client,
    /// The server that proxied requests are sent to.
    pub(crate) echo: EchoHandle,
    server: Server,
    kubelet: KubeletHandle,
    dir: tempfile::TempDir,
}

impl World {
    /// A world on the embedded API server.
    pub(crate) async fn embedded() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let cluster = DevCluster::builder()
            .start()
            .await
            .expect("the embedded cluster starts");
        cluster
            .write_kubeconfig(admin_config(dir.path()))
            .expect("a kubeconfig");
        Self::prepare(Server::Embedded(Box::new(cluster)), dir).await
    }

    /// A world on the real API server; none where its program is not built.
    pub(crate) async fn real() -> Option<Self> {
        let cluster = RealCluster::start_if_built(&realcluster::Options::default())
            .await
            .expect("the real API server starts")?;
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::copy(cluster.kubeconfig(), admin_config(dir.path())).expect("a kubeconfig");
        Some(Self::prepare(Server::Real(Box::new(cluster)), dir).await)
    }

    async fn prepare(server: Server, dir: tempfile::TempDir) -> Self {
        let config = Kubeconfig::read_from(admin_config(dir.path())).expect("a valid kubeconfig");
        let admin = client(config.clone()).await;
        install(&admin).await;
        let fleet: Namespace = serde_json::from_value(serde_json::json!({
            "metadata": { "name": FLEET }
        }))
        .expect("a namespace");
        Api::<Namespace>::all(admin.clone())
            .create(&PostParams::default(), &fleet)
            .await
            .expect("the fleet's namespace");
        let token = token_of(&admin, OPERATOR, OPERATOR).await;
        write_config(&dir.path().join("operator.yaml"), &config, &token);
        let options = KubeletOptions {
            nodes: 2,
            start_delay: Duration::from_millis(50).into(),
            stop_delay: Duration::from_millis(50).into(),
            proxy: true,
            ..KubeletOptions::default()
        };
        let kubelet = Kubelet::start(admin.clone(), options)
            .await
            .expect("the simulated nodes start");
        let echo = EchoServer::start().await.expect("the echo server starts");
        Self {
            admin,
            echo,
            server,
            kubelet,
            dir,
        }
    }

    /// The kubeconfig that carries nothing but the operator's ServiceAccount token.
    pub(crate) fn operator_kubeconfig(&self) -> PathBuf {
        self.dir.path().join("operator.yaml")
    }

    /// The administrator's kubeconfig.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        admin_config(self.dir.path())
    }

    /// A client with the operator's rights.
    pub(crate) async fn operator_client(&self) -> Client {
        let config = Kubeconfig::read_from(self.operator_kubeconfig());
        client(config.expect("a valid kubeconfig")).await
    }

    /// A kubeconfig for the operator that leads to a stand-in of the server, which knows who it is.
    pub(crate) fn kubeconfig_at(&self, url: &str) -> PathBuf {
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "operator",
            "clusters": [{ "name": "it", "cluster": { "server": url } }],
            "users": [{ "name": OPERATOR, "user": {} }],
            "contexts": [{ "name": "operator",
                "context": { "cluster": "it", "user": OPERATOR, "namespace": OPERATOR } }],
        });
        let path = self.dir.path().join("elsewhere.yaml");
        std::fs::write(&path, text.to_string()).expect("a kubeconfig");
        path
    }

    /// A kubeconfig that carries nothing but the token of this ServiceAccount.
    pub(crate) async fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        let config = Kubeconfig::read_from(admin_config(self.dir.path())).expect("a kubeconfig");
        let token = token_of(&self.admin, namespace, account).await;
        let path = self.dir.path().join(format!("{account}.yaml"));
        write_config(&path, &config, &token);
        path
    }

    /// The embedded cluster, where this world stands on it.
    pub(crate) fn embedded_cluster(&self) -> Option<&DevCluster> {
        match &self.server {
            Server::Embedded(cluster) => Some(cluster),
            Server::Real(_) => None,
        }
    }

    /// Objects of a kind in the fleet's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube_client::Resource<
                DynamicType = (),
                Scope = kube_client::core::NamespaceResourceScope,
            >,
    {
        Api::namespaced(self.admin.clone(), FLEET)
    }

    /// Stops nodes and server and waits for them.
    pub(crate) async fn shutdown(self) {
        self.kubelet.shutdown().await;
        match self.server {
            Server::Embedded(cluster) => cluster.shutdown().await,
            Server::Real(cluster) => drop(cluster),
        }
    }
}

fn admin_config(dir: &Path) -> PathBuf {
    dir.join("admin.yaml")
}

async fn client(config: Kubeconfig) -> Client {
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

/// Applies what `manifests/` ships for the operator, the Deployment apart: the tests run that process themselves.
async fn install(admin: &Client) {
    let mut documents = vec![proxy_operator::api::crd_yaml().expect("the CRD as YAML")];
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/base");
    for file in ["namespace.yaml", "serviceaccount.yaml", "rbac.yaml"] {
        let text = std::fs::read_to_string(base.join(file)).expect(file);
        documents.extend(text.split("\n---").map(str::to_owned));
    }
    for document in documents {
        let object: DynamicObject = serde_saphyr::from_str(&document).expect("a manifest");
        let types = object.types.clone().expect("a manifest has a kind");
        let kind = GroupVersionKind::try_from(&types).expect("a group, version and kind");
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(admin.clone(), namespace, &resource),
            None => Api::all_with(admin.clone(), &resource),
        };
        api.create(&PostParams::default(), &object)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", types.kind));
    }
    let proxies: Api<proxy_operator::api::Proxy> = Api::all(admin.clone());
    eventually(Duration::from_secs(10), "the CRD is served", || async {
        proxies
            .list(&Default::default())
            .await
            .map_err(|error| error.to_string())
    })
    .await;
}

async fn token_of(admin: &Client, namespace: &str, account: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(3600),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .expect("a token of the ServiceAccount")
        .status
        .expect("a TokenRequest answers with its status")
        .token
}

/// The cluster of the administrator's kubeconfig, with the token as the only credential.
fn write_config(path: &Path, config: &Kubeconfig, token: &str) {
    let cluster = config.clusters[0].cluster.clone().expect("a cluster");
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "operator",
        "clusters": [{ "name": "it", "cluster": cluster }],
        "users": [{ "name": OPERATOR, "user": { "token": token } }],
        // As in the operator's own pod, where the namespace is that of its ServiceAccount.
        "contexts": [{ "name": "operator",
            "context": { "cluster": "it", "user": OPERATOR, "namespace": OPERATOR } }],
    });
    std::fs::write(path, text.to_string()).expect("a kubeconfig");
}
