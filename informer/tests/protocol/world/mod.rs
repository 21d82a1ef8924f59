//! An API server behind a fault proxy, with a namespace for one scenario.

mod real;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use devcluster::DevCluster;
use devcluster::faults::{FaultProxy, Faults};
use informer::client::{self, ClientOptions};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube_client::api::{Api, PostParams};
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::{Client, Config};
use parking_lot::Mutex;

use self::real::Lease;
use crate::follower::eventually;

/// How a client names itself; no two are named alike, so that fault rules can tell them apart.
#[derive(Clone, Debug)]
pub(crate) struct Agent(pub(crate) String);

impl Agent {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // The end mark keeps a rule for the first from the eleventh.
        Self(format!(
            "informer-test/{}.",
            NEXT.fetch_add(1, Ordering::Relaxed)
        ))
    }
}

/// What a scenario does to the real server, which all share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Requests alone.
    Shared,
    /// It goes down, or loses state: others wait.
    Alone,
}

enum Server {
    /// None while it has lost its state and has not begun anew.
    Embedded(Box<tokio::sync::Mutex<Option<DevCluster>>>),
    Real(Lease),
}

/// A part of a server that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    ApiServer,
    /// The embedded server keeps its objects itself, and has no such part.
    Storage,
}

pub(crate) struct World {
    server: Server,
    proxy: FaultProxy,
    config: Mutex<Config>,
    admin: Mutex<Client>,
    pub(crate) namespace: String,
}

impl World {
    pub(crate) async fn embedded() -> Self {
        let cluster = DevCluster::builder().start().await.unwrap();
        let config = cluster.client_config().await.unwrap();
        let cluster = tokio::sync::Mutex::new(Some(cluster));
        Self::prepare(Server::Embedded(Box::new(cluster)), config).await
    }

    /// A lease on the real server; `None`, and it says so, where that is not built.
    pub(crate) async fn real(uses: Use) -> Option<Self> {
        let Some(lease) = real::lease(uses).await else {
            eprintln!("skipped: no real API server is built (see tests/realcluster)");
            return None;
        };
        let config = load(lease.kubeconfig()).await;
        Some(Self::prepare(Server::Real(lease), config).await)
    }

    async fn prepare(server: Server, config: Config) -> Self {
        let admin = plain(&config);
        let proxy = FaultProxy::start(admin.clone()).await.unwrap();
        let world = Self {
            server,
            proxy,
            config: Mutex::new(config),
            admin: Mutex::new(admin),
            namespace: format!("p-{:08x}", rand::random::<u32>()),
        };
        world.wait_until_ready().await;
        world
    }

    /// An administrator's client that reaches the server without the proxy.
    pub(crate) fn admin(&self) -> Client {
        self.admin.lock().clone()
    }

    /// Objects of a kind in the scenario's namespace, for the administrator.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube_core::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.admin(), &self.namespace)
    }

    pub(crate) fn faults(&self) -> &Faults {
        self.proxy.faults()
    }

    /// A client of this crate's own stack that goes through the proxy.
    pub(crate) fn client(&self, agent: &Agent) -> Client {
        stack(Config::new(self.proxy.url().parse().unwrap()), agent)
    }

    /// How the administrator reaches the server itself, by TLS.
    pub(crate) fn config(&self) -> Config {
        self.config.lock().clone()
    }

    /// A client of this crate's own stack that meets the server itself, by TLS.
    pub(crate) fn direct_client(&self) -> Client {
        stack(self.config.lock().clone(), &Agent::new())
    }

    /// Makes the server forget every state but the newest: watches and pages from before are refused.
    pub(crate) async fn forget(&self) {
        match &self.server {
            Server::Embedded(cluster) => {
                let cluster = cluster.lock().await;
                let cluster = cluster.as_ref().unwrap();
                cluster.compact();
                cluster.trim_history();
            }
            Server::Real(lease) => {
                lease.compact().await;
                // The watch cache still knows; it begins at the newest state.
                lease.kill("kube-apiserver").await;
                lease.start("kube-apiserver").await;
                self.wait_until_ready().await;
            }
        }
    }

    /// Kills a part of the server; false where there is no such part.
    pub(crate) async fn kill(&self, part: Part) -> bool {
        match (&self.server, part) {
            (Server::Embedded(cluster), Part::ApiServer) => {
                cluster.lock().await.as_mut().unwrap().take_down().await;
            }
            (Server::Embedded(_), Part::Storage) => return false,
            (Server::Real(lease), Part::ApiServer) => lease.kill("kube-apiserver").await,
            (Server::Real(lease), Part::Storage) => lease.kill("etcd").await,
        }
        true
    }

    /// Starts a part that was killed, on the same data; does not wait until it serves.
    pub(crate) async fn start(&self, part: Part) {
        match (&self.server, part) {
            (Server::Embedded(cluster), Part::ApiServer) => {
                cluster
                    .lock()
                    .await
                    .as_mut()
                    .unwrap()
                    .restart()
                    .await
                    .unwrap();
            }
            (Server::Embedded(_), Part::Storage) => {}
            (Server::Real(lease), Part::ApiServer) => lease.start("kube-apiserver").await,
            (Server::Real(lease), Part::Storage) => lease.start("etcd").await,
        }
    }

    /// The server dies and comes back without any object, at revisions from the beginning.
    pub(crate) async fn lose_state(&self) {
        match &self.server {
            Server::Embedded(cluster) => {
                let mut cluster = cluster.lock().await;
                if let Some(mut old) = cluster.take() {
                    old.take_down().await;
                }
                let new = DevCluster::builder().start().await.unwrap();
                let config = new.client_config().await.unwrap();
                let admin = plain(&config);
                self.proxy.set_upstream(admin.clone());
                *self.config.lock() = config;
                *self.admin.lock() = admin;
                *cluster = Some(new);
            }
            Server::Real(lease) => {
                lease.erase().await;
                lease.start("etcd").await;
                lease.start("kube-apiserver").await;
            }
        }
        self.wait_until_ready().await;
    }

    /// Waits until the server serves and the scenario's namespace exists.
    pub(crate) async fn wait_until_ready(&self) {
        eventually(Duration::from_secs(60), "the server is ready", async || {
            let ready = http::Request::get("/readyz").body(Vec::new()).unwrap();
            let answer = self.admin().request_text(ready).await;
            answer.map_err(|error| error.to_string())
        })
        .await;
        let api: Api<Namespace> = Api::all(self.admin());
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(self.namespace.clone());
        eventually(Duration::from_secs(20), "the namespace", async || match api
            .create(&PostParams::default(), &namespace)
            .await
        {
            Ok(_) => Ok(()),
            Err(kube_client::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(error.to_string()),
        })
        .await;
    }

    pub(crate) async fn shutdown(self) {
        self.proxy.shutdown().await;
        if let Server::Embedded(cluster) = self.server
            && let Some(cluster) = cluster.into_inner()
        {
            cluster.shutdown().await;
        }
    }
}

async fn load(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap()
}

fn stack(config: Config, agent: &Agent) -> Client {
    let options = ClientOptions {
        user_agent: agent.0.clone(),
        // Longer than a real server takes to start.
        watch_open_timeout: Duration::from_secs(60),
        ..ClientOptions::default()
    };
    client::connect(config, options).unwrap()
}

/// A client that hands on every answer, failures too.
fn plain(config: &Config) -> Client {
    let mut config = config.clone();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}
