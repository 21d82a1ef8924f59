//! What runs beside the controller: leader election, health and metrics endpoints.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller::Manager;
use controller::election::{self, ElectionHandle, ElectionOptions, Elector};
use controller::server::{
    self, Diagnostics, HttpServer, MetricsPage, ServerOptions, TlsFiles, TokenAuth, liveness,
    readiness,
};
use kube_client::Client;

/// Name of the Lease of all operators of a cluster (O-02).
pub const LEASE: &str = "proxy-operator";

/// Time that must be left of a term before something is begun that no later pass could take back.
const MARGIN: Duration = Duration::from_secs(1);

/// A reconcile that runs for longer than this makes the operator unhealthy. Every call in it has a
/// deadline of at most 30 s, so one that takes this long will not end by itself.
pub(crate) const LONGEST_RUN: Duration = Duration::from_secs(15 * 60);

/// Why election or endpoints could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The election's settings do not work.
    #[error(transparent)]
    Election(Box<election::Error>),
    /// An endpoint cannot listen.
    #[error("serve {what}")]
    Server {
        /// Which one.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<server::Error>,
    },
}

/// What runs beside the controller. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Namespace of the operator's own objects. Default is that of the kubeconfig or ServiceAccount.
    pub namespace: Option<String>,
    /// Lets one of several operators work at a time. Default none: work at once.
    pub election: Option<Election>,
    /// Where `/healthz` and `/readyz` are served. Default nowhere.
    pub health_address: Option<SocketAddr>,
    /// Where `/metrics` and `/debug/state` are served. Default nowhere.
    pub metrics_address: Option<SocketAddr>,
    /// Folder with `tls.crt` and `tls.key`, with which metrics are served. Default none: plain HTTP.
    pub metrics_tls: Option<PathBuf>,
    /// Whether only those read metrics whom the API server knows by their token and allows to.
    pub metrics_auth: bool,
}

/// How operators agree on one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Namespace of the Lease. Default is that of the kubeconfig or ServiceAccount.
    pub namespace: Option<String>,
    /// How long the others wait after the last renewal that they saw. Default 15 s.
    pub lease_duration: Duration,
    /// How long the leader goes on without a renewal. Default 10 s.
    pub renew_deadline: Duration,
    /// Wait between two tries. Default 2 s.
    pub retry_period: Duration,
}

impl Default for Election {
    fn default() -> Self {
        let ElectionOptions {
            lease_duration,
            renew_deadline,
            retry_period,
            ..
        } = ElectionOptions::new("", "");
        Self {
            namespace: None,
            lease_duration,
            renew_deadline,
            retry_period,
        }
    }
}

impl Election {
    /// The options of an elector of this process.
    #[must_use]
    pub fn options(&self, default_namespace: &str) -> ElectionOptions {
        let namespace = self.namespace.as_deref().unwrap_or(default_namespace);
        ElectionOptions {
            lease_duration: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
            ..ElectionOptions::new(namespace, LEASE)
        }
    }
}

impl Operations {
    /// The elector, if there is to be an election.
    pub(crate) fn elector(&self, client: &Client) -> Result<Option<Elector>, Error> {
        let Some(election) = &self.election else {
            return Ok(None);
        };
        let options = election.options(client.default_namespace());
        let elector = Elector::new(client.clone(), options);
        elector
            .map(Some)
            .map_err(|error| Error::Election(Box::new(error)))
    }

    /// The namespace of the operator's own objects, the Lease among them.
    pub(crate) fn namespace<'a>(&'a self, client: &'a Client) -> &'a str {
        let named = self.namespace.as_deref();
        named.unwrap_or_else(|| client.default_namespace())
    }

