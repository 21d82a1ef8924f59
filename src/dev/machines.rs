//! Where the fleet's machines come from: pods of the simulated nodes, or a simulated cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use devcluster::proxy::{Credentials, ForwardProxy, ProxyHandle, ProxyOptions};
use k8s_openapi::api::core::v1::Pod;
use kube_client::api::{DeleteParams, ListParams};
use kube_client::{Api, Client};
use rand::Rng as _;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Error;
use super::fleet::NAMESPACE;
use super::socks::{SocksOptions, SocksProxy};
use crate::api::Protocol;
use crate::provider::kubernetes::pod::LABEL_PROXY;
use crate::provider::sim::admin::Admin;
use crate::provider::sim::{Service, Settings, World};

/// Name of the provider of simulated machines.
pub(super) const SIM: &str = "sim";
/// How often the machines are looked at that are to serve.
const LOOK: Duration = Duration::from_millis(20);

/// Machines of each Proxy that are not being deleted, by namespace and name.
pub(super) type ByProxy = BTreeMap<(String, String), Vec<String>>;

/// What `--provider` may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Choice {
    /// Pods of the simulated nodes.
    #[default]
    Kubernetes,
    /// Machines of a simulated cloud.
    Sim,
}

/// Where machines are looked up and struck.
#[derive(Clone, Debug)]
pub(super) enum Machines {
    /// Among the pods.
    Pods,
    /// In the simulated cloud.
    Sim(World),
}

