//! What runs during `dev`, from the cluster to the operator, and its end.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use controller::informer::client::{ClientOptions, connect, load_config};
use devcluster::DevCluster;
use devcluster::echo::{EchoHandle, EchoServer};
use devcluster::kubelet::{Kubelet, KubeletHandle, KubeletOptions};
use devcluster::proxy::{ForwardProxy, ProxyHandle, ProxyOptions};
use kube_client::Client;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{ConfigSource, Options, Timing};

use crate::provider::config::Providers;
use crate::provider::sim::Settings;

use super::console::Console;
use super::folder::Folder;
use super::machines::{Choice, Machines, SIM, SimCloud};
use super::{Error, fleet};

/// Namespace and name of the operator's ServiceAccount, as in `manifests/`.
const OPERATOR: &str = "proxy-operator";
/// User agent of what `dev` itself asks, so that counters tell it from the operator.
const USER_AGENT: &str = concat!("proxy-operator-dev/", env!("CARGO_PKG_VERSION"));
/// Image of the pods; simulated nodes serve the proxy themselves.
const IMAGE: &str = "devcluster/forward-proxy";
/// Address of the proxy behind the External Proxy: not that of any pod.
const EXTERNAL: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// A pod's death is seen by polling, so these are short.
const PROVISIONING_POLL: Duration = Duration::from_secs(1);
const DELETION_POLL: Duration = Duration::from_secs(1);
const DRIFT_POLL: Duration = Duration::from_secs(5);
/// Longest wait for the API server to serve the CRD.
const SERVED_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// What makes machines run.
enum Makers {
    Nodes(KubeletHandle),
    Cloud(SimCloud),
}

/// Which machines the stage has.
pub(super) struct Setting {
    pub(super) choice: Choice,
    /// Of a simulated cloud.
    pub(super) cloud: Settings,
    /// Where the control API of a simulated cloud listens.
    pub(super) admin: SocketAddr,
}

/// Everything that `dev` runs.
pub(super) struct Stage {
    /// An administrator's client, over HTTPS.
    pub(super) client: Client,
    pub(super) echo: EchoHandle,
    /// Where the fleet's machines are looked up.
    pub(super) machines: Machines,
    cluster: DevCluster,
    makers: Makers,
    external: ProxyHandle,
    folder: Folder,
    operator: JoinSet<Result<(), crate::Error>>,
    stop: CancellationToken,
}

