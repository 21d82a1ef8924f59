//! The operator as a process of its own, and what the system says about it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use super::{Options, failed};
use crate::Error;

/// Longest wait for a stop.
const STOP: Duration = Duration::from_secs(40);

/// A running operator, killed when dropped.
pub(super) struct Operator {
    child: Child,
    started: Instant,
    metrics: http::Uri,
    http: Client<HttpConnector, Empty<Bytes>>,
    log: PathBuf,
}

impl Operator {
    /// Starts it against the cluster, with that providers file.
    pub(super) fn start(
        cluster: &Cluster,
        options: &Options,
        providers: &str,
    ) -> Result<Self, Error> {
        let providers = cluster.write("providers.yaml", providers)?;
        let log = cluster.write("operator.log", "")?;
        let port = free_port()?;
        let output = File::create(&log).map_err(failed("open the log"))?;
        let mut command = Command::new(&options.operator);
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .arg("--providers")
            .arg(providers)
            .args(["--provisioning-poll", "1s", "--deletion-poll", "1s"])
            .args(["--workers", &options.workers.to_string()])
            .args(["--metrics-address", &format!("127.0.0.1:{port}")])
            .args(["--default-proxy-image", "registry.example/proxy:1"])
            .stdin(Stdio::null())
            .stderr(output)
            .kill_on_drop(true);
        let started = Instant::now();
        let child = command.spawn().map_err(failed("start the operator"))?;
        let metrics = format!("http://127.0.0.1:{port}/metrics");
        Ok(Self {
            child,
            started,
            metrics: metrics.parse().map_err(failed("name the metrics"))?,
            http: Client::builder(TokioExecutor::new()).build_http(),
            log,
        })
    }

    /// Time since it was started.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sum of a metric over its labels; `None` while there is no answer or no such metric.
    pub(super) async fn metric(&self, name: &str) -> Option<f64> {
        let answer = self.http.get(self.metrics.clone()).await.ok()?;
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        sum(&String::from_utf8_lossy(&body), name)
    }

    /// Looks at a metric until it is as `done` says.
    pub(super) async fn until(
        &mut self,
        name: &str,
        limit: Duration,
        done: impl Fn(f64) -> bool,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        loop {
            if self.metric(name).await.is_some_and(&done) {
                return Ok(());
            }
            let ended = self
                .child
                .try_wait()
                .map_err(failed("ask for the operator"))?;
            if ended.is_some() || Instant::now() >= deadline {
                return Err(self.failure(&format!("{name} is not as expected")));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Processor time so far, of user and system together.
    pub(super) fn cpu(&self) -> Result<Duration, Error> {
        let stat = self.proc("stat")?;
        cpu_of(&stat).ok_or_else(|| self.failure("its processor time cannot be read"))
    }

    /// Resident memory now and at its peak, in bytes.
    pub(super) fn memory(&self) -> Result<(f64, f64), Error> {
        let status = self.proc("status")?;
        let field = |name| {
            crate::measure::field(&status, name)
                .ok_or_else(|| self.failure("its memory cannot be read"))
        };
        Ok((field("VmRSS")?, field("VmHWM")?))
    }

    fn proc(&self, file: &str) -> Result<String, Error> {
        let pid = self.child.id().ok_or_else(|| self.failure("it ended"))?;
        let path = Path::new("/proc").join(pid.to_string()).join(file);
        std::fs::read_to_string(path).map_err(|_| self.failure("it ended"))
    }

    /// Asks it to end, and waits for that.
    pub(super) async fn stop(mut self) -> Result<(), Error> {
        let pid = self.child.id().map(|pid| pid.to_string());
        let pid = pid.ok_or_else(|| self.failure("it ended before it was asked to"))?;
        let asked = Command::new("kill").args(["-TERM", &pid]).status().await;
        asked.map_err(failed("ask the operator to end"))?;
        match tokio::time::timeout(STOP, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            _ => Err(self.failure("it did not end as asked")),
        }
    }

    fn failure(&self, what: &str) -> Error {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n");
        Error::Failed(format!("operator: {what}; its log ends with\n{tail}"))
    }
}

fn free_port() -> Result<u16, Error> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    taken
        .map(|address| address.port())
        .map_err(failed("find a free port"))
}

/// The sum of all series of that name.
fn sum(text: &str, name: &str) -> Option<f64> {
    let values: Vec<f64> = text
        .lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Fields 14 and 15 of `/proc/PID/stat`, in hundredths of a second, as Linux gives them to programs.
fn cpu_of(stat: &str) -> Option<Duration> {
    // The name in field 2 may hold anything, and ends with the last bracket.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut ticks = rest.split_whitespace().skip(11);
    let user: u64 = ticks.next()?.parse().ok()?;
    let system: u64 = ticks.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_series() {
        let text = "# TYPE a counter\na{x=\"1\"} 2\na{x=\"2\"} 3\na_b 7\nc 1.5\n";
        assert_eq!(sum(text, "a"), Some(5.0));
        assert_eq!(sum(text, "c"), Some(1.5));
        assert_eq!(sum(text, "d"), None);
    }

    #[test]
    fn processor_time_is_that_of_user_and_system_whatever_the_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 0 0 0 0 120 30 0 0 20 0 1 0 1 1 1";
        assert_eq!(cpu_of(stat), Some(Duration::from_millis(1500)));
        assert_eq!(cpu_of("7 (a"), None);
    }
}
