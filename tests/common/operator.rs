//! The operator as a process of its own, so that a test can kill it as a crash would.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// A running `proxy-operator run`; dropping it kills it.
pub(crate) struct Operator {
    child: Child,
    log: PathBuf,
}

impl Operator {
    /// Starts the operator against a kubeconfig with short polls; its log goes to a file beside it.
    pub(crate) fn start(kubeconfig: &Path, flags: &[&str]) -> Self {
        let log = kubeconfig.with_extension("operator.log");
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file beside the kubeconfig");
        let child = Command::new(env!("CARGO_BIN_EXE_proxy-operator"))
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--default-proxy-image", "registry.example/forward-proxy:1"])
            // Twins of flags, so that a test may give the flag.
            .env("PXO_PROVISIONING_POLL", "200ms")
            .env("PXO_DELETION_POLL", "200ms")
            .args(flags)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle of the log"))
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .expect("the operator's binary starts");
        Self { child, log }
    }

    /// Ends it by SIGKILL and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("the process is ours");
    }

    /// Asks it to end, as a kubelet does, and gives its exit code (none if the signal ended it).
    pub(crate) async fn terminate(&mut self, limit: Duration) -> Option<i32> {
        self.signal().await;
        tokio::time::timeout(limit, self.child.wait())
            .await
            .unwrap_or_else(|_| panic!("still runs after {limit:?}:\n{}", self.log()))
            .expect("the process is ours")
            .code()
    }

    /// Sends it SIGTERM, and does not wait.
    pub(crate) async fn signal(&self) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().await;
        assert!(sent.expect("kill runs").success());
    }

    /// Whether it has ended.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("the process is ours")
            .is_some()
    }

    /// All that it (and runs before it with the same kubeconfig) has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Operator {
    /// Shows what the operator said where a test has failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            super::say(&format!("the operator's log:\n{}", self.log()));
        }
    }
}