impl Stage {
    /// Starts cluster, nodes or cloud, echo server and the proxy behind the External Proxy.
    pub(super) async fn build(
        folder: Folder,
        setting: Setting,
        console: &mut Console,
    ) -> Result<Self, Error> {
        let cluster = DevCluster::builder()
            .start()
            .await
            .map_err(|error| Error::Cluster(Box::new(error)))?;
        cluster
            .write_kubeconfig(folder.kubeconfig())
            .map_err(|error| Error::Cluster(Box::new(error)))?;
        let (machines, makers) = match setting.choice {
            Choice::Kubernetes => {
                let nodes = Kubelet::start(cluster.client(), KubeletOptions::default())
                    .await
                    .map_err(|error| Error::Nodes(Box::new(error)))?;
                (Machines::Pods, Makers::Nodes(nodes))
            }
            Choice::Sim => {
                let cloud = SimCloud::start(setting.cloud, setting.admin).await?;
                (Machines::Sim(cloud.world.clone()), Makers::Cloud(cloud))
            }
        };
        let echo = EchoServer::start().await?;
        let external = ForwardProxy::start(ProxyOptions {
            listen: SocketAddr::from((EXTERNAL, 0)),
            source_ip: Some(EXTERNAL.into()),
            ..ProxyOptions::default()
        })
        .await
        .map_err(|error| Error::External(Box::new(error)))?;
        let source = ConfigSource {
            kubeconfig: Some(folder.kubeconfig()),
            context: None,
        };
        let config = load_config(&source)
            .await
            .map_err(|error| Error::Client(Box::new(error)))?;
        let mut options = ClientOptions::default();
        USER_AGENT.clone_into(&mut options.user_agent);
        let client = connect(config, options).map_err(|error| Error::Client(Box::new(error)))?;
        let maker = match &makers {
            Makers::Nodes(nodes) => format!("nodes {}", nodes.nodes().join(", ")),
            Makers::Cloud(cloud) => {
                format!("a simulated cloud, control API at http://{}", cloud.admin)
            }
        };
        console.timed(&format!(
            "cluster at {} with {maker}; echo server at {}",
            cluster.url(),
            echo.url()
        ))?;
        Ok(Self {
            client,
            echo,
            machines,
            cluster,
            makers,
            external,
            folder,
            operator: JoinSet::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Applies what an administrator applies before an operator runs, the CRD among it.
    pub(super) async fn prepare(&mut self, console: &mut Console) -> Result<(), Error> {
        for object in fleet::prerequisites()? {
            fleet::apply(&self.client, &object).await?;
        }
        let (client, machines) = (self.client.clone(), self.machines.clone());
        self.until("the CRD is served", SERVED_LIMIT, async || {
            let served = fleet::members(&client, &machines, None).await;
            served.map(drop).map_err(|error| error.to_string())
        })
        .await?;
        console.timed("CRD proxies.crawl.proxyoperator.dev applied and served")?;
        Ok(())
    }

    /// Starts the operator and applies the sample fleet.
    pub(super) async fn raise(&mut self, console: &mut Console) -> Result<(), Error> {
        self.start_operator(Timing {
            provisioning_poll: PROVISIONING_POLL,
            deletion_poll: DELETION_POLL,
            drift_poll: DRIFT_POLL,
            ..Timing::default()
        })?;
        let seconds = |time: Duration| format!("{}s", time.as_secs());
        let word = self.machines.word();
        console.timed(&format!(
            "operator runs as system:serviceaccount:{OPERATOR}:{OPERATOR} with \
             --provisioning-poll {} --deletion-poll {} --drift-poll {} (short, since the death of \
             a {word} is seen by polling)",
            seconds(PROVISIONING_POLL),
            seconds(DELETION_POLL),
            seconds(DRIFT_POLL),
        ))?;
        let provider = self.machines.provider();
        for object in fleet::sample(self.external.address(), provider)? {
            fleet::apply(&self.client, &object).await?;
        }
        console.timed("fleet of manifests/samples/fleet.yaml applied: 5 Managed, 1 External")?;
        Ok(())
    }

    /// Starts an operator as it would run anywhere: with a kubeconfig of its ServiceAccount.
    pub(super) fn start_operator(&mut self, timing: Timing) -> Result<(), Error> {
        let token = self
            .cluster
            .service_account_token(OPERATOR, OPERATOR)
            .map_err(|error| Error::Cluster(Box::new(error)))?;
        self.folder
            .write_operator_kubeconfig(&self.cluster.kubeconfig_for(&token))?;
        let providers = match &self.machines {
            Machines::Pods => Providers::default(),
            Machines::Sim(world) => Providers::default().with_world(SIM, world.clone()),
        };
        let options = Options {
            cluster: ConfigSource {
                kubeconfig: Some(self.folder.operator_kubeconfig()),
                context: None,
            },
            timing,
            default_proxy_image: Some(IMAGE.to_owned()),
            providers,
            ..Options::default()
        };
        self.operator.spawn(crate::run(options, self.stop.clone()));
        Ok(())
    }

    /// Ends the operator as a crash does: at its next await, with nothing put in order.
    pub(super) async fn crash_operator(&mut self) {
        self.operator.shutdown().await;
    }

    /// Where the control API of the simulated cloud answers, if there is one.
    pub(super) fn sim_admin(&self) -> Option<SocketAddr> {
        match &self.makers {
            Makers::Cloud(cloud) => Some(cloud.admin),
            Makers::Nodes(_) => None,
        }
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(super) fn url(&self) -> String {
        self.cluster.url()
    }

    /// Machines that serve a real proxy now.
    pub(super) fn n_serving(&self) -> usize {
        match &self.makers {
            Makers::Nodes(nodes) => nodes.proxies().len(),
            Makers::Cloud(cloud) => cloud.n_serving(),
        }
    }

    /// Looks until it holds; fails after the limit with what is missing, or with the operator.
    pub(super) async fn until<T>(
        &mut self,
        step: &'static str,
        limit: Duration,
        look: impl AsyncFn() -> Result<T, String>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + limit;
        loop {
            let looked = tokio::select! {
                looked = look() => looked,
                Some(ended) = self.operator.join_next() => return Err(ended_early(ended)),
            };
            match looked {
                Ok(value) => return Ok(value),
                Err(last) if Instant::now() >= deadline => {
                    return Err(Error::not_so(step, limit, last));
                }
                Err(_) => sleep(LOOK).await,
            }
        }
    }

    /// Resolves when the operator ends by itself.
    pub(super) async fn operator_ended(&mut self) -> Error {
        match self.operator.join_next().await {
            Some(ended) => ended_early(ended),
            None => std::future::pending().await,
        }
    }

    /// Stops the operator, then machines and cluster, and removes the files.
    pub(super) async fn shutdown(mut self) -> Result<(), Error> {
        self.stop.cancel();
        let mut outcome = Ok(());
        while let Some(ended) = self.operator.join_next().await {
            if !matches!(ended, Ok(Ok(()))) {
                outcome = Err(ended_early(ended));
            }
        }
        match self.makers {
            Makers::Nodes(nodes) => nodes.shutdown().await,
            Makers::Cloud(cloud) => cloud.shutdown().await,
        }
        self.external.shutdown(Duration::ZERO).await;
        self.cluster.shutdown().await;
        outcome
    }
}

fn ended_early(ended: Result<Result<(), crate::Error>, tokio::task::JoinError>) -> Error {
    match ended {
        Ok(Err(error)) => Error::Operator(Box::new(error)),
        Ok(Ok(())) | Err(_) => Error::OperatorGone,
    }
}
