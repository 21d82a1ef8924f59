//! Accepting clients and serving one connection until it ends or is cut.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{
    ProxyLimits,
    auth::Credentials,
    counters::{Counters, count},
    dial::Dialer,
    forward::{Client, answer},
    shape::{Activity, Faults, Metered},
};

/// Pause after a failed accept, so that exhausted file descriptors do not make a hot loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What every connection of one proxy uses.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) dialer: Dialer,
    pub(super) auth: Option<Credentials>,
    pub(super) faults: Faults,
    pub(super) limits: ProxyLimits,
    pub(super) slots: Arc<Semaphore>,
    pub(super) counters: Arc<Counters>,
    /// Owns every task of the proxy.
    pub(super) tasks: TaskTracker,
    /// Cancelled: nothing new is accepted.
    pub(super) stop: CancellationToken,
    /// Cancelled: what runs is cut.
    pub(super) kill: CancellationToken,
}

/// A place among the allowed connections, held by a connection and by its tunnel after it.
#[derive(Debug)]
pub(super) struct Slot {
    counters: Arc<Counters>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    fn new(counters: &Arc<Counters>, permit: OwnedSemaphorePermit) -> Arc<Self> {
        count(&counters.open_connections);
        Arc::new(Self {
            counters: Arc::clone(counters),
            _permit: permit,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.counters
            .open_connections
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Accepts until the proxy stops; the listener closes with this future.
pub(super) async fn accept_loop(listener: TcpListener, shared: Arc<Shared>) {
    let serve = async {
        loop {
            let Ok(permit) = Arc::clone(&shared.slots).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    count(&shared.counters.connections);
                    let slot = Slot::new(&shared.counters, permit);
                    shared
                        .tasks
                        .spawn(serve_connection(stream, slot, Arc::clone(&shared)));
                }
                Err(error) => {
                    debug!(address = %shared.address, %error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = serve => {}
        () = shared.stop.cancelled() => {}
    }
}

async fn serve_connection(stream: TcpStream, slot: Arc<Slot>, shared: Arc<Shared>) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(address = %shared.address, %error, "client left before its first request");
        return;
    }
    let stream = Metered::new(
        stream,
        Arc::clone(&shared.counters),
        shared.faults.bytes_per_second,
    );
    let activity: Arc<Activity> = stream.activity();
    let client = Client {
        shared: Arc::clone(&shared),
        slot,
        activity,
    };
    let service = service_fn(move |request| {
        let client = client.clone();
        async move { Ok::<_, Infallible>(answer(&client, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.limits.head_timeout)
        .max_buf_size(shared.limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shared.kill.cancelled() => return,
        () = shared.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                served = connection => served,
                () = shared.kill.cancelled() => return,
            }
        }
    };
    if let Err(error) = served {
        debug!(address = %shared.address, %error, "client connection ended early");
    }
}
