//! Which cluster the operator serves: its address, its credentials, its id.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::{Api, Client, Config};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The namespace whose UID is a cluster's id unless one is given (G-06).
const ID_NAMESPACE: &str = "kube-system";

/// Where address and credentials of the cluster come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cluster {
    /// The cluster this process runs in, else KUBECONFIG or ~/.kube/config.
    ///
    /// The order keeps a stray KUBECONFIG in a pod from leading the operator elsewhere.
    #[default]
    Inferred,
    /// This kubeconfig.
    Kubeconfig(PathBuf),
}

/// Why there is no cluster to serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kubeconfig that was named is no good.
    #[error("kubeconfig {}", .path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<kube_client::config::KubeconfigError>,
    },
    /// Neither in a cluster nor with a kubeconfig.
    #[error(
        "no cluster: this process runs in none ({in_cluster}), and there is no usable kubeconfig; \
         give one with --kubeconfig FILE or KUBECONFIG"
    )]
    NoConfig {
        /// Why the in-cluster configuration is no good.
        in_cluster: String,
        /// Why the kubeconfig is no good.
        source: Box<kube_client::config::KubeconfigError>,
    },
    /// The API server did not say what the cluster's id is.
    #[error("no answer from the API server within {}s", .waited.as_secs())]
    Unreachable {
        /// How long it was tried.
        waited: Duration,
        /// The latest cause.
        source: Box<kube_client::Error>,
    },
    /// The operator may not read the namespace that gives the id.
    #[error(
        "namespace {ID_NAMESPACE} cannot be read, and its UID is the default cluster id; allow \
         `get` on it (as manifests/ does) or set --cluster-id"
    )]
    NoClusterId(#[source] Box<kube_client::Error>),
}

impl Cluster {
    /// Loads address and credentials.
    ///
    /// # Errors
    ///
    /// [`Error::Kubeconfig`], [`Error::NoConfig`].
    pub async fn load(&self) -> Result<Config, Error> {
        match self {
            Self::Kubeconfig(path) => {
                let failed = |source| Error::Kubeconfig {
                    path: path.clone(),
                    source: Box::new(source),
                };
                let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)
            }
            Self::Inferred => match Config::incluster() {
                Ok(config) => Ok(config),
                Err(in_cluster) => Config::from_kubeconfig(&KubeConfigOptions::default())
                    .await
                    .map_err(|source| Error::NoConfig {
                        in_cluster: in_cluster.to_string(),
                        source: Box::new(source),
                    }),
            },
        }
    }
}

/// Asks for the cluster's id, again and again with backoff until `patience` is over.
///
/// `None` if `stop` came first.
pub(crate) async fn id(
    client: &Client,
    patience: Duration,
    stop: &CancellationToken,
) -> Result<Option<Arc<str>>, Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let start = Instant::now();
    let mut pause = Duration::from_millis(500);
    let mut last_cause = String::new();
    loop {
        let error = tokio::select! {
            answer = namespaces.get(ID_NAMESPACE) => match answer {
                Ok(namespace) => return Ok(namespace.metadata.uid.map(Arc::from)),
                Err(error) => error,
            },
            () = stop.cancelled() => return Ok(None),
        };
        if let kube_client::Error::Api(status) = &error
            && (status.is_forbidden() || status.is_not_found())
        {
            return Err(Error::NoClusterId(Box::new(error)));
        }
        let cause = Chain(&error).to_string();
        if cause != last_cause {
            tracing::warn!(error = cause, "no answer from the API server, trying again");
            last_cause = cause;
        }
        let waited = start.elapsed();
        if waited >= patience {
            return Err(Error::Unreachable { waited, source: Box::new(error) });
        }
        tokio::select! {
            () = tokio::time::sleep(pause.min(patience - waited)) => {}
            () = stop.cancelled() => return Ok(None),
        }
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

/// An error and its causes in one line.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Some errors repeat their cause.
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}
