//! One real API server for all scenarios of this program.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use realcluster::{Error, Options, RealCluster};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Use;

/// Drives the server's pipes for as long as this program lives; each test's own runtime ends with it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
});
static SERVER: OnceCell<Option<Shared>> = OnceCell::const_new();
/// Held for writing by whoever takes the server down.
static TURNS: RwLock<()> = RwLock::const_new(());

struct Shared {
    kubeconfig: PathBuf,
    cluster: Mutex<RealCluster>,
}

#[expect(dead_code, reason = "held for what dropping it lets others do")]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// The right to use the server.
pub(super) struct Lease {
    server: &'static Shared,
    _turn: Turn,
}

/// Waits for a turn; `None` where the server is not built.
pub(super) async fn lease(uses: Use) -> Option<Lease> {
    let turn = match uses {
        Use::Shared => Turn::Shared(TURNS.read().await),
        Use::Alone => Turn::Alone(TURNS.write().await),
    };
    let start = || async {
        RUNTIME
            .spawn(async {
                let cluster = RealCluster::start_if_built(&Options::default())
                    .await
                    .unwrap()?;
                Some(Shared {
                    kubeconfig: cluster.kubeconfig().to_owned(),
                    cluster: Mutex::new(cluster),
                })
            })
            .await
            .unwrap()
    };
    let server = SERVER.get_or_init(start).await.as_ref()?;
    let lease = Lease {
        server,
        _turn: turn,
    };
    if uses == Use::Alone {
        // A scenario that failed may have left a part of it dead.
        for part in ["etcd", "kube-apiserver"] {
            drop(
                lease
                    .command(move |cluster| Box::pin(cluster.restart(part)))
                    .await,
            );
        }
    }
    Some(lease)
}

type Answer<'a> = futures::future::BoxFuture<'a, Result<(), Error>>;

impl Lease {
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.server.kubeconfig
    }

    async fn command(
        &self,
        command: impl for<'a> FnOnce(&'a mut RealCluster) -> Answer<'a> + Send + 'static,
    ) -> Result<(), Error> {
        let server = self.server;
        let run = async move { command(&mut *server.cluster.lock().await).await };
        RUNTIME.spawn(run).await.unwrap()
    }

    pub(super) async fn kill(&self, part: &'static str) {
        let command = self.command(move |cluster| Box::pin(cluster.kill(part)));
        command.await.unwrap();
    }

    pub(super) async fn start(&self, part: &'static str) {
        let command = self.command(move |cluster| Box::pin(cluster.restart(part)));
        command.await.unwrap();
    }

    pub(super) async fn compact(&self) {
        self.command(|cluster| Box::pin(cluster.compact()))
            .await
            .unwrap();
    }

    pub(super) async fn erase(&self) {
        self.command(|cluster| Box::pin(cluster.erase()))
            .await
            .unwrap();
    }
}
