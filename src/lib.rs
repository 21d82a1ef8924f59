//! The proxy operator: fleets of forward proxies as `Proxy` objects of a Kubernetes cluster.
//!
//! ```text
//!            list + watch                 namespace/name             create, get, delete
//!  API ───▶ Proxy informer ─┐                                      ┌──▶ Provider ──▶ pods
//!  server                   ├─▶ workqueue ─▶ ProxyReconciler ──────┤
//!    ▲  ──▶ Secret informer ┘    (dedup,      plan (pure) → effect └──▶ live reads of Secrets
//!    │      (metadata only,       backoff)          │
//!    │       mapped by index)                       │
//!    └── finalizer, spec-hash annotation, one status patch ◀────────────┘
//! ```
//!
//! [`run`] is the whole operator. It is called by the subcommand `run` and, against the embedded
//! development cluster, by `dev`; both know the cluster by address and credentials only.
//!
//! - [`api`]: the Proxy resource; no IO.
//! - [`controller`]: what is done with a Proxy, and when.
//! - [`provider`]: where machines come from.
//! - [`orphans`]: instances that no Proxy stands behind any more.
//! - [`operations`]: leader election, health and metrics endpoints.
//! - [`definition`]: the cluster's resource definition beside that of this program.
//! - [`cli`], [`commands`], [`telemetry`]: the rim of the program.
//!
//! Guarantees:
//!
//! - At most one live instance for each UID of a Proxy, whenever the process dies.
//! - A Managed Proxy goes only after its instance, or after the user let the instance go.
//! - A settled fleet causes no write.
//! - No content of a Secret in a cache, log line, condition or error.
//!
//! Not guaranteed: two operators of the same cluster id at the same time do no harm to instances,
//! but they do each other's work twice. Instances whose Proxy was deleted by force are left behind
//! unless orphans are told to go.
//!
//! Features: `dev` (default) builds the embedded cluster and the subcommand `dev`; `gce` the provider of
//! VMs on Google Compute Engine; `testing` keeps the crash points of [`crash`] in a release build.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub mod api;
pub mod cli;
mod cluster;
pub mod commands;
pub mod controller;
pub mod crash;
pub mod definition;
#[cfg(feature = "dev")]
pub mod dev;
mod effective;
mod events;
pub mod operations;
pub mod orphans;
pub mod provider;
mod refused;
mod secret;
pub mod telemetry;

pub use ::controller::informer::client::ConfigSource;
pub use cluster::{CONFIG_MAP, Error as ClusterError, KEY as CLUSTER_ID_KEY};
pub use controller::Timing;
pub use refused::Refused;

use ::controller::informer::client::{self, ClientOptions};
use controller::{Operator, Parts};
use operations::Operations;
use provider::config::Providers;
use provider::sim::admin::Admin;

/// What the operator calls itself to API servers.
const USER_AGENT: &str = concat!("proxy-operator/", env!("CARGO_PKG_VERSION"));

/// How the operator runs; [`Options::default`] is what `proxy-operator run` does without a flag.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where address and credentials of the cluster come from: a named kubeconfig, else the
    /// cluster this process runs in, else `KUBECONFIG` or `~/.kube/config`.
    pub cluster: ConfigSource,
    /// Proxies worked on at the same time. Default 3.
    pub workers: usize,
    /// Polls, retries and timeouts.
    pub timing: Timing,
    /// Marks the instances of this cluster: 1 to 63 of a-z, 0-9, `-` and `_`. Default is the UID
    /// of namespace kube-system, which the operator then needs to read.
    pub cluster_id: Option<String>,
    /// Container image of the Proxies on pods that name none.
    pub default_proxy_image: Option<String>,
    /// The providers by name. Default is one, `kubernetes`.
    pub providers: Providers,
    /// How long API server and informers may take to answer before [`run`] gives up. Default
    /// 2 min.
    pub sync_timeout: Duration,
    /// How long running passes may take to end once a stop is asked for. Default 20 s.
    pub grace: Duration,
    /// Leader election and endpoints. Default none.
    pub operations: Operations,
    /// How orphans are collected. By default they are reported and stay.
    pub orphans: orphans::Settings,
    /// The namespaces whose Proxies are looked after. Default is none named, which means all of them.
    /// With some, the operator asks for no right on the whole cluster, and needs
    /// [`Options::cluster_id`].
    pub namespaces: Vec<String>,
    /// Loopback address of the control API of the simulated providers
    /// ([`provider::sim::admin`]). Default none.
    pub sim_admin: Option<SocketAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cluster: ConfigSource::default(),
            workers: 3,
            timing: Timing::default(),
            cluster_id: None,
            default_proxy_image: None,
            providers: Providers::default(),
            sync_timeout: Duration::from_secs(120),
            grace: Duration::from_secs(20),
            operations: Operations::default(),
            orphans: orphans::Settings::default(),
            namespaces: Vec::new(),
            sim_admin: None,
        }
    }
}

