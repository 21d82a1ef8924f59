//! One API server with simulated nodes, prepared as an administrator prepares a cluster for the operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use devcluster::echo::{EchoHandle, EchoServer};
use devcluster::kubelet::{Kubelet, KubeletHandle, KubeletOptions};
use devcluster::{Authorization, DevCluster};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::core::params::PostParams;
use kube_client::{Api, Client, Config};
use realcluster::RealCluster;

use super::eventually::eventually;
use super::manifests;

/// The namespace that the scenarios put their fleets into.
pub(crate) const FLEET: &str = "fleet";
/// The user that the operator's requests are counted under.
pub(crate) const OPERATOR_USER: &str = "system:serviceaccount:proxy-operator:proxy-operator";
/// The name and namespace of the operator and of all that belongs to it.
pub(crate) const OPERATOR: &str = "proxy-operator";

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
    /// A world on the embedded API server, where roles decide as on the real one.
    pub(crate) async fn embedded() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let cluster = DevCluster::builder()
            .authorization(Authorization::Rbac)
            .start()
            .await
            .expect("the embedded cluster starts");
        cluster
            .write_kubeconfig(admin_config(dir.path()))
            .expect("a kubeconfig");
        let world = Self::prepare(Server::Embedded(Box::new(cluster)), dir).await;
        world.install().await;
        world
    }

    /// A world on the real API server; none where its program is not built.
    pub(crate) async fn real() -> Option<Self> {
        let world = Self::bare().await?;
        world.install().await;
        Some(world)
    }

    /// The real API server without anything of the operator's; none where its program is not built.
    pub(crate) async fn bare() -> Option<Self> {
        let options = realcluster::Options {
            // What large clusters enforce, too: who names an owner may change the owner's finalizers.
            admission: vec!["OwnerReferencesPermissionEnforcement".to_owned()],
            ..realcluster::Options::default()
        };
        let cluster = RealCluster::start_if_built(&options)
            .await
            .expect("the real API server starts")?;
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::copy(cluster.kubeconfig(), admin_config(dir.path())).expect("a kubeconfig");
        Some(Self::prepare(Server::Real(Box::new(cluster)), dir).await)
    }

    async fn prepare(server: Server, dir: tempfile::TempDir) -> Self {
        let config = Kubeconfig::read_from(admin_config(dir.path())).expect("a valid kubeconfig");
        let admin = client(config).await;
        let fleet: Namespace = serde_json::from_value(serde_json::json!({
            "metadata": { "name": FLEET }
        }))
        .expect("a namespace");
        Api::<Namespace>::all(admin.clone())
            .create(&PostParams::default(), &fleet)
            .await
            .expect("the fleet's namespace");
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

    /// Applies what `manifests/` ships for the operator, the Deployment and what belongs to it apart: the tests
    /// run that process themselves.
    async fn install(&self) {
        let mut documents = vec![
            serde_json::to_value(proxy_operator::api::crd()).expect("the definition as a manifest"),
        ];
        for file in ["namespace.yaml", "serviceaccount.yaml", "rbac.yaml"] {
            documents.extend(manifests::of_base(file));
        }
        for document in documents {
            manifests::apply(&self.admin, &document, false).await;
        }
        self.serves_proxies().await;
        self.admit_operator().await;
    }

    /// Waits until Proxies can be listed.
    pub(crate) async fn serves_proxies(&self) {
        let proxies: Api<proxy_operator::api::Proxy> = Api::all(self.admin.clone());
        eventually(Duration::from_secs(10), "the CRD is served", || async {
            proxies
                .list(&Default::default())
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }

    /// Writes the operator's kubeconfig anew, with a fresh token of its ServiceAccount.
    pub(crate) async fn admit_operator(&self) {
        let config = Kubeconfig::read_from(self.admin_kubeconfig()).expect("a valid kubeconfig");
        let token = token_of(&self.admin, OPERATOR, OPERATOR).await;
        write_config(&self.operator_kubeconfig(), &config, &token);
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