impl Machines {
    /// Name of the provider that makes them.
    pub(super) fn provider(&self) -> &'static str {
        match self {
            Self::Pods => crate::provider::config::DEFAULT_NAME,
            Self::Sim(_) => SIM,
        }
    }

    /// What one of them is called.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Pods => "pod",
            Self::Sim(_) => "machine",
        }
    }

    /// The machines that are there and stay.
    pub(super) async fn by_proxy(
        &self,
        client: &Client,
        namespace: Option<&str>,
    ) -> kube_client::Result<ByProxy> {
        let mut found = ByProxy::new();
        match self {
            Self::Sim(world) => {
                for (owner, machine) in world.all() {
                    if !machine.deleting && namespace.is_none_or(|only| only == owner.namespace) {
                        let machines = found.entry((owner.namespace, owner.proxy)).or_default();
                        machines.push(machine.incarnation.as_str().to_owned());
                    }
                }
            }
            Self::Pods => {
                let pods: Api<Pod> = match namespace {
                    Some(namespace) => Api::namespaced(client.clone(), namespace),
                    None => Api::all(client.clone()),
                };
                let labelled = ListParams::default().labels(LABEL_PROXY);
                for pod in pods.list(&labelled).await? {
                    let labels = pod.metadata.labels.unwrap_or_default();
                    if let (Some(namespace), Some(proxy), Some(uid), None) = (
                        pod.metadata.namespace,
                        labels.get(LABEL_PROXY),
                        pod.metadata.uid,
                        pod.metadata.deletion_timestamp,
                    ) {
                        let machines = found.entry((namespace, proxy.clone())).or_default();
                        machines.push(uid);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Takes the machine of a Proxy of the fleet away, as a user or an outage would.
    pub(super) async fn lose(&self, client: &Client, proxy: &str) -> Result<(), Error> {
        match self {
            Self::Sim(world) => {
                for (owner, _) in world.all() {
                    if owner.namespace == NAMESPACE && owner.proxy == proxy {
                        world.vanish(&owner.instance_name());
                    }
                }
                Ok(())
            }
            Self::Pods => {
                let what = format!("delete the pod of {proxy}");
                let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
                let selector = format!("{LABEL_PROXY}={proxy}");
                let found = pods
                    .list(&ListParams::default().labels(&selector))
                    .await
                    .map_err(Error::api(&what))?;
                for pod in found {
                    let name = pod.metadata.name.unwrap_or_default();
                    let _deleted = pods
                        .delete(&name, &DeleteParams::default())
                        .await
                        .map_err(Error::api(&what))?;
                }
                Ok(())
            }
        }
    }

    /// How many are left, those that go included.
    pub(super) async fn n_left(&self, client: &Client) -> kube_client::Result<usize> {
        match self {
            Self::Sim(world) => Ok(world.count()),
            Self::Pods => {
                let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
                Ok(pods.list(&ListParams::default()).await?.items.len())
            }
        }
    }
}

/// A simulated cloud whose machines really serve, with its control API.
#[derive(Debug)]
pub(super) struct SimCloud {
    pub(super) world: World,
    /// Where the control API answers.
    pub(super) admin: SocketAddr,
    n_serving: Arc<AtomicUsize>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    /// Holds the addresses of the machines for as long as it is there.
    _claim: UdpSocket,
}

impl SimCloud {
    /// An empty cloud; `admin` is where its control API listens.
    pub(super) async fn start(settings: Settings, admin: SocketAddr) -> Result<Self, Error> {
        let (claim, network) = claim().map_err(Error::Addresses)?;
        let world = World::new(Settings {
            network,
            serve: true,
            ..settings
        });
        let worlds = BTreeMap::from([(SIM.to_owned(), world.clone())]);
        let api = Admin::bind(admin, worlds)
            .await
            .map_err(|error| Error::Admin(Box::new(error)))?;
        let admin = api.address();
        let (stop, n_serving) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(tend(world.clone(), Arc::clone(&n_serving), stop.clone()));
        tasks.spawn({
            let stop = stop.clone();
            async move {
                if let Err(error) = api.run(stop).await {
                    tracing::error!(%error, "the control API broke");
                }
            }
        });
        Ok(Self {
            world,
            admin,
            n_serving,
            stop,
            tasks,
            _claim: claim,
        })
    }

    /// Machines that serve a proxy now.
    pub(super) fn n_serving(&self) -> usize {
        self.n_serving.load(Ordering::Relaxed)
    }

    pub(super) async fn shutdown(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A block of loopback addresses that nobody else on this machine takes machines' addresses from,
/// held by a socket as simulated nodes hold theirs.
fn claim() -> std::io::Result<(UdpSocket, Ipv4Addr)> {
    const BASE: u32 = u32::from_be_bytes([127, 64, 0, 0]);
    const BLOCK: u32 = 1 << 12;
    const BLOCKS: u32 = (1 << 22) / BLOCK;
    const PORT: u16 = 10250;
    let mut tries = 0;
    loop {
        let block = rand::rng().random_range(0..BLOCKS);
        let network = Ipv4Addr::from(BASE + block * BLOCK);
        match UdpSocket::bind((network, PORT)) {
            Ok(socket) => return Ok((socket, network)),
            Err(error) if tries == BLOCKS => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

/// The proxy of one machine; dropping it closes it at once.
#[derive(Debug)]
enum Server {
    Http { _proxy: ProxyHandle },
    Socks { _proxy: SocksProxy },
}

impl Server {
    async fn start(service: &Service) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let listen = SocketAddr::from((service.address, service.port));
        let credentials = service.credentials.as_ref().map(|credentials| {
            let name = credentials.username.expose();
            Credentials::new(name, credentials.password.expose())
        });
        let source_ip = Some(service.address.into());
        if service.protocol == Protocol::Socks5 {
            let options = SocksOptions {
                listen,
                source: service.address,
                credentials: service.credentials.clone(),
            };
            let proxy = SocksProxy::start(options).await?;
            return Ok(Self::Socks { _proxy: proxy });
        }
        let options = ProxyOptions {
            listen,
            source_ip,
            auth: credentials,
            ..ProxyOptions::default()
        };
        let proxy = ForwardProxy::start(options).await?;
        Ok(Self::Http { _proxy: proxy })
    }
}

/// Lets each machine that is to serve do so, and no other, until `stop`.
async fn tend(world: World, n_serving: Arc<AtomicUsize>, stop: CancellationToken) {
    let mut running: BTreeMap<u64, Server> = BTreeMap::new();
    let mut refused: BTreeSet<u64> = BTreeSet::new();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let wanted = world.services();
        let numbers: BTreeSet<u64> = wanted.iter().map(|service| service.number).collect();
        running.retain(|number, _| numbers.contains(number));
        refused.retain(|number| numbers.contains(number));
        for service in &wanted {
            if running.contains_key(&service.number) {
                continue;
            }
            match Server::start(service).await {
                Ok(server) => {
                    running.insert(service.number, server);
                    world.listening(service.number);
                }
                // Tried again with each look; the machine comes up once it can.
                Err(error) if refused.insert(service.number) => {
                    tracing::warn!(%error, address = %service.address, "a machine cannot serve");
                }
                Err(_) => {}
            }
        }
        n_serving.store(running.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use devcluster::echo::{Call, EchoServer};
    use devcluster::proxy::ProxyClient;

    use super::*;
    use crate::provider::conformance::{owner, request};
    use crate::provider::sim::SimProvider;
    use crate::provider::{InstanceState, Provider as _, Redacted, SecretKey};

    /// A cloud with the machine of `u-1` up, and the address that it serves at.
    async fn up(
        change: impl FnOnce(&mut crate::provider::CreateRequest),
    ) -> (SimCloud, SocketAddr) {
        let settings = Settings {
            boot: Duration::ZERO..Duration::ZERO,
            ..Settings::default()
        };
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let cloud = SimCloud::start(settings, anywhere).await.expect("starts");
        let mut wanted = request("u-1");
        change(&mut wanted);
        let sim = SimProvider::new(cloud.world.clone());
        sim.create(&wanted).await.expect("made");
        let machine = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                let seen = cloud.world.find(&owner("u-1")).expect("there");
                if seen.state == InstanceState::Running {
                    return seen;
                }
                tokio::time::sleep(LOOK).await;
            }
        })
        .await
        .expect("it serves, so it runs");
        let ip = machine.ip().expect("an address").parse().expect("an IP");
        (cloud, SocketAddr::new(ip, wanted.port))
    }

    #[tokio::test]
    async fn p30_a_simulated_machine_really_serves_from_its_own_address_until_it_is_gone() {
        let (cloud, address) = up(|_| {}).await;
        let echo = EchoServer::start().await.expect("echo");
        let url = format!("{}/x", echo.url());
        let through = ProxyClient::new(address.to_string(), None);
        let answer = through.get(&url).await.expect("an answer");
        let call: Call = serde_json::from_slice(&answer.body).expect("the echo's");
        assert_eq!(call.ip, address.ip());
        cloud.world.vanish(&owner("u-1").instance_name());
        tokio::time::timeout(Duration::from_secs(20), async {
            while through.get(&url).await.is_ok() {
                tokio::time::sleep(LOOK).await;
            }
        })
        .await
        .expect("nobody answers for a machine that is gone");
        assert_eq!(cloud.n_serving(), 0);
        cloud.shutdown().await;
    }

    #[tokio::test]
    async fn p30_a_machine_of_protocol_socks5_speaks_it_and_asks_for_the_credentials() {
        use fast_socks5::client::{Config, Socks5Stream};
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let key = |key: &str| SecretKey {
            name: "users".to_owned(),
            key: key.to_owned(),
        };
        let (cloud, address) = up(|wanted| {
            wanted.protocol = Protocol::Socks5;
            wanted.credentials = Some(crate::provider::Credentials {
                username: Redacted::new(b"crawler".to_vec()),
                password: Redacted::new(b"sample".to_vec()),
                username_source: key("username"),
                password_source: key("password"),
            });
        })
        .await;
        let echo = EchoServer::start().await.expect("echo");
        let target: SocketAddr = echo
            .url()
            .trim_start_matches("http://")
            .parse()
            .expect("an address");
        let connect = async |password: &str| {
            Socks5Stream::connect_with_password(
                address,
                target.ip().to_string(),
                target.port(),
                "crawler".to_owned(),
                password.to_owned(),
                Config::default(),
            )
            .await
        };
        assert!(connect("wrong").await.is_err());
        let mut stream = connect("sample").await.expect("a tunnel");
        stream
            .write_all(b"GET /x HTTP/1.1\r\nhost: echo\r\nconnection: close\r\n\r\n")
            .await
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(body.contains(&address.ip().to_string()), "{answer}");
        cloud.shutdown().await;
    }
}
