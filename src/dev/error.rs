//! What can go wrong in `dev`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why `dev` ended otherwise than asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be made.
    #[error("write {}", .path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Logging did not start.
    #[error("start logging")]
    Log(#[source] tracing_subscriber::util::TryInitError),
    /// Signals cannot be caught.
    #[error("catch SIGINT and SIGTERM")]
    Signals(#[source] Box<controller::signals::Error>),
    /// The embedded cluster did not start, or did not give what it must.
    #[error("embedded cluster")]
    Cluster(#[source] Box<devcluster::Error>),
    /// The simulated nodes did not start.
    #[error("simulated nodes")]
    Nodes(#[source] Box<devcluster::kubelet::Error>),
    /// The echo server did not start.
    #[error("echo server")]
    Echo(#[from] devcluster::echo::Error),
    /// No loopback addresses for simulated machines.
    #[error("claim addresses for simulated machines in 127.64.0.0/10")]
    Addresses(#[source] io::Error),
    /// The control API of the simulated machines did not start.
    #[error("serve the control API of the simulated machines")]
    Admin(#[source] Box<crate::provider::sim::admin::Error>),
    /// A scene was to be played on pods.
    #[error("scenes play on a simulated cloud; run dev with --provider sim")]
    NoCloud,
    /// The proxy behind the External Proxy did not start.
    #[error("the proxy behind the External Proxy")]
    External(#[source] Box<devcluster::proxy::Error>),
    /// The kubeconfig of the embedded cluster gives no client.
    #[error("set up the client of the embedded cluster")]
    Client(#[source] Box<controller::informer::client::Error>),
    /// A manifest that the program carries cannot be read.
    #[error("read the manifest {name}")]
    Manifest {
        /// Which one.
        name: &'static str,
        /// The cause.
        source: Box<serde_saphyr::Error>,
    },
    /// The CustomResourceDefinition cannot be written as YAML.
    #[error("write the CustomResourceDefinition")]
    Crd(#[source] Box<crate::api::CrdError>),
    /// The API server refused a request.
    #[error("{what}")]
    Api {
        /// What was asked of it.
        what: String,
        /// Its answer.
        source: Box<kube_client::Error>,
    },
    /// The operator ended by itself.
    #[error("the operator ended")]
    Operator(#[source] Box<crate::Error>),
    /// The operator ended by itself, without an error.
    #[error("the operator ended before it was asked to")]
    OperatorGone,
    /// What must come did not come.
    #[error("{step}: not within {seconds}s: {last}")]
    NotSo {
        /// The step that was to be proven.
        step: &'static str,
        /// How long it was waited for.
        seconds: u64,
        /// What is missing.
        last: String,
    },
    /// A signal ended the script.
    #[error("stopped by a signal before every step was proven")]
    Interrupted,
    /// Stdout does not take output.
    #[error("write to stdout")]
    Stdout(#[from] io::Error),
}

impl Error {
    /// A step that was not proven within its time.
    pub(super) fn not_so(step: &'static str, limit: Duration, last: String) -> Self {
        Self::NotSo {
            step,
            seconds: limit.as_secs(),
            last,
        }
    }

    /// Wraps an answer of the API server.
    pub(super) fn api(what: impl Into<String>) -> impl FnOnce(kube_client::Error) -> Self {
        let what = what.into();
        move |source| Self::Api {
            what,
            source: Box::new(source),
        }
    }
}
