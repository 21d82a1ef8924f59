//! The handle of a running cluster.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    apply::FieldTracking,
    auth::{Account, Authenticator, ISSUER, KeyError, User},
    authorization::{self, Authorization},
    clock::Clock,
    controllers::{NamespaceOptions, establish_definitions, expire_events, tend_namespaces},
    counters::{Counters, LogEntry},
    faults::Faults,
    frontend::{Frontend, InProcess},
    handlers::{Api, Ownership, Writer},
    http::{
        server::{self, Stop},
        tls,
    },
    registry::resource::set_type,
    store::Store,
};

/// Namespaces that exist from the start.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Seconds that a token of [`DevCluster::service_account_token`] is good for.
const TOKEN_SECONDS: i64 = 10 * 365 * 24 * 3600;

/// Why a cluster could not do what was asked of its handle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The listener could not be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Certificates could not be made.
    #[error("cannot set up TLS")]
    Tls(#[from] tls::Error),
    /// The key that signs tokens could not be made.
    #[error("cannot set up authentication")]
    Key(#[from] KeyError),
    /// The address may be reached from other machines, which needs to be asked for.
    #[error("{0} is no loopback address: set allow_remote to serve it")]
    Remote(SocketAddr),
    /// A file could not be written.
    #[error("cannot write {path}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// There is no such service account.
    #[error("service account {namespace}/{name} does not exist: create it first")]
    NoServiceAccount {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The system has no randomness.
    #[error("cannot sign a token: {0}")]
    Sign(String),
    /// The kubeconfig is not accepted by the client library.
    #[error("cannot use the cluster's own kubeconfig")]
    Kubeconfig(#[source] Box<kube_client::config::KubeconfigError>),
}

/// Options of a cluster; see [`DevCluster::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    listen: SocketAddr,
    allow_remote: bool,
    plain_http: bool,
    namespaces: NamespaceOptions,
    tracking: FieldTracking,
    authorization: Authorization,
}

impl Builder {
    /// Where to listen; by default any free port of 127.0.0.1.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Allows an address that other machines can reach. Whoever holds the admin token can do everything.
    pub fn allow_remote(mut self, allow: bool) -> Self {
        self.allow_remote = allow;
        self
    }

    /// Serves HTTP without TLS, for measurements. Off by default.
    pub fn plain_http(mut self, plain: bool) -> Self {
        self.plain_http = plain;
        self
    }

    /// Whether the contents of a deleted namespace are deleted and the namespace finalized. On by default.
    pub fn namespace_controller(mut self, on: bool) -> Self {
        self.namespaces.empty_terminating = on;
        self
    }

    /// Whether each namespace gets the service account `default`. On by default.
    pub fn default_service_accounts(mut self, on: bool) -> Self {
        self.namespaces.default_account = on;
        self
    }

    /// Which objects have owners of their fields (`metadata.managedFields`); all, by default, as in a real
    /// server. Without owners writes cost less and objects are smaller, and server-side apply is refused.
    pub fn field_tracking(mut self, tracking: FieldTracking) -> Self {
        self.tracking = tracking;
        self
    }

    /// Who may do what: everybody who is known, by default, or those to whom roles are bound.
    pub fn authorization(mut self, authorization: Authorization) -> Self {
        self.authorization = authorization;
        self
    }

    /// Starts the cluster. It serves when this returns.
    ///
    /// # Errors
    /// When the address cannot be bound or keys cannot be made.
    pub async fn start(self) -> Result<DevCluster, Error> {
        DevCluster::start(self).await
    }
}

/// A running cluster. Dropping it stops all of its tasks and frees its port.
///
/// Many clusters can run in one process. Nothing is kept when a cluster ends.
#[derive(Debug)]
pub struct DevCluster {
    address: SocketAddr,
    /// None: plain HTTP.
    tls: Option<Arc<rustls::ServerConfig>>,
    ca_pem: String,
    api: Arc<Api>,
    frontend: Arc<Frontend>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    serving: Option<Serving>,
}

/// The open port of a cluster.
#[derive(Debug)]
struct Serving {
    cut: CancellationToken,
    task: JoinSet<()>,
    connections: TaskTracker,
}

impl Serving {
    fn start(
        listener: TcpListener,
        tls: Option<Arc<rustls::ServerConfig>>,
        frontend: &Arc<Frontend>,
        stop: &CancellationToken,
    ) -> Self {
        let stop = Stop {
            drain: stop.clone(),
            cut: CancellationToken::new(),
        };
        let cut = stop.cut.clone();
        let connections = TaskTracker::new();
        let mut task = JoinSet::new();
        task.spawn(server::serve(
            listener,
            tls,
            Arc::clone(frontend),
            stop,
            connections.clone(),
        ));
        Self {
            cut,
            task,
            connections,
        }
    }

    async fn ended(mut self) {
        while let Some(ended) = self.task.join_next().await {
            report(ended);
        }
        self.connections.close();
        self.connections.wait().await;
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task of the cluster failed");
    }
}

impl DevCluster {
    /// Options for a new cluster.
    ///
    /// # Example
    /// ```
    /// # async fn example() -> Result<(), devcluster::Error> {
    /// let cluster = devcluster::DevCluster::builder().start().await?;
    /// println!("{}", cluster.kubeconfig());
    /// cluster.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> Builder {
        Builder {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            allow_remote: false,
            plain_http: false,
            namespaces: NamespaceOptions {
                empty_terminating: true,
                default_account: true,
            },
            tracking: FieldTracking::default(),
            authorization: Authorization::default(),
        }
    }

    async fn start(options: Builder) -> Result<Self, Error> {
        if !options.listen.ip().is_loopback() {
            if !options.allow_remote {
                return Err(Error::Remote(options.listen));
            }
            tracing::warn!(address = %options.listen, "other machines can reach this cluster");
        }
        let listening = |source| Error::Listen {
            address: options.listen,
            source,
        };
        let listener = TcpListener::bind(options.listen).await.map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let mut names: Vec<String> = ["localhost", "127.0.0.1", "kubernetes.default.svc"]
            .map(str::to_owned)
            .to_vec();
        if !address.ip().is_unspecified() && address.ip() != Ipv4Addr::LOCALHOST {
            names.push(address.ip().to_string());
        }
        let identity = tls::Identity::generate(names)?;
        let clock = Clock::start();
        let stop = CancellationToken::new();
        let authenticator = Authenticator::generate(clock)?;
        let mut api = Api::new(Store::new(), clock, authenticator, stop.clone());
        api.tracking = options.tracking;
        api.authorizer.mode = options.authorization;
        let api = Arc::new(api);
        bootstrap(&api);
        let frontend = Arc::new(Frontend::new(Arc::clone(&api)));
        let mut tasks = JoinSet::new();
        tasks.spawn(establish_definitions(Arc::clone(&api), stop.clone()));
        tasks.spawn(expire_events(Arc::clone(&api), stop.clone()));
        tasks.spawn(tend_namespaces(
            Arc::clone(&api),
            options.namespaces,
            stop.clone(),
        ));
        let tls = (!options.plain_http).then_some(identity.server);
        let serving = Serving::start(listener, tls.clone(), &frontend, &stop);
        tracing::info!(%address, "cluster serves");
        Ok(Self {
            address,
            tls,
            ca_pem: identity.ca_pem,
            api,
            frontend,
            stop,
            tasks,
            serving: Some(serving),
        })
    }

    /// `https://ADDRESS:PORT`.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_none() { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    /// Where the cluster listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate of the authority that signed the serving certificate, PEM.
    pub fn ca_certificate(&self) -> &str {
        &self.ca_pem
    }

    /// The administrator's bearer token.
    pub fn admin_token(&self) -> &str {
        self.api.authenticator.admin_token()
    }

    /// A kubeconfig (YAML) with the administrator's token.
    pub fn kubeconfig(&self) -> String {
        kubeconfig_text(&self.kubeconfig_value(self.admin_token(), "admin"))
    }

    /// A kubeconfig (YAML) with another token.
    pub fn kubeconfig_for(&self, token: &str) -> String {
        kubeconfig_text(&self.kubeconfig_value(token, "user"))
    }

    fn kubeconfig_value(&self, token: &str, user: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "devcluster", "cluster": {
                "certificate-authority-data": STANDARD.encode(&self.ca_pem), "server": self.url(),
            }}],
            "contexts": [{"name": "devcluster", "context": {
                "cluster": "devcluster", "namespace": "default", "user": user,
            }}],
            "current-context": "devcluster",
            "users": [{"name": user, "user": {"token": token}}],
        })
    }

    /// Writes the administrator's kubeconfig: mode 0600, whole when it appears under its name.
    ///
    /// # Errors
    /// [`Error::Write`] when the folder does not exist or cannot be written.
    pub fn write_kubeconfig(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_private(path.as_ref(), &self.kubeconfig()).map_err(|source| Error::Write {
            path: path.as_ref().to_owned(),
            source,
        })
    }

    /// A bearer token of `system:serviceaccount:NAMESPACE:NAME`, good for ten years or until the account is
    /// deleted.
    ///
    /// # Errors
    /// [`Error::NoServiceAccount`] when the account does not exist.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> Result<String, Error> {
        let uid = self
            .api
            .account_uid(namespace, name)
            .ok_or_else(|| Error::NoServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })?;
        let account = Account {
            namespace,
            name,
            uid: &uid,
        };
        self.api
            .authenticator
            .sign(account, &[ISSUER.to_owned()], TOKEN_SECONDS)
            .map_err(|error| Error::Sign(error.message().to_owned()))
    }

    /// A client of the administrator's that reaches the API without a socket, so that tests can run on paused
    /// time. It ends with the runtime that it was made on.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn client(&self) -> kube_client::Client {
        let service = InProcess {
            frontend: Arc::clone(&self.frontend),
            user: User::admin(),
        };
        kube_client::Client::new(service, "default")
    }

    /// The configuration of a client over HTTPS, with the administrator's token.
    ///
    /// # Errors
    /// When the client library does not accept the cluster's kubeconfig.
    pub async fn client_config(&self) -> Result<kube_client::Config, Error> {
        let refused = |error| Error::Kubeconfig(Box::new(error));
        let config =
            kube_client::config::Kubeconfig::from_yaml(&self.kubeconfig()).map_err(refused)?;
        let options = kube_client::config::KubeConfigOptions::default();
        kube_client::Config::from_custom_kubeconfig(config, &options)
            .await
            .map_err(refused)
    }

    /// What was asked of the server so far.
    pub fn counters(&self) -> Counters {
        self.api.recorder.snapshot()
    }

    /// The last 10 000 requests, oldest first.
    pub fn request_log(&self) -> Vec<LogEntry> {
        self.api.recorder.log()
    }

    /// The objects.
    pub fn store(&self) -> &Store {
        &self.api.store
    }

    /// The cluster's time, which follows tokio's.
    pub fn clock(&self) -> Clock {
        self.api.clock
    }

    /// Forgets all versions of objects but the newest: older continue tokens and exact reads answer 410.
    pub fn compact(&self) {
        self.api.store.compact(self.api.store.revision());
    }

    /// Forgets the watch history: watches from an older revision are answered with 410, as after a long outage
    /// of the client.
    pub fn trim_history(&self) {
        self.api.store.trim_history();
    }

    /// The fault rules of this cluster; they are about clients of this process too. A request that a rule
    /// refuses or resets before it is handled is not counted: it has not reached the API.
    pub fn faults(&self) -> &Faults {
        &self.frontend.faults
    }

    /// Ends all connections at once and closes the port, as if the API server had died. The cluster's own
    /// controllers go on. [`DevCluster::restart`] serves again.
    pub async fn take_down(&mut self) {
        self.frontend.down.store(true, Ordering::Relaxed);
        if let Some(serving) = self.serving.take() {
            serving.cut.cancel();
            serving.ended().await;
        }
        // Those of clients of this process; the others broke with their connections.
        self.api.end_watches();
    }

    /// Serves again on the same port, after [`DevCluster::take_down`] if that was not called before: with the
    /// same objects, revisions, keys and tokens, and without a history. Watches from an older revision are
    /// answered with 410.
    ///
    /// # Errors
    /// [`Error::Listen`] when somebody else has taken the port; it can be called again.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.take_down().await;
        self.api.store.forget_history();
        let address = self.address;
        let listening = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listening)?;
        let tls = self.tls.clone();
        self.serving = Some(Serving::start(listener, tls, &self.frontend, &self.stop));
        self.frontend.down.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Stops serving: watches end cleanly, connections finish their responses within two seconds.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            report(ended);
        }
        if let Some(serving) = self.serving.take() {
            serving.ended().await;
        }
    }
}

