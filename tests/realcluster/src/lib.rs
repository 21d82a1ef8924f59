//! Starts the real control plane of this folder (kube-apiserver and etcd in one Go program) for a test.
//!
//! The program is built by `build.sh`; [`RealCluster::binary`] tells whether it is there. Tests that need it
//! call [`RealCluster::start_if_built`] and, where that gives `None`, say that they were skipped. With the
//! environment variable `PXO_REQUIRE_REALCLUSTER` set, a missing program is an error instead, so that a
//! continuous-integration run cannot skip them silently.
//!
//! [`tools`] finds helm and kustomize, which `tests/tools/build.sh` builds, in the same way.
//!
//! Guarantees: every cluster has ports, data and certificates of its own on loopback; dropping the handle ends
//! all of its processes and removes its folder. A handle that is never dropped, as in a static, ends with its
//! process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

pub mod tools;

/// Overrides where the program is looked for.
pub const BINARY_VARIABLE: &str = "PXO_REALCLUSTER";
/// Makes a missing program an error instead of a reason to skip.
pub const REQUIRE_VARIABLE: &str = "PXO_REQUIRE_REALCLUSTER";

const READY_TIMEOUT: Duration = Duration::from_secs(150);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the real control plane could not be started or commanded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not built, and the environment asks for it.
    #[error(
        "{path} is missing: build it with `{build}`, or unset {REQUIRE_VARIABLE} to skip the tests \
         that need it"
    )]
    NotBuilt {
        /// Where it was looked for.
        path: String,
        /// The command that builds it.
        build: String,
    },
    /// The program could not be started, or its pipes broke.
    #[error("run the real API server")]
    Io(#[from] io::Error),
    /// It ended, or stayed silent, before it reported its address.
    #[error("the real API server did not get ready: {reason}; its logs are in {dir}")]
    NotReady {
        /// What happened instead.
        reason: String,
        /// The folder with the logs of each component.
        dir: String,
    },
    /// It refused a command.
    #[error("the real API server refused `{command}`: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// Its own words.
        reason: String,
    },
}

#[derive(Deserialize)]
struct Ready {
    server: String,
    kubeconfig: PathBuf,
    token: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
}

/// How a cluster is started.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Controllers of kube-controller-manager to run, such as `garbagecollector`; none: it does not run.
    pub controllers: Vec<String>,
    /// Admission plugins of the API server to enable beside the default ones.
    pub admission: Vec<String>,
    /// How often the API server compacts etcd (a short time makes old resource versions expire soon).
    pub compaction: Option<Duration>,
}

/// A running control plane; dropping it ends it.
#[derive(Debug)]
pub struct RealCluster {
    ready_server: String,
    ready_kubeconfig: PathBuf,
    ready_token: String,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    // Ends with the handle: the program stops its components when it dies or its input closes.
    _child: Child,
    _dir: tempfile::TempDir,
}

