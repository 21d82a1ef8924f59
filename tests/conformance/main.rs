//! The scenarios of `tests/it` on a real kube-apiserver, where its program is built; else each says that it was
//! skipped. Every scenario starts a control plane of its own.

#[path = "../common/mod.rs"]
mod common;

use common::world::World;

async fn real() -> Option<World> {
    let world = World::real().await;
    if world.is_none() {
        eprintln!(
            "skipped: no real API server at {} (see tests/realcluster)",
            realcluster::RealCluster::path().display()
        );
    }
    world
}

for_every_scenario!(crate::real);