impl Drop for DevCluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn bootstrap(api: &Api) {
    let namespaces = api.registry.built_in("", "namespaces");
    let writer = Writer::server("");
    for name in NAMESPACES {
        let mut namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let unknown = namespaces.normalise(&mut namespace);
        debug_assert!(unknown.is_ok(), "the server makes sound namespaces");
        if let Err(error) = api.create_object(
            &namespaces,
            None,
            namespace,
            Ownership::Update(&writer),
            false,
            &mut Vec::new(),
        ) {
            tracing::error!(%error, name, "cannot create a namespace of the start");
        }
    }
    if api.authorizer.mode == Authorization::Rbac {
        let roles = authorization::default_roles();
        let bindings = authorization::default_bindings();
        for (plural, objects) in [("clusterroles", roles), ("clusterrolebindings", bindings)] {
            let resource = api.registry.built_in("rbac.authorization.k8s.io", plural);
            for mut object in objects {
                set_type(&mut object, &resource.api_version(), &resource.kind);
                let ownership = Ownership::Update(&writer);
                let created =
                    api.create_object(&resource, None, object, ownership, false, &mut Vec::new());
                if let Err(error) = created {
                    tracing::error!(%error, plural, "cannot create a role of the start");
                }
            }
        }
    }
}

fn kubeconfig_text(config: &Value) -> String {
    serde_saphyr::to_string(config).expect("a JSON value is YAML")
}

/// Writes a file for its owner alone, under another name first.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", uuid::Uuid::new_v4().simple()));
    let temporary = path.with_file_name(name);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())
                .and_then(|()| file.sync_all())
        })
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Best effort: the first error is the one to tell.
        let _ignored = std::fs::remove_file(&temporary);
    }
    written
}