/// Why the program ended otherwise than asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Address or credentials of the API server are missing or of no use.
    #[error("no access to a cluster; name one by --kubeconfig or KUBECONFIG")]
    Client(#[from] client::Error),
    /// The cluster did not tell its id.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The controller failed.
    #[error(transparent)]
    Controller(#[from] Box<controller::Error>),
    /// The control API of the simulated providers cannot be served.
    #[error("serve the control API of the simulated providers")]
    SimAdmin(#[from] provider::sim::admin::Error),
    /// Logging did not start.
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    /// Signals cannot be caught.
    #[error("catch SIGINT and SIGTERM")]
    Signals(#[from] ::controller::signals::Error),
    /// The subcommand `gc` failed.
    #[error(transparent)]
    Orphans(#[from] Box<orphans::command::Error>),
    /// The cluster's definition of the Proxy resource is of no use.
    #[error(transparent)]
    Definition(#[from] definition::Error),
    /// A command other than `run` and `dev` failed.
    #[error(transparent)]
    Command(#[from] commands::Error),
    /// The subcommand `dev` failed.
    #[cfg(feature = "dev")]
    #[error(transparent)]
    Dev(#[from] Box<dev::Error>),
}

impl Error {
    /// The error and all its causes in one line, each said once; the last word of a program.
    #[must_use]
    pub fn line(&self) -> String {
        refused::chain(self)
    }
}

/// Runs the operator until `stop` is cancelled, then ends within [`Options::grace`].
///
/// Retries with backoff while the API server does not answer, with one log line for each cause,
/// and gives up after [`Options::sync_timeout`]. Afterwards an API server that goes away is waited
/// for without end.
///
/// Cancellation safety: dropping the future drops all work at its next await point; what that
/// leaves behind is what a crash would leave, and the next run picks it up.
///
/// # Errors
///
/// [`Error::Client`] without usable address, credentials or certificates; [`Error::Cluster`]
/// without an answer or a cluster id; [`Error::Definition`] where the cluster's definition is older
/// than this program's; [`Error::Controller`] naming kind and cause if an informer
/// did not sync in time.
///
/// # Examples
///
/// ```no_run
/// use proxy_operator::{ConfigSource, Options};
///
/// # async fn example() -> Result<(), proxy_operator::Error> {
/// let stop = tokio_util::sync::CancellationToken::new();
/// let cluster = ConfigSource { kubeconfig: Some("/tmp/kubeconfig".into()), context: None };
/// proxy_operator::run(Options { cluster, ..Options::default() }, stop).await
/// # }
/// ```
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), Error> {
    let config = client::load_config(&options.cluster).await?;
    let server = config.cluster_url.to_string();
    let mut client_options = ClientOptions::default();
    USER_AGENT.clone_into(&mut client_options.user_agent);
    let client = client::connect(config, client_options)?;
    let cluster_id = match options.cluster_id {
        Some(id) => Some(Arc::from(id)),
        None => cluster::id(&client, options.sync_timeout, &stop).await?,
    };
    let Some(cluster_id) = cluster_id else {
        return Ok(());
    };
    // Without a right on the cluster the definition cannot be read.
    if options.namespaces.is_empty() {
        definition::check(&client, options.sync_timeout, &stop).await?;
    }
    let mut configured = options.providers;
    let admin = match options.sim_admin {
        Some(address) => Some(Admin::bind(address, configured.worlds()).await?),
        None => None,
    };
    let default_image = options.default_proxy_image.as_deref();
    let providers = configured.build(&client, default_image, &options.namespaces);
    let store = cluster::Store::new(client.clone(), options.operations.namespace(&client));
    let settled = store.settle(&cluster_id, &providers, options.sync_timeout, &stop);
    if settled.await?.is_none() {
        return Ok(());
    }
    tracing::info!(server, cluster_id = &*cluster_id, "operator starts");
    let operator = Operator::build(Parts {
        client,
        providers,
        cluster_id,
        workers: options.workers,
        timing: options.timing,
        sync_timeout: options.sync_timeout,
        grace: options.grace,
        operations: options.operations,
        orphans: options.orphans,
        store,
        namespaces: options.namespaces,
    })
    .map_err(Box::new)?;
    let operator = match admin {
        Some(admin) => operator.with_task("sim-admin", |stop| admin.run(stop)),
        None => operator,
    };
    operator.run(stop).await.map_err(Box::new)?;
    Ok(())
}

/// Compiles the code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