    /// Adds the endpoints to `manager`; they listen from here on. `page` is what metrics have beside
    /// those of the framework, in the Prometheus text format.
    pub(crate) fn serve(
        &self,
        manager: Manager,
        client: &Client,
        page: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Manager, Error> {
        let directory = manager.directory();
        let bind = |what, options| {
            HttpServer::bind(options).map_err(|source| Error::Server {
                what,
                source: Box::new(source),
            })
        };
        let mut manager = manager;
        if let Some(address) = self.health_address {
            let server = bind("health", ServerOptions::on(address))?
                .route("/healthz", liveness(&directory))
                .route("/readyz", readiness(&directory));
            manager = manager.add_server(server);
        }
        if let Some(address) = self.metrics_address {
            let tls = self.metrics_tls.as_ref().map(|folder| TlsFiles {
                certificate: folder.join("tls.crt"),
                key: folder.join("tls.key"),
            });
            let options = ServerOptions {
                tls,
                ..ServerOptions::on(address)
            };
            let mut server = bind("metrics", options)?
                .route("/metrics", MetricsPage::of(&directory).and(page))
                .route("/debug/state", Diagnostics::of(&directory));
            if self.metrics_auth {
                server = server.with_auth(TokenAuth::new(client.clone()));
            }
            manager = manager.add_server(server);
        }
        Ok(manager)
    }
}

/// Tells whether this process leads and can be sure of it for a moment more; always without an
/// election.
pub(crate) fn leads(election: Option<ElectionHandle>) -> Arc<dyn Fn() -> bool + Send + Sync> {
    match election {
        None => Arc::new(|| true),
        Some(election) => Arc::new(move || election.remaining() >= MARGIN),
    }
}

/// Flags about leader election and endpoints.
#[derive(Debug, clap::Args)]
pub struct OperationsArgs {
    /// Work only while this process holds the Lease proxy-operator; needed with several replicas.
    #[arg(long, env = "PXO_LEADER_ELECT")]
    leader_elect: bool,

    /// Namespace of the Lease and of the operator's ConfigMap; default is that of the kubeconfig or
    /// ServiceAccount.
    #[arg(long, value_name = "NAMESPACE", env = "PXO_LEADER_ELECT_NAMESPACE")]
    leader_elect_namespace: Option<String>,

    /// How long others wait after the last renewal of the Lease that they saw; whole seconds.
    #[arg(long, value_name = "TIME", env = "PXO_LEADER_ELECT_LEASE_DURATION",
          default_value = "15s", value_parser = crate::cli::between("1s", "1h"))]
    leader_elect_lease_duration: Duration,

    /// How long the leader goes on without a renewal; less than the lease duration.
    #[arg(long, value_name = "TIME", env = "PXO_LEADER_ELECT_RENEW_DEADLINE",
          default_value = "10s", value_parser = crate::cli::between("100ms", "1h"))]
    leader_elect_renew_deadline: Duration,

    /// Wait between two renewals, and between two tries of the others.
    #[arg(long, value_name = "TIME", env = "PXO_LEADER_ELECT_RETRY_PERIOD",
          default_value = "2s", value_parser = crate::cli::between("10ms", "1h"))]
    leader_elect_retry_period: Duration,

    /// Address and port for /healthz and /readyz, such as 0.0.0.0:8081; default is none.
    #[arg(long, value_name = "ADDRESS", env = "PXO_HEALTH_ADDRESS", value_parser = address)]
    health_address: Option<SocketAddr>,

    /// Address and port for /metrics and /debug/state, such as 127.0.0.1:8080; default is none.
    #[arg(long, value_name = "ADDRESS", env = "PXO_METRICS_ADDRESS", value_parser = address)]
    metrics_address: Option<SocketAddr>,

    /// Folder with tls.crt and tls.key, with which metrics are served; default is plain HTTP.
    #[arg(
        long,
        value_name = "FOLDER",
        env = "PXO_METRICS_TLS",
        requires = "metrics_address"
    )]
    metrics_tls: Option<PathBuf>,

    /// Show metrics only to those whom the API server knows by their token and lets get the path.
    #[arg(long, env = "PXO_METRICS_AUTH", requires = "metrics_tls")]
    metrics_auth: bool,
}

impl OperationsArgs {
    /// What the flags say.
    ///
    /// # Errors
    ///
    /// What is wrong with flags that do not go together, with what is allowed.
    pub(crate) fn into_operations(self) -> Result<Operations, String> {
        let election = Election {
            namespace: self.leader_elect_namespace.clone(),
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
        };
        election
            .options("default")
            .validate()
            .map_err(|error| format!("--leader-elect-…: {error}"))?;
        Ok(Operations {
            namespace: self.leader_elect_namespace,
            election: self.leader_elect.then_some(election),
            health_address: self.health_address,
            metrics_address: self.metrics_address,
            metrics_tls: self.metrics_tls,
            metrics_auth: self.metrics_auth,
        })
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "allowed is an IP address and a port, such as 0.0.0.0:8081, 127.0.0.1:8080 or [::]:8081"
            .to_owned()
    })
}
