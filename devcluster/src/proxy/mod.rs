//! A real HTTP/1.1 forward proxy that runs inside the process.
//!
//! It is what a simulated pod with a container port named `proxy` serves on its pod address, and it
//! can be started alone wherever a test or a demonstration needs a proxy.
//!
//! - Absolute-form requests (`GET http://host/path`) are forwarded, `CONNECT` opens a tunnel.
//! - Outgoing connections are bound to [`ProxyOptions::source_ip`], so that a target sees which
//!   proxy called.
//! - Targets are loopback addresses only, unless [`ProxyOptions::allowed`] says otherwise; the
//!   check is made on the resolved address, not on the name.
//! - Optional Basic authentication (RFC 7617, `Proxy-Authorization`), compared as bytes.
//! - `GET /healthz` in origin form answers `ok`, and 503 while the proxy drains.
//! - Hop-by-hop fields are removed and `Via` is added in both directions (RFC 9110, 7.6).
//!
//! Not done: caching, HTTP/2, upgrades other than `CONNECT`, `https://` in absolute form.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use devcluster::proxy::{ForwardProxy, ProxyOptions};
//! use std::time::Duration;
//!
//! let proxy = ForwardProxy::start(ProxyOptions::default()).await?;
//! println!("try: curl -x {} http://127.0.0.1:8080/", proxy.url());
//! proxy.shutdown(Duration::from_secs(1)).await;
//! # Ok::<(), devcluster::proxy::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod auth;
mod client;
mod connection;
mod counters;
mod dial;
mod fields;
mod forward;
mod refusal;
mod shape;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    auth::Credentials,
    client::{Answer, ClientError, ProxyClient},
    counters::ProxyCounters,
    dial::AllowedTargets,
    shape::Impairment,
};

use self::{
    connection::{Shared, accept_loop},
    counters::Counters,
    dial::Dialer,
    shape::Faults,
};

/// What can go wrong when a proxy starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The listening address could not be bound.
    #[error("bind the proxy to {address}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// Why the system refused it.
        #[source]
        source: io::Error,
    },
    /// An option is outside of its range.
    #[error("proxy option {option}: {problem}")]
    Option {
        /// Name of the field.
        option: &'static str,
        /// What is wrong and what to give instead.
        problem: String,
    },
}

/// Bounds that keep one proxy from exhausting the process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyLimits {
    /// Client connections and tunnels at one time; further ones wait in the listen backlog.
    pub connections: usize,
    /// Largest request head in bytes (at least 8192); a longer one is answered with 431.
    pub head_bytes: usize,
    /// Longest wait for a request head, also of an idle kept-alive connection.
    pub head_timeout: Duration,
    /// Longest time for resolving and connecting to a target; then 504.
    pub connect_timeout: Duration,
    /// Longest wait for the head of a target's response; then 504.
    pub response_timeout: Duration,
    /// A tunnel without a byte in either direction for that long is closed.
    pub tunnel_idle_timeout: Duration,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            head_bytes: 64 * 1024,
            head_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(60),
            tunnel_idle_timeout: Duration::from_secs(300),
        }
    }
}

/// How a [`ForwardProxy`] is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyOptions {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Local address of outgoing connections; none leaves the choice to the system.
    pub source_ip: Option<IpAddr>,
    /// User name and password that clients must send; none leaves the proxy open.
    pub auth: Option<Credentials>,
    /// Which targets may be called.
    pub allowed: AllowedTargets,
    /// Bounds on connections, sizes and times.
    pub limits: ProxyLimits,
    /// Latency, errors and bandwidth made on purpose.
    pub impairment: Impairment,
}

impl Default for ProxyOptions {
    /// An open proxy on a free port of 127.0.0.1 for loopback targets.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            source_ip: None,
            auth: None,
            allowed: AllowedTargets::default(),
            limits: ProxyLimits::default(),
            impairment: Impairment::default(),
        }
    }
}

/// Starts forward proxies; see the [module](self).
#[derive(Debug)]
pub struct ForwardProxy;

impl ForwardProxy {
    /// Binds the address and serves until the handle is shut down or dropped.
    ///
    /// The listener accepts when this returns. Must be called inside a tokio runtime with time and
    /// IO enabled. Cost at rest: one task waiting for connections.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for an option outside of its range, [`Error::Bind`] if the address is
    /// taken or not of this machine.
    pub async fn start(options: ProxyOptions) -> Result<ProxyHandle, Error> {
        validate(&options)?;
        let address = options.listen;
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let local = listener.local_addr()?;
            Ok((listener, local))
        };
        let (listener, local) = bound
            .await
            .map_err(|source| Error::Bind { address, source })?;
        let shared = Arc::new(Shared {
            address: local,
            dialer: Dialer::new(
                local,
                options.source_ip,
                options.allowed,
                options.limits.connect_timeout,
            ),
            auth: options.auth,
            faults: Faults::new(&options.impairment),
            slots: Arc::new(Semaphore::new(options.limits.connections)),
            limits: options.limits,
            counters: Arc::new(Counters::default()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
        });
        let accepting = shared
            .tasks
            .spawn(accept_loop(listener, Arc::clone(&shared)));
        Ok(ProxyHandle { shared, accepting })
    }
}

/// A running proxy; dropping it closes the listener and every connection at once.
pub struct ProxyHandle {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl ProxyHandle {
    /// The address it listens on, with the port that was really taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The proxy's URL without credentials, for a client's proxy setting.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// What the proxy has done so far.
    #[must_use]
    pub fn counters(&self) -> ProxyCounters {
        self.shared.counters.snapshot()
    }

    /// Ends the proxy: no new connection, running ones may finish within `grace`.
    ///
    /// The listener is closed first, kept-alive connections close after their current response,
    /// tunnels run on; what is left after `grace` is cut. Cancelling this future leaves the proxy
    /// draining, with the rest cut when the handle is dropped.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(grace, self.shared.tasks.wait())
            .await
            .is_err()
        {
            self.shared.kill.cancel();
            self.shared.tasks.wait().await;
        }
    }

    /// Cuts every connection and closes the listener without waiting.
    pub fn kill(&self) {
        self.shared.stop.cancel();
        self.shared.kill.cancel();
        self.accepting.abort();
    }
}

impl Drop for ProxyHandle {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Debug for ProxyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyHandle")
            .field("address", &self.shared.address)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

fn validate(options: &ProxyOptions) -> Result<(), Error> {
    let refuse = |option, problem: String| Err(Error::Option { option, problem });
    if options.limits.connections == 0 {
        return refuse(
            "limits.connections",
            "0 serves nobody; give at least 1".to_owned(),
        );
    }
    // Below that hyper panics.
    if options.limits.head_bytes < 8192 {
        return refuse(
            "limits.head_bytes",
            format!(
                "{} is too small; give at least 8192",
                options.limits.head_bytes
            ),
        );
    }
    if let Some(source) = options.source_ip
        && source.is_ipv4() != options.listen.is_ipv4()
    {
        return refuse(
            "source_ip",
            format!(
                "{source} is of another address family than {}",
                options.listen
            ),
        );
    }
    if let Some(problem) = options.impairment.problem() {
        return refuse("impairment", problem);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