impl RealCluster {
    /// Where the program is looked for: `$PXO_REALCLUSTER`, else `target/realcluster/realcluster` of the project.
    #[must_use]
    pub fn path() -> PathBuf {
        std::env::var_os(BINARY_VARIABLE).map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/realcluster/realcluster"),
            PathBuf::from,
        )
    }

    /// The built program, if there is one.
    #[must_use]
    pub fn binary() -> Option<PathBuf> {
        let path = Self::path();
        path.is_file().then_some(path)
    }

    /// Starts a cluster, or gives `None` where the program is not built and nothing demands it.
    ///
    /// # Errors
    /// As [`RealCluster::start`], and [`Error::NotBuilt`] if `PXO_REQUIRE_REALCLUSTER` is set.
    pub async fn start_if_built(options: &Options) -> Result<Option<Self>, Error> {
        if Self::binary().is_none() && std::env::var_os(REQUIRE_VARIABLE).is_none() {
            return Ok(None);
        }
        Self::start(options).await.map(Some)
    }

    /// Starts etcd and kube-apiserver and waits until the API server is ready (about 4 s).
    ///
    /// # Errors
    /// [`Error::NotBuilt`] without the program, [`Error::Io`] if it cannot be run, [`Error::NotReady`] if it
    /// ends or stays silent for 150 s.
    pub async fn start(options: &Options) -> Result<Self, Error> {
        let path = Self::binary().ok_or_else(|| {
            let path = Self::path().display().to_string();
            let build = format!("tests/realcluster/build.sh {path}");
            Error::NotBuilt { path, build }
        })?;
        let dir = tempfile::Builder::new().prefix("realcluster-").tempdir()?;
        let mut command = Command::new(path);
        command
            .args(["up", "--remove-dir", "--dir"])
            .arg(dir.path());
        if !options.controllers.is_empty() {
            command
                .arg("--controllers")
                .arg(options.controllers.join(","));
        }
        if !options.admission.is_empty() {
            command.arg("--admission").arg(options.admission.join(","));
        }
        if let Some(interval) = options.compaction {
            command
                .arg("--compaction")
                .arg(format!("{}ms", interval.as_millis()));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let broken_pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        let input = child.stdin.take().ok_or_else(broken_pipe)?;
        let mut output = BufReader::new(child.stdout.take().ok_or_else(broken_pipe)?).lines();
        let not_ready = |reason: String| Error::NotReady {
            reason,
            dir: dir.path().display().to_string(),
        };
        let line = match tokio::time::timeout(READY_TIMEOUT, output.next_line()).await {
            Ok(line) => line?.ok_or_else(|| not_ready("it ended".into()))?,
            Err(_) => return Err(not_ready(format!("silent for {READY_TIMEOUT:?}"))),
        };
        let ready: Ready =
            serde_json::from_str(&line).map_err(|error| not_ready(error.to_string()))?;
        Ok(Self {
            ready_server: ready.server,
            ready_kubeconfig: ready.kubeconfig,
            ready_token: ready.token,
            input,
            output,
            _child: child,
            _dir: dir,
        })
    }

    /// The address of the API server, `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.ready_server
    }

    /// The kubeconfig of a cluster administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.ready_kubeconfig
    }

    /// The administrator's bearer token.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.ready_token
    }

    /// Ends a component (`etcd`, `kube-apiserver`, `kube-controller-manager`) by SIGKILL, as a crash would.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not run, [`Error::Io`] if the program is gone.
    pub async fn kill(&mut self, component: &str) -> Result<(), Error> {
        self.command(format!("kill {component}")).await
    }

    /// Starts a component that was killed, with the same data and address.
    ///
    /// # Errors
    /// As [`RealCluster::kill`].
    pub async fn restart(&mut self, component: &str) -> Result<(), Error> {
        self.command(format!("start {component}")).await
    }

    /// Makes etcd forget all revisions but the newest. An API server that runs goes on answering older ones from
    /// its watch cache, which [`RealCluster::kill`] and [`RealCluster::restart`] empty.
    ///
    /// # Errors
    /// [`Error::Refused`] if etcd does not answer, [`Error::Io`] if the program is gone.
    pub async fn compact(&mut self) -> Result<(), Error> {
        self.command("compact".to_owned()).await
    }

    /// Kills etcd and kube-apiserver and removes etcd's data. Started again (etcd first), the cluster is empty and
    /// its revisions are low; address, certificates and token stay.
    ///
    /// # Errors
    /// [`Error::Refused`] if the data cannot be removed, [`Error::Io`] if the program is gone.
    pub async fn erase(&mut self) -> Result<(), Error> {
        self.command("erase".to_owned()).await
    }

    async fn command(&mut self, command: String) -> Result<(), Error> {
        self.input
            .write_all(format!("{command}\n").as_bytes())
            .await?;
        let line = tokio::time::timeout(COMMAND_TIMEOUT, self.output.next_line())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let answer: Answer = serde_json::from_str(&line).map_err(io::Error::other)?;
        match answer.error {
            Some(reason) => Err(Error::Refused { command, reason }),
            None => Ok(()),
        }
    }
}
